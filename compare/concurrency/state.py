"""The state of one abstract execution: processes with their frames, what they wait for, and the decisions that led there."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from compare.concurrency.control_flow import Graph, Node
from compare.concurrency.findings import Finding, Step
from compare.concurrency.program import Module, Program
from compare.concurrency.values import Function, Thing, Value

MOST_VISITS = 40
"""Of one node in one frame. A loop that turns more often is cut."""
MOST_FRAMES = 40
_LONGEST_TRACE = 400


class Cut(Exception):
    """The execution cannot go on: a budget is spent. The message says which."""


class Budget:
    """What is left to the search: nodes and seconds."""

    def __init__(self, nodes: int, seconds: float, *, of_all: float = 0.0) -> None:
        """Args:
        of_all: the seconds that the whole search had.
        """
        self.nodes = nodes
        self.visited = 0
        self._of_all = of_all
        self._until = time.monotonic() + seconds

    def spend(self) -> None:
        """Count one node.

        Raises:
            Cut: there are none left.
        """
        self.visited += 1
        if self.visited > self.nodes:
            raise Cut(f"{self.nodes:,} nodes (--nodes)")
        if self.visited % 256 == 0 and self.out_of_time:
            raise Cut(f"{self._of_all:g} s (--search-seconds)")

    @property
    def seconds_left(self) -> float:
        return self._until - time.monotonic()

    @property
    def out_of_time(self) -> bool:
        return self.seconds_left < 0


class Path:
    """The decisions of one execution: a prefix that is given, and then the first alternative of each."""

    def __init__(self, prefix: Sequence[int] = ()) -> None:
        self._prefix = prefix
        self.taken: list[tuple[int, int]] = []
        """(alternative, how many there were)."""
        self.doubts: set[int] = set()
        """Places of the decisions by which a rank may leave the others if their data differ."""

    def choose(self, alternatives: int) -> int:
        if alternatives <= 1:
            return 0
        place = len(self.taken)
        chosen = self._prefix[place] if place < len(self._prefix) else 0
        self.taken.append((chosen, alternatives))
        return chosen


Numbers = dict[tuple[int, str], tuple[dict[str, Value], Value | None]]
"""(identity of what holds it, name): (what holds it, the number)."""


@dataclass(eq=False)
class Frame:
    """A call of a function."""

    graph: Graph
    module: Module
    place: int
    names: dict[str, Value] = field(default_factory=dict[str, Value])
    parent: Frame | None = None
    """Where it was defined, if that is a function."""
    function: Function | None = None
    now: int = 0
    """The node that is executed."""
    temporary: dict[int, Value] = field(default_factory=dict[int, Value])
    """Results of calls and conditional expressions, by the identity of their trees."""
    loops: dict[int, Any] = field(default_factory=dict[int, Any])
    visits: Counter[int] = field(default_factory=Counter[int])
    shared: frozenset[str] = frozenset()
    """Names that are declared global or nonlocal."""
    error: str = ""
    """The exception that is on its way."""
    parted: dict[int, tuple[Numbers, Numbers]] = field(default_factory=dict[int, Any])
    """Node where the ways of a branch meet on which ranks may part: see `Execution._differ`."""
    most_visits: int = MOST_VISITS
    guessed: bool = False
    """Whether the loop that it is in was entered although its test is unknown."""
    on_return: Callable[[Value], None] = lambda _: None
    generator: Thing | None = None

    @property
    def node(self) -> Node:
        return self.graph.nodes[self.now]

    @property
    def in_part(self) -> bool:
        """Whether it is in a loop that is followed for fewer turns than it may have."""
        return self.guessed or any(len(each) > 1 and (each[0] is None or each[1]) for each in self.loops.values())


class Operation(NamedTuple):
    """What a process is about to do with something that others use."""

    says: str
    ready: Callable[[], bool]
    act: Callable[[], Value]
    thing: Thing | None = None
    expire: Callable[[], None] | None = None
    """What happens if time runs out. None: it waits forever."""
    kind: str = ""
    """collective, send or recv: of ranks."""
    patient: bool = False
    """Whether time only runs out when nobody else can go on: it is meant to be long enough."""


@dataclass(eq=False)
class Item:
    """What lies in a queue."""

    value: Value
    clock: dict[int, int]
    """Of who has put it there."""
    size: int | None
    """About how many bytes there may be of its kind. None: not known, and perhaps many."""
    joined: tuple[int, int, Step] | None = None
    """Who has waited for the end of the process that has put it there, although it was not read: number, moment, step."""


Place = tuple[object, str]
"""(object, attribute), or (call, variable). The object itself: the identity of one that has gone would soon be another's."""


@dataclass(eq=False)
class System:
    """One process of the operating system: what its threads share."""

    rank: int | None
    names: dict[str, dict[str, Value]] = field(default_factory=dict[str, dict[str, Value]])
    """Module: its variables."""
    spawns: bool = False
    groups: int = 0
    """How many groups it has made."""
    children: int = 0
    accesses: dict[Place, list[Any]] = field(default_factory=dict[Place, list[Any]])


@dataclass(eq=False)
class Process:
    """A thread, or the main thread of a rank or process."""

    number: int
    name: str
    key: tuple[Any, ...]
    """The same for the same thread of every rank."""
    system: System
    frames: list[Frame] = field(default_factory=list[Frame])
    waiting: Operation | None = None
    preempted: bool = False
    ended: bool = False
    crashed: bool = False
    cut: bool = False
    daemon: bool = False
    clock: dict[int, int] = field(default_factory=dict[int, int])
    held: list[tuple[Thing, Step, bool]] = field(default_factory=list[tuple[Thing, Step, bool]])
    """(lock, where, whether by `acquire` and not by `with`)."""
    trace: list[Step] = field(default_factory=list[Step])
    partings: list[tuple[int, Step]] = field(default_factory=list[tuple[int, Step]])
    """(place in the order of collectives, branch): where ranks may part."""
    thrown: Step | None = None
    truths: dict[int, tuple[Value, bool]] = field(default_factory=dict[int, tuple[Value, bool]])
    queued: Thing | None = None
    """The pool that has no thread for it yet."""
    collectives: int = 0
    without_exchange: int = 0
    """How many `no_sync` it is in."""
    without_gradients: int = 0
    """How many `no_grad` it is in."""
    thing: Thing | None = None
    put: list[tuple[Thing, Item]] = field(default_factory=list[tuple[Thing, Item]])
    """What it has put into queues of processes."""
    begun: int = 0
    """How many threads and processes it has started."""
    joined: bool = False
    """Whether it has begun to work with the other ranks. One that never does may not be meant to."""

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    @property
    def where(self) -> tuple[Any, ...]:
        """Where it is, the same for all ranks that came the same way."""
        return (self.key, *((id(each.node), each.visits[each.now]) for each in self.frames))

    def here(self, says: str = "") -> Step:
        frame = self.frame
        return Step(frame.module.file, frame.node.line, says)

    @property
    def site(self) -> tuple[str, int, int]:
        frame = self.frame
        return frame.module.file, frame.node.line, getattr(frame.node.tree, "col_offset", 0)

    def note(self, says: str) -> Step:
        step = self.here(says)
        if len(self.trace) < _LONGEST_TRACE and step not in self.trace[-6:]:
            self.trace.append(step)
        return step

    def tick(self) -> dict[int, int]:
        """A copy of its clock. What follows here is later."""
        copy = dict(self.clock)
        self.clock[self.number] = self.clock.get(self.number, 0) + 1
        return copy

    def after(self, clock: dict[int, int]) -> None:
        """All that the clock has seen happened before what follows here."""
        for number, count in clock.items():
            if count > self.clock.get(number, 0):
                self.clock[number] = count

    def seen(self, number: int, count: int) -> bool:
        return number == self.number or self.clock.get(number, 0) >= count


class State:
    """One execution. `Execution` adds what moves it."""

    def __init__(self, program: Program, path: Path, budget: Budget, ranks: int) -> None:
        self.program = program
        self.path = path
        self.budget = budget
        self.ranks = ranks
        """How many ranks there are, or would be."""
        self.processes: list[Process] = []
        self.findings: list[Finding] = []
        self.shared_choices: dict[tuple[Any, ...], int] = {}
        self.turns: dict[tuple[Any, ...], list[int]] = {}
        """What loops are over: how many turns they may have."""
        self.bounds: dict[tuple[Any, ...], tuple[bool, int]] = {}
        """Loop: what `_bound` said of it to the rank that came first."""
        self.exchanges: dict[Any, dict[int, list[Any]]] = {}
        """Group: rank: what it has issued, in order."""
        self.assumed: dict[Step, bool] = {}
        """Unknown decision of ranks: whether it was taken to be the same on all."""
        self.doubted: Step | None = None
        """What was taken to differ between ranks although it need not."""
        self.messages: dict[tuple[int, int, str], int] = {}
        self.room = 0
        """How many items all bounded queues hold together."""
        self.locks_taken: list[tuple[Thing, Thing, Process, Step, Step, frozenset[int]]] = []
        """(held, taken, who, where held, where taken, all that were held)."""
        self.entered: set[int] = set()
        """Identities of the functions that were called."""
        self.given: list[Value] = []
        """What unknown callers may use too."""
        self.started_threads = False
        self.guesses: defaultdict[Thing, set[int]] = defaultdict(set)
        """Lock: identities of the tests of loops that were unknown while it was held."""
        self.timed_out = False
        """Whether time ran out while others could go on."""
        self.partial = False
        """Whether ranks say how many they are, so that some may have no part in it."""
        self.shortened: dict[str, None] = {}
        """Loops that were followed for fewer turns than a test in them may need, in words."""
        self.computed = False
        """Whether the value that is assigned now is computed there, and not another name's."""
        self.literal = False
        """Whether the value that is assigned now is a constant in the source, as that of a flag is."""

    def choose(
        self, process: Process, alternatives: int, *, local: bool, key: tuple[Any, ...] = (), doubt: Step | None = None
    ) -> int:
        """One of several ways. Ranks take the same one unless it depends on what is local to each.

        Args:
            key: what is decided, if it is the same wherever it is decided. Whoever has decided it does not decide it again.
            doubt: what may differ between ranks if their data do. One rank in one place may then take another way.
        """
        rank = process.system.rank
        if local or (rank is None and not key) or alternatives <= 1:
            return self.path.choose(alternatives)
        frame, own = process.frame, (rank, *key)
        if key and own in self.shared_choices:
            return self.shared_choices[own]
        place = key or (process.key, id(frame.node), frame.visits[frame.now])
        chosen = self.shared_choices.get(place)
        if chosen is None:
            chosen = self.shared_choices[place] = self.path.choose(alternatives)
        elif doubt is not None and self.doubted is None:
            self.path.doubts.add(len(self.path.taken))
            if other := self.path.choose(alternatives):
                self.doubted = doubt
                chosen = (chosen + other) % alternatives
        if key:
            self.shared_choices[own] = chosen
        return chosen

    def threads_of(self, system: System) -> list[Process]:
        return [each for each in self.processes if each.system is system and not each.ended]

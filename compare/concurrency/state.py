"""The state of one abstract execution: processes with their frames, what they wait for, and the decisions that led there."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from compare.concurrency.control_flow import Graph, GraphNode
from compare.concurrency.findings import ConcurrencyFinding, TraceStep
from compare.concurrency.program import Module, Program
from compare.concurrency.values import Function, SyncObject, Value

MAX_VISITS = 40
"""Of one node in one frame. A loop that turns more often is cut."""
MAX_FRAMES = 40
_MAX_TRACE_STEPS = 400


class SearchLimitReached(Exception):
    """The execution cannot go on: a budget is spent. The message says which."""


class SearchBudget:
    """What is left to the search: nodes and seconds."""

    def __init__(self, max_nodes: int, seconds: float, *, total_seconds: float = 0.0) -> None:
        """Args:
        of_all: the seconds that the whole search had.
        """
        self.nodes = max_nodes
        self.visited = 0
        self._total_seconds = total_seconds
        self._deadline = time.monotonic() + seconds

    def spend(self) -> None:
        """Count one node.

        Raises:
            Cut: there are none left.
        """
        self.visited += 1
        if self.visited > self.nodes:
            raise SearchLimitReached(f"{self.nodes:,} nodes (--nodes)")
        if self.visited % 256 == 0 and self.out_of_time:
            raise SearchLimitReached(f"{self._total_seconds:g} s (--search-seconds)")

    @property
    def seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    @property
    def out_of_time(self) -> bool:
        return self.seconds_left < 0


class DecisionPath:
    """The decisions of one execution: a prefix that is given, and then the first alternative of each."""

    def __init__(self, prefix: Sequence[int] = ()) -> None:
        self._prefix = prefix
        self.decisions: list[tuple[int, int]] = []
        """(alternative, how many there were)."""
        self.data_dependent: set[int] = set()
        """Places of the decisions by which a rank may leave the others if their data differ."""

    def choose(self, alternatives: int) -> int:
        if alternatives <= 1:
            return 0
        position = len(self.decisions)
        alternative = self._prefix[position] if position < len(self._prefix) else 0
        self.decisions.append((alternative, alternatives))
        return alternative


NumberTable = dict[tuple[int, str], tuple[dict[str, Value], Value | None]]
"""(identity of what holds it, name): (what holds it, the number)."""


@dataclass(eq=False)
class CallFrame:
    """A call of a function."""

    graph: Graph
    module: Module
    next_node: int
    names: dict[str, Value] = field(default_factory=dict[str, Value])
    parent: CallFrame | None = None
    """Where it was defined, if that is a function."""
    function: Function | None = None
    current_node: int = 0
    """The node that is executed."""
    results: dict[int, Value] = field(default_factory=dict[int, Value])
    """Results of calls and conditional expressions, by the identity of their trees."""
    loops: dict[int, Any] = field(default_factory=dict[int, Any])
    visits: Counter[int] = field(default_factory=Counter[int])
    outer_names: frozenset[str] = frozenset()
    """Names that are declared global or nonlocal."""
    error: str = ""
    """The exception that is on its way."""
    divergences: dict[int, tuple[NumberTable, NumberTable]] = field(default_factory=dict[int, Any])
    """Node where the ways of a branch meet on which ranks may part: see `Execution._mark_divergent_numbers`."""
    max_visits: int = MAX_VISITS
    in_guessed_loop: bool = False
    """Whether the loop that it is in was entered although its test is unknown."""
    on_return: Callable[[Value], None] = lambda _: None
    generator: SyncObject | None = None

    @property
    def node(self) -> GraphNode:
        return self.graph.nodes[self.current_node]

    @property
    def in_truncated_loop(self) -> bool:
        """Whether it is in a loop that is followed for fewer turns than it may have."""
        return self.in_guessed_loop or any(len(loop) > 1 and (loop[0] is None or loop[1]) for loop in self.loops.values())


class PendingOperation(NamedTuple):
    """What a process is about to do with something that others use."""

    description: str
    is_ready: Callable[[], bool]
    perform: Callable[[], Value]
    sync_object: SyncObject | None = None
    on_timeout: Callable[[], None] | None = None
    """What happens if time runs out. None: it waits forever."""
    kind: str = ""
    """collective, send or recv: of ranks."""
    has_long_timeout: bool = False
    """Whether time only runs out when nobody else can go on: it is meant to be long enough."""


@dataclass(eq=False)
class QueueItem:
    """What lies in a queue."""

    value: Value
    clock: dict[int, int]
    """Of who has put it there."""
    num_bytes: int | None
    """About how many bytes there may be of its kind. None: not known, and perhaps many."""
    joined_before_read: tuple[int, int, TraceStep] | None = None
    """Who has waited for the end of the process that has put it there, although it was not read: number, moment, step."""


MemoryLocation = tuple[object, str]
"""(object, attribute), or (call, variable). The object itself: the identity of one that has gone would soon be another's."""


@dataclass(eq=False)
class OsProcess:
    """One process of the operating system: what its threads share."""

    rank: int | None
    names: dict[str, dict[str, Value]] = field(default_factory=dict[str, dict[str, Value]])
    """Module: its variables."""
    uses_spawn: bool = False
    num_groups: int = 0
    """How many groups it has made."""
    num_children: int = 0
    accesses: dict[MemoryLocation, list[Any]] = field(default_factory=dict[MemoryLocation, list[Any]])


@dataclass(eq=False)
class SimulatedThread:
    """A thread, or the main thread of a rank or process."""

    number: int
    name: str
    key: tuple[Any, ...]
    """The same for the same thread of every rank."""
    os_process: OsProcess
    frames: list[CallFrame] = field(default_factory=list[CallFrame])
    pending: PendingOperation | None = None
    preempted: bool = False
    ended: bool = False
    crashed: bool = False
    is_abandoned: bool = False
    daemon: bool = False
    clock: dict[int, int] = field(default_factory=dict[int, int])
    held_locks: list[tuple[SyncObject, TraceStep, bool]] = field(default_factory=list[tuple[SyncObject, TraceStep, bool]])
    """(lock, where, whether by `acquire` and not by `with`)."""
    trace: list[TraceStep] = field(default_factory=list[TraceStep])
    divergences: list[tuple[int, TraceStep]] = field(default_factory=list[tuple[int, TraceStep]])
    """(place in the order of collectives, branch): where ranks may part."""
    raise_step: TraceStep | None = None
    assumed_truths: dict[int, tuple[Value, bool]] = field(default_factory=dict[int, tuple[Value, bool]])
    full_pool: SyncObject | None = None
    """The pool that has no thread for it yet."""
    num_collectives: int = 0
    no_sync_depth: int = 0
    """How many `no_sync` it is in."""
    no_grad_depth: int = 0
    """How many `no_grad` it is in."""
    sync_object: SyncObject | None = None
    put_items: list[tuple[SyncObject, QueueItem]] = field(default_factory=list[tuple[SyncObject, QueueItem]])
    """What it has put into queues of processes."""
    num_started: int = 0
    """How many threads and processes it has started."""
    has_joined_ranks: bool = False
    """Whether it has begun to work with the other ranks. One that never does may not be meant to."""

    @property
    def frame(self) -> CallFrame:
        return self.frames[-1]

    @property
    def position(self) -> tuple[Any, ...]:
        """Where it is, the same for all ranks that came the same way."""
        return (self.key, *((id(frame.node), frame.visits[frame.current_node]) for frame in self.frames))

    def current_step(self, description: str = "") -> TraceStep:
        frame = self.frame
        return TraceStep(frame.module.file, frame.node.line, description)

    @property
    def site(self) -> tuple[str, int, int]:
        frame = self.frame
        return frame.module.file, frame.node.line, getattr(frame.node.tree, "col_offset", 0)

    def record(self, description: str) -> TraceStep:
        step = self.current_step(description)
        if len(self.trace) < _MAX_TRACE_STEPS and step not in self.trace[-6:]:
            self.trace.append(step)
        return step

    def advance_clock(self) -> dict[int, int]:
        """A copy of its clock. What follows here is later."""
        copy = dict(self.clock)
        self.clock[self.number] = self.clock.get(self.number, 0) + 1
        return copy

    def merge_clock(self, clock: dict[int, int]) -> None:
        """All that the clock has seen happened before what follows here."""
        for number, count in clock.items():
            if count > self.clock.get(number, 0):
                self.clock[number] = count

    def has_observed(self, number: int, count: int) -> bool:
        return number == self.number or self.clock.get(number, 0) >= count


class ExecutionState:
    """One execution. `Execution` adds what moves it."""

    def __init__(self, program: Program, path: DecisionPath, budget: SearchBudget, num_ranks: int) -> None:
        self.program = program
        self.path = path
        self.budget = budget
        self.num_ranks = num_ranks
        """How many ranks there are, or would be."""
        self.threads: list[SimulatedThread] = []
        self.findings: list[ConcurrencyFinding] = []
        self.shared_choices: dict[tuple[Any, ...], int] = {}
        self.iteration_options: dict[tuple[Any, ...], list[int]] = {}
        """What loops are over: how many turns they may have."""
        self.queue_bounds: dict[tuple[Any, ...], tuple[bool, int]] = {}
        """Loop: what `_bound` said of it to the rank that came first."""
        self.collective_calls: dict[Any, dict[int, list[Any]]] = {}
        """Group: rank: what it has issued, in order."""
        self.assumptions: dict[TraceStep, bool] = {}
        """Unknown decision of ranks: whether it was taken to be the same on all."""
        self.divergence_step: TraceStep | None = None
        """What was taken to differ between ranks although it need not."""
        self.message_counts: dict[tuple[int, int, str], int] = {}
        self.queue_capacity = 0
        """How many items all bounded queues hold together."""
        self.lock_acquisitions: list[tuple[SyncObject, SyncObject, SimulatedThread, TraceStep, TraceStep, frozenset[int]]] = []
        """(held, taken, who, where held, where taken, all that were held)."""
        self.entered_functions: set[int] = set()
        """Identities of the functions that were called."""
        self.caller_values: list[Value] = []
        """What unknown callers may use too."""
        self.has_started_threads = False
        self.unknown_loop_tests: defaultdict[SyncObject, set[int]] = defaultdict(set)
        """Lock: identities of the tests of loops that were unknown while it was held."""
        self.has_timed_out = False
        """Whether time ran out while others could go on."""
        self.may_exclude_ranks = False
        """Whether ranks say how many they are, so that some may have no part in it."""
        self.truncated_loops: dict[str, None] = {}
        """Loops that were followed for fewer turns than a test in them may need, in words."""
        self.assigns_computed = False
        """Whether the value that is assigned now is computed there, and not another name's."""
        self.assigns_constant = False
        """Whether the value that is assigned now is a constant in the source, as that of a flag is."""

    def choose(
        self,
        thread: SimulatedThread,
        alternatives: int,
        *,
        local: bool,
        key: tuple[Any, ...] = (),
        divergence: TraceStep | None = None,
    ) -> int:
        """One of several ways. Ranks take the same one unless it depends on what is local to each.

        Args:
            key: what is decided, if it is the same wherever it is decided. Whoever has decided it does not decide it again.
            doubt: what may differ between ranks if their data do. One rank in one place may then take another way.
        """
        rank = thread.os_process.rank
        if local or (rank is None and not key) or alternatives <= 1:
            return self.path.choose(alternatives)
        frame, rank_key = thread.frame, (rank, *key)
        if key and rank_key in self.shared_choices:
            return self.shared_choices[rank_key]
        position = key or (thread.key, id(frame.node), frame.visits[frame.current_node])
        alternative = self.shared_choices.get(position)
        if alternative is None:
            alternative = self.shared_choices[position] = self.path.choose(alternatives)
        elif divergence is not None and self.divergence_step is None:
            self.path.data_dependent.add(len(self.path.decisions))
            if other_alternative := self.path.choose(alternatives):
                self.divergence_step = divergence
                alternative = (alternative + other_alternative) % alternatives
        if key:
            self.shared_choices[rank_key] = alternative
        return alternative

    def live_threads(self, system: OsProcess) -> list[SimulatedThread]:
        return [thread for thread in self.threads if thread.os_process is system and not thread.ended]

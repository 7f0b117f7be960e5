"""State of one abstract execution: threads with their frames and pending operations, and the decisions that led there."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from convtwins_hangs.concurrency.control_flow import Graph, GraphNode
from convtwins_hangs.concurrency.findings import ConcurrencyFinding, TraceStep
from convtwins_hangs.concurrency.program import Module, Program
from convtwins_hangs.concurrency.values import Function, SyncObject, Value

if TYPE_CHECKING:
    from convtwins_hangs.concurrency.execution import Execution

MAX_VISITS = 40
"""Maximum visits of one node in one frame. A loop with more iterations is abandoned."""
MAX_FRAMES = 40
USUAL_ITERATIONS = 2
"""Iterations of a loop of unknown length."""
_MAX_TRACE_STEPS = 400


class SearchLimitReached(Exception):
    """The search budget is exhausted. The message names the limit."""


class SearchBudget:
    """Nodes and seconds that remain for the search."""

    def __init__(self, max_nodes: int, seconds: float, *, total_seconds: float = 0.0) -> None:
        """Args:
        total_seconds: time limit of the whole search, for the message.
        """
        self.nodes = max_nodes
        self.visited = 0
        self._total_seconds = total_seconds
        self._deadline = time.monotonic() + seconds

    def spend(self) -> None:
        """Count one node.

        Raises:
            SearchLimitReached: no nodes or no time are left.
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


DecisionKind = Literal["start", "preempt", "branch", "turns", "exception", "time-out"]
"""Kinds of decisions: which thread starts or goes first, a branch, the iterations of a loop, an exception, a timeout."""


class DecisionPath:
    """Decisions of one execution: a given prefix, then the first alternative of each decision."""

    def __init__(self, prefix: Sequence[int] = ()) -> None:
        self._prefix = prefix
        self.decisions: list[tuple[int, int]] = []
        """(chosen alternative, number of alternatives) of each decision."""
        self.threads: list[SimulatedThread] = []
        """Threads of the execution that takes the path."""
        self.data_dependent: set[int] = set()
        """Indices of decisions where a rank may diverge from the others if their data differ."""

    @property
    def taken(self) -> tuple[int, ...]:
        """The chosen alternative of each decision."""
        return tuple(alternative for alternative, _ in self.decisions)

    def choose(self, alternatives: int, kind: DecisionKind, thread: SimulatedThread) -> int:
        """Choose one of several alternatives.

        Args:
            thread: the thread that decides, or would go on next.
        """
        if alternatives <= 1:
            return 0
        position = len(self.decisions)
        alternative = self._prefix[position] if position < len(self._prefix) else 0
        self.decisions.append((alternative, alternatives))
        return alternative


NumberTable = dict[tuple[int, str], tuple[dict[str, Value], Value | None]]
"""(id of the namespace, name) -> (the namespace, the number)."""


@dataclass(eq=False)
class Loop:
    """A `for` loop or comprehension that is being executed."""

    items: Iterator[Value] = field(default_factory=lambda: iter(()))
    """Items that remain."""
    is_truncated: bool = False
    """Whether it is followed for fewer iterations than it may have."""
    is_uneven: bool = False
    """Whether ranks may have different numbers of iterations."""
    generator: SyncObject | None = None
    """Generator of the program that makes the items. None: `items` has them."""


@dataclass(eq=False)
class CallFrame:
    """A stack frame of a simulated call."""

    graph: Graph
    module: Module
    next_node: int
    names: dict[str, Value] = field(default_factory=dict[str, Value])
    parent: CallFrame | None = None
    """Frame of the enclosing function. None: defined at module level."""
    function: Function | None = None
    current_node: int = 0
    """Index of the node being executed."""
    results: dict[int, Value] = field(default_factory=dict[int, Value])
    """Results of calls and conditional expressions, by the id of their syntax trees."""
    loops: dict[int, Loop] = field(default_factory=dict[int, Loop])
    """Loops being executed, by the id of their syntax trees."""
    visits: Counter[int] = field(default_factory=Counter[int])
    outer_names: frozenset[str] = frozenset()
    """Names declared global or nonlocal."""
    error: str = ""
    """Name of the exception being propagated."""
    divergences: dict[int, tuple[NumberTable, NumberTable]] = field(default_factory=dict[int, Any])
    """Arguments of `Execution._mark_divergent_numbers`, by the node where the paths of a rank-dependent branch meet again."""
    max_visits: int = MAX_VISITS
    in_guessed_loop: bool = False
    """Whether the current loop was entered although its test is unknown."""
    generator: SyncObject | None = None
    """Generator that a call of the function makes. None: it is no generator function."""

    @property
    def node(self) -> GraphNode:
        return self.graph.nodes[self.current_node]

    def leave(self, value: Value) -> Value:
        """Return the value that the frame returns, and mark its generator as exhausted."""
        if self.generator is not None:
            self.generator.is_set = True
        return value

    @property
    def in_truncated_loop(self) -> bool:
        """Whether the frame is in a loop that is followed for fewer iterations than it may have."""
        return self.in_guessed_loop or any(loop.is_truncated for loop in self.loops.values())


class PendingOperation(NamedTuple):
    """Blocking operation that a thread is about to perform on a shared object."""

    description: str
    is_ready: Callable[[], bool]
    sync_object: SyncObject | None = None
    kind: str = ""
    """collective, send or recv: it waits for other ranks. future: for several tasks. Empty: for `sync_object`."""
    has_timeout: bool = False
    has_long_timeout: bool = False
    """Whether the timeout is assumed to be long enough: it expires only if no other thread can run."""


BlockingCall = Generator[PendingOperation | None, Any, Value]
"""Simulated code that yields each operation it blocks on, receives whether that timed out, and returns its value.

It yields None where its thread pauses without blocking.
"""

BlockingStep = Generator[PendingOperation | None, Any, None]
"""A node that yields as a `BlockingCall` does, and returns nothing."""

CallOutcome = Value | BlockingCall | None
"""Value of a simulated call, or a call that may block. None: the function is unknown."""

Keywords = Mapping[str, Value]
"""Keyword arguments of a call."""


def finished(outcome: CallOutcome, default: Value) -> BlockingCall:
    """Wait for a call, and return its value. The default: the function is unknown."""
    if outcome is None or isinstance(outcome, Value):
        return default if outcome is None else outcome
    return (yield from outcome)


class SimulatedError(Exception):
    """The simulated program raises an exception. The message is the name of its class."""


@dataclass(eq=False)
class QueueItem:
    """An item in a queue."""

    value: Value
    clock: dict[int, int]
    """Vector clock of the thread that put the item."""
    num_bytes: int | None
    """Approximate total bytes of all such items. None: unknown, and perhaps many."""
    joined_before_read: tuple[int, int, TraceStep] | None = None
    """(thread number, its clock, trace step) of a join of the putting process while the item was unread."""


MemoryLocation = tuple[object, str]
"""(object, attribute) or (frame, variable). Holds the object itself, because the id of a deleted object is reused."""


@dataclass(eq=False)
class OsProcess:
    """State shared by the threads of one operating-system process."""

    rank: int | None
    names: dict[str, dict[str, Value]] = field(default_factory=dict[str, dict[str, Value]])
    """Variables of each module, by module name."""
    uses_spawn: bool = False
    num_groups: int = 0
    """Number of process groups made by `new_group`."""
    num_children: int = 0
    accesses: dict[MemoryLocation, list[Any]] = field(default_factory=dict[MemoryLocation, list[Any]])


@dataclass(eq=False)
class SimulatedThread:
    """A simulated thread, or the main thread of a rank or process."""

    execution: Execution
    number: int
    name: str
    key: tuple[Any, ...]
    """Key that is equal for the same thread of every rank."""
    os_process: OsProcess
    frames: list[CallFrame] = field(default_factory=list[CallFrame])
    steps: BlockingCall | None = None
    """The rest of the thread's execution. None: it has nothing to execute."""
    pending: PendingOperation | None = None
    pauses: bool = False
    """Whether it pauses before its next node, because a timeout expired. Another thread may go first."""
    preempted: bool = False
    ended: bool = False
    crashed: bool = False
    is_abandoned: bool = False
    daemon: bool = False
    clock: dict[int, int] = field(default_factory=dict[int, int])
    held_locks: list[tuple[SyncObject, TraceStep, bool]] = field(default_factory=list[tuple[SyncObject, TraceStep, bool]])
    """(lock, step where it was acquired, whether by `acquire` instead of `with`) of each held lock."""
    trace: list[TraceStep] = field(default_factory=list[TraceStep])
    divergences: list[tuple[int, TraceStep]] = field(default_factory=list[tuple[int, TraceStep]])
    """(number of collectives issued before, branch) of each decision where ranks may diverge."""
    raise_step: TraceStep | None = None
    assumed_truths: dict[int, tuple[Value, bool]] = field(default_factory=dict[int, tuple[Value, bool]])
    full_pool: SyncObject | None = None
    """Pool that has no free thread for this task. None: the task runs."""
    num_collectives: int = 0
    context_depths: dict[str, int] = field(default_factory=lambda: {"no_sync": 0, "no_grad": 0})
    """Nesting depth of contexts, by kind."""
    sync_object: SyncObject | None = None
    put_items: list[tuple[SyncObject, QueueItem]] = field(default_factory=list[tuple[SyncObject, QueueItem]])
    """(queue, item) pairs put into queues between processes."""
    num_started: int = 0
    """Number of threads and processes started."""
    has_joined_ranks: bool = False
    """Whether the rank has issued a collective. A rank that never does may not be part of the group."""

    @property
    def frame(self) -> CallFrame:
        return self.frames[-1]

    @property
    def position(self) -> tuple[Any, ...]:
        """Position in the program, equal for all ranks that took the same path."""
        return (self.key, *((id(frame.node), frame.visits[frame.current_node]) for frame in self.frames))

    @property
    def awaited_object(self) -> SyncObject | None:
        """Object that the thread waits for. None: it does not wait, or for no single object."""
        return self.pending.sync_object if self.pending is not None else None

    @property
    def blocked_step(self) -> TraceStep:
        """Step at which the thread stands, with what it waits for."""
        return self.current_step(self.pending.description if self.pending is not None else "")

    def path(self, num_steps: int = 12) -> tuple[str, list[TraceStep]]:
        """Return (name, the last steps of the trace), for a finding."""
        return self.name, self.trace[-num_steps:]

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

    def diverge_at(self, step: TraceStep) -> None:
        """Note a decision where ranks may diverge."""
        self.divergences.append((self.num_collectives, step))

    def advance_clock(self) -> dict[int, int]:
        """Return a copy of the clock, then advance it."""
        copy = dict(self.clock)
        self.clock[self.number] = self.clock.get(self.number, 0) + 1
        return copy

    def merge_clock(self, clock: dict[int, int]) -> None:
        """Merge another clock: what it has seen happened before the thread's next steps."""
        for number, count in clock.items():
            if count > self.clock.get(number, 0):
                self.clock[number] = count

    def has_observed(self, number: int, count: int) -> bool:
        return number == self.number or self.clock.get(number, 0) >= count


class ExecutionState:
    """State of one execution. `Execution` adds the transitions."""

    def __init__(self, program: Program, path: DecisionPath, budget: SearchBudget, num_ranks: int) -> None:
        self.program = program
        self.path = path
        self.budget = budget
        self.num_ranks = num_ranks
        """Number of ranks to simulate."""
        self.threads = path.threads
        self.findings: list[ConcurrencyFinding] = []
        self.shared_choices: dict[tuple[Any, ...], int] = {}
        self.iteration_options: dict[tuple[Any, ...], list[int]] = {}
        """Possible iteration counts, by the origin of what a loop runs over."""
        self.queue_bounds: dict[tuple[Any, ...], tuple[bool, int]] = {}
        """Results of `_queue_filling` for the first rank, by loop."""
        self.collective_calls: dict[Any, dict[int, list[Any]]] = {}
        """Collective calls in order, by group and rank."""
        self.assumptions: dict[TraceStep, bool] = {}
        """Whether each unknown decision was assumed to be the same on all ranks."""
        self.divergence_step: TraceStep | None = None
        """Data-dependent decision that was assumed to differ between ranks. None: no such assumption."""
        self.message_counts: dict[tuple[int, int, str], int] = {}
        self.queue_capacity = 0
        """Total capacity of all bounded queues, in items."""
        self.lock_acquisitions: list[tuple[SyncObject, SyncObject, SimulatedThread, TraceStep, TraceStep, frozenset[int]]] = []
        """(held lock, acquired lock, thread, step of the first, step of the second, ids of all held locks)."""
        self.entered_functions: set[int] = set()
        """Ids of the functions that were called."""
        self.caller_values: list[Value] = []
        """Values that unknown callers may use too."""
        self.has_started_threads = False
        self.unknown_loop_tests: defaultdict[SyncObject, set[int]] = defaultdict(set)
        """Ids of unknown loop tests evaluated while a lock was held, by lock."""
        self.has_timed_out = False
        """Whether a timeout expired while other threads could run."""
        self.may_exclude_ranks = False
        """Whether `init_process_group` may be called by some of the ranks only."""
        self.truncated_loops: dict[str, None] = {}
        """Messages about loops followed for fewer iterations than a test in them may need."""

    def choose(
        self,
        thread: SimulatedThread,
        alternatives: int,
        kind: DecisionKind,
        *,
        local: bool,
        key: tuple[Any, ...] = (),
        divergence: TraceStep | None = None,
    ) -> int:
        """Choose one of several alternatives. Ranks take the same one unless the decision is rank-dependent.

        Args:
            local: whether the decision is rank-dependent.
            key: identity of the decision, if it is the same wherever it is taken. It is then taken once by each rank.
            divergence: step that may differ between ranks if their data differ. One rank may then take another alternative
                at one such step.
        """
        rank = thread.os_process.rank
        if local or (rank is None and not key) or alternatives <= 1:
            return self.path.choose(alternatives, kind, thread)
        frame, rank_key = thread.frame, (rank, *key)
        if key and rank_key in self.shared_choices:
            return self.shared_choices[rank_key]
        position = key or (thread.key, id(frame.node), frame.visits[frame.current_node])
        alternative = self.shared_choices.get(position)
        if alternative is None:
            alternative = self.shared_choices[position] = self.path.choose(alternatives, kind, thread)
        elif divergence is not None and self.divergence_step is None:
            self.path.data_dependent.add(len(self.path.decisions))
            if other_alternative := self.path.choose(alternatives, kind, thread):
                self.divergence_step = divergence
                alternative = (alternative + other_alternative) % alternatives
        if key:
            self.shared_choices[rank_key] = alternative
        return alternative

    def record_assumption(self, thread: SimulatedThread, decision: str, *, is_same: bool) -> None:
        """Record an unknown decision of ranks, and whether it was assumed to be the same on all."""
        if thread.os_process.rank is not None:
            step = thread.current_step(decision)
            self.assumptions[step] = is_same and self.assumptions.get(step, True)

    def record_truncation(self, frame: CallFrame, node_index: int, line: int, iterations: int | None, followed: int) -> None:
        """Record that a loop is followed for too few iterations, if a test in it depends on a counter."""
        if self.program.depends_on_counter(frame.graph, node_index, by_item=iterations is not None):
            count = f"{iterations} turns" if iterations is not None else "unknown turns"
            self.truncated_loops[f"a loop of {count} (line {line}) followed for {followed}"] = None

    def live_threads(self, os_process: OsProcess) -> list[SimulatedThread]:
        return [thread for thread in self.threads if thread.os_process is os_process and not thread.ended]


@dataclass
class SimulatedCall:
    """A call of a library, with its arguments."""

    thread: SimulatedThread
    values: Sequence[Value]
    keywords: Keywords

    @property
    def execution(self) -> Execution:
        return self.thread.execution

    def argument(self, position: int, name: str) -> Value | None:
        return self.keywords.get(name, self.values[position] if position < len(self.values) else None)

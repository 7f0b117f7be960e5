"""Locks, queues, events, threads and pools: one class for each object, one method for each of the library's."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from convtwins_hangs.concurrency import meanings, threads
from convtwins_hangs.concurrency.state import (
    BlockingCall,
    CallOutcome,
    Keywords,
    OsProcess,
    PendingOperation,
    QueueItem,
    SimulatedCall,
    SimulatedError,
    SimulatedThread,
)
from convtwins_hangs.concurrency.values import (
    NONE,
    Const,
    Function,
    Marks,
    SequenceValue,
    SyncObject,
    Unknown,
    Value,
    ValueMark,
    truth,
)

_TASKS_PER_MAP = 2
_FIRST_ITERATIONS = 2


@dataclass
class MethodCall(SimulatedCall):
    """A call of a method of a synchronization object, or of its class."""

    sync_object: SyncObject
    name: str

    def initialize(self) -> None:
        """Set the fields of a new object from the arguments of its class."""

    @property
    def has_timeout(self) -> bool:
        """Whether the first argument, or `timeout`, limits the wait."""
        return self.argument(0, "timeout") is not None

    def gives_up(self, block: Value | None, timeout: Value | None) -> bool:
        """Return whether a `put` or `get` gives up when it would block, at once or after a time."""
        if self.name.endswith("_nowait") or (block is not None and truth(block) is not True):
            return True
        return timeout is not None and not (isinstance(timeout, Const) and timeout.value is None)

    def publish_clock(self) -> None:
        """Publish the thread's clock: its steps happen before those of threads that observe the object."""
        clock = self.sync_object.clock
        for number, count in self.thread.advance_clock().items():
            clock[number] = max(count, clock.get(number, 0))


class _SyncObjectMethods(MethodCall):
    """Methods of every synchronization object. Each returns a `CallOutcome`."""

    def __enter__(self) -> CallOutcome:
        return self.sync_object


class _LockMethods(_SyncObjectMethods):
    """Methods of a lock, and of the lock of a condition, which may be a semaphore."""

    def acquire(self) -> BlockingCall:
        thread, title, lock = self.thread, self.sync_object.title, _lock_of(self.sync_object)
        blocking, timeout = self.argument(0, "blocking"), self.argument(1, "timeout")
        may_give_up = (blocking is not None and truth(blocking) is not True) or timeout is not None
        is_free = functools.partial(_is_free, lock, thread)
        if (yield PendingOperation(f"waits for {title}", is_free, lock, has_timeout=may_give_up)):
            return Const(False)
        step = thread.record(f"takes {title}")
        if lock.kind == "semaphore":
            lock.count -= 1
            return Const(True)
        other_locks = [entry for entry in thread.held_locks if entry[0] is not lock]
        held_ids = frozenset(id(other_lock) for other_lock, _, _ in other_locks)
        self.execution.lock_acquisitions += [
            (held_lock, lock, thread, acquired_at, step, held_ids) for held_lock, acquired_at, _ in other_locks
        ]
        lock.owner = thread
        lock.count += 1
        is_by_acquire = self.name == "acquire"
        thread.held_locks.append((lock, step, is_by_acquire))
        return Const(True) if is_by_acquire else self.sync_object

    def release(self) -> Value:
        lock = _lock_of(self.sync_object)
        if lock.kind == "semaphore":
            lock.count += 1
            return NONE
        lock.count = max(lock.count - 1, 0)
        if not lock.count:
            owner, lock.owner = lock.owner, None
            for holder in (owner, self.thread):
                if holder is not None:
                    holder.held_locks = [entry for entry in holder.held_locks if entry[0] is not lock]
        return NONE

    __enter__ = acquire
    __exit__ = release


class _SemaphoreMethods(_LockMethods):
    def initialize(self) -> None:
        count = self.argument(0, "value")
        number = _integer(count)
        self.sync_object.count = 1 if number is None else number
        self.sync_object.has_escaped = isinstance(count, Unknown)


class _ConditionMethods(_LockMethods):
    def initialize(self) -> None:
        condition, lock = self.sync_object, self.argument(0, "lock")
        default_lock = SyncObject(kind="lock", site=condition.site, flags=condition.flags | {"reentrant"}, name="condition")
        condition.target = lock if isinstance(lock, SyncObject) else default_lock

    def wait(self) -> BlockingCall:
        condition, thread, lock = self.sync_object, self.thread, _lock_of(self.sync_object)
        if lock.owner is not thread:
            return self.wait_for()
        condition.items.append(thread)
        count, released_entries = lock.count, [entry for entry in thread.held_locks if entry[0] is lock]
        thread.held_locks = [entry for entry in thread.held_locks if entry[0] is not lock]
        lock.owner, lock.count = None, 0
        has_timed_out = yield PendingOperation(
            f"waits for {condition.title}",
            lambda: thread not in condition.items and lock.owner is None,
            condition,
            has_timeout=self.has_timeout,
        )
        if has_timed_out:
            if thread in condition.items:
                condition.items.remove(thread)
            yield PendingOperation(f"waits for {lock.title}", lambda: lock.owner is None, lock)
        lock.owner, lock.count = thread, count
        thread.held_locks += released_entries
        return self.wait_for()

    def wait_for(self) -> Value:
        self.thread.merge_clock(self.sync_object.clock)
        return Unknown()

    def notify(self) -> Value:
        self.publish_clock()
        self.sync_object.items = self.sync_object.items[1:]
        return NONE

    def notify_all(self) -> Value:
        self.publish_clock()
        self.sync_object.items = []
        return NONE


class _EventMethods(_SyncObjectMethods):
    def set(self) -> Value:
        self.thread.record(f"sets {self.sync_object.title}")
        self.sync_object.is_set = True
        self.publish_clock()
        return NONE

    def clear(self) -> Value:
        self.sync_object.is_set = False
        return NONE

    def is_set(self) -> Value:
        if self.sync_object.is_set:
            self.thread.merge_clock(self.sync_object.clock)
        return Const(self.sync_object.is_set)

    isSet = is_set  # noqa: N815 (the deprecated name in threading)

    def wait(self) -> BlockingCall:
        event, thread = self.sync_object, self.thread
        has_timeout = self.has_timeout
        if (
            has_timeout
            and not event.is_set
            and _is_first_loop_test(thread)
            and not self.execution.path.choose(2, "time-out", thread)
        ):
            thread.record(f"waits for {event.title} until its time runs out")
            return Const(False)  # what the loop does between two waits is usually done
        if (yield PendingOperation(f"waits for {event.title}", lambda: event.is_set, event, has_timeout=has_timeout)):
            return Const(False)
        thread.merge_clock(event.clock)
        return Const(True)


class _QueueMethods(_SyncObjectMethods):
    def initialize(self) -> None:
        queue, size = self.sync_object, self.argument(0, "maxsize")
        number = _integer(size)
        queue.size = number if number is not None and number > 0 else None
        if isinstance(size, Unknown):
            queue.size = 2  # a bound that is not known
            queue.has_escaped = "process" in queue.flags
        self.execution.queue_capacity += queue.size or 0

    def put(self) -> BlockingCall:
        queue, thread, title = self.sync_object, self.thread, self.sync_object.title
        has_timed_out = yield PendingOperation(
            f"puts into {title}",
            lambda: queue.size is None or len(queue.items) < queue.size,
            queue,
            has_timeout=self.gives_up(self.argument(1, "block"), self.argument(2, "timeout")),
            has_long_timeout=not self.execution.is_caught(thread, "Full"),
        )
        if has_timed_out:
            raise SimulatedError("Full")
        value = self.values[0] if self.values else Unknown()
        if isinstance(value, Unknown):
            value = replace(value, marks=value.marks | {ValueMark.DATA_ITEM})
        thread.record(f"puts into {title}")
        item = QueueItem(value, thread.advance_clock(), threads.num_bytes_put(thread, value))
        queue.items.append(item)
        if "process" in queue.flags:
            thread.put_items.append((queue, item))
        queue.count += 1
        return NONE

    def get(self) -> BlockingCall:
        queue, thread, title = self.sync_object, self.thread, self.sync_object.title
        has_timed_out = yield PendingOperation(
            f"waits for an item of {title}",
            lambda: bool(queue.items),
            queue,
            has_timeout=self.gives_up(self.argument(0, "block"), self.argument(1, "timeout")),
            has_long_timeout=not self.execution.is_caught(thread, "Empty"),
        )
        if has_timed_out:
            raise SimulatedError("Empty")
        item: QueueItem = queue.items.pop(0)
        thread.record(f"gets from {title}")
        thread.merge_clock(item.clock)
        threads.report_late_read(thread, queue, item)
        return item.value

    put_nowait, get_nowait = put, get

    def task_done(self) -> Value:
        self.sync_object.count -= 1
        self.publish_clock()
        return NONE

    def cancel_join_thread(self) -> Value:
        self.sync_object.flags |= {"cancelled"}
        return NONE

    def join(self) -> BlockingCall:
        queue = self.sync_object
        yield PendingOperation(f"waits until {queue.title} is done", lambda: queue.count <= 0, queue)
        self.thread.merge_clock(queue.clock)
        return NONE

    def qsize(self) -> Value:
        return Const(len(self.sync_object.items))

    def empty(self) -> Value:
        return Const(not self.sync_object.items)

    def full(self) -> Value:
        return Const(self.sync_object.size is not None and len(self.sync_object.items) >= self.sync_object.size)


class _BarrierMethods(_SyncObjectMethods):
    def initialize(self) -> None:
        self.sync_object.size = _integer(self.argument(0, "parties"))
        self.sync_object.has_escaped = self.sync_object.size is None

    def wait(self) -> BlockingCall:
        barrier, parties = self.sync_object, self.sync_object.size
        if parties is None:
            return Unknown()
        last_arrival = (barrier.count // parties + 1) * parties
        barrier.count += 1
        self.publish_clock()
        has_timed_out = yield PendingOperation(
            f"waits at {barrier.title}",
            lambda: barrier.count >= last_arrival,
            barrier,
            has_timeout=self.has_timeout,
            has_long_timeout=True,
        )
        if has_timed_out:
            raise SimulatedError("BrokenBarrierError")
        self.thread.merge_clock(barrier.clock)
        return Unknown()


class _ThreadMethods(_SyncObjectMethods):
    def initialize(self) -> None:
        _initialize_thread(self, self.keywords.get("target"))

    def start(self) -> Value:
        sync_object, execution, os_process = self.sync_object, self.execution, self.thread.os_process
        target = sync_object.target
        target_name = getattr(target.tree, "name", "") if isinstance(target, Function) else ""
        name = sync_object.name or target_name or f"thread of line {sync_object.site[1]}"
        if "process" in sync_object.flags:
            if not (os_process.uses_spawn or "spawn" in sync_object.flags):
                threads.report_fork(self.thread)
            first = _integer(sync_object.arguments[0]) if sync_object.arguments else None
            rank = os_process.num_children if first is None else first  # a first argument that is a number is the rank
            os_process.num_children += 1
            os_process = OsProcess(rank, uses_spawn=os_process.uses_spawn)
        if any(other.name == name for other in execution.threads):
            name += f" ({sum(other.name.startswith(name) for other in execution.threads) + 1})"
        daemon = "daemon" in sync_object.flags
        started = execution.start_thread(self.thread, target, sync_object.arguments, name, os_process, daemon=daemon)
        sync_object.owner, started.sync_object = started, sync_object
        if started.ended:
            started.is_abandoned = sync_object.has_escaped or not isinstance(target, Function)
        return NONE

    def join(self) -> BlockingCall:
        owner: SimulatedThread | None = self.sync_object.owner
        if owner is None:
            return NONE
        has_timeout = self.has_timeout
        has_timed_out = yield PendingOperation(
            f"waits for the end of {owner.name}",
            lambda: owner.ended,
            self.sync_object,
            has_timeout=has_timeout,
            has_long_timeout=True,
        )
        if has_timed_out:
            return NONE
        return threads.observe_ends(self.thread, [self.sync_object], has_timeout=has_timeout)

    def is_alive(self) -> Value:
        return Const(self.sync_object.owner is not None and not self.sync_object.owner.ended)


class _TimerMethods(_SyncObjectMethods):
    """Methods of a timer. Its function is treated as external code."""

    def initialize(self) -> None:
        _initialize_thread(self, self.argument(1, "target"))
        self.execution.escape([self.sync_object.target])

    def start(self) -> Value:
        return NONE

    cancel = start


class _PoolMethods(_SyncObjectMethods):
    def initialize(self) -> None:
        self.sync_object.size = _integer(self.argument(0, "max_workers"))

    def submit(self) -> Value | None:
        return _submit(self, self.values[0], self.values[1:]) if self.values else None

    def map(self) -> CallOutcome:
        if not self.values:
            return None
        items = [Unknown(marks=frozenset([ValueMark.DATA_ITEM])) for _ in range(_TASKS_PER_MAP)]
        return _wait_for_tasks(self, [_submit(self, self.values[0], [item]) for item in items])

    def shutdown(self) -> CallOutcome:
        waits = truth(self.keywords.get("wait", Const(True))) is not False
        return _wait_for_tasks(self, self.sync_object.items) if waits else NONE

    __exit__ = shutdown


class _FutureMethods(_SyncObjectMethods):
    def result(self) -> BlockingCall:
        future = self.sync_object
        has_timed_out = yield PendingOperation(
            f"waits for the result of {future.owner.name}",
            lambda: future.owner.ended,
            future,
            has_timeout=self.has_timeout,
            has_long_timeout=True,
        )
        if has_timed_out:
            raise SimulatedError("TimeoutError")
        self.thread.merge_clock(future.clock)
        return future.target or Unknown()

    exception = result

    def done(self) -> Value:
        return Const(self.sync_object.owner.ended)


class _WorkMethods(_SyncObjectMethods):
    """Methods of the handle of an asynchronous collective or message."""

    def wait(self) -> BlockingCall:
        return self.sync_object.owner()


_METHODS: dict[str, type[_SyncObjectMethods]] = {
    "lock": _LockMethods,
    "semaphore": _SemaphoreMethods,
    "condition": _ConditionMethods,
    "event": _EventMethods,
    "queue": _QueueMethods,
    "barrier": _BarrierMethods,
    "thread": _ThreadMethods,
    "timer": _TimerMethods,
    "pool": _PoolMethods,
    "future": _FutureMethods,
    "work": _WorkMethods,
}
"""Methods by the kind of their object."""
_NOT_METHODS = frozenset(dir(MethodCall))


def make(thread: SimulatedThread, dotted: str, values: Sequence[Value], keywords: Keywords, marks: Marks) -> SyncObject | None:
    """Make a lock, queue, thread or other synchronization object. None: the class makes none."""
    if (kind_and_flags := meanings.sync_object_kind(dotted)) is None:
        return None
    kind, flags = kind_and_flags
    sync_object = SyncObject(kind=kind, site=thread.site if thread.frames else ("", 0, 0), flags=flags | (marks & {"spawn"}))
    _METHODS[kind](thread, values, keywords, sync_object, "").initialize()
    return sync_object


def call_method(
    thread: SimulatedThread, sync_object: SyncObject, name: str, values: Sequence[Value] = (), keywords: Keywords | None = None
) -> CallOutcome:
    """Simulate a method of a synchronization object."""
    methods = _METHODS.get(sync_object.kind, _SyncObjectMethods)
    method: Any = getattr(methods, name, None)
    if name in _NOT_METHODS or method is None:
        return None
    return method(methods(thread, values, keywords or {}, sync_object, name))


def _integer(value: Value | None) -> int | None:
    return value.value if isinstance(value, Const) and isinstance(value.value, int) else None


def _initialize_thread(call: MethodCall, target: Value | None) -> None:
    sync_object, keywords = call.sync_object, call.keywords
    sync_object.target = target
    arguments, name = keywords.get("args"), keywords.get("name")
    sync_object.arguments = list(arguments.items) if isinstance(arguments, SequenceValue) else []
    sync_object.name = str(name.value) if isinstance(name, Const) and name.value else ""
    if truth(keywords.get("daemon", Const(False))):
        sync_object.flags |= {"daemon"}
    sync_object.has_escaped = target is None and "target" not in keywords


def _lock_of(sync_object: SyncObject) -> SyncObject:
    target = sync_object.target
    return target if sync_object.kind == "condition" and isinstance(target, SyncObject) else sync_object


def _is_free(lock: SyncObject, thread: SimulatedThread) -> bool:
    if lock.kind == "semaphore":
        return lock.count > 0
    return lock.owner is None or (lock.owner is thread and "reentrant" in lock.flags)


def _is_first_loop_test(thread: SimulatedThread) -> bool:
    """Return whether a call is the test of a loop in one of its first iterations."""
    frame = thread.frame
    next_node = frame.graph.nodes[frame.next_node]
    return (
        next_node.kind == "branch"
        and id(next_node.tree) in frame.graph.tests
        and frame.visits[frame.current_node] <= _FIRST_ITERATIONS
    )


def _submit(call: MethodCall, function: Value, values: Sequence[Value]) -> SyncObject:
    """Submit a task to a pool, and return its future."""
    pool, thread = call.sync_object, call.thread
    task = f"task {len(pool.items) + 1}"
    future = SyncObject(kind="future", site=pool.site, name=task)
    name = f"{task} of {pool.title}"
    owner = call.execution.start_thread(thread, function, values, name, thread.os_process)
    future.owner, owner.sync_object = owner, future
    if pool.size is not None:
        owner.full_pool = pool
    pool.items.append(future)
    return future


def _wait_for_tasks(call: MethodCall, futures: Sequence[SyncObject]) -> BlockingCall:
    pool = call.sync_object
    return threads.wait_for_ends(call.thread, f"waits for the tasks of {pool.title}", futures, pool)

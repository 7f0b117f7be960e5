"""Operations of threads on locks, queues, events and each other."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from compare.concurrency import meanings
from compare.concurrency.calls import Calls
from compare.concurrency.evaluation import length
from compare.concurrency.findings import ConcurrencyFinding
from compare.concurrency.state import OsProcess, PendingOperation, QueueItem, SimulatedThread
from compare.concurrency.values import (
    DATA_ITEM,
    LARGE,
    NONE,
    Const,
    Function,
    RangeValue,
    SequenceValue,
    SyncObject,
    Unknown,
    Value,
    truth,
)

Deliver = Callable[[Value], None]
Keywords = Mapping[str, Value]
_TASKS_PER_MAP = 2
_FIRST_ITERATIONS = 2
_PIPE_BYTES = 2**16


class ThreadOperations(Calls):
    """Operations on synchronization objects."""

    def make_sync_object(
        self, thread: SimulatedThread, dotted: str, values: Sequence[Value], keywords: Keywords, marks: frozenset[Any]
    ) -> SyncObject | None:
        """Make a lock, queue, thread or other synchronization object. None: the class makes none."""
        if (kind_and_flags := meanings.sync_object_kind(dotted)) is None:
            return None
        kind, flags = kind_and_flags
        sync_object = SyncObject(kind=kind, site=thread.site if thread.frames else ("", 0, 0), flags=flags)

        def argument(position: int, name: str) -> Value | None:
            return keywords.get(name, values[position] if position < len(values) else None)

        match kind:
            case "queue":
                size = argument(0, "maxsize")
                sync_object.size = (
                    size.value if isinstance(size, Const) and isinstance(size.value, int) and size.value > 0 else None
                )
                sync_object.has_escaped = isinstance(size, Unknown) and "process" in flags
                if isinstance(size, Unknown):
                    sync_object.size = 2  # a bound that is not known
                self.queue_capacity += sync_object.size or 0
            case "semaphore":
                count = argument(0, "value")
                sync_object.count = count.value if isinstance(count, Const) and isinstance(count.value, int) else 1
                sync_object.has_escaped = isinstance(count, Unknown)
            case "barrier":
                parties = argument(0, "parties")
                sync_object.size = parties.value if isinstance(parties, Const) and isinstance(parties.value, int) else None
                sync_object.has_escaped = sync_object.size is None
            case "condition":
                lock = argument(0, "lock")
                default_lock = SyncObject(kind="lock", site=sync_object.site, flags=flags | {"reentrant"}, name="condition")
                sync_object.target = lock if isinstance(lock, SyncObject) else default_lock
            case "pool":
                size = argument(0, "max_workers")
                sync_object.size = size.value if isinstance(size, Const) and isinstance(size.value, int) else None
            case "thread" | "timer":
                sync_object.target = keywords.get("target", values[1] if kind == "timer" and len(values) > 1 else None)
                arguments = keywords.get("args")
                sync_object.arguments = list(arguments.items) if isinstance(arguments, SequenceValue) else []
                name = keywords.get("name")
                sync_object.name = str(name.value) if isinstance(name, Const) and name.value else ""
                if truth(keywords.get("daemon", Const(False))):
                    sync_object.flags |= {"daemon"}
                sync_object.flags |= {"spawn"} & marks
                if kind == "timer":
                    self.escape([sync_object.target])
                if sync_object.target is None and "target" not in keywords:
                    sync_object.has_escaped = True
            case _:
                pass
        return sync_object

    def call_method(
        self,
        thread: SimulatedThread,
        sync_object: SyncObject,
        name: str,
        values: Sequence[Value],
        keywords: Keywords,
        deliver: Deliver,
    ) -> bool:
        """Simulate a method of a synchronization object. False: the method is unknown."""

        def argument(position: int, keyword: str) -> Value | None:
            return keywords.get(keyword, values[position] if position < len(values) else None)

        def wait(
            description: str,
            is_ready: Callable[[], bool],
            perform: Callable[[], Value],
            on_timeout: Callable[[], None] | None = None,
            *,
            has_long_timeout: bool = False,
        ) -> bool:
            self.wait_for(
                thread,
                PendingOperation(description, is_ready, perform, sync_object, on_timeout, sync_object.kind, has_long_timeout),
                deliver,
            )
            return True

        title = sync_object.title
        match sync_object.kind, name:
            case (("lock" | "semaphore" | "condition"), ("acquire" | "__enter__")):
                blocking, timeout = argument(0, "blocking"), argument(1, "timeout")
                may_give_up = (blocking is not None and truth(blocking) is not True) or timeout is not None
                self.acquire_lock(thread, sync_object, deliver, is_by_acquire=name == "acquire", may_give_up=may_give_up)
            case (("lock" | "semaphore" | "condition"), ("release" | "__exit__")):
                self.release_lock(thread, sync_object)
                deliver(NONE)
            case "condition", ("wait" | "wait_for"):
                lock = sync_object.target
                assert isinstance(lock, SyncObject)
                if name == "wait_for" or lock.owner is not thread:
                    thread.merge_clock(sync_object.clock)
                    deliver(Unknown())
                    return True
                sync_object.items.append(thread)
                count, released_entries = lock.count, [entry for entry in thread.held_locks if entry[0] is lock]
                thread.held_locks = [entry for entry in thread.held_locks if entry[0] is not lock]
                lock.owner, lock.count = None, 0

                def wake() -> Value:
                    lock.owner, lock.count = thread, count
                    thread.held_locks += released_entries
                    thread.merge_clock(sync_object.clock)
                    return Unknown()

                def on_timeout() -> None:
                    if thread in sync_object.items:
                        sync_object.items.remove(thread)
                    is_free = lambda: lock.owner is None  # noqa: E731
                    self.wait_for(
                        thread, PendingOperation(f"waits for {lock.title}", is_free, wake, lock, kind="lock"), deliver
                    )

                has_timeout = argument(0, "timeout") is not None
                is_notified = lambda: thread not in sync_object.items and lock.owner is None  # noqa: E731
                return wait(f"waits for {title}", is_notified, wake, on_timeout if has_timeout else None)
            case "condition", ("notify" | "notify_all"):
                _publish_clock(sync_object, thread)
                sync_object.items = [] if name == "notify_all" else sync_object.items[1:]
                deliver(NONE)
            case "event", "set":
                thread.record(f"sets {title}")
                sync_object.is_set = True
                _publish_clock(sync_object, thread)
                deliver(NONE)
            case "event", "clear":
                sync_object.is_set = False
                deliver(NONE)
            case "event", ("is_set" | "isSet"):
                if sync_object.is_set:
                    thread.merge_clock(sync_object.clock)
                deliver(Const(sync_object.is_set))
            case "event", "wait":

                def succeed() -> Value:
                    thread.merge_clock(sync_object.clock)
                    return Const(True)

                has_timeout = argument(0, "timeout") is not None
                if has_timeout and not sync_object.is_set and _is_first_loop_test(thread) and not self.path.choose(2):
                    thread.record(f"waits for {title} until its time runs out")
                    deliver(Const(False))  # what the loop does between two waits is usually done
                    return True
                return wait(
                    f"waits for {title}",
                    lambda: sync_object.is_set,
                    succeed,
                    (lambda: deliver(Const(False))) if has_timeout else None,
                )
            case "queue", ("put" | "put_nowait"):

                def put() -> Value:
                    value = values[0] if values else Unknown()
                    if isinstance(value, Unknown):
                        value = replace(value, marks=value.marks | {DATA_ITEM})
                    thread.record(f"puts into {title}")
                    item = QueueItem(value, thread.advance_clock(), self.num_bytes_put(thread, value))
                    sync_object.items.append(item)
                    thread.put_items += [(sync_object, item)] * ("process" in sync_object.flags)
                    sync_object.count += 1
                    return NONE

                on_full = (
                    (lambda: self.raise_exception(thread, "Full"))
                    if _may_give_up(name, argument(1, "block"), argument(2, "timeout"))
                    else None
                )
                has_room = lambda: sync_object.size is None or len(sync_object.items) < sync_object.size  # noqa: E731
                return wait(f"puts into {title}", has_room, put, on_full, has_long_timeout=not self.is_caught(thread, "Full"))
            case "queue", ("get" | "get_nowait"):

                def get() -> Value:
                    item: QueueItem = sync_object.items.pop(0)
                    thread.record(f"gets from {title}")
                    thread.merge_clock(item.clock)
                    self._report_late_read(thread, sync_object, item)
                    return item.value

                on_empty = (
                    (lambda: self.raise_exception(thread, "Empty"))
                    if _may_give_up(name, argument(0, "block"), argument(1, "timeout"))
                    else None
                )
                has_long_timeout = not self.is_caught(thread, "Empty")
                return wait(
                    f"waits for an item of {title}",
                    lambda: bool(sync_object.items),
                    get,
                    on_empty,
                    has_long_timeout=has_long_timeout,
                )
            case "queue", "task_done":
                sync_object.count -= 1
                _publish_clock(sync_object, thread)
                deliver(NONE)
            case "queue", "cancel_join_thread":
                sync_object.flags |= {"cancelled"}
                deliver(NONE)
            case "queue", "join":

                def complete() -> Value:
                    thread.merge_clock(sync_object.clock)
                    return NONE

                return wait(f"waits until {title} is done", lambda: sync_object.count <= 0, complete)
            case "queue", ("empty" | "full" | "qsize"):
                size = len(sync_object.items)
                is_full = sync_object.size is not None and size >= sync_object.size
                deliver(Const(size if name == "qsize" else is_full if name == "full" else not size))
            case "barrier", "wait":
                if sync_object.size is None:
                    deliver(Unknown())
                    return True
                arrival, parties = sync_object.count, sync_object.size
                sync_object.count += 1
                _publish_clock(sync_object, thread)

                def pass_barrier() -> Value:
                    thread.merge_clock(sync_object.clock)
                    return Unknown()

                has_timeout = argument(0, "timeout") is not None
                return wait(
                    f"waits at {title}",
                    lambda: sync_object.count >= (arrival // parties + 1) * parties,
                    pass_barrier,
                    (lambda: self.raise_exception(thread, "BrokenBarrierError")) if has_timeout else None,
                    has_long_timeout=True,
                )
            case "thread", "start":
                self._start(thread, sync_object)
                deliver(NONE)
            case "thread", "join":
                if sync_object.owner is None:
                    deliver(NONE)
                    return True
                has_timeout = argument(0, "timeout") is not None
                return wait(
                    f"waits for the end of {sync_object.owner.name}",
                    lambda: sync_object.owner.ended,
                    self._on_end(thread, [sync_object], has_no_timeout=not has_timeout),
                    (lambda: deliver(NONE)) if has_timeout else None,
                    has_long_timeout=True,
                )
            case "thread", "is_alive":
                deliver(Const(sync_object.owner is not None and not sync_object.owner.ended))
            case "timer", ("start" | "cancel"):
                deliver(NONE)
            case "pool", "submit" if values:
                deliver(self._submit(thread, sync_object, values[0], values[1:]))
            case "pool", "map" if values:
                futures = [
                    self._submit(thread, sync_object, values[0], [Unknown(marks=frozenset([DATA_ITEM]))])
                    for _ in range(_TASKS_PER_MAP)
                ]
                return wait(
                    f"waits for the tasks of {title}",
                    lambda: all(future.owner.ended for future in futures),
                    self._on_end(thread, futures),
                )
            case "pool", ("shutdown" | "__exit__"):
                if truth(keywords.get("wait", Const(True))) is False:
                    deliver(NONE)
                    return True
                return wait(
                    f"waits for the tasks of {title}",
                    lambda: all(future.owner.ended for future in sync_object.items),
                    self._on_end(thread, sync_object.items),
                )
            case "future", ("result" | "exception"):
                has_timeout = argument(0, "timeout") is not None

                def result() -> Value:
                    thread.merge_clock(sync_object.clock)
                    return sync_object.target or Unknown()

                return wait(
                    f"waits for the result of {sync_object.owner.name}", lambda: sync_object.owner.ended, result,
                    (lambda: self.raise_exception(thread, "TimeoutError")) if has_timeout else None, has_long_timeout=True,
                )  # fmt: skip
            case "future", "done":
                deliver(Const(sync_object.owner.ended))
            case _, "__enter__":
                deliver(sync_object)
            case _:
                return False
        return True

    def acquire_lock(
        self,
        thread: SimulatedThread,
        sync_object: SyncObject,
        deliver: Deliver,
        *,
        is_by_acquire: bool,
        may_give_up: bool = False,
    ) -> None:
        lock = (
            sync_object.target
            if sync_object.kind == "condition" and isinstance(sync_object.target, SyncObject)
            else sync_object
        )
        title = sync_object.title

        def is_free() -> bool:
            if lock.kind == "semaphore":
                return lock.count > 0
            return lock.owner is None or (lock.owner is thread and "reentrant" in lock.flags)

        def take() -> Value:
            step = thread.record(f"takes {title}")
            if lock.kind == "semaphore":
                lock.count -= 1
                return Const(True)
            other_locks = [entry for entry in thread.held_locks if entry[0] is not lock]
            for held_lock, acquired_at, _ in other_locks:
                held_ids = frozenset(id(other_lock) for other_lock, _, _ in other_locks)
                self.lock_acquisitions.append((held_lock, lock, thread, acquired_at, step, held_ids))
            lock.owner = thread
            lock.count += 1
            thread.held_locks.append((lock, step, is_by_acquire))
            return Const(True) if is_by_acquire else sync_object

        on_timeout = (lambda: deliver(Const(False))) if may_give_up else None
        self.wait_for(thread, PendingOperation(f"waits for {title}", is_free, take, lock, on_timeout, kind=lock.kind), deliver)

    def release_lock(self, thread: SimulatedThread, sync_object: SyncObject) -> None:
        lock = (
            sync_object.target
            if sync_object.kind == "condition" and isinstance(sync_object.target, SyncObject)
            else sync_object
        )
        if lock.kind == "semaphore":
            lock.count += 1
            return
        lock.count = max(lock.count - 1, 0)
        if not lock.count:
            owner = lock.owner
            lock.owner = None
            for holder in (owner, thread):
                if holder is not None:
                    holder.held_locks = [entry for entry in holder.held_locks if entry[0] is not lock]

    def _start(self, thread: SimulatedThread, sync_object: SyncObject) -> None:
        name = sync_object.name or _target_name(sync_object.target) or f"thread of line {sync_object.site[1]}"
        os_process = thread.os_process
        values = sync_object.arguments
        if "process" in sync_object.flags:
            if not (os_process.uses_spawn or "spawn" in sync_object.flags):
                self.report_fork(thread)
            os_process = self.child_process(thread.os_process, values)
        if any(other.name == name for other in self.threads):
            name += f" ({sum(other.name.startswith(name) for other in self.threads) + 1})"
        daemon = "daemon" in sync_object.flags
        sync_object.owner = self.start_thread(thread, sync_object.target, values, name, os_process, daemon=daemon)
        sync_object.owner.sync_object = sync_object
        if sync_object.owner.ended:
            sync_object.owner.is_abandoned = sync_object.has_escaped or not isinstance(sync_object.target, Function)

    def child_process(self, parent: OsProcess, values: Sequence[Value]) -> OsProcess:
        """Return the state of a child process. A first argument that is a number is its rank."""
        rank = parent.num_children
        if values and isinstance(values[0], Const) and isinstance(values[0].value, int):
            rank = values[0].value
        parent.num_children += 1
        return OsProcess(rank, uses_spawn=parent.uses_spawn)

    def report_fork(self, thread: SimulatedThread) -> None:
        """Report a fork beside other threads."""
        other_threads = [
            other for other in self.live_threads(thread.os_process) if other is not thread and not other.is_abandoned
        ]
        if not other_threads:
            return
        step = thread.record("forks")
        self.findings.append(
            ConcurrencyFinding(
                "fork-after-threads",
                step.file,
                step.line,
                f"{thread.name} forks while {other_threads[0].name} runs. A lock that this thread holds stays taken in the "
                "child. Start processes before threads, or by spawn.",
                [(thread.name, thread.trace[-12:]), (other_threads[0].name, other_threads[0].trace[-12:])],
            )
        )

    def _submit(self, thread: SimulatedThread, pool: SyncObject, function: Value, values: Sequence[Value]) -> SyncObject:
        task = len(pool.items) + 1
        future = SyncObject(kind="future", site=pool.site, name=f"task {task}")
        name = f"task {task} of {pool.title}"
        future.owner = self.start_thread(thread, function, values, name, thread.os_process, daemon=False)
        future.owner.sync_object = future
        if future.owner.frames:
            outermost = future.owner.frames[0]
            outermost.on_return = functools.partial(setattr, future, "target")
        if pool.size is not None:
            future.owner.full_pool = pool
        pool.items.append(future)
        return future

    def num_bytes_put(self, thread: SimulatedThread, value: Value) -> int | None:
        """Return the approximate bytes put by all iterations of the loops around a `put`. None: unknown, and perhaps many."""
        num_bytes = _num_bytes(value)
        for frame in thread.frames:
            if frame.visits[frame.current_node] > 1 and not frame.loops:
                return None  # `while`
            for node in frame.graph.nodes:
                if node.kind == "iter" and id(node.tree) in frame.loops:
                    iterations = length(self.evaluate(thread, node.tree.iter, frame))
                    if num_bytes is None or not isinstance(iterations, Const) or not isinstance(iterations.value, int):
                        return None
                    num_bytes *= iterations.value
        return num_bytes

    def _report_late_read(self, thread: SimulatedThread, queue: SyncObject, item: QueueItem) -> None:
        """Report an item that is read only after joining the process that put it."""
        if item.joined_before_read is None or not thread.has_observed(*item.joined_before_read[:2]):
            return
        step, producer = item.joined_before_read[2], next(other for other in self.threads if (queue, item) in other.put_items)
        message = (
            f"{thread.name} waits for the end of {producer.name} before it reads {queue.title}. {producer.name} does not end "
            "if a pipe is too small for what lies there (64 KiB). Read the queue first."
        )
        paths = [(involved.name, involved.trace[-12:]) for involved in (producer, thread)]
        read_step = thread.current_step()
        self.findings.append(
            ConcurrencyFinding(
                "queue-join", step.file, step.line, message, paths, frozenset({(read_step.file, read_step.line)})
            )
        )

    @staticmethod
    def is_large(num_bytes: int | None) -> bool:
        """Return whether a pipe may be too small for so many bytes."""
        return num_bytes is None or num_bytes > _PIPE_BYTES

    @staticmethod
    def _on_end(
        thread: SimulatedThread, sync_objects: Sequence[SyncObject], *, has_no_timeout: bool = True
    ) -> Callable[[], Value]:
        def complete() -> Value:
            for sync_object in sync_objects:
                thread.merge_clock(sync_object.clock)
                owner: SimulatedThread = sync_object.owner
                unread = [
                    (queue, item) for queue, item in owner.put_items if item in queue.items and "cancelled" not in queue.flags
                ]
                if (
                    has_no_timeout
                    and owner.os_process is not thread.os_process
                    and any(ThreadOperations.is_large(item.num_bytes) for _, item in unread)
                ):
                    for _, item in unread:
                        item.joined_before_read = thread.number, thread.clock.get(thread.number, 0), thread.current_step()
            return SequenceValue([sync_object.target or Unknown() for sync_object in sync_objects], exact=False)

        return complete


def _publish_clock(sync_object: SyncObject, thread: SimulatedThread) -> None:
    """Publish the thread's clock: its steps happen before those of threads that observe the object."""
    for number, count in thread.advance_clock().items():
        sync_object.clock[number] = max(count, sync_object.clock.get(number, 0))


def _may_give_up(name: str, block: Value | None, timeout: Value | None) -> bool:
    if name.endswith("_nowait") or (block is not None and truth(block) is not True):
        return True
    return timeout is not None and not (isinstance(timeout, Const) and timeout.value is None)


def _num_bytes(value: Value) -> int | None:
    """Return the approximate pickled size of a value. None: unknown, and perhaps large."""
    sizes: list[int | None] = [8]
    if LARGE in value.marks or not isinstance(value, Const | SequenceValue | RangeValue | Unknown):
        return None
    match value:
        case SequenceValue():
            sizes += map(_num_bytes, value.items)
        case RangeValue():
            sizes.append(3 * value.stop.value if isinstance(value.stop, Const) and isinstance(value.stop.value, int) else None)
        case Unknown() if value.shape is not None:
            sizes.append(4 * math.prod(value.shape))
        case Const() if isinstance(value.value, (str, bytes)):
            sizes.append(len(value.value))
        case _:
            pass
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _is_first_loop_test(thread: SimulatedThread) -> bool:
    """Return whether a call is the test of a loop in one of its first iterations."""
    frame = thread.frame
    next_node = frame.graph.nodes[frame.next_node]
    return (
        next_node.kind == "branch"
        and id(next_node.tree) in frame.graph.tests
        and frame.visits[frame.current_node] <= _FIRST_ITERATIONS
    )


def _target_name(target: Value | None) -> str:
    return getattr(target.tree, "name", "") if isinstance(target, Function) else ""

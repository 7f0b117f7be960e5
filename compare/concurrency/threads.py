"""What threads do with locks, queues, events and each other."""

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
Words = Mapping[str, Value]
_TASKS_OF_MAP = 2
_TURNS = 2
_PIPE_BYTES = 2**16


class Threads(Calls):
    """Operations on the things that threads share."""

    def thing(
        self, thread: SimulatedThread, dotted: str, values: Sequence[Value], keywords: Words, marks: frozenset[Any]
    ) -> SyncObject | None:
        """A new lock, queue, thread or other thing. None: the class makes none."""
        if (found := meanings.sync_object_kind(dotted)) is None:
            return None
        kind, flags = found
        made = SyncObject(kind=kind, site=thread.site if thread.frames else ("", 0, 0), flags=flags)

        def given(place: int, name: str) -> Value | None:
            return keywords.get(name, values[place] if place < len(values) else None)

        match kind:
            case "queue":
                size = given(0, "maxsize")
                made.size = size.value if isinstance(size, Const) and isinstance(size.value, int) and size.value > 0 else None
                made.has_escaped = isinstance(size, Unknown) and "process" in flags
                if isinstance(size, Unknown):
                    made.size = 2  # a bound that is not known
                self.queue_capacity += made.size or 0
            case "semaphore":
                count = given(0, "value")
                made.count = count.value if isinstance(count, Const) and isinstance(count.value, int) else 1
                made.has_escaped = isinstance(count, Unknown)
            case "barrier":
                parties = given(0, "parties")
                made.size = parties.value if isinstance(parties, Const) and isinstance(parties.value, int) else None
                made.has_escaped = made.size is None
            case "condition":
                lock = given(0, "lock")
                own = SyncObject(kind="lock", site=made.site, flags=flags | {"reentrant"}, name="condition")
                made.target = lock if isinstance(lock, SyncObject) else own
            case "pool":
                size = given(0, "max_workers")
                made.size = size.value if isinstance(size, Const) and isinstance(size.value, int) else None
            case "thread" | "timer":
                made.target = keywords.get("target", values[1] if kind == "timer" and len(values) > 1 else None)
                given_args = keywords.get("args")
                made.arguments = list(given_args.items) if isinstance(given_args, SequenceValue) else []
                name = keywords.get("name")
                made.name = str(name.value) if isinstance(name, Const) and name.value else ""
                if truth(keywords.get("daemon", Const(False))):
                    made.flags |= {"daemon"}
                made.flags |= {"spawn"} & marks
                if kind == "timer":
                    self.escape([made.target])
                if made.target is None and "target" not in keywords:
                    made.has_escaped = True
            case _:
                pass
        return made

    def use_thing(
        self, thread: SimulatedThread, thing: SyncObject, name: str, values: Sequence[Value], keywords: Words, deliver: Deliver
    ) -> bool:
        """Do what a method of a thing does. False: it is unknown."""

        def given(place: int, word: str) -> Value | None:
            return keywords.get(word, values[place] if place < len(values) else None)

        def wait(
            says: str, ready: Callable[[], bool], act: Callable[[], Value], expire: Callable[[], None] | None = None,
            *, patient: bool = False,
        ) -> bool:  # fmt: skip
            self.wait_for(thread, PendingOperation(says, ready, act, thing, expire, thing.kind, patient), deliver)
            return True

        title = thing.title
        match thing.kind, name:
            case (("lock" | "semaphore" | "condition"), ("acquire" | "__enter__")):
                blocking, timeout = given(0, "blocking"), given(1, "timeout")
                gives_up = (blocking is not None and truth(blocking) is not True) or timeout is not None
                self.acquire(thread, thing, deliver, by_acquire=name == "acquire", gives_up=gives_up)
            case (("lock" | "semaphore" | "condition"), ("release" | "__exit__")):
                self.release(thread, thing)
                deliver(NONE)
            case "condition", ("wait" | "wait_for"):
                lock = thing.target
                assert isinstance(lock, SyncObject)
                if name == "wait_for" or lock.owner is not thread:
                    thread.merge_clock(thing.clock)
                    deliver(Unknown())
                    return True
                thing.items.append(thread)
                count, held = lock.count, [each for each in thread.held_locks if each[0] is lock]
                thread.held_locks = [each for each in thread.held_locks if each[0] is not lock]
                lock.owner, lock.count = None, 0

                def wake() -> Value:
                    lock.owner, lock.count = thread, count
                    thread.held_locks += held
                    thread.merge_clock(thing.clock)
                    return Unknown()

                def expire() -> None:
                    if thread in thing.items:
                        thing.items.remove(thread)
                    free = lambda: lock.owner is None  # noqa: E731
                    self.wait_for(thread, PendingOperation(f"waits for {lock.title}", free, wake, lock, kind="lock"), deliver)

                timed = given(0, "timeout") is not None
                ready = lambda: thread not in thing.items and lock.owner is None  # noqa: E731
                return wait(f"waits for {title}", ready, wake, expire if timed else None)
            case "condition", ("notify" | "notify_all"):
                _merge(thing, thread)
                thing.items = [] if name == "notify_all" else thing.items[1:]
                deliver(NONE)
            case "event", "set":
                thread.record(f"sets {title}")
                thing.is_set = True
                _merge(thing, thread)
                deliver(NONE)
            case "event", "clear":
                thing.is_set = False
                deliver(NONE)
            case "event", ("is_set" | "isSet"):
                if thing.is_set:
                    thread.merge_clock(thing.clock)
                deliver(Const(thing.is_set))
            case "event", "wait":

                def happened() -> Value:
                    thread.merge_clock(thing.clock)
                    return Const(True)

                timed = given(0, "timeout") is not None
                if timed and not thing.is_set and _in_a_test(thread) and not self.path.choose(2):
                    thread.record(f"waits for {title} until its time runs out")
                    deliver(Const(False))  # what the loop does between two waits is usually done
                    return True
                return wait(
                    f"waits for {title}", lambda: thing.is_set, happened, (lambda: deliver(Const(False))) if timed else None
                )
            case "queue", ("put" | "put_nowait"):

                def put() -> Value:
                    value = values[0] if values else Unknown()
                    if isinstance(value, Unknown):
                        value = replace(value, marks=value.marks | {DATA_ITEM})
                    thread.record(f"puts into {title}")
                    item = QueueItem(value, thread.advance_clock(), self.size_of(thread, value))
                    thing.items.append(item)
                    thread.put_items += [(thing, item)] * ("process" in thing.flags)
                    thing.count += 1
                    return NONE

                full = (lambda: self.raise_exception(thread, "Full")) if _gives_up(name, given(1, "block"), given(2, "timeout")) else None
                room = lambda: thing.size is None or len(thing.items) < thing.size  # noqa: E731
                return wait(f"puts into {title}", room, put, full, patient=not self.is_caught(thread, "Full"))
            case "queue", ("get" | "get_nowait"):

                def get() -> Value:
                    item: QueueItem = thing.items.pop(0)
                    thread.record(f"gets from {title}")
                    thread.merge_clock(item.clock)
                    self._judge_join(thread, thing, item)
                    return item.value

                empty = (
                    (lambda: self.raise_exception(thread, "Empty")) if _gives_up(name, given(0, "block"), given(1, "timeout")) else None
                )
                patient = not self.is_caught(thread, "Empty")
                return wait(f"waits for an item of {title}", lambda: bool(thing.items), get, empty, patient=patient)
            case "queue", "task_done":
                thing.count -= 1
                _merge(thing, thread)
                deliver(NONE)
            case "queue", "cancel_join_thread":
                thing.flags |= {"cancelled"}
                deliver(NONE)
            case "queue", "join":

                def drained() -> Value:
                    thread.merge_clock(thing.clock)
                    return NONE

                return wait(f"waits until {title} is done", lambda: thing.count <= 0, drained)
            case "queue", ("empty" | "full" | "qsize"):
                size = len(thing.items)
                full_now = thing.size is not None and size >= thing.size
                deliver(Const(size if name == "qsize" else full_now if name == "full" else not size))
            case "barrier", "wait":
                if thing.size is None:
                    deliver(Unknown())
                    return True
                mine, parties = thing.count, thing.size
                thing.count += 1
                _merge(thing, thread)

                def passed() -> Value:
                    thread.merge_clock(thing.clock)
                    return Unknown()

                timed = given(0, "timeout") is not None
                return wait(
                    f"waits at {title}",
                    lambda: thing.count >= (mine // parties + 1) * parties,
                    passed,
                    (lambda: self.raise_exception(thread, "BrokenBarrierError")) if timed else None,
                    patient=True,
                )
            case "thread", "start":
                self._start(thread, thing)
                deliver(NONE)
            case "thread", "join":
                if thing.owner is None:
                    deliver(NONE)
                    return True
                timed = given(0, "timeout") is not None
                return wait(
                    f"waits for the end of {thing.owner.name}", lambda: thing.owner.ended,
                    self._ended(thread, [thing], forever=not timed), (lambda: deliver(NONE)) if timed else None, patient=True,
                )  # fmt: skip
            case "thread", "is_alive":
                deliver(Const(thing.owner is not None and not thing.owner.ended))
            case "timer", ("start" | "cancel"):
                deliver(NONE)
            case "pool", "submit" if values:
                deliver(self._submit(thread, thing, values[0], values[1:]))
            case "pool", "map" if values:
                made = [
                    self._submit(thread, thing, values[0], [Unknown(marks=frozenset([DATA_ITEM]))])
                    for _ in range(_TASKS_OF_MAP)
                ]
                return wait(
                    f"waits for the tasks of {title}",
                    lambda: all(each.owner.ended for each in made),
                    self._ended(thread, made),
                )
            case "pool", ("shutdown" | "__exit__"):
                if truth(keywords.get("wait", Const(True))) is False:
                    deliver(NONE)
                    return True
                return wait(
                    f"waits for the tasks of {title}",
                    lambda: all(each.owner.ended for each in thing.items),
                    self._ended(thread, thing.items),
                )
            case "future", ("result" | "exception"):
                timed = given(0, "timeout") is not None

                def result() -> Value:
                    thread.merge_clock(thing.clock)
                    return thing.target or Unknown()

                return wait(
                    f"waits for the result of {thing.owner.name}", lambda: thing.owner.ended, result,
                    (lambda: self.raise_exception(thread, "TimeoutError")) if timed else None, patient=True,
                )  # fmt: skip
            case "future", "done":
                deliver(Const(thing.owner.ended))
            case _, "__enter__":
                deliver(thing)
            case _:
                return False
        return True

    def acquire(
        self, thread: SimulatedThread, thing: SyncObject, deliver: Deliver, *, by_acquire: bool, gives_up: bool = False
    ) -> None:
        lock = thing.target if thing.kind == "condition" and isinstance(thing.target, SyncObject) else thing
        title = thing.title

        def ready() -> bool:
            if lock.kind == "semaphore":
                return lock.count > 0
            return lock.owner is None or (lock.owner is thread and "reentrant" in lock.flags)

        def act() -> Value:
            step = thread.record(f"takes {title}")
            if lock.kind == "semaphore":
                lock.count -= 1
                return Const(True)
            others = [each for each in thread.held_locks if each[0] is not lock]
            for held, where, _ in others:
                every = frozenset(id(each) for each, _, _ in others)
                self.lock_acquisitions.append((held, lock, thread, where, step, every))
            lock.owner = thread
            lock.count += 1
            thread.held_locks.append((lock, step, by_acquire))
            return Const(True) if by_acquire else thing

        failed = (lambda: deliver(Const(False))) if gives_up else None
        self.wait_for(thread, PendingOperation(f"waits for {title}", ready, act, lock, failed, kind=lock.kind), deliver)

    def release(self, thread: SimulatedThread, thing: SyncObject) -> None:
        lock = thing.target if thing.kind == "condition" and isinstance(thing.target, SyncObject) else thing
        if lock.kind == "semaphore":
            lock.count += 1
            return
        lock.count = max(lock.count - 1, 0)
        if not lock.count:
            owner = lock.owner
            lock.owner = None
            for each in (owner, thread):
                if each is not None:
                    each.held_locks = [held for held in each.held_locks if held[0] is not lock]

    def _start(self, thread: SimulatedThread, thing: SyncObject) -> None:
        name = thing.name or _target_name(thing.target) or f"thread of line {thing.site[1]}"
        system = thread.os_process
        values = thing.arguments
        if "process" in thing.flags:
            if not (system.uses_spawn or "spawn" in thing.flags):
                self.forks(thread)
            system = self.child(thread.os_process, values)
        if any(each.name == name for each in self.threads):
            name += f" ({sum(each.name.startswith(name) for each in self.threads) + 1})"
        daemon = "daemon" in thing.flags
        thing.owner = self.start_thread(thread, thing.target, values, name, system, daemon=daemon)
        thing.owner.sync_object = thing
        if thing.owner.ended:
            thing.owner.is_abandoned = thing.has_escaped or not isinstance(thing.target, Function)

    def child(self, system: OsProcess, values: Sequence[Value]) -> OsProcess:
        """The system of a process that this one starts. A first argument that is a number is its rank."""
        rank = system.num_children
        if values and isinstance(values[0], Const) and isinstance(values[0].value, int):
            rank = values[0].value
        system.num_children += 1
        return OsProcess(rank, uses_spawn=system.uses_spawn)

    def forks(self, thread: SimulatedThread) -> None:
        """Report a fork beside other threads."""
        others = [each for each in self.live_threads(thread.os_process) if each is not thread and not each.is_abandoned]
        if not others:
            return
        step = thread.record("forks")
        self.findings.append(
            ConcurrencyFinding(
                "fork-after-threads",
                step.file,
                step.line,
                f"{thread.name} forks while {others[0].name} runs. A lock that this thread holds stays taken in the child. "
                "Start processes before threads, or by spawn.",
                [(thread.name, thread.trace[-12:]), (others[0].name, others[0].trace[-12:])],
            )
        )

    def _submit(self, thread: SimulatedThread, pool: SyncObject, function: Value, values: Sequence[Value]) -> SyncObject:
        task = len(pool.items) + 1
        future = SyncObject(kind="future", site=pool.site, name=f"task {task}")
        name = f"task {task} of {pool.title}"
        future.owner = self.start_thread(thread, function, values, name, thread.os_process, daemon=False)
        future.owner.sync_object = future
        if future.owner.frames:
            bottom = future.owner.frames[0]
            bottom.on_return = functools.partial(setattr, future, "target")
        if pool.size is not None:
            future.owner.full_pool = pool
        pool.items.append(future)
        return future

    def size_of(self, thread: SimulatedThread, value: Value) -> int | None:
        """About how many bytes all turns of the loops around a `put` put together. None: not known, and perhaps many."""
        size = _bytes(value)
        for frame in thread.frames:
            if frame.visits[frame.current_node] > 1 and not frame.loops:
                return None  # `while`
            for node in frame.graph.nodes:
                if node.kind == "iter" and id(node.tree) in frame.loops:
                    turns = length(self.evaluate(thread, node.tree.iter, frame))
                    if size is None or not isinstance(turns, Const) or not isinstance(turns.value, int):
                        return None
                    size *= turns.value
        return size

    def _judge_join(self, thread: SimulatedThread, queue: SyncObject, item: QueueItem) -> None:
        """Report an item that is read only after the end of the process that has put it there."""
        if item.joined_before_read is None or not thread.has_observed(*item.joined_before_read[:2]):
            return
        step, putter = item.joined_before_read[2], next(each for each in self.threads if (queue, item) in each.put_items)
        says = (
            f"{thread.name} waits for the end of {putter.name} before it reads {queue.title}. {putter.name} does not end if a "
            "pipe is too small for what lies there (64 KiB). Read the queue first."
        )
        paths = [(each.name, each.trace[-12:]) for each in (putter, thread)]
        here = thread.current_step()
        self.findings.append(
            ConcurrencyFinding("queue-join", step.file, step.line, says, paths, frozenset({(here.file, here.line)}))
        )

    @staticmethod
    def is_large(size: int | None) -> bool:
        """Whether a pipe may not hold so many bytes."""
        return size is None or size > _PIPE_BYTES

    @staticmethod
    def _ended(thread: SimulatedThread, things: Sequence[SyncObject], *, forever: bool = True) -> Callable[[], Value]:
        def act() -> Value:
            for each in things:
                thread.merge_clock(each.clock)
                owner: SimulatedThread = each.owner
                left = [
                    (queue, item) for queue, item in owner.put_items if item in queue.items and "cancelled" not in queue.flags
                ]
                if (
                    forever
                    and owner.os_process is not thread.os_process
                    and any(Threads.is_large(item.num_bytes) for _, item in left)
                ):
                    for _, item in left:
                        item.joined_before_read = thread.number, thread.clock.get(thread.number, 0), thread.current_step()
            return SequenceValue([each.target or Unknown() for each in things], exact=False)

        return act


def _merge(thing: SyncObject, thread: SimulatedThread) -> None:
    """What the process has done happened before those who see the thing."""
    for number, count in thread.advance_clock().items():
        thing.clock[number] = max(count, thing.clock.get(number, 0))


def _gives_up(name: str, block: Value | None, timeout: Value | None) -> bool:
    if name.endswith("_nowait") or (block is not None and truth(block) is not True):
        return True
    return timeout is not None and not (isinstance(timeout, Const) and timeout.value is None)


def _bytes(value: Value) -> int | None:
    """About how many bytes a value has on its way to another process. None: not known, and perhaps many."""
    sizes: list[int | None] = [8]
    if LARGE in value.marks or not isinstance(value, Const | SequenceValue | RangeValue | Unknown):
        return None
    match value:
        case SequenceValue():
            sizes += map(_bytes, value.items)
        case RangeValue():
            sizes.append(3 * value.stop.value if isinstance(value.stop, Const) and isinstance(value.stop.value, int) else None)
        case Unknown() if value.shape is not None:
            sizes.append(4 * math.prod(value.shape))
        case Const() if isinstance(value.value, (str, bytes)):
            sizes.append(len(value.value))
        case _:
            pass
    return None if None in sizes else sum(each for each in sizes if each is not None)


def _in_a_test(thread: SimulatedThread) -> bool:
    """Whether a call is the test of a loop that has only begun to turn."""
    frame = thread.frame
    after = frame.graph.nodes[frame.next_node]
    return after.kind == "branch" and id(after.tree) in frame.graph.tests and frame.visits[frame.current_node] <= _TURNS


def _target_name(target: Value | None) -> str:
    return getattr(target.tree, "name", "") if isinstance(target, Function) else ""

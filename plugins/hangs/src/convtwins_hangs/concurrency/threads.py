"""Threads and processes of an abstract execution: how they start and end, and what lies unread between them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from convtwins_hangs.concurrency.findings import finding_at
from convtwins_hangs.concurrency.state import BlockingCall, PendingOperation, QueueItem, SimulatedThread
from convtwins_hangs.concurrency.values import Const, RangeValue, SequenceValue, SyncObject, Unknown, Value, ValueMark, length

_PIPE_BYTES = 2**16


def report_fork(thread: SimulatedThread) -> None:
    """Report a fork beside other threads."""
    other_threads = [
        other for other in thread.execution.live_threads(thread.os_process) if other is not thread and not other.is_abandoned
    ]
    if not other_threads:
        return
    message = (
        f"{thread.name} forks while {other_threads[0].name} runs. A lock that this thread holds stays taken in the child. "
        "Start processes before threads, or by spawn."
    )
    step = thread.record("forks")
    thread.execution.findings.append(finding_at("fork-after-threads", step, message, [thread.path(), other_threads[0].path()]))


def report_late_read(thread: SimulatedThread, queue: SyncObject, item: QueueItem) -> None:
    """Report an item that is read only after joining the process that put it."""
    if item.joined_before_read is None or not thread.has_observed(*item.joined_before_read[:2]):
        return
    step, producer = (
        item.joined_before_read[2],
        next(other for other in thread.execution.threads if (queue, item) in other.put_items),
    )
    message = (
        f"{thread.name} waits for the end of {producer.name} before it reads {queue.title}. {producer.name} does not end "
        "if a pipe is too small for what lies there (64 KiB). Read the queue first."
    )
    paths = [producer.path(), thread.path()]
    thread.execution.findings.append(finding_at("queue-join", step, message, paths, [thread.current_step()]))


def wait_for_ends(
    thread: SimulatedThread,
    description: str,
    awaited: Sequence[SyncObject],
    sync_object: SyncObject | None = None,
    kind: str = "",
) -> BlockingCall:
    """Wait until threads, processes or tasks have ended, and return their results."""
    yield PendingOperation(description, lambda: all(ending.owner.ended for ending in awaited), sync_object, kind)
    return observe_ends(thread, awaited)


def observe_ends(thread: SimulatedThread, sync_objects: Sequence[SyncObject], *, has_timeout: bool = False) -> Value:
    """Let a thread observe that threads, processes or tasks have ended, and return their results."""
    for sync_object in sync_objects:
        thread.merge_clock(sync_object.clock)
        owner: SimulatedThread = sync_object.owner
        unread = [item for queue, item in owner.put_items if item in queue.items and "cancelled" not in queue.flags]
        is_blocking = not has_timeout and owner.os_process is not thread.os_process
        if is_blocking and any(is_large(item.num_bytes) for item in unread):
            for item in unread:
                item.joined_before_read = thread.number, thread.clock.get(thread.number, 0), thread.current_step()
    return SequenceValue([sync_object.target or Unknown() for sync_object in sync_objects], exact=False)


def is_large(num_bytes: int | None) -> bool:
    """Return whether a pipe may be too small for so many bytes."""
    return num_bytes is None or num_bytes > _PIPE_BYTES


def num_bytes_put(thread: SimulatedThread, value: Value) -> int | None:
    """Return the approximate bytes put by all iterations of the loops around a `put`. None: unknown, and perhaps many."""
    num_bytes = _num_bytes(value)
    for frame in thread.frames:
        if frame.visits[frame.current_node] > 1 and not frame.loops:
            return None  # `while`
        for node in frame.graph.nodes:
            if node.kind == "iter" and id(node.tree) in frame.loops:
                iterations = length(thread.execution.evaluate(thread, node.tree.iter, frame))
                if num_bytes is None or not isinstance(iterations, Const) or not isinstance(iterations.value, int):
                    return None
                num_bytes *= iterations.value
    return num_bytes


def _num_bytes(value: Value) -> int | None:
    """Return the approximate pickled size of a value. None: unknown, and perhaps large."""
    sizes: list[int | None] = [8]
    if ValueMark.LARGE in value.marks or not isinstance(value, Const | SequenceValue | RangeValue | Unknown):
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

"""Loops and comprehensions of an abstract execution: how many iterations they have, and over which items."""

from __future__ import annotations

import ast

from convtwins_hangs.concurrency import threads
from convtwins_hangs.concurrency.control_flow import GraphNode
from convtwins_hangs.concurrency.library_calls import item_marks
from convtwins_hangs.concurrency.program import short_source, source
from convtwins_hangs.concurrency.state import MAX_VISITS, USUAL_ITERATIONS, BlockingStep, CallFrame, Loop, SimulatedThread
from convtwins_hangs.concurrency.values import Const, RangeValue, SequenceValue, SyncObject, Unknown, Value, ValueMark, length

_MAX_EXACT_ITERATIONS = 4
"""Longest loop over numbers that is executed in full. Longer loops run twice, or more if a test depends on a counter."""


def start(thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> None:
    """Start a loop: choose its items."""
    frame.results.pop(id(node.tree), None)
    value = thread.execution.evaluate(thread, node.tree.iter, frame)
    if isinstance(value, SyncObject) and value.kind == "generator":
        loop = Loop(generator=value)
    elif isinstance(value, SequenceValue) and value.exact and len(value.items) <= MAX_VISITS - 4:
        loop = Loop(iter(list(value.items)))
    else:
        loop = _long_loop(thread, frame, node.tree.iter, value)
    frame.loops[id(node.tree)] = loop


def _long_loop(thread: SimulatedThread, frame: CallFrame, tree: ast.expr, value: Value) -> Loop:
    """Choose the items of a loop of numbers, or of unknown length."""
    stop = value.stop if isinstance(value, RangeValue) else None
    is_bounded, filling = _queue_filling(thread)
    # A rank that leaves in a second iteration is only missed in a third. Comparing with an earlier one takes two.
    # Other loops over the same iterable run as often.
    usual_count = USUAL_ITERATIONS + (
        thread.os_process.rank is not None and source(tree) in thread.execution.program.early_exit_iterables
    )
    if isinstance(stop, Const) and isinstance(stop.value, int):
        limit = max(_MAX_EXACT_ITERATIONS, filling)
        count = min(max(stop.value, 0), limit) if stop.value <= _MAX_EXACT_ITERATIONS or is_bounded else usual_count
        if count < stop.value <= MAX_VISITS - 4 and thread.execution.program.depends_on_counter(
            frame.graph, frame.next_node, by_item=True
        ):
            count = stop.value
            frame.max_visits = max(frame.max_visits, MAX_VISITS * count)
        if count < stop.value:
            thread.execution.record_truncation(frame, frame.next_node, frame.node.line, stop.value, count)
        indices = (Const(index, marks=stop.marks) for index in range(count))
        return Loop(indices, is_truncated=count < stop.value, is_uneven=ValueMark.LOCAL in stop.marks)
    marks = item_marks(value)
    is_uneven = ValueMark.UNEVEN in value.marks or (isinstance(stop, Unknown) and ValueMark.LOCAL in stop.marks)
    options = [usual_count, 1, 0] if is_uneven else [usual_count, 0, *([filling] if filling else [])]
    # Without an observable effect, all iterations are equal.
    is_quiet, _, _ = thread.execution.program.region(frame.graph, frame.next_node)
    # Loops over the same iterable have the same number of iterations, on all ranks and everywhere.
    subject = stop if stop is not None else length(value)
    key = ("turns", *subject.origin) if not is_uneven and subject.origin else ()
    count = 1
    if not (is_quiet and thread.execution.prune):
        options = thread.execution.iteration_options.setdefault(key, options) if key else options
        depends_on_data = not is_uneven and (
            ValueMark.DATA_DEPENDENT_LENGTH in value.marks
            or (isinstance(stop, Unknown) and ValueMark.DATA_DEPENDENT in stop.marks)
        )
        decision = f"how many turns {short_source(tree)} has"
        thread.execution.record_assumption(thread, decision, is_same=not is_uneven and not depends_on_data)
        divergence = thread.current_step(decision) if depends_on_data else None
        count = options[thread.execution.choose(thread, len(options), "turns", local=is_uneven, key=key, divergence=divergence)]
    thread.execution.record_truncation(frame, frame.next_node, frame.node.line, None, options[0])
    items: list[Value] = [Unknown(marks=marks) for _ in range(count)]
    if isinstance(value, Unknown) and "?items" in value.attributes:
        items = [SequenceValue([Unknown(), item]) for item in items]
    return Loop(iter(items), is_truncated=True, is_uneven=is_uneven)


def _queue_filling(thread: SimulatedThread) -> tuple[bool, int]:
    """Return (whether there are bounded queues, iterations that fill them and the threads between them).

    0 iterations: there are no bounded queues, or too large ones. All ranks get the same result for one loop, whatever
    queues each has, because a loop must not end earlier on one of them.
    """
    filling = thread.execution.queue_capacity + len(thread.execution.threads) + 2
    result = bool(thread.execution.queue_capacity), filling if thread.execution.queue_capacity and filling < MAX_VISITS else 0
    if thread.os_process.rank is None:
        return result
    return thread.execution.queue_bounds.setdefault(thread.position, result)


def next_item(thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> BlockingStep | None:
    """Assign the next item of a loop, or leave the loop."""
    loop = frame.loops.get(id(node.tree), Loop())
    if (generator := loop.generator) is not None and not (generator.is_set or generator.owner in thread.frames):
        return _resume(thread, frame, node, generator)
    item = next(loop.items, None)
    if loop.is_uneven:
        decision = "has no more of" if item is None else "turns once more"
        thread.diverge_at(thread.record(f"{decision}: {short_source(node.tree.iter)}"))
    if item is None:
        _leave(frame, node)
    else:
        thread.execution.assign(thread, node.tree.target, item, frame)
    return None


def _resume(thread: SimulatedThread, frame: CallFrame, node: GraphNode, generator: SyncObject) -> BlockingStep:
    """Assign the next item of a generator of the program, or leave the loop."""
    value = yield from thread.execution.run_frame(thread, generator.owner)
    if generator.is_set:
        _leave(frame, node)
    else:
        item = SequenceValue([Unknown(), value]) if "enumerated" in generator.flags else value
        thread.execution.assign(thread, node.tree.target, item, frame)


def _leave(frame: CallFrame, node: GraphNode) -> None:
    frame.loops.pop(id(node.tree), None)
    frame.next_node = node.next_if_false


def collect(thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> None:
    """Begin the list of a comprehension, or collect an item of it."""
    if node.extra == "begin":
        frame.results[id(node.tree)] = SequenceValue([], origin=thread.position)
        return
    collected = frame.results.get(id(node.tree))
    is_dictionary = isinstance(node.tree, ast.DictComp)
    if isinstance(collected, SequenceValue):
        tree = node.tree.value if is_dictionary else node.tree.elt
        append(thread, collected, thread.execution.evaluate(thread, tree, frame))
        collected.exact = collected.exact and not is_dictionary


def append(thread: SimulatedThread, sequence: SequenceValue, value: Value) -> None:
    """Append to a list, and mark it as large if a loop of unknown length does so."""
    sequence.items.append(value)
    if thread.execution.program.has_processes and threads.is_large(threads.num_bytes_put(thread, value)):
        sequence.marks |= {ValueMark.LARGE}

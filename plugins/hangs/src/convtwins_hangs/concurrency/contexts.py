"""`with` statements of an abstract execution."""

from __future__ import annotations

import ast

from convtwins_hangs.concurrency import sync_objects
from convtwins_hangs.concurrency.control_flow import GraphNode
from convtwins_hangs.concurrency.state import BlockingStep, CallFrame, CallOutcome, SimulatedThread, finished
from convtwins_hangs.concurrency.values import NONE, Instance, SyncObject, Unknown, Value


def enter(thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> BlockingStep:
    """Enter a context manager, and assign what it gives."""
    item: ast.withitem = node.extra
    frame.results.pop(id(item), None)
    value = frame.results[id(item)] = thread.execution.evaluate(thread, item.context_expr, frame)
    if isinstance(value, Unknown) and value.dotted == "join":
        thread.is_abandoned = True  # uneven ranks are what this is for
        return
    if isinstance(value, Unknown) and value.dotted in thread.context_depths:
        thread.context_depths[value.dotted] += 1
    if isinstance(value, SyncObject) and value.kind == "contextmanager":
        result = yield from thread.execution.run_frame(thread, value.owner)
    else:
        result = yield from finished(_special_method(thread, value, "__enter__"), value)
    if item.optional_vars is not None:
        thread.execution.assign(thread, item.optional_vars, result, frame)


def leave(thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> BlockingStep:
    """Leave a context manager."""
    value = frame.results.get(id(node.extra))
    if isinstance(value, Unknown) and value.dotted in thread.context_depths:
        thread.context_depths[value.dotted] -= 1
    elif isinstance(value, SyncObject) and value.kind == "contextmanager":
        if not value.is_set and value.owner not in thread.frames:
            yield from thread.execution.run_frame(thread, value.owner)
    elif value is not None:
        yield from finished(_special_method(thread, value, "__exit__"), NONE)


def _special_method(thread: SimulatedThread, value: Value, name: str) -> CallOutcome:
    if isinstance(value, SyncObject):
        return sync_objects.call_method(thread, value, name)
    if isinstance(value, Instance):
        arguments = [Unknown() for _ in range(3)] if name == "__exit__" else []
        return thread.execution.call_function(thread, thread.execution.attribute(thread, value, name), arguments)
    return None

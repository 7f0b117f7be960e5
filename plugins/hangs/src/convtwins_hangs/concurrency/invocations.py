"""Calls of an abstract execution: of functions and classes of the program, of methods, and of everything else."""

from __future__ import annotations

import ast

from convtwins_hangs.concurrency import external_code, library_calls, loops, sync_objects
from convtwins_hangs.concurrency.control_flow import GraphNode
from convtwins_hangs.concurrency.library_calls import LibraryCall
from convtwins_hangs.concurrency.meanings import RETURNS_SELF
from convtwins_hangs.concurrency.program import decorator_names
from convtwins_hangs.concurrency.state import BlockingCall, BlockingStep, CallFrame, CallOutcome, Keywords, SimulatedThread
from convtwins_hangs.concurrency.values import (
    NONE,
    Class,
    Const,
    Function,
    Instance,
    Lib,
    Method,
    SequenceValue,
    SyncObject,
    Unknown,
    Value,
    ValueMark,
    truth,
)


def execute(thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> BlockingStep | None:
    """Execute a call, and keep its result in the frame."""
    tree: ast.Call = node.tree
    frame.results.pop(id(tree), None)
    callee = thread.execution.evaluate(thread, tree.func, frame)
    values, keywords = thread.execution.arguments_of(thread, tree, frame)
    outcome = _invoke(thread, frame, callee, values, keywords)
    if outcome is None:
        outcome = external_code.call(thread, callee, values, keywords)
    if isinstance(outcome, Value):
        _keep_result(thread, frame, tree, outcome)
        return None
    return _wait_for_result(thread, frame, tree, outcome)


def _wait_for_result(thread: SimulatedThread, frame: CallFrame, tree: ast.Call, call: BlockingCall) -> BlockingStep:
    _keep_result(thread, frame, tree, (yield from call))


def _keep_result(thread: SimulatedThread, frame: CallFrame, tree: ast.Call, value: Value) -> None:
    if isinstance(value, (Unknown, SequenceValue)) and not value.origin:
        value.origin = thread.position
    frame.results[id(tree)] = value


def _invoke(thread: SimulatedThread, frame: CallFrame, callee: Value, values: list[Value], keywords: Keywords) -> CallOutcome:
    """Call any value. None: it is external code."""
    match callee:
        case Function():
            thread.execution.choose_to_raise(thread, harmless=callee)
            return thread.execution.call_function(thread, callee, values, keywords)
        case Class():
            instance, initializer = thread.execution.new_instance(thread, callee, values, keywords)
            return instance if initializer is None else _construct(thread, instance, initializer)
        case Instance():
            return thread.execution.call_function(
                thread, thread.execution.attribute(thread, callee, "__call__"), values, keywords
            )
        case Lib():
            return library_calls.simulate(LibraryCall(thread, values, keywords, frame, callee))
        case Method():
            return _call_method(thread, callee, values, keywords)
        case Unknown() if callee.dotted == "ddp" and ValueMark.BUFFERS in callee.marks:
            return _call_ddp_model(thread, callee, values, keywords)
        case _:
            return None


def _construct(thread: SimulatedThread, instance: Instance, initializer: CallFrame) -> BlockingCall:
    if initializer.generator is None:
        yield from thread.execution.run_frame(thread, initializer)
    return instance


def _call_ddp_model(thread: SimulatedThread, model: Unknown, values: list[Value], keywords: Keywords) -> BlockingCall:
    """Call a DistributedDataParallel model. It broadcasts buffers first, unless its last forward pass made no gradients."""
    result = Unknown(marks=external_code.result_marks("", model, values, keywords))
    synchronizes = model.attributes.get("?synchronizes", Const(True))
    decorators = {
        name for frame in thread.frames if frame.function is not None for name in decorator_names(frame.function.tree)
    }
    is_without_gradients = any("no_grad" in name or "inference_mode" in name for name in decorators)
    model.attributes["?synchronizes"] = Const(not (is_without_gradients or thread.context_depths["no_grad"]))
    if truth(synchronizes):
        yield from thread.execution.collective(thread, "forward (buffers)")
    return result


def _call_method(thread: SimulatedThread, callee: Method, values: list[Value], keywords: Keywords) -> CallOutcome:
    receiver, name = callee.receiver, callee.name
    match receiver:
        case SyncObject():
            outcome = sync_objects.call_method(thread, receiver, name, values, keywords)
            receiver.has_escaped |= outcome is None and name == "add_done_callback"
            return outcome
        case SequenceValue():
            return _call_list_method(thread, receiver, name, values)
        case Unknown():
            return _call_unknown_method(thread, receiver, name)
        case Instance() if name in RETURNS_SELF:
            return receiver
        case Lib():
            return thread.execution.value_by_name(thread, name)
        case _:
            return None


def _call_unknown_method(thread: SimulatedThread, receiver: Unknown, name: str) -> CallOutcome:
    if thread.execution.program.known_names.collective(f"{receiver.dotted}.{name}") is not None:
        return thread.execution.collective(thread, name)
    if receiver.dotted == "ddp" and name in ("no_sync", "join"):
        return Unknown(dotted=name)
    if name == "backward" and ValueMark.DDP in receiver.marks:
        return NONE if thread.context_depths["no_sync"] else thread.execution.collective(thread, "backward (gradients)")
    return thread.execution.value_by_name(thread, name)


def _call_list_method(thread: SimulatedThread, sequence: SequenceValue, name: str, values: list[Value]) -> Value | None:
    match name:
        case "append" | "add" if values:
            loops.append(thread, sequence, values[0])
        case "extend" if values and isinstance(values[0], SequenceValue):
            sequence.items += values[0].items
            sequence.exact = sequence.exact and values[0].exact
        case "pop" if sequence.items and sequence.exact:
            return sequence.items.pop(0 if values else -1)
        case "clear":
            sequence.items.clear()
        case _:
            return None
    return NONE

"""Calls of library functions and builtins: a table of what each does in an abstract execution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from convtwins_hangs.concurrency import meanings, sync_objects, threads
from convtwins_hangs.concurrency.state import (
    BlockingCall,
    CallFrame,
    CallOutcome,
    OsProcess,
    PendingOperation,
    SimulatedCall,
    SimulatedError,
)
from convtwins_hangs.concurrency.values import (
    NO_MARKS,
    NONE,
    RANK_DEPENDENT,
    Const,
    Function,
    Instance,
    Lib,
    Marks,
    RangeValue,
    SequenceValue,
    SyncObject,
    Unknown,
    Value,
    ValueMark,
    length,
    marks_of,
    reachable,
    truth,
)

_EXITS = ("sys.exit", "os._exit", "builtins.exit", "builtins.quit", "os.abort")
_PASS_THROUGH = ("tqdm", "iter", "list", "tuple", "sorted", "reversed", "islice", "trange", "chain", "prefetch")
_CONVERSIONS: dict[str, Callable[[Any], object]] = {"int": int, "str": str, "float": float, "bool": bool}


@dataclass
class LibraryCall(SimulatedCall):
    """A call of a function or class of a library."""

    frame: CallFrame
    callee: Lib

    @property
    def name(self) -> str:
        return self.callee.dotted.rpartition(".")[2]

    @property
    def first(self) -> Value | None:
        return self.values[0] if self.values else None


def simulate(call: LibraryCall) -> CallOutcome:
    """Simulate a call of a library."""
    execution, thread, dotted = call.execution, call.thread, call.callee.dotted
    known_names = execution.program.known_names
    if (collective := known_names.collective(dotted)) is not None:
        return execution.collective(thread, collective, call.values, call.keywords)
    if meanings.is_point_to_point(dotted):
        return execution.message(thread, call.name, call.values, call.keywords)
    if known_names.makes_collectives(dotted):
        return Unknown(dotted=dotted)
    sync_object = sync_objects.make(thread, dotted, call.values, call.keywords, call.callee.marks)
    if sync_object is not None:
        return sync_object
    is_builtin = dotted.startswith("builtins.")
    by_last_name = _BUILTINS if is_builtin else _BY_LAST_NAME
    for function in (_BY_DOTTED_NAME.get(dotted), by_last_name.get(call.name)):
        if function is not None and (outcome := function(call)) is not None:
            return outcome
    return None if is_builtin else execution.value_by_name(thread, call.name)


def item_marks(value: Value) -> Marks:
    """Return the marks of the items of a loop over a value."""
    if value.marks & {ValueMark.LOCAL, ValueMark.LOADER}:
        return frozenset([ValueMark.DATA_ITEM, ValueMark.LOCAL])
    return frozenset(
        [ValueMark.DATA_ITEM, ValueMark.DATA_DEPENDENT]
        if value.marks & {ValueMark.DATA_DEPENDENT, ValueMark.NAMED_LOADER}
        else [ValueMark.DATA_ITEM]
    )


# Processes and threads.


def _is_initialized(call: LibraryCall) -> Value | None:
    return None if call.thread.os_process.rank is None else Const(True)


def _get_context(call: LibraryCall) -> Value | None:
    if "multiprocessing" not in call.callee.dotted:
        return None
    is_fork = not isinstance(call.first, Const) or call.first.value == "fork"
    return Lib("multiprocessing", marks=NO_MARKS if is_fork else frozenset(["spawn"]))


def _set_start_method(call: LibraryCall) -> Value | None:
    if not isinstance(call.first, Const):
        return None
    call.thread.os_process.uses_spawn = call.first.value != "fork"
    return NONE


def _fork(call: LibraryCall) -> Value:
    threads.report_fork(call.thread)
    call.thread.is_abandoned = True
    return NONE


def _exit(call: LibraryCall) -> Value:
    call.thread.record("ends the process")
    raise SimulatedError("SystemExit")


def _sleep(_: LibraryCall) -> BlockingCall:
    yield PendingOperation("sleeps", lambda: False, has_timeout=True)
    return NONE


def _spawn(call: LibraryCall) -> CallOutcome:
    """Start a process for each rank, as `torch.multiprocessing.spawn` does."""
    target, args_value = call.argument(0, "fn"), call.argument(1, "args")
    arguments = args_value.items if isinstance(args_value, SequenceValue) else []
    ranks: list[SyncObject] = []
    for rank in range(call.execution.num_ranks):
        name = f"rank {rank}"
        copies = [
            replace(argument, attributes=dict(argument.attributes)) if isinstance(argument, Unknown) else argument
            for argument in arguments
        ]
        values = [Const(rank, marks=RANK_DEPENDENT), *copies]
        owner = call.execution.start_thread(call.thread, target, values, name, OsProcess(rank))
        owner.key = ("rank",)
        owner.sync_object = SyncObject(kind="thread", name=name, owner=owner)
        ranks.append(owner.sync_object)
    if truth(call.keywords.get("join", Const(True))) is False:
        return Unknown()
    return threads.wait_for_ends(call.thread, "waits for the ranks", ranks, ranks[0] if ranks else None)


def _wait_for_futures(call: LibraryCall) -> BlockingCall:
    items = call.first.items if isinstance(call.first, SequenceValue) else []
    tasks = [item for item in items if isinstance(item, SyncObject)]
    yield from threads.wait_for_ends(call.thread, "waits for tasks", tasks, kind="future")
    return SequenceValue(list(tasks))


# Models and data.


def _wrap_in_ddp(call: LibraryCall) -> BlockingCall:
    has_buffers = any(ValueMark.BUFFERS in value.marks for value in reachable([*call.values[:1], *call.keywords.values()]))
    broadcasts = has_buffers and truth(call.keywords.get("broadcast_buffers", Const(True))) is not False
    model = Unknown(marks=frozenset([ValueMark.DDP, ValueMark.BUFFERS] if broadcasts else [ValueMark.DDP]), dotted="ddp")
    yield from call.execution.collective(call.thread, "DistributedDataParallel", keywords=call.keywords)
    return model


def _new_loader(call: LibraryCall) -> Value:
    if "sampler" in call.keywords or "batch_sampler" in call.keywords:
        return Unknown(marks=frozenset([ValueMark.LOADER]))
    is_uneven = any(ValueMark.UNEVEN in value.marks for value in call.values)
    attributes = call.first.attributes.values() if isinstance(call.first, Instance) else []
    length_marks = marks_of([*attributes, *call.values]) & {ValueMark.DATA_DEPENDENT_LENGTH}
    return Unknown(marks=frozenset([ValueMark.LOADER, ValueMark.UNEVEN] if is_uneven else [ValueMark.LOADER]) | length_marks)


def _new_tensor(call: LibraryCall) -> Value:
    """Return a new tensor, with its shape if all sizes are known."""
    values = call.values
    sizes = values[0].items if len(values) == 1 and isinstance(values[0], SequenceValue) else values
    dimensions = [size.value for size in sizes if isinstance(size, Const) and isinstance(size.value, int)]
    return Unknown(shape=tuple(dimensions) if dimensions and len(dimensions) == len(sizes) else None)


def _read_environment(call: LibraryCall) -> Value | None:
    if not isinstance(call.first, Const):
        return None
    return call.execution.environment_variable(call.thread, str(call.first.value))


def _bind_arguments(call: LibraryCall) -> Value | None:
    function = call.first
    if not isinstance(function, Function):
        return None
    return replace(function, bound_arguments=[*function.bound_arguments, *call.values[1:]])


def _cycle(call: LibraryCall) -> Value | None:
    return Unknown(marks=call.values[0].marks - {ValueMark.UNEVEN}) if call.values else None


# Builtins.


def _range(call: LibraryCall) -> Value | None:
    return RangeValue(stop=_range_length(call.values), marks=marks_of(call.values)) if call.values else None


def _range_length(values: Sequence[Value]) -> Value:
    """Return the length of a range."""
    if len(values) == 1:
        return values[0]
    numbers = [value.value for value in values if isinstance(value, Const) and isinstance(value.value, int)]
    if len(numbers) == len(values):
        try:
            return Const(len(range(*numbers)), marks=marks_of(values))
        except (ValueError, OverflowError):
            return Unknown(marks=marks_of(values))
    if len(values) == 2 and isinstance(values[0], Const) and not values[0].value:
        return values[1]
    return Unknown(marks=marks_of(values))


def _convert(call: LibraryCall) -> Value | None:
    first = call.first
    if not isinstance(first, Const) or len(call.values) != 1:
        return None
    try:
        return Const(_CONVERSIONS[call.name](first.value), marks=first.marks)
    except (TypeError, ValueError, OverflowError):
        return Unknown(marks=first.marks)


def _enumerate(call: LibraryCall) -> Value | None:
    first = call.first
    if first is None:
        return None
    if isinstance(first, SyncObject) and first.kind == "generator":
        first.flags |= {"enumerated"}
        return first
    if isinstance(first, SequenceValue) and first.exact:
        return SequenceValue([SequenceValue([Const(index), item]) for index, item in enumerate(first.items)])
    return Unknown(marks=first.marks, attributes={"?items": first, "len()": length(first)})


def _zip(call: LibraryCall) -> Value | None:
    values = call.values
    if not values:
        return None
    columns = [value.items for value in values if isinstance(value, SequenceValue) and value.exact]
    if len(columns) == len(values):
        return SequenceValue([SequenceValue(list(row)) for row in zip(*columns, strict=False)])
    has_even_values = any(ValueMark.UNEVEN not in value.marks for value in values)
    return Unknown(marks=marks_of(values) - ({ValueMark.UNEVEN} if has_even_values else NO_MARKS))


def _copy(call: LibraryCall) -> Value | None:
    first = call.first
    if len(call.values) != 1:
        return None
    return SequenceValue(list(first.items), first.exact) if isinstance(first, SequenceValue) else first


def _super(call: LibraryCall) -> Value | None:
    function = call.frame.function
    if function is None or function.owner is None:
        return None
    return Unknown(dotted="super", attributes={"of": function.receiver or Unknown(), "class": function.owner})


def _next(call: LibraryCall) -> Value | None:
    first = call.first
    if isinstance(first, SyncObject):
        return Unknown(marks=frozenset([ValueMark.DATA_ITEM]))
    return (
        Unknown(marks=item_marks(first))
        if first is not None and first.marks & {ValueMark.LOADER, ValueMark.NAMED_LOADER}
        else None
    )


Stub = Callable[[LibraryCall], CallOutcome]
_BY_DOTTED_NAME: dict[str, Stub] = {
    **dict.fromkeys(("torch.distributed.is_available", "torch.distributed.is_initialized"), _is_initialized),
    **dict.fromkeys(meanings.DDP_CLASSES, _wrap_in_ddp),
    **dict.fromkeys(meanings.NO_GRADIENTS, lambda _: Unknown(dotted="no_grad")),
    **dict.fromkeys(("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"), _spawn),
    **dict.fromkeys(_EXITS, _exit),
    **dict.fromkeys(meanings.LOCAL_CALLS, lambda _: Unknown(marks=RANK_DEPENDENT)),
    **dict.fromkeys(("os.environ.get", "os.getenv"), _read_environment),
    **dict.fromkeys(meanings.LOADERS, _new_loader),
    **dict.fromkeys(meanings.TENSOR_FACTORIES, _new_tensor),
    **dict.fromkeys(("concurrent.futures.wait", "concurrent.futures.as_completed"), _wait_for_futures),
    "os.fork": _fork,
    "time.sleep": _sleep,
    "functools.partial": _bind_arguments,
    "torch.distributed.algorithms.join.Join": lambda _: Unknown(dotted="join"),
}
_BY_LAST_NAME: dict[str, Stub] = {
    "get_context": _get_context,
    "set_start_method": _set_start_method,
    "DistributedSampler": lambda _: Unknown(),
    "zip": lambda call: call.values[-1] if call.values else None,
    "cycle": _cycle,
    **dict.fromkeys(_PASS_THROUGH, lambda call: call.first),
}
_BUILTINS: dict[str, Stub] = {
    "range": _range,
    "len": lambda call: None if call.first is None else length(call.first),
    **dict.fromkeys(_CONVERSIONS, _convert),
    "enumerate": _enumerate,
    "zip": _zip,
    **dict.fromkeys(("iter", "sorted", "reversed"), _copy),
    **dict.fromkeys(("list", "tuple"), lambda call: _copy(call) if call.values else SequenceValue([])),
    "set": lambda call: None if call.values else SequenceValue([]),
    "dict": lambda call: Unknown(marks=marks_of(call.values)),
    "super": _super,
    "object": lambda _: Instance(),
    "next": _next,
}

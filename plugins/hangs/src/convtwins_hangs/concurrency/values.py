"""Values of the abstract execution: constants, unknown values with marks, and synchronization objects."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Any


class ValueMark(StrEnum):
    """Property of a value that matters where ranks or processes meet."""

    LOCAL = auto()
    """Ranks may have different values here."""
    UNEVEN = auto()
    """Ranks may have different lengths of this."""
    DATA_DEPENDENT = auto()
    """Ranks may have different values here if their data differ. Weaker than `LOCAL`."""
    DATA_DEPENDENT_LENGTH = auto()
    """Ranks may have different lengths of this if their data differ. Weaker than `UNEVEN`."""
    COLLECTIVE_RESULT = auto()
    """The value comes from a collective, so its name alone does not make it rank-dependent."""
    DATA_ITEM = auto()
    """An item of data, so it is neither None nor a sentinel."""
    DDP = auto()
    """The value comes from a model whose gradients are exchanged in backward()."""
    BUFFERS = auto()
    """A model that has buffers."""
    LOADER = auto()
    """The value yields batches of the rank's own data."""
    NAMED_LOADER = auto()
    """The value, by its name, may yield batches of the rank's own data."""
    LARGE = auto()
    """The value may be larger than a pipe's buffer."""


Marks = frozenset[Any]
"""Marks of a value: `ValueMark`s, and ("read", object, attribute) for each location that a number was read from."""
NO_MARKS: Marks = frozenset()
RANK_DEPENDENT: Marks = frozenset([ValueMark.LOCAL])


@dataclass(eq=False)
class Value:
    """Base class of values, compared by identity."""

    marks: Marks = field(default=NO_MARKS, kw_only=True)
    origin: tuple[Any, ...] = field(default=(), kw_only=True)
    """Origin of the value, equal for the same value of every rank. Empty: unknown."""


@dataclass(eq=False)
class Const(Value):
    value: Any = None


@dataclass(eq=False)
class Unknown(Value):
    """A value with only marks and perhaps a shape known. Reading an attribute twice gives the same value."""

    attributes: dict[str, Value] = field(default_factory=dict[str, Value])
    """Attributes by name. Names with `?` or `[` are internal: comparison results, items, and the sources of a tensor."""
    shape: tuple[int, ...] | None = None
    dotted: str = ""
    """Dotted name of the library's class or function that made the value."""


@dataclass(eq=False)
class Lib(Value):
    """A library's module, class or function, such as torch.distributed.barrier."""

    dotted: str = ""


@dataclass(eq=False)
class SequenceValue(Value):
    """A list or tuple. If `exact`, these are all its items."""

    items: list[Value] = field(default_factory=list[Value])
    exact: bool = True


@dataclass(eq=False)
class RangeValue(Value):
    """A range from 0, or an unknown number of items."""

    stop: Value | None = None


@dataclass(eq=False)
class Function(Value):
    tree: Any = None
    module: Any = None
    closure: Any = None
    """Frame of the enclosing function. None: defined at module level."""
    receiver: Value | None = None
    owner: Any = None
    """Class that defines the method. None: a plain function."""
    bound_arguments: list[Value] = field(default_factory=list[Value])
    """First arguments, bound by functools.partial."""


@dataclass(eq=False)
class Class(Value):
    tree: ast.ClassDef | None = None
    module: Any = None
    closure: Any = None


@dataclass(eq=False)
class Instance(Value):
    class_value: Class | None = None
    attributes: dict[str, Value] = field(default_factory=dict[str, Value])
    site: tuple[str, int, int] = ("", 0, 0)


@dataclass(eq=False)
class SyncObject(Value):
    """A synchronization object: a lock, queue, event, thread, pool, future, generator or process group."""

    kind: str = ""
    site: tuple[str, int, int] = ("", 0, 0)
    """File, line and column of the call that made it."""
    name: str = ""
    owner: Any = None
    """lock: the holding thread. thread, future: its `SimulatedThread`. generator: its frame. work: its pending operation."""
    count: int = 0
    """lock: recursion depth. semaphore: remaining permits. barrier: arrivals. queue: unfinished tasks. message: the peer."""
    size: int | None = None
    """queue: capacity, None: unbounded. barrier: parties. pool: threads. group: number."""
    items: list[Any] = field(default_factory=list[Any])
    """queue: `QueueItem`s. condition: waiting threads. pool: futures. group: ranks."""
    is_set: bool = False
    clock: dict[int, int] = field(default_factory=dict[int, int])
    """Vector clock of the steps before it was set, released or ended."""
    target: Value | None = None
    """thread: the function to run. condition: its lock. future: its result."""
    arguments: list[Value] = field(default_factory=list[Value])
    has_escaped: bool = False
    """Whether external code may use the object too."""
    flags: frozenset[str] = frozenset()
    """Any of daemon, process, spawn, reentrant, cancelled, enumerated."""

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}" if self.name else f"{self.kind} of line {self.site[1]}"


@dataclass(eq=False)
class Method(Value):
    """A method of a value that is not an instance of a class of the program."""

    receiver: Value = field(default_factory=Value)
    name: str = ""


NONE = Const(None)


def marks_of(values: Iterable[Value | None]) -> Marks:
    """Return the marks that a result inherits from its operands: all but `DATA_ITEM`."""
    marks: set[Any] = set()
    for value in values:
        if value is not None:
            marks |= value.marks
            if isinstance(value, SequenceValue):
                marks |= marks_of(value.items[:8])
            if isinstance(value, RangeValue) and value.stop is not None and ValueMark.LOCAL in value.stop.marks:
                marks.add(ValueMark.UNEVEN)
    return frozenset(marks - {ValueMark.DATA_ITEM})


def truth(value: Value) -> bool | None:
    """Return the truth value. None: unknown."""
    if isinstance(value, Const):
        return bool(value.value)
    if isinstance(value, SequenceValue) and value.exact:
        return bool(value.items)
    if isinstance(value, (Instance, SyncObject, Function, Class)):
        return True
    return None


_BINARY_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitXor: operator.xor, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}  # fmt: skip
_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.eq, ast.IsNot: operator.ne,
}  # fmt: skip
_MAX_NUMBER = 10**6
_MAX_LENGTH = 64


def binary(operation: ast.operator, left: Value, right: Value) -> Value:
    """Return the result of a binary operation, computed if both operands are small numbers or short texts."""
    marks = marks_of([left, right])
    if isinstance(left, Const) and isinstance(right, Const) and _is_small(left.value) and _is_small(right.value):
        try:
            value = _BINARY_OPERATORS[type(operation)](left.value, right.value)
        except (KeyError, ArithmeticError, TypeError, ValueError):
            return Unknown(marks=marks)
        if _is_small(value):
            return Const(value, marks=marks)
    if isinstance(left, SequenceValue) and isinstance(right, SequenceValue) and isinstance(operation, ast.Add):
        return SequenceValue([*left.items, *right.items], left.exact and right.exact, marks=marks)
    repetitions = right.value if isinstance(right, Const) and isinstance(right.value, int) else -1
    if (
        isinstance(operation, ast.Mult)
        and isinstance(left, SequenceValue)
        and 0 <= repetitions * len(left.items) <= _MAX_LENGTH
    ):
        return SequenceValue(left.items * repetitions, left.exact, marks=marks)
    sequence = left if isinstance(right, Const) else right
    is_sequence = isinstance(sequence, SequenceValue) or (
        isinstance(sequence, Const) and isinstance(sequence.value, (str, bytes))
    )
    return Unknown(marks=marks | {ValueMark.LARGE} if is_sequence and isinstance(operation, ast.Mult) else marks)


def _is_small(value: Any) -> bool:
    if isinstance(value, (int, float)):
        return abs(value) <= _MAX_NUMBER
    return isinstance(value, str) and len(value) <= 1000


def compare(operation: ast.cmpop, left: Value, right: Value) -> Value:
    """Return the result of one comparison."""
    marks = marks_of([left, right])
    if _is_setting(left) or _is_setting(right):
        marks -= {ValueMark.DATA_DEPENDENT}  # a setting, or whether there is one
    is_equality = isinstance(operation, (ast.Is, ast.Eq))
    is_inequality = isinstance(operation, (ast.IsNot, ast.NotEq))
    function = _COMPARISONS.get(type(operation))
    if isinstance(left, Const) and isinstance(right, Const) and function is not None:
        try:
            return Const(bool(function(left.value, right.value)), marks=marks)
        except TypeError:
            return Unknown(marks=marks)
    if is_equality or is_inequality:
        if left is right and isinstance(left, (Instance, SyncObject, Class)):
            return Const(is_equality)
        if any(
            _is_object(one) and (_is_setting(other) or isinstance(other, Instance))
            for one, other in ((left, right), (right, left))
        ):
            return Const(is_inequality, marks=marks)
    if isinstance(operation, (ast.In, ast.NotIn)) and isinstance(right, SequenceValue) and isinstance(left, Const):
        constants = [item.value for item in right.items if isinstance(item, Const)]
        if right.exact and len(constants) == len(right.items):
            return Const((left.value in constants) == isinstance(operation, ast.In), marks=marks)
    return Unknown(marks=marks)


def _is_setting(value: Value) -> bool:
    """Return whether a value is None or a text, as a setting or a sentinel is."""
    return isinstance(value, Const) and (value.value is None or isinstance(value.value, str))


def _is_object(value: Value) -> bool:
    """Return whether a value is neither None nor a text."""
    kinds = (Instance, SyncObject, Function, Class, SequenceValue)
    return isinstance(value, kinds) or ValueMark.DATA_ITEM in value.marks


def reachable(roots: Iterable[Value]) -> Iterator[Value]:
    """Yield every value that can be reached from the given ones in at most six steps."""
    visited: set[int] = set()
    level = list(roots)
    for _ in range(6):
        next_level: list[Value] = []
        for value in level:
            if id(value) in visited:
                continue
            visited.add(id(value))
            yield value
            match value:
                case SequenceValue():
                    next_level += value.items
                case Instance() | Unknown():
                    next_level += value.attributes.values()
                case Function():
                    next_level += [child for child in (value.receiver, *value.bound_arguments) if child is not None]
                    frame = value.closure
                    while frame is not None:
                        next_level += frame.names.values()
                        frame = frame.parent
                case Method():
                    next_level.append(value.receiver)
                case SyncObject():
                    next_level += [child for child in (value.target, *value.arguments) if child is not None]
                case _:
                    pass
        level = next_level


def derived(value: Value, name: str, marks: Marks = NO_MARKS) -> Unknown:
    """Return an unknown attribute or result of a value, which is equal for the same value of every rank."""
    return Unknown(marks=marks, origin=(*value.origin, name) if value.origin else ())


def length(value: Value) -> Value:
    """Return `len(value)`. Repeated calls return the same value."""
    if isinstance(value, SequenceValue) and value.exact:
        return Const(len(value.items))
    if ValueMark.UNEVEN in value.marks:
        marks = frozenset([ValueMark.LOCAL])
    else:
        marks = frozenset([ValueMark.DATA_DEPENDENT]) if ValueMark.DATA_DEPENDENT_LENGTH in value.marks else NO_MARKS
    if isinstance(value, (Unknown, Instance)):
        return value.attributes.setdefault("len()", derived(value, "len()", marks))
    if isinstance(value, RangeValue) and value.stop is not None:
        return value.stop
    return derived(value, "len()", marks)

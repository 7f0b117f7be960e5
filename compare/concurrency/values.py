"""Values of the abstract execution: constants, unknown values with marks, and the things that threads and ranks share."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

LOCAL = "local"
"""Mark: ranks may have different values here."""
UNEVEN = "uneven"
"""Mark: ranks may have different lengths of this."""
OWN = "own"
"""Mark: ranks may have different values here if their data differ. Weaker than `LOCAL`."""
UNSURE = "unsure"
"""Mark: ranks may have different lengths of this if their data differ. Weaker than `UNEVEN`."""
ALIKE = "alike"
"""Mark: a collective had a part in it, so it is no rank's own by its name alone."""
ITEM = "item"
"""Mark: an item of data, so it is neither None nor a sentinel."""
DDP = "ddp"
"""Mark: the value comes from a model whose gradients are exchanged in backward()."""
BUFFERS = "buffers"
"""Mark: a model that has buffers."""
LOADER = "loader"
"""Mark: it yields batches of the rank's own data."""
NAMED_LOADER = "named loader"
"""Mark: it may do so, by its name."""
LARGE = "large"
"""Mark: it may be more than a pipe holds."""

Marks = frozenset[Any]
"""Besides the words above: ("read", object, attribute), the places that a number was read from."""
NO_MARKS: Marks = frozenset()


@dataclass(eq=False)
class Value:
    """Any value. Two are the same if they are one object."""

    marks: Marks = field(default=NO_MARKS, kw_only=True)
    origin: tuple[Any, ...] = field(default=(), kw_only=True)
    """Where it comes from, the same for the same value of every rank. Empty: not known."""


@dataclass(eq=False)
class Const(Value):
    value: Any = None


@dataclass(eq=False)
class Unknown(Value):
    """A value of which only marks and perhaps a shape are known. Attributes of one are the same whenever they are read."""

    attributes: dict[str, Value] = field(default_factory=dict[str, Value])
    """Those that begin with `?` or `[` are of this checker: answers to questions, items, `?of`: what a tensor was made of."""
    shape: tuple[int, ...] | None = None
    dotted: str = ""
    """Of the class or function of a library that made it."""


@dataclass(eq=False)
class Lib(Value):
    """A name of a library, such as torch.distributed.barrier."""

    dotted: str = ""


@dataclass(eq=False)
class Sequenced(Value):
    """A list or tuple. If `exact`, these are all its items."""

    items: list[Value] = field(default_factory=list[Value])
    exact: bool = True


@dataclass(eq=False)
class Counted(Value):
    """A range from 0, or an unknown number of items."""

    stop: Value | None = None


@dataclass(eq=False)
class Function(Value):
    tree: Any = None
    module: Any = None
    closure: Any = None
    """The frame that it was defined in."""
    receiver: Value | None = None
    owner: Any = None
    """The class of a method."""
    preset: list[Value] = field(default_factory=list[Value])
    """First arguments, of functools.partial."""


@dataclass(eq=False)
class Class(Value):
    tree: ast.ClassDef | None = None
    module: Any = None
    closure: Any = None


@dataclass(eq=False)
class Instance(Value):
    of: Class | None = None
    attributes: dict[str, Value] = field(default_factory=dict[str, Value])
    site: tuple[str, int, int] = ("", 0, 0)


@dataclass(eq=False)
class Thing(Value):
    """A lock, queue, event, thread or another thing that one waits for."""

    kind: str = ""
    site: tuple[str, int, int] = ("", 0, 0)
    """Where it was made: file, line, column."""
    name: str = ""
    owner: Any = None
    """lock: the thread that holds it. thread, future: its process."""
    count: int = 0
    """lock: how often its owner holds it. semaphore: what is left. barrier: who waits. queue: unfinished tasks."""
    size: int | None = None
    """queue: capacity, None: unbounded. barrier: parties. pool: threads."""
    items: list[Any] = field(default_factory=list[Any])
    """queue: `Item` each. condition: who waits. pool: its processes."""
    is_set: bool = False
    clock: dict[int, int] = field(default_factory=dict[int, int])
    """What has happened before it was set, released or ended."""
    target: Value | None = None
    """thread: what it runs. condition: its lock."""
    arguments: list[Value] = field(default_factory=list[Value])
    is_open: bool = False
    """Code that is not read may use it too."""
    flags: frozenset[str] = frozenset()
    """daemon, process, spawn, reentrant, cancelled."""

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}" if self.name else f"{self.kind} of line {self.site[1]}"


@dataclass(eq=False)
class Method(Value):
    """A method of a value that is no instance of a class of the package."""

    of: Value = field(default_factory=Value)
    name: str = ""


NONE = Const(None)


def marks_of(values: Iterable[Value | None]) -> Marks:
    """What a result inherits: all marks but those of containers and items."""
    found: set[Any] = set()
    for each in values:
        if each is not None:
            found |= each.marks
            if isinstance(each, Sequenced):
                found |= marks_of(each.items[:8])
            if isinstance(each, Counted) and each.stop is not None and LOCAL in each.stop.marks:
                found.add(UNEVEN)
    return frozenset(found - {ITEM})


def truth(value: Value) -> bool | None:
    """Whether it is true. None: unknown."""
    if isinstance(value, Const):
        return bool(value.value)
    if isinstance(value, Sequenced) and value.exact:
        return bool(value.items)
    if isinstance(value, (Instance, Thing, Function, Class)):
        return True
    return None


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitXor: operator.xor, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}  # fmt: skip
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip
_LARGEST = 10**6
_LONGEST = 64


def binary(operation: ast.operator, left: Value, right: Value) -> Value:
    """The result of a binary operation: computed if both are small numbers or short texts."""
    marks = marks_of([left, right])
    if isinstance(left, Const) and isinstance(right, Const) and _small(left.value) and _small(right.value):
        try:
            value = _BINARY[type(operation)](left.value, right.value)
        except (KeyError, ArithmeticError, TypeError, ValueError):
            return Unknown(marks=marks)
        if _small(value):
            return Const(value, marks=marks)
    if isinstance(left, Sequenced) and isinstance(right, Sequenced) and isinstance(operation, ast.Add):
        return Sequenced([*left.items, *right.items], left.exact and right.exact, marks=marks)
    times = right.value if isinstance(right, Const) and isinstance(right.value, int) else -1
    if isinstance(operation, ast.Mult) and isinstance(left, Sequenced) and 0 <= times * len(left.items) <= _LONGEST:
        return Sequenced(left.items * times, left.exact, marks=marks)
    repeated = left if isinstance(right, Const) else right
    many = isinstance(repeated, Sequenced) or (isinstance(repeated, Const) and isinstance(repeated.value, (str, bytes)))
    return Unknown(marks=marks | {LARGE} if many and isinstance(operation, ast.Mult) else marks)


def _small(value: Any) -> bool:
    if isinstance(value, (int, float)):
        return abs(value) <= _LARGEST
    return isinstance(value, str) and len(value) <= 1000


def compare(operation: ast.cmpop, left: Value, right: Value) -> Value:
    """The result of one comparison."""
    marks = marks_of([left, right])
    if any(isinstance(each, Const) and (each.value is None or isinstance(each.value, str)) for each in (left, right)):
        marks -= {OWN}  # a setting, or whether there is one
    same = isinstance(operation, (ast.Is, ast.Eq))
    other = isinstance(operation, (ast.IsNot, ast.NotEq))
    if isinstance(left, Const) and isinstance(right, Const):
        function = _COMPARE.get(type(operation))
        if function is not None:
            if isinstance(operation, (ast.Is, ast.IsNot)):
                function = operator.eq if same else operator.ne
            try:
                return Const(bool(function(left.value, right.value)), marks=marks)
            except TypeError:
                return Unknown(marks=marks)
    if same or other:
        if left is right and isinstance(left, (Instance, Thing, Class)):
            return Const(same)
        for one, two in ((left, right), (right, left)):
            sentinel = isinstance(two, Instance) or (
                isinstance(two, Const) and (two.value is None or isinstance(two.value, str))
            )
            known = isinstance(one, (Instance, Thing, Function, Class, Sequenced)) or ITEM in one.marks
            if sentinel and known:
                return Const(other, marks=marks)
    if isinstance(operation, (ast.In, ast.NotIn)) and isinstance(right, Sequenced) and isinstance(left, Const):
        known_items = [each.value for each in right.items if isinstance(each, Const)]
        if right.exact and len(known_items) == len(right.items):
            return Const((left.value in known_items) == isinstance(operation, ast.In), marks=marks)
    return Unknown(marks=marks)


def reachable(roots: Iterable[Value]) -> Iterator[Value]:
    """Every value that code which gets these can reach in six steps."""
    seen: set[int] = set()
    level = list(roots)
    for _ in range(6):
        after: list[Value] = []
        for value in level:
            if id(value) in seen:
                continue
            seen.add(id(value))
            yield value
            match value:
                case Sequenced():
                    after += value.items
                case Instance() | Unknown():
                    after += value.attributes.values()
                case Function():
                    after += [each for each in (value.receiver, *value.preset) if each is not None]
                    frame = value.closure
                    while frame is not None:
                        after += frame.names.values()
                        frame = frame.parent
                case Method():
                    after.append(value.of)
                case Thing():
                    after += [each for each in (value.target, *value.arguments) if each is not None]
                case _:
                    pass
        level = after

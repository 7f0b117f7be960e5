"""YAML and JSON from anybody as plain values: null, true, numbers, text, lists and mappings with named fields.

Size, depth and what aliases expand to are bounded before anything is built. So a hostile text costs little time and memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml

from common.errors import UserError
from common.machine import plain_file

MAX_BYTES = 2**17
"""Limit for a text. The longest file of this project has a tenth of it."""
_FROM_COMMANDS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Pipes that somebody writes into."""
MAX_DEPTH = 32
"""Limit for lists and mappings inside each other, and for the parts of a dotted field."""
MAX_VALUES = 20_000
"""Limit for all values together. An alias counts each time, with everything that it stands for."""
MAX_DIGITS = 100
"""Limit for a number. A field has a far lower one, and its error names the field."""

_TOO_DEEP = f"it nests more than {MAX_DEPTH} deep"
_TOO_MANY = f"it holds more than {MAX_VALUES:,} values or {MAX_BYTES:,} letters, aliases expanded"
_TOO_LONG = f"it has a number of more than {MAX_DIGITS} digits"
_LONGEST_FAULT = 500


class PlainValuesError(UserError, ValueError):
    """A text holds no plain values, or exceeds a limit. The message is the end of a sentence."""


def read_text(path: Path) -> str:
    """A text file, or what comes from a command: `--spec /dev/stdin`, `--spec <(command)`.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read.
        PlainFileError: it is no plain file, or too large.
        PlainValuesError: what comes from a command is too large.
    """
    if not str(path).startswith(_FROM_COMMANDS):
        return plain_file.read(path, MAX_BYTES).decode("utf-8")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    _check_size(len(content))
    return content.decode("utf-8")


def from_yaml(text: str) -> Any:
    """The value of a YAML text. A name that stands twice in a mapping is refused, and so is every tag of other values.

    Raises:
        PlainValuesError: it is no such text.
    """
    _check_size(len(text))
    try:
        value = yaml.load(text, _PlainLoader)  # a safe loader with fewer tags
    except (PlainValuesError, MemoryError):
        raise
    except yaml.YAMLError as error:
        raise PlainValuesError(f"{error}"[:_LONGEST_FAULT]) from None
    except Exception as error:  # PyYAML raises half a dozen types on a wrong value behind an explicit tag
        raise PlainValuesError(f"{type(error).__name__}: {error}"[:_LONGEST_FAULT]) from None
    return _apart(checked(value))


def from_json(text: str) -> Any:
    """The value of a JSON text. A name that stands twice in an object is refused.

    Raises:
        PlainValuesError: it is no such text.
    """
    _check_size(len(text))
    try:
        value = json.loads(text, object_pairs_hook=_each_once)
    except RecursionError:
        raise PlainValuesError(_TOO_DEEP) from None
    except ValueError as error:
        raise PlainValuesError(f"{error}"[:_LONGEST_FAULT]) from None
    return checked(value)


def checked(value: Any) -> Any:
    """The same value, if it is plain and within the limits.

    Raises:
        PlainValuesError: it is not.
    """
    pending, count = [(value, 1)], 0
    while pending:
        each, depth = pending.pop()
        if (count := count + 1) > MAX_VALUES:
            raise PlainValuesError(_TOO_MANY)
        if isinstance(each, dict | list):
            if depth > MAX_DEPTH:
                raise PlainValuesError(_TOO_DEEP)
            inner = cast(list[Any], each)
            if isinstance(each, dict):
                inner = list(cast(dict[Any, Any], each).values())
                for name in cast(dict[Any, Any], each):
                    _check_name(name)
            pending += [(item, depth + 1) for item in inner]
        elif isinstance(each, str):
            _check_letters(each)
        elif isinstance(each, int) and abs(each) >= 10**MAX_DIGITS:
            raise PlainValuesError(_TOO_LONG)
    return value


def _apart(value: Any) -> Any:
    """A copy without aliases: each is a value of its own, so that nobody sets two fields as one."""
    if isinstance(value, dict):
        return {name: _apart(each) for name, each in cast(dict[str, Any], value).items()}
    return [_apart(each) for each in cast(list[Any], value)] if isinstance(value, list) else value


def _check_size(length: int) -> None:
    if length > MAX_BYTES:
        raise PlainValuesError(f"it is longer than {MAX_BYTES:,} bytes")


def _check_name(name: Any) -> None:
    if not isinstance(name, str):  # to YAML, 1 and no are none
        raise PlainValuesError(f"it has a field without a name. Received: {name!r}. Quote it")
    _check_letters(name)


def _check_letters(text: str) -> None:
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise PlainValuesError(f"it has half a letter, which nothing can store. Received: {text[:40]!r}")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's fields. JSON's own rule takes the last one of a name without a word."""
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise PlainValuesError(f"{twice} stands there twice")
    return values


class _Extent(NamedTuple):
    """What a node stands for, aliases expanded."""

    values: int
    letters: int
    depth: int


class _PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader for plain values. It counts while it composes nodes, so before it builds a value."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._open = 0
        self._extents: dict[yaml.Node, _Extent] = {}
        """Of each finished node."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        is_alias = self.check_event(yaml.AliasEvent)
        self._open += 1
        if self._open > MAX_DEPTH + 1:  # the innermost one is a scalar
            raise PlainValuesError(_TOO_DEEP)
        node = cast(yaml.Node, super().compose_node(parent, index))
        self._open -= 1
        if not is_alias:
            self._extents[node] = self._extent(node)
        elif node not in self._extents:
            raise PlainValuesError("an alias stands for what it is in")
        return node

    def _extent(self, node: yaml.Node) -> _Extent:
        if isinstance(node, yaml.ScalarNode):
            return _Extent(1, len(node.value), 0)
        inner: list[yaml.Node] = node.value
        if isinstance(node, yaml.MappingNode):
            _refuse_twice([key for key, _ in node.value])
            inner = [each for pair in node.value for each in pair]
        extents = [self._extents[each] for each in inner]
        values, letters = 1 + sum(each.values for each in extents), sum(each.letters for each in extents)
        if values > 2 * MAX_VALUES or letters > MAX_BYTES:  # a name is a value here
            raise PlainValuesError(_TOO_MANY)
        depth = 1 + max((each.depth for each in extents), default=0)
        if depth > MAX_DEPTH:
            raise PlainValuesError(_TOO_DEEP)
        return _Extent(values, letters, depth)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > MAX_DIGITS:
            raise PlainValuesError(_TOO_LONG)
        return super().construct_yaml_int(node)

    def refuse_date(self, node: yaml.ScalarNode) -> None:
        raise PlainValuesError(f"{node.value} is a date to YAML. Write it in quotes")


def _refuse_twice(keys: list[yaml.Node]) -> None:
    seen: set[str] = set()
    for key in keys:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} stands there twice", key.start_mark)
            seen.add(key.value)


_TAG = "tag:yaml.org,2002:"
_PlainLoader.yaml_constructors = {
    tag: build
    for tag, build in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(_TAG) in ("null", "bool", "float", "str", "seq", "map")
}
_PlainLoader.add_constructor(f"{_TAG}int", _PlainLoader.construct_yaml_int)
_PlainLoader.add_constructor(f"{_TAG}timestamp", _PlainLoader.refuse_date)

"""Plain values from YAML and JSON of untrusted sources: null, booleans, numbers, text, lists, and mappings with named fields.

Size and depth are bounded, and aliases refused, before any value is built. So a hostile text costs little time and memory.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import yaml

from common.errors import UserError
from common.machine import plain_file

MAX_BYTES = 2**17
"""Limit for a text in bytes. The longest file of this project has a tenth of it."""
_PIPE_PREFIXES = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Path prefixes of pipes from other commands."""
MAX_DEPTH = 32
"""Limit for lists and mappings inside each other, and for the parts of a dotted field."""
MAX_VALUES = 20_000
"""Limit for all values together."""
MAX_DIGITS = 100
"""Limit for a number. A field has a far lower one, and its error names the field."""

_TOO_DEEP = f"it nests more than {MAX_DEPTH} deep"
_TOO_MANY = f"it holds more than {MAX_VALUES:,} values"
_TOO_LONG = f"it has a number of more than {MAX_DIGITS} digits"
_LONGEST_FAULT = 500


class PlainValuesError(UserError, ValueError):
    """A text holds no plain values, or exceeds a limit. The message is the end of a sentence."""


class MalformedError(PlainValuesError):
    """A text is not valid YAML or JSON. Others that are refused may be valid, with something that is not accepted here."""


def read_text(path: Path) -> str:
    """Read a text file, or the output of a command: `--spec /dev/stdin`, `--spec <(command)`.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read.
        PlainFileError: it is no plain file, or too large.
    """
    if not str(path).startswith(_PIPE_PREFIXES):
        return plain_file.read(path, MAX_BYTES).decode("utf-8")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    _check_size(len(content))
    return content.decode("utf-8")


def from_yaml(text: str) -> Any:
    """Parse a YAML text. Aliases, anchors and duplicate names in a mapping are refused, and so is every tag of other values."""
    node = compose(text)
    return check_plain(None if node is None else from_node(node))


def compose(text: str) -> yaml.Node | None:
    """Return the nodes of a YAML text, which know how each value is written. None: it holds no value."""
    _check_size(len(text))
    with _yaml_errors():
        return _PlainLoader(text).get_single_node()


def from_node(node: yaml.Node) -> Any:
    """Return the value of a node of `compose`."""
    with _yaml_errors():
        return _PlainLoader("").construct_document(node)


@contextmanager
def _yaml_errors() -> Generator[None]:
    try:
        yield
    except (PlainValuesError, MemoryError):
        raise
    except yaml.YAMLError as error:
        raise MalformedError(f"{error}"[:_LONGEST_FAULT]) from None
    except Exception as error:  # PyYAML raises half a dozen types on a wrong value behind an explicit tag
        raise MalformedError(f"{type(error).__name__}: {error}"[:_LONGEST_FAULT]) from None


def from_json(text: str) -> Any:
    """Parse a JSON text. A duplicate name in an object is refused."""
    _check_size(len(text))
    try:
        value = json.loads(text, object_pairs_hook=_unique_fields)
    except RecursionError:
        raise PlainValuesError(_TOO_DEEP) from None
    except ValueError as error:
        raise MalformedError(f"{error}"[:_LONGEST_FAULT]) from None
    return check_plain(value)


def check_plain(value: Any) -> Any:
    """Return the value unchanged, after checking that it is plain and within the limits."""
    pending, count = [(value, 1)], 0
    while pending:
        item, depth = pending.pop()
        if (count := count + 1) > MAX_VALUES:
            raise PlainValuesError(_TOO_MANY)
        if isinstance(item, dict | list):
            if depth > MAX_DEPTH:
                raise PlainValuesError(_TOO_DEEP)
            children = cast(list[Any], item)
            if isinstance(item, dict):
                children = list(cast(dict[Any, Any], item).values())
                for name in cast(dict[Any, Any], item):
                    _check_name(name)
            pending += [(child, depth + 1) for child in children]
        elif isinstance(item, str):
            _check_letters(item)
        elif isinstance(item, int) and abs(item) >= 10**MAX_DIGITS:
            raise PlainValuesError(_TOO_LONG)
    return value


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


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's fields. JSON's own rule would silently take the last one of a duplicate name."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names: set[str] = set()
        duplicate = next(name for name, _ in pairs if name in names or names.add(name))
        raise PlainValuesError(f"{duplicate} stands there twice")
    return values


class _PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader for plain values. It refuses while it composes nodes, before it builds any value."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._open_depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = cast(yaml.NodeEvent, self.peek_event())
        if event.anchor is not None:
            word = f"the alias *{event.anchor}" if isinstance(event, yaml.AliasEvent) else f"the anchor &{event.anchor}"
            place = f"line {event.start_mark.line + 1} has {word}"[:_LONGEST_FAULT]
            raise PlainValuesError(f"{place}. Aliases and anchors are refused: write each value out")
        self._open_depth += 1
        if self._open_depth > MAX_DEPTH + 1:  # the innermost one is a scalar
            raise PlainValuesError(_TOO_DEEP)
        node = super().compose_node(parent, index)
        self._open_depth -= 1
        if isinstance(node, yaml.MappingNode):
            _refuse_duplicate_keys([key for key, _ in node.value])
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > MAX_DIGITS:
            raise PlainValuesError(_TOO_LONG)
        return super().construct_yaml_int(node)

    def refuse_date(self, node: yaml.ScalarNode) -> None:
        raise PlainValuesError(f"{node.value} is a date to YAML. Write it in quotes")


def _refuse_duplicate_keys(keys: list[yaml.Node]) -> None:
    names: set[str] = set()
    for key in keys:
        if isinstance(key, yaml.ScalarNode):
            if key.value in names:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} stands there twice", key.start_mark)
            names.add(key.value)


_TAG = "tag:yaml.org,2002:"
_PlainLoader.yaml_constructors = {
    tag: build
    for tag, build in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(_TAG) in ("null", "bool", "float", "str", "seq", "map")
}
_PlainLoader.add_constructor(f"{_TAG}int", _PlainLoader.construct_yaml_int)
_PlainLoader.add_constructor(f"{_TAG}timestamp", _PlainLoader.refuse_date)

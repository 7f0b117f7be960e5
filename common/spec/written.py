"""How a command's values and fields were written. YAML's `yes` is True to Python, and an error shows `yes`."""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import yaml

from common.spec import plain_values

Location = str | Sequence[str | int]
"""A dotted field, or the parts of one."""


class _Source(NamedTuple):
    field: str
    """Field that the text is the value of. Empty: it holds fields."""
    text: str
    typed_name: str
    """Words that the user typed for the field. Empty: its dotted name."""


_sources: ContextVar[list[_Source] | None] = ContextVar("_sources", default=None)


@contextmanager
def remembered() -> Generator[None]:
    """Remember in this block how values are written. Outside of one, nothing is."""
    token = _sources.set([])
    try:
        yield
    finally:
        _sources.reset(token)


def remember(text: str, field: str = "", typed_name: str = "") -> None:
    """Remember a YAML or JSON text that was read.

    Args:
        field: dotted field that it is the value of. Empty: it holds a mapping of fields.
        typed_name: what the user typed for this field, if not its dotted name.
    """
    if (sources := _sources.get()) is not None:
        sources.append(_Source(field, text, typed_name))


def name_of(location: Location) -> str:
    """Return the name of a field as the user wrote it: the words of an option, or else its dotted name."""
    dotted = _dotted(location)
    return next((source.typed_name for source in _sources.get() or [] if source.field == dotted and source.typed_name), dotted)


def find(location: Location, value: object) -> str | None:
    """Return how a value was written, last of all. None: it was not read from a text, or is text itself.

    Args:
        location: the field that has the value, or a list that has it.
    """
    if isinstance(value, str):
        return None
    parts = _dotted(location).split(".")
    for source in reversed(_sources.get() or []):
        prefix = source.field.split(".") if source.field else []
        root = _compose(source.text)
        node = _walk(root, parts[len(prefix) :]) if root is not None and parts[: len(prefix)] == prefix else None
        items = node.value if isinstance(node, yaml.SequenceNode) else []
        for candidate in [node, *items] if node is not None else []:
            built = plain_values.from_node(candidate)
            if type(built) is type(value) and (built == value or (built != built and value != value)):  # .nan
                return _text(candidate)
    return None


def _dotted(location: Location) -> str:
    return location if isinstance(location, str) else ".".join(map(str, location))


@functools.lru_cache(maxsize=16)
def _compose(text: str) -> yaml.Node | None:
    try:
        return plain_values.compose(text.replace("\t", " ") if text.lstrip().startswith("{") else text)  # JSON may have tabs
    except plain_values.PlainValuesError:
        return None


def _walk(node: yaml.Node, parts: Sequence[str]) -> yaml.Node | None:
    """Return the node of a field. The name of a field may itself have dots."""
    if not parts:
        return node
    if isinstance(node, yaml.SequenceNode):
        place = int(parts[0]) if parts[0].isdecimal() else len(node.value)
        return _walk(node.value[place], parts[1:]) if place < len(node.value) else None
    children = {key.value: child for key, child in node.value} if isinstance(node, yaml.MappingNode) else {}
    for count in range(len(parts), 0, -1):
        if (child := children.get(".".join(parts[:count]))) is not None:
            return _walk(child, parts[count:])
    return None


def _text(node: yaml.Node) -> str:
    value: Any = node.value
    if isinstance(node, yaml.MappingNode):
        return f"{{{', '.join(f'{key.value}: {_text(child)}' for key, child in value)}}}"
    if isinstance(node, yaml.SequenceNode):
        return f"[{', '.join(map(_text, value))}]"
    return (value or "nothing") if getattr(node, "style", None) is None else repr(value)

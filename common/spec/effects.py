"""Statements on the fields of a spec: what two runs still have in common if they differ in one field alone.

Each field says it where it is declared: `epochs: Annotated[int, Keeps("epoch", "step")]`. All code asks here for the same work.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Aspect = Literal["work", "epoch", "epoch_elsewhere", "step", "examples", "serial_run"]
"""An aspect of a run that two runs can have in common.

work: all that a run computes. Then also the epoch.
epoch: the work of an epoch. Then also the epoch elsewhere.
epoch_elsewhere: the work of an epoch, on machines with other cores.
step: the time of a training step.
examples: the examples of each step, and their pixels.
serial_run: the serial run with which a parallel one is compared.
"""
_IMPLIED: dict[Aspect, tuple[Aspect, ...]] = {"work": ("epoch", "epoch_elsewhere"), "epoch": ("epoch_elsewhere",)}


class Keeps:
    """Statement on a field: runs that differ in it alone have these aspects in common. Without any: the field changes all."""

    def __init__(self, *aspects: Aspect, is_in_data_hash: bool = False) -> None:
        """State what a field keeps.

        Args:
            aspects: what such runs have in common.
            is_in_data_hash: whether the hash of the data's content covers the field.
        """
        self.aspects = frozenset(implied for aspect in aspects for implied in (aspect, *_IMPLIED.get(aspect, ())))
        self.is_in_data_hash = is_in_data_hash


class Effects:
    """The statements on all fields of a record, by dotted name. A group's statement is for its fields without one."""

    def __init__(self, record: type[BaseModel]) -> None:
        self._statements = dict(_statements(record))

    def changes(self, name: str, aspect: Aspect, *, same_data: bool = False) -> bool:
        """Return whether runs with different values of a field differ in an aspect.

        Args:
            name: dotted name of the field. A framework's own switch, `framework_options.NAME`, counts as its group.
            same_data: whether both runs have data of the same content.
        """
        statement = self._statements.get(name) or self._statements[name.partition(".")[0]]
        return aspect not in statement.aspects and not (same_data and statement.is_in_data_hash)

    def differ(self, one: BaseModel, other: BaseModel, aspect: Aspect, excluded: Collection[str] = ()) -> bool:
        """Return whether two records differ in a field that changes an aspect.

        Args:
            excluded: dotted names of fields that may also differ.
        """
        names = (name for name in self._statements if name not in excluded and self.changes(name, aspect))
        return any(operator.attrgetter(name)(one) != operator.attrgetter(name)(other) for name in names)

    def relevant(self, values: Mapping[str, Any], aspect: Aspect, *, same_data: bool = False) -> dict[str, Any]:
        """Return those values, by dotted name, whose fields change an aspect."""
        return {name: value for name, value in values.items() if self.changes(name, aspect, same_data=same_data)}


def _statements(record: type[BaseModel]) -> Iterator[tuple[str, Keeps]]:
    for name, field in record.model_fields.items():
        statement = _statement(field)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            for leaf, leaf_field in field.annotation.model_fields.items():
                yield f"{name}.{leaf}", _present(_statement(leaf_field) or statement, f"{name}.{leaf}")
        else:
            yield name, _present(statement, name)


def _statement(field: FieldInfo) -> Keeps | None:
    return next((part for part in field.metadata if isinstance(part, Keeps)), None)


def _present(statement: Keeps | None, name: str) -> Keeps:
    if statement is None:
        raise TypeError(f"The field {name} of the spec does not say what it keeps. Declare it as Annotated[..., Keeps(...)].")
    return statement

"""The base of all records: they do not change, and take no field that they do not know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Annotated, Any, cast, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""Count of things, at least 0. A stored record may come from anybody, and a larger integer does not fit a float."""
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Duration in seconds, as a clock measured it."""


def _moment(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("it has no time zone")
    return text


Moment = Annotated[str, AfterValidator(_moment)]
"""Time in ISO 8601, with a time zone."""


class Frozen(BaseModel):
    """A frozen record. In JSON a NaN or an infinity becomes null."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Exact(Frozen, ser_json_inf_nan="constants"):
    """A record that is written to disk and read back. NaN and infinities are kept."""


class Finite(Frozen, allow_inf_nan=False):
    """A record that refuses NaN and infinities, and true or false for a number: to YAML, `yes` is true."""

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_boolean(cls, value: Any, info: ValidationInfo) -> Any:
        if _has_boolean(value) and info.field_name is not None and _is_numeric(cls, info.field_name):
            raise ValueError("it takes a number, and not true, false, yes or no")
        return value


def _has_boolean(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_boolean, cast(Mapping[Any, Any], value).values()))
    if isinstance(value, list | tuple):
        return any(map(_has_boolean, cast(Sequence[Any], value)))
    return isinstance(value, bool)


@cache
def _is_numeric(model: type[BaseModel], field: str) -> bool:
    """Whether a field, or each of its items, is declared as a number. Records within it have rules of their own."""
    types, pending = set[Any](), [model.model_fields[field].annotation]
    while pending:
        types.add(annotation := pending.pop())
        pending += get_args(annotation)[: 1 if get_origin(annotation) is Annotated else None]
    has_record = any(isinstance(part, type) and issubclass(part, BaseModel) for part in types)
    return not types.isdisjoint({int, float}) and bool not in types and not has_record

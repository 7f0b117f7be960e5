"""The base of all records: they do not change, and take no field that they do not know."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

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
    """A record that refuses NaN and infinities."""

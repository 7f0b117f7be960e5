"""The base of all records: they do not change, and take no field that they do not know."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A record. In JSON a NaN or an infinity becomes null."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Exact(Frozen, ser_json_inf_nan="constants"):
    """A record that is written to disk and read back: NaN and infinities stay what they are."""


class Finite(Frozen, allow_inf_nan=False):
    """A record that refuses NaN and infinities."""

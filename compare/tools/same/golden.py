"""A stored curve, which later runs are compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from common.artifacts import records
from common.frozen import Exact
from compare.tools.same.curves import Curve, LossesError
from compare.tools.same.judging import Copies

VERSION = 1
_REMEDY = "Take it back from your repository, or remove it and store it again."
_Step = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class GoldenCurve(Exact):
    """The losses of a command, with what its copies differed by."""

    schema_version: Literal[1] = VERSION
    kind: Literal["golden curve"] = "golden curve"
    command: str
    steps: Annotated[list[_Step], Field(min_length=1)]
    losses: list[float]
    epochs: list[_Step] | None = None
    is_counted: bool = False
    rounding: list[float] | None = None
    """Rounding error at each step. None: no copies were made."""
    copies: Annotated[int, Field(ge=0)] = 0
    is_moved: bool = False

    @model_validator(mode="after")
    def _lengths(self) -> GoldenCurve:
        lengths = {len(values) for values in (self.steps, self.losses, self.epochs, self.rounding) if values is not None}
        if len(lengths) != 1 or any(after <= before for before, after in zip(self.steps, self.steps[1:], strict=False)):
            raise ValueError("its lists differ in length, or its steps do not ascend")
        return self

    @property
    def curve(self) -> Curve:
        epochs = None if self.epochs is None else np.array(self.epochs, np.int64)
        return Curve(self.command, np.array(self.steps, np.int64), np.array(self.losses), epochs, self.is_counted)

    def rounding_at(self, places: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Copies | None:
        """Return what its copies differed by at some places. None: it has none."""
        if self.rounding is None:
            return None
        return Copies(np.array(self.rounding)[places], self.copies, self.is_moved)


def read(path: Path) -> GoldenCurve:
    """Read a stored curve."""
    return records.read(path, GoldenCurve, kind="golden curve", remedy=_REMEDY, version=VERSION, raises=LossesError)


def write(path: Path, command: str, curve: Curve, copies: Copies | None) -> None:
    """Store a curve, with what its copies differ by."""
    golden = GoldenCurve(
        command=command,
        steps=curve.steps.tolist(),
        losses=curve.losses.tolist(),
        epochs=None if curve.epochs is None else curve.epochs.tolist(),
        is_counted=curve.is_counted,
        rounding=None if copies is None else copies.rounding.tolist(),
        copies=0 if copies is None else copies.number,
        is_moved=copies is not None and copies.is_moved,
    )
    records.write(path, golden)

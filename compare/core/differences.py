"""How far numbers are apart."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

FLOAT32_TOLERANCE = 1e-5
"""Relative, of the first losses of the same training in float32: rounding, and no more."""


def relative(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> npt.NDArray[np.floating]:
    """Each difference, on the scale of the larger of its two values."""
    apart = absolute(ours, theirs)
    if ours.shape != theirs.shape:
        return apart
    scale = np.maximum(np.maximum(np.abs(ours), np.abs(theirs)), np.finfo(np.float64).tiny)
    return np.divide(apart, scale, out=np.full(apart.shape, np.inf), where=np.isfinite(apart))


def absolute(ours: npt.NDArray[Any], theirs: npt.NDArray[Any] | None) -> npt.NDArray[np.floating]:
    """Absolute differences in the shape of `ours`. Infinite if a value is not finite, or if the other shape differs."""
    if theirs is None or ours.shape != theirs.shape:
        return np.full(ours.shape, np.inf)
    finite = np.isfinite(ours) & np.isfinite(theirs)
    return np.where(finite, np.abs(np.where(finite, ours, 0.0) - np.where(finite, theirs, 0.0)), np.inf)


def relative_difference(a: float, b: float) -> float:
    """|a - b| divided by the larger magnitude; 0 if both are 0."""
    scale = max(abs(a), abs(b))
    if math.isnan(a) or math.isnan(b):
        return math.inf
    return abs(a - b) / scale if scale and math.isfinite(scale) else (0.0 if a == b else math.inf)

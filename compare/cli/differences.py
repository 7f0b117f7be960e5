"""Absolute and relative differences of numbers and arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

FLOAT32_TOLERANCE = 1e-5
"""Largest relative difference between first losses of the same training in float32, which only rounding explains."""


def relative(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> npt.NDArray[np.floating]:
    """Return elementwise differences, relative to the larger of the two values. Infinite as in `absolute`."""
    difference = absolute(ours, theirs)
    if ours.shape != theirs.shape:
        return difference
    scale = np.maximum(np.maximum(np.abs(ours), np.abs(theirs)), np.finfo(np.float64).tiny)
    return np.divide(difference, scale, out=np.full(difference.shape, np.inf), where=np.isfinite(difference))


def absolute(ours: npt.NDArray[Any], theirs: npt.NDArray[Any] | None) -> npt.NDArray[np.floating]:
    """Return absolute differences in the shape of `ours`. Infinite if a value is not finite, or if the shapes differ."""
    if theirs is None or ours.shape != theirs.shape:
        return np.full(ours.shape, np.inf)
    finite = np.isfinite(ours) & np.isfinite(theirs)
    return np.where(finite, np.abs(np.where(finite, ours, 0.0) - np.where(finite, theirs, 0.0)), np.inf)


def relative_difference(a: float, b: float) -> float:
    """Return |a - b| divided by the larger magnitude; 0 if both are 0."""
    scale = max(abs(a), abs(b))
    if math.isnan(a) or math.isnan(b):
        return math.inf
    return abs(a - b) / scale if scale and math.isfinite(scale) else (0.0 if a == b else math.inf)

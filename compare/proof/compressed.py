"""Expected gradients after compression, and their rounding errors.

A compression takes decisions: the nearest step of a byte, the nearest number of half the width, or which values are the
largest. A value is open if rounding may put it on either side of such a decision. It may then become either. Any other value
errs as little as the gradient itself. Messages that are added in half the width add the rounding of these sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from common.spec import Communication, Spec
from common.training import compression
from compare.proof.decisions import share_name
from compare.proof.referee.layers import Array

Flags = npt.NDArray[np.bool_]
_UNIT, _HALF = 2.0**-24, 2.0**-11
"""Relative rounding of float32 and of float16."""
_LEAST_HALF = 2.0**-25
"""Absolute rounding of the smallest float16 numbers."""


@dataclass
class ExpectedExchange:
    """Expected exchange of compressed gradients in one float32 step, by parameter or by bucket."""

    gradients: dict[str, Array] = field(default_factory=dict[str, Array])
    """Sum of the gradients that arrive, by parameter."""
    tolerances: dict[str, Array] = field(default_factory=dict[str, Array])
    """Largest error of each component of `gradients`."""
    is_open: dict[str, Flags] = field(default_factory=dict[str, Flags])
    residuals: list[Array] = field(default_factory=list[Array])
    """Residuals of each bucket for the next step, [replicas, count]. Empty: no error feedback."""
    residual_tolerances: list[Array] = field(default_factory=list[Array])
    residual_is_open: list[Flags] = field(default_factory=list[Flags])
    sums: list[tuple[Array, Array]] = field(default_factory=list[tuple[Array, Array]])
    """(sum over replicas of sent and kept values, its largest error) of each bucket, [count]."""
    is_loose: bool = False
    """Whether gradients that are not compressed at all would pass too."""


@dataclass(frozen=True)
class Buckets:
    """Division of the gradients of a run into buckets."""

    names: Sequence[str]
    """Names of the trainable parameters, in canonical order."""
    shapes: Sequence[tuple[int, ...]]
    spec: Spec

    @property
    def parts(self) -> list[list[int]]:
        """Indices into `names` of each bucket."""
        return compression.buckets([int(np.prod(shape)) for shape in self.shapes], 4, self.spec.communication.bucket_mib)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Shape (replicas, count) of each bucket."""
        return [(self.spec.data_replicas, sum(int(np.prod(self.shapes[place])) for place in part)) for part in self.parts]

    def joined(self, gradients: Mapping[str, Any]) -> list[Array]:
        """Return the values of each bucket as one array."""
        return [np.concatenate([np.ravel(gradients[self.names[place]]) for place in part]) for part in self.parts]

    def cut(self, part: list[int], values: Any) -> dict[str, Any]:
        """Split the values of one bucket by parameter."""
        ends = np.cumsum([int(np.prod(self.shapes[place])) for place in part])[:-1]
        cut = zip(part, np.split(values, ends), strict=True)
        return {self.names[place]: array.reshape(self.shapes[place]) for place, array in cut}


def expected_exchange(
    buckets: Buckets, gradients: Mapping[str, Array], errors: Mapping[str, float], residuals: Sequence[npt.NDArray[Any]]
) -> ExpectedExchange:
    """Compress and add up the shares of all replicas.

    Args:
        gradients: gradients with the shares of all replicas, see `share_name`.
        errors: largest rounding error of a component of each gradient.
        residuals: residuals of each bucket from the step before, [replicas, count]. Empty: no error feedback.
    """
    settings, replicas = buckets.spec.communication, buckets.spec.data_replicas
    expected = ExpectedExchange()
    in_half = settings.compression == "float16" and not buckets.spec.traits.has_server  # a server adds in full width
    expected.is_loose = in_half and replicas > 2 and not settings.error_feedback
    ranks = range(replicas)
    shares = [buckets.joined({name: gradients[share_name(name, rank)] for name in buckets.names}) for rank in ranks]
    share_errors = [
        buckets.joined(
            {
                name: np.full(shape, errors[share_name(name, rank)])
                for name, shape in zip(buckets.names, buckets.shapes, strict=True)
            }
        )
        for rank in ranks
    ]
    for number, part in enumerate(buckets.parts):
        residual = np.asarray(residuals[number], np.float64) if residuals else np.zeros(buckets.sizes[number])
        values = residual + [share[number] for share in shares]
        error = 2 * _UNIT * (np.abs(values) + np.abs(residual)) + [share_error[number] for share_error in share_errors]
        sent = np.stack([compression.transmitted(row, settings) for row in values])
        reaches = [_reach(*arrays, settings) for arrays in zip(values, error, sent, strict=True)]
        reach = np.stack([distance for distance, _ in reaches])
        is_open: Any = np.stack([flags for _, flags in reaches])
        total, allowed = sent.sum(0), reach.sum(0) + replicas * _UNIT * np.abs(sent).sum(0)
        half = (replicas - 1) * (_HALF * (np.abs(sent) + reach).sum(0) + _LEAST_HALF) if in_half else np.zeros_like(total)
        wire = half
        if in_half and replicas == 2:  # one sum, so one rounding, which is known where nothing is open
            total = sent.astype(np.float16).sum(0, np.float16).astype(np.float64)
            wire = np.where(is_open.any(0), 2 * half, 0.0)
        expected.gradients |= buckets.cut(part, total)
        expected.tolerances |= buckets.cut(part, allowed + wire)
        expected.is_open |= buckets.cut(part, is_open.any(0))
        if residuals:
            expected.residuals.append(values - sent)
            expected.residual_tolerances.append(error + reach)
            expected.residual_is_open.append(is_open)
            expected.sums.append((values.sum(0), 2 * error.sum(0) + half))
    return expected


def _reach(values: Array, error: Array, sent: Array, settings: Communication) -> tuple[Array, Flags]:
    """Return (largest difference of each component of a replica's bucket from `sent`; whether the component is open)."""
    if settings.compression == "top_k":
        magnitudes = np.abs(values)
        number = compression.top_k_count(len(values), settings.top_k)
        # A value may be sent if at most k - 1 others are surely larger, and must be if at most k - 1 others can be.
        lower, upper = np.sort(magnitudes - error)[::-1], np.sort(magnitudes + error)[::-1]
        may_be_sent = magnitudes + error >= lower[number - 1]
        must_be = magnitudes - error > (upper[number] if number < len(values) else -np.inf)
        is_open = may_be_sent & ~must_be & (magnitudes + error > 0)
        return np.where(is_open, magnitudes + error, np.where(must_be, error, 0.0)), is_open
    if settings.compression == "int8":
        largest = np.abs(values).max()
        if largest == 0:
            return error, np.zeros(len(values), np.bool_)
        scale_error = (error[np.abs(values) >= largest - 2 * error.max()].max() + 2 * _UNIT * largest) / compression.INT8_STEPS
        scale = largest / compression.INT8_STEPS
        steps = values / scale
        step_error = (error + np.abs(steps) * scale_error) / scale + 2 * _UNIT * np.abs(steps)
        steps_turned = np.maximum(
            np.abs(np.rint(steps + step_error) - np.rint(steps)), np.abs(np.rint(steps - step_error) - np.rint(steps))
        )
        reach = steps_turned * (scale + scale_error) + np.abs(np.rint(steps)) * scale_error
        # An arriving value is at most half a step from its exact value, for any step.
        return np.minimum(reach, error + scale + scale_error), steps_turned > 0
    below, above = (compression.transmitted(values + side * error, settings) for side in (-1.0, 1.0))
    return np.maximum(np.abs(above - sent), np.abs(below - sent)), above != below

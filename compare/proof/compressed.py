"""What arrives of compressed gradients, and how far rounding may move it.

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
from compare.proof.decisions import share_of
from compare.proof.referee.layers import Array

Flags = npt.NDArray[np.bool_]
_UNIT, _HALF = 2.0**-24, 2.0**-11
"""Rounding of float32 and of float16, relative."""
_LEAST_HALF = 2.0**-25
"""Rounding of the smallest float16 numbers."""


@dataclass
class Exchanged:
    """One step's exchange of a float32 run, by parameter or by bucket."""

    gradients: dict[str, Array] = field(default_factory=dict[str, Array])
    """The sum of what arrives."""
    allowed: dict[str, Array] = field(default_factory=dict[str, Array])
    """How far each component may be from that."""
    open: dict[str, Flags] = field(default_factory=dict[str, Flags])
    lost: list[Array] = field(default_factory=list[Array])
    """Of each bucket [replicas, count]: what is kept for the next step. Empty: nothing is kept."""
    lost_allowed: list[Array] = field(default_factory=list[Array])
    lost_open: list[Flags] = field(default_factory=list[Flags])
    sums: list[tuple[Array, Array]] = field(default_factory=list[tuple[Array, Array]])
    """Of each bucket [count]: what all replicas have together, sent or kept, and its error."""
    is_loose: bool = False
    """Whether values that are not compressed at all may pass."""


@dataclass(frozen=True)
class Buckets:
    """How a run cuts its gradients."""

    names: Sequence[str]
    """Of the trainable parameters, in canonical order."""
    shapes: Sequence[tuple[int, ...]]
    what: Spec

    @property
    def parts(self) -> list[list[int]]:
        """The places in `names` of each bucket."""
        return compression.buckets([int(np.prod(shape)) for shape in self.shapes], 4, self.what.communication.bucket_mib)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """(replicas, count) of each bucket."""
        return [(self.what.data_replicas, sum(int(np.prod(self.shapes[place])) for place in part)) for part in self.parts]

    def joined(self, gradients: Mapping[str, Any]) -> list[Array]:
        """The values of each bucket."""
        return [np.concatenate([np.ravel(gradients[self.names[place]]) for place in part]) for part in self.parts]

    def cut(self, part: list[int], values: Any) -> dict[str, Any]:
        """The values of one bucket by parameter."""
        ends = np.cumsum([int(np.prod(self.shapes[place])) for place in part])[:-1]
        cut = zip(part, np.split(values, ends), strict=True)
        return {self.names[place]: own.reshape(self.shapes[place]) for place, own in cut}


def exchange(
    buckets: Buckets, gradients: Mapping[str, Array], errors: Mapping[str, float], lost: Sequence[npt.NDArray[Any]]
) -> Exchanged:
    """Compress and add up the shares of all replicas.

    Args:
        gradients: with the shares of all replicas, see `share_of`.
        errors: how far rounding may move a component of each of them.
        lost: of each bucket [replicas, count]: what each replica kept of the step before. Empty: they keep nothing.
    """
    settings, replicas = buckets.what.communication, buckets.what.data_replicas
    found = Exchanged()
    in_half = settings.compression == "float16" and buckets.what.mode != "parameter_server"  # a server adds in full width
    found.is_loose = in_half and replicas > 2 and not settings.error_feedback
    ranks = range(replicas)
    shares = [buckets.joined({name: gradients[share_of(name, rank)] for name in buckets.names}) for rank in ranks]
    of_shares = [
        buckets.joined(
            {
                name: np.full(shape, errors[share_of(name, rank)])
                for name, shape in zip(buckets.names, buckets.shapes, strict=True)
            }
        )
        for rank in ranks
    ]
    for number, part in enumerate(buckets.parts):
        kept = np.asarray(lost[number], np.float64) if lost else np.zeros(buckets.sizes[number])
        values = kept + [own[number] for own in shares]
        error = 2 * _UNIT * (np.abs(values) + np.abs(kept)) + [own[number] for own in of_shares]
        sent = np.stack([compression.transmitted(each, settings) for each in values])
        reached = [_reach(*each, settings) for each in zip(values, error, sent, strict=True)]
        reach = np.stack([each for each, _ in reached])
        is_open: Any = np.stack([each for _, each in reached])
        total, allowed = sent.sum(0), reach.sum(0) + replicas * _UNIT * np.abs(sent).sum(0)
        half = (replicas - 1) * (_HALF * (np.abs(sent) + reach).sum(0) + _LEAST_HALF) if in_half else np.zeros_like(total)
        wire = half
        if in_half and replicas == 2:  # one sum, so one rounding, which is known where nothing is open
            total = sent.astype(np.float16).sum(0, np.float16).astype(np.float64)
            wire = np.where(is_open.any(0), 2 * half, 0.0)
        found.gradients |= buckets.cut(part, total)
        found.allowed |= buckets.cut(part, allowed + wire)
        found.open |= buckets.cut(part, is_open.any(0))
        if lost:
            found.lost.append(values - sent)
            found.lost_allowed.append(error + reach)
            found.lost_open.append(is_open)
            found.sums.append((values.sum(0), 2 * error.sum(0) + half))
    return found


def _reach(values: Array, error: Array, sent: Array, settings: Communication) -> tuple[Array, Flags]:
    """(how far each component of what arrives of one replica's bucket may be from `sent`; whether it is open)."""
    if settings.compression == "top_k":
        magnitudes = np.abs(values)
        number = compression.top_k_count(len(values), settings.top_k)
        # A value may be sent if at most k - 1 others are surely larger, and must be if at most k - 1 others can be.
        surely, at_most = np.sort(magnitudes - error)[::-1], np.sort(magnitudes + error)[::-1]
        may_be_sent = magnitudes + error >= surely[number - 1]
        must_be = magnitudes - error > (at_most[number] if number < len(values) else -np.inf)
        is_open = may_be_sent & ~must_be & (magnitudes + error > 0)
        return np.where(is_open, magnitudes + error, np.where(must_be, error, 0.0)), is_open
    if settings.compression == "int8":
        largest = np.abs(values).max()
        if largest == 0:
            return error, np.zeros(len(values), np.bool_)
        of_scale = (error[np.abs(values) >= largest - 2 * error.max()].max() + 2 * _UNIT * largest) / compression.INT8_STEPS
        scale = largest / compression.INT8_STEPS
        steps = values / scale
        apart = (error + np.abs(steps) * of_scale) / scale + 2 * _UNIT * np.abs(steps)
        turns = np.maximum(np.abs(np.rint(steps + apart) - np.rint(steps)), np.abs(np.rint(steps - apart) - np.rint(steps)))
        reach = turns * (scale + of_scale) + np.abs(np.rint(steps)) * of_scale
        # What arrives is at most half a step from its value, whatever the step.
        return np.minimum(reach, error + scale + of_scale), turns > 0
    below, above = (compression.transmitted(values + side * error, settings) for side in (-1.0, 1.0))
    return np.maximum(np.abs(above - sent), np.abs(below - sent)), above != below

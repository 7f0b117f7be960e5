"""What arrives of compressed gradients, and how far rounding may move it.

A compression takes decisions: the nearest step of a byte, the nearest number of half the width, or which values are the
largest. Where a value may lie on either side of one, it may become either. Every other one is known almost to the last digit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from common.spec import Communication, Spec
from common.training import compression
from compare.proof.decisions import share_of
from compare.proof.referee.layers import Array

_UNIT, _HALF = 2.0**-24, 2.0**-11
"""Rounding of float32 and of float16, relative."""
_LEAST_HALF = 2.0**-25
"""Rounding of the smallest float16 numbers."""


class Exchanged(NamedTuple):
    """One step's exchange of a float32 run."""

    gradients: dict[str, Array]
    """The sum of what arrives, by parameter."""
    allowed: dict[str, Array]
    """How far each component may be from that."""
    lost: list[Array]
    """Of each bucket [replicas, count]: what is kept for the next step."""
    lost_allowed: list[Array]
    open: dict[str, npt.NDArray[np.bool_]]
    """By parameter, the components that rounding may decide."""
    lost_open: list[npt.NDArray[np.bool_]]


def exchange(
    names: Sequence[str],
    gradients: Mapping[str, Array],
    errors: Mapping[str, float],
    lost: Sequence[npt.NDArray[Any]],
    what: Spec,
) -> Exchanged:
    """Compress and add up the shares of all replicas.

    Args:
        names: of the trainable parameters, in canonical order.
        gradients: with the shares of all replicas, see `share_of`.
        errors: how far rounding may move a component of each of them.
        lost: of each bucket [replicas, count]: what each replica kept of the step before. Empty: they keep nothing.
        what: the run.
    """
    found = Exchanged({}, {}, [], [], {}, [])
    settings, replicas = what.communication, what.data_replicas
    shapes = [gradients[name].shape for name in names]
    sizes = [gradients[name].size for name in names]
    for number, bucket in enumerate(compression.buckets(sizes, 4, settings.bucket_mib)):
        own = [names[place] for place in bucket]
        ends = np.cumsum([sizes[place] for place in bucket])
        kept = lost[number] if lost else np.zeros((replicas, ends[-1]))
        values = kept + [np.concatenate([gradients[share_of(name, rank)].ravel() for name in own]) for rank in range(replicas)]
        error = 2 * _UNIT * (np.abs(values) + np.abs(kept)) + [
            np.repeat([errors[share_of(name, rank)] for name in own], np.diff(ends, prepend=0)) for rank in range(replicas)
        ]
        sent = np.stack([compression.arrived(each, settings) for each in values])
        reached = [_reach(*each, settings) for each in zip(values, error, sent, strict=True)]
        reach = np.stack([each for each, _ in reached])
        is_open: Any = np.stack([each for _, each in reached])
        total, allowed = sent.sum(0), reach.sum(0) + replicas * _UNIT * np.abs(sent).sum(0)
        if settings.compression == "float16":  # they may be added in half the width on their way, in any order
            allowed += (replicas - 1) * (_HALF * (np.abs(sent) + reach).sum(0) + _LEAST_HALF)
        for place, stop in zip(bucket, ends, strict=True):
            mine = slice(stop - sizes[place], stop)
            found.gradients[names[place]] = total[mine].reshape(shapes[place])
            found.allowed[names[place]] = allowed[mine].reshape(shapes[place])
            found.open[names[place]] = is_open[:, mine].any(0).reshape(shapes[place])
        if settings.error_feedback:
            found.lost.append(values - sent)
            found.lost_allowed.append(error + reach)
            found.lost_open.append(is_open)
    return found


def _reach(values: Array, error: Array, sent: Array, settings: Communication) -> tuple[Array, npt.NDArray[np.bool_]]:
    """(how far each component of what arrives of one replica's bucket may be from `sent`; whether rounding decides it)."""
    if settings.compression == "top_k":
        magnitudes = np.abs(values)
        number = compression.num_kept(len(values), settings.top_k)
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
        return turns * (scale + of_scale) + np.abs(np.rint(steps)) * of_scale, turns > 0
    below, above = (compression.arrived(values + side * error, settings) for side in (-1.0, 1.0))
    return np.maximum(np.abs(above - sent), np.abs(below - sent)), above != below

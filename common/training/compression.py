"""Compressed gradient exchange: the rules that both twins follow, in plain NumPy, and the bytes that are sent.

Gradients travel in buckets. A bucket is a flat array of whole parameters in canonical order and layout. Uncompressed, each may
have the framework's layout. The `values` of a bucket are the replica's gradients, plus, with error feedback, the residuals of
earlier steps. The other replicas receive:

- `float16`: each value rounded to float32, then to float16, at most 65504 in size. The replicas' values are summed in float16
  too, by the all-reduce. No replica feeds that rounding error back. A parameter server sums in full precision.
- `int8`: each value as whole steps of max|values| / 127, rounded half to even (Seide et al. 2014 did it with one bit).
- `top_k`: the k values of the largest magnitude, and zeros (Aji & Heafield 2017). Among equal values the first ones win.

The rest is lost, or with error feedback kept as a residual for the replica's next step (Seide et al. 2014, Stich et al. 2018).
Tests compare each twin's `compression` with this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from common.spec import Communication

FLOAT16_MAX = 65504.0
INT8_STEPS = 127
WORD_BYTES = 4
"""Bytes of a word. Messages are padded to whole words, because some collectives send no smaller numbers."""

SUMMABLE = ("none", "float16")
"""Compressions whose messages an all-reduce can sum."""

Array = npt.NDArray[np.floating]


def buckets(sizes: Sequence[int], itemsize: int, bucket_mib: float) -> list[list[int]]:
    """Assign parameters to buckets. Parameters stay whole and in order, and a full bucket takes no more.

    Args:
        sizes: number of values of each trainable parameter, in canonical order.
        itemsize: bytes of a value.
        bucket_mib: size in MiB where a bucket is full. Its last parameter may exceed it.

    Returns:
        The positions in `sizes`, bucket by bucket.
    """
    positions_by_bucket: list[list[int]] = []
    free_bytes = 0.0
    for position, size in enumerate(sizes):
        if free_bytes <= 0:
            positions_by_bucket.append([])
            free_bytes = bucket_mib * 2**20
        positions_by_bucket[-1].append(position)
        free_bytes -= size * itemsize
    return positions_by_bucket


def top_k_count(count: int, fraction: float) -> int:
    """Return the number of values that `top_k` sends of a bucket of `count`: that fraction, but at least one."""
    return max(round(fraction * count), 1)


def payload_bytes(count: int, itemsize: int, settings: Communication) -> int:
    """Return the bytes of one replica's message for a bucket of `count` values of `itemsize` bytes."""
    if settings.compression == "float16":
        return 2 * count
    if settings.compression == "int8":
        return itemsize + -(-count // WORD_BYTES) * WORD_BYTES  # the scale, and one byte a value
    if settings.compression == "top_k":
        return top_k_count(count, settings.top_k) * (itemsize + WORD_BYTES)  # each value with its index
    return itemsize * count


def transmitted(values: Array, settings: Communication) -> Array:
    """Return one replica's bucket after compression and decompression.

    Args:
        values: float32 or float64 [count], finite. The result has the same dtype.
    """
    if settings.compression == "float16":
        return _float16(values).astype(values.dtype)
    if settings.compression == "int8":
        scale = np.abs(values).max() / values.dtype.type(INT8_STEPS)
        if scale == 0:
            return np.zeros_like(values)
        return np.rint(values / scale).astype(np.int8).astype(values.dtype) * scale
    if settings.compression == "top_k":
        indices = np.argsort(-np.abs(values), kind="stable")[: top_k_count(len(values), settings.top_k)]
        sparse = np.zeros_like(values)
        sparse[indices] = values[indices]
        return sparse
    return values


def decode(message: Array, count: int, dtype: np.dtype[Any], settings: Communication) -> Array:
    """Decompress the bytes that a twin's `compression.encode` makes of one bucket.

    Args:
        message: one-dimensional, in the dtype that the twin uses for bytes.
        count: values of the bucket.
        dtype: dtype of the values, float32 or float64.

    Returns:
        [count]; a value that was not sent is 0.
    """
    raw = np.ascontiguousarray(message).view(np.uint8)
    if settings.compression == "float16":
        return raw.view(np.float16).astype(dtype)
    if settings.compression == "int8":
        return raw[dtype.itemsize :].view(np.int8)[:count].astype(dtype) * raw[: dtype.itemsize].view(dtype)[0]
    if settings.compression == "top_k":
        cut = top_k_count(count, settings.top_k) * dtype.itemsize
        sparse = np.zeros(count, dtype)
        sparse[raw[cut:].view(np.int32)] = raw[:cut].view(dtype)
        return sparse
    return raw.view(dtype)


def exchange(gradients: Sequence[Array], residuals: Sequence[Array], settings: Communication) -> tuple[Array, list[Array]]:
    """Exchange one bucket in one step.

    Args:
        gradients: [count] of each replica.
        residuals: [count] of each replica, not sent before. Zeros at the first step, and without error feedback.

    Returns:
        (total, residuals): the sum that every replica uses, and the residuals that each keeps for the next step.
    """
    values = [gradient + residual for gradient, residual in zip(gradients, residuals, strict=True)]
    received = [transmitted(bucket, settings) for bucket in values]
    if settings.compression == "float16":
        total = sum((_float16(bucket) for bucket in values[1:]), start=_float16(values[0])).astype(values[0].dtype)
    else:
        total = sum(received[1:], start=received[0])
    if not settings.error_feedback:
        return total, list(residuals)
    return total, [bucket - arrived for bucket, arrived in zip(values, received, strict=True)]


def _float16(values: Array) -> npt.NDArray[np.float16]:
    return np.clip(values, -FLOAT16_MAX, FLOAT16_MAX).astype(np.float32).astype(np.float16)

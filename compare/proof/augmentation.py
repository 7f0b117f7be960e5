"""Augmentation of images in plain NumPy: flips, shifts, affine maps and brightness. It shares nothing with the twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.uint8]


def augment(
    images: Images,
    flips: npt.NDArray[np.bool_] | None,
    shifts: npt.NDArray[np.int64] | None,
    affines: npt.NDArray[np.float64] | None,
    brightness: npt.NDArray[np.float64] | None,
) -> Images:
    """Augment images, uint8 [N, H, W, 3], as a step should get them. `common.data.batches.EpochDraws` describes the draws."""
    if flips is not None:
        images = np.where(flips[:, None, None, None], images[:, :, ::-1], images)
    if shifts is not None:
        images = np.stack([_shift(image, *shift) for image, shift in zip(images, shifts.tolist(), strict=True)])
    if affines is None and brightness is None:
        return images
    values: Any = images.astype(np.float64)
    if affines is not None:
        values = np.stack([_apply_affine(image, matrix) for image, matrix in zip(images, affines, strict=True)])
    if brightness is not None:
        values = values * brightness[:, None, None, None]
    return np.clip(np.round(values), 0, 255).astype(np.uint8)


def _shift(image: Images, rows: int, columns: int) -> Images:
    """Shift an image: the pixel (i, j) comes from (i + rows, j + columns). Outside is black."""
    limit = max(image.shape[:2])
    height, width = image.shape[:2]
    padded = np.pad(image, ((limit, limit), (limit, limit), (0, 0)))
    rows, columns = (max(-limit, min(limit, offset)) for offset in (rows, columns))
    return padded[limit + rows : limit + rows + height, limit + columns : limit + columns + width]


def _apply_affine(image: Images, matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Map an image: the pixel (i, j) is sampled bilinearly at matrix (i, j, 1). Outside is black."""
    height, width = image.shape[:2]
    i, j = np.meshgrid(np.arange(height, dtype=np.float64), np.arange(width, dtype=np.float64), indexing="ij")
    rows, columns = (a * i + b * j + c for a, b, c in matrix)
    padded = np.pad(image.astype(np.float64), ((1, 1), (1, 1), (0, 0)))
    top, left = np.floor(rows), np.floor(columns)
    down, right = (rows - top)[..., None], (columns - left)[..., None]

    def pixel(row_offset: int, column_offset: int) -> npt.NDArray[np.float64]:
        indices = (
            np.clip(start + offset + 1, 0, size + 1).astype(int)
            for start, offset, size in ((top, row_offset, height), (left, column_offset, width))
        )
        return padded[tuple(indices)]

    upper = (1 - right) * pixel(0, 0) + right * pixel(0, 1)
    lower = (1 - right) * pixel(1, 0) + right * pixel(1, 1)
    return (1 - down) * upper + down * lower

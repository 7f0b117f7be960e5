"""The affine maps of augmentation: one matrix for each image. Each framework applies them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def matrices(
    image_size: int,
    *,
    rotation_degrees: Floats,
    shear_degrees: Floats,
    zoom: Floats,
    flips: npt.NDArray[np.bool_],
    shifts: npt.NDArray[np.int64],
) -> Floats:
    """Map each pixel of an augmented image to its source.

    An image is mirrored, sheared along its rows, scaled and rotated counter-clockwise, all about its middle. Then the shift is
    added to the source. With only flips and shifts, the maps move whole pixels, as `EpochDraws.flips` and `.shifts` do.

    Args:
        image_size: height and width in pixels.
        rotation_degrees: [N].
        shear_degrees: [N]. Each row moves to the right by the tangent, relative to the row above it.
        zoom: [N], factors above 0. More than 1 enlarges.
        flips: [N], mirror left to right.
        shifts: [N, 2], (rows, columns).

    Returns:
        float64 [N, 2, 3]: source (row, column) = matrix @ (row, column, 1) of the output.
    """
    angle = np.deg2rad(rotation_degrees)
    cosine, sine, tangent = np.cos(angle), np.sin(angle), np.tan(np.deg2rad(shear_degrees))
    # The inverse of rotation after zoom after shear, written out. Rows count downwards.
    linear = np.empty((len(angle), 2, 2))
    linear[:, 0, 0], linear[:, 0, 1] = cosine, sine
    linear[:, 1, 0], linear[:, 1, 1] = -sine - tangent * cosine, cosine - tangent * sine
    linear /= zoom[:, None, None]
    linear[:, 1] *= np.where(flips, -1.0, 1.0)[:, None]
    middle = (image_size - 1) / 2
    offset = (linear @ (shifts - middle)[:, :, None]) + middle
    return np.concatenate([linear, offset], axis=2)

"""The one rule by which images are resized: Pillow's bilinear filter, antialiased where it shrinks, in whole numbers.

Pillow rounds each weight to a multiple of 2**-22 and sums in integers, first along the rows, then along the columns.
So two matrices say all of it, and any framework that multiplies them exactly gets the same bytes.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

PRECISION_BITS = 22
HALF = float(2 ** (PRECISION_BITS - 1))
UNIT = float(2**PRECISION_BITS)


@cache
def matrix(from_px: int, to_px: int) -> npt.NDArray[np.float64]:
    """The weights of every source pixel in every output pixel, in units of 2**-22.

    One pass is floor((matrix @ pixels + HALF) / UNIT), clipped to 0..255: in float64 all of it is exact, the sums being
    whole numbers below 2**31.

    Args:
        from_px: pixels of the source along this axis, at least 1.
        to_px: pixels of the output.

    Returns:
        float64 [to_px, from_px] of whole numbers; read-only.
    """
    scale = from_px / to_px
    support = max(scale, 1.0)
    weights = np.zeros((to_px, from_px))
    for index in range(to_px):
        center = (index + 0.5) * scale
        first, stop = max(int(center - support + 0.5), 0), min(int(center + support + 0.5), from_px)
        taps = np.maximum(1.0 - np.abs((np.arange(first, stop) - center + 0.5) * (1.0 / support)), 0.0)
        total = float(np.add.accumulate(taps)[-1])  # one after another, as Pillow does
        weights[index, first:stop] = np.floor(taps * (1.0 / total) * UNIT + 0.5)
    weights.flags.writeable = False
    return weights

"""The 1,797 handwritten digits of scikit-learn: the default, which needs no download.

From E. Alpaydin, C. Kaynak (1998), Optical Recognition of Handwritten Digits, UCI Machine Learning Repository.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from common.data.dataset import Arrays

_SIZE_PX = 32


@cache
def read() -> Arrays:
    """All digits as RGB, without splits.

    Each of the 8x8 values 0..16 becomes a square of 4x4 grey pixels, 0..255. Integer arithmetic is the same everywhere.
    """
    from sklearn.datasets import load_digits  # pyright: ignore[reportUnknownVariableType]  # here: it takes a second to import

    bunch = cast(Any, load_digits())
    values: NDArray[np.int64] = np.asarray(bunch.images).astype(np.int64)
    grey = ((values * 255 + 8) // 16).astype(np.uint8).repeat(_SIZE_PX // 8, axis=1).repeat(_SIZE_PX // 8, axis=2)
    labels: NDArray[np.int64] = np.asarray(bunch.target, dtype=np.int64)
    images = np.repeat(grey[..., np.newaxis], 3, axis=3)
    images.flags.writeable = labels.flags.writeable = False  # all callers share them
    return Arrays(
        images=images,
        labels=labels,
        class_names=tuple(str(digit) for digit in range(10)),
        split_sizes={"all": len(labels)},
    )

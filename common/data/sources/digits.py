"""The 1,797 handwritten digits of scikit-learn: the default, which needs no download.

From E. Alpaydin, C. Kaynak (1998), Optical Recognition of Handwritten Digits, UCI Machine Learning Repository.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from common.data.sources.file_source import SingleFile
from common.data.sources.pixel_arrays import PixelArrays

NAME = "digits"
_SIZE_PX = 32


class Digits(SingleFile):
    """The table in scikit-learn's package: one row for each digit, its 64 values and its class."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("sklearn")
        assert spec is not None and spec.origin is not None, "scikit-learn is installed with this project"
        # The file itself is read: importing scikit-learn takes a second in every process.
        super().__init__(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz")

    def arrays(self) -> PixelArrays:
        """Read all digits as RGB, without splits.

        Each of the 8x8 values 0..16 becomes a square of 4x4 grey pixels, 0..255. Integer arithmetic is the same everywhere.
        """
        table = np.loadtxt(self.path, np.int64, delimiter=",")
        grey = ((table[:, :-1].reshape(-1, 8, 8) * 255 + 8) // 16).astype(np.uint8)
        grey = grey.repeat(_SIZE_PX // 8, axis=1).repeat(_SIZE_PX // 8, axis=2)
        return PixelArrays(
            images=np.repeat(grey[..., np.newaxis], 3, axis=3),
            labels=table[:, -1],
            class_names=tuple(str(digit) for digit in range(10)),
            split_sizes={"all": len(table)},
        )

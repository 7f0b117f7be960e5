"""The 1,797 handwritten digits of scikit-learn: the default, which needs no download.

From E. Alpaydin, C. Kaynak (1998), Optical Recognition of Handwritten Digits, UCI Machine Learning Repository.
"""

from __future__ import annotations

import importlib.util
import io
from functools import cache
from pathlib import Path

import numpy as np

from common.data.sources import pixel_arrays
from common.data.sources.file_source import SingleFile
from common.data.sources.manifest import Manifest
from common.data.sources.pixel_arrays import PixelArrays

NAME = "digits"
_SIZE_PX = 32


class Digits(SingleFile):
    """The table in scikit-learn's package. It is read in each process, and so needs no cache folder."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("sklearn")
        assert spec is not None and spec.origin is not None, "scikit-learn is installed with this project"
        super().__init__(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz")

    def arrays(self) -> PixelArrays:
        """Read all digits as RGB, without splits.

        Each of the 8x8 values 0..16 becomes a square of 4x4 grey pixels, 0..255. Integer arithmetic is the same everywhere.
        """
        return _read(self.path)

    def manifest(self) -> Manifest:
        """List the digits as the image files that the cache would hold."""
        return _pack(self.path)


@cache
def _read(path: Path) -> PixelArrays:
    # One row for each digit: its 64 values and its class. Importing scikit-learn would take a second in every process.
    table = np.loadtxt(path, np.int64, delimiter=",")
    grey = ((table[:, :-1].reshape(-1, 8, 8) * 255 + 8) // 16).astype(np.uint8)
    grey = grey.repeat(_SIZE_PX // 8, axis=1).repeat(_SIZE_PX // 8, axis=2)
    images = np.repeat(grey[..., np.newaxis], 3, axis=3)
    images.flags.writeable = False  # all callers share them
    names = tuple(str(digit) for digit in range(10))
    return PixelArrays(images=images, labels=table[:, -1], class_names=names, split_sizes={"all": len(table)})


@cache
def _pack(path: Path) -> Manifest:
    return pixel_arrays.pack(_read(path), io.BytesIO())

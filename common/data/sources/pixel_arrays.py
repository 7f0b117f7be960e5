"""Sources that hold arrays of pixels. They become image files in class folders, as all other sources."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from common.data.decoding import decode
from common.data.sources.manifest import Manifest


@dataclass(frozen=True, eq=False, kw_only=True)
class PixelArrays:
    """The content of a source of arrays."""

    images: NDArray[np.uint8]
    """Pixels [N, H, W, 3], at the source's own size."""
    labels: NDArray[np.int64]
    """Class ids, [N]."""
    class_names: tuple[str, ...]
    """Name of each class, by class id."""
    split_sizes: Mapping[str, int]
    """Numbers of examples as in LabeledExamples."""


def pack(arrays: PixelArrays, packed: BinaryIO) -> Manifest:
    """Write each image as a PPM file, which holds the pixels as they are. The files keep the order of the arrays.

    Args:
        packed: receives the files, one after another.
    """
    number, height_px, width_px, _ = arrays.images.shape
    header, start = f"P6 {width_px} {height_px} 255\n".encode(), packed.tell()
    file_sha256, pixel_sha256 = np.empty((2, number, 32), np.uint8)
    for row, image in enumerate(map(np.ascontiguousarray, arrays.images)):
        content = header + image.tobytes()
        packed.write(content)
        file_sha256[row] = np.frombuffer(hashlib.sha256(content).digest(), np.uint8)
        pixel_sha256[row] = np.frombuffer(decode.sha256(image), np.uint8)
    splits = tuple(split for split, size in arrays.split_sizes.items() for _ in range(size))
    classes = tuple(arrays.class_names[label] for label in arrays.labels.tolist())
    folders = [
        "/".join([split] * (split != "all") + [name.replace("/", "_")]) for split, name in zip(splits, classes, strict=True)
    ]
    file_bytes = np.full(number, len(header) + height_px * width_px * 3)
    return Manifest(
        paths=tuple(f"{folder}/{row:06}.ppm" for row, folder in enumerate(folders)),
        splits=splits,
        classes=classes,
        problems=("",) * number,
        details=("",) * number,
        formats=("PPM",) * number,
        modes=("RGB",) * number,
        file_bytes=file_bytes,
        widths_px=np.full(number, width_px),
        heights_px=np.full(number, height_px),
        plain=np.zeros(number, np.bool_),
        file_sha256=file_sha256,
        pixel_sha256=pixel_sha256,
        offsets=start + np.arange(number) * file_bytes,
        empty_folders=(),
        hidden=(),
        class_names=arrays.class_names,
    )

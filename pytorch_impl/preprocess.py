"""Sums over a split's pixels, with the framework's own loading, decoding and adding."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch
from torch.utils.data import DataLoader, Dataset

from common.data.preprocessing.scan import parts, read_files
from common.data.preprocessing.sums import Sums, from_array
from common.data.sources import Encoded
from common.machine import machine, worker_processes


@contextmanager
def scanning(encoded: Encoded, image_size: int, workers: int) -> Generator[Callable[[], Sums]]:
    """Start workers, warm them up, and yield the function that scans the whole split.

    Args:
        encoded: the files of the split.
        image_size: height and width of their canonical pixels.
        workers: loader processes (PyTorch) or parallel map calls (TensorFlow).
    """
    file_ranges = parts(encoded)
    # Twin: torch's workers are processes that live from the warm-up to the scan. This list holds their tasks.
    order = [position % len(file_ranges) for position in range(workers)]
    worker_processes.check_worker_processes()  # Twin: torch's workers are processes.
    loader = DataLoader(
        _FileRangeSums(file_ranges, image_size),
        sampler=order,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context="spawn",
        worker_init_fn=_begin_worker,
        persistent_workers=True,
    )

    def scan() -> Sums:
        return sum((from_array(totals.numpy(), pixels) for pixels, totals in loader), Sums())

    scan()
    order[:] = range(len(file_ranges))
    yield scan


def channel_sums(image: torch.Tensor) -> torch.Tensor:
    """Exact sums over an image's pixels: of the bytes and of their squares.

    Args:
        image: uint8 [H, W, 3], H at most 33,025, so a column's sum of squares fits 32 bits.

    Returns:
        int64 [2, 3].
    """
    height, width, channels = image.shape
    columns = image.reshape(height, width * channels).to(torch.int32)
    sums = torch.stack((columns.sum(0, dtype=torch.int32), (columns * columns).sum(0, dtype=torch.int32)))
    return sums.reshape(2, width, channels).sum(1, dtype=torch.int64)


class _FileRangeSums(Dataset[tuple[int, torch.Tensor]]):
    def __init__(self, file_ranges: list[Encoded], image_size: int) -> None:
        self._file_ranges = file_ranges
        self._image_size = image_size

    def __getitem__(self, position: int) -> tuple[int, torch.Tensor]:
        # Twin: the decoder is torchvision's, which takes as long to import as torch itself. The warm-up imports it.
        from pytorch_impl import decode

        file_range = self._file_ranges[position]
        totals = torch.zeros((2, 3), dtype=torch.int64)
        for content, plain in zip(read_files(file_range), file_range.decodes_identically.tolist(), strict=True):
            totals += channel_sums(decode.image(content, plain, self._image_size))
        return len(file_range) * self._image_size**2, totals


def _begin_worker(worker: int) -> None:
    machine.keep_freed_memory()

"""The sums over a split's pixels by the framework's own loading, decoding and adding."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch
from torch.utils.data import DataLoader, Dataset

from common.data.preprocessing.scan import contents, parts
from common.data.preprocessing.sums import Sums, from_array
from common.data.sources import Encoded
from common.machine import machine


@contextmanager
def scanning(encoded: Encoded, image_size: int, workers: int) -> Generator[Callable[[], Sums]]:
    """Start this many workers and warm them up; gives the function that scans the whole split.

    Args:
        encoded: the files of the split.
        image_size: height and width of their canonical pixels.
        workers: loader processes (PyTorch) or parallel map calls (TensorFlow).
    """
    stretches = parts(encoded)
    # Twin: torch's workers are processes, which last from the warm-up to the scan; this list tells them what to do.
    order = [position % len(stretches) for position in range(workers)]
    loader = DataLoader(
        _Stretches(stretches, image_size),
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
    order[:] = range(len(stretches))
    yield scan


def channel_sums(image: torch.Tensor) -> torch.Tensor:
    """Exact sums over an image's pixels: of its bytes, and of their squares.

    Args:
        image: uint8 [H, W, 3], H up to 33,025: so many squares of a column fit 32 bits.

    Returns:
        int64 [2, 3].
    """
    height, width, channels = image.shape
    columns = image.reshape(height, width * channels).to(torch.int32)
    sums = torch.stack((columns.sum(0, dtype=torch.int32), (columns * columns).sum(0, dtype=torch.int32)))
    return sums.reshape(2, width, channels).sum(1, dtype=torch.int64)


class _Stretches(Dataset[tuple[int, torch.Tensor]]):
    def __init__(self, stretches: list[Encoded], image_size: int) -> None:
        self._stretches = stretches
        self._image_size = image_size

    def __getitem__(self, position: int) -> tuple[int, torch.Tensor]:
        # Twin: the decoder is torchvision's, which takes as long to import as torch itself; the warm-up does it.
        from pytorch_impl import decode

        stretch = self._stretches[position]
        totals = torch.zeros((2, 3), dtype=torch.int64)
        for content, plain in zip(contents(stretch), stretch.plain.tolist(), strict=True):
            totals += channel_sums(decode.image(content, plain, self._image_size))
        return len(stretch) * self._image_size**2, totals


def _begin_worker(worker: int) -> None:
    machine.keep_freed_memory()

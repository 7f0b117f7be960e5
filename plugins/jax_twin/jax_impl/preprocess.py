"""Sums over a split's pixels. Twin: JAX has neither a decoder nor input workers, so the suite's own threads scan."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from common.data.preprocessing.scan import scan
from common.data.preprocessing.sums import Sums
from common.data.sources import Encoded


@contextmanager
def scanning(encoded: Encoded, image_size: int, workers: int) -> Generator[Callable[[], Sums]]:
    """Warm up, and yield the function that scans the whole split."""
    scan(encoded.take(range(min(workers, len(encoded)))), image_size, workers)
    yield lambda: scan(encoded, image_size, workers)

"""A reader for the pickles of the official CIFAR-10 batches, and nothing else. Nothing that a file names is called."""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from common.data.dataset import DataRefused

_MAX_MEMO = 1_000_000


class _Dtype:
    """Stands in for numpy.dtype and keeps its arguments."""

    def __init__(self, *arguments: object) -> None:
        self.name = arguments[0] if arguments else None

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and alignment: items are single bytes."""


class _Array:
    """Stands in for numpy.ndarray and keeps shape and bytes. NumPy itself never sees the state of a file."""

    def __init__(self) -> None:
        self.value: NDArray[np.uint8] | None = None

    def __setstate__(self, state: object) -> None:
        _, shape, dtype, fortran_order, content = cast(tuple[Any, ...], state)
        if not (isinstance(dtype, _Dtype) and dtype.name in (b"u1", b"|u1", "u1") and isinstance(content, bytes)):
            raise pickle.UnpicklingError("an array that does not hold bytes")
        self.value = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran_order else "C")


def _reconstruct(*_: object) -> _Array:
    return _Array()


class _Unpickler(pickle.Unpickler):
    _REPLACEMENTS = {
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
    }

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return self._REPLACEMENTS[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}") from None


def read_batch(content: bytes, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read one batch of the python archive.

    Args:
        content: a pickle of {b"data": uint8 [N, 3072], b"labels": list of N ints, ...}, written by Python 2.
        name: name of the file, for refusals.

    Returns:
        (data, labels): uint8 [N, 3072], int64 [N].
    """
    try:
        for opcode, argument, _ in pickletools.genops(content):
            # the unpickler allocates as many memo entries as a file claims to have
            if "PUT" in opcode.name and cast(int, argument) > _MAX_MEMO:
                raise pickle.UnpicklingError("its memo is too large")
        batch = cast(dict[bytes, Any], _Unpickler(io.BytesIO(content), encoding="bytes").load())
        data = cast(_Array, batch[b"data"]).value
        labels = batch[b"labels"]
        # plain integers only: NumPy would expand lists that hold each other without limit
        if not isinstance(labels, list) or not all(type(label) is int for label in cast(list[object], labels)):
            raise pickle.UnpicklingError("labels that are no list of integers")
        if data is None or data.ndim != 2 or len(data) != len(cast(list[int], labels)):
            raise pickle.UnpicklingError("data and labels that do not fit together")
        return data, np.array(labels, dtype=np.int64)
    except Exception as error:  # a hostile pickle can raise any type
        raise DataRefused(
            f"{name} is no CIFAR-10 batch. Received: a pickle that cannot be trusted ({error}). Fetch the official archive."
        ) from None

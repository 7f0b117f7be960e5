"""Decisions of ReLUs and max-poolings in a training step. Rounding may change them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from common.training import tracing


# Twin: torch calls its functions one by one, so they can be watched. A graph computes later what Keras's layers compute.
class DecisionRecorder(TorchFunctionMode):
    """A context that appends the decisions of this thread's ReLUs and max-poolings to `arrays`.

    They are those of `BaseTrainer.record_step`, by micro-batch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arrays: list[npt.NDArray[Any]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.relu, functional.relu):
            self.arrays.append(_channels_last(args[0] > 0))
        elif func is functional.max_pool2d:
            self.arrays.append(_winners(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))

    def by_layer(self, micro_batches: int) -> list[npt.NDArray[Any]]:
        """Return the decisions of all micro-batches, by layer."""
        tracing.refuse_uneven_decisions(len(self.arrays), micro_batches)
        layers = len(self.arrays) // micro_batches
        return [np.concatenate(self.arrays[layer::layers]) for layer in range(layers)]


def _winners(
    x: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, *_: Any, **__: Any
) -> npt.NDArray[np.int16]:
    size, step, (rows, columns) = (
        (pair, pair) if isinstance(pair, int) else pair for pair in (kernel_size, stride or kernel_size, padding)
    )
    return tracing.winners(_channels_last(x.detach().float()), size, step, ((rows, rows), (columns, columns)))


def _channels_last(x: torch.Tensor) -> npt.NDArray[Any]:
    return (x.permute(0, 2, 3, 1) if x.dim() == 4 else x).contiguous().cpu().numpy()

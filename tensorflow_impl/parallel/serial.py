"""Mode serial: one replica on one device."""

from __future__ import annotations

from typing import Any

from common.training.trainer import Batch, StepBreakdown, Update
from tensorflow_impl import train
from tensorflow_impl.parallel.trainer import Trainer


class Serial(Trainer):
    """One replica on one device."""

    def _build(self) -> None:
        self._model = self._new_model(None)
        self._optimizer = self._new_optimizer(self._model)

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        return train.train_step(self._objective, self._model, self._optimizer, images, labels, masks, update)

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> None:
        """Return None: nothing is exchanged."""

    def step_breakdown(self, batch: Batch, num_examples: int) -> StepBreakdown | str:
        """Break a step on this batch into its computations, or say why it has no such breakdown."""
        return self._break_down(self._model, batch, num_examples)

"""Mode model_averaging: one process per replica, each with its own model. The weights are averaged periodically."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from common.training.averaging_trainer import AveragingTrainer
from common.training.trainer import Update
from pytorch_impl import evaluate, train
from pytorch_impl.parallel import group, vectors
from pytorch_impl.parallel.trainer import Trainer


class ModelAveraging(AveragingTrainer, Trainer):
    """One rank of several, which trains on its own shards only. Its environment holds its number, see `rendezvous`."""

    def _build(self) -> None:
        self._join_ranks(group.all_ranks())
        self._local_model = self._new_model(None)
        self._model = self._new_model(None)
        self._optimizer = self._new_optimizer(self._local_model)

    @property
    def _trained_models(self) -> list[torch.nn.Module]:
        return [self._local_model]

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        num_local = len(labels)
        local_update = update._replace(num_examples=num_local)
        loss, num_correct = train.train_step(
            self._objective, self._local_model, self._optimizer, images, labels, masks, local_update
        )
        return loss * (num_local / update.num_examples), num_correct

    def _local_values(self) -> torch.Tensor:
        return vectors.flatten(_values(self._local_model))

    def _set_local(self, values: torch.Tensor) -> None:
        vectors.assign(_values(self._local_model), values)

    def _set_averaged(self, values: torch.Tensor) -> None:
        vectors.assign(_values(self._model), values)

    def _score_local(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        with self._compiled(None):
            return evaluate.score(self._local_model, self._tensor(images), self._tensor(labels), self._objective)


def _values(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the tensors that are averaged: parameters and BatchNorm's statistics, without its count of batches."""
    return [*model.parameters(), *(buffer for buffer in model.buffers() if buffer.is_floating_point())]

"""Mode model_averaging: one process per replica, each with its own model. The weights are averaged periodically."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import distributed

from common.data.sources import Split
from common.models.weights import Weights
from common.training import ensemble
from common.training.loop import evaluate as score_split
from common.training.trainer import Batch, Pieces, Update
from pytorch_impl import evaluate, weights
from pytorch_impl.parallel import vectors
from pytorch_impl.parallel.multi_process import MultiProcess


class ModelAveraging(MultiProcess):
    """One rank of several, which trains on its own shards only. Its environment holds its number, see `rendezvous`.

    Scores are of the averaged model. It is a separate copy, so scoring does not change the training.
    """

    def _build(self) -> None:
        self.shard = distributed.get_rank(), distributed.get_world_size()
        self.devices = [f"rank {rank}: {self._device.type}" for rank in range(self.shard[1])]
        self._own = self._new_model(None)
        self._model = self._new_model(None)
        self._optimizer = self._new_optimizer(list(self._own.parameters()))

    def _train_replicas(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        own = len(labels)
        loss, num_correct, gradients = self._gradients(self._own, images, labels, masks, update._replace(num_examples=own))
        self._optimizer.apply(gradients, update.learning_rate, update.step)
        return loss * (own / update.num_examples), num_correct

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any]:
        """Update the model once on one batch.

        Args:
            batch: this process's shard of N examples: images uint8 [N, H, W, 3], labels int64 [N], masks bool [N, units].
            num_examples: size of the global batch.
            learning_rate: of this update.

        Returns:
            (loss, num_correct), scalars on the device: this process's share of the mean loss over num_examples, and how many
            of its predictions are right.
        """
        found = super().train_step(batch, num_examples, learning_rate)
        every_steps = self._spec.averaging.every_steps
        if every_steps is not None and self._step % every_steps == 0:
            vectors.assign(_values(self._own), self._average())
        return found

    def _average(self) -> torch.Tensor:
        total = vectors.flatten(_values(self._own))
        distributed.all_reduce(total)
        return total / self.shard[1]

    def share_statistics(self) -> None:
        """Copy replica 0's BatchNorm statistics to every replica. Evaluation uses them."""
        vectors.assign(_values(self._model), self._average())

    def report(self, test: Split) -> dict[str, Any]:
        """Mode-specific result fields. Called once, after `test` is scored."""
        (rank, ranks), size = self.shard, self._spec.global_batch_size
        predictions, losses = np.zeros((ranks, len(test)), np.int64), np.zeros(ranks)
        for start in range(0, len(test), size):
            part = slice(start, start + size)
            images, labels = self._tensor(test.images[part]), self._tensor(test.labels[part])
            loss, predicted = evaluate.score(self._own, images, labels, loss=self._spec.loss, scaling=self._plan.scaling)
            predictions[rank, part] = predicted.cpu().numpy()
            losses[rank] += float(loss)
        average, _ = score_split(self, test, size)
        # The end of the run averages the last steps too.
        averages = math.ceil(self._step / (self._spec.averaging.every_steps or self._step))
        # A ring sends all but one rank's part, once to sum and once to distribute the sum.
        sent = 2 * (ranks - 1) * sum(value.nbytes for value in _values(self._own))
        return {
            "members": ensemble.members(test.labels, self.all_reduce(predictions), self.all_reduce(losses), average),
            "bytes_per_step": sent * averages / self._step,
        }

    def separate(self, batch: Batch, num_examples: int) -> str:
        """The reason why compute and exchange of a step cannot be timed separately."""
        return "most steps send nothing: the weights are averaged now and then"

    def pieces(self, batch: Batch, num_examples: int) -> Pieces | str:
        """Break a step on this batch into a replica's computations, without exchange.

        Returns:
            The functions to call one by one, or the reason why a step has no such breakdown.
        """
        return self._pieces_of(self._own, batch, num_examples)

    def load_weights(self, values: Weights) -> None:
        """Set every parameter and statistic of every replica."""
        for model in (self._own, self._model):
            weights.load(model, self._architecture, values)


def _values(model: torch.nn.Module) -> list[torch.Tensor]:
    """What is averaged: the parameters and BatchNorm's statistics, without its count of batches."""
    return [*model.parameters(), *(buffer for buffer in model.buffers() if buffer.is_floating_point())]

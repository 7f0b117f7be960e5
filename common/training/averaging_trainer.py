"""A rank of mode model_averaging, which both twins share: it trains its own model, and averages the weights with all others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from common.data.sources import DatasetSplit
from common.machine import placement
from common.models.weights import ReadOnlyWeights
from common.training import ensemble
from common.training.evaluation import evaluate
from common.training.trainer import BaseTrainer, Batch, StepBreakdown


class AveragingTrainer(BaseTrainer):
    """One rank of several, which trains on its own shards only. Its environment holds its number, see `rendezvous`.

    Scores are of the averaged model. It is a separate copy, so scoring does not change the training. A twin's class adds its
    `Trainer`, both models, `_train_step`, and the methods below that are not implemented.
    """

    _model: Any
    """The averaged model."""
    _local_model: Any
    """The model that this rank trains."""
    # Methods of the twin's `Trainer`.
    _load_into: Callable[[Any, ReadOnlyWeights], None]
    """Sets every parameter and statistic of one model."""
    _to_host: Callable[[Any], npt.NDArray[Any]]
    """Copies a tensor to the host."""
    _break_down: Callable[[Any, Batch, int], StepBreakdown | str]
    """Breaks a step of a model that this process holds whole into its computations; or says why this is impossible."""

    def _join_ranks(self, ranks: Any) -> None:
        """Take this rank's place in the group of all ranks. Call it first in `_build`."""
        self.shard = placement.rank(), placement.num_ranks()
        self.devices = self._ranks()
        self._shards = ranks

    def _local_values(self) -> Any:
        """Return parameters and BatchNorm's statistics of the rank's own model as one tensor, [count]."""
        raise NotImplementedError

    def _set_local(self, values: Any) -> None:
        """Set the rank's own model from a tensor in the layout of `_local_values`."""
        raise NotImplementedError

    def _set_averaged(self, values: Any) -> None:
        """Set the averaged model from a tensor in the layout of `_local_values`."""
        raise NotImplementedError

    def _score_local(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> tuple[Any, Any]:
        """Score one batch with the rank's own model, as `score` does. Both results are tensors."""
        raise NotImplementedError

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any]:
        """Update this rank's model once. Then average all ranks' weights, if an average is due."""
        outcome = super().train_step(batch, num_examples, learning_rate)
        every_steps = self._spec.averaging.every_steps
        if every_steps is not None and self._step % every_steps == 0:
            self._set_local(self._average())
        return outcome

    def _average(self) -> Any:
        rank, ranks = self.shard
        # Ranks that own parts of unequal size count as much as they have examples (McMahan et al. 2017).
        weight = self._plan.weight(ranks, rank)
        return self._shards.sum_tensor(self._local_values() * weight) / ranks

    def finish_epoch(self) -> None:
        """Average the weights of all ranks into the model that is scored."""
        self._set_averaged(self._average())

    def report(self, test: DatasetSplit) -> dict[str, Any]:
        """Report the scores of the ranks' own models, and the bytes of the averages."""
        (rank, ranks), size = self.shard, self._spec.global_batch_size
        predictions, losses = np.zeros((ranks, len(test)), np.int64), np.zeros(ranks)
        for start in range(0, len(test), size):
            part = slice(start, start + size)
            loss, predicted = self._score_local(test.images[part], test.labels[part])
            predictions[rank, part] = self._to_host(predicted)
            losses[rank] += float(loss)
        average, _ = evaluate(self, test, size)
        every_steps = self._spec.averaging.every_steps
        # Each epoch ends with an average that is scored.
        averages = math.ceil(self._step / self._plan.steps_per_epoch) + (self._step // every_steps if every_steps else 0)
        # A ring sends all but one rank's part, once to sum and once to distribute the sum.
        sent = 2 * (ranks - 1) * self._to_host(self._local_values()).nbytes
        return {
            "members": ensemble.members(
                test.labels, self.all_reduce_shards(predictions), self.all_reduce_shards(losses), average
            ),
            "bytes_per_step": sent * averages / self._step,
        }

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> str:
        """Return why compute and exchange of a step cannot be timed separately."""
        return "most steps send nothing: the weights are averaged now and then"

    def step_breakdown(self, batch: Batch, num_examples: int) -> StepBreakdown | str:
        """Return a rank's forward pass, backward pass and update, or why they cannot be called one by one."""
        return self._break_down(self._local_model, batch, num_examples)

    def load_weights(self, values: ReadOnlyWeights) -> None:
        """Set every parameter and statistic of both models."""
        values = dict(values)  # each is drawn once for both models
        for model in (self._local_model, self._model):
            self._load_into(model, values)

"""Mode serial: one replica on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from common.training.trainer import Batch, StepBreakdown, Update
from jax_impl import train
from jax_impl.parallel.trainer import Trainer
from jax_impl.train import ShardArrays


class Serial(Trainer):
    """One replica on one device."""

    def _build(self) -> None:
        self._model = self._new_model(None)

    def _over_replicas(self, replica_step: Callable[..., Any]) -> Callable[..., Any]:
        return replica_step

    def _score_over_replicas(self) -> Callable[..., Any]:
        return self._one_score

    def _examples(self, images: Any, labels: Any, masks: Any) -> ShardArrays:
        return ShardArrays(*jax.device_put((images, labels, tuple(masks))))

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> None:
        """Return None: nothing is exchanged."""

    def step_breakdown(self, batch: Batch, num_examples: int) -> StepBreakdown | str:
        examples, numbers, micro_batches = self._arguments(batch, num_examples, 0.0)
        if micro_batches > 1:
            return "forward and backward take turns over the parts of a batch"
        objective, network = self._objective, self._model.network
        forward = jax.jit(lambda state: objective.forward(network, state.parameters, state.statistics, examples, num_examples))
        gradients = jax.jit(
            lambda state: objective.gradients(network, state.parameters, state.statistics, examples, Update(*numbers))
        )
        # Without giving memory away: a copy of the state would count as a part of the step.
        step = jax.jit(lambda state: train.train_step(objective, network, self._optimizer, state, examples, Update(*numbers)))

        def keep_result(work: Callable[[], Any]) -> Callable[[], None]:
            def call() -> None:
                self._last_result = work()  # Twin: `synchronize` waits for what is held

            return call

        return StepBreakdown(
            keep_result(lambda: self._examples(batch.images, batch.labels, batch.masks)),
            keep_result(lambda: forward(self._state())),
            keep_result(lambda: gradients(self._state())),
            keep_result(lambda: step(self._state())),
            nested=True,  # Twin: a program runs as a whole, so each ends with its own computation
        )

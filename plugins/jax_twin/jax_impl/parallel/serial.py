"""Mode serial: one replica on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from common.training.trainer import Batch, StepBreakdown, Update
from jax_impl import train
from jax_impl.parallel.trainer import Trainer
from jax_impl.train import Examples


class Serial(Trainer):
    """One replica on one device."""

    def _build(self) -> None:
        self._model = self._new_model(None)

    def _across(self, one: Callable[..., Any]) -> Callable[..., Any]:
        return one

    def _scoring(self) -> Callable[..., Any]:
        return self._one_score

    def _examples(self, images: Any, labels: Any, masks: Any) -> Examples:
        return Examples(*jax.device_put((images, labels, tuple(masks))))

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> None:
        """Nothing is exchanged."""

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

        def holding(work: Callable[[], Any]) -> Callable[[], None]:
            def call() -> None:
                self._held = work()  # Twin: `synchronize` waits for what is held

            return call

        return StepBreakdown(
            holding(lambda: self._examples(batch.images, batch.labels, batch.masks)),
            holding(lambda: forward(self._state())),
            holding(lambda: gradients(self._state())),
            holding(lambda: step(self._state())),
            nested=True,  # Twin: a program runs as a whole, so each ends with its own computation
        )

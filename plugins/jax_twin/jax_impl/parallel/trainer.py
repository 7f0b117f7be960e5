"""Base of the trainers of all modes: construction, input, scores, weights, state, and a step's breakdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from common.data.batches import BatchPlan, Feed
from common.data.sources import Dataset
from common.machine.machine import available_cores
from common.models.architectures import Architecture
from common.models.weights import ReadOnlyWeights, Weights
from common.spec import Spec
from common.training import trainer
from common.training.trainer import Batch, ProfilerRecording, StepBreakdown, Update
from jax_impl import device, evaluate, input, models, optim, profiler, train, weights
from jax_impl.batch_norm import ReplicaGroup
from jax_impl.train import ShardArrays, TrainingState

_compilations = 0


def _count(event: str, seconds: float, **_: Any) -> None:
    global _compilations
    _compilations += event.startswith("/jax/core/compile/")


jax.monitoring.register_event_duration_secs_listener(_count)


class Trainer(trainer.BaseTrainer):
    """The process of a run. A mode adds how it spreads a step over replicas, and what it reports.

    `common.training.trainer.BaseTrainer` documents the public methods.
    """

    def __init__(
        self, spec: Spec, architecture: Architecture, plan: BatchPlan, dataset: Dataset, initial: ReadOnlyWeights
    ) -> None:
        super().__init__(spec, architecture, plan, dataset, device.describe())
        self._objective = train.Objective(spec.loss, plan.scaling, spec.precision)
        self.threads = {"intra_op": available_cores(), "inter_op": spec.replicas, "input": spec.workers}
        self._optimizer = optim.build(spec.optimizer)
        self._model: models.JaxModel
        self._build()
        self._slots = self._replicated(self._optimizer.init(self._model.parameters))
        # Twin: a step is a program for each shape of its arguments. It takes over the memory of the state that it replaces.
        self._steps = partial(jax.jit, donate_argnums=0, static_argnums=3)(self._over_replicas(self._one_step))
        self._score = jax.jit(self._score_over_replicas())
        self._last_result: Any = None
        self.load_weights(initial)

    def _build(self) -> None:
        """Build the model: `_model`."""
        raise NotImplementedError

    def _over_replicas(self, replica_step: Callable[..., Any]) -> Callable[..., Any]:
        """Lift a function of one replica's (state, examples, numbers, micro_batches) to all replicas."""
        raise NotImplementedError

    def _score_over_replicas(self) -> Callable[..., Any]:
        """Return a function of all replicas from (parameters, statistics, examples) to (loss_sum, predictions)."""
        raise NotImplementedError

    def _examples(self, images: Any, labels: Any, masks: Any) -> ShardArrays:
        """Put a batch on the devices."""
        raise NotImplementedError

    _exchange = staticmethod(lambda values: values)
    """Function that sums the replicas' values. Each gets the sum."""

    def feed(self) -> Feed[Batch]:
        index, number = self.shard
        return input.feed(self._plan, self._dataset.train, number, index)

    def compilations(self) -> int:
        return _compilations

    def score(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> tuple[Any, npt.NDArray[np.int64]]:
        examples = self._examples(np.asarray(images), np.asarray(labels), ())
        loss, predictions = self._score(self._model.parameters, self._model.statistics, examples)
        predictions = np.asarray(predictions)
        return loss, predictions if examples.rows is None else predictions[np.asarray(examples.rows)]

    def fetch(self, values: list[Any]) -> npt.NDArray[Any]:
        return np.stack(jax.device_get(values))

    def step_breakdown(self, batch: Batch, num_examples: int) -> StepBreakdown | str:
        return f"mode {self._spec.variant} is one program with its exchange"

    def record(self, work: Callable[[], None]) -> ProfilerRecording:
        def waiting() -> None:
            work()
            self.synchronize()

        return profiler.record(waiting)

    def synchronize(self) -> None:
        device.synchronize()

    def load_weights(self, values: ReadOnlyWeights) -> None:
        model = self._first_model()
        weights.load(model, self._architecture, values)
        self._set_model(model)

    def weights(self) -> Weights:
        return weights.extract(self._first_model(), self._architecture)

    def slots(self) -> dict[str, Weights]:
        # Twin: slots have canonical names and layouts already.
        return {
            slot: weights.extract_gradients(self._model, self._architecture, arrays)
            for slot, arrays in self._slots.items()
            if slot != "native"
        }

    def load_slots(self, values: Mapping[str, Weights], weights: Weights) -> None:
        self._load_optimizer_state(
            {f"{slot}/{name}": array for slot, arrays in values.items() for name, array in arrays.items()}
        )
        self.load_weights(weights)

    def num_values(self) -> tuple[int, int]:
        return models.num_values(self._first_model())

    def gradients(self, batch: Batch, num_examples: int) -> Weights:
        update = Update(num_examples, learning_rate=0.0, step=0)
        compute = jax.jit(partial(self._objective.gradients, self._model.network, update=update))
        state, examples = self._state(), self._examples(batch.images, batch.labels, batch.masks)
        _, _, gradients, self._model.statistics = compute(state.parameters, state.statistics, examples)
        return weights.extract_gradients(self._model, self._architecture, gradients)

    def logits(self, batch: Batch, *, training: bool) -> npt.NDArray[np.floating]:
        arrays = {name: jnp.asarray(array) for name, array in self.weights().items()}

        @jax.jit
        def network(arrays: Any, images: Any, masks: Any) -> tuple[Any, Any]:
            scaled = input.scale(images, self._spec.precision, self._plan.scaling)
            return self._model.network(arrays, scaled, masks, training)

        logits, statistics = network(arrays, batch.images, batch.masks)
        self._model.statistics |= statistics
        return np.asarray(logits)

    # Methods that modes are built from.

    def _new_model(self, group: ReplicaGroup | None) -> models.JaxModel:
        switch_values = self._switches
        return models.build(
            self._architecture, self._spec.precision, group, switch_values["arithmetic"], switch_values["depthwise"]
        )

    def _run_step(self, batch: Batch, num_examples: int, learning_rate: float) -> Any:
        state, outputs = self._steps(self._state(), *self._arguments(batch, num_examples, learning_rate))
        self._model.parameters, self._model.statistics, self._slots = state
        return outputs

    def _blank(self, examples: int) -> Batch:
        size = self._architecture.image_size
        masks = tuple(np.ones((examples, dropout.units), bool) for dropout in self._architecture.dropouts)
        labels = np.zeros(examples, np.int64)
        return Batch(labels, np.ones((examples, size, size, 3), np.uint8), labels, masks)

    def _blank_step(self, examples: int, num_examples: int) -> None:
        copied = jax.tree.map(jnp.copy, self._state())  # a step takes its state's memory
        self._last_result = self._steps(copied, *self._arguments(self._blank(examples), num_examples, 0.0))

    def _blank_score(self, batch: Batch) -> None:
        self._last_result = self.score(batch.images, batch.labels)

    def _optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        return optim.state(self._slots)

    def _load_optimizer_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        self._slots = self._replicated(optim.load_state(self._slots, values))

    def _state(self) -> TrainingState:
        return TrainingState(self._model.parameters, self._model.statistics, self._slots)

    def _first_model(self) -> models.JaxModel:
        """Return the model of replica 0."""
        return self._model

    def _set_model(self, model: models.JaxModel) -> None:
        """Make this the model of every replica."""
        self._model = model

    def _replicated(self, arrays: Any) -> Any:
        """Put arrays that all replicas share on the devices."""
        return arrays

    def _arguments(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, ...]:
        numbers = np.int64(num_examples), np.float64(learning_rate), np.int64(self._step)
        examples = self._examples(batch.images, batch.labels, batch.masks)
        return examples, numbers, self._spec.micro_batches(num_examples)

    def _one_step(self, state: TrainingState, examples: ShardArrays, numbers: Any, micro_batches: int) -> Any:
        """Do a step of one replica on its own shard."""
        objective, network, update = self._objective, self._model.network, Update(*numbers, micro_batches)
        return train.train_step(objective, network, self._optimizer, state, examples, update, self._exchange)

    def _one_score(self, parameters: Any, statistics: Any, examples: ShardArrays) -> Any:
        """Score one replica's own shard. Returns (loss_sum, predictions)."""
        arrays = {**parameters, **statistics}
        return evaluate.score(self._model.network, arrays, examples.images, examples.labels, self._objective, examples.rows)

"""The trainer of all modes: Keras's own `train_step`, called as `train_on_batch` calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from common.data.batches import BatchPlan, Feed
from common.data.sources import Dataset, DatasetSplit
from common.models.architectures import Architecture
from common.models.weights import ReadOnlyWeights, Weights
from common.spec import Spec
from common.training import trainer
from common.training.communication import exchange_bytes
from common.training.trainer import Batch, ComputeAndExchange, ProfilerRecording
from keras_twin import device, models, optim, weights
from keras_twin.backends import backend


class Trainer(trainer.BaseTrainer):
    """The process of a run. `common.training.trainer.BaseTrainer` documents the public methods."""

    def __init__(
        self, spec: Spec, architecture: Architecture, plan: BatchPlan, dataset: Dataset, initial: ReadOnlyWeights
    ) -> None:
        super().__init__(spec, architecture, plan, dataset, device.describe())
        self.threads = {**backend.threads(spec.replicas), "input": spec.workers}
        self._replicas = backend.Replicas(spec, architecture)
        self.devices = list(self._replicas.devices) or self.devices
        with self._replicas.scope():
            self._model = models.build(architecture, spec.precision, plan.scaling, self._replicas.statistics_sum)
            self._model.sum_over_replicas = self._replicas.sum
            self._keras_optimizer: Any = optim.build(spec.optimizer, self._model.trainable_variables)
            # Replicas with a loss each add up their shares of the global mean, also with uneven shards.
            reduction = "sum" if self._replicas.weighs_examples else "sum_over_batch_size"
            self._model.compile(
                self._keras_optimizer, _loss(spec.loss, reduction), **backend.compile_options(self._switches["graph"])
            )
            self._train = backend.TrainFunction(self._model)
            self._evaluate = backend.evaluation(self._model)
        self._numbers: tuple[float, int] | None = None
        self.load_weights(initial)

    def feed(self) -> Feed[Batch]:
        return backend.feed(self._plan, self._dataset.train, self._switches, self._new_transfer_stats())

    def compilations(self) -> int:
        return len(self._shapes) + backend.compilations()

    def score(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> tuple[Any, npt.NDArray[np.int64]]:
        logits = self._logits(images)
        losses = keras.ops.sparse_categorical_crossentropy(np.asarray(labels), logits, from_logits=True)
        return keras.ops.sum(losses), weights.host_array(logits).argmax(1)

    def fetch(self, values: list[Any]) -> npt.NDArray[Any]:
        return backend.fetch(values)

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> ComputeAndExchange | str | None:
        """Return None in mode serial: nothing is exchanged. In others, Keras exchanges within `train_step`."""
        return "Keras's train_step computes and exchanges in one" if self._replicas.devices else None

    def step_breakdown(self, batch: Batch, num_examples: int) -> str:
        """Return why there is none."""
        return "Keras's train_step is one function"

    def record(self, work: Callable[[], None]) -> ProfilerRecording:
        def waiting() -> None:
            work()
            self.synchronize()

        return backend.profiler.record(waiting)

    def synchronize(self) -> None:
        device.synchronize()

    def report(self, test: DatasetSplit) -> dict[str, Any]:
        return {"bytes_per_step": exchange_bytes(self._spec, self._architecture)} if self._replicas.devices else {}

    def broadcast_statistics(self) -> None:
        self._replicas.broadcast(self._model.non_trainable_variables)

    def load_weights(self, values: ReadOnlyWeights) -> None:
        self._train.sync()
        weights.load(self._model, self._architecture, values)

    def weights(self) -> Weights:
        self._train.sync()
        return weights.extract(self._model, self._architecture)

    def num_values(self) -> tuple[int, int]:
        return models.num_values(self._model)

    def gradients(self, batch: Batch, num_examples: int) -> Weights:
        self._train.sync()
        arrays = backend.gradients(self._model, self._data(batch, num_examples))
        return weights.extract_gradients(self._model, self._architecture, arrays)

    def logits(self, batch: Batch, *, training: bool) -> npt.NDArray[np.floating]:
        self._train.sync()
        if not training:
            return weights.host_array(self._logits(np.asarray(batch.images)))
        (inputs, _, _) = self._data(batch, len(batch.labels))
        return weights.host_array(self._model(inputs, training=True))

    def _logits(self, images: npt.NDArray[np.uint8]) -> Any:
        self._train.sync()
        return self._evaluate(models.inputs(self._model, images))

    def _data(self, batch: Batch, num_examples: int) -> Any:
        """Return what `train_step` trains on: (x, y, sample_weight), where the replicas train."""
        shares = None
        if self._replicas.weighs_examples:
            shares = np.full(len(batch.labels), 1.0 / num_examples, self._spec.precision)
        return self._replicas.place(([batch.images, *batch.masks], batch.labels, shares))

    def _run_step(self, batch: Batch, num_examples: int, learning_rate: float) -> Any:
        self._shapes.add((len(batch.labels), 1))
        # As callbacks of `fit` do: a changed learning rate is assigned. Keras counts the updates itself.
        if self._numbers != (learning_rate, self._step - 1):
            self._train.sync()
            self._keras_optimizer.learning_rate = learning_rate
            self._keras_optimizer.iterations.assign(self._step - 1)
        logs = self._train(self._data(batch, num_examples))
        self._numbers = learning_rate, self._step
        return logs["loss"], logs["num_correct"]

    def _blank(self, examples: int) -> Batch:
        size = self._architecture.image_size
        masks = tuple(np.ones((examples, dropout.units), bool) for dropout in self._architecture.dropouts)
        labels = np.zeros(examples, np.int64)
        arrays = labels, np.ones((examples, size, size, 3), np.uint8), labels, masks
        return Batch(*backend.tensors(arrays))

    def _blank_score(self, batch: Batch) -> None:
        self.score(np.asarray(batch.images), np.asarray(batch.labels))

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        saved_state = self.state()
        yield
        self.load_state(saved_state, self._step)

    def _optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        self._train.sync()
        return {
            f"{slot}/{index}": weights.host_array(variable)
            for slot, variables in optim.slots(self._keras_optimizer).items()
            for index, variable in enumerate(variables)
        }

    def _load_optimizer_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        self._train.sync()
        self._numbers = None
        for slot, variables in optim.slots(self._keras_optimizer).items():
            for index, variable in enumerate(variables):
                variable.assign(np.asarray(values[f"{slot}/{index}"], variable.dtype))

    def _trainable(self) -> list[npt.NDArray[Any]]:
        self._train.sync()
        return [weights.host_array(variable) for variable in self._model.trainable_variables]

    def _by_name(self, arrays: list[npt.NDArray[Any]]) -> Weights:
        return weights.extract_gradients(self._model, self._architecture, arrays)


def build(spec: Spec, architecture: Architecture, plan: BatchPlan, dataset: Dataset, weights: ReadOnlyWeights) -> Trainer:
    """Build the trainer of a spec's mode."""
    return Trainer(spec, architecture, plan, dataset, weights)


def _loss(name: str, reduction: str) -> keras.losses.Loss:
    if name == "categorical_crossentropy":
        return _OneHotCrossentropy(from_logits=True, reduction=reduction)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)


class _OneHotCrossentropy(keras.losses.CategoricalCrossentropy):
    """Cross-entropy of one-hot rows, which are made from the labels as a part of the step."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the loss of each example, from labels int [N]."""
        labels = keras.ops.reshape(keras.ops.cast(y_true, "int64"), (-1,))
        return super().call(keras.ops.one_hot(labels, y_pred.shape[-1], dtype=y_pred.dtype), y_pred)

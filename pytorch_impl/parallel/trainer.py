"""Base of the trainers of all modes: construction, input, scores, weights, state, and a step's breakdown."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed

from common.data.batches import BatchPlan, Feed
from common.data.sources import Dataset
from common.models import user_code
from common.models.architectures import Architecture
from common.models.weights import ReadOnlyWeights, Weights
from common.spec import Spec
from common.training import trainer
from common.training.trainer import Batch, ProfilerRecording, StepBreakdown, Update
from pytorch_impl import (
    collectives,
    decisions,
    device,
    evaluate,
    input,
    models,
    optim,
    private_api,
    profiler,
    shards,
    train,
    weights,
)
from pytorch_impl.batch_norm import ReplicaGroup
from pytorch_impl.compression import Compressor

_COMPILE_MODES = {
    "compile": "default",
    "compile_max_autotune": "max-autotune-no-cudagraphs",
    "compile_cuda_graphs": "reduce-overhead",
}


class Trainer(trainer.BaseTrainer):
    """One process of a run. A mode adds how it builds replicas, how they train and score together, and what it reports.

    `common.training.trainer.BaseTrainer` documents the public methods.
    """

    def __init__(
        self, spec: Spec, architecture: Architecture, plan: BatchPlan, dataset: Dataset, initial: ReadOnlyWeights
    ) -> None:
        super().__init__(spec, architecture, plan, dataset, device.describe())
        self._device = torch.device(device.kind())
        self._objective = train.Objective(spec.loss, plan.scaling, self._loss_scale)
        self.threads = {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads(), "input": spec.workers}
        self._model: torch.nn.Module
        # Twin: each replica has an object of its own. TensorFlow's share one, whose variables have a value for each.
        self._compressors: list[Compressor] = []
        self._optimizer: optim.TwinOptimizer
        self._build()
        self.load_weights(initial)

    def _build(self) -> None:
        """Build the replicas of this process: `_model`, and `_optimizer` if this process updates weights."""
        raise NotImplementedError

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        """Do one step on this process's shard, which is on the device. Returns (loss, num_correct)."""
        raise NotImplementedError

    def _train_wrapped(
        self, wrapped: collectives.RecordedDistributedDataParallel, images: Any, labels: Any, masks: Any, update: Update
    ) -> Any:
        """Do one step where DDP exchanges the gradients. Returns (loss, num_correct)."""
        # DDP averages over copies of the model, but the shares of the loss must be summed. So each share is multiplied by the
        # number of copies.
        copies = self.shard[1]
        update = update._replace(num_examples=update.num_examples / copies)
        loss, num_correct = train.train_step(
            self._objective, wrapped, self._optimizer, images, labels, masks, update, wrapped.finish_exchange
        )
        return loss / copies, num_correct

    def _score_batch(self, images: Any, labels: Any) -> Any:
        """Score a batch that is on the device. Returns (loss_sum, predictions)."""
        return evaluate.score(self._model, images, labels, self._objective)

    def feed(self) -> Feed[Batch]:
        index, number = self.shard
        return input.feed(self._plan, self._dataset.train, number, index, self._switches, self._new_transfer_stats())

    def compilations(self) -> int:
        return len(self._shapes) + private_api.compilation_count()

    def score(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> tuple[Any, npt.NDArray[np.int64]]:
        with self._compiled(None):
            loss, predictions = self._score_batch(self._tensor(images), self._tensor(labels))
        return loss, predictions.cpu().numpy()

    def fetch(self, values: list[Any]) -> npt.NDArray[Any]:
        return torch.stack(values).cpu().numpy()

    def record(self, work: Callable[[], None]) -> ProfilerRecording:
        return profiler.record(work)

    def synchronize(self) -> None:
        device.synchronize()

    def close(self) -> None:
        """Disconnect from the other processes at the end of the run."""
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def load_weights(self, values: ReadOnlyWeights) -> None:
        self._load_into(self._model, values)
        self.broadcast_statistics()

    def weights(self) -> Weights:
        return weights.extract(self._model, self._architecture)

    def num_values(self) -> tuple[int, int]:
        return models.num_values(self._model)

    def gradients(self, batch: Batch, num_examples: int) -> Weights:
        update = Update(num_examples, learning_rate=0.0, step=0)
        with self._compiled(len(batch.labels)):
            _, _, gradients = self._objective.gradients(self._model, *self._to_device(batch), update)
        return weights.extract_gradients(self._model, self._architecture, gradients)

    def logits(self, batch: Batch, *, training: bool) -> npt.NDArray[np.floating]:
        images, _, masks = self._to_device(batch)
        with torch.no_grad(), self._compiled(None):
            if not training:
                return evaluate.logits(self._model, images, self._plan.scaling).cpu().numpy()
            self._model.train()
            return self._model(input.scale(images, device.dtype(self._spec), self._plan.scaling), *masks).cpu().numpy()

    def record_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any, list[npt.NDArray[Any]]]:
        # A compiled graph calls no functions, and a user's own builder may call any. On a GPU, nn.DataParallel calls them in
        # threads that a recorder does not see, and no run has recorded other modes there.
        user_built = user_code.builder(self._architecture.name, "pytorch")
        if self._switches["graph"] != "eager" or self._device.type == "cuda" or user_built:
            return (*self.train_step(batch, num_examples, learning_rate), [])
        with self._recorders() as recorders:
            outcome = self.train_step(batch, num_examples, learning_rate)
        number = self._spec.micro_batches(num_examples)
        by_replica = [recorder.by_layer(number) for recorder in recorders]
        return (*outcome, self._of_all_stages([np.concatenate(arrays) for arrays in zip(*by_replica, strict=True)]))

    def error_feedback(self) -> list[npt.NDArray[Any]]:
        residuals_by_replica = (compressor.residuals for compressor in self._compressors)
        return [
            np.stack([residuals.cpu().numpy() for residuals in replicas])
            for replicas in zip(*residuals_by_replica, strict=True)
        ]

    # Methods that modes are built from.

    @property
    def _trained_models(self) -> list[torch.nn.Module]:
        """The models that this process trains. Each has BatchNorm's statistics of its own."""
        return [self._model]

    @contextmanager
    def _recorders(self) -> Iterator[list[decisions.DecisionRecorder]]:
        """Record the decisions of each replica of this process."""
        with decisions.DecisionRecorder() as recorder:
            yield [recorder]

    def _of_all_stages(self, arrays: list[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Return the decisions of all layers. This process has all layers."""
        return arrays

    def _new_model(self, group: ReplicaGroup | None) -> torch.nn.Module:
        """Build a replica on this process's device; the group sums for synchronised BatchNorm."""
        model = self._to_device_and_format(
            models.build(self._architecture, self._spec.precision, group, self._switches["arithmetic"])
        )
        if (graph := self._switches["graph"]) != "eager":
            _use_fresh_compile_cache()
            model.compile(mode=_COMPILE_MODES[graph])
        return model

    def _new_optimizer(self, model: torch.nn.Module) -> optim.TwinOptimizer:
        return optim.build(self._spec.optimizer, list(model.parameters()), self._switches)

    def _to_device_and_format(self, model: torch.nn.Module) -> torch.nn.Module:
        """Move the model to its device, in the spec's memory format. It is in training mode, whatever its builder has set."""
        return models.to_device(model, self._device, self._switches["memory_format"]).train()

    def _loss_scale(self) -> float | None:
        return cast(optim.LossScaled, self._optimizer).scale if self._switches["arithmetic"] == "float16" else None

    def _compiled(self, num_examples: int | None) -> AbstractContextManager[Any]:
        """Return a context for one batch. A compiled model runs eagerly in it, except on batches of its first batch size.

        Otherwise torch would compile again for the last, smaller batch and for evaluation (None).
        """
        self._compiled_for = self._compiled_for or num_examples
        if self._switches["graph"] == "eager" or num_examples == self._compiled_for:
            return nullcontext()
        return torch.compiler.set_stance("force_eager")

    def _update(self, num_examples: int, learning_rate: float) -> Update:
        return Update(num_examples, learning_rate, self._step, self._spec.micro_batches(num_examples))

    def _run_step(self, batch: Batch, num_examples: int, learning_rate: float) -> Any:
        update = self._update(num_examples, learning_rate)
        self._shapes.add((len(batch.labels), update.micro_batches))
        with self._compiled(len(batch.labels)):
            return self._train_step(*self._to_device(batch), update)

    def _blank(self, examples: int) -> Batch:
        size = self._architecture.image_size
        return Batch(
            ids=torch.arange(examples),
            images=torch.ones((examples, size, size, 3), dtype=torch.uint8, device=self._device),
            labels=torch.zeros(examples, dtype=torch.int64, device=self._device),
            masks=tuple(torch.ones((examples, dropout.units), dtype=torch.bool) for dropout in self._architecture.dropouts),
        )

    def _blank_score(self, batch: Batch) -> None:
        with self._compiled(None):
            self._score_batch(batch.images, batch.labels)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Undo the changes of blank batches: BatchNorm's statistics, residuals of compression, random states."""
        # Twin: a graph holds the update too, and its variables get their values back. Here the optimizer rests meanwhile: its
        # kernels know no batch size, and the first step has run them.
        buffers = [buffer for model in self._trained_models for buffer in model.buffers()]
        statistics = [buffer.clone() for buffer in buffers]
        residuals = [list(compressor.residuals) for compressor in self._compressors]
        optimizer = vars(self).get("_optimizer")  # none where a server updates
        if optimizer is not None:
            self._optimizer = _RestingOptimizer(optimizer)
        try:
            with torch.random.fork_rng(range(torch.cuda.device_count())):
                yield
        finally:
            if optimizer is not None:
                self._optimizer = optimizer
            for buffer, values in zip(buffers, statistics, strict=True):
                buffer.copy_(values)
            for compressor, values in zip(self._compressors, residuals, strict=True):
                compressor.residuals[:] = values  # in the compressor's own list

    def _trainable(self) -> list[npt.NDArray[Any]]:
        parts = [part for parameter in self._model.parameters() for part, _ in shards.parts(parameter)]
        return [part.detach().cpu().numpy().copy() for part in parts]

    def _by_name(self, arrays: list[npt.NDArray[Any]]) -> Weights:
        return weights.extract_gradients(self._model, self._architecture, list(map(torch.from_numpy, arrays)))

    def _to_device(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
        return (
            # A worker may write the next batch into memory that is not pinned.
            batch.images.to(self._device, non_blocking=self._switches.get("pinned_memory", False)),
            batch.labels.to(self._device, non_blocking=True),
            tuple(mask.to(self._device, non_blocking=True) for mask in batch.masks),
        )

    def _load_into(self, model: torch.nn.Module, values: ReadOnlyWeights) -> None:
        weights.load(model, self._architecture, values)

    def _statistics(self) -> list[torch.Tensor]:
        # Twin: torch's BatchNorm counts its batches too, and the count is no statistic.
        return [buffer for buffer in self._model.buffers() if buffer.is_floating_point()]

    def _to_host(self, tensor: torch.Tensor) -> npt.NDArray[Any]:
        return tensor.cpu().numpy()

    def _tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.tensor(array, device=self._device)

    def _break_down(self, model: torch.nn.Module, batch: Batch, num_examples: int) -> StepBreakdown | str:
        """Return the step breakdown of a whole model in this process, on its own batch."""
        if self._spec.micro_batches(num_examples) > 1:
            # Twin: the breakdown calls its functions one by one, but a step runs backward after every micro-batch.
            return "forward and backward take turns over the parts of a batch"
        images, labels, masks = self._to_device(batch)
        parameters = list(model.parameters())
        share = torch.zeros(())

        def transfer() -> None:
            self._to_device(batch)

        def forward() -> None:
            nonlocal share
            model.zero_grad()
            share, _ = self._objective.forward(model, images, labels, masks, num_examples)

        def backward() -> None:
            share.backward()

        def optimizer() -> None:
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            self._optimizer.apply(gradients, 0.0, self._step)

        note = "forward and backward hold the exchange of BatchNorm's statistics" if self._synchronises else None
        return StepBreakdown(transfer, forward, backward, optimizer, note=note)


class _RestingOptimizer:
    """An optimizer of blank batches, which changes nothing. The loss has the scale of the optimizer that it stands for."""

    def __init__(self, optimizer: optim.TwinOptimizer) -> None:
        self._optimizer = optimizer
        self.state, self.load_state = optimizer.state, optimizer.load_state

    @property
    def scale(self) -> float:
        return cast(optim.LossScaled, self._optimizer).scale

    def apply(self, gradients: list[torch.Tensor], learning_rate: float, step: int) -> None:
        pass


@cache
def _use_fresh_compile_cache() -> None:
    """Give torch.compile a cache folder for this process. Call before compiling.

    Otherwise a run would reuse what an earlier run compiled, and its first step would not include compilation.
    """
    # Twin: XLA keeps no cache that another process could find.
    folder = tempfile.mkdtemp(prefix="convtwins-compiled-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    os.environ.pop("TRITON_CACHE_DIR", None)  # otherwise Triton would cache there

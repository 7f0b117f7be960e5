"""What the trainers of all modes share: construction, input, scores, weights, state, and a step's breakdown."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed

from common.artifacts.schema import StepParts
from common.data.batches import Feed, Plan, in_order
from common.data.sources import Dataset, Split
from common.models.architectures import Architecture
from common.models.sharding import shard
from common.models.weights import Weights
from common.spec import Spec
from common.training.trainer import Batch, ComputeAndExchange, Recording, StepBreakdown, Update
from pytorch_impl import device, evaluate, input, models, optim, profiler, switches, train, weights
from pytorch_impl.batch_norm import ReplicaGroup
from pytorch_impl.compression import Compressor

_COMPILE_MODES = {
    "compile": "default",
    "compile_max_autotune": "max-autotune-no-cudagraphs",
    "compile_cuda_graphs": "reduce-overhead",
}


class Trainer:
    """One process of a run. A mode adds how it builds replicas, how they train and score together, and what it reports.

    Each process calls `train_step` with its own shard of every global batch.
    """

    shard: tuple[int, int] = (0, 1)
    _shards: Any = None  # sums over processes of different shards: a `Group` or a server. None: there is one shard
    _processes: Any = None  # sums over all processes, where several have the same shard

    def __init__(self, spec: Spec, architecture: Architecture, plan: Plan, dataset: Dataset, initial: Weights) -> None:
        self._spec = spec
        self._architecture = architecture
        self._plan = plan
        self._dataset = dataset
        self._step = 0
        self._device = torch.device(device.kind())
        self._switches = switches.of(spec, device.kind())
        self._objective = train.Objective(spec.loss, plan.scaling, self._loss_scale)
        self._compiled_for: int | None = None
        self._shapes: set[tuple[int, int]] = set()  # examples of this process and micro-batches, of all steps so far
        self.devices = [str(self._device)]
        self.threads = {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads(), "input": spec.workers}
        self.implementation = device.describe()["modes"][spec.mode]["implementation"]
        self._synchronises = spec.batch_norm_statistics == "synchronised" and spec.replicas > 1
        self._model: torch.nn.Module
        self._optimizer: optim.Optimizer
        self._build()
        self.load_weights(initial)

    def _build(self) -> None:
        """Build the replicas of this process: `_model`, and `_optimizer` if this process updates weights."""
        raise NotImplementedError

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        """(loss, num_correct) of one step on this process's shard, which is on the device."""
        raise NotImplementedError

    def _score_batch(self, images: Any, labels: Any) -> Any:
        """(loss_sum, predictions) of a batch that is on the device."""
        return evaluate.score(self._model, images, labels, self._objective)

    @property
    def updates(self) -> int:
        """How many steps have been done since the run began."""
        return self._step

    def feed(self) -> Feed[Batch]:
        """A feed of this process's shard of global batches."""
        index, number = self.shard
        return input.feed(self._plan, self._dataset.train, number, index, self._switches)

    def batches(self, first_epoch: int = 1) -> Iterator[Batch]:
        """Iterate over this process's shard of every global batch, in order, starting at an epoch."""
        return in_order(self._plan, self.feed(), first_epoch)

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
        self._step += 1
        return self._run_step(batch, num_examples, learning_rate)

    def compile(self, step_sizes: Sequence[int], score_sizes: Sequence[int]) -> None:
        """Run blank batches, so that nothing is built for a batch size in a timed step. The training state stays as it is.

        A framework builds kernels, graphs or plans for a shape in its first run, and CUDA graphs in its second. So every
        batch size has run twice after this. Call it after the first step, which was the first run of a whole batch.

        Args:
            step_sizes: of the global batches to train on.
            score_sizes: of this process's batches to score.
        """
        index, number = self.shard
        with self._unchanged():
            for size in step_sizes:
                start, stop = shard(size, number, index)
                for _ in range(1 if size == self._plan.batch(0)[1] else 2):
                    self._blank_step(stop - start, size)
            for size in score_sizes:
                batch = self._blank(size)
                with self._compiled(None):
                    self._score_batch(batch.images, batch.labels)

    def compilations(self) -> int:
        """A number that grows whenever this process traces or compiles something, or first trains on a batch size."""
        dynamo = sys.modules.get("torch._dynamo.utils")  # not imported here: that takes a second
        return len(self._shapes) + (dynamo.counters["stats"]["unique_graphs"] if dynamo else 0)

    def finish_epoch(self) -> None:
        """Average or pull the weights that all ranks have trained. This is part of the training's time."""

    def score(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> tuple[Any, npt.NDArray[np.int64]]:
        """Score one batch in evaluation mode.

        Args:
            images: uint8 [N, H, W, 3], on the host.
            labels: int64 [N], on the host.

        Returns:
            (loss_sum, predictions): the loss summed over the N examples, on the device, and predicted labels int64 [N], on
            the host.
        """
        with self._compiled(None):
            loss, predictions = self._score_batch(self._tensor(images), self._tensor(labels))
        return loss, predictions.cpu().numpy()

    def fetch(self, values: list[Any]) -> npt.NDArray[Any]:
        """Copy results of `train_step` or `score` to one host array [len(values)], the same in all processes of a shard."""
        return torch.stack(values).cpu().numpy()

    def all_reduce(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sum float64 or int64 values over all shards; every process gets the sum."""
        return self._shards.sum(values) if self._shards else values

    def total(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sum float64 or int64 values over all processes; every process gets the sum."""
        return self._processes.sum(values) if self._processes else self.all_reduce(values)

    def share_statistics(self) -> None:
        """Copy replica 0's BatchNorm statistics to every replica. Evaluation uses them."""

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The training state between two epochs, by name, for the modes that can resume (see `Spec.starts_over`)."""
        kept = {f"optimizer/{name}": array for name, array in self._optimizer.state().items()}
        return {f"weights/{name}": array for name, array in self.weights().items()} | kept

    def load_state(self, values: dict[str, npt.NDArray[Any]], step: int) -> None:
        """Restore what `state` returned after `step` updates."""
        self._step = step
        groups: dict[str, dict[str, npt.NDArray[Any]]] = {"weights": {}, "optimizer": {}}
        for path, array in values.items():
            group, _, name = path.partition("/")
            groups[group][name] = array
        self.load_weights(groups["weights"])
        self._optimizer.load_state(groups["optimizer"])

    def report(self, test: Split) -> dict[str, Any]:
        """Mode-specific result fields. Called once, after `test` is scored."""
        return {}

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> ComputeAndExchange | StepParts | str | None:
        """Split a step on this batch into compute and exchange, which are timed separately.

        Returns:
            The two functions; the reason why they cannot be separated; or None where the mode exchanges nothing.
        """
        return f"mode {self._spec.variant} computes and sends in one"

    def step_breakdown(self, batch: Batch, num_examples: int) -> StepBreakdown | str:
        """Break a step on this batch into a replica's computations, without exchange.

        Returns:
            The functions to call one by one, or the reason why a step has no such breakdown.
        """
        return f"mode {self._spec.variant} sends within forward and backward"

    def record(self, work: Callable[[], None]) -> Recording:
        """Run `work` under the framework's own profiler."""
        return profiler.record(work)

    def synchronize(self) -> None:
        """Wait until the device has finished all queued work."""
        device.synchronize()

    def close(self) -> None:
        """Disconnect from the other processes at the end of the run."""
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def load_weights(self, values: Weights) -> None:
        """Set every parameter and statistic of every replica."""
        weights.load(self._model, self._architecture, values)
        self.share_statistics()

    def weights(self) -> Weights:
        """Every parameter and statistic by canonical name: replica 0's, or gathered where replicas divide the model."""
        return weights.extract(self._model, self._architecture)

    def slots(self) -> dict[str, Weights]:
        """What the optimizer keeps for every trainable parameter, by slot and canonical name. Modes that can resume only."""
        found: dict[str, list[torch.Tensor]] = {}
        for path, array in self._optimizer.state().items():
            slot, _, index = path.partition("/")
            if index:
                found.setdefault(slot, []).append(torch.from_numpy(array))
        return {slot: weights.extract_gradients(self._model, self._architecture, each) for slot, each in found.items()}

    def load_slots(self, values: Mapping[str, Weights]) -> None:
        """Set what `slots` returned."""
        own, arrays = self.weights(), self._optimizer.state()
        for slot, each in values.items():
            self.load_weights({**own, **each})  # the model's own variables have the layout
            for index, parameter in enumerate(self._model.parameters()):
                arrays[f"{slot}/{index}"] = parameter.detach().cpu().numpy().copy()
        self._optimizer.load_state(arrays)
        self.load_weights(own)

    def num_values(self) -> tuple[int, int]:
        """Number of values in the whole model, as (all, trainable). Every process gets the same."""
        return models.num_values(self._model)

    def gradients(self, batch: Batch, num_examples: int) -> Weights:
        """Gradients of the mean loss by canonical name. Mode serial only. This changes BatchNorm statistics."""
        update = Update(num_examples, learning_rate=0.0, step=0)
        with self._compiled(len(batch.labels)):
            _, _, gradients = self._objective.gradients(self._model, *self._to_device(batch), update)
        return weights.extract_gradients(self._model, self._architecture, gradients)

    def logits(self, batch: Batch, *, training: bool) -> npt.NDArray[np.floating]:
        """Logits [N, classes] of one batch, from the first copy of the model.

        Only mode serial supports `training`, which changes BatchNorm statistics.
        """
        images, _, masks = self._to_device(batch)
        with torch.no_grad(), self._compiled(None):
            if not training:
                return evaluate.logits(self._model, images, self._plan.scaling).cpu().numpy()
            self._model.train()
            return self._model(input.scale(images, device.dtype(self._spec), self._plan.scaling), *masks).cpu().numpy()

    # What modes are built from.

    def _new_model(self, group: ReplicaGroup | None) -> torch.nn.Module:
        """A replica on this process's device; the group sums for synchronised BatchNorm."""
        model = self._placed(models.build(self._architecture, self._spec.precision, group, self._switches["arithmetic"]))
        if (graph := self._switches["graph"]) != "eager":
            _compile_anew()
            model.compile(mode=_COMPILE_MODES[graph])
        return model

    def _new_optimizer(self, model: torch.nn.Module) -> optim.Optimizer:
        return optim.build(self._spec.optimizer, list(model.parameters()), self._switches)

    def _ranks(self) -> list[str]:
        """A name for every process of the run, where each has a device."""
        return [f"rank {rank}: {self._device.type}" for rank in range(self._spec.replicas)]

    def _placed(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model on its device, in the spec's memory format."""
        return models.placed(model, self._device, self._switches["memory_format"])

    def _loss_scale(self) -> float | None:
        return cast(optim.LossScaled, self._optimizer).scale if self._switches["arithmetic"] == "float16" else None

    def _compiled(self, num_examples: int | None) -> AbstractContextManager[Any]:
        """A context for one batch. A compiled model runs eagerly in it, except on batches of its first batch size.

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
            masks=tuple(torch.ones((examples, each.units), dtype=torch.bool) for each in self._architecture.dropouts),
        )

    def _blank_step(self, examples: int, num_examples: int) -> None:
        """A step on a blank shard of so many examples, of a global batch of num_examples."""
        self._run_step(self._blank(examples), num_examples, 0.0)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Undo what blank batches change: BatchNorm's statistics, errors that compression keeps, random states."""
        # Twin: a graph holds the update too, and its variables get their values back. Here the optimizer rests meanwhile: its
        # kernels know no batch size, and the first step has run them.
        kept = [each for value in vars(self).values() for each in (value if isinstance(value, list) else [value])]
        buffers = [buffer for model in kept if isinstance(model, torch.nn.Module) for buffer in model.buffers()]
        compressors = [each for each in kept if isinstance(each, Compressor)]
        statistics = [buffer.clone() for buffer in buffers]
        lost = [each._lost and list(each._lost) for each in compressors]
        optimizer = vars(self).get("_optimizer")
        if optimizer is not None:
            optimizer.apply = lambda gradients, learning_rate, step: None
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
        if optimizer is not None:
            del optimizer.apply
        for buffer, values in zip(buffers, statistics, strict=True):
            buffer.copy_(values)
        for compressor, values in zip(compressors, lost, strict=True):
            compressor._lost = values

    def _to_device(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
        return (
            batch.images.to(self._device, non_blocking=True),
            batch.labels.to(self._device, non_blocking=True),
            tuple(mask.to(self._device, non_blocking=True) for mask in batch.masks),
        )

    def _tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.tensor(array, device=self._device)

    def _breakdown_of(self, model: torch.nn.Module, batch: Batch, num_examples: int) -> StepBreakdown | str:
        """The step breakdown of a whole model in this process, on its own batch."""
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
            for parameter in parameters:
                parameter.grad = None
            share, _ = self._objective.forward(model, images, labels, masks, num_examples)

        def backward() -> None:
            share.backward()

        def optimizer() -> None:
            found = [parameter.grad for parameter in parameters if parameter.grad is not None]
            self._optimizer.apply(found, 0.0, self._step)

        note = "forward and backward hold the exchange of BatchNorm's statistics" if self._synchronises else None
        return StepBreakdown(transfer, forward, backward, optimizer, note=note)


@cache
def _compile_anew() -> None:
    """Give torch.compile a cache folder for this process. Call before compiling.

    Otherwise a run would reuse what an earlier run compiled, and its first step would not include compilation.
    """
    # Twin: XLA keeps no cache that another process could find.
    folder = tempfile.mkdtemp(prefix="convtwins-compiled-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    os.environ.pop("TRITON_CACHE_DIR", None)  # otherwise Triton would cache there

"""Interface between a run and a twin: the trainer, and the batches that it trains on. No framework is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from common.artifacts.schema import Chunks, StepParts
from common.data import chunks, owners
from common.data.batches import BatchPlan, Feed, all_batches
from common.data.sources import Dataset, DatasetSplit
from common.models.architectures import Architecture
from common.models.weights import ReadOnlyWeights, Weights
from common.spec import Spec, resolve_switches


class Batch(NamedTuple):
    """One process's shard of one global batch, as the input passes it to the model.

    ids: int64 [N]; images: uint8 [N, H, W, 3], augmented; labels: int64 [N]; masks: one bool [N, units] for each dropout.
    The arrays are the framework's own tensors, on the host. begin_time: time when the input began to prepare the batch, in
    seconds since 1970; 0 for a batch that no input prepared.
    """

    ids: Any
    images: Any
    labels: Any
    masks: tuple[Any, ...]
    begin_time: Any = 0.0


class Update(NamedTuple):
    """Values of one optimizer update that every replica needs. Each field is a number, or a framework's tensor of it."""

    num_examples: Any
    """Number of examples in the global batch."""
    learning_rate: Any
    step: Any
    """Number of the update in the run, from 1."""
    micro_batches: int = 1
    """Number of micro-batches into which each replica cuts its shard. Their gradients are summed."""


class ComputeAndExchange(NamedTuple):
    """The two parts of a step, which are timed separately. All processes of the run call each; the weights stay."""

    compute: Callable[[], Sequence[float] | None]
    """A step without any exchange. Returns the seconds of each replica; None if the caller's clock measures them."""
    exchange: Callable[[], None]
    """The exchange between replicas in a step, and nothing else."""
    not_separable: str | None = None
    """Reason why the computing time of each replica is unknown."""


class StepBreakdown(NamedTuple):
    """A replica's computations in a step. All processes of the run call them in this order; the weights stay."""

    transfer: Callable[[], None]
    """Copies the batch from the host to the device."""
    forward: Callable[[], None]
    backward: Callable[[], None]
    optimizer: Callable[[], None] | None
    nested: bool = False
    """Whether `backward` starts with forward again, and `optimizer` with both. Then differences are reported."""
    note: str | None = None
    """Reason why there is no optimizer, or what else a function computes."""


class BaseTrainer:
    """One process of one mode in one framework. A twin adds the framework, a mode adds how replicas train and score together.

    A mode of several processes has one trainer in each. Processes that share a copy of the model have the same shard, train
    on the same examples, and report the same results.
    """

    implementation: str
    devices: list[str]
    threads: dict[str, int]
    shard: tuple[int, int] = (0, 1)
    """(index, number): the part of every global batch, and of every scored split, that this process takes."""
    _shards: Any = None
    """Sums over processes of different shards: a `CommunicationGroup` or a server. None: there is one shard."""
    _processes: Any = None
    """Sums over all processes, if several have the same shard."""
    _chunks: chunks.TransferStats | None = None
    """Transfer statistics of the last feed, if its images come in chunks."""
    shards_optimizer: bool = False
    """Whether the optimizer's state is divided over replicas. All processes then gather it, and a checkpoint stores it by
    canonical name."""
    images_on_host: bool = True
    """Whether batches are arrays on the host, which cost nothing to read."""
    scores_together: bool = False
    """Whether processes of different shards exchange weights in `score`, so that all must call it the same number of times."""
    _optimizer: Any

    def __init__(
        self, spec: Spec, architecture: Architecture, plan: BatchPlan, dataset: Dataset, description: dict[str, Any]
    ) -> None:
        """Store the arguments. `description` is the twin's `describe` in this process."""
        self._spec = spec
        self._architecture = architecture
        self._plan = plan
        self._dataset = dataset
        self._step = 0
        self._switches = resolve_switches(spec, description["options"])
        self.images_on_host = self._switches.get("data_on") != "device"
        self._kind: str = description["devices"][0]["kind"]
        self._compiled_for: int | None = None
        self._shapes: set[tuple[int, int]] = set()  # examples of this process and micro-batches, of all steps so far
        self.devices = [self._kind]
        self.implementation = description["modes"][spec.mode]["implementation"]
        self._synchronises = spec.batch_norm_statistics == "synchronised" and spec.replicas > 1

    def reset(self, plan: BatchPlan, dataset: Dataset, state: dict[str, npt.NDArray[Any]]) -> None:
        """Follow another plan from its first step, as a new trainer would.

        Args:
            state: the state before the first step, see `state`. Empty if the caller loads the state of each step.
        """
        self._plan, self._dataset, self._step = plan, dataset, 0
        if state:
            self.load_state(state, 0)

    @property
    def updates(self) -> int:
        """Number of steps since the run began."""
        return self._step

    def feed(self) -> Feed[Batch]:
        """Build a feed of this process's shard of global batches."""
        raise NotImplementedError

    def _new_transfer_stats(self) -> chunks.TransferStats | None:
        """Create the transfer statistics of a new feed; None for an input without chunks. All processes call it."""
        self._chunks = (
            chunks.TransferStats(owners=owners.connect_owners(self.all_reduce_world)) if self._spec.input == "dask" else None
        )
        return self._chunks

    def chunks(self) -> Chunks | None:
        """Return the owners of the training images, and the bytes moved since the feed was built. All processes call it."""
        if (stats := self._chunks) is None:
            return None
        transfer_bytes = self.all_reduce_world(np.array([stats.gathered_bytes, stats.moved_bytes]))
        by_process = np.zeros(stats.owners.size, np.int64)
        by_process[stats.owners.rank] = sum(stats.held_bytes)
        by_process = self.all_reduce_world(by_process).tolist()
        return Chunks(
            owners="workers of a cluster" if stats.on_cluster else "processes",
            owner_of_chunk=stats.owner_of_chunk,
            held_mib=[size / 2**20 for size in (stats.held_bytes if stats.on_cluster else by_process)],
            gathered_bytes=int(transfer_bytes[0]),
            moved_bytes=int(transfer_bytes[1]),
        )

    def batches(self, first_epoch: int = 1) -> Iterator[Batch]:
        """Iterate over this process's shard of every global batch, in order, starting at an epoch."""
        return all_batches(self._plan, self.feed(), first_epoch)

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any]:
        """Update the model once on one batch.

        Args:
            batch: this process's shard of N examples: images uint8 [N, H, W, 3], labels int64 [N], masks bool [N, units].
            num_examples: size of the global batch.
            learning_rate: learning rate of this update.

        Returns:
            (loss, num_correct), scalars on the device: this process's share of the mean loss over num_examples, and how many
            of its predictions are right.
        """
        self._step += 1
        return self._run_step(batch, num_examples, learning_rate)

    def compile(self, step_sizes: Sequence[int], score_sizes: Sequence[int]) -> None:
        """Run blank batches, so that nothing is built for a batch size in a timed step. The training state does not change.

        A framework builds kernels, graphs or plans for a shape in its first run, and CUDA graphs in its second. So every
        batch size has run twice after this. Call it after the first step, which was the first run of a whole batch.

        Args:
            step_sizes: sizes of the global batches to train on.
            score_sizes: sizes of this process's batches to score.
        """
        index, number = self.shard
        with self._unchanged():
            trained_size = self._plan.batch(0)[1]
            first_sizes = tuple(
                stop - start for start, stop in (self._plan.bounds(1, number, rank)[0] for rank in range(number))
            )
            for size in step_sizes:
                # Replicas exchange gradients in a blank step too, so all of them make equally many.
                for sizes in self._plan.local_batch_sizes(size, number):
                    for _ in range(1 if (sizes, size) == (first_sizes, trained_size) else 2):
                        self._blank_step(sizes[index], size)
            for size in score_sizes:
                self._blank_score(self._blank(size))

    def compilations(self) -> int:
        """Return a counter that grows whenever this process traces or compiles something, or first trains on a batch size."""
        raise NotImplementedError

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
        raise NotImplementedError

    def fetch(self, values: list[Any]) -> npt.NDArray[Any]:
        """Copy results of `train_step` or `score` to one host array [len(values)], the same in all processes of a shard."""
        raise NotImplementedError

    def all_reduce_shards(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sum float64 or int64 values over all shards; every process gets the sum."""
        return self._shards.sum(values) if self._shards else values

    def all_reduce_world(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sum float64 or int64 values over all processes; every process gets the sum."""
        return self._processes.sum(values) if self._processes else self.all_reduce_shards(values)

    def broadcast_statistics(self) -> None:
        """Copy replica 0's BatchNorm statistics to every replica. Evaluation uses them."""

    def weights(self) -> Weights:
        """Return every parameter and statistic by canonical name: replica 0's, or gathered if replicas divide the model."""
        raise NotImplementedError

    def load_weights(self, values: ReadOnlyWeights) -> None:
        """Set every parameter and statistic of every replica."""
        raise NotImplementedError

    def num_values(self) -> tuple[int, int]:
        """Return the number of values in the whole model, as (all, trainable). It is the same in every process."""
        raise NotImplementedError

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the training state between two epochs by name. All processes call it.

        It is for modes that can resume, see `Spec.not_resumable_because`.
        """
        if self.shards_optimizer:
            optimizer_arrays = {
                f"slots/{slot}/{name}": array for slot, arrays in self.slots().items() for name, array in arrays.items()
            }
        else:
            optimizer_arrays = {f"optimizer/{name}": array for name, array in self._optimizer_state().items()}
        return {f"weights/{name}": array for name, array in self.weights().items()} | optimizer_arrays

    def load_state(self, values: dict[str, npt.NDArray[Any]], step: int) -> None:
        """Restore what `state` returned after `step` updates."""
        self._step = step
        groups: dict[str, dict[str, npt.NDArray[Any]]] = {"weights": {}, "optimizer": {}}
        slots: dict[str, Weights] = {}
        for path, array in values.items():
            group, _, name = path.partition("/")
            if group == "slots":
                slot, _, name = name.partition("/")
                slots.setdefault(slot, {})[name] = array
            else:
                groups[group][name] = array
        if self.shards_optimizer or slots:  # one replica that is left of several reads what they gathered
            self.load_slots(slots, groups["weights"])
            return
        self.load_weights(groups["weights"])
        self._load_optimizer_state(groups["optimizer"])

    def slots(self) -> dict[str, Weights]:
        """Return the optimizer's arrays for each trainable parameter, by slot and canonical name, gathered like `weights`."""
        arrays_by_slot: dict[str, list[npt.NDArray[Any]]] = {}
        for path, array in self._optimizer_state().items():
            slot, _, index = path.partition("/")
            if index:
                arrays_by_slot.setdefault(slot, []).append(array)
        return {slot: self._by_name(arrays) for slot, arrays in arrays_by_slot.items()}

    def load_slots(self, values: Mapping[str, Weights], weights: Weights) -> None:
        """Restore what `slots` returned, and set every parameter and statistic."""
        arrays = self._optimizer_state()
        for slot, slot_arrays in values.items():
            self.load_weights({**weights, **slot_arrays})  # the model's own variables have the layout
            arrays |= {f"{slot}/{index}": array for index, array in enumerate(self._trainable())}
        self._load_optimizer_state(arrays)
        self.load_weights(weights)

    def gradients(self, batch: Batch, num_examples: int) -> Weights:
        """Compute the gradients of the mean loss by canonical name. Mode serial only. This changes BatchNorm statistics."""
        raise NotImplementedError

    def logits(self, batch: Batch, *, training: bool) -> npt.NDArray[np.floating]:
        """Compute logits [N, classes] of one batch, with the first copy of the model.

        Only mode serial supports `training`, which changes BatchNorm statistics.
        """
        raise NotImplementedError

    def record_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any, list[npt.NDArray[Any]]]:
        """Update the model once as `train_step` does, and record the decisions of its ReLUs and max-poolings.

        Returns:
            (loss, num_correct, decisions). Decisions are of this process's N examples, in the order of the model's layers: for
            a ReLU bool [N, ...], true where a value passes; for a max-pooling int16 [N, H, W, C], the index of the largest
            value in its window. Images are channels last. Empty if unknown: the graph is compiled, a user's own builder built
            the model, or a GPU computes.
        """
        return (*self.train_step(batch, num_examples, learning_rate), [])

    def error_feedback(self) -> list[npt.NDArray[Any]]:
        """Return the residuals of compression, which are added to the next gradients.

        Returns:
            [replicas of this process, count] of each bucket. Empty: there is no error feedback.
        """
        return []

    def memory_by_device(self) -> dict[str, float]:
        """Compute the MiB of each logical device that shares this process with others. Empty: memory is measured."""
        return {}

    def report(self, test: DatasetSplit) -> dict[str, Any]:
        """Return mode-specific result fields. Called once, after `test` is scored."""
        return {}

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> ComputeAndExchange | StepParts | str | None:
        """Split a step on this batch into compute and exchange; or why this is impossible. None: nothing is exchanged."""
        return f"mode {self._spec.variant} computes and sends in one"

    def step_breakdown(self, batch: Batch, num_examples: int) -> StepBreakdown | str:
        """Break a step on this batch into a replica's computations, without exchange; or why this is impossible."""
        return f"mode {self._spec.variant} sends within forward and backward"

    def record(self, work: Callable[[], None]) -> ProfilerRecording:
        """Run `work` under the framework's own profiler."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait until the device has finished all queued work."""
        raise NotImplementedError

    def close(self) -> None:
        """Disconnect from the other processes at the end of the run."""

    # Methods that a twin implements for the shared ones.

    def _run_step(self, batch: Batch, num_examples: int, learning_rate: float) -> Any:
        """Do one update on this process's shard. Returns (loss, num_correct)."""
        raise NotImplementedError

    def _blank(self, examples: int) -> Batch:
        """Return a batch of constant images with the shapes and dtypes of the input's batches. It may lie on the device."""
        raise NotImplementedError

    def _blank_step(self, examples: int, num_examples: int) -> None:
        """Do a step on a blank shard of `examples` examples, of a global batch of `num_examples`."""
        self._run_step(self._blank(examples), num_examples, 0.0)

    def _blank_score(self, batch: Batch) -> None:
        """Score a blank batch."""
        raise NotImplementedError

    def _unchanged(self) -> AbstractContextManager[None]:
        """Undo what blank batches change."""
        return nullcontext()

    def _optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        return self._optimizer.state()

    def _load_optimizer_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        self._optimizer.load_state(values)

    def _trainable(self) -> list[npt.NDArray[Any]]:
        """Return copies of the model's trainable variables, in the framework's order and layout."""
        raise NotImplementedError

    def _by_name(self, arrays: list[npt.NDArray[Any]]) -> Weights:
        """Return arrays, given in the framework's order and layout, by canonical name."""
        raise NotImplementedError

    def _ranks(self) -> list[str]:
        """Return a name for every process of the run, if each has a device."""
        return [f"rank {rank}: {self._kind}" for rank in range(self._spec.replicas)]


class ProfilerRecording(NamedTuple):
    """Recording of a framework's own profiler."""

    spans: Sequence[ProfilerSpan]
    trace: bytes
    """JSON in Chrome's trace event format."""


class ProfilerSpan(NamedTuple):
    """One operation in a profiler's recording."""

    name: str
    lane: int
    """Number of the thread or stream. Spans of a lane do not overlap, unless one is inside another."""
    start_seconds: float
    seconds: float

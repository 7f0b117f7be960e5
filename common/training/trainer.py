"""What a twin brings to a run: a `Trainer`, and the batches that it trains on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from common.artifacts.schema import StepParts
from common.data.batches import Feed
from common.data.sources import Split
from common.models.weights import Weights


class Batch(NamedTuple):
    """One process's shard of one global batch, as the input hands it to the model.

    ids: int64 [N]; images: uint8 [N, H, W, 3], augmented; labels: int64 [N]; masks: one bool [N, units] for each dropout.
    The arrays are the framework's own tensors, on the host. begun: when the input began to make the batch, in seconds since
    1970; 0 if it was made by hand.
    """

    ids: Any
    images: Any
    labels: Any
    masks: tuple[Any, ...]
    begun: Any = 0.0


class Update(NamedTuple):
    """What every replica must know of one optimizer update. Each field is a number, or a framework's tensor of it."""

    num_examples: Any
    """In the global batch."""
    learning_rate: Any
    step: Any
    """Of the run, from 1."""
    micro_batches: int = 1
    """Into which each replica cuts its shard. Their gradients are summed."""


class ComputeAndExchange(NamedTuple):
    """The two parts of a step, which are timed separately. All processes of the run call each; the weights stay."""

    compute: Callable[[], Sequence[float] | None]
    """A step without any exchange. Returns the seconds of each replica; None if the caller's clock measures them."""
    exchange: Callable[[], None]
    """Only what replicas send each other in a step."""
    not_separable: str | None = None
    """Why the computing time of each replica is unknown."""


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
    """Why there is no optimizer, or what else a function computes."""


class Trainer(Protocol):
    """One process of one mode in one framework.

    A mode of several processes has one Trainer in each. Processes that share a copy of the model have the same shard, train
    on the same examples, and report the same results.
    """

    implementation: str
    devices: list[str]
    threads: dict[str, int]
    shard: tuple[int, int]
    """(index, number): the part of every global batch, and of every scored split, that this process takes."""

    @property
    def updates(self) -> int:
        """How many steps have been done since the run began."""
        ...

    def feed(self) -> Feed[Batch]:
        """A feed of this process's shard of global batches."""
        ...

    def batches(self, first_epoch: int = 1) -> Iterator[Batch]:
        """Iterate over this process's shard of every global batch, in order, starting at an epoch."""
        ...

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any]:
        """Update the model once on one batch.

        Args:
            batch: this process's shard of N examples: images uint8 [N, H, W, 3], labels int64 [N], masks bool [N, units].
            num_examples: size of the global batch.

        Returns:
            (loss, num_correct), scalars on the device: this process's share of the mean loss over num_examples, and how many
            of its predictions are right.
        """
        ...

    def compile(self, step_sizes: Sequence[int], score_sizes: Sequence[int]) -> None:
        """Run blank batches, so that nothing is built for a batch size in a timed step. The training state stays as it is.

        A framework builds kernels, graphs or plans for a shape in its first run, and CUDA graphs in its second. So every
        batch size has run twice after this. Call it after the first step, which was the first run of a whole batch.

        Args:
            step_sizes: of the global batches to train on.
            score_sizes: of this process's batches to score.
        """
        ...

    def compilations(self) -> int:
        """A number that grows whenever this process traces or compiles something, or first trains on a batch size."""
        ...

    def finish_epoch(self) -> None:
        """Average or pull the weights that all ranks have trained. This is part of the training's time."""
        ...

    def score(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> tuple[Any, npt.NDArray[np.int64]]:
        """Score one batch in evaluation mode.

        Args:
            images: uint8 [N, H, W, 3], on the host.
            labels: int64 [N], on the host.

        Returns:
            (loss_sum, predictions): the loss summed over the N examples, on the device, and predicted labels int64 [N], on
            the host.
        """
        ...

    def fetch(self, values: list[Any]) -> npt.NDArray[Any]:
        """Copy results of `train_step` or `score` to one host array [len(values)], the same in all processes of a shard."""
        ...

    def all_reduce(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sum float64 or int64 values over all shards; every process gets the sum."""
        ...

    def total(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sum float64 or int64 values over all processes; every process gets the sum."""
        ...

    def share_statistics(self) -> None:
        """Copy replica 0's BatchNorm statistics to every replica. Evaluation uses them."""
        ...

    def weights(self) -> Weights:
        """Every parameter and statistic by canonical name: replica 0's, or gathered where replicas divide the model."""
        ...

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The training state between two epochs, by name, for the modes that can resume (see `Spec.starts_over`)."""
        ...

    def load_state(self, values: dict[str, npt.NDArray[Any]], step: int) -> None:
        """Restore what `state` returned after `step` updates."""
        ...

    def report(self, test: Split) -> dict[str, Any]:
        """Mode-specific result fields. Called once, after `test` is scored."""
        ...

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> ComputeAndExchange | StepParts | str | None:
        """Split a step on this batch into compute and exchange; or why this is impossible. None: nothing is exchanged."""
        ...

    def step_breakdown(self, batch: Batch, num_examples: int) -> StepBreakdown | str:
        """Break a step on this batch into a replica's computations, without exchange; or why this is impossible."""
        ...

    def record(self, work: Callable[[], None]) -> Recording:
        """Run `work` under the framework's own profiler."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has finished all queued work."""
        ...

    def close(self) -> None:
        """Disconnect from the other processes at the end of the run."""
        ...


class Recording(NamedTuple):
    """What a framework's own profiler recorded."""

    spans: Sequence[Span]
    trace: bytes
    """JSON in Chrome's trace event format."""


class Span(NamedTuple):
    """One operation in a profiler's recording."""

    name: str
    lane: int
    """The thread or stream that it ran on. Spans of a lane follow one another, or one is inside another."""
    start_seconds: float
    seconds: float

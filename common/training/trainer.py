"""What a twin brings to a run: a `Trainer`, and the batches that it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from common.artifacts.schema import StepParts
from common.data.sources import Split
from common.models.weights import Weights


class Batch(NamedTuple):
    """What the input hands to the model: one process's shard of one global batch.

    ids: int64 [N]; images: uint8 [N, H, W, 3], augmented; labels: int64 [N]; masks: one bool [N, units] a dropout.
    The arrays are the framework's own tensors, on the host.
    """

    ids: Any
    images: Any
    labels: Any
    masks: tuple[Any, ...]


class Update(NamedTuple):
    """What every replica must know of one optimizer update; a number each, or a framework's tensor of it."""

    num_examples: Any
    """In the global batch."""
    learning_rate: Any
    step: Any
    """Of the run, from 1."""
    parts: int = 1
    """Into how many each replica cuts its shard, to add up their gradients."""


class Separated(NamedTuple):
    """A step taken apart: each part is called by itself, by all processes of the run alike, and nothing is learned."""

    compute: Callable[[], Sequence[float] | None]
    """A step without any exchange. Returns the seconds of each replica; None where the caller's clock says it."""
    exchange: Callable[[], None]
    """What replicas send each other in a step, by itself."""
    fused: str | None = None
    """Why one replica's computing cannot be told from another's."""


class Pieces(NamedTuple):
    """What a replica computes in a step, piece by piece: all processes of the run call them in this order, none learns."""

    transfer: Callable[[], None]
    """The batch from the host to the device."""
    forward: Callable[[], None]
    backward: Callable[[], None]
    optimizer: Callable[[], None] | None
    nested: bool = False
    """Whether `backward` begins with forward again, and `optimizer` with both, so that they are told by differences."""
    fused: str | None = None
    """Why there is no optimizer, or what else is in a piece."""


class Trainer(Protocol):
    """One process of one mode in one framework.

    A mode of several processes has one Trainer in each. Processes that share a copy of the model have the same shard, train
    on the same examples, and say the same of them.
    """

    implementation: str
    devices: list[str]
    threads: dict[str, int]
    shard: tuple[int, int]
    """(index, number): which part of every global batch, and of every split that is scored, this process takes."""

    def batches(self, first_epoch: int = 1) -> Iterator[Batch]:
        """This process's shard of every global batch of the run from an epoch on, in order."""
        ...

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any]:
        """Update the model once; (this process's share of the mean loss over num_examples, num_correct), on the device."""
        ...

    def score(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> tuple[Any, npt.NDArray[np.int64]]:
        """(sum of losses, on the device; int64 [N] predicted labels) of one batch in evaluation mode."""
        ...

    def fetch(self, values: list[Any]) -> npt.NDArray[Any]:
        """What `train_step` and `score` gave, to one host array of the same length; the same in all processes of a shard."""
        ...

    def all_reduce(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The sum over shards, in every process; float64 or int64."""
        ...

    def total(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The sum over processes, in every process; float64 or int64."""
        ...

    def share_statistics(self) -> None:
        """Give every replica the BatchNorm statistics of replica 0, from which evaluation is done."""
        ...

    def weights(self) -> Weights:
        """Every parameter and statistic by canonical name, as the model has them: replica 0's, or gathered from its parts."""
        ...

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What training goes on from between two epochs, by name; of the modes that `Spec.starts_over` lets go on."""
        ...

    def load_state(self, values: dict[str, npt.NDArray[Any]], step: int) -> None:
        """Go on after `step` updates, from what `state` gave then."""
        ...

    def report(self, test: Split) -> dict[str, Any]:
        """What else the mode has to say of the run, as fields of its result; asked once, after `test` was scored."""
        ...

    def separate(self, batch: Batch, num_examples: int) -> Separated | StepParts | str | None:
        """The parts of a step on this batch, to be timed apart; or why that cannot be done; None: nothing is exchanged."""
        ...

    def pieces(self, batch: Batch, num_examples: int) -> Pieces | str:
        """What a replica computes in a step on this batch, piece by piece and without exchange; or why there are no pieces."""
        ...

    def record(self, work: Callable[[], None]) -> Recording:
        """Do some work under the framework's own profiler."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all that was asked of it."""
        ...

    def close(self) -> None:
        """Part from the other processes, when all is done."""
        ...


class Recording(NamedTuple):
    """What a framework's own profiler has seen of some work."""

    spans: Sequence[Span]
    trace: bytes
    """JSON in Chrome's trace event format."""


class Span(NamedTuple):
    """One operation, as a profiler has seen it."""

    name: str
    lane: int
    """The thread or the stream that it ran on: there spans follow one another, or one is inside another."""
    start_seconds: float
    seconds: float

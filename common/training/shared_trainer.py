"""The part of a trainer that needs no framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy.typing as npt

from common.artifacts.schema import StepParts
from common.data.batches import Feed, Plan, in_order
from common.data.sources import Dataset, Split
from common.models.architectures import Architecture
from common.models.sharding import shard
from common.models.weights import Weights
from common.spec import Spec, resolved
from common.training.trainer import Batch, ComputeAndExchange, StepBreakdown


class SharedTrainer:
    """One process of a run. A twin adds its framework, a mode how replicas train and score together.

    Each process calls `train_step` with its own shard of every global batch. `TraceableTrainer` documents the public methods.

    Args:
        description: the twin's `describe` in this process.
    """

    shard: tuple[int, int] = (0, 1)
    _shards: Any = None
    """Sums over processes of different shards: a `Group` or a server. None: there is one shard."""
    _processes: Any = None
    """Sums over all processes, where several have the same shard."""
    _optimizer: Any

    def __init__(
        self, spec: Spec, architecture: Architecture, plan: Plan, dataset: Dataset, description: dict[str, Any]
    ) -> None:
        self._spec = spec
        self._architecture = architecture
        self._plan = plan
        self._dataset = dataset
        self._step = 0
        self._switches = resolved(spec, description["options"])
        self._kind: str = description["devices"][0]["kind"]
        self._compiled_for: int | None = None
        self._shapes: set[tuple[int, int]] = set()  # examples of this process and micro-batches, of all steps so far
        self.devices = [self._kind]
        self.implementation: str = description["modes"][spec.mode]["implementation"]
        self._synchronises = spec.batch_norm_statistics == "synchronised" and spec.replicas > 1

    @property
    def updates(self) -> int:
        return self._step

    def feed(self) -> Feed[Batch]:
        raise NotImplementedError

    def batches(self, first_epoch: int = 1) -> Iterator[Batch]:
        return in_order(self._plan, self.feed(), first_epoch)

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any]:
        self._step += 1
        return self._run_step(batch, num_examples, learning_rate)

    def compile(self, step_sizes: Sequence[int], score_sizes: Sequence[int]) -> None:
        index, number = self.shard
        with self._unchanged():
            for size in step_sizes:
                start, stop = shard(size, number, index)
                for _ in range(1 if size == self._plan.batch(0)[1] else 2):
                    self._blank_step(stop - start, size)
            for size in score_sizes:
                self._blank_score(self._blank(size))

    def finish_epoch(self) -> None:
        """Nothing is averaged or pulled."""

    def all_reduce(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self._shards.sum(values) if self._shards else values

    def total(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self._processes.sum(values) if self._processes else self.all_reduce(values)

    def share_statistics(self) -> None:
        """There is one replica, or all have the same statistics."""

    def weights(self) -> Weights:
        raise NotImplementedError

    def load_weights(self, values: Weights) -> None:
        raise NotImplementedError

    def state(self) -> dict[str, npt.NDArray[Any]]:
        kept = {f"optimizer/{name}": array for name, array in self._optimizer_state().items()}
        return {f"weights/{name}": array for name, array in self.weights().items()} | kept

    def load_state(self, values: dict[str, npt.NDArray[Any]], step: int) -> None:
        self._step = step
        groups: dict[str, dict[str, npt.NDArray[Any]]] = {"weights": {}, "optimizer": {}}
        for path, array in values.items():
            group, _, name = path.partition("/")
            groups[group][name] = array
        self.load_weights(groups["weights"])
        self._load_optimizer_state(groups["optimizer"])

    def slots(self) -> dict[str, Weights]:
        found: dict[str, list[npt.NDArray[Any]]] = {}
        for path, array in self._optimizer_state().items():
            slot, _, index = path.partition("/")
            if index:
                found.setdefault(slot, []).append(array)
        return {slot: self._by_name(arrays) for slot, arrays in found.items()}

    def load_slots(self, values: Mapping[str, Weights]) -> None:
        own, arrays = self.weights(), self._optimizer_state()
        for slot, each in values.items():
            self.load_weights({**own, **each})  # the model's own variables have the layout
            arrays |= {f"{slot}/{index}": array for index, array in enumerate(self._trainable())}
        self._load_optimizer_state(arrays)
        self.load_weights(own)

    def report(self, test: Split) -> dict[str, Any]:
        return {}

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> ComputeAndExchange | StepParts | str | None:
        return f"mode {self._spec.variant} computes and sends in one"

    def step_breakdown(self, batch: Batch, num_examples: int) -> StepBreakdown | str:
        return f"mode {self._spec.variant} sends within forward and backward"

    def close(self) -> None:
        """There is no connection to end."""

    # What a twin adds.

    def _run_step(self, batch: Batch, num_examples: int, learning_rate: float) -> Any:
        """(loss, num_correct) of one update on this process's shard."""
        raise NotImplementedError

    def _blank(self, examples: int) -> Batch:
        """A batch of white images, as the input would make it."""
        raise NotImplementedError

    def _blank_step(self, examples: int, num_examples: int) -> None:
        """A step on a blank shard of so many examples, of a global batch of num_examples."""
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
        """Copies of the model's trainable variables, in the framework's order and layout."""
        raise NotImplementedError

    def _by_name(self, arrays: list[npt.NDArray[Any]]) -> Weights:
        """Arrays in the framework's order and layout, by canonical name."""
        raise NotImplementedError

    def _ranks(self) -> list[str]:
        """A name for every process of the run, where each has a device."""
        return [f"rank {rank}: {self._kind}" for rank in range(self._spec.replicas)]

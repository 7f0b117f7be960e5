"""Mode multi_process: one process per replica. A ring all-reduce exchanges the gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from common.data.sources import DatasetSplit
from common.machine import flight, placement
from common.training.communication import exchange_bytes, statistics_payload_bytes
from common.training.trainer import Batch, ComputeAndExchange, StepBreakdown, Update
from tensorflow_impl import collectives, train
from tensorflow_impl.parallel import group
from tensorflow_impl.parallel.trainer import Trainer


class MultiProcess(Trainer):
    """One rank of several. Its environment holds its number, see `rendezvous`."""

    def _build(self) -> None:
        self.shard = placement.rank(), placement.num_ranks()
        self.devices = self._ranks()
        self._shards = group.all_ranks()
        number = collectives.channel(None).begin("set_up")  # TensorFlow sends every new variable's value
        self._replicate(self._shards)
        flight.end(number)

    def _call(self, graph: Callable[..., Any], *arguments: Any) -> Any:
        return collectives.run_graph(graph, *arguments)

    def _run_replicas(self, replica_fn: Callable[..., Any], images: Any, labels: Any, masks: Any) -> Any:
        return self._strategy.run(lambda: replica_fn(images, labels, masks))

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        def replica_fn(images: Any, labels: Any, masks: Any) -> Any:
            return train.train_step(
                self._objective, self._model, self._optimizer, images, labels, masks, update, self._exchange
            )

        losses, num_correct = self._run_replicas(replica_fn, images, labels, masks)
        return self._strategy.experimental_local_results(losses)[0], self._strategy.experimental_local_results(num_correct)[0]

    def broadcast_statistics(self) -> None:
        self._shards.broadcast(self._statistics())

    def report(self, test: DatasetSplit) -> dict[str, Any]:
        """Report the bytes of the gradients and of synchronised BatchNorm's sums."""
        return {"bytes_per_step": exchange_bytes(self._spec, self._architecture)}

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> ComputeAndExchange | str:
        """Return a step without the exchange of gradients, and that exchange; or why they cannot be separated."""
        if statistics_payload_bytes(self._spec, self._architecture):
            return "BatchNorm's statistics are exchanged within forward and backward"
        return self._split_step(batch, num_examples)

    def step_breakdown(self, batch: Batch, num_examples: int) -> StepBreakdown | str:
        """Return a rank's forward pass, backward pass and update, or why they cannot be called one by one."""
        return self._break_down(self._model, batch, num_examples)

"""A rank of mode parameter_server, which both twins share: it pushes gradients to a server, and pulls the parameters."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from common.data.sources import DatasetSplit
from common.machine import placement
from common.models.weights import ReadOnlyWeights, Weights, split
from common.processes import parameter_server, rendezvous
from common.training.communication import server_bytes, statistics_payload_bytes
from common.training.trainer import BaseTrainer, Batch, ComputeAndExchange, StepBreakdown


class ServerTrainer(BaseTrainer):
    """One rank of several. Its environment holds its number, see `rendezvous`.

    A twin's class adds its `Trainer`, the model, `_train_step`, which returns the messages of the gradient too, and the methods
    below that are not implemented.
    """

    _model: Any
    _compressor: Any
    """The twin's `Compressor`."""
    _parameters: dict[str, Any]
    """The model's trainable parameters by canonical name, in canonical order. The server's values have this order."""
    _vectors: ModuleType
    """The twin's module `vectors`."""
    _server: parameter_server.ServerConnection
    # Methods of the twin's `Trainer`.
    _load_into: Callable[[Any, ReadOnlyWeights], None]
    """Sets every parameter and statistic of one model."""
    _to_host: Callable[[Any], npt.NDArray[Any]]
    """Copies a tensor to the host."""
    _break_down: Callable[[Any, Batch, int], StepBreakdown | str]
    """Breaks a step of a model that this process holds whole into its computations; or says why this is impossible."""
    _statistics: Callable[[], list[Any]]
    """Returns BatchNorm's running statistics of the model, as the framework's own variables."""
    _tensor: Callable[[npt.NDArray[Any]], Any]
    """Copies an array to the device."""

    def _join_server(self) -> None:
        """Find the run's server. Call it first in `_build`."""
        self.shard = placement.rank(), placement.num_ranks()
        self.devices = self._ranks()
        self._shards = self._server = parameter_server.join(self._spec, self.shard[0], rendezvous.rendezvous_id())

    def _set_parameters(self, values: npt.NDArray[Any]) -> None:
        """Set the trainable parameters from the server's values, [count]."""
        raise NotImplementedError

    def _num_counted(self, num_local: Any, update: Any) -> Any:
        """Return the number of examples whose mean loss a worker uses. An asynchronous one uses those of its own shard."""
        return update.num_examples if self._spec.parameter_server.updates == "synchronous" else num_local

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any]:
        """Compute gradients, push them to the server and pull the weights that it has updated."""
        step: Any = super().train_step(batch, num_examples, learning_rate)
        loss, num_correct, messages = step
        self._server.push([self._to_host(message) for message in messages], learning_rate)
        self._set_parameters(self._server.pull())
        return loss, num_correct

    def finish_epoch(self) -> None:
        """Pull what all workers have pushed in the epoch."""
        self._server.barrier()
        self._set_parameters(self._server.pull())

    def broadcast_statistics(self) -> None:
        """Copy rank 0's BatchNorm statistics to every rank."""
        if statistics := self._statistics():
            values = self._to_host(self._vectors.flatten(statistics))
            of_first = self._server.sum(values if self.shard[0] == 0 else np.zeros_like(values))
            self._vectors.assign(statistics, self._tensor(of_first))

    def report(self, test: DatasetSplit) -> dict[str, Any]:
        """Report the server's measurements, and the bytes of the exchange."""
        fields = self._server.report()
        statistics = statistics_payload_bytes(self._spec, self._architecture)
        return fields | {"bytes_per_step": fields["bytes_per_step"] + server_bytes(statistics, self._spec.replicas)}

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> ComputeAndExchange | str:
        """Return a step without the server, and push and pull; or why they cannot be separated."""
        if self._synchronises:
            return "BatchNorm's statistics are exchanged within forward and backward"
        messages: list[npt.NDArray[Any]] = []
        train_alone: Any = super().train_step

        def compute() -> None:
            nonlocal messages
            messages = [self._to_host(message) for message in train_alone(batch, num_examples, 0.0)[2]]

        def exchange() -> None:
            self._server.push(messages, 0.0)
            self._set_parameters(self._server.pull())

        return ComputeAndExchange(compute, exchange)

    def step_breakdown(self, batch: Batch, num_examples: int) -> StepBreakdown | str:
        """Return a worker's forward and backward pass, or why they cannot be called one by one."""
        breakdown = self._break_down(self._model, batch, num_examples)
        if isinstance(breakdown, str):
            return breakdown
        notes = filter(None, [breakdown.note, "the server updates the weights"])
        return breakdown._replace(optimizer=None, note="; ".join(notes))

    def close(self) -> None:
        """Leave the server, when all workers are done."""
        self._server.close()

    def load_weights(self, values: ReadOnlyWeights) -> None:
        """Set every parameter and statistic of every rank, and the server's parameters."""
        self._load_into(self._model, values)
        self._server.load(self._trainable()[0], self._compressor.counts)

    # The server holds the optimizer, of one vector of all parameters.

    def _optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        return {f"{slot}/0": values for slot, values in self._server.slots().items()}

    def _load_optimizer_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        self._server.load_slots({path.removesuffix("/0"): array for path, array in values.items()})

    def _trainable(self) -> list[npt.NDArray[Any]]:
        flat = [self._compressor.flatten(name, parameter) for name, parameter in self._parameters.items()]
        return [self._to_host(self._vectors.flatten(flat))]

    def _by_name(self, arrays: list[npt.NDArray[Any]]) -> Weights:
        parts = np.split(arrays[0], np.cumsum(self._compressor.sizes)[:-1])
        canonical = [
            self._compressor.to_canonical(name, self._tensor(part)) for name, part in zip(self._parameters, parts, strict=True)
        ]
        return split(self._to_host(self._vectors.flatten(canonical)), self._architecture)

"""Mode parameter_server: one process per replica, and a server that holds and updates the parameters."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from common.data.sources import Split
from common.models.weights import GivenWeights, Weights, split
from common.processes import parameter_server, rendezvous
from common.training.communication import server_bytes, statistics_payload_bytes
from common.training.trainer import Batch, ComputeAndExchange, StepBreakdown, Update
from pytorch_impl import weights
from pytorch_impl.compression import Compressor
from pytorch_impl.parallel import vectors
from pytorch_impl.parallel.trainer import Trainer


class ParameterServer(Trainer):
    """One rank of several. Its environment holds its number, see `rendezvous`."""

    def _build(self) -> None:
        self.shard = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.devices = self._ranks()
        self._shards = self._server = parameter_server.join(self._spec, self.shard[0], rendezvous.word())
        self._model = self._new_model(_Workers(self._server) if self._synchronises else None)
        self._compressor = Compressor(self._spec.communication, self._model, self._architecture)
        own = list(self._model.parameters())
        # Twin: the server's values have the canonical order of parameters. Each has the layout of the compressor's messages.
        self._parameters = {name: own[place] for name, place in weights.positions(self._model, self._architecture).items()}

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        # An asynchronous worker uses the mean loss over its own shard.
        synchronous = self._spec.parameter_server.updates == "synchronous"
        counted = update.num_examples if synchronous else len(labels)
        own = update._replace(num_examples=counted)
        loss, num_correct, gradients = self._objective.gradients(self._model, images, labels, masks, own)
        return loss * (counted / update.num_examples), num_correct, list(self._compressor.compress(gradients))

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any]:
        """Compute gradients, push them to the server and pull the weights that it has updated."""
        step: Any = super().train_step(batch, num_examples, learning_rate)
        loss, num_correct, messages = step
        self._server.push([message.cpu().numpy() for message in messages], learning_rate)
        self._pull()
        return loss, num_correct

    @torch.no_grad()
    def _pull(self) -> None:
        parts = self._tensor(self._server.pull()).split(self._compressor.sizes)
        for (name, parameter), part in zip(self._parameters.items(), parts, strict=True):
            parameter.copy_(self._compressor.restored(name, part))

    def finish_epoch(self) -> None:
        self._server.barrier()
        self._pull()  # includes what other workers have pushed since

    def broadcast_statistics(self) -> None:
        if statistics := [buffer for buffer in self._model.buffers() if buffer.is_floating_point()]:
            own = vectors.flatten(statistics).cpu().numpy()
            vectors.assign(statistics, self._tensor(self._server.sum(own if self.shard[0] == 0 else np.zeros_like(own))))

    def report(self, test: Split) -> dict[str, Any]:
        """What the server measured, and bytes of the exchange."""
        found = self._server.report()
        statistics = statistics_payload_bytes(self._spec, self._architecture)
        return found | {"bytes_per_step": found["bytes_per_step"] + server_bytes(statistics, self._spec.replicas)}

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> ComputeAndExchange | str:
        """A step without the server, and push and pull; or why they cannot be separated."""
        if self._synchronises:
            return "BatchNorm's statistics are exchanged within forward and backward"
        messages: list[npt.NDArray[Any]] = []
        train_alone: Any = super().train_step

        def compute() -> None:
            nonlocal messages
            messages = [message.cpu().numpy() for message in train_alone(batch, num_examples, 0.0)[2]]

        def exchange() -> None:
            self._server.push(messages, 0.0)
            self._pull()

        return ComputeAndExchange(compute, exchange)

    def step_breakdown(self, batch: Batch, num_examples: int) -> StepBreakdown | str:
        """A worker's forward and backward pass, or why they cannot be called one by one."""
        breakdown = self._breakdown_of(self._model, batch, num_examples)
        if isinstance(breakdown, str):
            return breakdown
        notes = filter(None, [breakdown.note, "the server updates the weights"])
        return breakdown._replace(optimizer=None, note="; ".join(notes))

    def close(self) -> None:
        self._server.close()

    def load_weights(self, values: GivenWeights) -> None:
        weights.load(self._model, self._architecture, values)
        self._server.load(self._trainable()[0], self._compressor.counts)

    # The server holds the optimizer, of one vector of all parameters.

    def _optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        return {f"{slot}/0": values for slot, values in self._server.slots().items()}

    def _load_optimizer_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        self._server.load_slots({path.removesuffix("/0"): array for path, array in values.items()})

    def _trainable(self) -> list[npt.NDArray[Any]]:
        own = [self._compressor.flattened(name, parameter.detach()) for name, parameter in self._parameters.items()]
        return [torch.cat(own).cpu().numpy()]

    def _by_name(self, arrays: list[npt.NDArray[Any]]) -> Weights:
        parts = self._tensor(arrays[0]).split(self._compressor.sizes)
        canonical = [self._compressor.canonical(name, part) for name, part in zip(self._parameters, parts, strict=True)]
        return split(torch.cat(canonical).cpu().numpy(), self._architecture)


class _Workers:
    """Sums over processes, for synchronised BatchNorm."""

    def __init__(self, server: parameter_server.Connection) -> None:
        self._server = server

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.tensor(self._server.sum(tensor.detach().cpu().numpy()), device=tensor.device)

"""Mode parameter_server: one process per replica, and a server that holds and updates the parameters."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch

from common.processes.parameter_server import ServerConnection
from common.processes.server_trainer import ServerTrainer
from common.training.trainer import Update
from pytorch_impl import weights
from pytorch_impl.compression import Compressor
from pytorch_impl.parallel import vectors
from pytorch_impl.parallel.trainer import Trainer


class ParameterServer(ServerTrainer, Trainer):
    """One rank of several. Its environment holds its number, see `rendezvous`."""

    _vectors = vectors

    def _build(self) -> None:
        self._join_server()
        self._model = self._new_model(_WorkerGroup(self._server) if self._synchronises else None)
        self._compressor = Compressor(self._spec.communication, self._model, self._architecture)
        self._compressors = [self._compressor]
        parameters = list(self._model.parameters())
        self._parameters = {
            name: parameters[place] for name, place in weights.positions(self._model, self._architecture).items()
        }

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        num_counted = self._num_counted(len(labels), update)
        worker_update = update._replace(num_examples=num_counted)
        loss, num_correct, gradients = self._objective.gradients(self._model, images, labels, masks, worker_update)
        return loss * (num_counted / update.num_examples), num_correct, list(self._compressor.compress(gradients))

    @torch.no_grad()
    def _set_parameters(self, values: npt.NDArray[Any]) -> None:
        parts = self._tensor(values).split(self._compressor.sizes)
        for (name, parameter), part in zip(self._parameters.items(), parts, strict=True):
            parameter.copy_(self._compressor.restore(name, part))


class _WorkerGroup:
    """The group of all workers, which sums over processes for synchronised BatchNorm."""

    def __init__(self, server: ServerConnection) -> None:
        self._server = server

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.tensor(self._server.sum(tensor.detach().cpu().numpy()), device=tensor.device)

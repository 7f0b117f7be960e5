"""Mode multi_process: one process a replica, gradients exchanged by ring all-reduce."""

from __future__ import annotations

import os
from typing import Any

import numpy.typing as npt
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from pytorch_impl import optim, train
from pytorch_impl.parallel.serial import Serial


class MultiProcess(Serial):
    """One rank of several; who it is stands in its environment, see `rendezvous`."""

    def _build(self) -> None:
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        cuda = self._device.type == "cuda"
        if cuda:
            self._device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self._device)
        if not distributed.is_initialized():
            distributed.init_process_group("nccl" if cuda else "gloo", device_id=self._device if cuda else None)
        self.devices = [f"rank {rank}: {self._device.type}" for rank in range(self.world_size)]
        self._synchronised = self._spec.batch_norm_statistics == "synchronised"
        self._model = self._new_model(_Ranks() if self._synchronised else None)
        self._wrapped = DistributedDataParallel(
            self._model, device_ids=[self._device.index] if cuda else None, forward_sync_buffers=False
        )
        self._optimizer = optim.build(self._spec.optimizer, list(self._model.parameters()))

    def _train_replicas(self, images: Any, labels: Any, masks: Any, num_examples: int, learning_rate: float) -> Any:
        self._wrapped.train()
        loss, num_correct = train.forward(
            self._wrapped, images, labels, masks, num_examples, loss=self._spec.loss, scaling=self._plan.scaling
        )
        # DDP takes the mean over ranks; the shares of the loss add up, so each counts world_size times.
        gradients = train.gradients(self._wrapped, loss * self.world_size)
        self._optimizer.apply(gradients, learning_rate, self._step)
        return loss.detach(), num_correct

    def all_reduce(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The sum over processes, in every process; float64 or int64."""
        tensor = self._tensor(values)
        distributed.all_reduce(tensor)
        return tensor.cpu().numpy()

    def share_statistics(self) -> None:
        """Give every replica the BatchNorm statistics of replica 0, from which evaluation is done."""
        for buffer in self._model.buffers():
            distributed.broadcast(buffer, 0)


class _Ranks:
    """Adding tensors up over processes, for synchronised BatchNorm."""

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over replicas, the same in each; its gradient is the sum of the gradients."""
        total = tensor.clone()
        distributed.all_reduce(total)
        return total

"""Exchanges between the processes of a run. Each is recorded, see `common.machine.flight`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from common.machine import flight
from common.spec import Communication

_DEFAULT_BUCKET_MIB: float = Communication.model_fields["bucket_mib"].default
_DTYPES = {getattr(torch, name): name for name in flight.DTYPES if name}


@cache
def channel(group: Any) -> flight.Channel:
    """Return the recorded channel of some processes of the run.

    Args:
        group: the group of these processes. None: all.
    """
    # Twin: a process group may hold some of the ranks. A strategy of TensorFlow's holds all.
    return flight.group_channel(tuple(distributed.get_process_group_ranks(group)))


def begin(group: Any, kind: str, tensor: torch.Tensor, shape: tuple[int, ...] | None = None) -> int:
    """Record that an exchange begins. Returns its number, for `flight.end`.

    Args:
        group: the processes that take part.
        kind: one of `flight.KINDS`.
        tensor: the tensor that this process sends or receives.
        shape: the shape that is equal in all processes. None: the tensor's.
    """
    return channel(group).begin(kind, _DTYPES.get(tensor.dtype, ""), tuple(shape or tensor.shape), tensor.nbytes)


class _Pending:
    """An exchange that other work does not wait for."""

    def __init__(self, work: Any, number: int) -> None:
        self._work = work
        self._number = number

    def wait(self) -> None:
        """Wait until the exchange is done. On a GPU: let the device wait."""
        self._work.wait()
        flight.end(self._number)


def all_reduce(tensor: torch.Tensor, group: Any) -> None:
    """Sum a tensor over processes, in place."""
    number = begin(group, "all_reduce", tensor)
    distributed.all_reduce(tensor, group=group)
    flight.end(number)


def start_all_reduce(tensor: torch.Tensor) -> _Pending:
    """Begin to sum a tensor over processes, in place."""
    number = begin(None, "all_reduce", tensor)
    return _Pending(distributed.all_reduce(tensor, async_op=True), number)


def start_all_gather(gathered: list[torch.Tensor], tensor: torch.Tensor) -> _Pending:
    """Begin to gather the tensors of all processes."""
    number = begin(None, "all_gather", tensor)
    return _Pending(distributed.all_gather(gathered, tensor, async_op=True), number)


def gather_objects(value: Any, group: Any) -> list[Any]:
    """Gather a value of every process, of any type, off the clock."""
    number = begin(group, "all_gather", torch.zeros(0))
    gathered = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(gathered, value, group)
    flight.end(number)
    return gathered


def broadcast(tensor: torch.Tensor, group: Any, source: int) -> None:
    """Copy the tensor of one process, named by its rank in the group, to all."""
    number = begin(group, "broadcast", tensor)
    distributed.broadcast(tensor, group=group, group_src=source)
    flight.end(number)


def barrier() -> None:
    """Wait until all processes have reached this point."""
    number = channel(None).begin("barrier")
    distributed.barrier()
    flight.end(number)


def new_group(ranks: Sequence[int]) -> Any:
    """Form a group. All processes of the run call this."""
    number = channel(None).begin("new_group", shape=tuple(ranks))
    group = distributed.new_group(list(ranks))
    flight.end(number)
    return group


def swap(number: int, messages: list[distributed.P2POp]) -> None:
    """Send and receive messages at the same time, as the exchange with this number."""
    for work in distributed.batch_isend_irecv(messages):
        work.wait()
    flight.end(number)


def send(tensor: torch.Tensor, group: Any, destination: int) -> _Pending:
    """Begin to send a tensor to a process, named by its rank in the group."""
    number = begin_message(tensor, _global(group, destination), sends=True)
    return _Pending(distributed.isend(tensor, group=group, group_dst=destination), number)


def receive(tensor: torch.Tensor, group: Any, source: int) -> _Pending:
    """Begin to receive a tensor from a process, named by its rank in the group."""
    number = begin_message(tensor, _global(group, source), sends=False)
    return _Pending(distributed.irecv(tensor, group=group, group_src=source), number)


def begin_message(tensor: torch.Tensor, peer: int, *, sends: bool) -> int:
    """Record that a message to or from a process of the run begins. Returns its number, for `flight.end`."""
    rank = distributed.get_rank()
    message_channel = flight.p2p_channel(rank, peer) if sends else flight.p2p_channel(peer, rank)
    return message_channel.begin(
        "send" if sends else "receive", _DTYPES.get(tensor.dtype, ""), tuple(tensor.shape), tensor.nbytes
    )


class RecordedDistributedDataParallel(DistributedDataParallel):
    """A model whose gradients are averaged over processes while the backward pass still computes.

    The exchanges run in C++, one for each bucket. A hook in Python would see each of them, and cost time. So a step's exchanges
    are one record, from the end of the forward pass to `finish_exchange`.
    """

    def __init__(self, model: torch.nn.Module, group: Any, bucket_mib: float) -> None:
        number = channel(group).begin("set_up")
        # Only without a size is DDP's first bucket small, so that the exchange begins early.
        cap_mib = None if bucket_mib == _DEFAULT_BUCKET_MIB else bucket_mib
        super().__init__(
            model, process_group=group, bucket_cap_mb=cap_mib, forward_sync_buffers=False, gradient_as_bucket_view=True
        )
        flight.end(number)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        count, num_bytes = sum(parameter.numel() for parameter in parameters), sum(parameter.nbytes for parameter in parameters)
        self._exchange = "gradients", _DTYPES.get(parameters[0].dtype, ""), (count,), num_bytes
        self._pending_numbers: list[int] = []

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Return the model's outputs. From here on gradients are exchanged, unless it is in `no_sync`."""
        outputs = super().forward(*inputs, **options)
        if self.require_backward_grad_sync:  # it is not documented; `no_sync` clears it
            self._pending_numbers.append(channel(self.process_group).begin(*self._exchange))
        return outputs

    def finish_exchange(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        """Record that the exchange of gradients has ended. Call it directly after a backward pass. Returns the gradients."""
        while self._pending_numbers:
            flight.end(self._pending_numbers.pop())
        return gradients


@cache
def _global(group: Any, peer: int) -> int:
    return distributed.get_global_rank(group, peer)

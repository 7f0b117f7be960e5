"""Models whose parameters are divided over replicas. A replica holds its rows of each, and gathers a layer when it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh

from common.machine import flight
from common.models import sharding
from common.training.compression import buckets
from pytorch_impl import collectives, private_api

# Twin: torch's `fully_shard` gathers, frees and scatters. TensorFlow has nothing like it, so the other twin does it itself.


def divide(model: nn.Module, bucket_mib: float) -> Counter[str]:
    """Divide every parameter of a model over all replicas, by output channels. Its gradients are divided in the same way.

    Layers that follow one another share an exchange until their parameters fill a bucket.

    Args:
        model: its weights are not loaded yet.
        bucket_mib: a bucket of this size is full.

    Returns:
        Bytes that this replica has sent so far, by kind of exchange. It grows with every exchange.
    """
    from torch.distributed.fsdp import fully_shard  # here: importing it brings SymPy, which no other mode needs

    mesh = init_device_mesh(next(model.parameters()).device.type, (distributed.get_world_size(),))
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()  # kernels cannot be divided in the format channels_last
    layers = list(_layers(model))
    sizes = [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers]
    itemsize = next(model.parameters()).itemsize
    units = [[layers[position] for position in bucket] for bucket in buckets(sizes, itemsize, bucket_mib)]
    sent_bytes: Counter[str] = Counter()
    for unit in units:
        all_gather, reduce_scatter = _exchanges(sent_bytes)
        divided, *_ = fully_shard(unit, mesh=mesh, reshard_after_forward=True)
        divided.set_custom_all_gather(all_gather)
        divided.set_custom_reduce_scatter(reduce_scatter)
        # The shares of the loss are sums over examples divided by those of the whole batch, so they are added up as they are.
        divided.set_gradient_divide_factor(1.0)
        divided.set_force_sum_reduction_for_comms(True)
        divided.unshard()  # makes its buffers now: scoring would make them in inference mode, and training could not use those
        divided.reshard()
    fully_shard(model, mesh=mesh, reshard_after_forward=True)  # holds no parameter: it starts and ends each pass
    return sent_bytes


def parts(variable: torch.Tensor) -> list[tuple[torch.Tensor, slice]]:
    """Return the parts of a parameter that this process holds, each with its slice of the last canonical axis."""
    mesh = _mesh(variable)
    if mesh is None:
        return [(variable, slice(None))]
    with torch.no_grad():  # otherwise it would be a copy of the tensor object, for autograd
        return [(cast(Any, variable).to_local(), slice(*sharding.rows(len(variable), mesh.size())[mesh.get_local_rank()]))]


def gather(variable: torch.Tensor, arrays: Sequence[npt.NDArray[np.floating]]) -> npt.NDArray[np.floating]:
    """Gather a parameter's whole canonical array from the arrays of its parts. All replicas call this together."""
    if (mesh := _mesh(variable)) is None:
        return arrays[0]
    from torch.distributed.tensor import DTensor

    # Twin: other ranks hold the other parts. The other twin's are all in this process.
    rows = torch.from_numpy(np.ascontiguousarray(np.moveaxis(arrays[0], -1, 0))).to(variable.device)
    shape = torch.Size((len(variable), *rows.shape[1:]))
    placements, stride = cast(DTensor, variable).placements, torch.empty(shape, device="meta").stride()
    divided = DTensor.from_local(rows, mesh, placements, run_check=False, shape=shape, stride=stride)
    number = collectives.begin(mesh.get_group(), "all_gather", rows, tuple(shape))
    whole = divided.full_tensor().cpu().numpy()
    flight.end(number)
    return np.moveaxis(whole, 0, -1)


def _mesh(variable: torch.Tensor) -> Any:
    """Return the mesh of replicas that a parameter is divided over. None: it is not divided."""
    return getattr(variable, "device_mesh", None)


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Iterate over the outermost modules that have parameters of their own, in order."""
    if next(module.parameters(recurse=False), None) is not None:
        yield module
        return
    for child in module.children():
        yield from _layers(child)


def _exchanges(sent_bytes: Counter[str]) -> tuple[Any, Any]:
    """Return the all-gather and the reduce-scatter for `fully_shard`. They count the bytes that this replica sends."""
    default_all_gather, default_reduce_scatter = private_api.fsdp_collectives()

    class AllGather(default_all_gather):
        """Every replica's shard [n] of a unit, in order [R x n], by the framework's own all-gather."""

        def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False) -> Any:
            sent_bytes["all_gather"] += (group.size() - 1) * input_tensor.nbytes
            number = collectives.begin(group, "all_gather", input_tensor)
            work = super().__call__(output_tensor, input_tensor, group, async_op)
            flight.end(number)  # `fully_shard` asks for asynchronous ones only where it is told to
            return work

    class ReduceScatter(default_reduce_scatter):
        """The sum over replicas of one shard [n] of a unit's gradients [R x n]."""

        def __call__(
            self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
        ) -> Any:
            sent_bytes["reduce_scatter"] += (group.size() - 1) * output_tensor.nbytes
            number = collectives.begin(group, "reduce_scatter", input_tensor)
            if input_tensor.device.type != "cpu":
                work = super().__call__(output_tensor, input_tensor, group, op, async_op)
                flight.end(number)
                return work
            # gloo's own reduce-scatter sends as much as an all-reduce. Here each replica sends every other its shard, once.
            received = torch.empty_like(input_tensor)
            distributed.all_to_all_single(received, input_tensor, group=group)
            flight.end(number)
            torch.sum(received.view(group.size(), -1), 0, out=output_tensor)
            return None

    return AllGather(), ReduceScatter()

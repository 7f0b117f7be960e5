"""Exchanges between the processes of a run. Each is recorded, see `common.machine.flight`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, cast

import tensorflow as tf

from common.machine import flight, placement


@cache
def channel(group: Any) -> flight.Channel:
    """Return the recorded channel of some processes of the run.

    Args:
        group: the group of these processes. None: all.
    """
    # Twin: a strategy of TensorFlow's holds all ranks. A process group may hold some.
    return flight.group_channel(tuple(range(placement.num_ranks())))


def begin(group: Any, kind: str, tensor: tf.Tensor, shape: tuple[int, ...] | None = None) -> int:
    """Record that an exchange begins. Returns its number, for `flight.end`.

    Args:
        group: the processes that take part.
        kind: one of `flight.KINDS`.
        tensor: the tensor that this process sends or receives.
        shape: the shape that is equal in all processes. None: the tensor's.
    """
    tensor_shape = cast(tuple[int, ...], tuple(tensor.shape))
    return channel(group).begin(kind, tensor.dtype.name, shape or tensor_shape, math.prod(tensor_shape) * tensor.dtype.size)


def run_graph(graph: Callable[..., Any], *arguments: Any) -> Any:
    """Call a graph. All its exchanges are one record, from the call to its return.

    A graph runs them in C++, between its computations. Their number is known, but not when each of them begins.

    Args:
        graph: a `tf.function` with an input signature. The exchanges of another function are not counted.
    """
    count, num_bytes = _exchanges(graph)
    number = channel(None).begin("step_graph", shape=count, num_bytes=num_bytes)
    outputs = graph(*arguments)
    flight.end(number)
    return outputs


@lru_cache
def _exchanges(graph: Any) -> tuple[tuple[int, ...], int]:
    """Return ((number of exchanges,), bytes that this process sends) of the outermost graph. ((), 0): not known."""
    if getattr(graph, "input_signature", None) is None:
        return (), 0
    operations = graph.get_concrete_function().graph.get_operations()
    inputs = [
        operation.inputs[0] for operation in operations if operation.type.startswith(("CollectiveReduce", "CollectiveGather"))
    ]
    return (len(inputs),), sum((tensor.shape.num_elements() or 0) * tensor.dtype.size for tensor in inputs)

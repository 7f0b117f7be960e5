"""Exchanges between the processes of a run. Each is recorded, see `common.machine.flight`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, cast

import tensorflow as tf

from common.machine import flight


@cache
def channel(group: Any) -> flight.Channel:
    """What some processes of the run exchange.

    Args:
        group: of these processes. None: all.
    """
    # Twin: a strategy of TensorFlow's holds all ranks. A process group may hold some.
    return flight.group_channel(tuple(range(int(os.environ["WORLD_SIZE"]))))


def begin(group: Any, kind: str, tensor: tf.Tensor, shape: tuple[int, ...] | None = None) -> int:
    """Record that an exchange begins; its number, for `flight.end`.

    Args:
        group: the processes that take part.
        kind: of `flight.KINDS`.
        tensor: that this process hands over or receives.
        shape: of what all have in common. None: the tensor's.
    """
    own = cast(tuple[int, ...], tuple(tensor.shape))
    return channel(group).begin(kind, tensor.dtype.name, shape or own, math.prod(own) * tensor.dtype.size)


def run_graph(graph: Callable[..., Any], *arguments: Any) -> Any:
    """Call a graph. All its exchanges are one record, from the call to its return.

    A graph runs them in C++, between its computations. What it holds is known, but not when each of them begins.

    Args:
        graph: a `tf.function` with an input signature. The exchanges of another function are not counted.
    """
    count, num_bytes = _exchanges(graph)
    number = channel(None).begin("step_graph", shape=count, num_bytes=num_bytes)
    found = graph(*arguments)
    flight.end(number)
    return found


@lru_cache
def _exchanges(graph: Any) -> tuple[tuple[int, ...], int]:
    """((number of exchanges,), bytes that this process hands over), of the outermost graph. ((), 0): not known."""
    if getattr(graph, "input_signature", None) is None:
        return (), 0
    operations = graph.get_concrete_function().graph.get_operations()
    sent = [each.inputs[0] for each in operations if each.type.startswith(("CollectiveReduce", "CollectiveGather"))]
    return (len(sent),), sum((each.shape.num_elements() or 0) * each.dtype.size for each in sent)

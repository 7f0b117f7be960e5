"""Private names of the framework, all in one place. A new version may change them, so each has a test."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.models.functional import Functional
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import tracing_compilation
from tensorflow.tsl.profiler.protobuf import xplane_pb2


def compilation_count() -> int:
    """Return a number that grows whenever the framework builds a graph in this process."""
    return tracing_compilation._graph_building_time_counter.get_cell().value()  # microseconds


def planes(profile: bytes) -> Any:
    """Return the planes of a profile, as the framework writes it to a file."""
    return xplane_pb2.XSpace.FromString(profile).planes  # pyright: ignore[reportAttributeAccessIssue]  made at import


def set_heartbeat_timeout(milliseconds: int) -> None:
    """Set how long a rank may miss heartbeats. Call before a strategy of several processes is built."""
    eager_context: Any = context.context()
    eager_context.configure_coordination_service = partial(
        eager_context.configure_coordination_service, heartbeat_timeout_in_ms=milliseconds
    )


def resource_dtype(handle: Any) -> Any:
    """Return the dtype of the variable that a resource holds."""
    return tf.as_dtype(handle._handle_data.shape_and_type[0].dtype)


def leave_gradients_unsummed(optimizer: Any) -> None:
    """Let an optimizer of Keras take gradients that are summed over replicas already. It would sum them again."""
    optimizer._all_reduce_sum_gradients = list


def free(variable: Any) -> None:
    """Free the memory of a variable of Keras. From here its value is given in each call, by a `StatelessScope`."""
    variable._value = None


def sublayers(layer: Any) -> list[Any]:
    """Return the layers that are attributes of a layer."""
    return layer._layers


def all_layers(layer: Any, *, include_self: bool = True) -> list[Any]:
    """Return all layers inside a layer."""
    return list(layer._flatten_layers(include_self=include_self))


def records_all_calls(model: Any) -> bool:
    """Return whether a model knows all operations that it calls: it is functional or sequential."""
    return isinstance(model, (Functional, keras.Sequential))


@contextmanager
def new_name_counts() -> Generator[None]:
    """Count the names of layers from zero in a block, and go on with the former counts after it."""
    name_counts = global_state.get_global_attribute("object_name_uids")
    global_state.set_global_attribute("object_name_uids", None)
    try:
        yield
    finally:
        global_state.set_global_attribute("object_name_uids", name_counts)

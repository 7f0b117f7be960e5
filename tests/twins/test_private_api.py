"""The private names of each framework that its twin uses: each is there, and does what the twin needs."""

import inspect
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from common.spec import Communication
from tests.twins.adapters import Twin


def compilation_count_of_torch(private: Any, twin: Twin) -> None:
    import torch

    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    before = private.compilation_count()
    torch.compile(lambda x: x * 3, backend="eager")(torch.ones(2))
    assert private.compilation_count() == before + 1


def profiler_of_all_threads(private: Any, twin: Twin) -> None:
    import torch

    def work() -> None:
        thread = threading.Thread(target=lambda: torch.ones(5, 5) @ torch.ones(5, 5))
        thread.start()
        thread.join()

    assert any("mm" in span.name for span in twin.profiler.record(work).spans)


def fsdp_collectives(private: Any, twin: Twin) -> None:
    parameters = [list(inspect.signature(kind.__call__).parameters)[1:4] for kind in private.fsdp_collectives()]
    assert parameters == [["output_tensor", "input_tensor", "group"]] * 2


@contextmanager
def only_rank() -> Generator[None]:
    """A process group of this process alone."""
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def bucket_bytes(private: Any, twin: Twin) -> None:
    """With the spec's default, the first bucket is as small as DDP makes it by itself."""
    import torch

    with only_rank():
        for bucket_mib, expected_mib in ((Communication().bucket_mib, [1, 3]), (24.0, [4]), (2.0, [2, 2])):
            model = torch.nn.Sequential(*[torch.nn.Linear(512, 512, bias=False) for _ in range(4)])  # of 1 MiB each
            wrapped = twin.collectives.RecordedDistributedDataParallel(model, torch.distributed.group.WORLD, bucket_mib)
            assert sum(private.bucket_bytes(wrapped)) == 4 * 2**20
            for _ in range(4):
                wrapped(torch.ones(1, 512)).sum().backward()
                wrapped.finish_exchange([])
            assert private.bucket_bytes(wrapped) == [size * 2**20 for size in expected_mib]


def with_signature(private: Any, twin: Twin) -> None:
    from torch.nn import functional

    for name in ("max_pool2d", "relu"):
        parameters = inspect.signature(private.with_signature(name, getattr(functional, name))).parameters
        assert ({"kernel_size", "stride", "padding"} <= parameters.keys()) == (name == "max_pool2d")
        assert "input" in parameters


def compilation_count_of_tensorflow(private: Any, twin: Twin) -> None:
    import tensorflow as tf

    before = private.compilation_count()
    tf.function(lambda x: x + 1)(tf.ones(1))
    assert private.compilation_count() > before


def set_heartbeat_timeout(private: Any, twin: Twin) -> None:
    context = private.context.context()
    assert "heartbeat_timeout_in_ms" in inspect.signature(context.configure_coordination_service).parameters
    private.set_heartbeat_timeout(1234)
    try:
        assert context.configure_coordination_service.keywords == {"heartbeat_timeout_in_ms": 1234}
    finally:
        del context.configure_coordination_service


def resource_dtype(private: Any, twin: Twin) -> None:
    import tensorflow as tf

    variable = tf.Variable(tf.zeros(3, tf.float64))
    (handle,) = tf.function(lambda: variable + 1.0).get_concrete_function().captured_inputs
    assert private.resource_dtype(handle) == tf.float64


def leave_gradients_unsummed(private: Any, twin: Twin) -> None:
    import keras

    optimizer: Any = keras.optimizers.SGD()
    assert callable(optimizer._all_reduce_sum_gradients)  # another name would be set in vain
    private.leave_gradients_unsummed(optimizer)
    assert optimizer._all_reduce_sum_gradients(["a gradient"]) == ["a gradient"]


def planes(private: Any, twin: Twin) -> None:
    import tensorflow as tf

    spans = twin.profiler.record(twin.device.graph(lambda: tf.linalg.matmul(tf.ones((5, 5)), tf.random.normal((5, 5))))).spans
    assert any("MatMul" in span.name for span in spans)


def free(private: Any, twin: Twin) -> None:
    import keras

    layer = keras.layers.Dense(2, use_bias=False)
    layer.build((None, 3))
    assert layer.kernel._value is not None
    private.free(layer.kernel)
    assert layer.kernel._value is None
    x, kernel = twin.tensor(np.ones((1, 3), np.float32)), twin.tensor(np.full((3, 2), 2.0, np.float32))
    with keras.StatelessScope([(layer.kernel, kernel)], initialize_variables=False):
        assert twin.array(layer(x)).tolist() == [[6.0, 6.0]]


def layers_of_a_model(private: Any, twin: Twin) -> None:
    import keras

    first, second = keras.layers.Dense(2), keras.layers.Dense(3)
    block = keras.Sequential([first, second])
    model = keras.Sequential([block])
    assert block in private.sublayers(model) and not private.sublayers(first)
    assert {id(first), id(second), id(block)} <= {*map(id, private.all_layers(model, include_self=False))}
    assert model in private.all_layers(model)


def records_all_calls(private: Any, twin: Twin) -> None:
    import keras

    class Own(keras.Model):
        """A model whose calls nobody knows."""

    inputs = keras.Input((3,))
    assert all(map(private.records_all_calls, [keras.Sequential(), keras.Model(inputs, keras.layers.Dense(2)(inputs))]))
    assert not private.records_all_calls(Own())


def name_counts(private: Any, twin: Twin) -> None:
    import keras

    with private.new_name_counts():
        assert [keras.layers.Dense(2).name for _ in range(2)] == ["dense", "dense_1"]
        with private.new_name_counts():
            assert keras.layers.Dense(2).name == "dense"
        assert keras.layers.Dense(2).name == "dense_2"


USES: dict[str, dict[str, Callable[[Any, Twin], None]]] = {
    "pytorch": {
        "compilation_count": compilation_count_of_torch,
        "profiler_of_all_threads": profiler_of_all_threads,
        "fsdp_collectives": fsdp_collectives,
        "bucket_bytes": bucket_bytes,
        "with_signature": with_signature,
    },
    "tensorflow": {
        "compilation_count": compilation_count_of_tensorflow,
        "set_heartbeat_timeout": set_heartbeat_timeout,
        "resource_dtype": resource_dtype,
        "leave_gradients_unsummed": leave_gradients_unsummed,
        "planes": planes,
        "free": free,
        "sublayers": layers_of_a_model,
        "all_layers": layers_of_a_model,
        "records_all_calls": records_all_calls,
        "new_name_counts": name_counts,
    },
}


@pytest.mark.parametrize("name", sorted({name for uses in USES.values() for name in uses}))
def test_a_private_name_is_there_and_does_what_the_twin_needs(twin: Twin, name: str) -> None:
    if name not in USES[twin.framework]:
        pytest.skip("the other framework's")
    USES[twin.framework][name](twin.private_api, twin)


def test_every_private_name_has_its_test(twin: Twin) -> None:
    functions = {
        name
        for name, value in vars(twin.private_api).items()
        if inspect.isfunction(value) and value.__module__ == twin.private_api.__name__
    }
    assert functions == USES[twin.framework].keys()

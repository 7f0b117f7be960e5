"""Gradients summed over micro-batches, and parts of a step timed separately."""

import math
from typing import Any

import numpy as np
import pytest

from common import spec
from common.models.architectures import Architecture, Conv, Dense, Dropout, Flatten, ReLU, no_padding
from common.processes import supervisor
from common.training import profiling
from tests.twins import made
from tests.twins.adapters import Twin

PLAIN = Architecture(
    "plain",
    made.SIZE_PX,
    made.CLASSES,
    (
        Conv("conv", 3, 4, 3, 3, no_padding, bias=True),
        ReLU("relu"),
        Flatten("flatten"),
        Dropout("dropout", 0.4, 64),
        Dense("logits", 64, made.CLASSES),
    ),
)
"""Without BatchNorm, which would see the micro-batches one by one."""
COUNT = 18
DATA = made.dataset(PLAIN, train=COUNT).train
FIELDS: dict[str, Any] = {"global_batch_size": COUNT, "optimizer": {"name": "adam", "learning_rate": 0.01}}


@pytest.mark.parametrize(
    ("mode", "native"),
    [
        ("serial", False),
        pytest.param("serial", True, marks=pytest.mark.slow),
        pytest.param("data_parallel", False, marks=pytest.mark.slow),
        ("data_parallel", True),
    ],
)
def test_gradients_summed_over_micro_batches_are_those_of_one_big_batch(twin: Twin, mode: str, native: bool) -> None:
    fields = {**FIELDS, "optimizer": {**FIELDS["optimizer"], "native": native}}
    whole = made.trainer(twin, PLAIN, **fields)
    cut = made.trainer(twin, PLAIN, mode=mode, accumulation=3, **fields)
    batch = twin.batch(DATA.images, DATA.labels, made.masks(PLAIN, COUNT))
    for _ in range(3):
        (loss, correct), (other_loss, other_correct) = (each.train_step(batch, COUNT, 0.01) for each in (whole, cut))
        assert cut.fetch([other_loss])[0] == pytest.approx(whole.fetch([loss])[0], rel=1e-12)
        assert cut.fetch([other_correct])[0] == whole.fetch([correct])[0]
    after = cut.weights()
    for name, array in whole.weights().items():
        assert np.abs(after[name] - array).max() <= 1e-12 * np.abs(array).max(), name


def test_gradients_summed_over_micro_batches_are_exchanged_once_a_step(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    count = {"pytorch": _ddp_exchanges, "tensorflow": _collectives}[twin.framework]
    once = count(twin, monkeypatch, accumulation=1)
    assert once >= 1
    assert count(twin, monkeypatch, accumulation=3) == once


def _ddp_exchanges(twin: Twin, monkeypatch: pytest.MonkeyPatch, accumulation: int) -> int:
    """Buckets that DistributedDataParallel sends in one step."""
    import torch

    from pytorch_impl import rendezvous

    (port,) = supervisor.free_ports(1)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in alone.items():
        monkeypatch.setenv(name, value)
    rendezvous.join(spec.build({"mode": "multi_process", "replicas": 2, "cores": 2}))
    trainer = made.trainer(twin, PLAIN, mode="multi_process", replicas=2, accumulation=accumulation, **FIELDS)
    sent: list[Any] = []

    def hook(state: None, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        sent.append(bucket.index())
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    trainer._wrapped.register_comm_hook(None, hook)
    trainer.train_step(twin.batch(DATA.images, DATA.labels, made.masks(PLAIN, COUNT)), COUNT, 0.01)
    trainer.close()
    return len(sent)


def _collectives(twin: Twin, monkeypatch: pytest.MonkeyPatch, accumulation: int) -> int:
    """Collective operations in the graph of one step."""
    trainer = made.trainer(twin, PLAIN, mode="data_parallel", accumulation=accumulation, **FIELDS)
    graph = trainer._train(accumulation, False).get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return sum(node.op.startswith("Collective") for node in nodes)


def test_a_micro_batch_starts_when_the_gradients_of_those_before_it_are_there(twin: Twin) -> None:
    trainer = made.trainer(twin, PLAIN, accumulation=3, **FIELDS)
    gradients_before = {"pytorch": _gradients_before_hooks, "tensorflow": _gradients_before_operations}[twin.framework]
    assert gradients_before(twin, trainer) == [0, 1, 2]


def _gradients_before_hooks(twin: Twin, trainer: Any) -> list[int]:
    """Gradients of the convolution that there were when each forward pass called it."""
    import torch

    gradients, counts = list[Any](), list[int]()
    (convolution,) = (module for module in trainer._model.modules() if isinstance(module, torch.nn.Conv2d))
    convolution.register_forward_pre_hook(lambda *_: counts.append(len(gradients)))
    convolution.weight.register_post_accumulate_grad_hook(gradients.append)
    trainer.train_step(twin.batch(DATA.images, DATA.labels, made.masks(PLAIN, COUNT)), COUNT, 0.01)
    return counts


def _gradients_before_operations(twin: Twin, trainer: Any) -> list[int]:
    """Gradients of the convolution that each forward pass's convolution waits for."""
    operations = trainer._train(3, False).get_concrete_function().graph.get_operations()
    counts = list[int]()
    for operation in operations:
        if operation.type == "Conv2D":
            earlier, next_ones = set[Any](), [operation]
            while next_ones:
                one = next_ones.pop()
                direct = {*one.control_inputs, *(tensor.op for tensor in one.inputs)}
                next_ones += direct - earlier
                earlier |= direct
            counts.append(sum(one.type == "Conv2DBackpropFilter" for one in earlier))
    return counts


@pytest.mark.parametrize(
    ("mode", "compression"),
    [
        ("serial", "none"),
        pytest.param("serial", "int8", marks=pytest.mark.slow),
        pytest.param("data_parallel", "none", marks=pytest.mark.slow),
        ("data_parallel", "int8"),
    ],
)
def test_the_parts_of_a_step_are_timed_without_learning_anything(twin: Twin, mode: str, compression: str) -> None:
    fields = {"mode": mode, "communication": {"compression": compression}}
    trainer = made.trainer(twin, PLAIN, **FIELDS, **fields)
    batch = twin.batch(DATA.images, DATA.labels, made.masks(PLAIN, COUNT))
    before = trainer.weights()
    parts = profiling.step_parts(trainer, batch, COUNT, steps=2)
    assert all(np.array_equal(array, before[name]) for name, array in trainer.weights().items())
    assert parts.steps == 2
    measured = (parts.step_seconds, parts.compute_seconds, parts.communication_exposed_seconds)
    assert all(seconds is not None and math.isfinite(seconds) and seconds >= 0 for seconds in measured)
    # Twin: a strategy's replicas run in one graph, PyTorch's in threads that have clocks of their own.
    one_graph = mode == "data_parallel" and twin.framework == "tensorflow"
    assert (parts.idle_seconds is None) == one_graph == (parts.not_separable is not None)

"""Parameters, gradients and optimizer state divided over replicas, compared with one replica that has them all."""

from typing import Any

import numpy as np
import pytest

from common.models import sharding
from common.models.architectures import BatchNorm
from common.training.communication import ring_all_reduce_bytes
from tests.twins import made
from tests.twins.adapters import Twin
from tests.twins.split_model import ARCHITECTURE, COUNTS, PADDED, REPLICAS, scored

Reports = list[dict[str, Any]]
TRAINABLE = [parameter for parameter in ARCHITECTURE.parameters() if parameter.trainable]


@pytest.fixture
def reports(divided: list[dict[str, Any]]) -> Reports:
    return [report["sharded_data_parallel"] for report in divided]


def test_weights_come_back_whole_from_shards_and_no_padding_is_counted(framework: str, reports: Reports) -> None:
    values = [sum(parameter.size for parameter in ARCHITECTURE.parameters()), sum(parameter.size for parameter in TRAINABLE)]
    for report in reports:
        assert report["came_back"]
        assert report["num_values"] == values
        assert report["logits"] == [2, made.CLASSES], "logits of a batch outside a graph, as a proof records them"
        if framework == "pytorch":  # the other twin fills nothing up
            assert report["num_values_with_padding"] != values


def test_each_replica_holds_its_rows_of_every_parameter_and_of_its_state_alone(reports: Reports) -> None:
    expected: list[int] = []
    for replica in range(REPLICAS):
        rows = [(parameter, sharding.rows(parameter.shape[-1], REPLICAS)[replica]) for parameter in TRAINABLE]
        expected.append(sum(parameter.size // parameter.shape[-1] * (high - low) for parameter, (low, high) in rows))
    assert sum(expected) == sum(parameter.size for parameter in TRAINABLE)
    held = {place: counts for report in reports for place, counts in report["held"].items()}
    assert [held[place] for place in sorted(held)] == [[values] * 2 for values in expected]


def test_steps_of_even_and_uneven_shards_are_serials_steps_also_from_a_gathered_state(twin: Twin, reports: Reports) -> None:
    trainer = made.trainer(twin, ARCHITECTURE)
    data = made.dataset(ARCHITECTURE).train
    losses: list[float] = []
    for count in COUNTS:
        batch = twin.batch(data.images[:count], data.labels[:count], made.masks(ARCHITECTURE, count))
        losses.append(float(trainer.fetch([trainer.train_step(batch, count, 0.05)[0]])[0]))
    for report in reports:
        assert report["losses"] == pytest.approx(losses, rel=1e-13)
        for kind, arrays in (("trained", trainer.weights()), ("buffer", trainer.slots()["buffer"])):
            for name, array in arrays.items():
                assert np.abs(np.array(report[kind][name]) - array).max() <= 1e-13, (kind, name)


def test_a_padding_before_a_convolution_is_scored_as_serially_in_float32(twin: Twin, divided: list[dict[str, Any]]) -> None:
    expected = scored(made.trainer(twin, PADDED, precision="float32"))
    assert [report["padded"] for report in divided] == pytest.approx([expected] * len(divided), rel=1e-5)


def test_bytes_by_kind_are_the_closed_form(framework: str, reports: Reports) -> None:
    others, itemsize = REPLICAS - 1, 8
    layers = [layer for layer in ARCHITECTURE.leaves() if isinstance(layer, BatchNorm)]
    if framework == "pytorch":  # each replica's rows are filled up to as many as the first has
        filled = [sharding.rows(each.shape[-1], REPLICAS)[0][1] * REPLICAS * each.size // each.shape[-1] for each in TRAINABLE]
        scattered, gathered_once = sum(filled), 0
        assert scattered > sum(each.size for each in TRAINABLE)
    else:  # BatchNorm keeps what it has gathered for its backward pass
        scattered, gathered_once = sum(each.size for each in TRAINABLE), sum(2 * layer.channels for layer in layers)
    sums = sum(2 * (2 * layer.channels + 1) for layer in layers)
    expected = {
        "all_gather": itemsize * others * (2 * scattered - gathered_once),
        "reduce_scatter": itemsize * others * scattered,
        "all_reduce": ring_all_reduce_bytes(itemsize * sums, REPLICAS),
    }
    assert all(report["bytes"] == expected and report["bytes_in_all"] == sum(expected.values()) for report in reports)


def test_the_memory_of_logical_devices_is_computed_and_that_of_processes_is_not(
    framework: str, divided: list[dict[str, Any]]
) -> None:
    split, sharded = divided[0]["tensor_parallel"]["memory"], divided[0]["sharded_data_parallel"]["memory"]
    if framework == "pytorch":
        assert split == sharded == {}
        return
    statistics = sum(each.size for each in ARCHITECTURE.parameters() if not each.trainable)
    layers: dict[str, int] = {}
    for each in TRAINABLE:
        layer = each.name.rpartition(".")[0]
        layers[layer] = layers.get(layer, 0) + each.size
    held = divided[0]["sharded_data_parallel"]["held"]  # with momentum: the parameter, its gradient and a buffer
    values = [3 * held[place][0] + statistics + 2 * max(layers.values()) for place in sorted(held)]
    assert sharded == pytest.approx({f"CPU:{rank}": 8 * count / 2**20 for rank, count in enumerate(values)})
    assert sum(split.values()) == pytest.approx(8 * (3 * sum(layers.values()) + statistics) / 2**20)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_rule_on_shards_is_bit_for_bit_the_rule_on_the_whole(twin: Twin, name: str, precision: Any) -> None:
    settings = made.settings(optimizer={"name": name, "weight_decay": 1e-3}).optimizer
    generator = np.random.default_rng(3)
    rows = sharding.rows(11, REPLICAS)
    first, *gradients = (generator.normal(size=(11, 7)).astype(precision) for _ in range(4))

    def trained(cut: list[slice]) -> np.ndarray:
        variables = [twin.variable(first[part]) for part in cut]
        own = [variable.data for variable in variables] if twin.framework == "pytorch" else variables
        optimizer = twin.optim.build(settings, own)
        for step, gradient in enumerate(gradients, 1):
            given = [twin.tensor(gradient[part]) for part in cut]
            optimizer.apply(given, twin.number(0.1 / step), twin.number(step))
        return np.concatenate([twin.array(variable) for variable in variables])

    assert np.array_equal(trained([slice(*each) for each in rows]), trained([slice(None)]))

from typing import Any

import numpy as np
import pytest

from common.models.sharding import shard
from tests.twins import made
from tests.twins.adapters import Twin
from tests.twins.split_model import ARCHITECTURE, COUNT, REPLICAS

Reports = list[dict[str, Any]]


@pytest.fixture
def reports(divided: list[dict[str, Any]]) -> Reports:
    return [report["tensor_parallel"] for report in divided]


def test_canonical_weights_come_back_whole_from_slices(reports: Reports) -> None:
    assert all(report["came_back"] for report in reports)


def test_a_split_model_counts_all_its_values(reports: Reports) -> None:
    parameters = ARCHITECTURE.parameters()
    every = sum(parameter.size for parameter in parameters)
    trainable = sum(parameter.size for parameter in parameters if parameter.trainable)
    assert all(report["num_values"] == [every, trainable] for report in reports)


def test_each_replica_holds_its_slices_alone_with_their_buffers(framework: str, reports: Reports) -> None:
    trainable = [parameter for parameter in ARCHITECTURE.parameters() if parameter.trainable]
    layers = [parameter for parameter in trainable if parameter.name.endswith(("kernel", "bias"))]
    whole = sum(parameter.size for parameter in trainable) - sum(parameter.size for parameter in layers)
    expected: list[int] = []
    for replica in range(REPLICAS):
        bounds = [(parameter, shard(parameter.shape[-1], REPLICAS, replica)) for parameter in layers]
        expected.append(sum(parameter.size // parameter.shape[-1] * (high - low) for parameter, (low, high) in bounds))
    assert sum(expected) == sum(parameter.size for parameter in layers)
    held = {place: counts for report in reports for place, counts in report["held"].items()}
    # BatchNorm is whole on every rank, and in one graph on the first device.
    others = [whole if framework == "pytorch" or replica == 0 else 0 for replica in range(REPLICAS)]
    received = [held[place] for place in sorted(held)]
    assert received == [[values + other] * 2 for values, other in zip(expected, others, strict=True)]


def test_a_step_of_uneven_slices_is_serials_step(twin: Twin, divided: list[dict[str, Any]], reports: Reports) -> None:
    trainer = made.trainer(twin, ARCHITECTURE)
    data = made.dataset(ARCHITECTURE).train
    batch = twin.batch(data.images[:COUNT], data.labels[:COUNT], made.masks(ARCHITECTURE, COUNT))
    loss, _ = trainer.train_step(batch, COUNT, 0.05)
    after = trainer.weights()
    others = [report["channels_last"] for report in divided if "channels_last" in report]
    assert len(others) == (REPLICAS if twin.framework == "pytorch" else 0)
    assert all(report["laid_out"] and all(report["laid_out"]) for report in others), (
        "ranks may go on in different formats, and round differently"
    )
    for report in (*reports, *others):  # a slice of one channel has both memory formats, one of two has not
        assert report["loss"] == pytest.approx(trainer.fetch([loss])[0], rel=1e-13)
        for name, array in after.items():
            assert np.abs(np.array(report["trained"][name]) - array).max() <= 1e-13, name


def test_bytes_are_those_of_outputs_gathered_and_of_gradients_sent_back(framework: str, reports: Reports) -> None:
    # (values in, values out, of them on the first replica), padding that is a layer of its own in TensorFlow included.
    pixels = 8 * 8 if framework == "tensorflow" else 6 * 6
    first, grouped = (432, 216, 72), [(pixels * 6, 216, 72), (pixels * 18, 162, 54)]
    others = [(162, 45, 18), (648, 45, 18), (20, 6, 2), (6, 4, 2)]
    if framework == "pytorch":
        sent = (REPLICAS - 1) * sum(after for _, after, _ in (first, *grouped, *others))
        returned = (REPLICAS - 1) * (sum(2 * before for before, _, _ in others) + sum(before for before, _, _ in grouped))
    else:
        sent = 2 * sum(after - own for _, after, own in (first, *grouped, *others)) + (REPLICAS - 1) * first[0]
        returned = 2 * (
            (REPLICAS - 1) * sum(before for before, _, _ in others) + sum(before for before, _, _ in grouped) * 2 // 3
        )
    assert all(report["bytes_per_example"] == 8 * (sent + returned) for report in reports)

"""Each twin's compression against the rules in NumPy, bucket by bucket and as a whole training."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from common.models.sharding import shard
from common.spec import Communication
from common.training import compression
from common.training.communication import exchange_bytes, reduce_bytes, step_payload_bytes
from tests.twins import made
from tests.twins.adapters import Twin

ARCHITECTURE = made.network()
LOSSY = ("float16", "int8", "top_k")
SMALL_BUCKETS = {"bucket_mib": 0.001, "top_k": 0.2}
"""Of 1 KiB, so that the little network has several, some of them of one parameter that is larger than that."""


def settings(name: str, **fields: Any) -> Communication:
    return Communication.model_validate({**SMALL_BUCKETS, "compression": name, **fields})


def buckets() -> dict[str, npt.NDArray[Any]]:
    generator = np.random.default_rng(3)
    return {
        "normal": generator.normal(size=101),
        "of many sizes": generator.normal(size=64) * 10.0 ** generator.integers(-9, 9, 64),
        "half steps": np.array([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]),
        "equal magnitudes": np.array([1.0, -2.0, 2.0, -2.0, 0.0, 2.0, 1.0, -1.0, 2.0, 0.5]),
        "zeros": np.zeros(9),
        "too large for float16": np.array([1e5, -1e30, 65519.0, 65504.0, 1e-9]),
        "one": np.array([-3.0]),
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("values", buckets().values(), ids=buckets().keys())
@pytest.mark.parametrize("name", [*LOSSY, "none"])
def test_what_arrives_of_a_bucket_is_the_rules_to_the_last_bit(twin: Twin, name: str, values: Any, dtype: str) -> None:
    values, chosen = values.astype(dtype), settings(name)
    message = twin.compression.encode(twin.tensor(values), chosen)
    arrived = twin.array(twin.compression.decode(message, len(values), twin.dtype(dtype), chosen))
    assert arrived.dtype == values.dtype
    assert np.array_equal(arrived, compression.transmitted(values, chosen))
    assert twin.array(message).nbytes == compression.payload_bytes(len(values), values.itemsize, chosen)
    assert np.array_equal(compression.decode(twin.array(message), len(values), values.dtype, chosen), arrived)  # at a server


@pytest.mark.parametrize("name", LOSSY)
def test_a_gradient_that_is_no_number_is_not_hidden(twin: Twin, name: str) -> None:
    values = np.array([1.0, np.nan, 2.0, 3.0, 0.0])
    message = twin.compression.encode(twin.tensor(values), settings(name))
    assert np.isnan(twin.array(twin.compression.decode(message, 5, twin.dtype("float64"), settings(name)))).any()


@pytest.mark.parametrize(
    ("name", "feedback"),
    [
        # One step of each is in `tests/parity/test_single_steps.py`, as a part of the quick suite.
        pytest.param("top_k", True, marks=pytest.mark.slow),
        pytest.param("int8", False, marks=pytest.mark.slow),
        pytest.param("int8", True, marks=pytest.mark.slow),
        pytest.param("float16", True, marks=pytest.mark.slow),
    ],
)
def test_data_parallel_trains_with_the_gradients_that_the_rules_let_through(twin: Twin, name: str, feedback: bool) -> None:
    chosen = settings(name, error_feedback=feedback)
    sgd = {"name": "sgd", "momentum": 0.0}
    parallel = made.trainer(twin, ARCHITECTURE, mode="data_parallel", optimizer=sgd, communication=chosen.model_dump())
    # One shard alone, at its share of the mean, is what one replica computes; the statistics of BatchNorm do not matter.
    serial = made.trainer(twin, ARCHITECTURE)
    values = made.values(ARCHITECTURE)
    names = [parameter.name for parameter in ARCHITECTURE.parameters() if parameter.trainable]
    cut = compression.buckets([values[name].size for name in names], 8, chosen.bucket_mib)
    assert len(cut) > 3
    lost = [[np.zeros(sum(values[names[i]].size for i in bucket)) for _ in range(made.REPLICAS)] for bucket in cut]
    largest = 0.0
    for step in range(2):
        count = 9
        data = made.dataset(ARCHITECTURE, train=30).train
        part = slice(9 * step, 9 * step + count)
        images, labels, masks = data.images[part], data.labels[part], made.masks(ARCHITECTURE, count)
        found = []
        for rank in range(made.REPLICAS):
            own = slice(*shard(count, made.REPLICAS, rank))
            serial.load_weights(values)
            batch = twin.batch(images[own], labels[own], [mask[own] for mask in masks])
            found.append(serial.gradients(batch, count))
        for number, bucket in enumerate(cut):
            flat = [np.concatenate([gradients[names[i]].reshape(-1) for i in bucket]) for gradients in found]
            total, lost[number] = compression.exchange(flat, lost[number], chosen)
            largest = max(largest, np.abs(total).max())
            ends = np.cumsum([values[names[i]].size for i in bucket])[:-1]
            for i, summed in zip(bucket, np.split(total, ends), strict=True):
                values[names[i]] = values[names[i]] - 0.05 * summed.reshape(values[names[i]].shape)
        parallel.train_step(twin.batch(images, labels, masks), count, 0.05)
        after = parallel.weights()
        scale = max(np.abs(values[name]).max() for name in names)
        # float16: the sum of three is rounded twice, by up to 2^-11 each, in an order that is the ring's own.
        tolerance = 0.05 * largest * 2.0**-9 * (step + 1) if name == "float16" else 1e-14 * scale
        for parameter in names:
            assert np.abs(after[parameter] - values[parameter]).max() <= tolerance, (step, parameter)


def test_bytes_per_step_is_what_the_messages_hold(twin: Twin) -> None:
    for name in (*LOSSY, "none"):
        chosen = settings(name)
        fields = {"mode": "data_parallel", "communication": chosen.model_dump()}
        spec = made.settings(**fields)
        made_of = made.trainer(twin, ARCHITECTURE, **fields).report(made.dataset(ARCHITECTURE).test)
        # Twin: PyTorch's threads share a memory, the strategy's replicas send around a ring.
        expected = {
            "pytorch": reduce_bytes(step_payload_bytes(spec, ARCHITECTURE), made.REPLICAS),
            "tensorflow": exchange_bytes(spec, ARCHITECTURE),
        }[twin.framework]
        assert made_of["bytes_per_step"] == expected

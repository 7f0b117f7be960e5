import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from common.spec import Communication
from common.training import compression


def settings(name: str, **fields: object) -> Communication:
    return Communication.model_validate({"compression": name, **fields})


def test_buckets_are_whole_parameters_in_order_and_closed_once_they_are_full() -> None:
    kib = 1 / 1024
    assert compression.buckets([100, 100, 100, 300, 1], itemsize=4, bucket_mib=kib) == [[0, 1, 2], [3], [4]]
    assert compression.buckets([256, 256], itemsize=4, bucket_mib=kib) == [[0], [1]]
    assert compression.buckets([5, 6, 7], itemsize=8, bucket_mib=25.0) == [[0, 1, 2]]


@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=40), st.sampled_from([4, 8]), st.floats(1e-4, 100.0))
def test_every_parameter_is_in_one_bucket_in_order(sizes: list[int], itemsize: int, mib: float) -> None:
    made = compression.buckets(sizes, itemsize, mib)
    assert [position for bucket in made for position in bucket] == list(range(len(sizes)))
    assert all(sum(sizes[position] for position in bucket[:-1]) * itemsize < mib * 2**20 for bucket in made)


def test_int8_rounds_half_steps_to_even_on_the_scale_of_the_largest() -> None:
    values = np.array([127.0, 0.5, 1.5, -2.5, -0.4])
    assert compression.transmitted(values, settings("int8")).tolist() == [127.0, 0.0, 2.0, -2.0, -0.0]


def test_top_k_keeps_the_largest_and_of_equal_ones_those_in_front() -> None:
    values = np.array([1.0, -2.0, 0.0, 2.0, 2.0, -3.0])
    assert compression.transmitted(values, settings("top_k", top_k=0.5)).tolist() == [0.0, -2.0, 0.0, 2.0, 0.0, -3.0]
    assert np.count_nonzero(compression.transmitted(values, settings("top_k", top_k=1e-9))) == 1


def test_float16_keeps_what_it_can_and_ends_at_its_largest_number() -> None:
    values = np.array([1.0, 1 / 3, 1e6, -1e6, 1e-9])
    assert compression.transmitted(values, settings("float16")).tolist() == [1.0, 0.333251953125, 65504.0, -65504.0, 0.0]


@pytest.mark.parametrize(("name", "expected"), [("none", 4040), ("float16", 2020), ("int8", 4 + 1012), ("top_k", 10 * 8)])
def test_messages_are_as_long_as_what_they_hold(name: str, expected: int) -> None:
    assert compression.payload_bytes(1010, 4, settings(name)) == expected


BUCKETS = arrays.arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e3, 1e3))


@pytest.mark.parametrize("name", ["float16", "int8", "top_k"])
@given(values=BUCKETS)
def test_what_was_sent_and_what_is_kept_are_the_gradients_together(name: str, values: npt.NDArray[np.float64]) -> None:
    chosen = settings(name, top_k=0.2)
    _, (lost,) = compression.exchange([values], [np.zeros_like(values)], chosen)
    assert np.array_equal(lost, values - compression.transmitted(values, chosen))
    assert np.allclose(lost + compression.transmitted(values, chosen), values, rtol=1e-15, atol=1e-300)


@pytest.mark.parametrize("name", ["none", "float16", "int8", "top_k"])
@given(values=BUCKETS, fraction=st.floats(0.01, 1.0))
def test_what_is_sent_is_never_larger_and_is_as_near_as_its_rule_allows(
    name: str, values: npt.NDArray[np.float64], fraction: float
) -> None:
    sent = compression.transmitted(values, settings(name, top_k=fraction))
    largest = np.abs(values).max()
    assert sent.dtype == values.dtype and np.abs(sent).max() <= largest * (1 + 2**-11)
    error = np.abs(sent - values)
    if name == "none":
        assert not error.any()
    elif name == "int8":
        assert error.max() <= largest / compression.INT8_STEPS * (0.5 + 1e-9) + 1e-300  # the scale of subnormals is 0
    elif name == "float16":
        assert (error <= np.maximum(2.0**-11 * np.abs(values) * (1 + 2**-20), 2.0**-25)).all()
    else:
        count = compression.top_k_count(len(values), fraction)
        left_out = values[(sent == 0) & (values != 0)]
        assert np.count_nonzero(sent) <= count and ((error == 0) | (sent == 0)).all()
        assert not len(left_out) or np.abs(left_out).max() <= np.sort(np.abs(values))[-count]


@pytest.mark.parametrize(("name", "fields"), [("top_k", {"top_k": 0.1}), ("int8", {}), ("float16", {})])
def test_error_feedback_reaches_a_lower_loss_than_none(name: str, fields: dict[str, float]) -> None:
    with_feedback, without = (_loss_of_descent(settings(name, error_feedback=feedback, **fields)) for feedback in (True, False))
    assert with_feedback < 0.5 * without


def _loss_of_descent(chosen: Communication, replicas: int = 2, steps: int = 400) -> float:
    """The loss above its minimum after gradient descent on the mean of quadratics of very different scales.

    Each replica has a minimum of its own, far from the others', so that its gradients never vanish.
    """
    draw = np.random.default_rng(11)
    curvature = 10.0 ** draw.uniform(-4, 0, 50)
    minima = draw.normal(0.0, 100.0, (replicas, 50))
    weights, lost = np.zeros(50), [np.zeros(50)] * replicas
    for _ in range(steps):
        gradients = [curvature * (weights - minimum) / replicas for minimum in minima]
        total, lost = compression.exchange(gradients, lost, chosen)
        weights = weights - 0.5 * total
    exact = np.zeros(50)
    for _ in range(steps):
        exact = exact - 0.5 * curvature * (exact - minima.mean(0))
    return float((curvature * (weights - exact) ** 2).sum() / 2)

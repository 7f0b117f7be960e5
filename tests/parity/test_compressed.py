"""What rung 8 allows of compressed gradients: all that rounding may do, and no other compression."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from common import spec
from common.spec import Spec
from common.training import compression
from compare.proof.compressed import Buckets, expected_exchange
from compare.proof.decisions import share_name

NAMES, SHAPES = ("a.kernel", "a.bias", "b.kernel"), ((3, 3, 4, 8), (8,), (32, 10))
DRAWS = 40
ERRORS = {"float16": 1e-6, "int8": 1e-4, "top_k": 1e-3}
"""Of the largest value: so large that some decisions are turned."""


def _run(name: str, replicas: int = 2, mode: str = "data_parallel", **communication: Any) -> Spec:
    values = {
        "global_batch_size": 24,
        "communication": {"compression": name, "bucket_mib": 0.001, "top_k": 0.1, **communication},
    }
    return spec.build(spec.with_variant(spec.build(values).model_dump(), mode, replicas))


def _shares(generator: np.random.Generator, replicas: int) -> dict[str, npt.NDArray[Any]]:
    """Of many sizes, some of them zero."""
    found: dict[str, npt.NDArray[Any]] = {}
    for name, shape in zip(NAMES, SHAPES, strict=True):
        for rank in range(replicas):
            values = generator.normal(size=shape) * 10.0 ** generator.integers(-6, 1, shape)
            found[share_name(name, rank)] = np.where(generator.random(shape) < 0.1, 0.0, values)
    return found


def _errors(shares: dict[str, npt.NDArray[Any]], name: str = "float16") -> dict[str, float]:
    relative = ERRORS[name]
    return {name: relative * float(np.abs(values).max()) for name, values in shares.items()}


def _carried_out(buckets: Buckets, shares: dict[str, Any], lost: list[npt.NDArray[Any]]) -> tuple[dict[str, Any], list[Any]]:
    """(what arrives, what is kept) of a run in float32 that follows the rules."""
    ranks, found, kept = range(buckets.spec.data_replicas), dict[str, Any](), list[Any]()
    joined = [buckets.joined({name: shares[share_name(name, rank)] for name in NAMES}) for rank in ranks]
    for number, part in enumerate(buckets.parts):
        values = [each[number].astype(np.float32) for each in joined]
        before = [lost[number][rank].astype(np.float32) if lost else np.zeros_like(values[rank]) for rank in ranks]
        total, after = compression.exchange(values, before, buckets.spec.communication)
        found |= buckets.cut(part, total)
        kept.append(np.stack(after))
    return found, kept


@pytest.mark.parametrize("replicas", [2, 3, 8])
@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("name", ["float16", "int8", "top_k"])
def test_a_run_that_rounds_otherwise_stays_within_what_is_allowed(name: str, feedback: bool, replicas: int) -> None:
    generator, buckets = np.random.default_rng(1), Buckets(NAMES, SHAPES, _run(name, replicas, error_feedback=feedback))
    open_, turned = 0, 0
    for _ in range(DRAWS):
        shares = _shares(generator, replicas)
        errors = _errors(shares, name)
        lost = [1e-2 * generator.normal(size=size).astype(np.float32) for size in buckets.sizes] if feedback else []
        expected = expected_exchange(buckets, shares, errors, lost)
        moved = {key: values + generator.uniform(-1, 1, values.shape) * errors[key] for key, values in shares.items()}
        found, kept = _carried_out(buckets, moved, lost)
        for key in NAMES:
            apart = np.abs(found[key] - expected.gradients[key])
            assert (apart <= expected.tolerances[key]).all(), key
            open_ += int(expected.is_open[key].sum())
            turned += int((apart[expected.is_open[key]] > 3 * errors[share_name(key, 0)]).sum())
        for number in range(len(expected.residuals)):
            assert (np.abs(kept[number] - expected.residuals[number]) <= expected.residual_tolerances[number]).all()
            total = np.concatenate([found[NAMES[place]].ravel() for place in buckets.parts[number]]) + kept[number].sum(0)
            together, limit = expected.sums[number]
            assert (np.abs(total - together) <= limit).all()
    assert open_ > turned > 0  # rounding has decided some of them otherwise


@pytest.mark.parametrize(
    ("name", "mode", "fields", "instead"),
    [
        ("float16", "data_parallel", {"error_feedback": False}, {"compression": "none"}),
        ("int8", "data_parallel", {"error_feedback": False}, {"compression": "none"}),
        ("int8", "data_parallel", {"error_feedback": False}, {"compression": "float16"}),
        ("top_k", "data_parallel", {"error_feedback": False}, {"compression": "none"}),
        ("top_k", "data_parallel", {"error_feedback": False}, {"top_k": 0.11}),
        ("float16", "parameter_server", {"error_feedback": False}, {}),  # the sum is rounded too
    ],
)
def test_another_compression_is_found(name: str, mode: str, fields: dict[str, Any], instead: dict[str, Any]) -> None:
    what = _run(name, 2, mode, **fields)
    generator, buckets = np.random.default_rng(2), Buckets(NAMES, SHAPES, what)
    shares = _shares(generator, 2)
    expected = expected_exchange(buckets, shares, _errors(shares), [])
    other = what.with_fields(communication={**what.communication.model_dump(), **instead})
    found, _ = _carried_out(Buckets(NAMES, SHAPES, other), shares, [])
    assert not expected.is_loose
    assert any((np.abs(found[key] - expected.gradients[key]) > expected.tolerances[key]).any() for key in NAMES)


def test_what_proves_little_says_so() -> None:
    shares = _shares(np.random.default_rng(3), 3)
    found = expected_exchange(Buckets(NAMES, SHAPES, _run("float16", 3, error_feedback=False)), shares, _errors(shares), [])
    assert found.is_loose


def test_a_bucket_that_is_nothing_but_rounding_may_be_no_further_off_than_rounding() -> None:
    buckets = Buckets(("bias",), ((2,),), _run("int8", error_feedback=False))
    shares = {share_name("bias", rank): np.array([1e-18, -3e-19]) for rank in range(2)}
    found = expected_exchange(buckets, shares, dict.fromkeys(shares, 8e-9), [])
    assert found.tolerances["bias"].max() < 1e-7

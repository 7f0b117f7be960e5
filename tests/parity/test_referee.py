"""The referee against finite differences, closed forms and itself. It never sees a framework here."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from common.models import architectures
from common.models.architectures import Architecture, Layer, Padding
from compare.proof.referee import layers, network, training
from compare.proof.referee.network import RefereeBatch

Array = npt.NDArray[Any]
UNEVEN: Padding = ((0, 1), (1, 2))


def every_kind() -> Architecture:
    """Each kind of layer once or more, small enough for finite differences."""
    body: tuple[Layer, ...] = (
        architectures.depthwise_conv("depthwise", 3, 3, 1, ((1, 1), (1, 1))),
        architectures.BatchNorm("bn", 3),
    )
    parts: tuple[Layer, ...] = (
        architectures.Conv("conv", 3, 3, 3, 2, UNEVEN, bias=True),
        architectures.Residual("block", body, relu=True),
        architectures.Residual("wide", (architectures.Conv("wide_conv", 3, 4, 1, 1, ((0, 0), (0, 0)), bias=False),),
                               (architectures.Conv("short_conv", 3, 4, 1, 1, ((0, 0), (0, 0)), bias=True),)),
        architectures.Concatenation("joined", (
            (architectures.Conv("grouped", 4, 4, 3, 1, ((0, 2), (1, 1)), bias=True, groups=2),),
            (architectures.AveragePool("window", 2, 1, ((1, 0), (0, 1))),),
            (),
        )),
        architectures.Conv("narrow", 12, 4, 1, 1, ((0, 0), (0, 0)), bias=False),
        architectures.MaxPool("pool", 2, 1, ((1, 0), (0, 1))),
        architectures.ReLU("relu"),
        architectures.Residual("flat", (architectures.Flatten("flatten"), architectures.Dense("dense", 4 * 4 * 5, 4)),
                               (architectures.GlobalAveragePool("average"),)),
        architectures.Dropout("dropout", 0.25, 4),
        architectures.Dense("logits", 4, 3),
    )  # fmt: skip
    return Architecture("every_kind", 8, 3, parts)


def drawn(architecture: Architecture, dtype: Any = np.longdouble) -> tuple[dict[str, Array], RefereeBatch]:
    generator = np.random.default_rng(7)
    weights = {
        parameter.name: (np.abs if parameter.name.endswith("variance") else np.asarray)(
            generator.normal(0.0, 0.6, parameter.shape)
        ).astype(dtype)
        for parameter in architecture.parameters()
    }
    images = generator.normal(0.0, 1.0, (4, 8, 8, 3)).astype(dtype)
    return weights, RefereeBatch(images, np.array([0, 2, 1, 2]), [generator.random((4, 4)) < 0.75])


@pytest.mark.parametrize("name", [p.name for p in every_kind().parameters() if p.trainable])
def test_every_gradient_is_the_slope_of_the_loss(name: str) -> None:
    architecture = every_kind()
    weights, batch = drawn(architecture)
    found = network.gradients(architecture, weights, batch).gradients[name]
    step = np.longdouble(1e-6)
    for place in list(np.ndindex(found.shape))[:: max(1, found.size // 5)]:
        losses = []
        for sign in (1, -1):
            moved = weights[name].copy()
            moved[place] += sign * step
            losses.append(network.gradients(architecture, {**weights, name: moved}, batch).loss)
        slope = (losses[0] - losses[1]) / (2 * step)
        assert abs(slope - found[place]) <= 1e-9 * max(1.0, abs(slope))


def test_a_padded_pixel_never_wins_and_the_first_of_equal_maxima_gets_the_gradient() -> None:
    x = -np.ones((1, 2, 2, 1))
    y, backward = layers.max_pooling(x, 2, 1, ((1, 0), (0, 0)))
    assert y.ravel().tolist() == [-1.0, -1.0]
    dx, _ = backward(np.array([[[[1.0]], [[10.0]]]]))
    assert dx.ravel().tolist() == [11.0, 0.0, 0.0, 0.0]


def test_the_running_variance_takes_the_unbiased_variance_of_the_batch() -> None:
    architecture = Architecture("bn", 2, 2, (
        architectures.BatchNorm("bn", 3, momentum=0.25), architectures.GlobalAveragePool("gap"), architectures.Dense("d", 3, 2),
    ))  # fmt: skip
    weights, _ = drawn(architecture, np.float64)
    images = np.random.default_rng(1).normal(2.0, 3.0, (5, 2, 2, 3))
    found = network.gradients(architecture, weights, RefereeBatch(images, np.zeros(5, np.int64))).statistics
    expected = 0.75 * weights["bn.variance"] + 0.25 * images.reshape(-1, 3).var(0, ddof=1)
    np.testing.assert_allclose(found["bn.variance"], expected, rtol=1e-14)


def test_the_first_step_of_adam_is_the_sign_of_the_gradient_and_momentum_adds_up() -> None:
    weight, gradient = np.array([1.0, 1.0, 1.0]), np.array([3.0, -2.0, 0.0])
    np.testing.assert_allclose(training.RefereeAdam().update("w", weight, gradient, 0.1, 1), [0.9, 1.1, 1.0], rtol=1e-8)
    sgd = training.RefereeSGD(momentum=0.5, weight_decay=0.1)
    first = sgd.update("w", weight, gradient, 1.0, 1)
    np.testing.assert_allclose(first, [-2.1, 2.9, 0.9])
    np.testing.assert_allclose(
        sgd.update("w", first, gradient, 1.0, 2), first - (0.5 * (gradient + 0.1) + gradient + 0.1 * first)
    )


@pytest.mark.parametrize(
    ("name", "options", "rates"),
    [
        ("constant", {}, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("constant", {"warmup_steps": 4}, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]),
        ("step", {"step_size": 2, "gamma": 0.5}, [1.0, 1.0, 1.0, 1.0, 0.5, 0.5]),
        ("exponential", {"gamma": 0.5}, [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]),
        ("cosine", {}, [1.0, 0.9330127018922193, 0.75, 0.5, 0.25, 0.0669872981077807]),
    ],
)
def test_schedules_are_those_of_the_textbook(name: str, options: dict[str, Any], rates: list[float]) -> None:
    rate = training.schedule(name, 1.0, steps_per_epoch=2, steps=6, **options)
    assert [rate(step) for step in range(1, 7)] == pytest.approx(rates)


def test_float64_agrees_with_longdouble_to_its_own_rounding() -> None:
    architecture = every_kind()
    weights, batch = drawn(architecture)
    wide = network.gradients(architecture, weights, batch)
    narrow = network.gradients(
        architecture,
        {name: array.astype(np.float64) for name, array in weights.items()},
        batch._replace(images=batch.images.astype(np.float64)),
    )
    assert narrow.logits.dtype == np.float64 and wide.logits.dtype == np.longdouble
    for name, array in wide.gradients.items():
        scale = max(float(np.abs(array).max()), 1e-3)
        assert float(np.abs(array - narrow.gradients[name]).max()) <= 1e-13 * scale

from typing import Any

import numpy as np
import pytest

from common.spec import Optimizer
from common.training import optim
from compare.proof import referee_check
from tests.twins.adapters import Twin

STEPS = 12
SHAPES = [(3, 3, 2, 4), (4,), (5, 3)]

SETTINGS = [
    {"name": "sgd", "momentum": 0.0},
    {"name": "sgd", "momentum": 0.9},
    {"name": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    {"name": "adam"},
    {"name": "adam", "beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3},
    {"name": "adam", "weight_decay": 0.01},
]


def optimizer(**settings: Any) -> Optimizer:
    return Optimizer.model_validate(settings)


def words(settings: Any) -> str:
    return " ".join(f"{value}" if key == "name" else f"{key}={value}" for key, value in settings.items())


@pytest.mark.parametrize("settings", SETTINGS, ids=words)
def test_an_update_rule_is_the_formula_at_every_step(twin: Twin, settings: dict[str, Any]) -> None:
    changing = [0.05 * 0.8**step for step in range(STEPS)]
    assert max(differences(twin, optimizer(**settings), changing)) < 5e-15


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_an_update_rule_in_float32_is_the_formula_rounded(twin: Twin, name: str) -> None:
    assert max(differences(twin, optimizer(name=name), [0.05] * STEPS, np.float32)) < 5e-6


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 5e-15), (np.float32, 5e-6)])
@pytest.mark.parametrize("settings", SETTINGS, ids=words)
def test_the_rule_of_the_parameter_server_is_the_twins_own(
    twin: Twin, settings: dict[str, Any], dtype: Any, tolerance: float
) -> None:
    generator = np.random.default_rng(3)
    served = [generator.normal(size=shape).astype(dtype) for shape in SHAPES]
    variables = [twin.variable(array.copy()) for array in served]
    rule = optim.build(optimizer(**settings), served)
    built = twin.optim.build(optimizer(**settings), variables)
    for step in range(1, STEPS + 1):
        rate = 0.05 * 0.8**step
        gradients = [generator.normal(size=shape).astype(dtype) for shape in SHAPES]
        rule.apply(gradients, rate, step)
        built.apply([twin.tensor(gradient) for gradient in gradients], twin.number(rate), twin.number(step))
        for variable, array in zip(variables, served, strict=True):
            assert array.dtype == dtype
            assert np.abs(value(twin, variable) - array).max() <= tolerance * np.abs(array).max()


def test_the_learning_rate_acts_at_once_and_not_through_the_momentum(twin: Twin) -> None:
    variable = twin.variable(np.array([1.0]))
    built = twin.optim.build(optimizer(name="sgd", momentum=0.5), [variable])
    for step, (learning_rate, expected) in enumerate([(0.1, 0.9), (0.0, 0.9), (0.1, 0.725)], start=1):
        built.apply([twin.tensor(np.array([1.0]))], twin.number(learning_rate), twin.number(step))
        assert value(twin, variable)[0] == pytest.approx(expected, rel=1e-15)


NATIVE = {
    # Keras: momentum, the betas and the learning rate pass through float32.
    "sgd": {"pytorch": (0.0, 5e-15), "tensorflow": (1e-12, 1e-6)},
    # Keras adds epsilon before the bias correction, which shows most in the first steps.
    "adam": {"pytorch": (0.0, 5e-14), "tensorflow": (1e-12, 1e-4)},
}
"""Between which differences from the formula each framework's own optimizer must lie."""


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_native_optimizer_parts_from_the_formula_as_documented(twin: Twin, name: str) -> None:
    lowest, highest = NATIVE[name][twin.framework]
    assert lowest <= max(differences(twin, optimizer(name=name, native=True), [0.05] * STEPS)) <= highest


def test_native_weight_decay_is_coupled_in_torch_and_not_in_keras(twin: Twin) -> None:
    settings = optimizer(name="sgd", momentum=0.9, weight_decay=0.01, native=True)
    largest = max(differences(twin, settings, [0.05] * STEPS))
    assert (largest < 5e-15) == (twin.framework == "pytorch")


def differences(twin: Twin, settings: Optimizer, learning_rates: list[float], dtype: Any = np.float64) -> list[float]:
    """The largest difference from the formula after each step, relative to the variable's largest value."""
    generator = np.random.default_rng(3)
    values = [generator.normal(size=shape).astype(dtype) for shape in SHAPES]
    steps = [([generator.normal(size=shape).astype(dtype) for shape in SHAPES], rate) for rate in learning_rates]
    variables = [twin.variable(array) for array in values]
    built = twin.optim.build(settings, variables)
    formula = referee_check.update_rule(settings)
    expected = {str(index): array.astype(np.float64) for index, array in enumerate(values)}
    found: list[float] = []
    for step, (gradients, rate) in enumerate(steps, start=1):
        built.apply([twin.tensor(gradient) for gradient in gradients], twin.number(rate), twin.number(step))
        expected = {
            name: formula.update(name, array, gradient.astype(np.float64), rate, step)
            for (name, array), gradient in zip(expected.items(), gradients, strict=True)
        }
        pairs = zip(variables, expected.values(), strict=True)
        found.append(max(np.abs(value(twin, variable) - array).max() / np.abs(array).max() for variable, array in pairs))
    return found


def value(twin: Twin, variable: Any) -> Any:
    return np.array(twin.array(variable))

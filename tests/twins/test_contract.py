"""The contract of all twins: the checks of `convtwins conformance`, of PyTorch, TensorFlow, JAX or Keras (`--framework`).

Twins with planted defects are in tests/compare/tools/conformance.
"""

from pathlib import Path
from typing import Any

import pytest

from compare.running import launch
from compare.running.twins import Twins
from compare.tools.conformance import conformance
from compare.tools.conformance.trial import TwinUnderTest
from tests.support import jax_environment, keras_environment

SMALL: dict[str, Any] = {"model_steps": {"simple_cnn": 3}, "optimizers": ("adam",), "precisions": ("float64",)}
"""Sizes of a trial that says in seconds what the whole one says in minutes."""
QUICK = ("describe", "models", pytest.param("bad input", marks=pytest.mark.shared), "training")


@pytest.fixture
def twins(framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Twins:
    """The twin. JAX has an environment of its own, or the test is skipped. Keras's are found in this checkout."""
    if framework in keras_environment.TWINS:
        monkeypatch.setenv("PYTHONPATH", keras_environment.install(tmp_path / "installed"))
        python = keras_environment.require(framework.removeprefix("keras-"))
        return Twins.choose(None, [f"{framework}={framework}@{python}"], (), launch.FRAMEWORKS)
    if framework == "jax":
        return Twins.choose(None, [f"jax=jax@{jax_environment.require()}"], (), launch.FRAMEWORKS)
    return Twins([framework])


def faults(trial: TwinUnderTest, check: str) -> list[str]:
    (asked,) = conformance.conform(trial, [check])
    return asked.faults


@pytest.mark.parametrize("check", QUICK)
def test_the_twin_keeps_the_contract_of_one_small_model(twins: Twins, check: str, tmp_path: Path) -> None:
    assert faults(TwinUnderTest(twins, tmp_path, **SMALL), check) == []


def test_a_twin_of_keras_builds_layers_whose_names_have_dots(twins: Twins, framework: str, tmp_path: Path) -> None:
    if framework not in keras_environment.TWINS:
        pytest.skip("the other twins build them in their tests of models")
    assert faults(TwinUnderTest(twins, tmp_path, model_steps={"resnet18": 1}), "models") == []


@pytest.mark.slow
@pytest.mark.parametrize("check", conformance.CHECKS)
def test_the_twin_keeps_the_contract(twins: Twins, check: str, tmp_path: Path) -> None:
    assert faults(TwinUnderTest(twins, tmp_path), check) == []

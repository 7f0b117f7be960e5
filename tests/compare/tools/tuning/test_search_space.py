"""Spaces of a tuning: what may be written, and what is said of the rest."""

from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from common.spec import SpecError
from compare.tools.tuning import search_space
from tests.support.refusals import refused


def judged(ranges: dict[str, Any], **values: Any) -> search_space.Space:
    return search_space.check_space(ranges, values, "space.yaml")


def test_every_kind_of_field_has_its_distribution_and_one_choice_is_fixed() -> None:
    space = judged(
        {
            "optimizer.learning_rate": {"low": "1e-4", "high": 1e-1, "log": True},
            "optimizer.momentum": {"low": 0, "high": 0.9, "step": 0.3},
            "global_batch_size": {"low": 16, "high": 70, "step": 16},
            "optimizer.native": {"choices": [True, False]},
            "schedule.gamma": {"choices": ["1e-1", 0.5]},
            "schedule.name": {"choices": ["step"]},
        }
    )
    assert space.distributions == {
        "optimizer.learning_rate": FloatDistribution(1e-4, 1e-1, log=True),
        "optimizer.momentum": FloatDistribution(0.0, 0.9, step=0.3),
        "global_batch_size": IntDistribution(16, 64, step=16),
        "optimizer.native": CategoricalDistribution([True, False]),
        "schedule.gamma": CategoricalDistribution([0.1, 0.5]),
    }
    assert space.fixed == {"schedule.name": "step"}


def test_the_structure_of_a_model_can_be_searched() -> None:
    ranges = {"width": {"low": 0.25, "high": 1}, "depth": {"choices": [1, 2]}, "dropout": {"low": 0, "high": 0.5}}
    assert judged(ranges, model="resnet34").distributions == {
        "width": FloatDistribution(0.25, 1.0),
        "depth": CategoricalDistribution([1.0, 2.0]),
        "dropout": FloatDistribution(0.0, 0.5),
    }
    with refused(SpecError, names=["width", "depth", "dropout"]):
        judged(ranges, model="mine.net")


@pytest.mark.parametrize(
    ("ranges", "names"),
    [
        ({}, ["empty"]),
        ({"optimizer.learning_rat": {"low": 1, "high": 2}}, ["optimizer.learning_rat", 1, "learning_rate"]),
        ({"optimizer.learning_rate": {"low": 0, "high": 1}}, ["optimizer.learning_rate", 0]),
        ({"optimizer.learning_rate": {"low": 1e-4, "hihg": 1}}, ["optimizer.learning_rate.high"]),
        ({"optimizer.learning_rate": {"low": 1e-4, "high": 1, "lg": True}}, ["optimizer.learning_rate.lg"]),
        ({"optimizer.learning_rate": 0.1}, ["optimizer.learning_rate", 0.1]),
        ({"optimizer.learning_rate": {"low": 1, "high": 0.5}}, ["optimizer.learning_rate", "low", "high"]),
        ({"optimizer.momentum": {"low": 0, "high": 0.5, "log": True}}, ["optimizer.momentum", "log", "low"]),
        ({"optimizer.momentum": {"low": 0, "high": 0.5, "step": 0.6}}, ["optimizer.momentum", "step", 0.6]),
        ({"optimizer.momentum": {"low": 0.0, "high": 0.9, "step": 1e-12}}, ["optimizer.momentum", "1,000,000"]),
        ({"global_batch_size": {"low": 16, "high": 64, "step": 0.5}}, ["global_batch_size", "step", 0.5]),
        ({"global_batch_size": {"low": 16.5, "high": 64}}, ["global_batch_size", 16.5]),
        ({"optimizer.name": {"low": 0, "high": 1}}, ["optimizer.name", 0]),
        ({"optimizer.name": {"choices": ["sgd", "adm"]}}, ["optimizer.name", "adm"]),
        ({"optimizer.name": {"choices": ["sgd", "sgd"]}}, ["optimizer.name", "twice"]),
        ({"optimizer.name": {"choices": []}}, ["optimizer.name", "choices"]),
        ({"optimizer.name": {"choices": ["sgd"]}}, ["nothing to search"]),
        ({"optimizer": {"choices": [{"name": "sgd"}]}}, ["optimizer.choices.0"]),
        ({"cores": {"low": 1, "high": 2}}, ["cores", "where and how a trial runs"]),
        ({"epochs": {"low": 1, "high": 2}, "steps": {"low": 1, "high": 9}}, ["epochs", "steps"]),
        ({"data.seed": {"low": 1, "high": 2}}, ["data.seed", "images"]),
    ],
)
def test_what_is_refused_names_the_file_the_field_and_the_value(ranges: dict[str, Any], names: list[object]) -> None:
    with refused(SpecError, names=["space.yaml", *names]):
        judged(ranges)


def test_a_file_is_read_as_specs_are(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("optimizer.learning_rate: {low: 1e-4, high: 1e-1, log: true}\n")
    assert judged(search_space.read(path)).distributions == {"optimizer.learning_rate": FloatDistribution(1e-4, 1e-1, log=True)}
    path.write_text("a: [")
    with refused(SpecError, names=[path, "yaml"]):
        search_space.read(path)
    path.write_text("1: {low: 1, high: 2}\n")
    with refused(SpecError, names=[path]):
        search_space.read(path)
    with refused(SpecError, names=[tmp_path / "missing.yaml"]):
        search_space.read(tmp_path / "missing.yaml")


def test_the_default_space_is_one_of_the_spec() -> None:
    space = judged(search_space.DEFAULT)
    assert list(space.distributions) == [
        "optimizer.name", "optimizer.learning_rate", "optimizer.momentum", "optimizer.weight_decay", "schedule.step_size",
        "global_batch_size",
    ]  # fmt: skip


def test_a_grid_has_every_point_once_in_an_order_of_its_seed() -> None:
    space = judged(
        {
            "optimizer.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
            "optimizer.momentum": {"low": 0, "high": 0.9, "step": 0.45},
            "global_batch_size": {"choices": [32, 64]},
            "schedule.step_size": {"low": 1, "high": 2},
        }
    )
    points = search_space.grid(space, 3)
    assert len(points) == 3 * 3 * 2 * 2 == len(set(map(repr, points)))
    assert {round(point["optimizer.learning_rate"], 9) for point in points} == {1e-4, 1e-3, 1e-2}
    assert {point["optimizer.momentum"] for point in points} == {0.0, 0.45, 0.9}
    assert points == search_space.grid(space, 3) != search_space.grid(space, 4)


def test_a_step_of_one_is_a_step_and_a_grid_without_end_is_refused() -> None:
    space = judged({"schedule.step_size": {"low": 1, "high": 5, "step": 1}, "global_batch_size": {"low": 1, "high": 9}})
    points = search_space.grid(space, 0)
    assert {point["schedule.step_size"] for point in points} == {1, 2, 3, 4, 5}
    assert {point["global_batch_size"] for point in points} == {1, 5, 9}
    assert search_space.grid_size(space) == len(points) == 15
    endless = judged({name: {"low": 1, "high": 400_000, "step": 1} for name in ("schedule.step_size", "global_batch_size")})
    with refused(SpecError, received="160,000,000,000", names=["100,000"]):
        search_space.grid(endless, 0)

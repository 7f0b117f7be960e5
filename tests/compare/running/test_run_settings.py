"""What a spec file says of the matrix, and what the command line says over it."""

from pathlib import Path
from typing import Any

import pytest

from common.spec import SpecError
from compare.comparison import comparison_plan
from compare.running import run_settings
from compare.running.comparison_settings import ComparisonSettings
from tests.support import trees
from tests.support.refusals import refused


def written(tmp_path: Path, **fields: Any) -> Path:
    return trees.write(tmp_path, {"run.yaml": fields}) / "run.yaml"


@pytest.mark.parametrize("modes", [["serial", "multi_process"], "serial, multi_process"])
def test_modes_and_repeats_of_a_spec_file_are_those_of_the_matrix(tmp_path: Path, modes: Any) -> None:
    found = run_settings.settings(None, written(tmp_path, modes=modes, repeats=7, epochs=3), {}, [])
    assert (found.modes, found.repeats, found.values) == (("serial", "multi_process"), 7, {"epochs": 3})


def test_a_spec_file_without_them_is_read_as_before(tmp_path: Path) -> None:
    found = run_settings.settings(None, written(tmp_path, epochs=3), {}, [])
    assert (found.modes, found.repeats, found.stated_settings) == (ComparisonSettings().modes, ComparisonSettings().repeats, ())
    assert run_settings.settings(None, written(tmp_path, mode="pipeline"), {}, []).modes == ("serial", "pipeline")


@pytest.mark.parametrize(
    ("fields", "options", "expected"),
    [
        ({}, (None, None), (("serial",), 6)),
        ({"modes": ["data_parallel"], "repeats": 9}, (None, None), (("data_parallel",), 9)),
        ({"modes": ["data_parallel"], "repeats": 9}, ("serial", 2), (("serial",), 2)),
        ({"modes": list(ComparisonSettings().modes)}, (None, None), (ComparisonSettings().modes, 6)),
    ],
)
def test_options_win_over_the_file_and_the_file_over_the_commands_own(
    tmp_path: Path, fields: dict[str, Any], options: tuple[str | None, int | None], expected: tuple[tuple[str, ...], int]
) -> None:
    read = run_settings.settings(None, written(tmp_path, **fields), {}, [])
    found = run_settings.with_matrix(read, options[0], "serial", options[1], 6)
    assert (found.modes, found.repeats) == expected


def test_a_command_that_looks_at_one_run_passes_over_them(tmp_path: Path) -> None:
    path = written(tmp_path, modes=["serial", "pipeline"], repeats=5, model="resnet18")
    assert comparison_plan.single_run_spec("layers", None, path, {}, []).model == "resnet18"


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"modes": ["seriel"]}, {"field": "modes", "received": "seriel", "fix": "serial"}),
        ({"modes": []}, {"field": "modes"}),
        ({"modes": ["serial", "serial"]}, {"field": "modes", "received": "serial, serial"}),
        ({"modes": 3}, {"field": "modes", "received": 3}),
        ({"modes": ["serial"], "mode": "pipeline"}, {"field": "mode", "received": "'pipeline' and ['serial']"}),
        ({"one_core": 0}, {"field": "one_core", "received": 0}),
        ({"repeats": 0}, {"field": "repeats", "received": 0, "names": ["at least 1"]}),
        ({"repeats": "5"}, {"field": "repeats", "received": "'5'"}),
        ({"repeats": True}, {"field": "repeats", "received": True}),
    ],
)
def test_a_value_that_is_none_of_theirs_is_refused(tmp_path: Path, fields: dict[str, Any], parts: dict[str, Any]) -> None:
    with refused(SpecError, **parts):
        run_settings.settings(None, written(tmp_path, **fields), {}, [])


@pytest.mark.parametrize("fields", [{"modes": ["paralel"]}, {"repeats": "five"}, {"contestants": "jax"}, {"lr": 0.1}])
def test_an_error_of_a_spec_file_names_the_file(tmp_path: Path, fields: dict[str, Any]) -> None:
    file = written(tmp_path, **fields)
    with pytest.raises(SpecError) as error:
        run_settings.settings(None, file, {}, [])
    assert str(file) in str(error.value)

"""What a spec file says of the matrix, and what the command line says over it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from common.spec import SpecError
from compare.comparison import comparison_plan
from compare.core.presets import Preset
from compare.execution import run_settings


def written(tmp_path: Path, **fields: Any) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


@pytest.mark.parametrize("modes", [["serial", "multi_process"], "serial, multi_process"])
def test_modes_and_repeats_of_a_spec_file_are_those_of_the_matrix(tmp_path: Path, modes: Any) -> None:
    found = run_settings.settings(None, written(tmp_path, modes=modes, repeats=7, epochs=3), {}, [])
    assert (found.modes, found.repeats, found.values) == (("serial", "multi_process"), 7, {"epochs": 3})


def test_a_spec_file_without_them_is_read_as_before(tmp_path: Path) -> None:
    found = run_settings.settings(None, written(tmp_path, epochs=3), {}, [])
    assert (found.modes, found.repeats, found.stated_settings) == (Preset().modes, Preset().repeats, ())
    assert run_settings.settings(None, written(tmp_path, mode="pipeline"), {}, []).modes == ("serial", "pipeline")


@pytest.mark.parametrize(
    ("fields", "options", "expected"),
    [
        ({}, (None, None), (("serial",), 6)),
        ({"modes": ["data_parallel"], "repeats": 9}, (None, None), (("data_parallel",), 9)),
        ({"modes": ["data_parallel"], "repeats": 9}, ("serial", 2), (("serial",), 2)),
        ({"modes": list(Preset().modes)}, (None, None), (Preset().modes, 6)),
    ],
)
def test_options_win_over_the_file_and_the_file_over_the_commands_own(
    tmp_path: Path, fields: dict[str, Any], options: tuple[str | None, int | None], expected: tuple[tuple[str, ...], int]
) -> None:
    read = run_settings.settings(None, written(tmp_path, **fields), {}, [])
    found = run_settings.with_matrix(read, options[0], "serial", options[1], 6)
    assert (found.modes, found.repeats) == expected


def test_a_command_that_looks_at_one_run_passes_over_them(tmp_path: Path) -> None:
    path = written(tmp_path, modes=["serial", "pipeline"], repeats=5, model="resnet18", mode=None)
    path.write_text(path.read_text().replace("mode: null\n", ""))
    assert comparison_plan.single_run_spec("layers", None, path, {}, []).model == "resnet18"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"modes": ["seriel"]}, "modes names something unknown. Received: 'seriel'"),
        ({"modes": []}, "modes is empty"),
        ({"modes": ["serial", "serial"]}, "modes names something twice"),
        ({"modes": 3}, "modes must be a list of modes. Received: 3."),
        ({"modes": ["serial"], "mode": "pipeline"}, "mode and modes exclude each other. Received: 'pipeline' and ['serial']."),
        ({"one_core": 0}, "one_core must be true or false. Received: 0."),
        ({"repeats": 0}, "repeats must be a whole number of at least 1. Received: 0."),
        ({"repeats": "5"}, "repeats must be a whole number of at least 1. Received: '5'."),
        ({"repeats": True}, "repeats must be a whole number of at least 1. Received: True."),
    ],
)
def test_a_value_that_is_none_of_theirs_is_refused(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as refusal:
        run_settings.settings(None, written(tmp_path, **fields), {}, [])
    assert str(refusal.value).startswith(said)

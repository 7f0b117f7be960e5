"""No command ends in 0 without having done its work."""

import sys
from pathlib import Path
from typing import Any

import pytest

from compare.__main__ import EXIT_UNFINISHED, MODULES
from compare.execution import launch
from tests.support.command_line import convtwins

MODEL = "silent_model.net"


def invoke(*words: str | Path) -> Any:
    return convtwins(*words)


def silent_model(patch: pytest.MonkeyPatch, folder: Path, ending: str) -> None:
    """A module in the current folder that ends its process at import."""
    patch.syspath_prepend(folder)
    patch.chdir(folder)
    (folder / "silent_model").mkdir()
    (folder / "silent_model" / "net.py").write_text(f"import os, sys\n{ending}\ndef built(): pass\n", encoding="utf-8")
    for name in ("silent_model", MODEL):
        patch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("ending", ["sys.exit(0)", "os._exit(0)"])
@pytest.mark.parametrize(
    "words",
    [
        ["run", "--no-proof"],
        ["run"],
        ["parity"],
        ["models"],
        ["scaling"],
        ["tune", "--trials", "2"],
        ["evaluate", "--epochs", "1"],
        ["optimize"],
        ["layers"],
        ["plan"],
        ["stragglers"],
    ],
    ids=" ".join,
)
def test_a_model_that_ends_the_process_ends_no_command_well(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, words: list[str], ending: str
) -> None:
    silent_model(fake_twins, tmp_path, ending)
    done = invoke(*words, "--model", MODEL, "--data", "digits", "--frameworks", "left,right")
    assert done.exit_code == 2, done.output
    assert f"model {MODEL} ends the process" in done.stderr
    assert not list((tmp_path / "results").rglob("*.json"))


@pytest.mark.slow  # It starts PyTorch, which imports the model.
@pytest.mark.parametrize("ending", ["sys.exit(0)", "os._exit(0)"])
def test_a_model_that_ends_the_process_is_no_match(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str) -> None:
    silent_model(monkeypatch, tmp_path, ending)
    done = invoke("match", f"{MODEL}:built", f"{MODEL}:built", "--input", "8x8x1", "--classes", "2", "--out", "kept")
    assert done.exit_code == 2, done.output
    assert f"model {MODEL}:built ends the process" in done.stderr
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("ending", ["sys.exit(0)", "os._exit(0)"])
def test_a_twin_that_ends_the_process_does_not_conform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str) -> None:
    (tmp_path / "silent.py").write_text(f"import os, sys\n{ending}\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(launch, "FRAMEWORKS", {"silent": "silent"})
    done = invoke("conformance", "silent")
    assert done.exit_code == 1, done.output
    assert "silent must describe itself as a JSON object" in done.output


def test_a_command_that_something_ends_in_the_middle_does_not_end_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODULES, "silent", "tests.compare.twins.silent")
    done = invoke("silent")
    assert (done.exit_code, done.stderr) == (EXIT_UNFINISHED, "The command ended before its work was done.\n")


def test_a_twin_that_ends_well_and_has_written_nothing_has_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(launch, "FRAMEWORKS", {"left": "tests.compare.twins.silent"})
    words = ["trace", "spec.json", "--out", str(tmp_path / "first"), "--then", "other.json", "--out", str(tmp_path / "second")]
    log = tmp_path / "log.txt"
    assert launch.call("left", words, log=log) == 1
    assert log.read_text() == "It ended with exit code 0 and has not written first.\n"
    (tmp_path / "first").touch()
    assert launch.call("left", words, log=log) == 1
    (tmp_path / "second").touch()
    assert launch.call("left", words, log=log) == 0

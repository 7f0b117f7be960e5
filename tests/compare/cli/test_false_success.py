"""No command ends in 0 without having done its work."""

import sys
from pathlib import Path

import pytest

from compare.__main__ import EXIT_UNFINISHED, MODULES
from compare.running import launch
from compare.running.contestants import Contestant
from tests.support import trees
from tests.support.command_line import convtwins, here
from tests.support.refusals import check_ended

MODEL = "silent_model.net"


def silent_model(patch: pytest.MonkeyPatch, folder: Path, ending: str) -> None:
    """A module in the current folder that ends its process at import."""
    patch.syspath_prepend(folder)
    patch.chdir(folder)
    trees.write(folder, {"silent_model/net.py": f"import os, sys\n{ending}\ndef built(): pass\n"})
    for name in ("silent_model", MODEL):
        patch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("ending", ["sys.exit(0)", "os._exit(0)"])
@pytest.mark.parametrize(
    "words",
    here(
        *(["run", "--no-proof"], ["run"], ["parity"], ["models"], ["scaling"], ["tune", "--trials", "2"]),
        *(["evaluate", "--epochs", "1"], ["optimize"], ["layers"], ["plan"], ["stragglers"]),
    ),
    ids=" ".join,
)
def test_a_model_that_ends_the_process_ends_no_command_well(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, words: list[str], ending: str
) -> None:
    silent_model(fake_twins, tmp_path, ending)
    done = convtwins(*words, "--model", MODEL, "--data", "digits", "--frameworks", "left,right")
    check_ended(done, names=[MODEL, "ends the process"])
    assert not list((tmp_path / "results").rglob("*.json"))


@pytest.mark.slow  # It starts PyTorch, which imports the model.
@pytest.mark.skipif("match" not in MODULES, reason="the tool was taken away")
@pytest.mark.parametrize("ending", ["sys.exit(0)", "os._exit(0)"])
def test_a_model_that_ends_the_process_is_no_match(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str) -> None:
    silent_model(monkeypatch, tmp_path, ending)
    done = convtwins("match", f"{MODEL}:built", f"{MODEL}:built", "--input", "8x8x1", "--classes", "2", "--out", "kept")
    check_ended(done, names=[f"{MODEL}:built", "ends the process"])
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.skipif("conformance" not in MODULES, reason="the tool was taken away")
@pytest.mark.parametrize("ending", ["sys.exit(0)", "os._exit(0)"])
def test_a_twin_that_ends_the_process_does_not_conform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str) -> None:
    trees.write(tmp_path, {"silent.py": f"import os, sys\n{ending}\n"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(launch.FRAMEWORKS, "silent", "silent")
    done = convtwins("conformance", "silent")
    assert done.exit_code == 1 and "silent must describe itself" in done.output and "''" in done.output, done.output


def test_a_command_that_something_ends_in_the_middle_does_not_end_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODULES, "silent", "tests.compare.twins.silent")
    done = convtwins("silent")
    assert (
        done.exit_code == EXIT_UNFINISHED and len(done.stderr.splitlines()) == 1 and "before its work was done" in done.stderr
    )


def test_a_twin_that_ends_well_and_has_written_nothing_has_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(launch.FRAMEWORKS, "left", "tests.compare.twins.silent")
    words = ["trace", "spec.json", "--out", str(tmp_path / "first"), "--then", "other.json", "--out", str(tmp_path / "second")]
    log = tmp_path / "log.txt"
    assert launch.call(Contestant.plain("left"), words, log=log) == 1
    assert "exit code 0" in log.read_text() and log.read_text().endswith(" first.\n")
    (tmp_path / "first").touch()
    assert launch.call(Contestant.plain("left"), words, log=log) == 1
    (tmp_path / "second").touch()
    assert launch.call(Contestant.plain("left"), words, log=log) == 0

"""What every command does alike, started as a user starts it."""

import inspect
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer import Context
from typer.main import get_command

from compare.__main__ import MODULES, _help_of, app
from compare.execution import launch
from tests.support import comparisons
from tests.support.command_line import convtwins

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="a device that is always full is Linux's")
@pytest.mark.parametrize(
    "words",
    [["cache"], *(pytest.param(words, marks=pytest.mark.slow) for words in (["cache", "--json"], ["data", "--help"]))],
)
def test_output_that_cannot_be_written_ends_with_one_line(words: list[str], tmp_path: Path) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "compare", *words],
            cwd=launch.PROJECT_ROOT,
            env={"CONVTWINS_CACHE": str(tmp_path)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    why = "The output cannot be written (No space left on device). Free space, or send it elsewhere.\n"
    assert (done.returncode, done.stderr) == (1, why)


def said(*words: str) -> str:
    """What Python says on stderr."""
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=launch.PROJECT_ROOT, capture_output=True, text=True, check=False).stderr


def test_a_command_imports_no_other_one() -> None:
    program = "import atexit, runpy, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    program += "runpy.run_module('compare', run_name='__main__')"
    imported = set(said("-c", program, "report", "--help").split())
    assert imported & {*MODULES.values(), "optuna"} == {"compare.reporting.report"}


@pytest.mark.parametrize("words", [["--help"], ["reprot"]])
def test_the_list_of_commands_imports_none_of_them(words: list[str]) -> None:
    program = "import atexit, runpy, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    program += "runpy.run_module('compare', run_name='__main__')"
    imported = set(said("-c", program, *words).split())
    assert "typer" in imported
    assert not imported & {*MODULES.values(), "numpy", "pandas", "matplotlib", "common.spec"}


@pytest.mark.parametrize("name", MODULES)
def test_the_list_of_commands_says_what_the_command_says(name: str) -> None:
    commands: Any = get_command(app)
    assert _help_of(name) == inspect.cleandoc(commands.get_command(Context(commands), name).help) != ""


def test_the_package_runs_as_a_module() -> None:
    assert "No such command 'reprot'. Did you mean 'report'" in said("-m", "convtwins", "reprot")


def test_a_command_that_there_is_not_is_answered_with_the_one_that_was_meant() -> None:
    assert "No such command 'reprot'. Did you mean 'report'" in said("-m", "compare", "reprot")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--lr", "0.1"], "No such option: --lr. Use --set optimizer.learning_rate=VALUE."),
        (["tune", "--weight-decay", "0.1"], "No such option: --weight-decay. Use --set optimizer.weight_decay=VALUE."),
        (["parity", "--on-bad", "skip"], "No such option: --on-bad. Use --set data.on_bad=VALUE."),
        (["run", "--num-epochs", "3"], "Possible options: --epochs"),
        (["models", "resnet18"], "extra argument(s) (resnet18). models takes options alone, e.g. --model NAME."),
        (["cache", "out"], "Got unexpected extra argument(s) (out). cache takes options alone."),
        (["run", "--set", "lr=0.1"], "lr is not a field. Received: 0.1. Did you mean optimizer.learning_rate?"),
        (["run", "--set", "optimizer.lr=0.1"], "optimizer.lr is not a field. Received: 0.1. Did you mean learning_rate?"),
    ],
)
def test_a_name_of_another_framework_is_answered_with_the_field(words: list[str], said: str) -> None:
    done = convtwins(*words, COLUMNS="200")
    assert done.exit_code == 2 and said in done.stderr, done.stderr


@pytest.mark.parametrize("width", ["80", "100"])
def test_no_value_is_cut_off_in_the_help_of_a_narrow_terminal(width: str) -> None:
    said = convtwins("run", "--help", COLUMNS=width).stdout
    names = ("parameter_server_async", "sharded_data_parallel", "cifar10-minixception", "torchvision:NAME")
    assert "…" not in said and all(name in said for name in names), said
    assert max(map(len, said.splitlines())) <= int(width)


@pytest.mark.parametrize(
    ("words", "option", "received"),
    [
        (["run", "--repeats", "0"], "--repeats", "0"),
        (["regress", "--interleaved", "main", "--repeats", "-3"], "--repeats", "-3"),
        (["run", "--until-decided", "--most-repeats", "4"], "--most-repeats", "4"),
        (["run", "--batch-size", "many"], "--batch-size", "'many'"),
        *(
            ([*command, "--steps", "100001"], "--steps", "100001")
            for command in (["parity"], ["optimize"], ["match", "a:A", "b:B", "--input", "8x8x3", "--classes", "2"])
        ),
        (["evaluate", "--patience", "-1"], "--patience", "-1"),
        (["run", "--epochs", "-2"], "epochs", "-2"),
        (["evaluate", "--epochs", "-2"], "epochs", "-2"),
        (["tune", "--epochs", "-2"], "epochs", "-2"),
        (["run", "--set", "epochs=-2"], "epochs", "-2"),
    ],
)
def test_a_number_out_of_range_is_refused_by_its_name_with_what_was_received(
    words: list[str], option: str, received: str
) -> None:
    done = convtwins(*words, COLUMNS="200")
    assert done.exit_code == 2 and option in done.stderr and f"Received: {received}." in done.stderr, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["report", "DIR"], marks=pytest.mark.slow),
        pytest.param(["report", "DIR", "--json"], marks=pytest.mark.slow),
        ["history", "DIR"],
        pytest.param(["cache", "--json"], marks=pytest.mark.slow),
        ["--help"],
    ],
)
def test_a_reader_that_has_seen_enough_ends_the_command_quietly(words: list[str], tmp_path: Path) -> None:
    comparisons.stored_in(comparisons.repeated(), tmp_path / "results")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "compare", *(str(tmp_path / "results") if word == "DIR" else word for word in words)],
            cwd=launch.PROJECT_ROOT,
            env={"CONVTWINS_CACHE": str(tmp_path)},
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def started(*words: str | Path, **how: Any) -> subprocess.CompletedProcess[str]:
    """`convtwins WORDS` in a process of its own."""
    how["env"] = {**os.environ, **how.pop("environment", {})}
    command = [sys.executable, "-c", "from convtwins import main; main()", *words]
    return subprocess.run(
        command, **{"cwd": launch.PROJECT_ROOT, "text": True, "check": False, "stderr": subprocess.PIPE, **how}
    )


def test_a_closed_stdout_is_refused_before_any_work() -> None:
    done = started("--version", preexec_fn=lambda: os.close(1))
    assert (done.returncode, done.stderr) == (1, "stdout is closed. Send it to a file, or to /dev/null.\n")


def test_words_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    done = started("run", "--out", os.fsdecode(bytes(tmp_path) + b"/\xff"), stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (2, "") and "must be UTF-8. Received: '/" in done.stderr
    assert "\\udcff'" in done.stderr and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("--out", ""), ("--out=",)])
def test_an_empty_value_is_refused(words: tuple[str, ...]) -> None:
    """As an unset variable of the shell leaves it. As a path it would be the current folder."""
    done = started("report", *words, stdout=subprocess.PIPE)
    wanted = f"A value is empty. Received: '' after {words[0]}. Give it a value, or leave the option out.\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", wanted)


def test_folders_of_the_surroundings_that_are_not_utf_8_are_refused_by_name(tmp_path: Path) -> None:
    folder = os.fsdecode(bytes(tmp_path) + b"/\xff")
    Path(folder).mkdir()
    there = {"PYTHONPATH": str(launch.PROJECT_ROOT)}
    for how, name in (
        ({"environment": {"HOME": folder}}, "HOME"),
        ({"cwd": folder, "environment": there}, "The current folder"),
    ):
        done = started("doctor", "--json", stdout=subprocess.PIPE, **how)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"{name} must be UTF-8. Received: {folder!a}. Use another folder.\n"


def test_a_current_folder_that_was_removed_is_said(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    there = {"PYTHONPATH": str(launch.PROJECT_ROOT)}
    done = started("--version", cwd=tmp_path / "gone", environment=there, preexec_fn=(tmp_path / "gone").rmdir)
    assert (done.returncode, done.stderr) == (1, "The current folder is not there any more. Change to another.\n")


def test_a_width_of_zero_and_the_backend_of_a_notebook_do_not_mislead(tmp_path: Path) -> None:
    comparisons.stored_in(comparisons.repeated(), tmp_path / "results")
    misled = {"COLUMNS": "0", "MPLBACKEND": "module://a_package_of_the_notebook"}
    done = started("report", tmp_path / "results", environment=misled, stdout=subprocess.PIPE)
    assert done.returncode == 0 and "report.html" in done.stdout, done.stderr


@pytest.mark.parametrize("name", ["", *MODULES])
def test_every_command_has_short_help_and_the_version(name: str) -> None:
    words = [name] if name else []
    shown = convtwins(*words, "-h")
    assert shown.exit_code == 0 and shown.stdout == convtwins(*words, "--help").stdout
    assert "Show version and commit, and exit." in " ".join(re.sub("[│╭╮]", " ", shown.stdout).split())
    done = convtwins(*words, "--version")
    (project,) = re.findall(r'^version = "(.*)"$', (launch.PROJECT_ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert done.exit_code == 0 and done.stdout.startswith(f"convtwins {project}, commit ")

"""What every command does alike, started as a user starts it."""

import inspect
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer import Context
from typer.main import get_command

from common.errors import UserError
from compare.__main__ import _help_of, app, modules
from compare.running import launch
from tests.support import comparisons, processes, trees
from tests.support.command_line import convtwins, here
from tests.support.processes import Finished
from tests.support.refusals import check, check_ended

FULL = Path("/dev/full")
PROGRAM = """
import atexit, runpy, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
runpy.run_module("compare", run_name="__main__")
"""
"""The command, which then tells what it has imported."""


@pytest.mark.skipif(not FULL.exists(), reason="a device that is always full is Linux's")
@pytest.mark.parametrize(
    "words",
    here(["cache"], *(pytest.param(words, marks=pytest.mark.slow) for words in (["cache", "--json"], ["data", "--help"]))),
)
def test_output_that_cannot_be_written_ends_with_one_line(words: list[str], tmp_path: Path) -> None:
    variables = {"CONVTWINS_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "compare", *words]
    with FULL.open("w") as full, processes.started(command, variables=variables, stdout=full) as process:
        assert process.stderr is not None
        told = process.stderr.read()
        process.wait()
    assert process.returncode == 1 and "No space left on device" in told and told.count("\n") == 1


def test_a_command_imports_no_other_one() -> None:
    imported = set(processes.python("-c", PROGRAM, "report", "--help").stderr.split())
    assert imported & {*modules().values(), "optuna"} == {"compare.reporting.report"}


@pytest.mark.parametrize("words", [["--help"], ["reprot"]])
def test_the_list_of_commands_imports_none_of_them(words: list[str]) -> None:
    imported = set(processes.python("-c", PROGRAM, *words).stderr.split())
    assert "typer" in imported
    assert not imported & {*modules().values(), "numpy", "pandas", "matplotlib", "common.spec"}


@pytest.mark.parametrize("name", modules())
def test_the_list_of_commands_says_what_the_command_says(name: str) -> None:
    commands: Any = get_command(app)
    assert _help_of(modules()[name]) == inspect.cleandoc(commands.get_command(Context(commands), name).help) != ""


PLUGIN = """
from compare.cli import commands

@commands.command()
def command() -> None:
    \"\"\"Say hello.\"\"\"
    print("Hello")
"""


ENTRIES = """[convtwins.commands]
hello = other.hello
inside = other.inside
run = other.hello
gone = nowhere.gone
absent = other.absent
function = other.hello:command
empty =
"""
WRONG_ENTRIES = ("gone", "absent", "function", "empty")


def test_an_installed_package_brings_a_command_and_cannot_replace_one_of_the_suite(tmp_path: Path) -> None:
    files = {
        "other/__init__.py": "",
        "other/hello.py": PLUGIN,
        "other/inside/__init__.py": PLUGIN,
        "other-1.0.dist-info/METADATA": "Name: other\nVersion: 1.0\n",
        "other-1.0.dist-info/entry_points.txt": ENTRIES,
    }
    path = {"PYTHONPATH": str(trees.write(tmp_path, files))}
    listed = processes.python("-c", PROGRAM, "--help", **path).succeeded()
    assert "hello" in listed.stdout and listed.stdout.count("Say hello.") == 2
    assert not [name for name in WRONG_ENTRIES if name in listed.stdout]
    assert "other" not in listed.stderr.split()
    assert processes.python("-m", "compare", "hello", **path).succeeded().stdout == "Hello\n"
    for name in WRONG_ENTRIES:
        assert f"No such command '{name}'" in processes.python("-m", "compare", name, **path).stderr
    assert "Usage: convtwins run" in processes.python("-m", "compare", "run", "--help", **path).succeeded().stdout


@pytest.mark.parametrize("name", ["concurrency", "watch"])
def test_a_command_of_a_plug_in_that_is_missing_is_answered_with_what_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if not list(Path(folder).glob("convtwins_hangs*"))])
    check_ended(convtwins(name, "--help"), received=name, fix="make setup", names=["convtwins-hangs"])


@pytest.mark.parametrize("package", ["convtwins", "compare"])
def test_a_command_that_there_is_not_is_answered_with_the_one_that_was_meant(package: str) -> None:
    told = processes.python("-m", package, "reprot").stderr
    assert "'reprot'" in told and "'report'" in told


@pytest.mark.parametrize(
    ("words", "names"),
    here(
        (["run", "--lr", "0.1"], ["--lr", "--set optimizer.learning_rate=VALUE"]),
        (["tune", "--weight-decay", "0.1"], ["--weight-decay", "--set optimizer.weight_decay=VALUE"]),
        (["parity", "--on-bad", "skip"], ["--on-bad", "--set data.on_bad=VALUE"]),
        (["run", "--num-epochs", "3"], ["--num-epochs", "--epochs"]),
        (["models", "resnet18"], ["resnet18", "models", "--model NAME"]),
        (["cache", "out"], ["out", "cache"]),
        (["run", "--set", "lr=0.1"], ["lr", 0.1, "optimizer.learning_rate"]),
        (["run", "--set", "optimizer.lr=0.1"], ["optimizer.lr", 0.1, "learning_rate"]),
    ),
)
def test_a_name_of_another_framework_is_answered_with_the_field(words: list[str], names: list[object]) -> None:
    check_ended(convtwins(*words, COLUMNS="200"), names=names)


@pytest.mark.parametrize("width", ["80", "100"])
def test_no_value_is_cut_off_in_the_help_of_a_narrow_terminal(width: str) -> None:
    said = convtwins("run", "--help", COLUMNS=width).stdout
    names = ("parameter_server_async", "sharded_data_parallel", "cifar10-minixception", "torchvision:NAME")
    assert "…" not in said and all(name in said for name in names), said
    assert max(map(len, said.splitlines())) <= int(width)


@pytest.mark.parametrize(
    ("words", "option", "received"),
    here(
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
    ),
)
def test_a_number_out_of_range_is_refused_by_its_name_with_what_was_received(
    words: list[str], option: str, received: str
) -> None:
    done = convtwins(*words, COLUMNS="200")
    assert done.exit_code == 2 and option in done.stderr and f"Received: {received}." in done.stderr, done.stderr


@pytest.mark.parametrize(
    "words",
    here(
        pytest.param(["report", "DIR"], marks=pytest.mark.slow),
        pytest.param(["report", "DIR", "--json"], marks=pytest.mark.slow),
        ["history", "DIR"],
        pytest.param(["cache", "--json"], marks=pytest.mark.slow),
        ["--help"],
    ),
)
def test_a_reader_that_has_seen_enough_ends_the_command_quietly(words: list[str], tmp_path: Path) -> None:
    comparisons.stored_in(comparisons.repeated(), tmp_path / "results")
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "compare", *(tmp_path / "results" if word == "DIR" else word for word in words)]
    variables = {"CONVTWINS_CACHE": str(tmp_path)}
    with os.fdopen(writing, "w") as pipe, processes.started(command, variables=variables, stdout=pipe) as process:
        assert process.stderr is not None
        told = process.stderr.read()
        process.wait()
    assert (process.returncode, told) == (128 + signal.SIGPIPE, "")


def ran(*words: object, environment: Mapping[str, str] | None = None, **how: Any) -> Finished:
    """`convtwins WORDS` in a process of its own. `how` is that of `subprocess.Popen`."""
    command = [sys.executable, "-c", "from convtwins import main; main()", *words]
    with processes.started(command, variables=environment, **how) as process:
        told = process.communicate()
    return Finished(process.returncode, *told)


THERE = {"PYTHONPATH": str(launch.PROJECT_ROOT)}


def test_a_closed_stdout_is_refused_before_any_work() -> None:
    done = ran("--version", preexec_fn=lambda: os.close(1))
    assert done.exit_code == 1 and "stdout" in done.stderr and "/dev/null" in done.stderr and done.stderr.count("\n") == 1


def test_words_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    done = ran("run", "--out", os.fsdecode(bytes(tmp_path) + b"/\xff"))
    assert (done.exit_code, done.stdout) == (2, "") and "Received: '/" in done.stderr
    assert "UTF-8" in done.stderr and "\\udcff'" in done.stderr and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("--out", ""), ("--out=",)])
def test_an_empty_value_is_refused(words: tuple[str, ...]) -> None:
    """As an unset variable of the shell leaves it. As a path it would be the current folder."""
    done = ran("report", *words)
    assert (done.exit_code, done.stdout) == (2, "") and f"'' after {words[0]}." in done.stderr


def test_folders_of_the_surroundings_that_are_not_utf_8_are_refused_by_name(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(bytes(tmp_path) + b"/\xff"))
    folder.mkdir()
    for how, name in (({"environment": {"HOME": str(folder)}}, "HOME"), ({"folder": folder, "environment": THERE}, "folder")):
        done = ran("models", "--json", **how)  # type: ignore[arg-type]
        assert (done.exit_code, done.stdout) == (2, "")
        check(UserError(done.stderr), field=name, names=["UTF-8", ascii(str(folder))])


def test_a_current_folder_that_was_removed_is_said(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = ran("--version", folder=gone, environment=THERE, preexec_fn=gone.rmdir)
    assert done.exit_code == 1 and "current folder" in done.stderr and done.stderr.count("\n") == 1


def test_a_width_of_zero_and_the_backend_of_a_notebook_do_not_mislead(tmp_path: Path) -> None:
    comparisons.stored_in(comparisons.repeated(), tmp_path / "results")
    misled = {"COLUMNS": "0", "MPLBACKEND": "module://a_package_of_the_notebook"}
    assert "report.html" in ran("report", tmp_path / "results", environment=misled).succeeded().stdout


@pytest.mark.parametrize("name", ["", *modules()])
def test_every_command_has_short_help_and_the_version(name: str) -> None:
    words = [name] if name else []
    shown = convtwins(*words, "-h")
    assert shown.exit_code == 0 and shown.stdout == convtwins(*words, "--help").stdout
    assert "--version" in shown.stdout
    done = convtwins(*words, "--version")
    (project,) = re.findall(r'^version = "(.*)"$', (launch.PROJECT_ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert done.exit_code == 0 and done.stdout.startswith(f"convtwins {project}, commit ")


def test_the_address_of_the_notebook_has_what_it_lists_and_nothing_else() -> None:
    from convtwins import api

    assert all(getattr(api, name) for name in api.__all__) and "match" in api.__all__
    assert not hasattr(api, "os")

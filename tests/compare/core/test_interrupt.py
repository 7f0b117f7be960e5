"""What SIGINT and SIGTERM leave behind of commands that run nothing but short processes."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from common.machine.private_folder import PrivateFolder
from compare.core import interrupt
from compare.execution import launch

HANGING = "tests.compare.twins.hanging"


def started(tmp_path: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """A command with frameworks that write their process ids and then do nothing."""
    script = textwrap.dedent(
        f"""
        from compare.execution import launch
        from compare.__main__ import app
        launch.FRAMEWORKS = {{"left": {HANGING!r}, "right": {HANGING!r}}}
        app({[*arguments, "--frameworks", "left,right"]!r})
        """
    )
    (tmp_path / "temporary").mkdir()
    environment = {
        **os.environ,
        "TMPDIR": str(tmp_path / "temporary"),
        "HANGING_PID": str(tmp_path / "pid"),
        "CONVTWINS_CACHE": str(tmp_path / "cache"),
    }
    return subprocess.Popen([sys.executable, "-c", script], cwd=launch.PROJECT_ROOT, env=environment, stderr=subprocess.PIPE)


def with_its_twin(tmp_path: Path, *command: str) -> tuple[subprocess.Popen[bytes], int]:
    """A command whose first twin hangs, and the id of that twin."""
    process, pid = started(tmp_path, *command), tmp_path / "pid"
    deadline = time.monotonic() + 120
    while not (pid.exists() and pid.read_text()) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return process, int(pid.read_text())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "command",
    [
        ("parity", "--no-remember", "--modes", "serial"),
        ("models", "--model", "simple_cnn"),
        pytest.param(("run", "--modes", "serial"), marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_ends_the_twin_says_so_and_leaves_no_temporary_folder(
    command: tuple[str, ...], number: signal.Signals, code: int, tmp_path: Path
) -> None:
    process, twin = with_its_twin(tmp_path, *command)
    process.send_signal(number)
    _, said = process.communicate(timeout=300)
    assert (process.returncode, said.splitlines()[-1]) == (code, b"Interrupted.")
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not psutil.pid_exists(twin) or psutil.Process(twin).status() == psutil.STATUS_ZOMBIE


@pytest.mark.skipif(sys.platform != "linux", reason="a twin dies with its driver on Linux alone")
def test_what_a_killed_command_leaves_is_removed_by_the_next(tmp_path: Path) -> None:
    process, twin = with_its_twin(tmp_path, "models", "--model", "simple_cnn")
    process.kill()
    process.communicate()
    psutil.wait_procs([psutil.Process(twin)] if psutil.pid_exists(twin) else [], timeout=300)
    left = list((tmp_path / "temporary").glob("*/spec.json"))
    assert len(left) == 1
    PrivateFolder(tmp_path / "temporary").remove()
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(("package", "word"), [("typer", "--help"), ("optuna", "tune")])
def test_an_interrupt_while_a_command_is_imported_ends_with_one_line(package: str, word: str, tmp_path: Path) -> None:
    """The interrupt comes from a package that is imported: the first one, and one of a single command."""
    (tmp_path / f"{package}.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "compare", word], cwd=launch.PROJECT_ROOT, env=environment, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"Interrupted.\n")


def test_only_the_first_signal_counts_until_the_outermost_block_has_ended() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for numbers in ((signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)):
        said: list[str] = []
        with interrupt.interruptible():
            try:
                with interrupt.interruptible():
                    os.kill(os.getpid(), numbers[0])
                    time.sleep(1)
            except interrupt.Interrupted as interruption:
                said.append(interruption.message)
            with interrupt.interruptible(), interrupt.exit_on_signal():  # what is still to be tidied up
                os.kill(os.getpid(), numbers[1])
                time.sleep(0.01)
        assert said == ["Interrupted."]
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what another process has open")
def test_an_interrupt_where_a_command_has_nothing_to_tidy_up_ends_with_one_line() -> None:
    """It comes while the words of the command are read, by a spec that nobody ever writes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "compare", "run", "--spec", "/dev/stdin"],
        cwd=launch.PROJECT_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    folder = Path(f"/proc/{process.pid}/fd")
    while process.poll() is None:
        there = [each.readlink() for each in folder.iterdir() if each.is_symlink()]
        if there.count((folder / "0").readlink()) == 2:  # its stdin, and the spec
            break
        time.sleep(0.05)
    for _ in range(3):  # as `timeout` and an impatient user send it
        process.send_signal(signal.SIGINT)
        time.sleep(0.005)
    assert process.wait(300) == 130
    printed, said = process.communicate()
    assert (printed, said) == (b"", b"Interrupted.\n")

"""What SIGINT and SIGTERM leave behind of commands that run nothing but short processes."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from common.machine.private_folder import PrivateFolder
from compare.cli import interrupt
from tests.support import processes, trees
from tests.support.command_line import convtwins_process, here

HANGING = "tests.compare.twins.hanging"


@contextmanager
def with_its_twin(tmp_path: Path, *arguments: str) -> Generator[tuple[subprocess.Popen[str], int]]:
    """A command with frameworks that write their process ids and then do nothing, and the id of its first twin."""
    script = textwrap.dedent(
        f"""
        from compare.running import launch
        from compare.__main__ import app
        launch.FRAMEWORKS = {{"left": {HANGING!r}, "right": {HANGING!r}}}
        app({[*arguments, "--frameworks", "left,right"]!r})
        """
    )
    folder, pid = trees.write(tmp_path / "temporary", {}), tmp_path / "pid"
    variables = {"TMPDIR": str(folder), "HANGING_PID": str(pid), "CONVTWINS_CACHE": str(tmp_path / "cache")}
    with processes.started([sys.executable, "-c", script], variables=variables) as process:
        deadline = time.monotonic() + 120
        while not (pid.exists() and pid.read_text()) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        yield process, int(pid.read_text())


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
    with with_its_twin(tmp_path, *command) as (process, twin):
        process.send_signal(number)
        _, stderr = process.communicate(timeout=300)
    assert (process.returncode, stderr.splitlines()[-1]) == (code, "Interrupted.")
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not psutil.pid_exists(twin) or psutil.Process(twin).status() == psutil.STATUS_ZOMBIE


@pytest.mark.skipif(sys.platform != "linux", reason="a twin dies with its driver on Linux alone")
def test_what_a_killed_command_leaves_is_removed_by_the_next(tmp_path: Path) -> None:
    with with_its_twin(tmp_path, "models", "--model", "simple_cnn") as (process, twin):
        process.kill()
    psutil.wait_procs([psutil.Process(twin)] if psutil.pid_exists(twin) else [], timeout=300)
    left = list((tmp_path / "temporary").glob("*/spec.json"))
    assert len(left) == 1
    PrivateFolder(tmp_path / "temporary").remove()
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(("word", "package"), here(("--help", "typer"), ("tune", "optuna")))
def test_an_interrupt_while_a_command_is_imported_ends_with_one_line(word: str, package: str, tmp_path: Path) -> None:
    """The interrupt comes from a package that is imported: the first one, and one of a single command."""
    text = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    done = convtwins_process(word, PYTHONPATH=str(trees.write(tmp_path, {f"{package}.py": text})))
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "Interrupted.\n")


def test_only_the_first_signal_counts_until_the_outermost_block_has_ended() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for numbers in ((signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)):
        messages: list[str] = []
        with interrupt.interruptible():
            try:
                with interrupt.interruptible():
                    os.kill(os.getpid(), numbers[0])
                    time.sleep(1)
            except interrupt.Interrupted as interruption:
                messages.append(interruption.message)
            with interrupt.interruptible(), interrupt.exit_on_signal():  # what is still to be tidied up
                os.kill(os.getpid(), numbers[1])
                time.sleep(0.01)
        assert messages == ["Interrupted."]
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what another process has open")
def test_an_interrupt_where_a_command_has_nothing_to_tidy_up_ends_with_one_line() -> None:
    """It comes while the words of the command are read, by a spec that nobody ever writes."""
    words = [sys.executable, "-m", "compare", "run", "--spec", "/dev/stdin"]
    with processes.started(words, stdin=subprocess.PIPE) as process:
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
        assert process.communicate() == ("", "Interrupted.\n")

"""A month of use in minutes: short comparisons in a row, and faults drawn by a seed. Nothing is lost, and nothing stays behind.

`make test-all` does five minutes of each kind. The campaigns of docs/hangs.md:

    CONVTWINS_MONTH=5000 pytest tests/compare/comparison/test_month.py -m slow -s -k made_up
    CONVTWINS_MONTH=500 pytest tests/compare/comparison/test_month.py -m slow -s -k real

Each comparison is drawn by its number. `CONVTWINS_MONTH_FIRST=251` begins there, so a campaign can be divided.
"""

import collections
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from common.machine import private_folder
from compare.results import store
from tests.compare.comparison.test_survival import gone, sealed, started
from tests.compare.conftest import behave
from tests.support import processes
from tests.support.command_line import convtwins, convtwins_process

FIRST, LAST = int(os.environ.get("CONVTWINS_MONTH_FIRST", "1")), int(os.environ.get("CONVTWINS_MONTH", "0"))
SEED = 28
MINUTES = 5.0
"""Of each kind, without a last number."""
MADE_UP = ("--frameworks", "left,right", "--modes", "serial", "--cores", "1", "--no-proof")
REAL = ("--preset", "digits", "--no-proof", "--epochs", "1", "--limit", "64")
TWO_CORES = ("--cores", "2", "--no-one-core", "--modes")
SERIAL = ("--cores", "1", "--modes", "serial")
PARALLEL = (
    (*TWO_CORES, "multi_process"),
    (*TWO_CORES, "parameter_server"),
    (*TWO_CORES, "sharded_data_parallel"),
    (*TWO_CORES, "serial", "--input", "workers", "--workers", "1"),
)
"""With ranks, a server, a meeting of ranks or workers, one row for each framework."""
SECONDS = 900
"""For a command, on a machine whose cores others hold too."""

BEHAVIOURS = ("crash", "kill", "torn", "silent", "diverge")
"""Of a made-up twin."""
SIGNALS = {"killed": signal.SIGKILL, "terminated": signal.SIGTERM, "interrupted": signal.SIGINT}
"""For the process of a comparison."""


class Held(NamedTuple):
    """What this process, its temporary folder and the processes that have this folder hold."""

    descriptors: int
    threads: int
    children: int
    processes: frozenset[str]
    listening: frozenset[str]
    shared_memory: frozenset[str]
    temporary: frozenset[str]

    @classmethod
    def now(cls) -> "Held":
        own, temporary = psutil.Process(), Path(tempfile.gettempdir())
        others = _of_folder(temporary)
        return cls(
            own.num_fds(),
            threading.active_count(),
            len(own.children(recursive=True)),
            frozenset(f"{each.pid} {' '.join(words)}" for each, words in others.items()),
            frozenset(address for each in (own, *others) for address in _listening(each)),
            frozenset(_without_owner()),
            frozenset(path.name for path in temporary.iterdir()),
        )

    def left_behind(self, before: "Held") -> list[str]:
        """What there is now and was not before, in words."""
        found = [
            f"{now - then} {name}" for name, then, now in zip(self._fields[:3], before[:3], self[:3], strict=True) if now > then
        ]
        for name in self._fields[3:]:
            found += [f"{name}: {each}" for each in sorted(getattr(self, name) - getattr(before, name))]
        return found


def _of_folder(folder: Path) -> dict[psutil.Process, list[str]]:
    """The command lines of other processes that were started with this temporary folder, or one inside it.

    Those of other tests have other folders. What a comparison has started has this one, also if its parent has ended.
    """
    found: dict[psutil.Process, list[str]] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            if process.pid != os.getpid() and Path(process.environ().get("TMPDIR", "/")).is_relative_to(folder):
                found[process] = process.cmdline()
    return found


def _listening(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [
            f"{process.pid} at {each.laddr.ip}:{each.laddr.port}"
            for each in process.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN
        ]
    return []


def _without_owner() -> list[str]:
    """Names in shared memory that no process has mapped. Other tests may use others at the same time."""
    names = [path.name for path in Path("/dev/shm").glob("*")]
    mapped = ""
    for maps in Path("/proc").glob("[0-9]*/maps") if names else ():
        with contextlib.suppress(OSError):
            mapped += maps.read_text(errors="replace")
    return [name for name in names if f"/dev/shm/{name}" not in mapped]


def stays(before: Held) -> list[str]:
    """What stays behind, after what is about to end has had the time to."""
    deadline = time.monotonic() + 10.0
    while (found := Held.now().left_behind(before)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def test_what_is_left_behind_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a file, a socket, a process that listens, and what frameworks leave in a temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a setting of that module's
    before = Held.now()
    assert before.left_behind(before) == []
    listens = "import socket, time; held = socket.create_server(('127.0.0.1', 0)); print(held.getsockname()[1]); time.sleep(60)"
    command = [sys.executable, "-u", "-c", listens]
    planted = [tmp_path / name for name in ("__autograph_generated_file1.py", "pymp-1")]
    with (
        processes.started(command, variables={"TMPDIR": str(tmp_path / "inside")}) as child,
        private_folder.PrivateFolder(tmp_path) as folder,
        socket.create_server(("127.0.0.1", 0)) as own,
    ):
        assert child.stdout is not None
        port, own_port = child.stdout.readline().strip(), own.getsockname()[1]
        for path in planted:
            path.touch()
        found = Held.now().left_behind(before)
        child.kill()
    for path in planted:
        path.unlink()
    named = sorted(path.name for path in (*planted, folder.path))
    listening = sorted([f"{child.pid} at 127.0.0.1:{port}", f"{os.getpid()} at 127.0.0.1:{own_port}"])
    assert "descriptors" in found[0] and found[1:3] == ["1 children", f"processes: {child.pid} {' '.join(command)}"]
    assert found[3:] == [*(f"listening: {each}" for each in listening), *(f"temporary: {each}" for each in named)]
    assert stays(before) == []


def finished(out: Path) -> dict[str, bytes]:
    return {name: content for name, content in sealed(out).items() if json.loads(content)["status"] == "ok"}


class Month:
    """Comparisons in a row."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.drawn = folder, random.Random()
        self.faults: collections.Counter[str] = collections.Counter()
        self.modes: collections.Counter[str] = collections.Counter()
        self._patch = patch

    def use(self, number: int, *, real: bool) -> None:
        """One comparison: a fault or none, then to its end, then its report."""
        self.drawn.seed(f"{SEED} {number}")
        out, repeats = self.folder / str(number), self.drawn.choice((1, 1, 1, 2, 3))
        kind = (*REAL, *self._mode()) if real else MADE_UP
        words = ("run", *kind, "--repeats", repeats, "--out", out)
        to_process = (*SIGNALS, "child killed")
        fault = self.drawn.choice(("none", "none", *to_process) if real else ("none",) * 20 + BEHAVIOURS * 4 + to_process)
        self.faults[fault] += 1
        if fault in BEHAVIOURS:
            behave(self._patch, **{f"{self.drawn.choice(('left', 'right'))}__serial__1": fault})
            done = convtwins(*words)
            assert done.exit_code == 1, (fault, done.output)
            behave(self._patch)
        elif fault != "none":
            self._disturb(words, fault, real=real)
        kept = finished(out)
        again = ("run", "--resume", out) if (out / store.PLAN_FILE).exists() else words
        assert self._code(again, real=real) == 0, fault
        whole = finished(out)
        assert len(whole) == 2 * repeats, fault
        assert {name: whole[name] for name in kept} == kept, f"{fault}: a finished run was touched"
        if self.drawn.random() < 0.2:
            assert self._code(("report", out), real=real) == 0
            assert finished(out) == whole
        assert gone(self.folder), f"{fault}: an orphan"
        shutil.rmtree(out)

    def _mode(self) -> tuple[str, ...]:
        drawn = self.drawn.choice((SERIAL, self.drawn.choice(PARALLEL)))
        self.modes[" ".join(drawn[drawn.index("--modes") + 1 :])] += 1
        return drawn

    def _code(self, words: tuple[object, ...], *, real: bool) -> int:
        if not real:
            return convtwins(*words).exit_code
        return convtwins_process(*words, timeout=SECONDS).exit_code

    def _disturb(self, words: tuple[object, ...], fault: str, *, real: bool) -> None:
        """The comparison in a process of its own, which is met by the fault at a moment of its first seconds."""
        if real:
            process = subprocess.Popen(  # which has ended below
                [sys.executable, "-m", "compare", *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        else:
            process = started("", *words)
        time.sleep(self.drawn.uniform(0.0, 20.0 if real else 3.0))
        if fault in SIGNALS:
            process.send_signal(SIGNALS[fault])
        elif children := psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                self.drawn.choice(children).kill()
        process.communicate(timeout=SECONDS)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """The path of pytest's own folder leaves no room for the Unix sockets of input workers."""
    with tempfile.TemporaryDirectory(prefix="m-") as name:
        yield Path(name)


@pytest.mark.slow
@pytest.mark.parametrize("real", [False, True], ids=["made_up", "real"])
def test_a_month_of_use_leaves_nothing_behind(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch, real: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))  # it reads TMPDIR only once
    monkeypatch.setenv("TMPDIR", str(short_folder))
    month, begun = Month(tmp_path, fake_twins), time.monotonic()
    month.use(0, real=real)  # what the first use opens, such as a font cache, may stay
    before, memory, number = Held.now(), psutil.Process().memory_info().rss, FIRST - 1

    def tell() -> None:
        grown = (psutil.Process().memory_info().rss - memory) / 2**20
        seconds = time.monotonic() - begun
        done = f"{number + 1 - FIRST} comparisons from number {FIRST} in {seconds:.0f} s"
        print(f"{done}, memory +{grown:.0f} MiB, faults: {dict(month.faults)}, modes: {dict(month.modes)}", flush=True)

    while number < LAST if LAST else time.monotonic() - begun < 60.0 * MINUTES:
        number += 1
        month.use(number, real=real)
        assert stays(before) == [], number
        if number % 50 == 0:
            tell()
    tell()
    assert number >= (LAST or 3)

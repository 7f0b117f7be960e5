import json
import os
import platform
import shutil
import subprocess
import sys
import textwrap
from collections import namedtuple
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from common.machine import machine

MIB = 2**20
linux = pytest.mark.skipif(sys.platform != "linux", reason="read from Linux's /proc, or a call of Linux")


@contextmanager
def child(code: str) -> Generator[tuple[int, str]]:
    """A process that runs the code and then waits: (its pid, the line that it printed)."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code) + "\nprint(flush=True); import sys; sys.stdin.read()"],
        env={**os.environ, "PYTHONPATH": str(machine.PROJECT_ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:  # leaving it closes stdin, which ends the process
        assert process.stdout
        yield process.pid, process.stdout.readline().strip()


# Limits.


@pytest.mark.parametrize(("cores", "expected"), [(1, [2]), (2, [2, 5]), (3, [2, 5, 11]), (8, [2, 5, 11])])
def test_the_budget_is_the_first_of_the_cpus_that_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch, cores: int, expected: list[int]
) -> None:
    monkeypatch.setattr(machine, "_CPUS", "/nowhere")
    monkeypatch.setattr(os, "sched_getaffinity", {0: {11, 5, 2}}.get, raising=False)
    assert machine.cpu_budget(cores) == expected
    assert machine.physical_cores(expected) == len(expected)


@pytest.mark.parametrize(
    ("siblings", "cores", "expected", "physical"),
    [
        (["0-1", "2-3", "4-5"], 2, [0, 2], 2),  # neighbours are threads of one core
        (["0-1", "2-3", "4-5"], 4, [0, 1, 2, 4], 3),
        (["0-1", "2-3", "4-5"], 6, [0, 1, 2, 3, 4, 5], 3),
        (["0,3", "1,4", "2,5"], 3, [0, 1, 2], 3),
        (["0,3", "1,4", "2,5"], 4, [0, 3, 1, 2], 3),
        (["0,3", "1,4", "2,5"], 6, [0, 3, 1, 4, 2, 5], 3),  # so that ranks do not share a core
    ],
)
def test_each_physical_core_is_used_before_a_second_thread_of_any(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, siblings: list[str], cores: int, expected: list[int], physical: int
) -> None:
    for each in siblings:
        for cpu in map(int, each.replace("-", ",").split(",")):
            topology = tmp_path / f"cpu{cpu}" / "topology"
            topology.mkdir(parents=True)
            (topology / "thread_siblings_list").write_text(f"{each}\n")
    monkeypatch.setattr(machine, "_CPUS", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", {0: set(range(6))}.get, raising=False)
    assert machine.cpu_budget(cores) == expected
    assert machine.physical_cores(expected) == physical


def test_without_affinity_the_budget_counts_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert machine.cpu_budget(3) == [0, 1, 2]


@linux
def test_a_process_is_held_to_its_cpus_with_all_that_it_starts() -> None:
    last = max(os.sched_getaffinity(0))
    code = f"""
        import subprocess, sys
        from common.machine import machine
        machine.set_affinity([{last}])
        ask = "import os; print(os.sched_getaffinity(0))"
        print(machine.cpu_budget(9), subprocess.check_output([sys.executable, "-c", ask], text=True), end="")
    """
    with child(code) as (pid, line):
        assert os.sched_getaffinity(pid) == {last}
        assert line == f"[{last}] {{{last}}}"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the knobs")
@pytest.mark.parametrize("keep", [True, False])
def test_freed_memory_stays_with_the_process_only_where_asked(keep: bool) -> None:
    code = f"""
        import psutil
        from common.machine import machine
        done = {keep} and machine.keep_freed_memory()
        before, size = psutil.Process().memory_info().rss, 64 * 2**20
        block = b"x" * size
        del block
        print(done, psutil.Process().memory_info().rss - before)
    """
    with child(code) as (_, line):
        done, kept = line.split()
    assert done == str(keep)
    assert (int(kept) > 60 * MIB) == keep


def test_another_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", "1.2"))
    monkeypatch.setattr(machine.ctypes, "CDLL", pytest.fail)
    assert not machine.keep_freed_memory()


# What a run uses.


def test_the_family_is_this_process_and_its_living_descendants() -> None:
    code = """
        import subprocess, sys
        own = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
        print(own.pid)
    """
    with child(code) as (pid, grandchild):
        assert {pid, int(grandchild)} <= {process.pid for process in machine.process_tree()}
    assert machine.process_tree()[0].pid == os.getpid()
    assert pid not in {process.pid for process in machine.process_tree()}


def test_cpu_time_of_a_child_counts() -> None:
    before = machine.cpu_seconds()
    with child("import time\nwhile time.process_time() < 0.3: pass\nprint(time.process_time())") as (_, burnt):
        assert machine.cpu_seconds() - before > float(burnt) - 0.05  # the kernel counts in hundredths


@linux
def test_cpu_time_of_a_child_counts_when_it_has_ended_too() -> None:
    before = machine.cpu_seconds()
    with child("import time\nwhile time.process_time() < 0.3: pass\nprint(time.process_time())") as (_, burnt):
        pass
    assert machine.cpu_seconds() - before > float(burnt) - 0.05


@linux
def test_the_peak_of_a_child_counts_after_it_has_freed_its_memory() -> None:
    with child(""):
        small = machine.peak_memory_mib()
    assert small > psutil.Process().memory_info().rss / MIB
    with child("size = 256 * 2**20; block = b'x' * size; del block"):
        assert machine.peak_memory_mib() - small == pytest.approx(256, abs=4)  # the kernel counts pages in batches


@pytest.mark.parametrize("measure", [machine.cpu_seconds, machine.peak_memory_mib])
def test_a_process_that_ends_while_it_is_counted_is_left_out(
    monkeypatch: pytest.MonkeyPatch, measure: Callable[[], float]
) -> None:
    with child("") as (pid, _):
        ended = psutil.Process(pid)
    monkeypatch.setattr(machine, "process_tree", lambda: [ended])
    assert measure() == 0


@linux
def test_load_is_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 9.0, 9.0))
    assert machine.load() == 1.5
    monkeypatch.delattr(os, "getloadavg")
    assert machine.load() is None


def test_stolen_time_is_what_the_kernel_counts_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(user=5.0, steal=2.5))
    assert machine.stolen_cpu_seconds() == 2.5
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(user=5.0))
    assert machine.stolen_cpu_seconds() == 0.0


def test_of_some_cpus_what_was_done_on_them_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    times = namedtuple("times", "user system idle iowait steal guest")
    each = [times(1.0, 0.5, 90.0, 9.0, 0.25, 0.0), times(100.0, 0.0, 0.0, 0.0, 50.0, 0.0), times(4.0, 1.0, 5.0, 0.0, 2.0, 3.0)]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu=False: each if percpu else times(*map(sum, zip(*each, strict=True))))
    assert machine.busy_cpu_seconds([0, 2]) == 1.75 + 7.0  # a guest's time is in the user's
    assert machine.stolen_cpu_seconds([0, 2]) == 2.25
    assert machine.busy_cpu_seconds() == 158.75
    assert machine.busy_cpu_seconds([0, 9]) == 1.75  # a container may show fewer


def test_the_clock_is_that_of_the_cpus_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = [SimpleNamespace(current=mhz) for mhz in (1000.0, 3000.0, 2000.0, 0.0)]
    monkeypatch.setattr(psutil, "cpu_freq", lambda percpu: clocks)
    monkeypatch.setattr(machine, "cpu_budget", lambda cores: [1, 2, 3, 7])
    assert machine.frequency_mhz() == 2500.0


@pytest.mark.parametrize("clocks", [[], [SimpleNamespace(current=0.0)]])
def test_a_clock_that_is_not_known_is_none(monkeypatch: pytest.MonkeyPatch, clocks: list[SimpleNamespace]) -> None:
    monkeypatch.setattr(psutil, "cpu_freq", lambda percpu: clocks)
    assert machine.frequency_mhz() is None

    def refuse(percpu: bool) -> None:
        raise NotImplementedError("can't find current frequency file")

    monkeypatch.setattr(psutil, "cpu_freq", refuse)
    assert machine.frequency_mhz() is None


# What it is.


def test_a_machine_describes_itself_in_json() -> None:
    described = json.loads(json.dumps(machine.describe()))
    assert described["python"] == platform.python_version()
    assert described["logical_cores"] >= max(described["cores"], 1)
    assert described["memory_mib"] == round(psutil.virtual_memory().total / MIB)
    assert isinstance(described["processor"], str)


@pytest.mark.parametrize(
    ("changed", "differing"),
    [
        ({}, []),
        ({"system": "another kernel", "python": "3.13", "memory_mib": 63_900}, []),
        ({"host": None, "gpus": None}, []),
        ({"processor": "Another CPU", "host": "b"}, ["processor", "host"]),
        ({"gpus": ["H200"]}, ["gpus"]),
        ({"memory_mib": 32_000}, ["memory_mib"]),
    ],
)
def test_a_machine_is_told_from_another_by_what_both_say(changed: dict[str, Any], differing: list[str]) -> None:
    one = {"processor": "A CPU", "cores": 4, "logical_cores": 8, "memory_mib": 64_000, "gpus": ["H100"], "host": "a"}
    assert machine.differences(one, one | changed) == machine.differences(one | changed, one) == differing


def test_a_host_is_known_by_a_digest_of_its_id_and_not_by_the_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []
    monkeypatch.setattr(machine, "_HOST_FILE", tmp_path / "machine-id")
    for written in ("", "0123abcd\n", "0123abce\n"):
        (tmp_path / "machine-id").write_text(written)
        seen.append(machine._host())
    empty, first, second = seen
    assert empty is None and first and second and first != second and "0123" not in first
    (tmp_path / "machine-id").unlink()
    assert machine._host() is None


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_that_of_the_code_and_dirty_where_a_file_of_it_has_changed_or_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(machine, "PROJECT_ROOT", tmp_path)

    def git(*words: str) -> str:
        settings = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *settings, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit() -> tuple[str | None, bool | None]:
        described = machine.describe.__wrapped__()
        return described["commit"], described["dirty"]

    assert commit() == (None, None)
    git("init")
    (tmp_path / "code.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "One")
    (tmp_path / "untracked").touch()
    assert commit() == (git("rev-parse", "HEAD"), False)
    (tmp_path / "new.py").touch()  # code that no checkout brings back
    assert commit() == (git("rev-parse", "HEAD"), True)
    (tmp_path / "new.py").unlink()
    assert commit() == (git("rev-parse", "HEAD"), False)
    (tmp_path / "code.py").write_text("22")
    assert commit() == (git("rev-parse", "HEAD"), True)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit() == (None, None)


def test_versions_are_those_installed() -> None:
    assert machine.versions("numpy", "psutil") == {"numpy": np.__version__, "psutil": psutil.__version__}
    with pytest.raises(PackageNotFoundError):
        machine.versions("a-distribution-that-nobody-installed")

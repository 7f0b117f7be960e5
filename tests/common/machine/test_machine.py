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

from common.machine import code_version, machine
from tests.support import processes, trees

MIB = 2**20
linux = pytest.mark.skipif(sys.platform != "linux", reason="read from Linux's /proc, or a call of Linux")


@contextmanager
def child(code: str) -> Generator[tuple[int, str]]:
    """A process that runs the code and then waits: (its pid, the line that it printed)."""
    code = textwrap.dedent(code) + "\nprint(flush=True); import sys; sys.stdin.read()"
    with processes.started([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        assert process.stdout
        yield process.pid, process.stdout.readline().strip()
        process.communicate()  # closes stdin, which ends it


# The command line, as printed.


@pytest.mark.parametrize(
    ("folder", "launcher", "on_path", "expected"),
    [
        ("/home/me/clone", "/home/me/clone/.venv/bin/convtwins", None, ".venv/bin/convtwins"),
        ("/home/me/work", "/home/me/clone/.venv/bin/convtwins", None, "/home/me/clone/.venv/bin/convtwins"),
        ("/home/me", "/home/me/my clone/.venv/bin/convtwins", None, "'/home/me/my clone/.venv/bin/convtwins'"),
        ("/home/me", "/opt/env/bin/convtwins", "/opt/env/bin/convtwins", "convtwins"),
        ("/home/me", "/opt/env/bin/convtwins", "/usr/bin/convtwins", "/opt/env/bin/convtwins"),
        ("/opt/env/bin", "/opt/env/bin/convtwins", None, "/opt/env/bin/convtwins"),
    ],
)
def test_a_printed_command_can_be_pasted_where_it_is_printed(
    folder: str, launcher: str, on_path: str | None, expected: str
) -> None:
    assert machine.pasteable_command(Path(folder), Path(launcher), on_path) == expected


# Limits.


@pytest.mark.parametrize(("cores", "expected"), [(1, [2]), (2, [2, 5]), (3, [2, 5, 11]), (8, [2, 5, 11])])
def test_the_budget_is_the_first_of_the_allowed_cpus(tmp_path: Path, cores: int, expected: list[int]) -> None:
    assert machine.cpu_budget(cores, {11, 5, 2}, tmp_path) == expected
    assert machine.physical_cores(expected, tmp_path) == len(expected)


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
    tmp_path: Path, siblings: list[str], cores: int, expected: list[int], physical: int
) -> None:
    files = {
        f"cpu{cpu}/topology/thread_siblings_list": f"{each}\n" for each in siblings for cpu in each.replace("-", ",").split(",")
    }
    trees.write(tmp_path, files)
    assert machine.cpu_budget(cores, range(6), tmp_path) == expected
    assert machine.physical_cores(expected, tmp_path) == physical


def test_without_affinity_the_budget_counts_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS
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
@pytest.mark.parametrize(("keep", "c_library"), [(True, None), (False, None), (False, "musl")])
def test_freed_memory_stays_with_the_process_only_where_asked_and_known(keep: bool, c_library: str | None) -> None:
    code = f"""
        import psutil
        from common.machine import machine
        done = {keep or c_library is not None} and machine.keep_freed_memory({c_library!r})
        before, size = psutil.Process().memory_info().rss, 64 * 2**20
        block = b"x" * size
        del block
        print(done, psutil.Process().memory_info().rss - before)
    """
    with child(code) as (_, line):
        done, kept = line.split()
    assert done == str(keep)
    assert (int(kept) > 60 * MIB) == keep


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
    if sys.platform == "linux":
        assert machine.cpu_seconds() - before > float(burnt) - 0.05, "when it has ended too"


@linux
def test_the_peak_of_a_child_counts_after_it_has_freed_its_memory() -> None:
    with child(""):
        small = machine.peak_memory_mib()
    assert small > psutil.Process().memory_info().rss / MIB
    with child("size = 256 * 2**20; block = b'x' * size; del block"):
        assert machine.peak_memory_mib() - small == pytest.approx(256, abs=4)  # the kernel counts pages in batches


@pytest.mark.parametrize("measure", [machine.cpu_seconds, machine.peak_memory_mib])
def test_a_process_that_ends_while_it_is_counted_is_left_out(measure: Callable[[list[psutil.Process]], float]) -> None:
    with child("") as (pid, _):
        ended = psutil.Process(pid)
    assert measure([ended]) == 0


@linux
def test_load_is_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    before, load, after = os.getloadavg()[0], machine.load(), os.getloadavg()[0]
    assert load in (before, after)
    monkeypatch.delattr(os, "getloadavg")  # as on Windows
    assert machine.load() is None


Times = namedtuple("Times", "user system idle iowait steal guest")


def test_of_some_cpus_what_was_done_on_them_counts() -> None:
    each = [Times(1.0, 0.5, 90.0, 9.0, 0.25, 0.0), Times(100.0, 0.0, 0.0, 0.0, 50.0, 0.0), Times(4.0, 1.0, 5.0, 0.0, 2.0, 3.0)]
    assert machine.busy_cpu_seconds([0, 2], each) == 1.75 + 7.0  # a guest's time is in the user's
    assert machine.stolen_cpu_seconds([0, 2], each) == 2.25
    assert (machine.busy_cpu_seconds(times=each), machine.stolen_cpu_seconds(times=each)) == (158.75, 52.25)
    assert machine.busy_cpu_seconds([0, 9], each) == 1.75  # a container may show fewer
    assert machine.stolen_cpu_seconds(times=[SimpleNamespace(user=5.0)]) == 0.0  # the system does not say


def test_of_all_cpus_the_kernels_sum_counts() -> None:
    before = psutil.cpu_times()
    busy, stolen, after = machine.busy_cpu_seconds(), machine.stolen_cpu_seconds(), psutil.cpu_times()
    assert getattr(before, "steal", 0.0) <= stolen <= getattr(after, "steal", 0.0)
    assert before.user + before.system <= busy <= sum(after) - after.idle


@pytest.mark.parametrize(("mhz", "expected"), [((1000.0, 3000.0, 2000.0, 0.0), 2500.0), ((), None), ((9.0, 0.0), None)])
def test_the_clock_is_the_mean_of_these_cpus_and_none_where_it_is_not_known(
    mhz: tuple[float, ...], expected: float | None
) -> None:
    clocks = [SimpleNamespace(current=each) for each in mhz]
    assert machine.frequency_mhz([1, 2, 3, 7], lambda: clocks) == expected


def test_the_clock_is_that_of_the_cpus_that_this_process_may_use() -> None:
    allowed = machine.cpu_budget(machine.available_cores())
    clocks = [SimpleNamespace(current=3000.0 if cpu in allowed else 1000.0) for cpu in range(max(allowed) + 2)]
    assert machine.frequency_mhz(read=lambda: clocks) == 3000.0


def test_a_clock_that_the_system_does_not_say_is_none() -> None:
    def refuse() -> list[Any]:
        raise NotImplementedError("can't find current frequency file")

    assert machine.frequency_mhz(read=refuse) is None
    assert machine.frequency_mhz(read=list) is None


# What it is.


def test_a_machine_describes_itself_in_json() -> None:
    described = json.loads(json.dumps(machine.describe()))
    assert described["python"] == platform.python_version()
    assert described["logical_cores"] >= max(described["cores"], 1)
    assert described["memory_mib"] == round(psutil.virtual_memory().total / MIB)
    assert isinstance(described["processor"], str)
    code = code_version.describe(machine.PROJECT_ROOT)
    assert (described["commit"], described["dirty"]) == (code["commit"], code["dirty"])


@pytest.mark.parametrize(
    ("changed", "differing"),
    [
        ({}, []),
        ({"system": "another kernel", "python": "3.13", "memory_mib": 63_900}, []),
        ({"host": None, "gpus": None}, []),
        ({"processor": "Another CPU", "host": "b"}, ["processor", "host"]),
        ({"processor_model": "family 25, model 17, AVX-512"}, ["processor_model"]),
        ({"processor_model": None}, []),
        ({"gpus": ["H200"]}, ["gpus"]),
        ({"memory_mib": 32_000}, ["memory_mib"]),
    ],
)
def test_a_machine_is_told_from_another_by_what_both_say(changed: dict[str, Any], differing: list[str]) -> None:
    one: dict[str, Any] = {"processor": "A CPU", "processor_model": "family 25, model 1, AVX2", "cores": 4, "logical_cores": 8}
    one |= {"memory_mib": 64_000, "gpus": ["H100"], "host": "a"}
    assert machine.differences(one, one | changed) == machine.differences(one | changed, one) == differing


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [
        ("model name\t: AMD EPYC\ncpu family\t: 25\nmodel\t\t: 1\nflags\t\t: avx avx2 fma\n", "family 25, model 1, AVX2"),
        (
            "model name\t: AMD EPYC\ncpu family\t: 25\nmodel\t\t: 17\nflags\t\t: avx avx2 avx512f\n",
            "family 25, model 17, AVX-512",
        ),
        ("Features\t: fp asimd sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n", "implementer 0x41, part 0xd40, SVE"),
        ("", ""),
    ],
)
def test_two_generations_of_one_name_are_two_processors(tmp_path: Path, cpuinfo: str, model: str) -> None:
    trees.write(tmp_path, {"cpuinfo": cpuinfo})
    assert machine.processor_model(tmp_path / "cpuinfo") == model
    assert machine.processor_model(tmp_path / "missing") == ""


def test_a_host_is_known_by_a_digest_of_its_id_and_not_by_the_id(tmp_path: Path) -> None:
    trees.write(tmp_path, {"empty": "", "first": "0123abcd\n", "second": "0123abce\n"})
    first, second = (machine.host_digest(tmp_path / name) for name in ("first", "second"))
    assert first and second and first != second and "0123" not in first
    assert machine.host_digest(tmp_path / "empty") is machine.host_digest(tmp_path / "missing") is None


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_that_of_the_code_and_dirty_where_a_file_of_it_has_changed_or_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)

    def commit() -> tuple[str | None, bool | None]:
        described = code_version.describe(tmp_path)
        return described["commit"], described["dirty"]

    assert commit() == (None, None)
    processes.git(tmp_path, "init")
    (tmp_path / "code.py").write_text("1")
    processes.git(tmp_path, "add", ".")
    processes.git(tmp_path, "commit", "-m", "One")
    head = processes.git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "untracked").touch()
    assert commit() == (head, False)
    (tmp_path / "new.py").touch()  # code that no checkout brings back
    assert commit() == (head, True)
    (tmp_path / "new.py").unlink()
    assert commit() == (head, False)
    (tmp_path / "code.py").write_text("22")
    assert commit() == (head, True)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit() == (None, None)


def test_versions_are_those_installed() -> None:
    assert machine.versions("numpy", "psutil") == {"numpy": np.__version__, "psutil": psutil.__version__}
    with pytest.raises(PackageNotFoundError):
        machine.versions("a-distribution-that-nobody-installed")

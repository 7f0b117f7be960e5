import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psutil
import pytest

from common.machine import footprint
from common.machine.footprint import RUNNING, SLEEPING, Footprint
from tests.support import processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def start() -> Iterator[Callable[[str], int]]:
    with ExitStack() as stack:

        def start_one(code: str) -> int:
            words = [sys.executable, "-u", "-c", textwrap.dedent(code)]
            process = stack.enter_context(processes.started(words, stderr=None))
            assert process.stdout is not None and process.stdout.readline()
            return process.pid

        yield start_one


def read(pid: int) -> Footprint:
    found = footprint.read(pid)
    assert found is not None
    return found


def over(pid: int, seconds: float) -> tuple[Footprint, Footprint]:
    before = read(pid)
    time.sleep(seconds)
    return before, read(pid)


def test_a_process_that_computes_uses_cpu_and_wants_more(start: Callable[[str], int]) -> None:
    before, now = over(start("print(1)\nwhile True: pass"), 1.0)
    assert now.is_active and not now.is_stopped
    wanted = [each.cpu_seconds + each.total("core_wait_seconds") for each in (before, now)]
    assert 0.9 < wanted[1] - wanted[0] < 1.5, "each moment it has a core or waits for one"
    assert now.total("cpu_seconds") == pytest.approx(now.cpu_seconds, abs=0.1)


def test_a_process_that_waits_uses_none_and_the_kernel_says_in_what(start: Callable[[str], int]) -> None:
    pid = start("import threading\nprint(1)\nthreading.Event().wait()")
    time.sleep(0.2)
    before, now = over(pid, 0.5)
    assert not now.is_active and now.cpu_seconds - before.cpu_seconds < 0.1
    assert [thread.state for thread in now.threads] == [footprint.SLEEPING]
    assert "futex" in footprint.blocked_in(pid, pid) or os.geteuid()
    assert footprint.blocked_in(os.getpid(), os.getpid()) == "", "it runs"


def test_threads_switches_and_faults_are_counted(start: Callable[[str], int]) -> None:
    code = """
    import threading, time
    def wake():
        while True: time.sleep(0.01)
    threading.Thread(target=wake, daemon=True).start()
    print(1)
    while True: bytearray(20_000_000)
    """
    before, now = over(start(code), 1.0)
    assert [thread.number == now.pid for thread in now.threads] == [True, False], "the main thread first"
    sleeper = [each.threads[1].voluntary_switches for each in (before, now)]
    assert 20 < sleeper[1] - sleeper[0] < 300
    assert now.minor_faults - before.minor_faults > 1000


def test_shared_memory_is_counted(start: Callable[[str], int]) -> None:
    code = "import mmap, time\nshared = mmap.mmap(-1, 50 * 2**20)\nshared.write(b'x' * len(shared))\nprint(1)\ntime.sleep(60)"
    now = read(start(code))
    assert 50 * 2**20 <= now.shared_bytes < 60 * 2**20
    assert now.resident_bytes > now.shared_bytes and now.swap_bytes >= 0


def test_what_is_written_to_the_disk_is_counted(start: Callable[[str], int]) -> None:
    code = """
    import os, tempfile
    print(1)
    with tempfile.TemporaryFile(dir=".") as file:
        while True:
            file.write(b"x" * 2**20)
            file.seek(0)
            os.fsync(file.fileno())
    """
    before, now = over(start(code), 1.0)
    assert now.disk_bytes is not None and before.disk_bytes is not None
    assert now.disk_bytes - before.disk_bytes >= 2**20


def test_a_stopped_process_is_seen_and_one_that_ended_is_none(start: Callable[[str], int]) -> None:
    pid = start("print(1)\nwhile True: pass")
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.2)
    assert read(pid).is_stopped
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert footprint.read(pid) is None
    assert footprint.read(2**22 + 1) is None


@pytest.mark.parametrize("name", ["a\rVmRSS:", "a\x0bVmSwap:", "a\x1cState:"])
def test_what_a_process_calls_itself_is_no_field(start: Callable[[str], int], name: str) -> None:
    pid = start(
        f"""
        import ctypes, time
        ctypes.CDLL(None).prctl(15, {name.encode()!r})
        print("ready")
        time.sleep(60)
        """
    )
    found = read(pid)
    assert found.resident_bytes > 2**20 and found.threads[0].state in (RUNNING, SLEEPING)


def test_a_tree_holds_all_that_a_process_started(start: Callable[[str], int]) -> None:
    pid = start("import subprocess, time\nsubprocess.Popen(['sleep', '60'])\nprint(1)\ntime.sleep(60)")
    (child,) = psutil.Process(pid).children()
    assert [each.pid for each in footprint.read_tree(psutil.Process(pid))] == [pid, child.pid]
    child.kill()

"""Real processes that are healthy, slow or stuck: each gets the right verdict, rank and line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from compare.watching.verdict import ENDED, HEALTHY, SLOW, STUCK, UNKNOWN
from tests.compare.command_line import compare
from tests.compare.watching.jobs import PATIENCE, started, verdicts, watched

LOCKS = """
    import threading
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)
    def take(one, other):
        with one:
            both.wait()
            print("ready")
            with other:
                pass
    threading.Thread(target=take, args=(second, first), name="loader", daemon=True).start()
    take(first, second)
"""
QUEUE = """
    import queue
    def put(batches):
        batches.put(1)
        print("ready")
        batches.put(2)
    put(queue.Queue(1))
"""
WORKER = """
    import queue, threading
    batches, lock = queue.Queue(), threading.Lock()
    def load():
        with lock:
            batches.put(1)
    lock.acquire()
    threading.Thread(target=load, name="loader", daemon=True).start()
    print("ready")
    batch = batches.get()
"""
SPINNING = """
    ready = False
    def wait_for_flag():
        print("ready")
        while not ready:
            pass
    wait_for_flag()
"""
LIVELOCK = """
    import threading, time
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)
    # Neither ever lets go of its own lock.
    def stubborn(one, other):
        one.acquire()
        both.wait()
        print("ready")
        while not other.acquire(blocking=False):
            time.sleep(0)
    threading.Thread(target=stubborn, args=(second, first), daemon=True).start()
    stubborn(first, second)
"""
TRAINING = """
    import hashlib
    def forward(text):
        return hashlib.pbkdf2_hmac("sha256", text, b"", 2000)
    def backward(digest):
        return sum(value * value for value in digest * 300)
    def step(number):
        return backward(forward(str(number).encode()))
    print("ready")
    number = 0
    while True:
        step(number)
        number += 1
"""
SLEEPING = """
    import time
    print("ready")
    time.sleep(600)
"""
READING = """
    import os
    ours, theirs = os.pipe()
    def read():
        print("ready")
        os.read(ours, 1)
    read()
"""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            LOCKS,
            r"waits for a lock in take \(train\.py:\d+: with other:\), "
            r"and its thread loader waits for a lock in take \(train\.py:\d+: with other:\)",
        ),
        (QUEUE, r"waits in Queue\.put in put \(train\.py:6: batches\.put\(2\)\)"),
        (
            WORKER,
            r"waits in Queue\.get in <module> \(train\.py:10: batch = batches\.get\(\)\), "
            r"and its thread loader waits for a lock in load \(train\.py:5: with lock:\)",
        ),
        (SPINNING, r"asks again and again in wait_for_flag \(train\.py:[56]: (while not ready:|pass)\)"),
        (LIVELOCK, r"asks again and again in stubborn \(train\.py:\d+: .*\)"),
        (READING, r"waits for a socket or pipe in read \(train\.py:6: os\.read\(ours, 1\)\)"),
    ],
    ids=["two locks", "full queue", "queue and lock", "spinning", "livelocked", "pipe"],
)
def test_a_stuck_job_is_called_so_with_its_thread_and_line(tmp_path: Path, code: str, words: str) -> None:
    with started(code, tmp_path) as pid:
        found = watched(pid)
    assert found.state == STUCK, found
    assert re.fullmatch(rf"process {pid} {words}", found.because), found.because
    assert found.ranks == (f"process {pid}",)


def test_a_stopped_job_is_called_so_at_once_and_healthy_when_it_goes_on(tmp_path: Path) -> None:
    with started(TRAINING, tmp_path) as pid:
        os.kill(pid, signal.SIGSTOP)
        begun = time.monotonic()
        found = watched(pid)
        assert time.monotonic() - begun < PATIENCE
        assert found.state == STUCK
        assert found.because.startswith(f"process {pid} is stopped by a signal or a debugger (`kill -CONT {pid}`")
        os.kill(pid, signal.SIGCONT)
        assert watched(pid, lambda found: found.state == HEALTHY).state == HEALTHY


def test_a_busy_job_is_never_called_stuck(tmp_path: Path) -> None:
    with started(TRAINING, tmp_path) as pid:
        found = verdicts(pid, 4 * PATIENCE)
    assert len(found) > 10
    # On a busy machine it may be slow, and rightly so.
    assert {each.state for each in found if "cores that it wants" not in each.because} <= {HEALTHY}, found


def test_a_job_that_sleeps_is_slow_and_not_stuck(tmp_path: Path) -> None:
    with started(SLEEPING, tmp_path) as pid:
        found = watched(pid, lambda found: found.state == SLOW)
    assert (found.state, found.because) == (SLOW, f"process {pid} sleeps in <module> (train.py:4: time.sleep(600))")


def test_a_job_that_gets_no_core_is_slow_and_the_reason_names_what_it_gets(tmp_path: Path) -> None:
    with started(TRAINING, tmp_path) as pid:
        cpu = psutil.Process(pid).cpu_affinity()[:1]
        psutil.Process(pid).cpu_affinity(cpu)
        rivals = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
        try:
            for rival in rivals:
                psutil.Process(rival.pid).cpu_affinity(cpu)
            found = watched(pid, lambda found: found.state == SLOW)
        finally:
            for rival in rivals:
                rival.kill()
                rival.wait()
    assert found.state == SLOW
    gets, wants = map(float, re.findall(r"(\d\.\d\d)", found.because))
    assert re.fullmatch(rf"process {pid} gets .* of the .* cores that it wants", found.because)
    assert gets < 0.5 < wants


RANKS = """
    import multiprocessing, os, socket, threading
    lock = threading.Lock()
    def fetch(rank):
        with lock:
            return rank
    def all_reduce(mine):
        return mine.recv(1)
    def work(rank, mine):
        print("ready")
        if rank == 0:
            lock.acquire()
            fetch(rank)
        all_reduce(mine)
    if __name__ == "__main__":
        context = multiprocessing.get_context("{method}")
        pairs = [socket.socketpair() for _ in range(3)]
        started = [context.Process(target=work, args=(place, pairs[place][0])) for place in range(3)]
        for each in started:
            each.start()
        for each in started:
            each.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_ranks_that_wait_for_one_that_waits_for_a_lock_are_told_as_a_chain(tmp_path: Path, method: str) -> None:
    """Nobody told these processes their rank by the environment: it is in a variable."""
    with started(RANKS.replace("{method}", method), tmp_path) as pid:
        found = watched(pid, lambda found: found.state == STUCK and "rank" in found.because)
    assert found.state == STUCK
    assert re.fullmatch(
        r"rank 1 and rank 2 wait for a socket or pipe in all_reduce \(train\.py:8: return mine\.recv\(1\)\) "
        r"for rank 0, which waits for a lock in fetch \(train\.py:5: with lock:\)",
        found.because,
    ), found.because
    assert found.ranks == ("rank 0",)


LAUNCHED = """
import os, subprocess, sys
started = [subprocess.Popen([sys.executable, "-u", "rank.py"], env=os.environ | {"RANK": str(each)}) for each in range(2)]
for each in started:
    each.wait()
"""
PRELUDE = """
import os, socket
rank = int(os.environ["RANK"])
ours, theirs = socket.socketpair()
print("ready")
"""


def launched(rank: str, folder: Path) -> AbstractContextManager[int]:
    """A job of two ranks, which find their number in the environment; its launcher."""
    (folder / "rank.py").write_text(PRELUDE + rank)
    return started(LAUNCHED, folder)


def test_a_rank_that_waits_while_another_computes_is_slow_and_the_other_is_named(tmp_path: Path) -> None:
    body = """
def evaluate(number):
    return sum(value * value for value in range(20000 + number % 7))
number = 0
while rank == 0:
    evaluate(number)
    number += 1
ours.recv(1)
"""
    with launched(body, tmp_path) as pid:
        found = watched(pid, lambda found: "for rank 0" in found.because)
    assert (found.state, found.ranks) == (SLOW, ("rank 0",)), found
    # On a busy machine it is short of cores, and rightly said to be so.
    does = r"computes in \S+ \(rank\.py:\d+: .*\)|gets .* cores that it wants"
    waits = r"rank 1 waits for a socket or pipe in <module> \(rank\.py:\d+: ours\.recv\(1\)\)"
    assert re.fullmatch(rf"{waits} for rank 0, which ({does})", found.because), found.because


def test_a_rank_that_asks_for_what_another_is_at_work_on_is_slow_and_not_stuck(tmp_path: Path) -> None:
    body = """
import os, time
while rank == 1 and not os.path.exists("preprocessed"):
    time.sleep(0.1)
while True:
    sum(value * value for value in range(20000))
"""
    with launched(body, tmp_path) as pid:
        found = watched(pid, lambda found: "for rank 0" in found.because or found.state == STUCK)
    assert (found.state, found.ranks) == (SLOW, ("rank 0",)), found
    said = r"rank 1 asks again and again in <module> \(rank\.py:\d+: .*\) for rank 0, which (computes|gets) .*"
    assert re.fullmatch(said, found.because), found.because


def test_a_rank_that_spins_while_another_waits_is_named(tmp_path: Path) -> None:
    body = """
ready = False
while rank == 0 and not ready:
    pass
ours.recv(1)
"""
    with launched(body, tmp_path) as pid:
        found = watched(pid)
    assert found.state == STUCK, found
    assert found.ranks == ("rank 0",)
    assert "rank 1 waits for a socket or pipe" in found.because and "for rank 0, which asks again and again" in found.because


def test_what_a_job_calls_its_threads_and_functions_does_nothing_in_the_terminal(tmp_path: Path) -> None:
    code = """
    import threading
    lock = threading.Lock()
    lock.acquire()
    def take():
        print("ready")
        with lock: pass
    thread = threading.Thread(target=take, name="red \\x1b[31m\\nhealthy", daemon=True)
    thread.start()
    thread.join()
    """
    with started(code, tmp_path) as pid:
        done = compare("watch", pid, "--patience", "1", "--interval", "0.2")
    assert "\x1b" not in done.output
    assert "its thread red  healthy waits for a lock in take" in done.output.replace("\n", " "), done.output


def test_the_command_says_the_verdict_with_stacks_and_ends_with_6(tmp_path: Path) -> None:
    with started(LOCKS, tmp_path) as pid:
        done = compare("watch", pid, "--patience", "2", "--interval", "0.2")
        assert done.exit_code == 6, done.output
        for part in (f"stuck: process {pid} waits for a lock", "Stacks of", "thread loader", "train.py:", "µs of a core each"):
            assert part in done.output
        said = json.loads(compare("watch", pid, "--patience", "1", "--interval", "0.2", "--json").stdout)
    assert (said["verdict"], said["to_blame"], said["exit_code"]) == ("stuck", [f"process {pid}"], 6)
    (rank,) = said["ranks"]
    assert rank["waits"]["kind"] == "lock"
    assert {thread["name"] for thread in rank["stacks"][str(pid)]["threads"]} == {"MainThread", "loader"}
    assert 0 < said["cpu_microseconds_of_a_look"] < 1e6


def test_the_command_ends_with_0_for_a_job_at_work_and_5_where_it_cannot_tell(tmp_path: Path) -> None:
    with started(TRAINING, tmp_path) as pid:
        done = compare("watch", pid, "--seconds", "1", "--interval", "0.2")
    assert done.exit_code == 0 and f"healthy: process {pid} uses" in done.output
    with started(SLEEPING, tmp_path) as pid:
        done = compare("watch", pid, "--seconds", "1", "--interval", "0.2")
    assert done.exit_code == 5 and "cannot be told: nothing happens" in done.output


def test_a_job_that_ends_is_told_and_a_process_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with started('print("ready"); import time; time.sleep(1)', tmp_path) as pid:
        assert watched(pid, lambda found: found.state == ENDED).because == f"process {pid} has ended"
    done = compare("watch", 2**22 + 1)
    assert done.exit_code == 2 and f"There is no such process. Received: {2**22 + 1}." in done.output


SHELL = ("bash", "-c", '"$@"; true', "bash")
NAMESPACE = ("unshare", "--pid", "--fork")


@pytest.mark.parametrize(
    ("code", "wrapped", "state", "words"),
    [
        (LOCKS, SHELL, STUCK, r"waits for a lock in take \(.*\), and its thread loader waits for a lock in take \(.*\)"),
        (SLEEPING, SHELL, SLOW, r"sleeps in <module> \(train\.py:4: time\.sleep\(600\)\)"),
        (LOCKS, NAMESPACE, STUCK, r"waits for a lock in take \(.*\), and its thread loader waits for a lock in take \(.*\)"),
    ],
    ids=["locks in a shell", "sleep in a shell", "locks in another PID namespace"],
)
def test_a_job_behind_a_shell_or_in_a_container_is_judged_by_its_python_program(
    tmp_path: Path, code: str, wrapped: tuple[str, ...], state: str, words: str
) -> None:
    if wrapped == NAMESPACE and os.geteuid() != 0:
        pytest.skip("only root can make a PID namespace")
    with started(code, tmp_path, wrapped=wrapped) as pid:
        found = watched(pid, lambda found: found.state == state, patience=1.0, longest=8.0)
    assert found.state == state, found
    assert re.fullmatch(rf"process {pid} {words}", found.because), found.because


def test_an_idle_program_without_stacks_is_not_called_stuck() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        found = watched(process.pid, lambda found: "does nothing" in found.because, patience=1.0, longest=8.0)
        process.kill()
    assert (found.state, "it is no Python program" in found.because) == (UNKNOWN, True), found


def test_a_wait_in_a_librarys_c_code_beside_a_rank_that_works_is_slow_and_not_stuck(tmp_path: Path) -> None:
    body = """
import ctypes
while rank == 0:
    sum(value * value for value in range(20000))
semaphore = ctypes.create_string_buffer(64)
library = ctypes.CDLL(None)
library.sem_init(semaphore, 0, 0)
library.sem_wait(semaphore)
"""
    with launched(body, tmp_path) as pid:
        found = watched(pid, lambda found: "rank 1 waits" in found.because, patience=1.0, longest=8.0)
    assert (found.state, found.ranks) == (SLOW, ("rank 0",)), found
    assert found.because.startswith("rank 1 waits in a call in <module> (rank.py:"), found


def test_a_rank_that_has_ended_is_named_while_others_go_on(tmp_path: Path) -> None:
    body = """
import time
time.sleep(1)
while rank == 0:
    sum(value * value for value in range(20000))
"""
    with launched(body, tmp_path) as pid:
        found = watched(pid, lambda found: "ended" in found.because and found.state == SLOW, patience=1.0, longest=20.0)
    assert (found.state, found.ranks[0]) == (SLOW, "rank 1"), found
    assert found.because.startswith("rank 1 has ended; rank 0 "), found

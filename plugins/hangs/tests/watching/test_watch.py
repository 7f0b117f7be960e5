"""Real processes that are healthy, slow or stuck: each gets the right verdict, rank and line."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from syrupy.assertion import SnapshotAssertion

from common.processes import supervisor
from convtwins_hangs.watching.verdict import ENDED, HEALTHY, SLOW, STUCK, UNKNOWN
from plugins.hangs.tests.watching.jobs import PATIENCE, started, verdicts, watched, without_numbers
from tests.support import processes
from tests.support.command_line import convtwins, convtwins_json

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
QUEUES = """
    import queue, threading
    batches, recycled = queue.Queue(1), queue.Queue(1)
    def load():
        while True:
            batches.put(1)
    def train():
        print("ready")
        while True:
            recycled.put(batches.get())
    threading.Thread(target=load, name="loader", daemon=True).start()
    train()
"""
MONITORED = """
    import pathlib, queue, sys, threading
    library = pathlib.Path("site-packages")
    library.mkdir()
    (library / "bar.py").write_text("import threading\\ndef monitor():\\n    threading.Event().wait()\\n")
    sys.path.insert(0, str(library.resolve()))
    import bar
    threading.Thread(target=bar.monitor, name="monitor", daemon=True).start()
    def put(batches):
        batches.put(1)
        print("ready")
        batches.put(2)
    put(queue.Queue(1))
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
    "code",
    [
        pytest.param(LOCKS, id="two locks"),
        pytest.param(QUEUE, id="full queue"),
        pytest.param(WORKER, id="queue and lock"),
        pytest.param(QUEUES, id="both queues full"),
        pytest.param(MONITORED, id="thread of a library"),
        pytest.param(SPINNING, id="spinning"),
        pytest.param(LIVELOCK, id="livelocked"),
        pytest.param(READING, id="pipe"),
    ],
)
def test_a_stuck_job_is_called_so_with_its_thread_and_line(tmp_path: Path, code: str, snapshot: SnapshotAssertion) -> None:
    with started(code, tmp_path) as pid:
        found = watched(pid)
    assert (found.state, found.ranks) == (STUCK, (f"process {pid}",)), found
    # Those that ask again and again may be seen in each line of their loop.
    assert re.sub(r"(asks .*LINE): .*\)", r"\1)", without_numbers(found.reason)) == snapshot


def test_a_stopped_job_is_called_so_at_once_and_healthy_when_it_goes_on(tmp_path: Path) -> None:
    with started(TRAINING, tmp_path) as pid:
        os.kill(pid, signal.SIGSTOP)
        begun = time.monotonic()
        found = watched(pid)
        assert time.monotonic() - begun < PATIENCE
        assert found.state == STUCK
        assert f"`kill -CONT {pid}`" in found.reason
        os.kill(pid, signal.SIGCONT)
        assert watched(pid, lambda found: found.state == HEALTHY).state == HEALTHY


def test_a_busy_job_is_never_called_stuck(tmp_path: Path) -> None:
    with started(TRAINING, tmp_path) as pid:
        found = verdicts(pid, 4 * PATIENCE)
    assert len(found) > 10
    # On a busy machine it may be slow, and rightly so.
    assert {each.state for each in found if "cores that it wants" not in each.reason} <= {HEALTHY}, found


def test_a_job_that_sleeps_is_slow_and_not_stuck(tmp_path: Path) -> None:
    with started(SLEEPING, tmp_path) as pid:
        found = watched(pid, lambda found: found.state == SLOW)
    assert found.state == SLOW and "(train.py:4: time.sleep(600))" in found.reason


def test_a_job_that_gets_no_core_is_slow_and_the_reason_names_what_it_gets(tmp_path: Path) -> None:
    with started(TRAINING, tmp_path) as pid:
        cpu = psutil.Process(pid).cpu_affinity()[:1]
        psutil.Process(pid).cpu_affinity(cpu)
        with ExitStack() as rivals:
            for _ in range(4):
                rival = rivals.enter_context(processes.started([sys.executable, "-c", "while True: pass"]))
                psutil.Process(rival.pid).cpu_affinity(cpu)
            found = watched(pid, lambda found: found.state == SLOW)
    assert found.state == SLOW
    gets, wants = map(float, re.findall(r"(\d\.\d\d)", found.reason))
    assert found.reason.startswith(f"process {pid} ") and gets < 0.5 < wants


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
def test_ranks_that_wait_for_one_that_waits_for_a_lock_are_told_as_a_chain(
    tmp_path: Path, method: str, snapshot: SnapshotAssertion
) -> None:
    """Nobody told these processes their rank by the environment: it is in a variable."""
    with started(RANKS.replace("{method}", method), tmp_path) as pid:
        found = watched(pid, lambda found: found.state == STUCK and "rank" in found.reason)
    assert (found.state, found.ranks) == (STUCK, ("rank 0",))
    assert without_numbers(found.reason) == snapshot


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
        found = watched(pid, lambda found: "for rank 0" in found.reason)
    assert (found.state, found.ranks) == (SLOW, ("rank 0",)), found
    # On a busy machine it is short of cores, and rightly said to be so.
    does = r"computes in \S+ \(rank\.py:\d+: .*\)|gets .* cores that it wants"
    waits = r"rank 1 waits for a socket or pipe in <module> \(rank\.py:\d+: ours\.recv\(1\)\)"
    assert re.fullmatch(rf"{waits} for rank 0, which ({does})", found.reason), found.reason


REDUCING = """
import time
def load():
    if rank == {late}:
        {delay}
def all_reduce(peer):
    peer.sendall(b"x" * 65536)
    left = 65536
    while left:
        left -= len(peer.recv(left))
peer = socket.create_connection(("127.0.0.1", {port}))
while True:
    load()
    all_reduce(peer)
"""


@contextmanager
def link(pause: float) -> Generator[int]:
    """A link between two processes that takes so many seconds for 8 KiB; its port."""

    def forward(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(8192):
                time.sleep(pause)
                target.sendall(data)

    def join() -> None:
        ends = [listener.accept()[0] for _ in range(2)]
        opened.extend(ends)
        for source, target in (ends, ends[::-1]):
            threading.Thread(target=forward, args=(source, target), daemon=True).start()

    opened: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=join, daemon=True).start()
        yield listener.getsockname()[1]
    for each in opened:
        each.close()


@pytest.mark.parametrize(
    ("delay", "does"),
    [
        ("time.sleep(0.8)", r"sleeps in load \(rank\.py:\d+: time\.sleep\(0\.8\)\)"),
        (
            "end = time.monotonic() + 0.8\n        while time.monotonic() < end: sum(range(9999))",
            r"(computes in load \(rank\.py:\d+: .*\)|gets .* cores that it wants)",
        ),
    ],
    ids=["sleeps", "computes"],
)
def test_a_rank_that_is_late_to_large_exchanges_is_named_and_not_the_network(tmp_path: Path, delay: str, does: str) -> None:
    with link(0.0) as port, launched(REDUCING.format(late=1, delay=delay, port=port), tmp_path) as pid:
        found = watched(pid, lambda found: "for rank" in found.reason or "the network" in found.reason)
    assert (found.state, found.ranks) == (SLOW, ("rank 1",)), found
    waits = r"rank 0 waits for a socket or pipe in all_reduce \(rank\.py:\d+: left -= len\(peer\.recv\(left\)\)\)"
    assert re.fullmatch(rf"{waits} for rank 1, which {does}, in \d+ of \d+ looks", found.reason), found


def test_a_job_whose_network_is_slow_is_said_to_wait_for_it(tmp_path: Path) -> None:
    with link(0.05) as port, launched(REDUCING.format(late=-1, delay="pass", port=port), tmp_path) as pid:
        found = watched(pid, lambda found: "for rank" in found.reason or "the network" in found.reason)
    assert (found.state, found.ranks) == (SLOW, ("rank 0", "rank 1")), found
    assert len(re.findall(r"rank [01] \([\d,]+ KiB ", found.reason)) == 2, found


@pytest.mark.slow
@pytest.mark.parametrize("floats", [4, 250_000], ids=["16 bytes", "1 MB"])
def test_a_rank_that_is_late_to_an_all_reduce_of_gloo_is_named_however_much_is_reduced(tmp_path: Path, floats: int) -> None:
    body = f"""
import time, torch
torch.distributed.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=rank, world_size=2)
while True:
    if rank == 1:
        time.sleep(2)
    torch.distributed.all_reduce(torch.ones({floats}))
"""
    with launched(body, tmp_path) as pid:
        # Before that, a rank may wait for one that still imports.
        found = watched(pid, lambda found: "all_reduce for" in found.reason or "the network" in found.reason, patience=4.0)
    assert (found.state, found.ranks) == (SLOW, ("rank 1",)), found
    assert re.match(r"rank 0 .*all_reduce for rank 1, .*<module> \(rank\.py:", found.reason), found


@pytest.mark.slow
def test_a_rank_that_computes_in_a_call_of_tensorflow_is_named_by_those_that_wait_in_one(tmp_path: Path) -> None:
    """Both stand in the same line. Rank 1 computes there, and rank 0 waits for its part of the sum."""
    port, other = supervisor.free_ports(2)
    body = f"""
import json
workers = ["127.0.0.1:{port}", "127.0.0.1:{other}"]
os.environ["TF_CONFIG"] = json.dumps({{"cluster": {{"worker": workers}}, "task": {{"type": "worker", "index": rank}}}})
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(2)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def step(values, turns):
    def on_replica(values):
        matrix = tf.ones((300, 300)) / 300.0
        for _ in tf.range(turns):
            matrix = tf.matmul(matrix, matrix)
        return tf.distribute.get_replica_context().all_reduce("sum", values + 0 * tf.reduce_sum(matrix))
    return strategy.run(on_replica, args=(values,))
while True:
    step(tf.zeros(250_000), tf.constant(200 * rank))
"""
    with launched(body, tmp_path) as pid:
        found = watched(pid, lambda found: "looks" in found.reason, patience=4.0, longest=90.0)
    assert (found.state, found.ranks) == (SLOW, ("rank 1",)), found
    does = r"(computes in <module> \(rank\.py:\d+: .*\)|gets .* cores that it wants)"
    waits = "rank 0 waits in a call of TensorFlow"
    assert re.match(rf"{waits} for rank 1, which {does}, in \d+ of \d+ looks", found.reason), found


def test_a_rank_that_asks_for_what_another_is_at_work_on_is_slow_and_not_stuck(tmp_path: Path) -> None:
    body = """
import os, time
while rank == 1 and not os.path.exists("preprocessed"):
    time.sleep(0.1)
while True:
    sum(value * value for value in range(20000))
"""
    with launched(body, tmp_path) as pid:
        found = watched(pid, lambda found: "for rank 0" in found.reason or found.state == STUCK)
    assert (found.state, found.ranks) == (SLOW, ("rank 0",)), found
    said = r"rank 1 asks again and again in <module> \(rank\.py:\d+: .*\) for rank 0, which (computes|gets) .*"
    assert re.fullmatch(said, found.reason), found.reason


def test_a_rank_that_spins_while_another_waits_is_named(tmp_path: Path) -> None:
    body = """
ready = False
while rank == 0 and not ready:
    pass
ours.recv(1)
"""
    with launched(body, tmp_path) as pid:
        found = watched(pid)
    assert (found.state, found.ranks) == (STUCK, ("rank 0",)), found
    assert re.match(r"rank 1 waits for .* for rank 0, which asks again and again", found.reason), found


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
        done = convtwins("watch", pid, "--patience", "1", "--interval", "0.2")
    assert "\x1b" not in done.output
    assert "thread red  healthy " in done.output.replace("\n", " "), done.output


def test_the_command_says_the_verdict_with_stacks_and_ends_with_6(tmp_path: Path) -> None:
    with started(LOCKS, tmp_path) as pid:
        done = convtwins("watch", pid, "--patience", "2", "--interval", "0.2", "--full")
        assert done.exit_code == 6, done.output
        for part in (f"stuck: process {pid} ", "Stacks of", "thread loader", "train.py:", "µs of a core each"):
            assert part in done.output
        said = convtwins_json("watch", pid, "--patience", 1, "--interval", 0.2, exit_code=6)
    assert (said["verdict"], said["to_blame"], said["exit_code"]) == ("stuck", [f"process {pid}"], 6)
    (rank,) = said["ranks"]
    assert rank["waits"]["kind"] == "lock"
    # `wants` of a verdict is an amount of cores. This is a part of the time.
    assert "wants" not in rank["a_second"] and 0 <= rank["part_of_time"]["runs_or_wants_a_core_or_disk"] <= 1
    assert {thread["name"] for thread in rank["stacks"][str(pid)]["threads"]} == {"MainThread", "loader"}
    assert 0 < said["cpu_microseconds_of_a_look"] < 1e6


def test_the_command_ends_with_0_for_a_job_at_work_and_5_where_it_cannot_tell(tmp_path: Path) -> None:
    with started(TRAINING, tmp_path) as pid:
        done = convtwins("watch", pid, "--seconds", "1", "--interval", "0.2")
    assert done.exit_code == 0 and f"healthy: process {pid} " in done.output
    with started(SLEEPING, tmp_path) as pid:
        done = convtwins("watch", pid, "--seconds", "1", "--interval", "0.2")
    assert done.exit_code == 5 and "Cannot be told " in done.output


def test_a_job_that_ends_is_told(tmp_path: Path) -> None:
    with started('print("ready"); import time; time.sleep(1)', tmp_path) as pid:
        assert f"process {pid} " in watched(pid, lambda found: found.state == ENDED).reason


SHELL = ("bash", "-c", '"$@"; true', "bash")
NAMESPACE = ("unshare", "--pid", "--fork")


@pytest.mark.parametrize(
    ("code", "wrapped", "state"),
    [(LOCKS, SHELL, STUCK), (SLEEPING, SHELL, SLOW), (LOCKS, NAMESPACE, STUCK)],
    ids=["locks in a shell", "sleep in a shell", "locks in another PID namespace"],
)
def test_a_job_behind_a_shell_or_in_a_container_is_judged_by_its_python_program(
    tmp_path: Path, code: str, wrapped: tuple[str, ...], state: str, snapshot: SnapshotAssertion
) -> None:
    if wrapped == NAMESPACE and os.geteuid() != 0:
        pytest.skip("only root can make a PID namespace")
    with started(code, tmp_path, wrapped=wrapped) as pid:
        found = watched(pid, lambda found: found.state == state, patience=1.0, longest=8.0)
    assert found.state == state and found.reason.startswith(f"process {pid} "), found
    assert without_numbers(found.reason) == snapshot


def test_an_idle_program_without_stacks_is_not_called_stuck() -> None:
    with processes.started(["sleep", 60]) as process:
        found = watched(process.pid, lambda found: "does nothing" in found.reason, patience=1.0, longest=8.0)
    assert found.state == UNKNOWN and "Python" in found.reason, found


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
        found = watched(pid, lambda found: "rank 1 waits" in found.reason, patience=1.0, longest=8.0)
    assert (found.state, found.ranks) == (SLOW, ("rank 0",)), found
    assert re.match(r"rank 1 .*<module> \(rank\.py:", found.reason), found


def test_a_rank_that_has_ended_is_named_while_others_go_on(tmp_path: Path) -> None:
    body = """
import time
time.sleep(1)
while rank == 0:
    sum(value * value for value in range(20000))
"""
    with launched(body, tmp_path) as pid:
        found = watched(pid, lambda found: "ended" in found.reason and found.state == SLOW, patience=1.0, longest=20.0)
    assert (found.state, found.ranks[0]) == (SLOW, "rank 1"), found
    assert re.match("rank 1 .*; rank 0 ", found.reason), found

"""What a thread waits in, by its frames, its source and the kernel's function."""

import os
import tempfile
from pathlib import Path

import pytest

from common.watching.phrases import Phrase
from convtwins_hangs.watching import stacks, waits
from convtwins_hangs.watching.stacks import StackFrame
from convtwins_hangs.watching.waits import CALL, EXCHANGE, FILE, INSIDE, LOCK, MESSAGE, POLL, SLEEP, TASK, WORK
from tests.support import processes

SOURCE = """\
def step(lock, batches, comm):
    with lock:
        pass
    lock.acquire()
    batches.get()
    time.sleep(5)
    comm.Allreduce(gradient)
    loss.backward()
    x = conv(y)
    while not ready.is_set():
        time.sleep(0.1)
    while True:
        batch = batches.get()
        total += batch
    while number < 10:
        number += 1
    while True:
        try:
            with lock:
                if done():
                    break
        finally:
            pass
    work.wait()
"""
SITE = "/env/lib/python3.11/site-packages"
LIBRARY = "/usr/lib/python3.11"


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(SOURCE)
    return str(tmp_path / "train.py")


@pytest.mark.parametrize(
    ("inner", "line", "blocked_in", "kind", "what"),
    [
        ([], 2, "futex_do_wait", LOCK, "waits for a lock"),
        ([], 4, "futex_wait_queue", LOCK, "waits for a lock"),
        ([], 9, "futex_do_wait", CALL, "waits in a call"),
        ([], 9, "", WORK, "computes"),
        ([], 2, "", WORK, "computes"),
        ([], 9, "not known", CALL, "waits in a call"),
        ([], 6, "hrtimer_nanosleep", SLEEP, "sleeps"),
        ([], 6, "do_select", SLEEP, "sleeps"),  # Python before 3.11
        ([], 9, "sk_wait_data", MESSAGE, "waits for a socket or pipe"),
        ([], 9, "anon_pipe_read", MESSAGE, "waits for a socket or pipe"),
        ([], 9, "wait_woken", MESSAGE, "waits for a socket or pipe"),
        ([], 9, "request_wait_answer", FILE, "waits for a file system"),
        ([], 9, "do_wait", INSIDE, "waits for its processes"),
        ([], 7, "", EXCHANGE, "waits in Allreduce"),  # MPI asks the network with a busy core
        ([], 24, "futex_do_wait", EXCHANGE, "waits in wait"),
        ([("threading.py", "Event.wait")], 24, "futex_do_wait", INSIDE, "waits in Event.wait"),
        ([], 11, "hrtimer_nanosleep", POLL, "asks again and again"),
        ([], 10, "", POLL, "asks again and again"),
        ([], 14, "", WORK, "computes"),
        ([], 16, "", WORK, "computes"),
        ([], 19, "futex_do_wait", POLL, "asks again and again"),
        ([("queue.py", "Queue.get"), ("threading.py", "Condition.wait")], 5, "futex_do_wait", INSIDE, "waits in Queue.get"),
        ([("queue.py", "Queue.get"), ("threading.py", "Condition.wait")], 13, "futex", INSIDE, "waits in Queue.get"),
        ([("threading.py", "Condition.__enter__")], 9, "futex_do_wait", LOCK, "waits for a lock"),
        (
            [("threading.py", "Thread.join"), ("threading.py", "Thread._wait_for_tstate_lock")],
            9,
            "futex",
            INSIDE,
            "Thread.join",
        ),
        ([("multiprocessing/queues.py", "Queue.get")], 9, "futex_do_wait", MESSAGE, "waits in Queue.get"),
        (
            [("multiprocessing/synchronize.py", "Lock.__enter__")],
            *(9, "futex_do_wait", MESSAGE, "waits for a lock between processes"),
        ),
        ([("socket.py", "SocketIO.readinto")], 9, "sk_wait_data", MESSAGE, "SocketIO.readinto"),
        (
            [
                (f"{SITE}/torch/distributed/c10d_logger.py", "wrapper"),
                (f"{SITE}/torch/distributed/distributed_c10d.py", "all_reduce"),
            ],
            *(9, "futex_do_wait", EXCHANGE, "waits in all_reduce"),
        ),
        (
            [(f"{SITE}/torch/_tensor.py", "Tensor.backward"), (f"{SITE}/torch/autograd/graph.py", "_engine_run_backward")],
            *(8, "futex_do_wait", EXCHANGE, "waits in backward"),
        ),
        (  # it computes gradients
            [(f"{SITE}/torch/_tensor.py", "Tensor.backward"), (f"{SITE}/torch/autograd/graph.py", "_engine_run_backward")],
            *(8, "", WORK, "computes"),
        ),
        (
            [
                (f"{SITE}/torch/utils/data/dataloader.py", "_BaseDataLoaderIter.__next__"),
                (f"{SITE}/torch/utils/data/dataloader.py", "_MultiProcessingDataLoaderIter._try_get_data"),
                ("multiprocessing/queues.py", "Queue.get"),
                ("multiprocessing/connection.py", "_ConnectionBase.poll"),
            ],
            *(9, "do_poll", INSIDE, "waits for the next batch of its DataLoader"),
        ),
        (
            [(f"{SITE}/tensorflow/python/eager/context.py", "call"), (f"{SITE}/tensorflow/python/eager/execute.py", "execute")],
            *(9, "futex_do_wait", EXCHANGE, "waits in a call of TensorFlow"),
        ),
        (
            [(f"{SITE}/tensorflow/python/eager/context.py", "call"), (f"{SITE}/tensorflow/python/eager/execute.py", "execute")],
            *(9, "", WORK, "computes"),
        ),
        ([(f"{SITE}/torch/nn/modules/conv.py", "Conv2d.forward")], 9, "", WORK, "computes"),
        ([("socket.py", "socket.accept")], 9, "inet_csk_accept", TASK, "waits for tasks"),
        ([("concurrent/futures/thread.py", "_worker")], 9, "futex_do_wait", TASK, "waits for tasks"),
    ],
)
def test_a_wait_is_told_by_frames_source_and_kernel(
    file: str, inner: list[tuple[str, str]], line: int, blocked_in: str, kind: str, what: str
) -> None:
    library = [
        StackFrame(function, name if name.startswith("/") else f"{LIBRARY}/{name}", 1) for name, function in reversed(inner)
    ]
    found = waits.classify_wait([*library, StackFrame("step", file, line), StackFrame("<module>", file, 1)], blocked_in)
    assert (found.kind, what in found.description) == (kind, True), found
    text = SOURCE.splitlines()[line - 1].strip()
    assert found.location == f"in step (train.py:{line}: {text})"


def test_a_wait_without_any_line_of_a_users_names_the_innermost_line() -> None:
    found = waits.classify_wait([StackFrame("main", f"{SITE}/somewhere/run.py", 3)], "futex_do_wait")
    assert found == waits.Wait(CALL, Phrase("wait", "in a call"), "in main (run.py:3)")
    assert waits.classify_wait([], "futex_do_wait").words == "waits in a call"


def test_a_source_that_is_no_plain_file_is_not_read(tmp_path: Path) -> None:
    """Another process says its name. A pipe would keep us waiting."""
    os.mkfifo(tmp_path / "pipe.py")
    large = tmp_path / "large.py"
    large.write_text("x = 1\n" * 10**6)
    for path in (tmp_path / "pipe.py", Path("/dev/zero"), tmp_path, large, Path("<string>"), Path("/proc/self/maps")):
        assert waits.classify_wait([StackFrame("f", str(path), 1)], "futex_do_wait").location == f"in f ({path.name}:1)"


def test_a_source_that_no_parser_takes_is_no_loop(tmp_path: Path) -> None:
    deep = tmp_path / "deep.py"
    deep.write_text("while True:\n    x = " + "-" * 20_000 + "1\n")
    assert waits.classify_wait([StackFrame("f", str(deep), 2)], "").loop is None


def test_a_rank_is_read_from_variables_of_that_name_alone() -> None:
    def frame(function: str, **values: str | None) -> dict[str, object]:
        return {"name": function, "locals": [{"name": name, "repr": value} for name, value in values.items()]}

    def rank(*frames: dict[str, object]) -> int | None:
        return stacks.rank_in_locals([{"frames": list(frames)}])

    assert rank(frame("train", rank="1"), frame("<module>")) == 1
    assert rank(frame("inner", rank="7"), frame("train", rank="1")) == 1, "the outermost"
    assert rank(frame("train", gpu="3"), frame("_wrap", i="2", fn="<function>")) == 2
    assert rank(frame("train", i="2")) is None
    assert rank(frame("train", rank="<Tensor at 0x7f>", password="1")) is None
    assert rank(frame("train", rank=None)) is None


def test_a_device_that_a_stack_names_is_not_even_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a watchdog starts it."""
    opened: list[object] = []
    monkeypatch.setattr(os, "open", lambda *given: opened.append(given))
    assert waits.classify_wait([StackFrame("f", "/dev/full", 1)], "futex_do_wait").location == "in f (full:1)"
    assert not opened


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read the files of others")
def test_root_reads_only_sources_that_the_jobs_user_may_read() -> None:
    # The folder of a suite's part is private, so nobody else could reach a file in it.
    with tempfile.TemporaryDirectory(dir="/tmp") as name, processes.started(["sleep", 60], user=65534, group=65534) as process:
        reader = stacks.source_reader(process.pid)
        Path(name).chmod(0o755)
        for mode, shown in ((0o644, ": secret = 1"), (0o600, "")):
            path = Path(name) / f"{mode}.py"
            path.write_text("secret = 1")
            path.chmod(mode)
            place = waits.classify_wait([StackFrame("f", str(path), 1)], "futex_do_wait", reader).location
            assert place == f"in f ({mode}.py:1{shown})"
            assert (
                "secret"
                in waits.classify_wait(
                    [StackFrame("f", str(path), 1)], "futex_do_wait", stacks.source_reader(os.getpid())
                ).location
            )

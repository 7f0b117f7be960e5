import contextlib
import re
import resource
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from common.machine import heartbeat, machine
from common.machine.heartbeat import Marks
from common.processes import supervisor
from common.processes.process_spec import ProcessSpec
from common.processes.supervisor import Failure, Watch
from common.watching import watchdog
from common.watching.watchdog import Sample, Watchdog
from tests.ranks import run_ranks
from tests.support import processes

LIMIT = 2.0

PRELUDE = """
import os, queue, signal, sys, threading, time
from common.machine import heartbeat
rank = int(os.environ.get("RANK", "0"))
heartbeat.attach()
heartbeat.count_sync_point()
def steps(count):
    for _ in range(count):
        heartbeat.count_step()
def wait_for_the_others():
    threading.Event().wait()
def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end: pass
"""


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(machine.PROJECT_ROOT))


def python(code: str) -> list[str]:
    return [sys.executable, "-c", PRELUDE + textwrap.dedent(code)]


def run(code: str, ranks: int, folder: Path | None = None, waiting: str | None = None) -> Failure | None:
    return run_ranks(python(code), [{"RANK": str(rank)} for rank in range(ranks)], Watch(LIMIT, folder, waiting))


def hang(failure: Failure | None) -> tuple[int, str]:
    """The rank that is blamed for a hang, and the sentence on it."""
    assert failure is not None and failure.code is None, failure
    return failure.rank, steady(failure.message)


def steady(message: str) -> str:
    """A sentence without what differs from run to run: lines, ages, where a process is that goes on, a late finding."""
    message = re.sub(r"goes on in \S+ \(\S+\) after step \d+", "goes on in PLACE after step STEP", message)
    message = re.sub(r"for \d+ s, and nothing but waiting in the last ", "for ", message)
    return re.sub(r":\d+\)", ":LINE)", re.sub(r"\d+\.\d s ago", "SECONDS ago", message))


GO_ON = "\nwhile True:\n    heartbeat.count_step()\n    time.sleep(0.01)"
TWO_LOCKS = """
steps(2)
first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)
def take(one, other):
    with one:
        both.wait()
        with other:
            pass
threading.Thread(target=take, args=(second, first), daemon=True).start()
take(first, second)
"""
HANGS: dict[str, tuple[str, int, str | None, int]] = {
    "a full queue": ("steps(2); full = queue.Queue(1); full.put(1); full.put(2)", 1, None, 0),
    "two locks": (TWO_LOCKS, 1, None, 0),
    "a call in C": ("steps(2); os.read(os.pipe()[0], 1)", 1, None, 0),
    "one is stopped while another works": (
        f"steps(3)\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGSTOP){GO_ON}", 2, None, 1
    ),
    "one idles while another goes on": (f"steps(2)\nif rank == 1:\n    time.sleep(60){GO_ON}", 2, "threading", 1),
    "one does not wait for the others after as many steps": (
        "steps(4)\nwait_for_the_others() if rank != 1 else time.sleep(60)", 3, "threading", 1
    ),
    "all wait and one went on without the others": ("steps(4 + rank % 2); wait_for_the_others()", 3, "threading", 1),
    "one is behind and stacks say nothing": ("steps(4 - rank % 2); time.sleep(60)", 3, None, 1),
    "one is behind and idle and another waits with a busy core": (
        "steps(4 - rank); time.sleep(60) if rank else work(60)", 2, None, 1
    ),
    "one has ended and another waits for it": (
        "steps(1)\nwait_for_the_others() if rank == 0 else time.sleep(0.5)", 2, "threading", 1
    ),
}  # fmt: skip
"""Name: (code, ranks, what waits, the rank to blame)."""


@pytest.mark.parametrize("name", HANGS)
def test_the_one_to_blame_is_named_with_its_place_and_all_stacks_are_saved(
    tmp_path: Path, snapshot: SnapshotAssertion, name: str
) -> None:
    code, ranks, waiting, blamed = HANGS[name]
    rank, message = hang(run(code, ranks, tmp_path, waiting))
    assert rank == blamed
    stacks = {path.name: path.read_text() for path in sorted(tmp_path.iterdir())}
    threads = {file: text.count("most recent call first") or text for file, text in stacks.items()}
    assert [message, threads] == snapshot


def ages(message: str) -> list[float]:
    """The seconds since which something was done, in the order of a sentence."""
    return [float(seconds) for seconds in re.findall(r"(\d+\.\d) s ago", message)]


EXCHANGES = """
from common.machine import flight
steps(2)
channel = flight.group_channel((0, 1))
for _ in range(300):
    flight.end(channel.begin("all_reduce", "float32", (4, 25), 400))
"""


def test_the_first_exchange_that_does_not_match_is_named(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    code = EXCHANGES + "channel.begin(*(['barrier'] if rank else ['all_reduce', 'float32', (4, 25), 400])); time.sleep(60)"
    failure = run(code, 2, tmp_path)
    assert hang(failure)[1] == snapshot
    (age,) = ages(failure.message if failure else "")
    assert 1.0 <= age < 3.0
    lines = (tmp_path / "collectives.txt").read_text().splitlines()
    assert re.findall(r"\d+", lines[0]) == ["0", "301", "256"], "of the exchanges the last are kept"
    assert lines[-1].split() == ["0,", "1", "301", *lines[-1].split()[3:6], "not", "done", "barrier"]


@pytest.mark.parametrize("size", [heartbeat.MARKS_BYTES, heartbeat.SHARED_BYTES - 1, 3])
def test_a_file_without_room_for_records_says_that_there_are_none(tmp_path: Path, size: int) -> None:
    """A rank with an empty recorder would be blamed: it has come to no exchange."""
    (tmp_path / "shared").write_bytes(bytes(size))
    with (tmp_path / "shared").open("rb") as shared:
        assert watchdog.read_flight(shared.fileno()) is None
        assert watchdog.read_marks(shared.fileno()) == heartbeat.Marks()


def test_where_no_file_may_hold_the_records_a_hang_is_found_all_the_same() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        _, message = hang(run(EXCHANGES + "channel.begin('barrier'); time.sleep(60)", 2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert message.endswith(" 1.8 s"), "no exchange is named"


def test_what_a_killed_rank_had_recorded_is_read_after_its_end(snapshot: SnapshotAssertion) -> None:
    code = EXCHANGES + textwrap.dedent("""
        if rank == 1:
            time.sleep(1.0)
            os.kill(os.getpid(), signal.SIGKILL)
        channel.begin("all_reduce", "float32", (4, 25), 400)
        wait_for_the_others()
    """)
    failure = run(code, 2)
    assert failure is not None and failure[:2] == (1, -9)
    assert steady(failure.message) == snapshot
    assert len(ages(failure.message)) == 2


def test_one_that_waits_while_others_go_on_is_not_stuck() -> None:
    code = """
        steps(2)
        if rank == 1:
            threading.Event().wait(2 * 2.0)
        else:
            for _ in range(60): heartbeat.count_step(); time.sleep(0.1)
    """
    assert run(code, 2, waiting="threading") is None


def with_server(code: str, watch: Watch) -> Failure | None:
    """One rank that waits for its server."""
    rank = ProcessSpec("rank 0", python("steps(1); wait_for_the_others()"), {})
    return supervisor.run_members([rank, ProcessSpec("the server", python(code), {}, trains=False)], watch)


def test_a_server_that_hangs_is_named_before_the_rank_that_waits_for_it_and_a_dead_one_at_once(
    snapshot: SnapshotAssertion,
) -> None:
    rank, message = hang(with_server("time.sleep(60)", Watch(LIMIT, None, "threading")))
    assert rank == 1
    dead = with_server("time.sleep(0.5); os.kill(os.getpid(), 9)", Watch(60.0))
    assert dead is not None and dead[:2] == (1, -9)
    assert [message, dead.message] == snapshot


SLOW = {
    "a long step": ("work(2 * 2.0)", 1),
    "one waits for a slow one": ("steps(1); work(1.5 * 2.0) if rank else time.sleep(1.5 * 2.0)", 2),
    "what it started works": (
        """
        import subprocess
        subprocess.run([sys.executable, "-c", "import time; end = time.time() + 3\\nwhile time.time() < end: pass"])
        """,
        1,
    ),
    "short steps far apart": ("for _ in range(5): heartbeat.count_step(); time.sleep(1.0)", 1),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "a long step")) for name in SLOW])
def test_one_that_is_slow_is_not_stuck(name: str) -> None:
    assert run(*SLOW[name]) is None


def test_a_process_that_has_no_data_yet_may_wait_for_it() -> None:
    loading = [sys.executable, "-c", "import time; from common.machine import heartbeat; heartbeat.attach(); time.sleep(5)"]
    assert run_ranks(loading, [{}], Watch(LIMIT)) is None
    hang(run_ranks(loading, [{}], Watch(LIMIT, loading_seconds=LIMIT)))


def test_a_process_that_does_not_answer_is_not_asked(tmp_path: Path) -> None:
    watch = Watch(LIMIT, tmp_path, loading_seconds=LIMIT)
    hang(run_ranks([sys.executable, "-c", "import time; time.sleep(60)"], [{}], watch))
    assert (tmp_path / "stacks-rank0.txt").read_text() == "It had not begun to answer yet: no stacks.\n"


def test_a_launcher_at_work_is_not_taken_for_the_rank_that_hangs_below_it() -> None:
    launcher = f"""
        from common.processes import supervisor
        from tests.ranks import run_ranks
        failure = run_ranks({python("steps(1); time.sleep(60)")}, [{{}}], supervisor.Watch({3 * LIMIT}))
        sys.exit(0 if failure is not None and failure.code is None else 1)
    """
    assert run(launcher, 1) is None


def test_stacks_are_those_of_the_last_time_that_they_were_asked_for() -> None:
    watched = watchdog.WatchedProcess()
    with contextlib.closing(watched):
        code = python("def first(): sys.stdin.readline()\ndef second(): sys.stdin.readline()\nfirst()\nsecond()")
        seen = {"variables": watched.environment, "pass_fds": watched.descriptors}
        with processes.started(code, stdin=subprocess.PIPE, **seen) as process:
            watched.pid = process.pid
            assert process.stdin is not None
            for place, other in (("first", "second"), ("second", "first")):
                stacks = ""
                while f"in {place}" not in stacks:
                    watched.ask_for_stacks()
                    stacks = watched.stacks()
                assert f"in {other}" not in stacks
                process.stdin.write("\n")
                process.stdin.flush()


class Seen:
    """A process as a test makes it up."""

    def __init__(self, **fields: Any) -> None:
        self.seen: Sample | None = Sample(Marks(1, 0, 1), stopped=False, cpu_seconds=0.0)._replace(**fields)

    def change(self, **fields: Any) -> None:
        assert self.seen is not None
        self.seen = self.seen._replace(**fields)

    def sample(self) -> Sample | None:
        return self.seen

    def ask_for_stacks(self) -> None:
        pass

    def stacks(self) -> str:
        return ""


class Watcher:
    """A watchdog that allows 60 seconds, and its clock."""

    def __init__(self, *processes: Seen) -> None:
        self.now = 0.0
        targets: list[Any] = [watchdog.WatchTarget(f"rank {number}", each) for number, each in enumerate(processes)]
        self.dog = Watchdog(targets, 60.0, clock=lambda: self.now)

    def until_it_hangs(self, most: float) -> watchdog.Hang | None:
        while self.now < most:
            self.now += 0.5
            if (found := self.dog.check()) is not None:
                return found
        return None


def test_a_hang_is_found_before_its_limit_is_over() -> None:
    watcher = Watcher(Seen())
    assert watcher.until_it_hangs(100.0) is not None
    assert 54.0 <= watcher.now <= 60.0 - watchdog.STACKS_SECONDS


def test_what_the_watcher_slept_through_is_no_hang() -> None:
    watcher = Watcher(Seen())
    assert watcher.until_it_hangs(30.0) is None
    watcher.now += 3600.0
    assert watcher.dog.check() is None


@pytest.mark.parametrize(("used", "hangs"), [(0.01, True), (0.1, False)], ids=["polls", "computes"])
def test_threads_that_poll_are_idle_and_those_that_compute_are_not(used: float, hangs: bool) -> None:
    process = Seen()
    watcher = Watcher(process)
    found = None
    while watcher.now < 100.0 and found is None:
        process.change(cpu_seconds=used * (watcher.now + 0.5))
        found = watcher.until_it_hangs(watcher.now + 0.5)
    assert (found is not None) == hangs


def test_one_that_wants_a_core_is_slow_and_its_hang_says_since_when_nothing_was_done() -> None:
    starved = Seen(active=True)
    watcher = Watcher(starved)
    assert watcher.until_it_hangs(100.0) is None
    starved.change(active=False)
    found = watcher.until_it_hangs(200.0)
    assert found is not None
    quiet, idle = map(int, re.findall(r"(\d+) s\b", found.message))
    assert 120 <= quiet <= 139 and idle == 54


def test_one_that_waited_for_another_may_go_on_once_that_has_ended() -> None:
    slow = Seen(active=True)
    watcher = Watcher(slow, Seen())
    assert watcher.until_it_hangs(200.0) is None, "one that wants a core and does not get it is slow"
    slow.seen = None
    assert watcher.until_it_hangs(300.0) is not None, "it never went on"
    assert 254.0 <= watcher.now <= 260.0 - watchdog.STACKS_SECONDS


def test_a_process_is_seen_as_long_as_it_lives() -> None:
    with contextlib.closing(watchdog.WatchedProcess()) as watched:
        seen = {"variables": watched.environment, "pass_fds": watched.descriptors}
        with processes.started(python("steps(7)"), **seen) as process:
            watched.pid = process.pid
            sample = watched.sample()
            assert sample is not None
            assert not sample.stopped
            process.wait()
            assert watched.sample() is None

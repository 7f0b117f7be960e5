import contextlib
import os
import re
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from common.machine import heartbeat, machine
from common.machine.heartbeat import Marks
from common.processes import supervisor, watchdog
from common.processes.process_spec import ProcessSpec
from common.processes.supervisor import Failure, Watch
from common.processes.watchdog import Sample, Watchdog
from tests.ranks import run_ranks

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


def hang_of(failure: Failure | None) -> str:
    assert failure is not None
    assert failure.code is None, failure
    return failure.message


def test_a_stopped_rank_is_named_though_others_are_at_work(tmp_path: Path) -> None:
    words = hang_of(
        run(
            """
            steps(3)
            if rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            while True:
                heartbeat.count_step()
                time.sleep(0.01)
            """,
            2,
            tmp_path,
        )
    )
    assert words.startswith("rank 1 of 2 is stopped after step 3; rank 0 of 2 goes on in ")
    assert words.endswith(": no progress for 1.8 s; see stacks-rank0.txt, stacks-rank1.txt")
    assert "a stopped process cannot write its stacks" in (tmp_path / "stacks-rank1.txt").read_text()
    assert "in <module>" in (tmp_path / "stacks-rank0.txt").read_text()


@pytest.mark.parametrize(
    ("hang", "where"),
    [
        ("full = queue.Queue(1); full.put(1); full.put(2)", r"wait \(threading\.py:\d+\)"),
        (
            """
            first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)
            def take(one, other):
                with one:
                    both.wait()
                    with other:
                        pass
            threading.Thread(target=take, args=(second, first), daemon=True).start()
            take(first, second)
            """,
            r"take \(<string>:\d+\)",
        ),
        ("os.read(os.pipe()[0], 1)", r"<module> \(<string>:\d+\)"),
    ],
    ids=["full queue", "two locks", "a call in C"],
)
def test_a_process_that_waits_for_what_never_comes_is_named_with_its_place(tmp_path: Path, hang: str, where: str) -> None:
    words = hang_of(run(f"steps(2)\n{textwrap.dedent(hang)}", 1, tmp_path))
    assert re.fullmatch(rf"rank 0 of 1 hangs in {where} after step 2: no progress for 1\.8 s; see stacks-rank0\.txt", words)
    stacks = (tmp_path / "stacks-rank0.txt").read_text()
    assert stacks.count("most recent call first") == (2 if "Barrier" in hang else 1), "the stacks of all threads"


EXCHANGES = """
from common.machine import flight
steps(2)
channel = flight.group_channel((0, 1))
for _ in range(300):
    flight.end(channel.begin("all_reduce", "float32", (4, 25), 400))
"""


def test_the_first_exchange_that_does_not_match_is_named(tmp_path: Path) -> None:
    code = EXCHANGES + "channel.begin(*(['barrier'] if rank else ['all_reduce', 'float32', (4, 25), 400])); time.sleep(60)"
    words = hang_of(run(code, 2, tmp_path))
    said = "rank 0 waits in all_reduce of 4 x 25 float32 (400 bytes); rank 1 waits in barrier"
    files = "stacks-rank0.txt, stacks-rank1.txt, collectives.txt"
    found = rf".*: no progress for 1\.8 s; see {files}\. Collective 301, begun [12]\.\d s ago: {re.escape(said)}"
    assert re.fullmatch(found, words), words
    lines = (tmp_path / "collectives.txt").read_text().splitlines()
    assert lines[0] == "rank 0: 301 exchanges, of which the last 256 are kept"
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
        words = hang_of(run(EXCHANGES + "channel.begin('barrier'); time.sleep(60)", 2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert words.endswith("no progress for 1.8 s"), words


def test_what_a_killed_rank_had_recorded_is_read_after_its_end() -> None:
    code = EXCHANGES + textwrap.dedent("""
        if rank == 1:
            time.sleep(1.0)
            os.kill(os.getpid(), signal.SIGKILL)
        channel.begin("all_reduce", "float32", (4, 25), 400)
        wait_for_the_others()
    """)
    failure = run(code, 2)
    assert failure is not None
    assert re.fullmatch(
        r"rank 1 of 2 was ended by SIGKILL\. Collective 301, begun \d\.\d s ago: rank 0 waits in all_reduce of 4 x 25 float32 "
        r"\(400 bytes\); rank 1 has ended before it: its last was 300, all_reduce, done \d\.\d s ago",
        failure.message,
    ), failure.message


def test_one_that_idles_is_named_though_others_go_on_without_it(tmp_path: Path) -> None:
    code = """
        steps(2)
        if rank == 1:
            time.sleep(60)
        while True:
            heartbeat.count_step()
            time.sleep(0.01)
    """
    words = hang_of(run(code, 2, tmp_path, waiting="threading"))
    assert re.match(
        r"rank 1 of 2 hangs in <module> \(<string>:\d+\) after step 2; rank 0 of 2 goes on in .*: no progress", words
    )
    assert "in <module>" in (tmp_path / "stacks-rank0.txt").read_text()


def test_one_that_waits_while_others_go_on_is_not_stuck() -> None:
    code = """
        steps(2)
        if rank == 1:
            threading.Event().wait(2 * 2.0)
        else:
            for _ in range(60): heartbeat.count_step(); time.sleep(0.1)
    """
    assert run(code, 2, waiting="threading") is None


def test_one_that_does_not_wait_for_the_others_is_to_blame_though_it_made_as_many_steps() -> None:
    words = hang_of(run("steps(4)\nwait_for_the_others() if rank != 1 else time.sleep(60)", 3, waiting="threading"))
    assert words.startswith("rank 1 of 3 hangs in <module> (<string>:")
    assert " after step 4; rank 0 of 3 waits in wait (threading.py:" in words


def test_where_all_wait_the_one_that_went_on_without_the_others_is_to_blame() -> None:
    words = hang_of(run("steps(4 + rank % 2); wait_for_the_others()", 3, waiting="threading"))
    assert words.startswith("rank 1 of 3 went on without the others and hangs in wait (threading.py:")


def test_one_that_is_behind_is_to_blame_where_stacks_say_nothing() -> None:
    assert hang_of(run("steps(4 - rank % 2); time.sleep(60)", 3)).startswith("rank 1 of 3 hangs in ")


def test_one_that_is_behind_and_idle_is_stuck_though_the_others_wait_with_a_busy_core() -> None:
    words = hang_of(run("steps(4 - rank); time.sleep(60) if rank else work(60)", 2))
    assert words.startswith("rank 1 of 2 hangs in ")


def test_a_rank_that_has_ended_is_named_where_others_wait_for_it() -> None:
    words = hang_of(
        run(
            "steps(1)\nwait_for_the_others() if rank == 0 else time.sleep(0.5)",
            2,
            waiting="threading",
        )
    )
    assert words.startswith("rank 1 of 2 has ended after step 1; rank 0 of 2 waits in wait (threading.py:")


def test_a_dead_server_is_named_at_once() -> None:
    rank = ProcessSpec("rank 0", python("steps(1); wait_for_the_others()"), {})
    server = ProcessSpec("the server", python("time.sleep(0.5); os.kill(os.getpid(), 9)"), {}, trains=False)
    assert supervisor.run_members([rank, server], Watch(60.0)) == Failure(1, -9, "the server was ended by SIGKILL")


def test_a_server_that_hangs_is_named_before_the_rank_that_waits_for_it() -> None:
    rank = ProcessSpec("rank 0", python("steps(1); wait_for_the_others()"), {})
    server = ProcessSpec("the server", python("time.sleep(60)"), {}, trains=False)
    words = hang_of(supervisor.run_members([rank, server], Watch(LIMIT, None, "threading")))
    assert re.match(r"the server hangs in <module> \(<string>:\d+\); rank 0 of 1 waits in wait \(", words)


@pytest.mark.slow
def test_a_long_step_is_slow_and_not_stuck() -> None:
    assert run("work(2 * 2.0)", 1) is None


def test_a_rank_that_waits_for_a_slow_one_is_not_stuck() -> None:
    assert run("steps(1); work(1.5 * 2.0) if rank else time.sleep(1.5 * 2.0)", 2) is None


def test_what_a_rank_started_counts_as_its_work() -> None:
    code = """
        import subprocess
        subprocess.run([sys.executable, "-c", "import time; end = time.time() + 3\\nwhile time.time() < end: pass"])
    """
    assert run(code, 1) is None


def test_short_steps_far_apart_are_progress() -> None:
    assert run("for _ in range(5): heartbeat.count_step(); time.sleep(1.0)", 1) is None


def test_a_process_that_has_no_data_yet_may_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = [sys.executable, "-c", "import time; from common.machine import heartbeat; heartbeat.attach(); time.sleep(5)"]
    assert run_ranks(loading, [{}], Watch(LIMIT)) is None
    monkeypatch.setattr(watchdog, "LOADING_SECONDS", LIMIT)
    assert hang_of(run_ranks(loading, [{}], Watch(LIMIT))).startswith("rank 0 of 1 hangs in ")


def test_a_process_that_does_not_answer_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LOADING_SECONDS", LIMIT)
    hang_of(run_ranks([sys.executable, "-c", "import time; time.sleep(60)"], [{}], Watch(LIMIT, tmp_path)))
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
        with subprocess.Popen(
            code, env={**os.environ, **watched.environment}, pass_fds=watched.descriptors, stdin=subprocess.PIPE
        ) as process:
            watched.pid = process.pid
            assert process.stdin is not None
            for place, other in (("first", "second"), ("second", "first")):
                stacks = ""
                while f"in {place}" not in stacks:
                    watched.ask_for_stacks()
                    stacks = watched.stacks()
                assert f"in {other}" not in stacks
                process.stdin.write(b"\n")
                process.stdin.flush()


class Seen:
    """A process as a test makes it up."""

    def __init__(self) -> None:
        self.seen: Sample | None = Sample(Marks(1, 0, 1), stopped=False, cpu_seconds=0.0)

    def sample(self) -> Sample | None:
        return self.seen

    def ask_for_stacks(self) -> None:
        pass

    def stacks(self) -> str:
        return ""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds; a test sets it."""
    now = [0.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now[0])
    return now


def until_it_hangs(dog: Watchdog, clock: list[float], most: float) -> float | None:
    while clock[0] < most:
        clock[0] += 0.5
        if dog.check() is not None:
            return clock[0]
    return None


def test_a_hang_is_found_before_its_limit_is_over(clock: list[float]) -> None:
    found = until_it_hangs(Watchdog([watchdog.WatchTarget("rank 0", Seen())], 60.0), clock, 100.0)
    assert found is not None
    assert 54.0 <= found <= 60.0 - watchdog.STACKS_SECONDS


def test_what_the_watcher_slept_through_is_no_hang(clock: list[float]) -> None:
    dog = Watchdog([watchdog.WatchTarget("rank 0", Seen())], 60.0)
    assert until_it_hangs(dog, clock, 30.0) is None
    clock[0] += 3600.0
    assert dog.check() is None


def test_threads_that_poll_are_idle(clock: list[float]) -> None:
    polling, computing = Seen(), Seen()
    dogs = [Watchdog([watchdog.WatchTarget("rank 0", each)], 60.0) for each in (polling, computing)]
    found: list[int] = []
    for _ in range(200):
        clock[0] += 0.5
        for index, (each, used) in enumerate(((polling, 0.01), (computing, 0.1))):
            assert each.seen is not None
            each.seen = each.seen._replace(cpu_seconds=each.seen.cpu_seconds + 0.5 * used)
            if dogs[index].check() is not None:
                found.append(index)
    assert set(found) == {0}


def test_a_hang_that_was_seen_late_says_since_when_nothing_was_done(clock: list[float]) -> None:
    rank = Seen()
    dog = Watchdog([watchdog.WatchTarget("rank 0", rank)], 60.0)
    assert rank.seen is not None
    rank.seen = rank.seen._replace(active=True)
    assert until_it_hangs(dog, clock, 100.0) is None
    rank.seen = rank.seen._replace(active=False)
    while (hang := dog.check()) is None:
        clock[0] += 0.5
    assert re.search(r": no progress for 1[23]\d s, and nothing but waiting in the last 54 s$", hang.message), hang.message


def test_one_that_wants_a_core_and_does_not_get_it_is_slow(clock: list[float]) -> None:
    starved = Seen()
    assert starved.seen is not None
    starved.seen = starved.seen._replace(active=True)
    assert until_it_hangs(Watchdog([watchdog.WatchTarget("rank 0", starved)], 60.0), clock, 200.0) is None


def test_one_that_waited_for_another_may_go_on_once_that_has_ended(clock: list[float]) -> None:
    slow, waiting = Seen(), Seen()
    assert slow.seen is not None
    slow.seen = slow.seen._replace(active=True)
    dog = Watchdog([watchdog.WatchTarget("rank 0", slow), watchdog.WatchTarget("rank 1", waiting)], 60.0)
    assert until_it_hangs(dog, clock, 200.0) is None
    slow.seen = None
    found = until_it_hangs(dog, clock, 300.0)
    assert found is not None, "it never went on"
    assert 254.0 <= found <= 260.0 - watchdog.STACKS_SECONDS


def test_a_process_is_seen_as_long_as_it_lives() -> None:
    watched = watchdog.WatchedProcess()
    with contextlib.closing(watched):
        environment = {**watched.environment, "PYTHONPATH": str(machine.PROJECT_ROOT)}
        process = subprocess.Popen(python("steps(7)"), env=environment, pass_fds=watched.descriptors)
        watched.pid = process.pid
        sample = watched.sample()
        assert sample is not None
        assert not sample.stopped
        process.wait()
        assert watched.sample() is None

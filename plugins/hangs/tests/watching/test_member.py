"""One rank over time, and the verdicts that hang on little."""

import os
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from syrupy.assertion import SnapshotAssertion

from common.machine import heartbeat
from common.machine.footprint import Footprint, Thread
from common.watching.phrases import Phrase
from convtwins_hangs.watching import member, stacks, waits
from convtwins_hangs.watching.job import ProcessGroup
from convtwins_hangs.watching.member import JobMember, Look, WaitState
from convtwins_hangs.watching.verdict import ENDED, HEALTHY, SLOW, STUCK, UNKNOWN, judge_job
from convtwins_hangs.watching.watcher import Watcher
from plugins.hangs.tests.watching.jobs import started, watched
from plugins.hangs.tests.watching.test_watch import launched
from tests.common.watching.test_flight_report import Recorder
from tests.support import processes

QUIET = dict.fromkeys(Look._fields, 0.0) | {"seconds": 1.0, "wants": False, "disk_waits": False}


def of(pid: int, **environment: str) -> ProcessGroup:
    return ProcessGroup("rank 0", 0, [pid], environment, is_rank=True)


@pytest.mark.parametrize(
    ("field", "amount", "asks"),
    [
        ("cpu_seconds", 1.0, True),  # it spins
        ("network_bytes", 4e5, False),  # something is on its way
        ("disk_bytes", 4e6, False),
        ("helpers_cpu_seconds", 0.5, False),  # another process of the rank, or a thread of a library, works
    ],
)
def test_a_rank_that_asks_again_and_again_is_at_work_if_anything_moves(field: str, amount: float, asks: bool) -> None:
    rank = JobMember(of(os.getpid()))
    rank.looks.extend([Look(**{**QUIET, field: amount})] * 5)
    rank._polled_loops.extend((float(at), frozenset({("train.py", 3)})) for at in range(5))
    assert rank.is_polling(4.0) is asks
    rank.close()


def test_a_rank_that_waits_for_the_disk_is_slow_and_the_reason_says_how_often_and_how_fast() -> None:
    rank = JobMember(of(os.getpid()))
    waiting = QUIET | {"wants": True, "disk_waits": True, "disk_bytes": 4.0 * 2**20}
    rank.looks.extend([Look(**waiting)] * 3 + [Look(**QUIET | {"cpu_seconds": 1.0, "wants": True})])
    found = judge_job([rank], 4.0)
    rank.close()
    assert (found.state, found.ranks) == (SLOW, ("rank 0",))
    assert re.findall(r"\d[\d.]* \S+", found.reason) == ["0 waits", "75 %", "3.0 MiB"] and "disk" in found.reason


def test_without_stacks_an_idle_rank_beside_one_that_works_is_not_called_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "py_spy_path", lambda: None)  # which stands beside the interpreter of these tests
    body = """
while rank == 0:
    sum(value * value for value in range(20000))
ours.recv(1)
"""
    with launched(body, tmp_path) as pid:
        found = watched(pid, lambda found: "no stacks" in found.reason)
    assert found.state == UNKNOWN, found
    assert re.fullmatch(r"rank 1 .*py-spy.*; rank 0 .*", found.reason), found


def test_the_time_of_a_process_that_ends_is_counted_once(tmp_path: Path) -> None:
    """Who started it takes it over."""
    code = """
    import subprocess, sys, time
    busy = "import time; [None for _ in iter(lambda: time.process_time() < 1.0, False)]"
    child = subprocess.Popen([sys.executable, "-c", busy])
    print("ready")
    child.wait()
    time.sleep(60)
    """
    with started(code, tmp_path) as pid:
        job, rank = psutil.Process(pid), JobMember(of(pid))
        rank.look(of(pid), {}, set(), 0.0, 1000.0)
        is_there, deadline = True, time.monotonic() + 60
        while is_there and time.monotonic() < deadline:
            is_there = bool(job.children())
            group = of(pid)._replace(pids=[pid, *(each.pid for each in job.children())])
            rank.look(group, {}, set(), 0.05, 1000.0)
            time.sleep(0.05)
        rank.close()
    assert 0.5 < sum(look.cpu_seconds for look in rank.looks) < 1.5


@pytest.mark.parametrize("passed", ["0,0", "99999999999999", "x", "-1"])
def test_what_a_job_says_to_share_is_opened_only_if_it_is_that(passed: str, tmp_path: Path) -> None:
    """Its standard input is a pipe, which would keep us waiting."""
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDWR)
    with processes.started([sys.executable, "-c", "import time; time.sleep(60)"], stdin=reading) as process:
        assert member._open_shared_file(of(process.pid, **{heartbeat.WATCH_VARIABLE: passed})) is None
    os.close(reading)


def idle(kind: str, number: int = 0, recorder: Recorder | None = None) -> Any:
    state = WaitState(kind, Phrase("wait", f"in {kind}"), Phrase(""), "", "")
    taken = recorder.rank(number).flight if recorder is not None else None
    return SimpleNamespace(
        name=f"rank {number}", ended=False, is_stopped=False, is_idle=lambda seconds: True, is_polling=lambda seconds: False,
        take_stacks=lambda age: None, wait_state=lambda: state, group=of(1)._replace(number=number), flight=lambda: taken,
        connections=[],
    )  # fmt: skip


def test_a_job_that_waits_for_tasks_is_healthy_and_one_that_is_gone_has_ended() -> None:
    assert judge_job(cast(Any, [idle(waits.TASK)]), 1.0).state == HEALTHY
    assert judge_job([], 1.0).state == ENDED


def test_ranks_that_are_stopped_and_ranks_that_are_frozen_are_told_apart() -> None:
    """SIGCONT wakes no frozen process."""
    ranks = [idle(waits.TASK, number) for number in range(3)]
    for number, rank in enumerate(ranks):
        vars(rank).update(is_stopped=True, frozen=number == 2, main_pid=100 + number)
    found = judge_job(cast(Any, ranks), 1.0)
    assert (found.state, found.ranks) == (STUCK, ("rank 0", "rank 1", "rank 2"))
    assert re.fullmatch("rank 0 and rank 1 .*`kill -CONT 100 101`.*; rank 2 .*freezer.*", found.reason), found


@pytest.mark.parametrize(
    ("kinds", "blamed"),
    [
        ((waits.EXCHANGE, waits.MESSAGE, waits.EXCHANGE), ("rank 1",)),
        ((waits.CALL, waits.CALL, waits.EXCHANGE), ("rank 1",)),
        ((waits.LOCK, waits.EXCHANGE, waits.EXCHANGE), ("rank 0",)),
    ],
)
def test_of_ranks_that_all_wait_the_one_that_has_not_come_to_the_exchange_is_named(
    kinds: tuple[str, ...], blamed: tuple[str, ...]
) -> None:
    recorders = [Recorder().does().waits(), Recorder().does(), Recorder().does().waits()]
    found = judge_job(cast(Any, [idle(kind, number, recorders[number]) for number, kind in enumerate(kinds)]), 1.0)
    assert (found.state, found.ranks) == (STUCK, blamed)
    assert re.search(rf"for {blamed[0]}, .*{kinds[int(blamed[0][-1])]}.*rank 1 has not come to it", found.reason), found


def test_the_first_look_says_that_it_is_the_first(tmp_path: Path) -> None:
    with started("import time\nprint('ready')\ntime.sleep(60)", tmp_path) as pid:
        watcher = Watcher([pid], 10.0)
        watcher.look()
        first = watcher.verdict().reason
        time.sleep(0.2)
        watcher.look()
        second = watcher.verdict().reason
        watcher.close()
    assert f"process {pid} " in first and " second look" in first
    assert re.search(r" 0\.[1-9] s ", second)


@pytest.mark.parametrize(("waiting", "helpers"), [("import sys; sys.stdin.read()", 0), ("child.wait()", 1)])
def test_stacks_of_other_processes_are_taken_only_where_the_rank_waits_for_them(
    tmp_path: Path, waiting: str, helpers: int
) -> None:
    code = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("ready")
{waiting}
"""
    with started(code, tmp_path) as pid:
        group = of(pid)._replace(pids=[pid, *(each.pid for each in psutil.Process(pid).children())])
        rank = JobMember(group)
        rank.look(group, {}, set(), 0.0, 10.0)
        time.sleep(0.5)
        rank.look(group, {}, set(), 0.5, 10.0)
        rank.take_stacks()
        rank.close()
    assert len(rank.dumps) == 1 + helpers, rank.wait_state()


@pytest.mark.parametrize(("busy", "asked"), [({9}, set()), (set(range(16)), {9})], ids=["others wait", "all spin"])
def test_a_rank_that_may_spin_does_not_wait_until_all_others_were_sampled_again(busy: set[int], asked: set[int]) -> None:
    sampled: list[int] = []
    ranks = [
        SimpleNamespace(
            name=f"rank {number}", ended=False, group=of(1000 + number)._replace(number=number), is_busy=number in busy,
            only_polled=number in asked, is_mostly_waiting=False,
            sample=lambda now, keep, number=number: sampled.append(number),
        )
        for number in range(16)
    ]  # fmt: skip
    watcher = Watcher([os.getpid()], 10.0)
    watcher._members = cast(Any, dict(enumerate(ranks)))
    for look in range(1, 9):
        watcher._sample(float(look))
    assert sampled.count(9) >= 7
    assert len({*sampled}) >= 7, "the others take turns"


def ranks_in(*kinds: str, moved: float = 4e5, **used: float) -> list[JobMember]:
    """Ranks that use little but the network. Each letter of `kinds` is a sample: exchange, sleep, work or no stacks (-)."""
    found: list[JobMember] = []
    for number, letters in enumerate(kinds):
        rank = JobMember(of(os.getpid())._replace(name=f"rank {number}", number=number))
        rank.looks.extend([Look(**{**QUIET, "network_bytes": moved, **used})] * 12)
        for at, letter in enumerate(letters):
            kind, words = {
                "e": (waits.EXCHANGE, Phrase("wait", "in all_reduce in step")),
                "s": (waits.SLEEP, Phrase("sleep", "in load")),
                "w": (waits.WORK, Phrase("compute", "in load")),
                "-": (waits.CALL, Phrase("do", "nothing")),
            }[letter]
            exchange = Phrase("wait", "in all_reduce") if letter == "e" else Phrase("")
            rank.samples.append((float(at), WaitState(kind, words, exchange, "", "no stacks" if letter == "-" else "")))
        found.append(rank)
    return found


@pytest.mark.parametrize(
    ("kinds", "state", "blamed"),
    [
        (["eeeeeeeeee", "ssssesssws"], SLOW, [1]),
        (["wwwwwwwwee", "eeeeeeeeee"], SLOW, [0]),
        (["e" * 9, "s" * 9, "e" * 9], SLOW, [1]),
        # The network:
        (["eeeeeeeeee", "eeeseeeewe"], SLOW, [0, 1]),
        (["eseseseses", "eseseseses"], SLOW, [0, 1]),  # nobody waits for a single one
        (["eeeeeeeeee", "----------"], SLOW, [0, 1]),  # it cannot be told more closely
        # Too few looks:
        (["eeeeeee", "sssssss"], UNKNOWN, []),
        (["e", "s"], UNKNOWN, []),
        (["eeeeeeeeee", "sesesesese"], UNKNOWN, []),  # as much the one as the other
    ],
)
def test_a_rank_that_keeps_others_waiting_is_told_from_a_slow_network_by_many_samples(
    kinds: list[str], state: str, blamed: list[int], snapshot: SnapshotAssertion
) -> None:
    found = judge_job(ranks_in(*kinds), 10.0)
    assert (found.state, found.ranks) == (state, tuple(f"rank {number}" for number in blamed)), found
    assert found.reason == snapshot


@pytest.mark.parametrize("kinds", ["w" * 10, "s" * 10])
def test_a_late_rank_that_sleeps_is_not_said_to_want_cores(kinds: str, snapshot: SnapshotAssertion) -> None:
    ranks = ranks_in("e" * 10, kinds, cpu_seconds=0.1, core_wait_seconds=0.3)
    found = judge_job(ranks, 10.0)
    assert found.ranks == ("rank 1",) and ("0.10 of the 0.40 cores" in found.reason) is ("w" in kinds)
    assert found.reason == snapshot


def test_samples_of_two_ranks_that_were_not_taken_together_say_nothing() -> None:
    ranks = ranks_in("eeeeeeeeee", "ssssssssss")
    ranks[1].samples = type(ranks[1].samples)((at + 0.5, standing) for at, standing in ranks[1].samples)
    assert judge_job(ranks, 10.0).state == UNKNOWN


def test_all_ranks_that_are_about_equally_short_of_cores_are_named() -> None:
    ranks = ranks_in("", "", "", moved=0.0, cpu_seconds=0.47, core_wait_seconds=0.88)
    ranks[1].looks.extend([ranks[1].looks.popleft()._replace(core_wait_seconds=0.80) for _ in range(12)])
    ranks[2].looks.extend([ranks[2].looks.popleft()._replace(core_wait_seconds=0.48) for _ in range(12)])
    found = judge_job(ranks, 10.0)
    assert (found.state, found.ranks) == (SLOW, ("rank 0", "rank 1")), found
    assert re.findall(r"\d\.\d+", found.reason) == ["0.47", "1.35", "0.47", "1.27"]  # gets of what it wants


@pytest.mark.parametrize(("waited", "blamed"), [(0.16, ("rank 0", "rank 1")), (0.02, ("rank 0",))])
def test_a_rank_that_wants_a_little_less_than_the_least_is_named_only_beside_another(
    waited: float, blamed: tuple[str, ...]
) -> None:
    ranks = ranks_in("", "", moved=0.0, cpu_seconds=0.08, core_wait_seconds=0.19)
    ranks[1].looks.extend([ranks[1].looks.popleft()._replace(core_wait_seconds=waited) for _ in range(12)])
    assert judge_job(ranks, 10.0).ranks == blamed
    assert judge_job(ranks[1:], 10.0).state == HEALTHY


@pytest.mark.parametrize(("waiting", "sampled"), [([], 1), ([3], 16)])
def test_the_stacks_of_all_ranks_are_taken_together_where_one_mostly_waits(waiting: list[int], sampled: int) -> None:
    taken: list[int] = []
    ranks = [
        SimpleNamespace(
            name=f"rank {number}", ended=False, group=of(1000 + number)._replace(number=number), is_busy=True,
            only_polled=False,
            is_mostly_waiting=number in waiting, sample=lambda now, keep, number=number: taken.append(number),
        )
        for number in range(20)
    ]  # fmt: skip
    watcher = Watcher([os.getpid()], 10.0)
    watcher._members = cast(Any, dict(enumerate(ranks)))
    watcher._sample(1.0)
    assert len(taken) == sampled
    watcher._sample(2.0)
    assert len({*taken}) == min(2 * sampled, 20), "those that were left out come first"


@pytest.mark.parametrize(
    ("threads", "kind"),
    [
        ([("tf_Compute", "R")], waits.WORK),
        ([("tf_Eigen", "R"), ("tf_Compute", "S")], waits.WORK),
        ([("tf_Compute", "S"), ("event_engine", "R"), ("collective_ops", "R")], waits.EXCHANGE),
        ([("tf_data_private", "R")], waits.EXCHANGE),  # it prepares the next batch
    ],
)
def test_a_rank_that_computes_inside_a_call_of_tensorflow_is_told_by_its_threads(
    threads: list[tuple[str, str]], kind: str
) -> None:
    pid = os.getpid()
    call = stacks.StackFrame("quick_execute", "/env/lib/python3.11/site-packages/tensorflow/python/eager/execute.py", 53)
    rank = JobMember(of(pid), lambda pid: stacks.StackDump([stacks.ThreadStack(pid, "", [call])]))
    found = [Thread(pid + at, name, state, 0.0, 0.0, 0, 0) for at, (name, state) in enumerate([("python", "S"), *threads])]
    rank.footprints = {pid: Footprint(pid, 0.0, found, 0, 0, 0, 0, 0, 0)}
    rank.sample(0.0, 10.0)
    ((_, standing),) = rank.samples
    assert standing.kind == kind, standing
    assert ("TensorFlow" in standing.words) is (kind != waits.WORK) and " quick" in standing.words
    rank.close()

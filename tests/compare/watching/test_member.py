"""One rank over time, and the verdicts that hang on little."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from common.machine import heartbeat
from compare.watching import member, stacks, waits
from compare.watching.job import Group
from compare.watching.member import Look, Member, Standing
from compare.watching.verdict import ENDED, HEALTHY, STUCK, UNKNOWN, judge
from compare.watching.watcher import Watcher
from tests.common.processes.test_flight_report import Recorder
from tests.compare.watching.jobs import started, watched
from tests.compare.watching.test_watch import launched

QUIET = dict.fromkeys(Look._fields, 0.0) | {"seconds": 1.0, "wants": False, "disk_waits": False}


def of(pid: int, **environment: str) -> Group:
    return Group("rank 0", 0, [pid], environment, is_rank=True)


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
    rank = Member(of(os.getpid()))
    rank.looks.extend([Look(**{**QUIET, field: amount})] * 5)
    rank._loops.extend((float(at), frozenset({("train.py", 3)})) for at in range(5))
    assert rank.is_asking(4.0) is asks
    rank.close()


def test_without_stacks_an_idle_rank_beside_one_that_works_is_not_called_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "program", lambda: None)
    body = """
while rank == 0:
    sum(value * value for value in range(20000))
ours.recv(1)
"""
    with launched(body, tmp_path) as pid:
        found = watched(pid, lambda found: "no stacks" in found.because)
    assert found.state == UNKNOWN, found
    assert found.because.startswith("rank 1 does nothing (no stacks: py-spy is not installed")
    assert found.because.endswith("; rank 0 goes on")


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
        job, rank = psutil.Process(pid), Member(of(pid))
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
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdin=reading) as process:
        try:
            assert member._shared(of(process.pid, **{heartbeat.VARIABLE: passed})) is None
        finally:
            process.kill()
            os.close(reading)


def idle(kind: str, number: int = 0, recorder: Recorder | None = None) -> Any:
    standing = Standing(kind, f"waits in {kind}", "", "", "")
    taken = recorder.rank(number).flight if recorder is not None else None
    return SimpleNamespace(
        name=f"rank {number}", ended=False, stopped=False, is_idle=lambda seconds: True, is_asking=lambda seconds: False,
        take_stacks=lambda age: None, standing=lambda: standing, group=of(1)._replace(number=number), flight=lambda: taken,
        connections=[],
    )  # fmt: skip


def test_a_job_that_waits_for_tasks_is_healthy_and_one_that_is_gone_has_ended() -> None:
    assert judge(cast(Any, [idle(waits.TASK)]), 1.0).state == HEALTHY
    assert judge([], 1.0).state == ENDED


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
    found = judge(cast(Any, [idle(kind, number, recorders[number]) for number, kind in enumerate(kinds)]), 1.0)
    assert (found.state, found.ranks) == (STUCK, blamed)
    assert f"for {blamed[0]}, which waits in {kinds[int(blamed[0][-1])]}" in found.because
    assert "rank 1 has not come to it" in found.because


def test_the_first_look_says_that_it_is_the_first(tmp_path: Path) -> None:
    with started("import time\nprint('ready')\ntime.sleep(60)", tmp_path) as pid:
        watcher = Watcher([pid], 10.0)
        watcher.look()
        first = watcher.verdict().because
        time.sleep(0.2)
        watcher.look()
        second = watcher.verdict().because
        watcher.close()
    assert first == f"process {pid} was found. What it does shows from the second look on"
    assert re.fullmatch(r"nothing happens, and 0\.[1-9] s are too few to say why", second)


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
        rank = Member(group)
        rank.look(group, {}, set(), 0.0, 10.0)
        time.sleep(0.5)
        rank.look(group, {}, set(), 0.5, 10.0)
        rank.take_stacks()
        rank.close()
    assert len(rank.dumps) == 1 + helpers, rank.standing()


@pytest.mark.parametrize(("busy", "asked"), [({9}, set()), (set(range(16)), {9})], ids=["others wait", "all spin"])
def test_a_rank_that_may_spin_does_not_wait_until_all_others_were_sampled_again(busy: set[int], asked: set[int]) -> None:
    sampled: list[int] = []
    ranks = [
        SimpleNamespace(
            name=f"rank {number}", ended=False, group=of(1000 + number)._replace(number=number), is_busy=number in busy,
            asked=number in asked, sample=lambda now, keep, number=number: sampled.append(number),
        )
        for number in range(16)
    ]  # fmt: skip
    watcher = Watcher([os.getpid()], 10.0)
    watcher._members = cast(Any, dict(enumerate(ranks)))
    for look in range(1, 9):
        watcher._sample(float(look))
    assert sampled.count(9) >= 7
    assert len({*sampled}) >= 7, "the others take turns"

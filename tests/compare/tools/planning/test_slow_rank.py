"""A rank is slowed by the factor that is asked for, by its own processor time."""

import os
import subprocess
import sys
import time
from contextlib import AbstractContextManager

import psutil
import pytest

from compare.tools.planning import slow_rank
from compare.tools.planning.slow_rank import EVEN, Brake, Straggler
from tests.support.processes import started

SPIN = "while True: pass"


def ranked(code: str, rank: int) -> AbstractContextManager[subprocess.Popen[str]]:
    return started([sys.executable, "-c", code], variables={"RANK": str(rank)})


def shares(straggler: Straggler, seconds: float) -> tuple[list[float], float]:
    """(processor time that each of two ranks had, of the time that it might have had; the factor by the brake's clock)."""
    with Brake(straggler, 2) as brake, ranked(SPIN, 0) as first, ranked(SPIN, 1) as second:
        ranks = [psutil.Process(each.pid) for each in (first, second)]
        time.sleep(3 * slow_rank._POLL_SECONDS)
        before = [sum(each.cpu_times()[:2]) for each in ranks]
        began = time.monotonic()
        time.sleep(seconds)
        after = [sum(each.cpu_times()[:2]) for each in ranks]
        passed = time.monotonic() - began
    return [(last - first) / passed for first, last in zip(before, after, strict=True)], brake.factor


@pytest.mark.skipif(os.cpu_count() == 1, reason="two ranks share one core")
def test_one_rank_has_its_share_of_time_and_the_other_ones_are_left_alone() -> None:
    (fast, slow), factor = shares(Straggler(4.0), 1.5)
    assert factor == pytest.approx(4.0, rel=0.1)
    assert slow < 0.3 and fast > 1.3 * slow  # other work may take cores of both


@pytest.mark.skipif(os.cpu_count() == 1, reason="two ranks share one core")
def test_a_slow_rank_that_moves_is_each_in_turn() -> None:
    both, factor = shares(Straggler(4.0, moves=True), 1.5)
    assert factor == pytest.approx(4.0, rel=0.1)
    # 5 / 8 each, where nothing else runs. A rank that is never slow has more, and one that always is has less than half.
    assert max(both) < 0.75 and min(both) > 0.5 * max(both)


def test_no_rank_is_touched_where_none_is_slow() -> None:
    _, factor = shares(EVEN, 0.2)
    assert factor == 1.0


def test_a_run_that_ends_leaves_no_thread_and_no_stopped_process() -> None:
    with Brake(Straggler(2.0), 1) as brake, ranked("import time; time.sleep(3)", 0) as rank:
        assert rank.wait(timeout=60) == 0
    assert not brake._thread.is_alive() and brake.stopped_seconds > 0

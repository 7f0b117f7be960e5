"""Runs on a machine that sleeps: all their processes are frozen, or one rank alone."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.control_groups import freezer, within
from tests.twins.runs import ENDLESS, RANKS, wait_until_gone

pytestmark = pytest.mark.slow

HANG_SECONDS, SHORT_SECONDS = 5.0, 4.0


@pytest.mark.parametrize("seconds", [6.0, 15.0])
def test_a_run_on_a_machine_that_sleeps_for_longer_than_the_limit_is_not_called_hanging(
    begin: Any, framework: str, tmp_path: Path, seconds: float
) -> None:
    fields = RANKS | {"hang_seconds": SHORT_SECONDS, "epochs": 60}
    with freezer() as (group, freeze):
        run = begin(tmp_path / "run", fields, within(group))
        run.wait_for_an_epoch()
        freeze(True)
        time.sleep(seconds)
        assert run.process.poll() is None, "it was over before it slept"
        freeze(False)
        result = run.end()
    assert "no progress" not in run.log
    if framework == "tensorflow" and seconds > 10.0:  # the ranks' own limit of TensorFlow for each other
        assert result.status == "failed" and "heartbeat timeout" in result.reason, result.reason
        return
    assert (result.status, result.reason, len(result.epochs)) == ("ok", None, 60), run.log
    # The clock that the run uses goes on while a group is frozen.
    assert result.phases is not None and result.phases.wall_seconds >= seconds
    awake = begin(tmp_path / "awake", fields).end()
    assert awake.final_weights_hash == result.final_weights_hash is not None


def test_a_rank_that_the_freezer_stops_alone_ends_the_run_and_is_named(begin: Any, tmp_path: Path) -> None:
    with freezer() as (group, freeze):
        run = begin(tmp_path / "run", ENDLESS | {"hang_seconds": HANG_SECONDS})
        rank = run.ranks()[1]
        (group / "cgroup.procs").write_text(str(rank.pid), encoding="ascii")
        frozen = time.monotonic()
        freeze(True)
        result = run.end()
        seconds = time.monotonic() - frozen
        freeze(False)
        wait_until_gone(run.processes())
    assert result.status == "killed"
    assert re.match(r"rank 1 of 2 is stopped after step \d+; rank 0 of 2 waits in ", result.reason), result.reason
    assert seconds <= HANG_SECONDS + 30.0  # ten of them for its end, which does not come while it is frozen

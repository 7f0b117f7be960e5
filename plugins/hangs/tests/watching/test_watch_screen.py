"""The first screens of `watch`: a job that is healthy, slow, stuck, or that cannot be told."""

from types import SimpleNamespace
from typing import Any

import pytest

from convtwins_hangs.watching import report
from convtwins_hangs.watching.verdict import HEALTHY, SLOW, STUCK, UNKNOWN, Verdict
from plugins.hangs.tests.watching.test_member import ranks_in
from tests.support.snapshots import Screens

WAITS = "rank 1 waits in all_reduce in step (train.py:40: dist.all_reduce(loss)) for rank 0, which waits for a lock in load"


@pytest.mark.parametrize(
    ("verdict", "name", "code"),
    [
        (Verdict(HEALTHY, "rank 0 and rank 1 use 1.9 cores, and make steps: 40 since it is watched"), "healthy", 0),
        (Verdict(SLOW, "rank 0 gets 0.30 of the 1.00 cores that it wants", ("rank 0",)), "slow", 0),
        (Verdict(STUCK, WAITS, ("rank 0",)), "stuck", 6),
        (Verdict(UNKNOWN, "nothing happens, and 1.0 s are too few to say why"), "cannot_be_told", 5),
    ],
)
def test_the_verdict_stands_first_with_who_is_to_blame(screens: Screens, verdict: Verdict, name: str, code: int) -> None:
    members = ranks_in("ee", "ee", cpu_seconds=0.95)
    watcher: Any = SimpleNamespace(members=members, num_looks=12, cost_seconds=0.01)
    made = report.report(watcher, verdict)
    for each in members:
        each.close()
    shown = screens(made, None)
    assert made.exit_code == code and f"{verdict.state.capitalize()} {verdict.reason}." in " ".join(shown.split())
    assert list(made.values["to_blame"]) == list(verdict.ranks)
    assert "0.95" in shown and "Stacks" not in shown

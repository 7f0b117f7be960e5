"""The first screens of `concurrency`: findings, none, conditional ones, and nothing that could be explored."""

from collections.abc import Sequence

from compare.reporting.document import Report
from convtwins_hangs.concurrency import concurrency
from convtwins_hangs.concurrency.findings import ConcurrencyFinding, TraceStep
from convtwins_hangs.concurrency.search import SearchResult
from tests.support.snapshots import Screens

WAYS = (
    ("rank 0", [TraceStep("train.py", 6, "takes: rank == 0"), TraceStep("train.py", 7, "reaches barrier")]),
    ("rank 1", [TraceStep("train.py", 6, "does not take: rank == 0")]),
)
SAYS = "rank 0 waits in barrier, and rank 1 has ended without it. They may part in line 6: rank == 0."


def finding(line: int = 7, condition: TraceStep | None = None) -> ConcurrencyFinding:
    return ConcurrencyFinding("collective-missing", "train.py", line, SAYS, WAYS, condition=condition)


def report(
    findings: Sequence[ConcurrencyFinding] = (),
    left: Sequence[str] = (),
    alike: Sequence[str] = (),
    *,
    roots: int = 1,
    suppressed: int = 0,
) -> Report:
    searched = SearchResult(roots=roots, executions=roots, nodes=20 * roots, unexplored=list(left))
    searched.assumptions = {TraceStep("train.py", 3 + at, says): True for at, says in enumerate(alike)}
    hidden = [(finding(), "the other rank has its own barrier")] * suppressed
    return concurrency.report("train.py", 1, searched, findings, hidden)


def test_one_finding_is_said_with_the_last_step_of_each_rank(screens: Screens) -> None:
    made = report([finding()], suppressed=1)
    assert made.exit_code == 6 and "train.py:7: error collective-missing" in screens(made, None)


def test_of_many_findings_the_first_are_said_and_the_others_are_counted(screens: Screens) -> None:
    shown = screens(report([finding(line) for line in range(7, 27)]), None)
    assert "20 findings" in shown and "train.py:7: error" in shown and "train.py:26: error" not in shown


def test_nothing_found_says_what_that_rests_on(screens: Screens) -> None:
    assert report().exit_code == 0 and screens(report(), None)
    made = report([], ["train.py: explored in part: 2 nodes (--nodes)"], [f"config.name_{each}" for each in range(5)])
    shown = screens(made, None)
    assert made.exit_code == 0 and "5 unknown decisions" in shown and "train.py:3: config.name_0" in shown


def test_a_conditional_warning_is_no_finding(screens: Screens) -> None:
    made = report([finding(condition=TraceStep("train.py", 5, "torch.isnan(loss)"))])
    assert made.exit_code == 0 and "train.py:7: conditional" in screens(made, None)


def test_where_nothing_was_explored_it_is_not_known(screens: Screens) -> None:
    made = report([], ["train.py:4: horovod.torch.allreduce may be a collective. Name it: --collective NAME"], roots=0)
    assert made.exit_code == 5 and "--collective NAME" in screens(made, None)

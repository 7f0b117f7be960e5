"""The first screens of `concurrency`: findings, none, conditional ones, and nothing that could be explored."""

from collections.abc import Sequence

from compare.concurrency import concurrency
from compare.concurrency.findings import ConcurrencyFinding, TraceStep
from compare.concurrency.search import SearchResult
from compare.reporting.document import Report
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


def words(screens: Screens, made: Report) -> str:
    """The words of the screen, once it is held against the kept ones."""
    return " ".join(screens(made, None).split())


def test_one_finding_is_said_with_the_last_step_of_each_rank(screens: Screens) -> None:
    made = report([finding()], suppressed=1)
    shown = words(screens, made)
    assert made.exit_code == 6 and f"Found 1 finding train.py:7: error collective-missing: {SAYS}" in shown
    assert "rank 0: line 7: reaches barrier rank 1: line 6: does not take: rank == 0" in shown
    assert "Suppressed train.py:7 collective-missing, because the other rank has its own barrier" in shown


def test_of_many_findings_the_first_are_said_and_the_others_are_counted(screens: Screens) -> None:
    shown = words(screens, report([finding(line) for line in range(7, 27)]))
    assert "Found 20 findings train.py:7: error" in shown and "more (--full)" in shown and "Its ways" not in shown


def test_nothing_found_says_what_that_rests_on(screens: Screens) -> None:
    assert "No finding nothing found everything" in words(screens, report())
    made = report([], ["train.py: explored in part: 2 nodes (--nodes)"], [f"config.name_{each}" for each in range(5)])
    shown = words(screens, made)
    assert made.exit_code == 0 and "nothing found in what was explored, if 5 unknown decisions are the same" in shown
    assert "Taken alike train.py:3: config.name_0" in shown and "and 2 more (--full)" in shown and "Found" not in shown


def test_a_conditional_warning_is_no_finding(screens: Screens) -> None:
    shown = words(screens, report([finding(condition=TraceStep("train.py", 5, "torch.isnan(loss)"))]))
    assert "No finding nothing found, and 1 conditional warning Conditional train.py:7: conditional" in shown
    assert "Found" not in shown


def test_where_nothing_was_explored_it_is_not_known(screens: Screens) -> None:
    made = report([], ["train.py:4: horovod.torch.allreduce may be a collective. Name it: --collective NAME"], roots=0)
    shown = words(screens, made)
    assert made.exit_code == 5 and "Unknown nothing explored: no thread, lock or collective is known here" in shown
    assert "No finding" not in shown

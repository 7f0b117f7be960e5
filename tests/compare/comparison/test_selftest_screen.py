"""The first screens of `selftest`: reliable, not, and the repeats that a run needs."""

from compare.comparison import repeats_needed, selftest
from compare.comparison.selftest import Selftest, SelftestCheck
from compare.core.until_decided import UntilDecided
from compare.reporting.document import Report
from tests.compare.comparison.test_selftest import trials
from tests.support.snapshots import Screens

SIMULATED = [
    SelftestCheck(where="simulated", what=what, n=10_000, found=found, required=required, passed=True)
    for what, found, required in (
        ("equal runs called different at any of 5 to 20 repeats, looked at after each", "3.70 %", "3 to 6 %"),
        ("slowdowns of 10 % found, noise 2 %, until decided", "100.00 %, after 5.0 repeats", "at least 90 %"),
        ("equal runs shown to differ by less than 5 %, noise 2 %", "97.20 %, after 6.1 repeats", "at least 90 %"),
        ("families of 8 equal comparisons with any called different", "1.60 %", "at most 6 %"),
    )
]


def words(screens: Screens, made: Report) -> str:
    """The words of the screen, once it is held against the kept ones."""
    return " ".join(screens(made, None).split())


def test_reliable_verdicts_are_said_with_what_was_found_here(screens: Screens) -> None:
    here = selftest.judge(trials(1.1))
    made = selftest.report(Selftest(checks=[*SIMULATED, *here.checks], sentences=here.sentences))
    shown = words(screens, made)
    assert made.exit_code == 0 and "Yes 6 of 6 checks passed." in shown and "Failed" not in shown
    assert "This machine pytorch here: two equal runs differ by 1.4 %" in shown


def test_a_check_that_fails_is_said_with_what_was_required(screens: Screens) -> None:
    here = selftest.judge(trials(1.01))
    made = selftest.report(Selftest(checks=[*SIMULATED, *here.checks], sentences=here.sentences))
    shown = words(screens, made)
    assert made.exit_code == 1 and "No 5 of 6 checks passed." in shown and " Yes " not in shown
    assert "Failed pytorch: 100 images more to an epoch of 1000: " in shown and "Required: slower." in shown


def test_a_simulation_alone_says_that_nothing_ran_here(screens: Screens) -> None:
    shown = words(screens, selftest.report(Selftest(checks=SIMULATED, sentences=[])))
    assert "Nothing ran on this machine: leave out --simulate-only." in shown and "This machine" not in shown


def test_the_repeats_that_are_needed_are_a_table_of_one_and_of_eight_questions(screens: Screens) -> None:
    table = repeats_needed.table(10, 0, UntilDecided())
    shown = words(screens, selftest.repeats_report(table))
    assert "How many repeats does `run --until-decided` need?" in shown and "1 question 8 questions" in shown

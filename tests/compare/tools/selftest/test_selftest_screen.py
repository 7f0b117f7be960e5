"""The first screens of `selftest`: reliable, not, and the repeats that a run needs."""

from compare.statistics.until_decided import UntilDecided
from compare.tools.selftest import repeats_needed, selftest
from compare.tools.selftest.selftest import Selftest, SelftestCheck
from tests.compare.tools.selftest.test_selftest import trials
from tests.support.snapshots import Screens

SIMULATED = [
    SelftestCheck(where="simulated", what=what, n=10_000, found=found, required=required, passed=True)
    for what, found, required in (
        ("equal runs called different at any of 5 to 20 repeats, judged after each", "3.70 %", "3 to 6 %"),
        ("slowdowns of 10 % found, noise 2 %, until decided", "100.00 %, after 5.0 repeats", "at least 90 %"),
        ("equal runs shown to differ by less than 5 %, noise 2 %", "97.20 %, after 6.1 repeats", "at least 90 %"),
        ("families of 8 equal comparisons with any called different", "1.60 %", "at most 6 %"),
    )
]


def test_the_first_screen_says_whether_verdicts_are_reliable_and_what_was_found_here(screens: Screens) -> None:
    for slower, exit_code in ((1.1, 0), (1.01, 1)):
        here = selftest.judge(trials(slower))
        report = selftest.report(Selftest(checks=[*SIMULATED, *here.checks], sentences=here.sentences))
        assert report.exit_code == exit_code and f"{6 - exit_code} of 6 checks" in screens(report, None)


def test_a_simulation_alone_says_that_nothing_ran_here(screens: Screens) -> None:
    assert "This machine" not in screens(selftest.report(Selftest(checks=SIMULATED, sentences=[])), None)


def test_the_repeats_that_are_needed_are_a_table_of_one_and_of_eight_questions(screens: Screens) -> None:
    screens(selftest.repeats_report(repeats_needed.table(10, 0, UntilDecided())), None)

"""The first screens of `conformance`: a twin that conforms, one that does not, and one that was tried in part."""

from compare.tools.conformance import conformance
from compare.tools.conformance.conformance import CHECKS, Check
from tests.support.snapshots import Screens

FAULTS = {
    "training": ["sgd: 5 losses differ by 1.2e-03, tolerance 1e-12 (step 2)", "adam: 5 losses differ by 0.1"],
    "input": ["LaunchError: third could not record serial (exit code 1)"],
}


def test_a_twin_that_conforms_is_said_to_with_its_checks(screens: Screens) -> None:
    shown = screens(conformance.report("third", [Check(name, []) for name in CHECKS]))
    assert "Conforms  third conforms: 8 of 8 checks passed." in shown
    assert "Missing" not in shown and "Not tried" not in shown


def test_what_is_missing_is_said_with_the_command_that_tries_it_again(screens: Screens) -> None:
    report = conformance.report("third", [Check(name, FAULTS.get(name, [])) for name in CHECKS])
    shown = screens(report)
    assert report.exit_code == 1 and "Fails    third does not conform: 6 of 8 checks passed." in shown
    assert "training: sgd: 5 losses differ by 1.2e-03, tolerance 1e-12 (step 2). 1 more fault." in shown
    assert "the same command with --checks training,input" in shown and "Conforms" not in shown


def test_a_part_of_the_contract_is_no_conformance(screens: Screens) -> None:
    shown = screens(conformance.report("third", [Check("describe", [])]), None)
    assert "1 of 8 checks were tried" in shown and "In part" in shown and "Not tried  models, bad input" in shown

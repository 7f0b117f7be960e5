"""The first screens of `parity`: proved, refuted, not claimed, each step, and the referee."""

from typing import Any

import pytest

from common import spec
from compare.proof import parity
from compare.proof.certificate import LOSSES_RUNG, Proof, Rung
from compare.reporting.document import Report
from tests.parity.test_referee_check import line
from tests.support.snapshots import Screens, printed

FRAMEWORKS = ["pytorch", "tensorflow"]


def rung(name: str, difference: float = 3e-15, status: Any = "passed", tolerance: float = 1e-12, **fields: Any) -> Rung:
    values: dict[str, Any] = {"model": "simple_cnn", "optimizer": "sgd", "precision": "float64", "steps": 50, "step": None}
    return Rung(
        name=name, max_relative_difference=difference, tolerance=tolerance, reason="rounding", status=status, **values | fields
    )  # fmt: skip


def losses(difference: float = 3.4e-14, status: Any = "passed", **fields: Any) -> Rung:
    return rung(LOSSES_RUNG, difference, status, step=50, judged_steps=50, where="loss from 2.31 to 0.42", **fields)


MODES = [
    rung(f"6 {mode} against serial{what}", framework=framework, mode=mode)
    for mode in ("data_parallel", "multi_process")
    for framework in FRAMEWORKS
    for what in ("", ": weights after one step")
]
PROVED = [rung("1 parameters", 0.0, tolerance=0.0), rung("3 gradients"), losses(), *MODES]


def screened(*rungs: list[Rung], of_rows: bool = False, **fields: Any) -> Report:
    """The report of a proof for each list of rungs."""
    optimizers = [each[0].optimizer for each in rungs]
    specs = [spec.build({"model": "simple_cnn", "optimizer": {"name": each, "learning_rate": 0.05}}) for each in optimizers]
    proofs = [Proof(rungs=each, seconds=9.0, **fields) for each in rungs]
    return parity.report(specs, proofs, FRAMEWORKS, for_rows=of_rows)


def words(screens: Screens, report: Report) -> str:
    """The words of the screen, each a blank apart, once it is held against the kept ones."""
    return " ".join(screens(report).split())


def with_adam(rungs: list[Rung]) -> list[Rung]:
    return [each.model_copy(update={"optimizer": "adam"}) for each in rungs]


def test_what_is_proved_is_said_with_its_difference_and_its_modes(screens: Screens) -> None:
    shown = words(screens, screened(PROVED, with_adam(PROVED)))
    assert "Proved" in shown and "within 3.4e-14 (relative) at each of 50 steps" in shown
    assert "proved: pytorch data_parallel, pytorch multi_process, tensorflow data_parallel" in shown
    assert "Not proved" not in shown and "failed" not in shown


def test_what_is_refuted_stands_first_and_says_who_is_asked_next(screens: Screens) -> None:
    wrong = [PROVED[0], rung("3 gradients", 2.6e-3, "failed", where="conv1.kernel"), *PROVED[2:]]
    report = screened(PROVED, with_adam(wrong))
    shown = words(screens, report)
    assert report.values["verdict"] == "not proved" and report.exit_code == 1
    assert shown.index("Not proved") < shown.index("Proved ")
    assert "1 of 11 rungs failed, first 3 gradients (2.6e-03, tolerance 1e-12)" in shown
    assert "the same command with --referee" in shown
    assert "not proved: pytorch data_parallel" in shown


def test_a_mode_of_one_proof_alone_is_not_said_to_be_proved() -> None:
    broken = [rung("1 parameters", 0.5, "failed", tolerance=0.0)]  # the ladder ends here
    said = " ".join(printed(screened(PROVED, with_adam(broken)), 100).split())
    assert "Modes not claimed: pytorch data_parallel" in said and "proved: pytorch" not in said


def test_a_mode_that_fails_alone_is_named_and_the_others_stay_proved(screens: Screens) -> None:
    wrong = [
        each.model_copy(update={"status": "failed", "max_relative_difference": 0.2, "step": 7})
        if (each.framework, each.mode) == ("tensorflow", "multi_process")
        else each
        for each in PROVED
    ]
    shown = words(screens, screened(wrong))
    assert "not proved: tensorflow multi_process." in shown
    assert "proved: pytorch data_parallel, pytorch multi_process, tensorflow data_parallel." in shown
    assert "--single-steps" in shown and "--referee" not in shown  # the referee has no modes


def test_one_update_is_no_proof_and_a_mode_that_claims_nothing_says_why(screens: Screens) -> None:
    report = screened(
        [*PROVED[:2], losses(0.3, "shown"), *MODES], of_rows=True, not_claimed={"pipeline_async": "its weights are stale"}
    )
    shown = words(screens, report)
    assert report.values["verdict"] == "not claimed" and "Not claimed" in shown
    assert "pipeline_async: its weights are stale." in shown and "Proved" not in shown


@pytest.mark.parametrize("failing", [False, True])
def test_single_steps_show_the_difference_nearest_to_its_limit(screens: Screens, failing: bool) -> None:
    steps = [
        rung(f"8 one step: {what}", 4e-14, framework=framework, mode=mode, step=3, model=model)
        for model in ("simple_cnn", "resnet18")
        for framework in FRAMEWORKS
        for mode in (None, "data_parallel")
        for what in ("losses", "gradients")
    ]
    if failing:
        steps[1] = steps[1].model_copy(update={"status": "failed", "max_relative_difference": 0.1, "where": "conv1.kernel"})
    shown = words(screens, parity.single_steps_report(steps))
    assert ("15 of 16 comparisons passed." if failing else "16 of 16 comparisons passed.") in shown
    assert ("Not proved" in shown) is ("--referee" in shown) is failing


@pytest.mark.parametrize("failing", [False, True])
def test_the_referee_says_which_framework_is_wrong(screens: Screens, failing: bool) -> None:
    lines = [
        line(),
        line("tensorflow", 2e-3 if failing else 2e-15),
        line("pytorch", 4e-7, None),
        line("tensorflow", 1e-7, None),
    ]
    shown = words(screens, parity.referee_report(lines))
    assert ("tensorflow differs from the referee, first in the loss" in shown) is failing
    assert "tensorflow is 4.0 times as close" in shown

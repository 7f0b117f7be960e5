"""The first screens of `parity`: proved, refuted, not claimed, each step, and the referee."""

import re
from typing import Any

import pytest

from common import spec
from compare.proof import parity
from compare.proof.certificate import Proof, Rung
from compare.reporting.document import Report
from tests.parity.test_referee_check import line
from tests.support.comparisons import with_fields
from tests.support.snapshots import Screens, printed

FRAMEWORKS = ["pytorch", "tensorflow"]


def rung(name: str, difference: float = 3e-15, status: Any = "passed", tolerance: float = 1e-12, **fields: Any) -> Rung:
    number, _, aspect = name.partition(" ")
    values: dict[str, Any] = {"model": "simple_cnn", "optimizer": "sgd", "precision": "float64", "steps": 50, "step": None}
    values |= {"name": name, "number": int(number), "aspect": aspect, "max_relative_difference": difference}
    return Rung(**values | {"tolerance": tolerance, "reason": "rounding", "status": status} | fields)


def losses(difference: float = 3.4e-14, status: Any = "passed", **fields: Any) -> Rung:
    return rung("5 losses", difference, status, step=50, judged_steps=50, where="loss from 2.31 to 0.42", **fields)


MODES = [
    rung(f"6 {mode} against serial{what}", framework=framework, mode=mode, aspect=what.removeprefix(": ") or "losses")
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


def with_adam(rungs: list[Rung]) -> list[Rung]:
    return [with_fields(each, optimizer="adam") for each in rungs]


def modes_of(shown: str) -> dict[str, int]:
    """Verdict: how many modes have it on a first screen."""
    _, _, block = shown.partition("  Modes ")
    lines = re.findall(r"(not proved|not claimed|proved): ([^.]*)\.", " ".join(block.split()))
    return {verdict: len(names.split(",")) for verdict, names in lines}


def test_what_is_proved_is_said_with_its_difference_and_its_modes(screens: Screens) -> None:
    report = screened(PROVED, with_adam(PROVED))
    shown = screens(report)
    assert (report.values["verdict"], report.exit_code) == ("proved", 0)
    assert "3.4e-14" in shown and modes_of(shown) == {"proved": 4} and "failed" not in shown


def test_what_is_refuted_stands_first_and_says_who_is_asked_next(screens: Screens) -> None:
    wrong = [PROVED[0], rung("3 gradients", 2.6e-3, "failed", where="conv1.kernel"), *PROVED[2:]]
    report = screened(PROVED, with_adam(wrong))
    shown = screens(report)
    assert (report.values["verdict"], report.exit_code) == ("not proved", 1)
    assert shown.index("with adam: 1 of 11 checks failed") < shown.index("with sgd: in float64")
    assert "--referee" in shown and modes_of(shown) == {"not proved": 4}


def test_a_mode_of_one_proof_alone_is_not_said_to_be_proved() -> None:
    broken = [rung("1 parameters", 0.5, "failed", tolerance=0.0)]  # the ladder ends here
    assert modes_of(printed(screened(PROVED, with_adam(broken)), 100)) == {"not claimed": 4}


def test_a_mode_that_fails_alone_is_named_and_the_others_stay_proved(screens: Screens) -> None:
    alone = {"status": "failed", "max_relative_difference": 0.2, "step": 7}
    is_wrong = [(each.framework, each.mode) == ("tensorflow", "multi_process") for each in PROVED]
    wrong = [with_fields(each, **alone) if changes else each for each, changes in zip(PROVED, is_wrong, strict=True)]
    shown = screens(screened(wrong))
    assert modes_of(shown) == {"not proved": 1, "proved": 3}
    assert "--single-steps" in shown and "--referee" not in shown  # the referee has no modes


def test_one_update_is_no_proof_and_a_mode_that_claims_nothing_says_why(screens: Screens) -> None:
    unclaimed = {"pipeline_async": "its weights are stale"}
    report = screened([*PROVED[:2], losses(0.3, "shown"), *MODES], of_rows=True, not_claimed=unclaimed)
    shown = screens(report)
    assert report.values["verdict"] == "not claimed"
    assert all(f"{name}: {why}." in shown for name, why in unclaimed.items())


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
        steps[1] = with_fields(steps[1], status="failed", max_relative_difference=0.1, where="conv1.kernel")
    report = parity.single_steps_report(steps)
    shown = screens(report)
    assert f"{16 - failing} of 16 " in shown
    assert (report.values["verdict"] == "not proved") is ("--referee" in shown) is failing


@pytest.mark.parametrize("failing", [False, True])
def test_the_referee_says_which_framework_is_wrong(screens: Screens, failing: bool) -> None:
    right, other = line("pytorch", 4e-7, None), line("tensorflow", 1e-7, None)
    report = parity.referee_report([line(), line("tensorflow", 2e-3 if failing else 2e-15), right, other])
    assert (report.values["verdict"] == "not proved") is ("2.0e-03" in screens(report)) is failing

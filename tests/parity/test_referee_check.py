"""What `parity --referee` says of differences to the referee."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common import spec
from common.data.batches import BatchPlan
from common.models import architectures
from common.models.architectures import Architecture
from common.spec import Optimizer, Spec
from common.training.tracing import group
from compare.proof import ladder, parity, referee_check, single_steps
from compare.proof.differences import Arrays
from compare.proof.referee import training
from compare.proof.referee_check import RefereeComparison
from tests.parity.made_up import architecture_of, recording_of_steps
from tests.support.command_line import convtwins


def line(
    framework: str = "pytorch", difference: float = 1e-15, tolerance: float | None = 1e-12, **fields: Any
) -> RefereeComparison:
    precision = "float32" if tolerance is None else "float64"
    values = {"precision": precision, "referee": "float64", "what": "loss of the first step", "where": None, **fields}
    values = {"model": "simple_cnn", "optimizer": "sgd", **values}
    return RefereeComparison(framework=framework, difference=difference, tolerance=tolerance, **values)


def said(*lines: RefereeComparison) -> str:
    return " ".join(sentence for _, sentences in parity.referee_report(lines).findings for sentence in sentences)


def test_a_difference_beyond_its_tolerance_names_the_framework_and_is_exit_code_1() -> None:
    both = line("pytorch", 1e-3), line("tensorflow", 1e-3)
    assert "1 of 2 comparisons passed. tensorflow differs from the referee" in said(line(), both[1])
    assert "0 of 2 comparisons passed. All frameworks differ from the referee" in said(*both)
    assert [parity.referee_report(lines).exit_code for lines in ([line()], both, [])] == [0, 1, 1]


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_difference_that_is_no_number_fails(bad: float) -> None:
    assert line(difference=bad).status == "failed"


def test_in_float32_the_closer_framework_is_named_by_how_much_and_for_which_machine() -> None:
    text = said(line(), line("pytorch", 4e-7, None), line("tensorflow", 1e-7, None))
    assert "tensorflow is 4.0 times as close (1.0e-07 against 4.0e-07)." in text
    assert "This is one step on one machine." in text and "ties" not in text
    assert "both are as close" in said(line(), line("pytorch", 1e-7, None), line("tensorflow", 1e-7, None))


def test_a_decision_that_rounding_took_gives_no_ratio() -> None:
    lines = [
        line(precision="float32", what="gradients of the first step", tolerance=None, **own)
        for own in ({"framework": "pytorch", "difference": 3e-7}, {"framework": "tensorflow", "difference": 2e-2})
    ]
    text = " ".join(referee_check.closer_framework_sentences(lines))
    assert "pytorch is closer (3.0e-07 against 2.0e-02)" in text and "times as close" not in text


@pytest.mark.parametrize(
    ("with_ties", "words"),
    [
        (None, "There are too many ties"),
        (1e-6, "It is no fault: rounding decided 3 ties"),
        (1e-2, "None of the ties that were tried (a ReLU at zero, equal maxima) explain it. It may be a fault."),
    ],
)
def test_a_float32_gradient_that_is_far_off_is_said_to_be_ties_or_a_fault(with_ties: float | None, words: str) -> None:
    what = "gradients of the first step"
    lines = [line("pytorch", 1e-7, None, what=what), line("tensorflow", 2e-2, None, what=what, where="conv4.kernel")]
    if with_ties is not None:
        lines.append(line("tensorflow", with_ties, None, what=f"{what} with 3 ties decided as there"))
    assert words in said(*lines) and "simple_cnn, sgd, tensorflow: a gradient differs by 2.0e-02 (conv4.kernel)" in said(*lines)


@cache
def _step_with_ties_turned() -> tuple[Spec, Architecture, Arrays, Arrays]:
    """(spec, architecture, a recorded step, its gradients with its nearest ties decided otherwise)."""
    what = spec.build(
        {"model": "mini_xception", "precision": "float32", "steps": 1, "global_batch_size": 2, "data": {"limit": 2}}
    )
    architecture, steps = architecture_of(what), recording_of_steps(what, [0])
    judging = single_steps.StepJudge(architecture, {**steps}, [0], BatchPlan(what, architecture, 2))
    truth = judging._truth(what, 0)
    turned = judging._with_turned_ties(what, 0, truth, [tie for tie in truth.ties if tie.nearness <= 2])
    return what, architecture, steps, turned.step.gradients


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "words"), [(1.0, "is no fault: rounding decided"), (1.005, "It may be a fault")])
def test_ties_are_told_from_a_fault_by_the_gradients_themselves(factor: float, words: str) -> None:
    """A step whose ties are decided otherwise, and the same with gradients that are a little too long."""
    what, architecture, steps, turned = _step_with_ties_turned()
    arrays = {name: array for name, array in steps.items() if not name.startswith(("before/", "after/"))}
    arrays |= {"initial/" + name: array for name, array in group(steps, "before/0/weights/").items()}
    arrays |= {"stepped/" + name: array for name, array in group(steps, "after/0/weights/").items()}
    arrays |= {"gradient/" + name: (factor * array).astype(np.float32) for name, array in turned.items()}
    arrays["loss"] = steps["loss/0"]
    lines = referee_check.compare(what, architecture, 2, {"pytorch": arrays}, np.float64)
    assert words in " ".join(referee_check.closer_framework_sentences(lines))


@pytest.mark.parametrize(("digits", "words"), [(52, "longdouble is float64"), (63, "a mantissa of 63 bits here")])
def test_the_output_says_what_longdouble_is_here(monkeypatch: pytest.MonkeyPatch, digits: int, words: str) -> None:
    class Float:
        def __init__(self, kind: Any) -> None:
            self.nmant = digits if kind is np.longdouble else 52

    monkeypatch.setattr(referee_check.np, "finfo", Float)
    assert words in said(line(referee=np.dtype(np.longdouble).name))


def test_the_referee_trains_ten_float64_steps_of_what_is_timed() -> None:
    adam = {"optimizer": {"name": "adam", "learning_rate": 1e-3}, "accumulation": 4, "mode": "data_parallel", "replicas": 2}
    what = referee_check.referee_spec(spec.build({**adam, "schedule": {"name": "cosine"}, "cores": 2}))
    assert (what.steps, what.precision, what.mode, what.accumulation) == (10, "float64", "serial", 1)
    assert (what.optimizer.epsilon, what.schedule.name) == (referee_check.EPSILON, "cosine")
    own = referee_check.referee_spec(spec.build({"optimizer": {"name": "adam", "epsilon": 1e-4}}))
    assert own.optimizer.epsilon == 1e-4


def test_adam_is_compared_with_its_own_epsilon_too() -> None:
    def epsilons(**optimizer: Any) -> list[float]:
        timed = spec.build({"optimizer": optimizer})
        return [each.optimizer.epsilon for each in referee_check.referee_specs(timed)]

    assert epsilons(name="adam") == [1e-3, 1e-8]
    assert epsilons(name="adam", epsilon=1e-4) == [1e-4] and len(epsilons(name="sgd")) == 1
    own = line(optimizer="adam, epsilon 1e-08")
    assert "has the tolerance that this arithmetic gives each value" in said(own)
    assert "tolerance that this" not in said(line(optimizer="adam"))


def _adam(noise: float = 0.0, **planted: Any) -> RefereeComparison:
    """The line of the first update: two weights, one with a gradient and one whose gradient is the rounding of zero.

    Args:
        noise: of both recorded gradients.
        planted: what `training.Adam` that made the recording was given otherwise.
    """
    architecture = Architecture("two", 1, 1, (architectures.Dense("d", 3, 2),))
    initial = {"d.kernel": np.ones((3, 2)), "d.bias": np.zeros(2)}
    gradients = {"d.kernel": np.full((3, 2), 0.1), "d.bias": np.array([1e-17, 0.3])}
    recorded = {name: array + noise for name, array in gradients.items()}
    rate, right, ours = 1e-3, training.RefereeAdam(), training.RefereeAdam(**planted)
    first = {name: right.update(name, initial[name], array, rate, 1) for name, array in gradients.items()}
    arrays = {f"{kind}/{name}": made[name] for kind, made in (("initial", initial), ("gradient", recorded)) for name in initial}
    arrays |= {f"stepped/{name}": ours.update(name, initial[name], array, rate, 1) for name, array in recorded.items()}
    truth = referee_check._RefereeTraining(np.zeros(1), gradients, first, first)
    found, limits = referee_check._with_default_epsilon(Optimizer(name="adam"), [rate], architecture, arrays, truth, {})
    (name,) = found
    return line(difference=found[name][0], tolerance=limits[name], where=found[name][1])


def test_the_first_update_of_adam_with_a_tiny_epsilon_may_differ_by_what_its_arithmetic_makes_of_rounding() -> None:
    """Noise of 1e-17 moves the weight without a gradient by 1e-9 of an update. Planted: other epsilons."""
    assert _adam().difference == 0.0
    rounded = _adam(1e-17)
    assert rounded.where == "d.bias" and rounded.status == "passed" and 1e-10 < rounded.difference < 1.1e-9
    assert rounded.tolerance is not None and rounded.tolerance < 3e-8
    for planted in ({"epsilon": 1e-7}, {"epsilon": 1.1e-8}):
        assert _adam(1e-17, **planted).status == "failed", planted
    assert _adam(float("nan")).status == "failed"


def test_the_command_asks_the_referee_instead_of_the_ladder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []

    def judge(specs: Any, frameworks: Any, out: Path, progress: Any) -> list[RefereeComparison]:
        asked.extend(specs)
        return [line(), line("tensorflow", 1e-3)]

    monkeypatch.setattr(referee_check, "judge", judge)
    done = convtwins("parity", "--referee", "--model", "simple_cnn,resnet18", "--optimizer", "sgd", "--json")
    assert done.exit_code == 1 and [each.model for each in asked] == ["simple_cnn", "resnet18"]
    assert [each["status"] for each in json.loads(done.stdout)["lines"]] == ["passed", "failed"]


@pytest.mark.parametrize(
    ("words", "depth"),
    [(["--referee"], 0.34), (["--referee", "--set", "depth=1"], 1.0), (["--single-steps"], 1.0)],
)
def test_a_deep_model_is_followed_with_fewer_blocks_and_named_so(
    monkeypatch: pytest.MonkeyPatch, words: list[str], depth: float
) -> None:
    asked: list[Spec] = []

    def judged(specs: list[Spec], *_: object, **__: object) -> list[referee_check.RefereeComparison]:
        asked.extend(specs)
        return []

    def every_step(what: Spec, *_: object, **__: object) -> list[object]:
        asked.append(what)
        return []

    monkeypatch.setattr(referee_check, "judge", judged)
    monkeypatch.setattr(ladder, "judge_every_step", every_step)
    convtwins("parity", "--model", "resnet50", "--optimizer", "sgd", *words)
    assert [(each.depth, each.model_label) for each in asked] == [
        (depth, "resnet50" if depth == 1 else "resnet50 (depth 0.34)")
    ]

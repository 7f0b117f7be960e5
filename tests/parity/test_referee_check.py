"""What `parity --referee` says of differences to the referee."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

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


def said(*lines: RefereeComparison) -> list[str]:
    return [sentence for _, sentences in parity.referee_report(lines).findings for sentence in sentences]


def of_gradients(framework: str, difference: float, what: str = "gradients of the first step", **fields: Any) -> Any:
    return line(framework, difference, None, what=what, **fields)


FLOAT32 = line("pytorch", 4e-7, None), line("tensorflow", 1e-7, None)
FAR = of_gradients("pytorch", 1e-7), of_gradients("tensorflow", 2e-2, where="conv4.kernel")
WITH_TIES = "gradients of the first step with 3 ties decided as there"
SENTENCES: dict[str, list[RefereeComparison]] = {
    "one differs": [line(), line("tensorflow", 1e-3)],
    "all differ": [line("pytorch", 1e-3), line("tensorflow", 1e-3)],
    "one is closer": [line(), *FLOAT32],
    "both are as close": [line(), line("pytorch", 1e-7, None), line("tensorflow", 1e-7, None)],
    "too many ties, and no ratio where rounding took a decision": [*FAR],
    "ties explain it": [*FAR, of_gradients("tensorflow", 1e-6, WITH_TIES, ties=3)],
    "ties do not explain it": [*FAR, of_gradients("tensorflow", 1e-2, WITH_TIES, ties=3)],
    "adam": [line(optimizer="adam")],
    "adam with its own epsilon": [line(optimizer="adam, epsilon 1e-08")],
}


@pytest.mark.parametrize("name", SENTENCES)
def test_sentences_say_who_differs_who_is_closer_and_what_may_be_ties(name: str, snapshot: SnapshotAssertion) -> None:
    assert said(*SENTENCES[name]) == snapshot


def test_a_difference_beyond_its_tolerance_is_exit_code_1() -> None:
    lines = [line()], SENTENCES["one differs"], SENTENCES["all differ"], []
    assert [parity.referee_report(each).exit_code for each in lines] == [0, 1, 1, 1]


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_difference_that_is_no_number_fails(bad: float) -> None:
    assert line(difference=bad).status == "failed"


@cache
def _step_with_ties_turned() -> tuple[Spec, Architecture, Arrays, Arrays]:
    """(spec, architecture, a recorded step, its gradients with its nearest ties decided otherwise)."""
    what = spec.build(
        {"model": "mini_xception", "precision": "float32", "steps": 1, "global_batch_size": 2, "data": {"limit": 2}}
    )
    architecture, steps = architecture_of(what), recording_of_steps(what, [0])
    judging = single_steps.StepJudge(architecture, {**steps}, [0], BatchPlan(what, architecture, 2))
    truth = judging.truth(what, 0)
    return what, architecture, steps, truth.gradients_with([tie for tie in truth.truth.ties if tie.nearness <= 2])


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "is_fault"), [(1.0, False), (1.005, True)])
def test_ties_are_told_from_a_fault_by_the_gradients_themselves(factor: float, is_fault: bool) -> None:
    """A step whose ties are decided otherwise, and the same with gradients that are a little too long."""
    what, architecture, steps, turned = _step_with_ties_turned()
    arrays = {name: array for name, array in steps.items() if not name.startswith(("before/", "after/"))}
    arrays |= {"initial/" + name: array for name, array in group(steps, "before/0/weights/").items()}
    arrays |= {"stepped/" + name: array for name, array in group(steps, "after/0/weights/").items()}
    arrays |= {"gradient/" + name: (factor * array).astype(np.float32) for name, array in turned.items()}
    arrays["loss"] = steps["loss/0"]
    lines = referee_check.compare(what, architecture, 2, {"pytorch": arrays}, np.float64)
    text = " ".join(referee_check.closer_framework_sentences(lines))
    assert ("no fault" in text, "may be a fault" in text) == (not is_fault, is_fault)


@pytest.mark.parametrize("bits", [52, 63])
def test_the_output_says_what_longdouble_is_here(snapshot: SnapshotAssertion, bits: int) -> None:
    lines = [line(referee=np.dtype(np.longdouble).name)]
    assert referee_check.caution_sentences(lines, longdouble_bits=bits) == snapshot


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
    (found,) = referee_check._with_default_epsilon(Optimizer(name="adam"), [rate], architecture, arrays, truth, {}).values()
    return line(difference=found.difference, tolerance=found.tolerance, where=found.where)


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

    monkeypatch.setattr(referee_check, "judge", judge)  # starts frameworks, as do those below
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

    def every_step(request: ladder.ProofRequest, **_: object) -> list[object]:
        asked.append(request.timed_spec)
        return []

    monkeypatch.setattr(referee_check, "judge", judged)
    monkeypatch.setattr(ladder, "judge_every_step", every_step)
    convtwins("parity", "--model", "resnet50", "--optimizer", "sgd", *words)
    assert [(each.depth, each.model_label) for each in asked] == [
        (depth, "resnet50" if depth == 1 else "resnet50 (depth 0.34)")
    ]

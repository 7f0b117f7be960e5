"""Rung 8: one step from the same state, with planted defects, and cases in which only rounding is left."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from common import spec
from common.data.batches import Plan
from common.models import architectures
from common.spec import Spec
from compare.proof import ladder, single_steps
from compare.proof.certificate import Proof, Rung
from tests.parity.made_up import architecture_of, recording_of_steps
from tests.parity.settings import setting

PROJECT = Path(__file__).parents[2]
EXAMPLES = 21
"""Two whole batches of 8 and one of 5 in an epoch."""
DEFECTS = [
    ("pytorch", "gradients_of_batch_norm_are_zero", "gradients"),
    ("pytorch", "second_epoch_has_another_learning_rate", "weights"),
    ("pytorch", "uneven_batch_is_weighed_as_a_whole_one", "losses"),
    ("pytorch", "labels_are_swapped", "losses"),
    ("pytorch", "batch_norm_momentum_means_old", "BatchNorm statistics"),
    ("pytorch", "order_of_another_seed", "batches"),
    ("pytorch", "one_pixel_level_off", "batches"),
    ("pytorch", "dropout_mask_is_ignored", "losses"),
    ("tensorflow", "loss_is_wrong_after_the_first_step", "losses"),
    ("tensorflow", "fused_batch_norm_epsilon_of_keras", "losses"),
    ("tensorflow", "fused_running_variance_is_biased", "BatchNorm statistics"),
    ("tensorflow", "batch_norm_momentum_means_old", "BatchNorm statistics"),
]
Recordings = Callable[[str, str], dict[str, Any]]


def _spec(**fields: Any) -> Spec:
    schedule = {"name": "step", "step_size": 1, "gamma": 0.5}
    values = {**setting("float32").model_dump(), "steps": 8, "data": {"limit": EXAMPLES}, "schedule": schedule}
    return spec.build({**values, **fields})


def _judge(what: Spec, teacher: dict[str, Any]) -> single_steps.Judge:
    architecture = architectures.resolve(what.model, 10, 32)
    plan = Plan(what, architecture, EXAMPLES)
    return single_steps.Judge(architecture, teacher, single_steps.drawn(what, architecture, plan), plan)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    folder = tmp_path_factory.mktemp("steps")
    what = _spec()
    architecture = architectures.resolve(what.model, 10, 32)
    words = ["--drawn", ",".join(map(str, single_steps.drawn(what, architecture, Plan(what, architecture, EXAMPLES))))]
    teacher = folder / "pytorch" / "teacher-nothing.safetensors"
    for name, options in (("teacher", words), ("pupil", [*words, "--teacher", str(teacher)])):
        (folder / f"{name}.json").write_text(what.to_json(), encoding="utf-8")
        (folder / f"{name}.options").write_text(" ".join(options), encoding="utf-8")
    for framework in ("pytorch", "tensorflow"):
        out = folder / framework
        out.mkdir()
        planted = [f"{folder}/pupil.json:{defect}" for own, defect, _ in DEFECTS if own == framework]
        first = [f"{folder}/teacher.json:nothing"] if framework == "pytorch" else []
        words = [*first, *planted, f"{folder}/pupil.json:nothing"]
        command = [sys.executable, "-m", "tests.planted.plant", framework, str(out), *words]
        done = subprocess.run(command, cwd=PROJECT, check=False, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
    return lambda framework, name: safetensors.numpy.load_file(folder / framework / f"{name}.safetensors")


@pytest.fixture(scope="module")
def judge(recorded: Recordings) -> single_steps.Judge:
    return _judge(_spec(), recorded("pytorch", "teacher-nothing"))


@pytest.mark.parametrize(("framework", "defect", "aspect"), DEFECTS)
def test_one_step_in_float32_finds_the_defect(
    recorded: Recordings, judge: single_steps.Judge, framework: str, defect: str, aspect: str
) -> None:
    found = judge.rungs(_spec(), recorded(framework, f"pupil-{defect}"), framework)
    failed = [rung.name for rung in found if rung.status == "failed"]
    assert f"8 one step in float32: {aspect}" in failed
    assert failed[0] in Proof(rungs=found, seconds=0.0).sentence


@pytest.mark.parametrize(
    ("framework", "name"), [("pytorch", "teacher-nothing"), ("pytorch", "pupil-nothing"), ("tensorflow", "pupil-nothing")]
)
def test_rounding_alone_fails_no_step_and_the_tolerance_is_small(
    recorded: Recordings, judge: single_steps.Judge, framework: str, name: str
) -> None:
    found = judge.rungs(_spec(), recorded(framework, name), framework)
    assert [rung.name for rung in found if rung.status != "passed"] == []
    by_aspect = {rung.name.rpartition(": ")[2]: rung for rung in found}
    assert set(by_aspect) == {"batches", "losses", "gradients", "weights", "BatchNorm statistics"}
    assert max(rung.tolerance for rung in found) < 1e-2
    assert by_aspect["losses"].tolerance < 1e-4
    assert by_aspect["batches"].judged_steps == 4


def test_an_array_is_judged_on_its_own_scale_however_small_it_is(recorded: Recordings, judge: single_steps.Judge) -> None:
    clean = recorded("tensorflow", "pupil-nothing")
    name = "after/2/slots/buffer/conv_bn.gamma"
    clean[name] = clean[name] * np.float32(1.02)
    (rung,) = [each for each in judge.rungs(_spec(), clean, "tensorflow") if each.status == "failed"][:1]
    assert (rung.name, rung.where, rung.step) == ("8 one step in float32: gradients", "conv_bn.gamma, buffer", 3)


def _proved(out: Path, **fields: Any) -> list[Rung]:
    what = spec.build({"augmentation": {"horizontal_flip": True, "shift_px": 2}, **fields})
    proof = ladder.prove(
        what, ("pytorch", "tensorflow"), ("serial",), replicas=2, out=out, progress=lambda text: None,
        timed_runs=dict.fromkeys(("pytorch", "tensorflow"), what), remember=False, steps=2,
    )  # fmt: skip
    return [rung for rung in proof.rungs if rung.name.startswith("8")]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_mini_xception_is_not_failed_for_rounding(tmp_path: Path, optimizer: str) -> None:
    found = _proved(tmp_path, model="mini_xception", optimizer={"name": optimizer}, global_batch_size=16, data={"limit": 88})
    assert found and {rung.status for rung in found} == {"passed"}, found


def _float64(out: Path, model: str, optimizer: str, modes: tuple[str, ...], steps: int) -> list[Rung]:
    rate = {"sgd": 0.05, "adam": 1e-3}[optimizer]
    what = spec.build({"model": model, "optimizer": {"name": optimizer, "learning_rate": rate}, "global_batch_size": 16})
    base = ladder.proof_spec(what, 16, steps, "float64")
    climbing = ladder._Ladder(base, ("pytorch", "tensorflow"), modes, 2, (), (), out, lambda text: None)
    return [rung for steps in climbing.single_steps() for rung in climbing.judged(steps)]


def _assert_within_1e_12(found: list[Rung], steps: int) -> None:
    assert found and {rung.status for rung in found} == {"passed"}, [rung for rung in found if rung.status != "passed"]
    for rung in found:
        assert (rung.precision, rung.judged_steps) == ("float64", steps)
        if not rung.name.endswith("weights") and rung.model == "simple_cnn":
            assert rung.max_relative_difference <= 1e-12
        assert rung.max_relative_difference <= 1e-11  # where the referee shows that rounding alone exceeds 1e-12


def test_more_than_1e_12_passes_only_where_the_referee_says_that_rounding_does_it(tmp_path: Path) -> None:
    what = ladder.proof_spec(_spec(precision="float64"), 8, 3, "float64").with_fields(data={"limit": EXAMPLES})
    architecture = architecture_of(what)
    plan = Plan(what, architecture, EXAMPLES)
    teacher = recording_of_steps(what, [0, 1, 2])

    def status(relative: float) -> str:
        pupil = dict(teacher)
        name = "after/1/slots/buffer/dense.kernel"
        pupil[name] = teacher[name] * (1 + relative)
        found = single_steps.Judge(architecture, teacher, [0, 1, 2], plan).rungs(what, pupil, "tensorflow")
        return next(rung for rung in found if rung.name.endswith("gradients")).status

    assert [status(5e-13), status(1e-10)] == ["passed", "failed"]


def test_simple_cnn_holds_1e_12_at_every_step_in_float64(tmp_path: Path) -> None:
    _assert_within_1e_12(_float64(tmp_path, "simple_cnn", "adam", ("data_parallel",), 12), 12)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("model", ["simple_cnn", "mini_xception"])
def test_every_synchronous_mode_holds_1e_12_at_each_of_50_steps_in_float64(tmp_path: Path, model: str, optimizer: str) -> None:
    modes = ("data_parallel", "multi_process", "parameter_server", "model_parallel", "tensor_parallel", "pipeline",
             "pipeline_1f1b", "hybrid_tensor", "hybrid_pipeline")  # fmt: skip
    _assert_within_1e_12(_float64(tmp_path, model, optimizer, modes, 50), 50)

"""Timed runs are judged by steps that they cannot foresee: what a twin does late is found, and blamed on that twin."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common import spec
from common.artifacts import results
from common.artifacts.schema import RunResult
from common.data.batches import BatchPlan
from common.machine import placement
from common.models.architectures import resolve
from common.training.spot_checks import StepDraw, example_hashes, fingerprint, strata
from compare.proof import spot_checks
from compare.proof.augmentation import augment
from compare.proof.certificate import Rung
from compare.proof.spot_checks import TimedRun
from compare.results import store
from compare.results.store import IN_FLOAT64, SpotCheck
from compare.running.matrix import Row
from compare.running.twins import Twins
from tests.support import comparisons, processes, trees

VALUES: dict[str, Any] = {
    "model": "simple_cnn",
    "width": 0.25,
    "data": {"source": "digits", "limit": 250},
    "augmentation": {"horizontal_flip": True},
    "optimizer": {"learning_rate": 0.05, "momentum": 0.5},
    "schedule": {"name": "step", "step_size": 3, "gamma": 0.5},
    "epochs": 6,
    "global_batch_size": 32,
    "cores": 1,
}
SEEN: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "images_of_the_batch_before": ("epoch 4: its ids, labels, pixels", "images are not those of the source"),
    "labels_of_the_batch_before": ("epoch 4: its ids, labels, pixels", "labels are not those of the source"),
    "other_examples": ("epoch 4: its ids, labels, pixels", "examples are not those of the plan"),
    "images_are_brighter": ("epoch 4: its ids, labels, pixels", "images are not those of the source"),
    "images_are_black": ("epoch 4: its ids, labels, pixels", "images are not those of the source"),
    "labels_are_the_next_class": ("epoch 4: its ids, labels, pixels", "labels are not those of the source"),
    "labels_are_one_class": ("epoch 4: its ids, labels, pixels", "labels are not those of the source"),
    "flips_of_the_first_epoch": (
        "epoch 4: its ids, labels, pixels",
        "images are not those of the source, augmented as planned",
    ),
    "schedule_is_late": ("epoch 4: its ids, labels, pixels or learning rates",),
    "rate_is_larger": ("the update of ", " does not fit learning rate 0.025"),
    "gradients_are_longer": (": gradients differ from the referee's",),
    "a_bias_rests": (": the update of dense.bias does not fit learning rate 0.025",),
    "momentum_is_forgotten": (": gradients differ from the referee's",),
    "images_are_swapped_inside_the_step": (": gradients differ from the referee's",),
    "losses_are_told_smaller": (": losses differ from the referee's",),
    "right_predictions_are_told_more": (": scores differ from the referee's",),
}
"""Defect of `tests.planted.late`: what the faults of its run say."""
OF_BATCHES = {name for name in SEEN if "its ids, labels, pixels" in "".join(SEEN[name])} | {
    "images_are_swapped_inside_the_step"
}
QUICK = ("nothing", "images_of_the_batch_before", "rate_is_larger", "a_bias_rests", "gradients_are_longer")


def run_late(framework: str, folder: Path, *names: str, **changes: Any) -> None:
    """Train with each defect."""
    trees.write(folder, {"spec.json": {**VALUES, **changes}})
    processes.python("-m", "tests.planted.late", framework, folder, folder / "spec.json", *names, timeout=3600).succeeded()


def judged(result: RunResult, folder: Path) -> SpotCheck:
    """What is found in the recorded steps of a run."""
    row = Row(id=f"{result.framework}-row", contestant=result.framework, spec=result.spec)
    (found,) = spot_checks.judge(Twins([row.contestant]), [TimedRun(row, 0, result, folder)], [], lambda said: None)
    return found


def made(framework: str, tmp_path: Path, names: tuple[str, ...], **changes: Any) -> dict[str, SpotCheck]:
    """What is found in a run with each defect."""
    run_late(framework, tmp_path, *names, **changes)
    found: dict[str, SpotCheck] = {}
    for name in names:
        found[name] = judged(results.load(tmp_path / name / results.RESULT_FILE), tmp_path / name)
        files = list((tmp_path / name).glob("*.safetensors"))
        if name == "nothing_recorded":
            assert not files and not found[name].steps
            continue
        assert bool(files) == bool(found[name].faults), "records stay only where they are evidence"
    return found


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_recorded_steps_leave_the_training_as_it_is(framework: str, tmp_path: Path) -> None:
    made(framework, tmp_path, ("nothing", "nothing_recorded"), epochs=3)
    recorded, plain = (results.load(tmp_path / name / results.RESULT_FILE) for name in ("nothing", "nothing_recorded"))
    assert len(recorded.spot_checks) >= 3 and not plain.spot_checks
    assert recorded.step_losses == plain.step_losses
    assert recorded.final_weights_hash == plain.final_weights_hash and recorded.test == plain.test
    assert [each.fingerprint for each in recorded.epochs] == [each.fingerprint for each in plain.epochs]
    left_out = [before.timed_steps - each.timed_steps for before, each in zip(plain.epochs, recorded.epochs, strict=True)]
    assert sum(left_out) == len(recorded.spot_checks), "the recorded steps are off the clock, and no others"


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
@pytest.mark.parametrize("names", [QUICK, pytest.param(tuple(SEEN), marks=pytest.mark.slow)], ids=["few", "all"])
def test_what_a_twin_does_late_is_found_and_named(framework: str, names: tuple[str, ...], tmp_path: Path) -> None:
    found = made(framework, tmp_path, names)
    for name in names:
        faults, expected = " ".join(found[name].faults), SEEN[name]
        # In the first step of an epoch, and in its last one, which is short, there is no batch to take another's place.
        between = [step for step in found[name].steps if step > 24 and step % 8 not in (0, 1)]
        if not between and name in OF_BATCHES:
            if name == "images_are_swapped_inside_the_step":
                continue
            expected = tuple(words for words in expected if words.startswith("epoch"))
        assert bool(faults) == bool(expected), (name, faults)
        assert all(words in faults for words in expected), (name, faults)
    clean = found["nothing"]
    assert clean.epochs == 6 and clean.computed == clean.steps and not clean.shown


def test_a_record_that_is_torn_or_of_other_arrays_is_a_fault_and_stops_nothing(tmp_path: Path) -> None:
    made_by: Any = made("pytorch", tmp_path, ("nothing_recorded",), epochs=1)
    assert not made_by["nothing_recorded"].steps
    result = comparisons.with_fields(results.load(tmp_path / "nothing_recorded" / results.RESULT_FILE), spot_checks=[3])
    for content in (b"", b"torn", (8).to_bytes(8, "little") + b"{}      "):
        for name in ("spot_check_2_before.safetensors", "spot_check_2_after.safetensors"):
            (tmp_path / name).write_bytes(content)
        assert any(fault.startswith("step 3: its record ") for fault in judged(result, tmp_path).faults)


OTHER_EPOCH = "its ids, labels, pixels or learning rates are not the plan's"
WORDS: dict[str, tuple[str, ...]] = {
    **{name: (OTHER_EPOCH,) for name in SEEN if "its ids" in "".join(SEEN[name])},
    "rate_is_larger": ("does not fit learning rate", ": losses", ": gradients"),
    "a_bias_rests": ("the update of dense.bias does not fit learning rate",),
    "updates_are_left_out": ("the update of ", ": gradients differ", ": losses differ"),
    **{name: (SEEN[name][0],) for name in SEEN if "referee" in "".join(SEEN[name])},
}
"""Defect: what the faults of a run say where it acts in some steps alone. One of these."""
OF_ALL_RANKS = (
    "flips_of_the_first_epoch", "schedule_is_late", "a_bias_rests", "momentum_is_forgotten", "updates_are_left_out"
)  # fmt: skip
"""Ranks agree on flips and rates before a step, and load weights together."""
RUNS = 4
"""Of each defect that acts in a part of the steps. One run may miss it."""


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
@pytest.mark.parametrize("when", ["late", "rare", "by_loss", "by_epoch", "by_step"])
def test_a_defect_of_some_steps_is_found_in_a_few_runs(framework: str, when: str, tmp_path: Path) -> None:
    names = tuple(f"{defect}.{when}.{number}" for defect in WORDS for number in range(RUNS))
    found = made(framework, tmp_path, names)
    for defect, words in WORDS.items():
        runs = [found[name].faults for name in names if name.startswith(f"{defect}.")]
        told = [any(each in " ".join(faults) for each in words) for faults in runs]
        assert any(told), (defect, runs)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
@pytest.mark.parametrize("defect", ["nothing", *(name for name in WORDS if name not in OF_ALL_RANKS)])
def test_a_late_defect_of_one_rank_is_found(framework: str, defect: str, tmp_path: Path) -> None:
    word = f"word of {defect}"
    data = {**VALUES["data"], "image_size": 12}
    values = {**VALUES, "model": "tests.planted.late", "width": 1.0, "data": data}
    values |= {"mode": "multi_process", "replicas": 2, "cores": 2}
    trees.write(tmp_path, {"spec.json": values})
    planted = {"CONVTWINS_PLANTED": defect, placement.SPOT_CHECKS_VARIABLE: word}
    words = ("run", tmp_path / "spec.json", "--out", tmp_path / "run")
    processes.twin(framework, *words, timeout=3600, **planted).succeeded()
    (tmp_path / "run" / store.NONCE_FILE).write_text(word, encoding="utf-8")
    said = " ".join(judged(results.load(tmp_path / "run" / results.RESULT_FILE), tmp_path / "run").faults)
    assert any(words in said for words in WORDS[defect]) if defect != "nothing" else not said, (defect, said)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": {"name": "adam", "learning_rate": 1e-3, "weight_decay": 1e-4}},
        {"precision": "float64"},
        {"accumulation": 2},
        {"input": "workers", "workers": 1, "global_batch_size": 8, "epochs": 3},
        {"augmentation": {"rotation_degrees": 10.0, "shear_degrees": 5.0, "zoom": 0.1, "brightness": 0.2, "shift_px": 2}},
        {"model": "mini_xception", "data": {"source": "digits", "limit": 100}, "epochs": 3},
        {"model": "resnet18", "width": 0.125, "data": {"source": "digits", "limit": 100}, "epochs": 3},
        {"mode": "data_parallel", "replicas": 2, "cores": 2},
        {"mode": "multi_process", "replicas": 2, "cores": 2},
        {"mode": "multi_process", "replicas": 2, "cores": 2, "communication": {"compression": "int8"}},
        {"mode": "multi_process", "replicas": 2, "cores": 2, "communication": {"compression": "top_k"}},
        {"optimizer": {"name": "adam"}, "schedule": {"name": "cosine", "warmup_steps": 5}},
        {"input": "dask", "workers": 1, "dask": {"order": "chunks", "chunk_images": 32}, "global_batch_size": 8, "epochs": 3},
    ],
    ids=str,
)
def test_an_honest_run_has_no_fault(framework: str, changes: dict[str, Any], tmp_path: Path) -> None:
    (found,) = made(framework, tmp_path, ("nothing",), **changes).values()
    assert not found.faults and found.computed


SYNCHRONOUS = [
    name for name in spec.MODES if spec.build(spec.with_variant({**VALUES, "cores": 2}, name, 2)).not_serial_because is None
]
SMALL = {"data": {"source": "digits", "limit": 100}, "epochs": 3, "width": 0.125}


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
@pytest.mark.parametrize(
    "changes",
    [
        *(pytest.param({**SMALL, "model": model}, id=model) for model in spec.MODELS),
        *(pytest.param(spec.with_variant({**VALUES, "cores": 2}, mode, 2), id=mode) for mode in SYNCHRONOUS),
    ],
)
def test_ten_honest_runs_have_no_fault(framework: str, changes: dict[str, Any], tmp_path: Path) -> None:
    found = made(framework, tmp_path, tuple(f"nothing.late.{number}" for number in range(10)), **changes)
    assert not [each.faults for each in found.values() if each.faults]
    assert all(each.computed for each in found.values())


def first_losses(pytorch: float, tensorflow: float) -> list[Rung]:
    """Of a serial run with these first losses, times the right one."""
    right = 3.4643948  # of both frameworks, `first_step_loss` of the run
    losses = {"pytorch": pytorch * right, "tensorflow": tensorflow * right}
    rows = [comparisons.row(name) for name in losses]
    return spot_checks.first_losses(comparisons.of_rows(rows, first_step_loss=lambda run: losses[run.framework]))


def test_a_first_loss_that_is_not_the_referees_is_blamed_on_its_framework() -> None:
    assert first_losses(1.0, 1 + 9e-6) == [], "within what a shallow network rounds"
    for wrong, losses in (("pytorch", (1 + 3e-4, 1.0)), ("tensorflow", (1.0, 1 - 3e-4))):
        found = first_losses(*losses)
        assert {each.framework: each.status for each in found} == {
            name: "failed" if name == wrong else "passed" for name in ("pytorch", "tensorflow")
        }
        assert all(each.first_tolerance and each.first_tolerance < 1e-5 for each in found)


def test_a_result_that_tells_another_loss_than_the_record_is_a_fault(tmp_path: Path) -> None:
    folder = tmp_path / "nothing"
    run_late("pytorch", tmp_path, "nothing", epochs=2)
    result = results.load(folder / results.RESULT_FILE)
    for factor in (1.001, np.nan):
        losses = [factor * loss for loss in result.step_losses]
        found = judged(comparisons.with_fields(result, step_losses=losses), folder)
        assert len(found.faults) == len(found.steps)
        for step, fault in zip(found.steps, found.faults, strict=True):
            assert f"step {step}" in fault and f"{losses[step - 1]:.7g}" in fault


def plan(**changes: Any) -> BatchPlan:
    return BatchPlan(spec.build({**VALUES, **changes}), resolve("simple_cnn", 10, 32), 250)


def test_each_part_of_a_run_and_the_short_batches_have_a_recorded_step() -> None:
    places = Counter[int]()
    for word in map(str, range(200)):
        draw, drawn = StepDraw(word, plan()), list[int]()
        for epoch in range(6):
            drawn += draw.steps([2.0 + epoch] * max(epoch, 1), max(8 * epoch, 1), 8 * (epoch + 1))
        assert drawn == sorted(set(drawn)) and len(drawn) <= 4
        assert all(set(stratum.tolist()) & set(drawn) for stratum in strata(plan()))
        places.update(drawn)
    assert set(places) == set(range(1, 48)), "no step is safe"


def test_the_losses_so_far_decide_which_steps_are_recorded() -> None:
    """So nobody knows them before."""
    drawn = {tuple(StepDraw("word", plan()).steps([loss], 1, 8)) for loss in np.linspace(2.0, 2.1, 50)}
    assert len(drawn) > 5


@pytest.mark.parametrize("size", [5, 8, 32])
def test_a_fingerprint_has_every_pixel_label_rate_and_place(size: int) -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (6, size, size, 3), np.uint8)
    labels, ids = np.arange(6), np.arange(6)

    def made_of(images: Any, labels: Any, ids: Any = ids, rates: Any = (0.1, 0.2), first: int = 0) -> str:
        return fingerprint(ids, example_hashes(images, labels), rates, first)

    clean = made_of(images, labels)
    other = images.copy()
    other[3, size - 1, size - 1, 2] ^= 1
    swapped = images[[1, 0, 2, 3, 4, 5]]
    flipped = images[:, :, ::-1]
    changes = [
        made_of(other, labels), made_of(swapped, labels), made_of(flipped, labels), made_of(images, labels[::-1]),
        made_of(images, labels, ids[::-1]), made_of(images, labels, rates=(0.1, 0.3)), made_of(images, labels, first=1),
    ]  # fmt: skip
    assert len({clean, *changes}) == 1 + len(changes)
    assert made_of(images.copy(), labels.copy()) == clean


def test_a_row_is_proved_only_if_its_own_runs_are() -> None:
    row = comparisons.row("pytorch")
    runs: Any = {f"row-{number}": {0: comparisons.good(row, 1.0)} for number in range(6)}
    runs["row-0"][1] = runs["row-4"][1] = comparisons.good(row, 1.0, 1)
    proof = dict.fromkeys(runs, IN_FLOAT64) | {"row-3": "not claimed"}
    checks = [
        SpotCheck(row="row-0", repeat=0, faults=["step 3: 2 labels are not those of the source"]),
        SpotCheck(row="row-0", repeat=1, steps=[3]),
        SpotCheck(row="row-1", repeat=0, steps=[3], shown="fewer digits"),
        SpotCheck(row="row-2", repeat=0, steps=[3]),
        SpotCheck(row="row-3", repeat=0, steps=[3]),
        SpotCheck(row="row-4", repeat=0, steps=[3]),
    ]
    assert list(spot_checks.row_verdicts(proof, runs, checks).values()) == [
        "not proved", IN_FLOAT64, "proved", "not claimed", IN_FLOAT64, IN_FLOAT64
    ], "of row 4 one run is not judged, of row 5 none"  # fmt: skip
    for lacking in ({"steps": [3], "missing": [7]}, {"has_fingerprints": True}):
        check = SpotCheck(row="row-2", repeat=0, **lacking)
        assert spot_checks.row_verdicts(proof, runs, [check])["row-2"] == "not examined"


def test_an_input_that_makes_batches_ahead_keeps_most_steps_of_an_epoch_on_the_clock() -> None:
    assert not strata(plan(input="workers", workers=2, prefetch=2))
    assert len(strata(plan(input="workers", workers=1, prefetch=1, global_batch_size=8))) == 4


def test_the_referees_own_augmentation_moves_pixels_as_the_draws_say() -> None:
    image = np.arange(4 * 4 * 3, dtype=np.uint8).reshape(1, 4, 4, 3)
    assert (augment(image, np.array([True]), None, None, None)[0, :, 0] == image[0, :, 3]).all()
    shifted = augment(image, None, np.array([[1, -2]]), None, None)[0]
    assert (shifted[0, 2] == image[0, 1, 0]).all() and not shifted[3].any() and not shifted[:, :2].any()
    half = np.array([[[1.0, 0.0, 0.5], [0.0, 1.0, 0.0]]])
    assert (augment(image, None, None, half, None)[0, 0, 0] == (image[0, 0, 0] + image[0, 1, 0].astype(int)) / 2).all()
    assert (augment(image, None, None, None, np.array([20.0])) == np.minimum(20 * image.astype(int), 255)).all()

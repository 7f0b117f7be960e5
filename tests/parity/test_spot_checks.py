"""Timed runs are judged by steps that they cannot foresee: what a twin does late is found, and blamed on that twin."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common import spec
from common.artifacts import results
from common.data.batches import Plan
from common.models.architectures import resolve
from common.training.spot_checks import Draw, example_hashes, fingerprint, strata
from compare.execution.matrix import Row
from compare.execution.store import IN_FLOAT64, SpotCheck
from compare.proof import spot_checks
from compare.proof.augmentation import augmented
from compare.proof.spot_checks import Timed

VALUES: dict[str, Any] = {
    "model": "simple_cnn",
    "width": 0.25,
    "data": {"source": "digits", "limit": 250},
    "augmentation": {"horizontal_flip": True},
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
    "flips_of_the_first_epoch": (
        "epoch 4: its ids, labels, pixels",
        "images are not those of the source, augmented as planned",
    ),
    "schedule_is_late": ("epoch 4: its ids, labels, pixels or learning rates",),
    "rate_is_larger": ("the update of ", " is not that of learning rate 0.025"),
    "gradients_are_longer": (": gradients differ from the referee's",),
    "a_bias_rests": (": the update of dense.bias is not that of learning rate 0.025",),
    "momentum_is_forgotten": (": gradients differ from the referee's",),
    "images_are_swapped_inside_the_step": (": gradients differ from the referee's",),
    "losses_are_told_smaller": (": losses differ from the referee's",),
    "right_predictions_are_told_more": (": scores differ from the referee's",),
}
"""Defect of `tests.planted.late`: what the faults of its run say."""
QUICK = ("nothing", "images_of_the_batch_before", "rate_is_larger", "a_bias_rests", "gradients_are_longer")


def made(framework: str, tmp_path: Path, names: tuple[str, ...], **changes: Any) -> dict[str, SpotCheck]:
    """What is found in a run with each defect."""
    tmp_path.mkdir(exist_ok=True)
    file = tmp_path / "spec.json"
    file.write_text(json.dumps({**VALUES, **changes}), encoding="utf-8")
    command = [sys.executable, "-m", "tests.planted.late", framework, str(tmp_path), str(file), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, SpotCheck] = {}
    for name in names:
        result = results.load(tmp_path / name / results.RESULT_FILE)
        row = Row(id=f"{framework}-serial", contestant=framework, spec=result.spec)
        (found[name],) = spot_checks.judge([Timed(row, 0, result, tmp_path / name)], lambda said: None)
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
        faults = " ".join(found[name].faults)
        assert bool(faults) == bool(SEEN[name]), (name, faults)
        assert all(words in faults for words in SEEN[name]), (name, faults)
    clean = found["nothing"]
    assert clean.epochs == 6 and clean.computed == clean.steps and not clean.shown


def test_a_record_that_is_torn_or_of_other_arrays_is_a_fault_and_stops_nothing(tmp_path: Path) -> None:
    made_by: Any = made("pytorch", tmp_path, ("nothing_recorded",), epochs=1)
    assert not made_by["nothing_recorded"].steps
    result = results.load(tmp_path / "nothing_recorded" / results.RESULT_FILE)
    result = result.model_copy(update={"spot_checks": [3]})
    row = Row(id="pytorch-serial", contestant="pytorch", spec=result.spec)
    for content in (b"", b"torn", (8).to_bytes(8, "little") + b"{}      "):
        for name in ("spot_check_2_before.safetensors", "spot_check_2_after.safetensors"):
            (tmp_path / name).write_bytes(content)
        (found,) = spot_checks.judge([Timed(row, 0, result, tmp_path)], lambda said: None)
        assert any("step 3: its record cannot be judged" in fault for fault in found.faults)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_a_defect_of_every_second_late_step_is_found_in_a_few_runs(framework: str, tmp_path: Path) -> None:
    """A run of which one late step is recorded misses it every second time."""
    runs = [made(framework, tmp_path / str(seed), ("updates_are_left_out",), seed=seed) for seed in range(6)]
    faults = [each["updates_are_left_out"].faults for each in runs]
    assert any(faults)


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


def plan(**changes: Any) -> Plan:
    return Plan(spec.build({**VALUES, **changes}), resolve("simple_cnn", 10, 32), 250)


def test_each_part_of_a_run_and_the_short_batches_have_a_recorded_step() -> None:
    places = Counter[int]()
    for word in map(str, range(200)):
        draw, drawn = Draw(word, plan()), list[int]()
        for epoch in range(6):
            drawn += draw.steps([2.0 + epoch] * max(epoch, 1), max(8 * epoch, 1), 8 * (epoch + 1))
        assert drawn == sorted(set(drawn)) and len(drawn) <= 4
        assert all(set(stratum.tolist()) & set(drawn) for stratum in strata(plan()))
        places.update(drawn)
    assert set(places) == set(range(1, 48)), "no step is safe"


def test_the_losses_so_far_decide_which_steps_are_recorded() -> None:
    """So nobody knows them before."""
    drawn = {tuple(Draw("word", plan()).steps([loss], 1, 8)) for loss in np.linspace(2.0, 2.1, 50)}
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
    rows = [Row(id=f"row-{number}", contestant="pytorch", spec=spec.build(VALUES)) for number in range(4)]
    proof = {"row-0": "proved", "row-1": "proved", "row-2": "proved", "row-3": "not claimed"}
    checks = [
        SpotCheck(row="row-0", repeat=0, faults=["step 3: 2 labels are not those of the source"]),
        SpotCheck(row="row-0", repeat=1, steps=[3]),
        SpotCheck(row="row-1", repeat=0, steps=[3], shown="fewer digits"),
        SpotCheck(row="row-3", repeat=0, steps=[3]),
    ]
    assert list(spot_checks.row_verdicts(proof, rows, checks).values()) == ["not proved", IN_FLOAT64, "proved", "not claimed"]
    for lacking in ({"steps": [3], "missing": [7]}, {"has_fingerprints": True}):
        check = SpotCheck(row="row-2", repeat=0, **lacking)
        assert spot_checks.row_verdicts(proof, rows, [check])["row-2"] == "not examined"


def test_an_input_that_makes_batches_ahead_keeps_most_steps_of_an_epoch_on_the_clock() -> None:
    assert not strata(plan(input="workers", workers=2, prefetch=2))
    assert len(strata(plan(input="workers", workers=1, prefetch=1, global_batch_size=8))) == 4


def test_the_referees_own_augmentation_moves_pixels_as_the_draws_say() -> None:
    image = np.arange(4 * 4 * 3, dtype=np.uint8).reshape(1, 4, 4, 3)
    assert (augmented(image, np.array([True]), None, None, None)[0, :, 0] == image[0, :, 3]).all()
    shifted = augmented(image, None, np.array([[1, -2]]), None, None)[0]
    assert (shifted[0, 2] == image[0, 1, 0]).all() and not shifted[3].any() and not shifted[:, :2].any()
    half = np.array([[[1.0, 0.0, 0.5], [0.0, 1.0, 0.0]]])
    assert (augmented(image, None, None, half, None)[0, 0, 0] == (image[0, 0, 0] + image[0, 1, 0].astype(int)) / 2).all()
    assert (augmented(image, None, None, None, np.array([20.0])) == np.minimum(20 * image.astype(int), 255)).all()

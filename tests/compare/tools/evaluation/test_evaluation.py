"""Final training and evaluation of twins that really learn, in processes of their own; what is said, of cases made by hand."""

import argparse
import io
import json
import re
import shutil
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from common import spec
from common.artifacts import atomic_files, results, trained
from common.models import weights
from common.models.weights import WeightsError
from common.spec import SpecError
from common.training import inference, scores
from common.training.inference import BatchTimes
from common.training.scores import Agreement
from compare.cli.errors import FolderError
from compare.cli.progress import display
from compare.results import store
from compare.running import launch
from compare.running.launch import Call, StartedProcess
from compare.tools.evaluation import (
    convert,
    evaluation_report,
    evaluation_tables,
    final_training,
    inference_timing,
    predict,
    scoring,
)
from compare.tools.evaluation.final_training import EvaluationSettings
from compare.tools.evaluation.inference_timing import InferenceRecord
from compare.tools.evaluation.scoring import Crossing, EvaluationRecord, ModelPair, ScoredModel
from compare.tools.tuning import tuner
from compare.tools.tuning.records import BestTrial, TunedTrial, Tuning, TuningPlan, TuningRecord
from tests import hostile_files
from tests.compare.twins import learner, linear
from tests.support import trees
from tests.support.command_line import convtwins, convtwins_json
from tests.support.comparisons import with_fields
from tests.support.refusals import check_ended, refused
from tests.support.snapshots import Screens

MODEL = "tests.compare.twins.linear"
SETTINGS = (
    "--frameworks", "left,right", "--model", MODEL, "--limit", "256", "--cores", "1", "--image-size", "8", "--batch-size", "32",
    "--optimizer", "sgd", "--set", "optimizer.momentum=0",
)  # fmt: skip


@pytest.fixture
def learners(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    found = {side: f"tests.compare.twins.learner_{side}" for side in ("left", "right")}
    monkeypatch.setattr(launch, "FRAMEWORKS", found)
    return monkeypatch


@pytest.fixture
def in_process(learners: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What is asked of a trained model is answered here and now, for a process takes seconds to start; what was asked."""
    parser = argparse.ArgumentParser()
    inference.add_commands(parser.add_subparsers(dest="command"))
    asked: list[tuple[str, ...]] = []

    def calling(call: Call) -> Generator[StartedProcess, None, int]:
        framework, words, log = call.contestant.name, call.arguments, call.log
        yield from ()
        asked.append((framework, *words))
        arguments = parser.parse_args(words)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        try:
            inference.run(learner.inference(framework), arguments, "cpu", {"numpy": "2"}, arguments.cores, warm_up_seconds=0.0)
        except WeightsError as error:
            log.write_text(f"{error}\n")
            return 2
        return 0

    learners.setattr(launch, "calling", calling)
    return asked


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    network = linear.architecture(3, 8)
    card = trained.Card(
        framework="left", versions={}, model=MODEL, class_names=("cat", "dog", "=fox"), image_size=8, pixel_mean=(0, 0, 0),
        pixel_std=(1, 1, 1), precision="float64", spec_hash="", data_hash="", seed=0, epoch=1, validation=None,
    )  # fmt: skip
    trained.save(card, weights.initial(network, 3), path)
    return path


@pytest.mark.usefixtures("in_process")
def test_an_evaluation_trains_scores_and_writes_everything_and_does_nothing_twice(
    tmp_path: Path, deliveries: list[str], snapshot: SnapshotAssertion
) -> None:
    out, tuned = tmp_path / "out", tmp_path / "tuned.yaml"
    tuned.write_text("right: {optimizer.learning_rate: 0.2}\nleft: {optimizer.learning_rate: 0.1}\n")
    words = ("evaluate", *SETTINGS, "--epochs", 60, "--patience", 3, "--tuned", tuned, "--out", out)
    printed = convtwins_json(*words)
    assert deliveries == ["locked"]
    made = final_training.read(out)
    assert [model.contestant for model in made.models] == ["left", "right"]
    for model in made.models:
        assert model.scores is not None and model.checkpoint is not None
        assert model.epochs < 60 and model.best_epoch == model.epochs - 3
        assert model.scores.accuracy > 0.5
        assert [each.labelled_differently for each in model.crossings] == [0]
        assert trained.load(out / model.checkpoint, MODEL).card.epoch == model.best_epoch
    assert made.specs["right"]["optimizer.learning_rate"] == 0.2
    assert [made.specs["left"][field] for field in ("global_batch_size", "data.image_size")] == [32, 8]
    assert [each for each in printed["sentences"] if "learning_rate" in each] == snapshot
    names = {"evaluation", "classes", "agreement", "crossings", "confused", "calibration"}
    names |= {f"{kind}_{side}" for kind in ("confusion", "confusion_normalised") for side in ("left", "right")}
    drawn = {f"{name}.{end}" for name in ("confusion", "calibration", "f1_by_class") for end in ("png", "svg")}
    assert trees.read(out / "tables").keys() == {f"{name}.{end}" for name in names for end in ("md", "csv", "tex")}
    assert trees.read(out / "plots").keys() == drawn | {"confused_left.png", "confused_right.png"}
    shown = (out / "evaluation.md").read_text()
    assert all(f"({path})" in shown for path in ("plots/confusion.png", "plots/confused_left.png"))
    assert "Wilson&#39;s interval" in (out / "evaluation.html").read_text("utf-8")
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    assert convtwins_json(*words) == printed
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")} == stamps
    check_ended(convtwins(*words, "--seed", 5), names=[out, "seed"])
    (out / "evaluation.html").unlink()
    (out / "evaluation.html").mkdir()  # so that the report cannot be written
    unwritten = convtwins(*words, "--json")
    assert unwritten.exit_code == 1 and "evaluation.html" in unwritten.stderr and json.loads(unwritten.stdout)


@pytest.mark.drawn
def test_the_plots_of_an_evaluation_are_drawn(tmp_path: Path) -> None:
    assert evaluation_report.report(evaluated((2, 1, 1.0)), np.zeros((4, 8, 8, 3), np.uint8)).write(tmp_path) is None
    drawn = trees.read(tmp_path / "plots")
    for name in ("confusion", "calibration", "f1_by_class"):
        assert drawn[f"{name}.png"].startswith(b"\x89PNG") and b"<svg" in drawn[f"{name}.svg"]


@pytest.mark.usefixtures("in_process")
def test_a_model_of_another_run_in_the_place_of_ones_own_is_refused_and_the_run_can_be_made_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("evaluate", *SETTINGS, "--epochs", "2", "--out", out)
    first = convtwins_json(*words)
    left, right = (
        out / scoring.TRAINING_FOLDER / "runs" / f"{side}-serial-r0" / results.BEST_FILE for side in ("left", "right")
    )
    own = left.read_bytes()
    for content, name in ((right.read_bytes(), "framework"), (own[:1000], left.name), (None, "best.safetensors")):
        left.unlink()
        if content is not None:
            left.write_bytes(content)
        check_ended(convtwins(*words), names=[name, left.parent])
        left.write_bytes(own)
    card, _, values = trained.load(left, MODEL)
    others: list[tuple[dict[str, Any], str]] = [
        ({"framework": "right"}, "framework"),
        ({"spec_hash": ""}, "spec"),
        ({"data_hash": ""}, "data"),
        ({"epoch": 7}, "epoch"),
        ({"validation": None}, "validation scores"),
        ({"model": "evil.module", "seed": 9, "spec_hash": ""}, "spec"),  # nobody is told to trust that module
    ]
    for fields, name in others:
        trained.save(with_fields(card, **fields), values, left)
        assert f": {name}. Remove" in convtwins(*words).stderr, fields
    shutil.rmtree(left.parent)
    assert convtwins_json(*words)["sentences"] == first["sentences"]


@pytest.mark.slow
def test_the_validation_split_is_scored_by_class_where_that_is_asked_for(
    in_process: list[tuple[str, ...]], tmp_path: Path
) -> None:
    fields = {"model": MODEL, "cores": 1, "epochs": 3, "data.limit": 256, "data.image_size": 8, "optimizer.momentum": 0}
    settings = EvaluationSettings(values=spec.overlay({}, fields), frameworks=("left",), scores_validation=True)
    with ExitStack() as lock, display(Console(file=io.StringIO())) as shown:
        made = final_training.evaluate(settings, tmp_path / "out", shown, lock)
    assert made.models == final_training.read(tmp_path / "out").models
    validation = final_training.data_of(made).validation
    for model in made.models:
        assert model.validation_scores is not None and model.validation is not None and model.scores is not None
        assert model.validation_scores.accuracy == pytest.approx(model.validation.accuracy)
        assert model.validation_scores.loss == pytest.approx(model.validation.loss)
        supports = [each.support for each in model.validation_scores.classes]
        assert supports == np.bincount(validation.labels, minlength=len(made.class_names)).tolist()
    scored = [(words[0], words[words.index("--split") + 1]) for words in in_process if words[1] == "score"]
    assert sorted(scored) == [("left", "test"), ("left", "validation")]


@pytest.mark.slow
def test_a_training_that_fails_is_named_and_the_others_are_scored(
    learners: pytest.MonkeyPatch, in_process: list[tuple[str, ...]], tmp_path: Path
) -> None:
    learners.setitem(launch.FRAMEWORKS, "right", "tests.compare.twins.right")
    learners.setenv("FAKE_TWIN_BEHAVIOUR", json.dumps({"right-serial-1": "crash"}))
    done = convtwins("evaluate", *SETTINGS, "--epochs", "2", "--out", tmp_path / "out")
    made = final_training.read(tmp_path / "out")
    assert done.exit_code == 1 and [model.status for model in made.models] == ["ok", "failed"] and made.pairs == []
    assert str(made.models[1].reason) in done.stdout.replace("\n", " ")


def test_settings_that_would_score_other_images_are_refused() -> None:
    with refused(SpecError, field="data"):
        final_training.rows(EvaluationSettings(values={}, tuned={"pytorch": {"data.limit": 5}}))
    with refused(SpecError, names=["tensorflow"]):
        final_training.rows(EvaluationSettings(values={}, frameworks=("pytorch",), tuned={"tensorflow": {"seed": 1}}))
    rows = final_training.rows(EvaluationSettings(values={"seed": 4}, repeats=2))
    assert all(row.spec.best_epoch.keep and row.spec.data.seed == 4 for row in rows)


def test_a_final_training_is_as_long_as_it_says_itself() -> None:
    tuned = {"pytorch": {"epochs": 2, "optimizer.momentum": 0.5}, "tensorflow": {"steps": 7}}
    first, second = final_training.rows(
        EvaluationSettings(values={"epochs": 30}, frameworks=("pytorch", "tensorflow"), tuned=tuned)
    )
    assert (first.spec.epochs, first.spec.optimizer.momentum) == (30, 0.5)
    assert (second.spec.epochs, second.spec.steps) == (30, None)


def test_tuned_fields_come_from_a_folder_or_a_file(tmp_path: Path) -> None:
    both = ("pytorch", "tensorflow")
    trial = TunedTrial(slot=0, number=0, fields={}, state="ok", value=0.5, began_seconds=0.0, ended_seconds=1.0)
    plan = TuningPlan(
        created_at="", token="", settings=Tuning(), budget=1, data_name="digits", data_hash="abc", train_examples=1,
        validation_examples=1, code_hash="", versions={}, machine={},
    )  # fmt: skip
    best = {name: BestTrial(study="", trial=trial, fields={"seed": number}) for number, name in enumerate(both)}
    record = atomic_files.with_checksum(TuningRecord(plan=plan, searches=[], best_trials=best).model_dump_json())
    (tmp_path / tuner.RECORD_FILE).write_text(record)
    assert final_training.read_tuned(tmp_path, both) == ({"pytorch": {"seed": 0}, "tensorflow": {"seed": 1}}, "abc")
    assert final_training.read_tuned(tmp_path / final_training.TUNED_FILE, both[:1]) == ({"pytorch": {"seed": 0}}, "abc")
    (tmp_path / tuner.RECORD_FILE).write_text(record.replace("digits", "dogs"))
    with refused(FolderError, names=[tuner.RECORD_FILE, "not as this suite wrote it"]):
        final_training.read_tuned(tmp_path, both)
    alike = tmp_path / "alike.yaml"
    alike.write_text("optimizer.momentum: 0.5\n")
    assert final_training.read_tuned(alike, both) == ({name: {"optimizer.momentum": 0.5} for name in both}, None)
    alike.write_text("pytorch: {seed: 1}\n")
    with refused(SpecError, names=["alike.yaml", "tensorflow"]):
        final_training.read_tuned(alike, both)
    with refused(SpecError, names=["missing"]):
        final_training.read_tuned(tmp_path / "missing", both)


def evaluated(*pairs: tuple[int, int, float | None], crossing: Crossing | None = None) -> EvaluationRecord:
    """Two frameworks, a seed for each pair: (first alone right, second alone right, Holm's p)."""
    labels = np.array([0, 0, 1, 1])
    found = scores.score(labels, np.array([[3.0, 0], [0, 3], [0, 3], [0, 3]]))
    names = ("left", "right")
    models = [
        ScoredModel(
            contestant=name, repeat=repeat, seed=repeat, status="ok", epochs=5, best_epoch=3, scores=found,
            crossings=[crossing] if crossing else [],
        )
        for name in names
        for repeat in range(len(pairs))
    ]  # fmt: skip
    return EvaluationRecord(
        data_name="pets", data_hash="", data_notes=[], class_names=["cat", "dog"], num_examples=4,
        specs={name: store.flatten(spec.build({}).model_dump(mode="json")) for name in names},
        machine={}, versions={}, models=models,
        pairs=[
            ModelPair(
                first="left", second="right", repeat=repeat, seed=repeat, adjusted_p=p,
                agreement=Agreement(
                    num_examples=4, labelled_differently=first + second, first_alone_right=first,
                    second_alone_right=second, p=p, largest_difference=0.5,
                ),
            )
            for repeat, (first, second, p) in enumerate(pairs)
        ],
    )  # fmt: skip


def findings(made: EvaluationRecord, *titles: str) -> dict[str, list[str]]:
    """What a report says, below some titles or all."""
    return {title: said for title, said in evaluation_report.findings(made) if title in titles or not titles}


def test_no_more_is_said_of_agreement_than_the_test_allows(snapshot: SnapshotAssertion) -> None:
    title = "Do the frameworks' models agree?"
    assert {
        "no seed decides": findings(evaluated((2, 1, 1.0)), title)[title],
        "the second of three seeds does": findings(evaluated((2, 1, 0.06), (0, 4, 0.0004), (0, 0, None)), title)[title],
    } == snapshot


@pytest.mark.parametrize(("moved", "difference"), [(0, 1e-7), (2, 0.2)])
def test_whether_a_checkpoint_carries_over_is_said(moved: int, difference: float, snapshot: SnapshotAssertion) -> None:
    crossing = Crossing(contestant="x", labelled_differently=moved, largest_difference=difference)
    assert findings(evaluated((0, 0, None), crossing=crossing), "Does a checkpoint carry over?") == snapshot


def test_an_accuracy_stands_with_its_interval(snapshot: SnapshotAssertion) -> None:
    made = findings(evaluated((0, 0, None)))
    # Wilson 1927, of 3 of 4 at 95 %.
    assert all("3 of 4" in said and "0.3006 to 0.9544" in said for said in made["How often are the final models right?"])
    assert made == snapshot
    several = evaluation_tables.scores_table(evaluated((0, 0, None), (0, 0, None)))
    assert [row["n"] for row in several.rows] == [2, 2]


def test_what_makes_scores_flatter_or_mean_little_is_a_caution(snapshot: SnapshotAssertion) -> None:
    made = evaluated((0, 0, None))
    specs = {name: {**fields, "schedule.name": "step", "schedule.step_size": 1} for name, fields in made.specs.items()}
    unseen = scores.score(np.array([0, 0]), np.array([[1.0, 0], [0, 1]]))
    models = [with_fields(model, scores=unseen) for model in made.models]
    assert findings(with_fields(made, tuned_on="other", specs=specs, models=models), "Cautions") == snapshot


def picture(path: Path, size: int = 9) -> Path:
    pixels = np.random.default_rng(size).integers(0, 256, (size, size, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def test_predict_says_every_probability_and_both_frameworks_say_the_same(
    in_process: list[tuple[str, ...]], checkpoint: Path, tmp_path: Path
) -> None:
    images = [picture(tmp_path / "a.png"), picture(tmp_path / "b.png", 12)]
    own = ("--model", MODEL)
    said = convtwins_json("predict", checkpoint, *images, *own)
    assert said["framework"] == "left" and [each["path"] for each in said["images"]] == list(map(str, images))
    for each in said["images"]:
        assert sum(each["probabilities"].values()) == pytest.approx(1.0)
        assert each["probability"] == max(each["probabilities"].values()) == each["probabilities"][each["label"]]
    assert convtwins_json("predict", checkpoint, *images, *own, "--frameworks", "right") == {**said, "framework": "right"}
    table = convtwins("predict", checkpoint, *images, *own, "--top", "2").stdout
    assert re.search(r"b\.png +\S+ +0\.\d{4} +\S+ 0\.\d{4}", table)


def test_a_model_that_makes_no_finite_logits_is_refused(
    in_process: list[tuple[str, ...]], checkpoint: Path, tmp_path: Path
) -> None:
    found = trained.load(checkpoint, MODEL)
    trained.save(found.card, {name: values * np.nan for name, values in found.weights.items()}, checkpoint)
    ended = convtwins("predict", checkpoint, picture(tmp_path / "a.png"), "--model", MODEL, "--json")
    check_ended(ended, names=["model.safetensors", "finite"])


@pytest.mark.usefixtures("in_process")
def test_what_is_no_image_is_refused_by_name(checkpoint: Path, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    good, text, torn, wide, large = (tmp_path / name for name in ("good.png", "text.png", "torn.png", "wide.png", "large.bmp"))
    picture(good, 40)
    text.write_text("no image")
    torn.write_bytes(good.read_bytes()[:900])
    Image.new("L", (10_000, 5_001)).save(wide)
    with large.open("wb") as file:
        file.truncate(predict.MAX_BYTES + 1)
    images = (good, text, torn, wide, large, tmp_path, tmp_path / "gone.png")
    ended = convtwins("predict", checkpoint, *images, "--model", MODEL)
    check_ended(ended, exit_code=4, names=[6, *images[1:], "256 MiB"])
    shown = re.sub(r"damaged \(.*\)", "damaged (REASON)", ended.stderr.replace(str(tmp_path), "FOLDER"))  # the decoder's own
    assert good.name not in shown and shown == snapshot
    check_ended(convtwins("predict", text, good), names=[text, "not a whole trained model"])
    check_ended(convtwins("predict", checkpoint, good), names=["--model", MODEL])


def test_a_model_goes_through_both_frameworks_files_and_comes_back(
    in_process: list[tuple[str, ...]], checkpoint: Path, tmp_path: Path
) -> None:
    left, right, back = tmp_path / "m.left", tmp_path / "m.right", tmp_path / "back.safetensors"
    for source, target in ((checkpoint, left), (left, right), (right, back)):
        convtwins("convert", source, target, "--model", MODEL).succeeded()
    before, after = (trained.load(path, MODEL) for path in (checkpoint, back))
    assert before.card == after.card
    assert all((before.weights[name] == after.weights[name]).all() for name in before.weights)
    (tmp_path / f"m.left{convert.CARD_SUFFIX}").unlink()
    again = tmp_path / "again.safetensors"
    check_ended(convtwins("convert", left, again, "--model", MODEL), fix="--like")
    assert not again.exists()
    convtwins("convert", left, again, "--model", MODEL, "--like", checkpoint).succeeded()


def test_conversions_without_sense_are_refused(in_process: list[tuple[str, ...]], checkpoint: Path, tmp_path: Path) -> None:
    own = ("--model", MODEL)
    there = tmp_path / "there.left"
    there.write_text("something")
    garbage = tmp_path / "garbage.left"
    garbage.write_text("no weights")
    (tmp_path / f"garbage.left{convert.CARD_SUFFIX}").write_text(trained.load(checkpoint, MODEL).card.model_dump_json())
    for source, target, names in (
        (checkpoint, tmp_path / "copy.safetensors", [checkpoint, tmp_path / "copy.safetensors", "Copy the file"]),
        (checkpoint, tmp_path / "m.onnx", ["m.onnx", ".safetensors", ".left", ".right"]),
        (checkpoint, there, [there, "is there already"]),
        (garbage, tmp_path / "m.safetensors", ["garbage.left", "no weights"]),
        (tmp_path / "missing.left", tmp_path / "m.safetensors", ["missing.left", "not there"]),
    ):
        check_ended(convtwins("convert", source, target, *own), names=names)
    assert there.read_text() == "something" and not (tmp_path / "m.safetensors").exists()


def test_a_conversion_to_a_full_disk_is_refused_before_a_framework_is_asked(
    in_process: list[tuple[str, ...]], checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No test fills a disk.
    monkeypatch.setattr(convert.shutil, "disk_usage", lambda path: SimpleNamespace(free=1))
    check_ended(convtwins("convert", checkpoint, tmp_path / "m.left", "--model", MODEL), names=["m.left", 1])
    assert not in_process and not (tmp_path / "m.left").exists()


def test_infer_times_both_frameworks_in_turns_and_goes_on(
    in_process: list[tuple[str, ...]], checkpoint: Path, tmp_path: Path, deliveries: list[str]
) -> None:
    out = tmp_path / "out"
    sides = ("--frameworks", "left,right", "--model", MODEL)
    asked = ("infer", checkpoint, *sides, "--batches", "1,3", "--cores", "1", "--out", out)
    wanted = ("--calls", "100", "--seconds", "60", "--repeats", "2")
    convtwins(*asked, *wanted).succeeded()
    assert [framework for framework, *_ in in_process] == ["left", "right", "right", "left"]
    assert deliveries == ["locked"]
    said = convtwins_json(*asked, *wanted)
    assert len(in_process) == 4  # nothing was timed again
    assert [(row["contestant"], row["batch_size"], row["calls"]) for row in said["rows"]] == [
        (side, size, 200) for side in ("left", "right") for size in (1, 3)
    ]
    for row in said["rows"]:
        assert 0 < row["p50_seconds"]["median"] <= row["p99_seconds"] * 1.5
    stored = store.read_record(out / inference_timing.RECORD_FILE, InferenceRecord, "times")
    assert [judged.verdict for judged in stored.verdicts] == ["too few repeats to tell"] * 2
    assert "decoding files is not in it" in said["tables"][0]["note"]
    assert {path.name for path in (out / "tables").iterdir()} == {f"inference.{end}" for end in ("md", "csv", "tex")}
    assert all((out / name).exists() for name in ("plots/inference.png", "inference.md", "inference.html"))
    (out / "inference.json").unlink()  # as where it was cut short
    next((out / "runs").glob("left-1-r1.json")).unlink()
    assert convtwins(*asked, *wanted).exit_code == 0 and len(in_process) == 5
    check_ended(convtwins(*asked, "--calls", 50, "--repeats", 2), names=["calls", 100, 50, "seconds", 60.0])
    half = out / "runs" / "left-1-r1.json"
    torn = json.loads(half.read_text())
    torn["batches"] = torn["batches"][:1]
    half.write_text(json.dumps(torn))
    assert convtwins(*asked, *wanted).exit_code == 0 and len(in_process) == 6  # what came no further is timed again
    elsewhere = out / "runs" / "left-1-r1.json"
    elsewhere.write_text(elsewhere.read_text().replace('"numpy": "2"', '"numpy": "1"'))
    check_ended(convtwins(*asked, *wanted), names=["left", "numpy"])


def batch_times(*turns: list[float]) -> BatchTimes:
    seconds = [second for turn in turns for second in turn]
    return BatchTimes(batch_size=1, first_seconds=1.0, warm_up_calls=5, seconds=seconds, turns=list(map(len, turns)))


def test_the_ratio_of_two_processes_is_that_of_turns_with_calls_of_both() -> None:
    """A burst of other work, which the p50 of all calls would show, meets one turn of one process."""
    fast = batch_times(*[[1.0, 1.0, 9.0]] * 6)
    slow = batch_times(*[[2.0, 2.0]] * 4, [50.0] * 20, [])
    ratio, seconds = inference_timing._seconds_of_pair(slow, fast)
    assert (ratio, seconds) == (pytest.approx(2.0), 1.0)
    few = batch_times(*[[2.0, 2.0]] * 3, [], [], [])
    assert inference_timing._seconds_of_pair(few, fast) == (2.0, 1.0), "too few: the p50 of both"
    without = BatchTimes(batch_size=1, first_seconds=1.0, warm_up_calls=5, seconds=[3.0] * 5)
    assert inference_timing._seconds_of_pair(without, fast) == (3.0, 1.0)


@pytest.mark.parametrize("name", hostile_files.IN_PLACE)
def test_a_pipe_or_an_endless_file_is_no_card_and_no_image(
    name: str, in_process: list[tuple[str, ...]], checkpoint: Path, tmp_path: Path
) -> None:
    weights, image = tmp_path / "m.left", tmp_path / "image.png"
    weights.write_text("weights")
    card = tmp_path / f"m.left{convert.CARD_SUFFIX}"
    said = hostile_files.put(name, card)
    hostile_files.put(name, image)
    with hostile_files.soon():
        converted = convtwins("convert", weights, tmp_path / "m.safetensors", "--model", MODEL)
        check_ended(converted, names=[card, "--like"])
        assert said in converted.stderr
        predicted = convtwins("predict", checkpoint, image, "--model", MODEL)
        assert predicted.exit_code == 4 and f"{image}: " in predicted.stderr
        assert ("a folder" if name == "folder" else said) in predicted.stderr


def test_the_first_screen_says_how_often_the_models_are_right_and_a_checkpoint_that_does_not_carry_over(
    screens: Screens,
) -> None:
    images = np.zeros((4, 8, 8, 3), np.uint8)
    for moved in (0, 3):
        crossing = Crossing(contestant="right", labelled_differently=moved, largest_difference=0.2 * bool(moved))
        report = evaluation_report.report(evaluated((2, 1, 1.0), crossing=crossing), images)
        shown = screens(report)
        assert ("Trouble" in shown) == bool(moved)

"""Final training and evaluation of twins that really learn, in processes of their own; what is said, of cases made by hand."""

import argparse
import io
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from common import spec
from common.artifacts import atomic_files, results, trained
from common.models import weights
from common.models.weights import WeightsError
from common.spec import SpecError
from common.training import inference, scores
from common.training.scores import Agreement
from compare.core.errors import FolderError
from compare.core.progress import display
from compare.evaluation import convert, evaluation_report, evaluation_tables, final_training, inference_timing, predict, scoring
from compare.evaluation.final_training import EvaluationSettings
from compare.evaluation.scoring import Crossing, EvaluationRecord, ModelPair, ScoredModel
from compare.execution import launch, store
from compare.reporting import plots
from compare.reporting.document import Report
from compare.tuning import tuner
from compare.tuning.records import BestTrial, TunedTrial, Tuning, TuningPlan, TuningRecord
from tests import hostile_files
from tests.compare.conftest import write_empty
from tests.compare.twins import learner, linear
from tests.support.command_line import convtwins
from tests.support.snapshots import Screens

MODEL = "tests.compare.twins.linear"
SETTINGS = (
    "--frameworks", "left,right", "--model", MODEL, "--limit", "256", "--cores", "1", "--image-size", "8", "--batch-size", "32",
    "--optimizer", "sgd", "--set", "optimizer.momentum=0",
)  # fmt: skip


@pytest.fixture
def learners(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    found = {side: f"tests.compare.twins.learner_{side}" for side in ("left", "right")}
    monkeypatch.setattr(launch, "FRAMEWORKS", found)
    launch.DESCRIPTIONS.clear()
    yield monkeypatch
    launch.DESCRIPTIONS.clear()


@pytest.fixture
def in_process(learners: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What is asked of a trained model is answered here and now, for a process takes seconds to start; what was asked."""
    parser = argparse.ArgumentParser()
    inference.add_commands(parser.add_subparsers(dest="command"))
    asked: list[tuple[str, ...]] = []

    def call(framework: str, words: Sequence[str], *, log: Path) -> int:
        asked.append((framework, *words))
        arguments = parser.parse_args(words)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        try:
            inference.run(learner.inference(framework), arguments, "cpu", {"numpy": "2"}, arguments.cores)
        except WeightsError as error:
            log.write_text(f"{error}\n")
            return 2
        return 0

    @cache
    def describe(framework: str) -> dict[str, Any]:
        return {**learner.describe(framework), "formats": learner.inference(framework).suffixes}

    learners.setattr(inference, "WARM_UP_SECONDS", 0.0)
    learners.setattr(launch, "call", call)
    learners.setattr(launch, "describe", describe)
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


@pytest.mark.drawn
def test_an_evaluation_trains_scores_and_writes_everything_and_does_nothing_twice(
    in_process: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deliveries: list[str]
) -> None:
    out, tuned = tmp_path / "out", tmp_path / "tuned.yaml"
    tuned.write_text("right: {optimizer.learning_rate: 0.2}\nleft: {optimizer.learning_rate: 0.1}\n")
    words = ("evaluate", *SETTINGS, "--epochs", "60", "--patience", "3", "--tuned", tuned, "--out", out, "--json")
    done = convtwins(*words)
    assert done.exit_code == 0, done.output
    assert deliveries == ["locked"]
    said = json.loads(done.stdout)
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
    assert any("optimizer.learning_rate differ" in sentence for sentence in said["sentences"])
    names = {"evaluation", "classes", "agreement", "crossings", "confused", "calibration"}
    names |= {f"{kind}_{side}" for kind in ("confusion", "confusion_normalised") for side in ("left", "right")}
    assert {path.name for path in (out / "tables").iterdir()} == {
        f"{name}.{end}" for name in names for end in ("md", "csv", "tex")
    }
    drawn = {f"{name}.{end}" for name in ("confusion", "calibration", "f1_by_class") for end in ("png", "svg")}
    assert {path.name for path in (out / "plots").iterdir()} == drawn | {"confused_left.png", "confused_right.png"}
    assert all(
        f"({path})" in (out / "evaluation.md").read_text() for path in ("plots/confusion.png", "plots/confused_left.png")
    )
    assert "Wilson&#39;s interval" in (out / "evaluation.html").read_text("utf-8")
    monkeypatch.setattr(plots, "write_all", write_empty)  # drawn once is enough
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    again = convtwins(*words)
    assert again.exit_code == 0 and json.loads(again.stdout) == said
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")} == stamps
    other = convtwins(*words, "--seed", "5")
    assert other.exit_code == 2 and "holds the results of another comparison" in other.stderr
    monkeypatch.setattr(Report, "write", lambda *_: "No space left. Free some.")
    full = convtwins(*words)
    assert full.exit_code == 1 and full.stderr.endswith("No space left. Free some.\n")


@pytest.mark.usefixtures("in_process")
def test_a_model_of_another_run_in_the_place_of_ones_own_is_refused_and_the_run_can_be_made_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("evaluate", *SETTINGS, "--epochs", "2", "--out", out, "--json")
    first = convtwins(*words)
    assert first.exit_code == 0, first.output
    left, right = (
        out / scoring.TRAINING_FOLDER / "runs" / f"{side}-serial-r0" / results.BEST_FILE for side in ("left", "right")
    )
    own = left.read_bytes()
    for content, said in (
        (right.read_bytes(), "is not the model of this run. Other than in the result: framework. Remove"),
        (own[:1000], "is not a whole trained model"),
        (None, "there is no file best.safetensors."),
    ):
        left.unlink()
        if content is not None:
            left.write_bytes(content)
        done = convtwins(*words)
        assert done.exit_code == 2 and said in done.stderr, done.output
        assert done.stderr.endswith(f"Remove the folder {left.parent}. The same command then makes this run again.\n")
        left.write_bytes(own)
    card, _, values = trained.load(left, MODEL)
    other: list[tuple[dict[str, Any], str]] = [
        ({"framework": "right"}, "framework"),
        ({"spec_hash": ""}, "spec"),
        ({"data_hash": ""}, "data"),
        ({"epoch": 7}, "epoch"),
        ({"validation": None}, "validation scores"),
        ({"model": "evil.module", "seed": 9, "spec_hash": ""}, "spec"),  # nobody is told to trust that module
    ]
    for fields, said in other:
        trained.save(card.model_copy(update=fields), values, left)
        assert f"Other than in the result: {said}. Remove" in convtwins(*words).stderr, fields
    shutil.rmtree(left.parent)
    again = convtwins(*words)
    assert again.exit_code == 0 and json.loads(again.stdout)["sentences"] == json.loads(first.stdout)["sentences"]


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
    assert done.exit_code == 1, done.output
    assert "right: failed, exit code 1" in done.stdout
    made = final_training.read(tmp_path / "out")
    assert [model.status for model in made.models] == ["ok", "failed"] and made.pairs == []


def test_settings_that_would_score_other_images_are_refused() -> None:
    with pytest.raises(SpecError, match="data must be the same in all frameworks"):
        final_training.rows(EvaluationSettings(values={}, tuned={"pytorch": {"data.limit": 5}}))
    with pytest.raises(SpecError, match="not evaluated: tensorflow"):
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
    with pytest.raises(FolderError, match="is not as this suite wrote it"):
        final_training.read_tuned(tmp_path, both)
    alike = tmp_path / "alike.yaml"
    alike.write_text("optimizer.momentum: 0.5\n")
    assert final_training.read_tuned(alike, both) == ({name: {"optimizer.momentum": 0.5} for name in both}, None)
    alike.write_text("pytorch: {seed: 1}\n")
    with pytest.raises(SpecError, match="has no tuned fields of tensorflow"):
        final_training.read_tuned(alike, both)
    with pytest.raises(SpecError, match="cannot be read"):
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


def words(made: EvaluationRecord, title: str) -> list[str]:
    return dict(evaluation_report.findings(made))[title]


def test_no_more_is_said_of_agreement_than_the_test_allows() -> None:
    title = "Do the frameworks' models agree?"
    (one, caution) = words(evaluated((2, 1, 1.0)), title)
    assert one == (
        "left and right label 3 of 4 images differently; left alone is right on 2, right alone on 1: no difference in accuracy "
        "shown (McNemar's exact test, p = 1.000)."
    )
    assert caution.endswith("their difference is no difference between the frameworks.")
    first, second, third, _ = words(evaluated((2, 1, 0.06), (0, 4, 0.0004), (0, 0, None)), title)
    assert first.startswith("Seed 0: ") and "no difference in accuracy shown (McNemar's exact test, p = 0.060 among 2" in first
    assert "right's model is right more often (McNemar's exact test, p < 0.001 among 2 pairs, Holm)" in second
    assert third.endswith("neither is right where the other is wrong, so there is nothing to test.")


def test_a_checkpoint_that_does_not_carry_over_is_said_loudly() -> None:
    title = "Does a checkpoint carry over?"
    (same,) = words(
        evaluated((0, 0, None), crossing=Crossing(contestant="x", labelled_differently=0, largest_difference=1e-7)), title
    )
    assert "labels every test image the same in the other framework" in same and same.endswith("which is rounding.")
    *_, last = words(
        evaluated((0, 0, None), crossing=Crossing(contestant="x", labelled_differently=2, largest_difference=0.2)), title
    )
    assert last == "NOT THE SAME: the largest difference of a probability is 2.0e-01, more than rounding (1e-04)."


def test_an_accuracy_stands_with_its_interval() -> None:
    (left, _) = words(evaluated((0, 0, None)), "How often are the final models right?")
    # Wilson 1927, of 3 of 4 at 95 %.
    assert (
        left
        == "left: 3 of 4 right, 0.7500 (95 %, Wilson's interval: 0.3006 to 0.9544), no better than guessing; best epoch 3 of 5."
    )
    (sure, _) = words(evaluated((0, 0, None)), "Are the models as sure as they are right?")
    assert sure.endswith("neither surer nor less sure than it is right, as far as so many images can tell.")
    several = evaluation_tables.scores_table(evaluated((0, 0, None), (0, 0, None)))
    assert [row["n"] for row in several.rows] == [2, 2]


def test_what_makes_scores_flatter_or_mean_little_is_a_caution() -> None:
    made = evaluated((0, 0, None))
    assert len(words(made, "Cautions")) == 1  # of a single training
    specs = {name: {**fields, "schedule.name": "step", "schedule.step_size": 1} for name, fields in made.specs.items()}
    unseen = scores.score(np.array([0, 0]), np.array([[1.0, 0], [0, 1]]))
    models = [model.model_copy(update={"scores": unseen}) for model in made.models]
    said = words(made.model_copy(update={"tuned_on": "other", "specs": specs, "models": models}), "Cautions")
    assert any("no image of dog: the 0 of it is in the macro averages" in each for each in said)
    assert any("tuned on other data, or other splits" in each for each in said)
    assert any(each.startswith("right: from epoch 4 on the learning rate was 0.001 of the first or less") for each in said)


def picture(path: Path, size: int = 9) -> Path:
    pixels = np.random.default_rng(size).integers(0, 256, (size, size, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def test_predict_says_every_probability_and_both_frameworks_say_the_same(
    in_process: list[tuple[str, ...]], checkpoint: Path, tmp_path: Path
) -> None:
    images = [picture(tmp_path / "a.png"), picture(tmp_path / "b.png", 12)]
    own = ("--model", MODEL)
    done = convtwins("predict", checkpoint, *images, *own, "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["framework"] == "left" and [each["path"] for each in said["images"]] == list(map(str, images))
    for each in said["images"]:
        assert sum(each["probabilities"].values()) == pytest.approx(1.0)
        assert each["probability"] == max(each["probabilities"].values()) == each["probabilities"][each["label"]]
    other = json.loads(convtwins("predict", checkpoint, *images, *own, "--frameworks", "right", "--json").stdout)
    assert other == {**said, "framework": "right"}
    table = convtwins("predict", checkpoint, *images, *own, "--top", "2").stdout
    assert re.search(r"b\.png +\S+ +0\.\d{4} +\S+ 0\.\d{4}", table)


def test_a_model_that_makes_no_finite_logits_is_refused(
    in_process: list[tuple[str, ...]], checkpoint: Path, tmp_path: Path
) -> None:
    found = trained.load(checkpoint, MODEL)
    trained.save(found.card, {name: values * np.nan for name, values in found.weights.items()}, checkpoint)
    done = convtwins("predict", checkpoint, picture(tmp_path / "a.png"), "--model", MODEL, "--json")
    assert done.exit_code == 2 and "model.safetensors makes logits that are not finite" in done.stderr


def test_what_is_no_image_is_refused_by_name(
    in_process: list[tuple[str, ...]], checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, text, torn, wide = (tmp_path / name for name in ("good.png", "text.png", "torn.png", "wide.png"))
    picture(good, 40)
    text.write_text("no image")
    torn.write_bytes(good.read_bytes()[:900])
    Image.new("L", (10_000, 5_001)).save(wide)
    monkeypatch.setattr(predict, "MAX_BYTES", 60_000)
    large = tmp_path / "large.bmp"
    large.write_bytes(bytes(60_001))
    done = convtwins("predict", checkpoint, good, text, torn, wide, large, tmp_path, tmp_path / "gone.png", "--model", MODEL)
    assert done.exit_code == 4
    for said in (
        "6 images cannot be read",
        f"{text}: not an image",
        f"{torn}: truncated or damaged",
        f"{wide}: more than 50 megapixels",
        f"{large}: it has more than 60,000 bytes",
        f"{tmp_path}: a folder",
        "gone.png: No such file or directory",
    ):
        assert said in done.stderr
    refused = convtwins("predict", text, good)
    assert refused.exit_code == 2 and f"{text} is not a whole trained model" in refused.stderr
    unknown = convtwins("predict", checkpoint, good)
    assert unknown.exit_code == 2 and f"Say --model {MODEL}" in unknown.stderr


def test_a_model_goes_through_both_frameworks_files_and_comes_back(
    in_process: list[tuple[str, ...]], checkpoint: Path, tmp_path: Path
) -> None:
    left, right, back = tmp_path / "m.left", tmp_path / "m.right", tmp_path / "back.safetensors"
    for source, target in ((checkpoint, left), (left, right), (right, back)):
        done = convtwins("convert", source, target, "--model", MODEL)
        assert done.exit_code == 0, done.output
    before, after = (trained.load(path, MODEL) for path in (checkpoint, back))
    assert before.card == after.card
    assert all((before.weights[name] == after.weights[name]).all() for name in before.weights)
    (tmp_path / f"m.left{convert.CARD_SUFFIX}").unlink()
    again = tmp_path / "again.safetensors"
    bare = convtwins("convert", left, again, "--model", MODEL)
    assert bare.exit_code == 2 and "--like CHECKPOINT" in bare.stderr and not again.exists()
    assert convtwins("convert", left, again, "--model", MODEL, "--like", checkpoint).exit_code == 0


def test_conversions_without_sense_are_refused(in_process: list[tuple[str, ...]], checkpoint: Path, tmp_path: Path) -> None:
    own = ("--model", MODEL)
    there = tmp_path / "there.left"
    there.write_text("something")
    garbage = tmp_path / "garbage.left"
    garbage.write_text("no weights")
    (tmp_path / f"garbage.left{convert.CARD_SUFFIX}").write_text(trained.load(checkpoint, MODEL).card.model_dump_json())
    for source, target, said in (
        (checkpoint, tmp_path / "copy.safetensors", "Copy the file."),
        (checkpoint, tmp_path / "m.onnx", "unknown suffix. Received: 'm.onnx'. Use .safetensors, .left, .right."),
        (checkpoint, there, "is there already"),
        (garbage, tmp_path / "m.safetensors", "garbage.left holds no weights"),
        (tmp_path / "missing.left", tmp_path / "m.safetensors", "missing.left is not there, or no file."),
    ):
        done = convtwins("convert", source, target, *own)
        assert done.exit_code == 2 and said in done.stderr
    assert there.read_text() == "something" and not (tmp_path / "m.safetensors").exists()


def test_a_conversion_to_a_full_disk_is_refused_before_a_framework_is_asked(
    in_process: list[tuple[str, ...]], checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert.shutil, "disk_usage", lambda path: SimpleNamespace(free=1))
    done = convtwins("convert", checkpoint, tmp_path / "m.left", "--model", MODEL)
    assert done.exit_code == 2 and "bytes at least, and 1 are free there" in done.stderr
    assert not in_process and not (tmp_path / "m.left").exists()


def test_infer_times_both_frameworks_in_turns_and_goes_on(
    in_process: list[tuple[str, ...]], checkpoint: Path, tmp_path: Path, deliveries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(inference_timing, "cores_taken", lambda *_: 0.0)  # tests beside this one take cores
    sides = ("--frameworks", "left,right", "--model", MODEL)
    asked = ("infer", checkpoint, *sides, "--batches", "1,3", "--cores", "1", "--out", out)
    wanted = ("--calls", "100", "--seconds", "60", "--repeats", "2")
    done = convtwins(*asked, *wanted)
    assert done.exit_code == 0, done.output
    assert [framework for framework, *_ in in_process] == ["left", "right", "right", "left"]
    assert deliveries == ["locked"]
    said = json.loads(convtwins(*asked, *wanted, "--json").stdout)
    assert len(in_process) == 4  # nothing was timed again
    assert [(row["contestant"], row["batch_size"], row["calls"]) for row in said["rows"]] == [
        (side, size, 200) for side in ("left", "right") for size in (1, 3)
    ]
    for row in said["rows"]:
        assert 0 < row["p50_seconds"]["median"] <= row["p99_seconds"] * 1.5
    assert all("too few repeats to tell (2 of 5)" in sentence for sentence in said["sentences"][:2])
    assert "decoding files is not in it" in said["tables"][0]["note"]
    assert {path.name for path in (out / "tables").iterdir()} == {f"inference.{end}" for end in ("md", "csv", "tex")}
    assert all((out / name).exists() for name in ("plots/inference.png", "inference.md", "inference.html"))
    (out / "inference.json").unlink()  # as where it was cut short
    next((out / "runs").glob("left-1-r1.json")).unlink()
    assert convtwins(*asked, *wanted).exit_code == 0 and len(in_process) == 5
    other = convtwins(*asked, "--calls", "50", "--repeats", "2")
    assert (
        other.exit_code == 2
        and "holds another measurement of inference (calls is 100 there, asked for: 50; seconds is 60.0" in other.stderr
    )
    half = out / "runs" / "left-1-r1.json"
    torn = json.loads(half.read_text())
    torn["batches"] = torn["batches"][:1]
    half.write_text(json.dumps(torn))
    assert convtwins(*asked, *wanted).exit_code == 0 and len(in_process) == 6  # what came no further is timed again
    elsewhere = out / "runs" / "left-1-r1.json"
    elsewhere.write_text(elsewhere.read_text().replace('"numpy": "2"', '"numpy": "1"'))
    mixed = convtwins(*asked, *wanted)
    assert mixed.exit_code == 2 and "holds times of other versions of left (numpy is" in mixed.stderr


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
        assert converted.exit_code == 2 and f"{card} {said}" in converted.stderr and "--like" in converted.stderr
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

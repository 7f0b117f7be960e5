"""Stored results that no run can have, each with the checksum that belongs to it, and those of honest runs."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common import spec
from common.artifacts import atomic_files, contradictions, event_log, results
from common.artifacts.schema import Restart, RunResult
from compare.execution import store
from compare.execution.matrix import Row
from tests.compare.twins import fake
from tests.support import comparisons
from tests.support.command_line import convtwins

Values = dict[str, Any]
ROW = comparisons.row("pytorch")


def a_run() -> RunResult:
    """All that a run of two epochs records."""
    run = comparisons.good(ROW, 4.0)
    return run.model_copy(
        update={
            "machine": {"logical_cores": 2},
            "cores_of_others": 0.5,
            "confusion": [[40, 10], [20, 30]],
            "class_names": ["cat", "dog"],
            "step_losses": [2.3, *[13 / 14 - (2.3 - 13 / 14) / 9] * 9, 0.4],
            "best_epoch": 2,
            "images_per_second_by_process": [80.0, 90.0],
            "epochs": [_with_loss(run.epochs[0]), run.epochs[1]],
        }
    )


def _with_loss(epoch: Any) -> Any:
    return epoch.model_copy(update={"train": epoch.train.model_copy(update={"loss": 13 / 14})})


def stored(folder: Path, change: Callable[[Values, list[Values]], object]) -> store.StoredComparison:
    """A comparison of one run whose result and events were changed, with new checksums."""
    run = a_run()
    plan = comparisons.stored_in(
        store.StoredComparison(comparison=comparisons.comparison([ROW]), runs={ROW.id: {0: run}}, set_aside=[]), folder
    )
    directory = store.run_folder(plan, ROW.id, 0)
    values = json.loads(run.model_dump_json())
    events: list[Values] = [{"event": "start", "clock": 2.5}, {"event": "first_step", "loss": 2.3, "clock": 2.75}]
    clock = 2.75
    for each in run.epochs:
        clock += each.timed_seconds + each.evaluation_seconds + 0.01
        events.append({"event": "epoch", "clock": clock, **json.loads(each.model_dump_json())})
    events.append({"event": "end", "status": "ok", "clock": 11.2})
    change(values, events)
    (directory / results.RESULT_FILE).write_bytes(atomic_files.line_with_checksum(values))
    for each in events:
        event_log.append_event(directory, each.pop("event"), **each)
    return store.read(plan)


def in_epoch(number: int, **fields: Any) -> Callable[[Values, list[Values]], object]:
    def change(values: Values, events: list[Values]) -> None:
        for records in (values["epochs"], [each for each in events if each["event"] == "epoch"]):
            records[number - 1].update(fields)

    return change


def times(factor: float) -> Callable[[Values, list[Values]], object]:
    def change(values: Values, events: list[Values]) -> None:
        for each in (*values["epochs"], *(each for each in events if each["event"] == "epoch")):
            each["timed_seconds"] *= factor

    return change


def consistently(factor: float) -> Callable[[Values, list[Values]], object]:
    """Times of epochs, phases and wall alike. The events' clock is left."""

    def change(values: Values, events: list[Values]) -> None:
        times(factor)(values, events)
        more = sum(each["timed_seconds"] for each in values["epochs"]) - values["phases"]["training_seconds"]
        values["phases"]["training_seconds"] += more
        values["phases"]["wall_seconds"] += more
        values.update(images_per_second_by_process=[], cores_used=None, cores_of_others=None)
        for each in (*values["epochs"], *(each for each in events if each["event"] == "epoch")):
            each["input_wait_seconds"] = 0.0
        values["phases"]["input_wait_seconds"] = 0.0

    return change


def result(**fields: Any) -> Callable[[Values, list[Values]], object]:
    return lambda values, events: values.update(fields)


def of(name: str, **fields: Any) -> Callable[[Values, list[Values]], object]:
    return lambda values, events: values[name].update(fields)


def score(**fields: Any) -> Callable[[Values, list[Values]], object]:
    return of("test", **fields)


def epoch_twice(values: Values, events: list[Values]) -> None:
    values["epochs"].insert(1, values["epochs"][0])


def epoch_missing(values: Values, events: list[Values]) -> None:
    del values["epochs"][0], events[2]


def last_epoch_missing(values: Values, events: list[Values]) -> None:
    del values["epochs"][1], events[3]


def epoch_too_many(values: Values, events: list[Values]) -> None:
    values["epochs"].append({**values["epochs"][1], "epoch": 3})


def events_missing(values: Values, events: list[Values]) -> None:
    del events[3]


def event_twice(values: Values, events: list[Values]) -> None:
    events.insert(3, dict(events[2]))


def event_more(values: Values, events: list[Values]) -> None:
    events.insert(4, {**events[3], "epoch": 3})


def other_event(values: Values, events: list[Values]) -> None:
    events[3] = {**events[3], "timed_seconds": 2.0}


def clock_back(values: Values, events: list[Values]) -> None:
    events[3]["clock"] = 1.0


PLANTED: dict[str, tuple[Callable[[Values, list[Values]], object], str]] = {
    # Times.
    "timed seconds times 100": (times(100), "timed seconds of all epochs add up to 760, and phases.training_seconds has 7.6"),
    "timed seconds times 0.001": (times(0.001), "add up to 0.0076, and phases.training_seconds has 7.6"),
    "seconds of 1e-9": (in_epoch(2, timed_seconds=1e-9), "epoch 2 has 10 steps in 1e-09 s, and they take 1e-05 s"),
    "all times, but not the events' clock": (
        consistently(100), "epoch 1 has lasted 360.1 s, and its events are 3.71 s"),
    "negative seconds": (in_epoch(2, timed_seconds=-1.0), r"timed_seconds: Input should be greater than or equal to 0"),
    "phases that do not add up": (of("phases", wall_seconds=5.0), "the phases add up to 11.1 s, and the wall time is 5 s"),
    "a phase that takes less than nothing": (
        lambda values, events: (of("phases", evaluation_seconds=0.2, other_seconds=-5.0, wall_seconds=5.55)(values, events)),
        "phases.other_seconds is -5, and no phase takes less than no time",
    ),
    "evaluation longer than its phase": (
        of("phases", evaluation_seconds=0.1, wall_seconds=10.7),
        "the seconds of evaluation of all epochs add up to 0.2, and phases.evaluation_seconds has 0.1",
    ),
    "first steps longer than their phases": (
        in_epoch(1, first_step_seconds=9.0),
        "the seconds of first steps of all epochs add up to 9, and phases.first_step_seconds and compile_seconds has 0.25",
    ),
    "input waited for longer than the epoch": (
        in_epoch(2, input_wait_seconds=5.0),
        "epoch 2 has waited 5 s for its input, and lasted 4 s",
    ),
    # Counts.
    "an epoch twice": (epoch_twice, "epoch 1 stands where epoch 2 must stand"),
    "an epoch missing": (epoch_missing, "epoch 2 stands where epoch 1 must stand"),
    "the last epoch missing": (last_epoch_missing, "1 epochs stand, and the spec has 2"),
    "an epoch too many": (epoch_too_many, "3 epochs stand, and the spec has 2"),
    "images that are not steps times batch": (
        in_epoch(2, images=639, timed_images=639),
        "epoch 2 has images: 639, and 10 steps of 64 make 640",
    ),
    "fewer steps": (in_epoch(2, steps=9, timed_steps=9), "epoch 2 has steps: 9, and spec and images make 10"),
    "fewer timed images": (in_epoch(2, timed_images=320), "epoch 2 has timed images: 320, and 10 timed steps make 640"),
    "more timed images than images": (in_epoch(2, timed_images=6400), "timed steps and images are (10, 6400) of (10, 640)"),
    "a first step that was timed": (
        in_epoch(1, timed_steps=10, timed_images=640),
        "epoch 1 has 10 timed steps of 10, and a process times all but its first one",
    ),
    "another size of an epoch": (in_epoch(2, epoch_images=6400), "images of a whole epoch: 6400, and epoch 1 has 640"),
    "another learning rate": (in_epoch(2, learning_rate=0.1), "epoch 2 has the learning rate 0.1, and its schedule makes 0.05"),
    # Scores.
    "an accuracy of 2": (score(accuracy=2.0), "accuracy is 2.0, and 70 of 100 are right"),
    "more right than there are": (score(num_correct=700, accuracy=7.0), "num_correct is 700 of 100 examples"),
    "an accuracy that its counts do not make": (score(accuracy=0.99), "accuracy is 0.99, and 70 of 100 are right"),
    "a negative loss": (score(loss=-1.0), "loss is -1.0, and no cross-entropy is negative"),
    "another test split": (
        score(num_correct=140, num_examples=200),
        "the confusion matrix has 100 images, and the test split 200",
    ),
    "right predictions that the confusion does not have": (
        score(num_correct=90, accuracy=0.9),
        "the confusion matrix has 70 right predictions, and the test 90",
    ),
    "images trained on that were not scored": (
        in_epoch(2, train={"loss": 0.5, "accuracy": 0.75, "num_correct": 75, "num_examples": 100}),
        "epoch 2 has scored 100 training images, and trained on 640",
    ),
    "another validation split": (
        in_epoch(2, validation={"loss": 0.5, "accuracy": 0.75, "num_correct": 150, "num_examples": 200}),
        "epoch 2 has 200 validation images, and epoch 1 has 100",
    ),
    "a best epoch that is not the best": (result(best_epoch=1), "epoch 1 is the best with 50, and another has 75"),
    "another first loss": (result(first_step_loss=1.0), "the first loss is 1, and the first of the steps' losses 2.3"),
    "losses that do not make their epoch's": (
        result(step_losses=[2.3] * 10),
        "epoch 1 has the training loss 0.928571, and its steps make 2.3",
    ),
    # Rates.
    "a rate that the seconds do not make": (
        result(images_per_second_by_process=[1.0, 1.0]),
        "the processes have 2 images a second together, and the epochs 1216 images in 7.6 s",
    ),
    "CPU seconds that no machine has": (
        result(cores_used=1000.0),
        "cores_used is 1000, which is 7600 CPU seconds, and a machine of 2 cores has no more than",
    ),
    # Events.
    "an event missing": (events_missing, "the result has 2 epochs, and the events 1"),
    "an event twice": (event_twice, "the events have 3 epochs, and 2 different ones"),
    "an event of no epoch": (event_more, "the events have an epoch 3, and the result has 2 epochs"),
    "an event with other seconds": (other_event, "epoch 2 has timed_seconds 4 in the result, and 2 in its event"),
    "a clock that goes back": (clock_back, "the run's clock stood at 6.46 s, and at the next event at 1 s"),
    "another first loss in its event": (
        lambda values, events: events[1].update(loss=1.5),
        "the first loss is 2.3 in the result, and 1.5 in its event",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_result_that_contradicts_itself_is_set_aside_by_name_with_both_figures(name: str, tmp_path: Path) -> None:
    change, said = PLANTED[name]
    read = stored(tmp_path, change)
    (sentence,) = read.set_aside
    path = f"runs/{ROW.id}-r0/result.json"
    assert said in sentence, sentence
    assert sentence.startswith((f"{path} contradicts itself: in this run of pytorch, ", f"{path} is not a whole result ("))
    assert sentence.endswith("Run it again.")
    assert (read.runs, read.torn) == ({ROW.id: {}}, {ROW.id: 1})


def test_a_comparison_with_such_a_result_does_not_end_in_0_and_shows_no_time_of_it(tmp_path: Path) -> None:
    stored(tmp_path / "out", times(0.001))
    done = convtwins("report", tmp_path / "out")
    said = re.sub(r"\s+", " ", done.stdout)
    assert done.exit_code == 1 and "Set aside: runs/pytorch-serial-2-r0/result.json contradicts itself" in said
    assert "times as fast" not in said


def test_nothing_contradicts_itself_in_what_a_run_records(tmp_path: Path) -> None:
    read = stored(tmp_path, lambda values, events: None)
    assert read.set_aside == [] and read.runs[ROW.id][0].status == "ok"


def test_a_result_without_events_or_with_torn_ones_stands_on_its_own(tmp_path: Path) -> None:
    run = a_run()
    assert contradictions.find_contradictions(run) == []
    assert contradictions.find_contradictions(run, [], all_events=False) == []
    assert contradictions.find_contradictions(run, []) == ["the result has 2 epochs, and the events 0"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"epochs": 5},
        {"epochs": None, "steps": 23},
        {"epochs": 3, "global_batch_size": 100},
        {"epochs": 2, "global_batch_size": 4096},
        {"part": "compute", "epochs": 3, "global_batch_size": 100},
        {"part": "input", "epochs": None, "steps": 45},
        {"schedule": {"name": "cosine"}, "epochs": 4},
        {"mode": "multi_process", "replicas": 2, "schedule": {"scaling": "linear", "warmup_steps": 5}},
    ],
)
def test_no_run_of_any_length_batch_part_or_schedule_contradicts_itself(fields: dict[str, Any]) -> None:
    wanted = spec.build(fields)
    epochs = fake.epochs_of(wanted, 2.0)
    run = comparisons.good(Row(id="a", contestant="pytorch", spec=spec.build({})), 2.0).model_copy(
        update={"spec": wanted, "epochs": epochs, "phases": fake.phases_of(epochs), "test": None, "first_step_loss": None}
    )
    events = [{"event": "epoch", **each.model_dump()} for each in epochs]
    assert contradictions.find_contradictions(run, events) == []
    assert contradictions.find_contradictions(run.model_copy(update={"phases": None}), None) == []


@pytest.mark.parametrize("status", ["failed", "diverged", "killed"])
def test_a_run_that_ended_early_may_have_trained_more_than_it_recorded(status: str) -> None:
    run = comparisons.good(ROW, 4.0)
    assert run.phases is not None
    longer = run.phases.model_copy(update={"training_seconds": 9.6, "wall_seconds": run.phases.wall_seconds + 2.0})
    early = run.model_copy(update={"status": status, "epochs": run.epochs[:1], "phases": longer, "test": None})
    assert contradictions.find_contradictions(early, [{"event": "epoch", **run.epochs[0].model_dump()}]) == []
    assert contradictions.find_contradictions(early, []) == []  # the disk was full when the event was to be written
    assert contradictions.find_contradictions(early.model_copy(update={"phases": None})) == []
    less = run.phases.model_copy(update={"training_seconds": 1.0, "wall_seconds": run.phases.wall_seconds - 6.6})
    # A run may have failed because its clock was wrong. Its reason says so, and no time of it counts.
    assert (contradictions.find_contradictions(early.model_copy(update={"phases": less})) == []) is (status == "failed")


def test_a_run_that_was_resumed_has_an_untimed_step_in_each_process() -> None:
    run = comparisons.good(ROW, 4.0)
    first, second = run.epochs
    resumed = second.model_copy(update={"timed_steps": 9, "timed_images": 576, "timed_seconds": 3.6, "first_step_seconds": 0.5})
    assert run.phases is not None
    phases = run.phases.model_copy(update={"training_seconds": 7.2, "first_step_seconds": 0.75, "wall_seconds": 11.2})
    run = run.model_copy(update={"epochs": [first, resumed], "phases": phases, "resumes": 1})
    events = [{"event": "epoch", "clock": 0.1, **first.model_dump()}, {"event": "resume", "clock": 0.1, "epochs": 1}]
    events.append({"event": "epoch", "clock": 4.9, **resumed.model_dump()})
    assert contradictions.find_contradictions(run, events) == []
    (said,) = contradictions.find_contradictions(run.model_copy(update={"resumes": 0}))
    assert said == "2 epochs have an untimed first step, and the run had 1 processes one after the other"


def test_an_elastic_run_has_another_learning_rate_and_one_that_stopped_early_fewer_epochs() -> None:
    run = comparisons.good(ROW, 4.0)
    other = [each.model_copy(update={"learning_rate": 0.025}) for each in run.epochs]
    death = Restart(reason="killed", epochs=1, steps=0, seconds_lost=1.0, replicas=1)
    elastic = run.model_copy(update={"epochs": other, "status": "not parallel", "restarts": [death]})
    assert (
        contradictions.find_contradictions(elastic)
        == []
        != contradictions.find_contradictions(elastic.model_copy(update={"restarts": []}))
    )
    patient = ROW.spec.with_fields(epochs=9, best_epoch={"patience": 1})
    assert contradictions.find_contradictions(run.model_copy(update={"spec": patient})) == []
    assert contradictions.find_contradictions(run.model_copy(update={"spec": ROW.spec.with_fields(epochs=9)})) != []

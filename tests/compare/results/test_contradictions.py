"""Stored results that no run can have, each with the checksum that belongs to it, and those of honest runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from common import spec
from common.artifacts import atomic_files, contradictions, event_log, results
from common.artifacts.schema import Restart, RunResult
from compare.results import store
from compare.running.matrix import Row
from tests.compare.twins import fake
from tests.support import comparisons
from tests.support.command_line import convtwins_json

Values = dict[str, Any]
Change = Callable[[Values, list[Values]], object]
"""What changes a result and its events."""
ROW = comparisons.row("pytorch")


def a_run() -> RunResult:
    """All that a run of two epochs records."""
    run = comparisons.good(ROW, 4.0)
    return comparisons.with_fields(
        run,
        machine={"logical_cores": 2},
        cores_of_others=0.5,
        confusion=[[40, 10], [20, 30]],
        class_names=["cat", "dog"],
        step_losses=[2.3, *[13 / 14 - (2.3 - 13 / 14) / 9] * 9, 0.4],
        best_epoch=2,
        images_per_second_by_process=[80.0, 90.0],
        epochs=[comparisons.with_fields(run.epochs[0], train__loss=13 / 14), run.epochs[1]],
    )


def stored(folder: Path, change: Change) -> store.StoredComparison:
    """A comparison of one run whose result and events were changed, with new checksums."""
    run = a_run()
    folder = comparisons.stored_in(comparisons.with_fields(comparisons.of_rows([ROW]), runs={ROW.id: {0: run}}), folder)
    directory = store.run_folder(folder, ROW.id, 0)
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
    return store.read(folder)


def in_epoch(number: int, **fields: Any) -> Change:
    def change(values: Values, events: list[Values]) -> None:
        for records in (values["epochs"], [each for each in events if each["event"] == "epoch"]):
            records[number - 1].update(fields)

    return change


def times(factor: float) -> Change:
    def change(values: Values, events: list[Values]) -> None:
        for each in (*values["epochs"], *(each for each in events if each["event"] == "epoch")):
            each["timed_seconds"] *= factor

    return change


def consistently(factor: float) -> Change:
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


def result(**fields: Any) -> Change:
    return lambda values, events: values.update(fields)


def of(name: str, **fields: Any) -> Change:
    return lambda values, events: values[name].update(fields)


def score(**fields: Any) -> Change:
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


PLANTED: dict[str, Change] = {
    # Times.
    "timed seconds times 100": times(100),
    "timed seconds times 0.001": times(0.001),
    "seconds of 1e-9": in_epoch(2, timed_seconds=1e-9),
    "all times, but not the events' clock": consistently(100),
    "negative seconds": in_epoch(2, timed_seconds=-1.0),
    "phases that do not add up": of("phases", wall_seconds=5.0),
    "a phase that takes less than nothing": lambda values, events: of(
        "phases", evaluation_seconds=0.2, other_seconds=-5.0, wall_seconds=5.55
    )(values, events),
    "evaluation longer than its phase": of("phases", evaluation_seconds=0.1, wall_seconds=10.7),
    "first steps longer than their phases": in_epoch(1, first_step_seconds=9.0),
    "input waited for longer than the epoch": in_epoch(2, input_wait_seconds=5.0),
    # Counts.
    "an epoch twice": epoch_twice,
    "an epoch missing": epoch_missing,
    "the last epoch missing": last_epoch_missing,
    "an epoch too many": epoch_too_many,
    "images that are not steps times batch": in_epoch(2, images=639, timed_images=639),
    "fewer steps": in_epoch(2, steps=9, timed_steps=9),
    "fewer timed images": in_epoch(2, timed_images=320),
    "more timed images than images": in_epoch(2, timed_images=6400),
    "a first step that was timed": in_epoch(1, timed_steps=10, timed_images=640),
    "another size of an epoch": in_epoch(2, epoch_images=6400),
    "another learning rate": in_epoch(2, learning_rate=0.1),
    # Scores.
    "an accuracy of 2": score(accuracy=2.0),
    "more right than there are": score(num_correct=700, accuracy=7.0),
    "an accuracy that its counts do not make": score(accuracy=0.99),
    "a negative loss": score(loss=-1.0),
    "another test split": score(num_correct=140, num_examples=200),
    "right predictions that the confusion does not have": score(num_correct=90, accuracy=0.9),
    "images trained on that were not scored": in_epoch(
        2, train={"loss": 0.5, "accuracy": 0.75, "num_correct": 75, "num_examples": 100}
    ),
    "another validation split": in_epoch(
        2, validation={"loss": 0.5, "accuracy": 0.75, "num_correct": 150, "num_examples": 200}
    ),
    "a best epoch that is not the best": result(best_epoch=1),
    "another first loss": result(first_step_loss=1.0),
    "losses that do not make their epoch's": result(step_losses=[2.3] * 10),
    # Rates.
    "a rate that the seconds do not make": result(images_per_second_by_process=[1.0, 1.0]),
    "CPU seconds that no machine has": result(cores_used=1000.0),
    # Events.
    "an event missing": events_missing,
    "an event twice": event_twice,
    "an event of no epoch": event_more,
    "an event with other seconds": other_event,
    "a clock that goes back": clock_back,
    "another first loss in its event": lambda values, events: events[1].update(loss=1.5),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_result_that_contradicts_itself_is_set_aside_by_name_with_both_figures(
    name: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    read = stored(tmp_path, PLANTED[name])
    ((row, sentence),) = read.set_aside
    assert row == ROW.id
    assert sentence.startswith(f"runs/{ROW.id}-r0/result.json ") and sentence == snapshot
    assert (read.runs, read.torn) == ({ROW.id: {}}, {ROW.id: 1})


def test_a_comparison_with_such_a_result_does_not_end_in_0_and_shows_no_time_of_it(tmp_path: Path) -> None:
    ((_, sentence),) = stored(tmp_path / "out", times(0.001)).set_aside
    report = convtwins_json("report", tmp_path / "out", exit_code=1)
    assert report["set_aside"] == [sentence] and report["summaries"][0]["epoch_seconds"] is None


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
    run = comparisons.good(Row(id="a", contestant="pytorch", spec=spec.build({})), 2.0)
    phases = fake.phases_of(epochs)
    run = comparisons.with_fields(run, spec=wanted, epochs=epochs, phases=phases, test=None, first_step_loss=None)
    events = [{"event": "epoch", **each.model_dump()} for each in epochs]
    assert contradictions.find_contradictions(run, events) == []
    assert contradictions.find_contradictions(comparisons.with_fields(run, phases=None), None) == []


@pytest.mark.parametrize("status", ["failed", "diverged", "killed"])
def test_a_run_that_ended_early_may_have_trained_more_than_it_recorded(status: str) -> None:
    run = comparisons.good(ROW, 4.0)
    assert run.phases is not None
    wall = run.phases.wall_seconds
    early = comparisons.with_fields(
        run, status=status, epochs=run.epochs[:1], test=None, phases__training_seconds=9.6, phases__wall_seconds=wall + 2.0
    )
    assert contradictions.find_contradictions(early, [{"event": "epoch", **run.epochs[0].model_dump()}]) == []
    assert contradictions.find_contradictions(early, []) == []  # the disk was full when the event was to be written
    assert contradictions.find_contradictions(comparisons.with_fields(early, phases=None)) == []
    less = comparisons.with_fields(early, phases__training_seconds=1.0, phases__wall_seconds=wall - 6.6)
    # A run may have failed because its clock was wrong. Its reason says so, and no time of it counts.
    assert (contradictions.find_contradictions(less) == []) is (status == "failed")


def test_a_run_that_was_resumed_has_an_untimed_step_in_each_process() -> None:
    run = comparisons.good(ROW, 4.0)
    first, second = run.epochs
    resumed = comparisons.with_fields(second, timed_steps=9, timed_images=576, timed_seconds=3.6, first_step_seconds=0.5)
    phases = {"phases__training_seconds": 7.2, "phases__first_step_seconds": 0.75, "phases__wall_seconds": 11.2}
    run = comparisons.with_fields(run, epochs=[first, resumed], resumes=1, **phases)
    events = [{"event": "epoch", "clock": 0.1, **first.model_dump()}, {"event": "resume", "clock": 0.1, "epochs": 1}]
    events.append({"event": "epoch", "clock": 4.9, **resumed.model_dump()})
    assert contradictions.find_contradictions(run, events) == []
    (sentence,) = contradictions.find_contradictions(comparisons.with_fields(run, resumes=0))
    assert sentence.startswith("2 epochs") and "1 processes" in sentence


def test_an_elastic_run_has_another_learning_rate_and_one_that_stopped_early_fewer_epochs() -> None:
    run = comparisons.good(ROW, 4.0)
    other = [comparisons.with_fields(epoch, learning_rate=0.025) for epoch in run.epochs]
    death = Restart(reason="killed", epochs=1, steps=0, seconds_lost=1.0, replicas=1)
    elastic = comparisons.with_fields(run, epochs=other, status="not parallel", restarts=[death])
    assert contradictions.find_contradictions(elastic) == []
    assert contradictions.find_contradictions(comparisons.with_fields(elastic, restarts=[])) != []
    longer, patient = {"epochs": 9}, {"best_epoch": {"patience": 1}}
    stopped = comparisons.with_fields(run, spec=ROW.spec.with_fields(**longer, **patient))
    assert contradictions.find_contradictions(stopped) == []
    assert contradictions.find_contradictions(comparisons.with_fields(run, spec=ROW.spec.with_fields(**longer))) != []

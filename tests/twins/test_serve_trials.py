"""`serve-trials` as `compare` meets it: what a trial trains beside others, in threads of one process, is what `run` trains."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from common import spec
from common.artifacts import schema
from common.artifacts.schema import RunResult
from tests.twins import test_command_line
from tests.twins.runs import PROJECT, SECONDS
from tests.twins.test_command_line import Started

SETTINGS: dict[str, Any] = {**test_command_line.SETTINGS, "epochs": 4, "cores": 1, "checkpoint_seconds": None}
TRIALS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "adam": {"optimizer": {"name": "adam", "learning_rate": 1e-3}, "seed": 1, "augmentation": {}},
}
"""Trained at the same time; of other seeds, optimizers and input, so that one that touches another's would show."""


class Serving:
    """A serving process of two trials at once, and its lines."""

    def __init__(self, framework: str) -> None:
        command = [sys.executable, "-m", f"{framework}_impl", "serve-trials", "--cores", "1", "--trials", "2"]
        self.process = subprocess.Popen(
            command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def trial(self, name: str, fields: dict[str, Any], *, judged: bool = False) -> None:
        self.ask(trial=name, spec=spec.build({**SETTINGS, **fields}).model_dump(mode="json"), judged=judged)

    def next_event(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def events_until_ended(self, count: int) -> dict[str, list[dict[str, Any]]]:
        """The events of each trial, until so many have ended."""
        events: dict[str, list[dict[str, Any]]] = {}
        while count:
            event = self.next_event()
            events.setdefault(event["trial"], []).append(event)
            count -= event["event"] == "end"
        return events


pytestmark = pytest.mark.shared


@pytest.fixture(scope="module")
def serving(framework: str) -> Iterator[Serving]:
    made = Serving(framework)
    ready = made.next_event()
    assert ready["event"] == "ready" and ready["framework"] == framework and ready["start_seconds"] > 0
    yield made
    made.process.kill()
    made.process.communicate()


@pytest.fixture(scope="module")
def runs(framework: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunResult]:
    """The same by `run`, each in a process of its own."""
    found: dict[str, RunResult] = {}
    for name, fields in TRIALS.items():
        with Started(framework, tmp_path_factory.mktemp(name), SETTINGS | fields) as run:
            found[name] = run.end()
        assert run.process.returncode == 0
    return found


def learned(epochs: list[Any]) -> list[Any]:
    return [(epoch.epoch, epoch.steps, epoch.train, epoch.validation, epoch.learning_rate) for epoch in epochs]


@pytest.mark.slow
def test_trials_side_by_side_are_bit_for_bit_the_runs_of_their_specs(serving: Serving, runs: dict[str, RunResult]) -> None:
    for name, fields in TRIALS.items():
        serving.trial(name, fields)
    for name, events in serving.events_until_ended(len(TRIALS)).items():
        assert events[-1]["status"] == "ok", events[-1]["reason"]
        records = [
            schema.EpochRecord.model_validate({field: event[field] for field in schema.EpochRecord.model_fields})
            for event in events
            if event["event"] == "epoch"
        ]
        assert learned(records) == learned(runs[name].epochs) and len(records) == 4
        assert next(event["loss"] for event in events if event["event"] == "first_step") == runs[name].first_step_loss


def test_a_trial_stops_when_it_is_told_and_others_go_on(serving: Serving) -> None:
    serving.trial("stopped", {}, judged=True)
    while serving.next_event()["event"] != "epoch":
        pass
    serving.trial("other", {"epochs": 1})
    assert serving.events_until_ended(1)["other"][-1]["status"] == "ok"
    serving.ask(trial="stopped", go_on=False)
    (last,) = serving.events_until_ended(1)["stopped"]
    assert (last["event"], last["status"]) == ("end", "stopped")


def test_a_loss_that_is_not_finite_fails_its_trial_alone(serving: Serving) -> None:
    serving.trial("diverges", {"optimizer": {"learning_rate": 1e300}})
    serving.trial("refused", {"framework_options": {"no_such_switch": 1}})
    serving.trial("good", {"epochs": 1})
    ends = {name: events[-1] for name, events in serving.events_until_ended(3).items()}
    assert {name: end["status"] for name, end in ends.items()} == {"diverges": "diverged", "refused": "failed", "good": "ok"}
    assert "framework_options.no_such_switch is unknown" in ends["refused"]["reason"]


def test_sigterm_ends_it_in_the_middle_of_a_trial(serving: Serving) -> None:
    serving.trial("endless", {"epochs": 400_000})
    while serving.next_event()["event"] != "epoch":
        pass
    serving.process.send_signal(signal.SIGTERM)
    assert serving.process.wait(SECONDS) == -signal.SIGTERM

"""Runs whose processes are killed, and that `--restarts` brings to their end: not a bit of what they learn may differ."""

import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from common import spec
from common.artifacts import checkpoint
from common.artifacts.schema import RunResult
from compare.execution import executor, matrix, store
from tests.twins.runs import PROJECT, RANKS, SETTINGS

KILLS, SEED = 10, 29
EPOCHS = 60
SECONDS = 300

MODES: dict[str, dict[str, Any]] = {
    "serial": {"cores": 1},
    "multi_process": RANKS,
    "sharded_data_parallel": {"mode": "sharded_data_parallel", "replicas": 2},
}
STARTING_OVER: dict[str, dict[str, Any]] = {
    "parameter_server": {**RANKS, "mode": "parameter_server"},
    "pipeline": {**RANKS, "mode": "pipeline", "pipeline": {"micro_batches": 2}},
}


class Killer:
    """Sends SIGKILL to one process of each attempt of a run, at moments and to victims that a generator draws."""

    def __init__(self, directory: Path, seconds: float, most: int, draw: random.Random, *, trained: bool) -> None:
        self.kills = 0
        self._directory = directory
        self._seconds = seconds
        """Of an attempt, within which it is killed: from its start, or where it has `trained` from its first checkpoint."""
        self._most = most
        self._draw = draw
        self._trained = trained
        self._over = threading.Event()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        thread = threading.Thread(target=self._work)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _work(self) -> None:
        seen: set[int] = set()
        while self.kills < self._most and not self._over.wait(0.01):
            started = [each for each in psutil.Process().children() if each.pid not in seen and self._is_of_run(each)]
            if started and (not self._trained or (self._directory / checkpoint.FILE).exists()):
                seen.add(started[0].pid)
                self._over.wait(self._draw.uniform(0.0, self._seconds))
                self._kill(started[0])

    def _kill(self, attempt: psutil.Process) -> None:
        try:
            family = [attempt, *attempt.children(recursive=True)]
            self._draw.choice([each for each in family if self._is_of_run(each)]).kill()
            self.kills += 1
        except (psutil.NoSuchProcess, IndexError):
            pass  # it was quicker

    def _is_of_run(self, process: psutil.Process) -> bool:
        try:
            return str(self._directory) in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


@pytest.fixture
def execute(framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(PROJECT)

    def run(
        name: str, fields: dict[str, Any], kills: int = 0, seconds: float = 0.5, *, trained: bool = True
    ) -> tuple[RunResult, int]:
        """The result of a run, and how often it was killed."""
        settings = {**SETTINGS, "model": "tests.twins.own_plain_model", "epochs": EPOCHS, "checkpoint_seconds": 0, **fields}
        row = matrix.row(name, framework, spec.build(settings))
        directory = store.run_folder(tmp_path, row.id, 0)
        killer = Killer(directory, seconds, kills, random.Random(f"{SEED} {name}"), trained=trained)
        with killer.at_work():
            return executor.execute(row, 0, tmp_path, lambda events: None, restarts=kills), killer.kills

    return run


def learned(result: RunResult) -> list[Any]:
    """All that a run has learned, to the last bit."""
    assert result.status == "ok", result.reason
    assert result.final_weights_hash is not None
    scores = [(record.epoch, record.steps, record.train, record.validation) for record in result.epochs]
    hashes = [result.final_weights_hash, result.weights_hash, result.order_hash, result.predictions_hash]
    return [scores, result.test, result.first_step_loss, *hashes]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["serial", "multi_process"])
def test_a_run_of_which_a_process_is_killed_goes_on_from_its_checkpoint(execute: Any, mode: str) -> None:
    alone, _ = execute("alone", MODES[mode])
    made, killed = execute("killed", MODES[mode], 1)
    assert learned(made) == learned(alone)
    assert (killed, made.resumes, made.started_over, alone.restarts) == (1, 1, None, [])
    (death,) = made.restarts
    assert "SIGKILL" in death.reason and death.epochs > 0 and 0.0 < death.seconds_lost < SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_ten_kills_at_random_moments_change_no_bit_of_what_is_learned(execute: Any, mode: str) -> None:
    begun = time.monotonic()
    alone, _ = execute("alone", MODES[mode])
    # Within less than the whole, so that a machine that is less busy then is not too quick to be killed.
    seconds, killed, restarted = 0.75 * (time.monotonic() - begun), 0, 0
    for number in itertools.count():
        made, kills = execute(str(number), MODES[mode], KILLS - killed, seconds, trained=False)
        assert learned(made) == learned(alone)
        killed, restarted = killed + kills, restarted + len(made.restarts)
        if killed == KILLS:
            break
    assert restarted >= KILLS / 2  # the others came when the result was written already
    assert time.monotonic() - begun < 10 * SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["multi_process", "sharded_data_parallel"])
@pytest.mark.parametrize("statistics", ["synchronised", "per_replica"])
def test_an_elastic_run_goes_on_with_one_replica_and_its_mathematics_are_those_that_are_said(
    execute: Any, mode: str, statistics: str
) -> None:
    """Over the whole batch BatchNorm is the same for one replica. Over each replica's share it is another."""
    fields = {**MODES[mode], "least_replicas": 1, "batch_norm_statistics": statistics}
    alone, _ = execute("alone", fields)
    made, killed = execute("killed", fields, 1)
    (death,) = made.restarts
    assert (killed, death.replicas, made.resumes, made.started_over) == (1, 1, 1, None)
    assert (made.spec, made.order_hash, made.weights_hash) == (alone.spec, alone.order_hash, alone.weights_hash)
    before = death.epochs - 1  # the last one may have ended before its checkpoint was written
    assert [each.train for each in made.epochs[:before]] == [each.train for each in alone.epochs[:before]]
    apart = max(
        abs(one.train.loss - other.train.loss) / other.train.loss for one, other in zip(made.epochs, alone.epochs, strict=True)
    )
    assert apart < 1e-9 if statistics == "synchronised" else apart > 1e-6
    assert made.status == "not parallel"


@pytest.mark.slow
@pytest.mark.parametrize("mode", STARTING_OVER)
def test_a_mode_without_checkpoints_starts_over(execute: Any, mode: str) -> None:
    alone, _ = execute("alone", STARTING_OVER[mode])
    made, killed = execute("killed", STARTING_OVER[mode], 1, seconds=alone.phases.wall_seconds / 2, trained=False)
    assert (killed, len(made.restarts), made.resumes) == (1, 1, 0)
    assert made.started_over == f"mode {mode} starts over: each of its processes holds a part of what is trained"
    assert learned(made) == learned(alone)

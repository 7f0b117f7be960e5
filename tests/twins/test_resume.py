"""Runs that are cut short and go on from a checkpoint, held against the same run left alone: not a bit may differ."""

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.artifacts import atomic_files, checkpoint, contradictions, event_log
from common.artifacts.schema import RunResult
from common.data.batches import BatchPlan
from common.machine import machine
from common.models import weights
from common.training import run_record
from common.training.loop import TrainingRun
from common.training.timing import Stopwatch
from tests.twins import made
from tests.twins.adapters import Twin
from tests.twins.runs import RANKS, wait_until_gone
from tests.twins.runs import Run as Process

EPOCHS = 5
NETWORK = made.network()
DATA = made.dataset(NETWORK)

CASES: dict[str, dict[str, Any]] = {
    "momentum": {},
    "adam, scheduled and augmented": {
        "optimizer": {"name": "adam", "learning_rate": 1e-3, "weight_decay": 0.01},
        "schedule": {"name": "cosine"},
        "augmentation": {"horizontal_flip": True, "zoom": 0.1},
    },
    "native momentum": {"optimizer": {"native": True}},
    "native adam": {"optimizer": {"name": "adam", "learning_rate": 1e-3, "native": True}},
    "native adam, at once and in another memory format": {
        "optimizer": {"name": "adam", "learning_rate": 1e-3, "native": True},
        "framework_options": {"memory_format": "channels_last", "optimizer_kernel": "fused"},
    },
    "input by dask": {"input": "dask", "workers": 1, "dask": {"chunk_images": 5, "order": "chunks"}},
    "data_parallel": {"mode": "data_parallel", "batch_norm_statistics": "synchronised"},
    "data_parallel, each replica with its own statistics": {"mode": "data_parallel"},
    "data_parallel, compressed without feedback": {
        "mode": "data_parallel",
        "communication": {"compression": "int8", "error_feedback": False},
    },
    "float32": {"precision": "float32"},
}


SHARDED = {"mode": "sharded_data_parallel", "replicas": 2}
MARKS = {"adam, scheduled and augmented": (), "data_parallel": (pytest.mark.shared,)}
"""Of quick cases."""


class CutShortError(Exception):
    pass


def run(
    twin: Twin, folder: Path, fields: dict[str, Any], *, until: int | None = None, earlier: Path | None = None
) -> RunResult:
    """A run in this process, which breaks off in the middle of the epoch behind `until`."""
    folder.mkdir()
    spec = made.settings(**{"epochs": EPOCHS, "checkpoint_seconds": 0, **fields})
    plan = BatchPlan(spec, NETWORK, len(DATA.train.labels))
    trainer = twin.parallel.build(spec, NETWORK, plan, DATA, made.values(NETWORK))
    if until is not None:
        _break_off(trainer, until * plan.steps_per_epoch + 2)
    running = TrainingRun(twin.framework, spec, {}, folder, 0, Stopwatch(trainer.synchronize))
    running.record.update(data_hash=DATA.content_hash, weights_hash=weights.digest(trainer.weights()))
    try:
        running.train(trainer, plan, DATA, earlier)
    except CutShortError:
        assert until is not None
    result = running.result("ok" if until is None else "killed")
    assert contradictions.find_contradictions(result, event_log.read_events(folder)) == []
    return result


def _break_off(trainer: Any, last_step: int) -> None:
    step, taken = trainer.train_step, iter(range(last_step))

    def train_step(*arguments: Any) -> Any:
        if next(taken, None) is None:
            raise CutShortError
        return step(*arguments)

    trainer.train_step = train_step


def learned(result: RunResult) -> list[Any]:
    scores = [(record.epoch, record.steps, record.train, record.validation, record.learning_rate) for record in result.epochs]
    return [scores, result.test, result.predictions_hash, result.order_hash, result.first_step_loss, result.step_losses]


@pytest.mark.parametrize("case", [pytest.param(case, marks=MARKS.get(case, (pytest.mark.slow,))) for case in CASES])
def test_a_run_that_went_on_from_a_checkpoint_is_bit_for_bit_the_run_left_alone(twin: Twin, tmp_path: Path, case: str) -> None:
    if not CASES[case].get("framework_options", {}).keys() <= twin.switches.options("cpu").keys():
        pytest.skip("only the other framework has these switches")
    alone = run(twin, tmp_path / "alone", CASES[case])
    run(twin, tmp_path / "first", CASES[case], until=2)
    last = run(twin, tmp_path / "last", CASES[case], earlier=tmp_path / "first")
    assert learned(last) == learned(alone)
    assert (alone.resumes, last.resumes, last.started_over) == (0, 1, None)
    assert event_log.read_epochs(tmp_path / "last") == last.epochs


@pytest.fixture(scope="module")
def cut_short(twin: Twin, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An attempt that broke off in its third epoch."""
    folder = tmp_path_factory.mktemp("attempt") / "first"
    run(twin, folder, {}, until=2)
    return folder


@pytest.mark.shared
def test_a_run_may_be_cut_short_again_and_its_times_are_those_of_its_epochs(
    twin: Twin, tmp_path: Path, cut_short: Path
) -> None:
    kept = event_log.read_epochs(cut_short)
    run(twin, tmp_path / "second", {}, until=1, earlier=cut_short)
    last = run(twin, tmp_path / "last", {}, earlier=tmp_path / "second")
    assert last.resumes == 2
    assert last.epochs[:2] == kept and len(kept) == 2
    # Each process compiles in its first step, which no epoch counts.
    assert [record.steps - record.timed_steps for record in last.epochs] == [1, 0, 1, 1, 0]
    assert [record.first_step_seconds is not None for record in last.epochs] == [True, False, True, True, False]
    phases = last.phases
    assert phases is not None
    assert sum(record.timed_seconds for record in last.epochs) == pytest.approx(phases.training_seconds, rel=1e-3)
    named = ("import", "build", "first_step", "compile", "training", "evaluation", "other")
    assert sum(getattr(phases, f"{name}_seconds") for name in named) == pytest.approx(phases.wall_seconds)


@pytest.mark.shared
def test_a_checkpoint_of_a_version_that_kept_no_losses_of_steps_still_resumes(
    twin: Twin, tmp_path: Path, cut_short: Path
) -> None:
    old = checkpoint.load(cut_short)
    assert len(old.progress.step_losses) == sum(record.steps for record in old.progress.epochs)
    (tmp_path / "old").mkdir()
    kept = old.progress.model_dump(exclude={"step_losses"})
    checkpoint.save(old._replace(progress=checkpoint.Progress(**kept)), tmp_path / "old")
    last = run(twin, tmp_path / "last", {}, earlier=tmp_path / "old")
    assert (last.resumes, last.step_losses) == (1, [])


@pytest.mark.shared
def test_what_disturbed_the_attempts_before_is_told_of_the_whole_run(
    twin: Twin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_record, "LEAST_TIMED_SECONDS", 0.0)
    with monkeypatch.context() as before:
        before.setattr(machine, "stolen_cpu_seconds", lambda cpus: 1e3 * time.monotonic())
        before.setattr(machine, "peak_memory_mib", lambda: 1e6)
        before.setattr(machine, "load", lambda: 1e3)
        before.setattr(machine, "frequency_mhz", lambda: 12.0)
        run(twin, tmp_path / "first", {}, until=2)
    monkeypatch.setattr(machine, "stolen_cpu_seconds", lambda cpus: 0.0)
    last = run(twin, tmp_path / "last", {}, earlier=tmp_path / "first")
    noise = last.noise
    assert last.resumes == 1 and noise is not None
    assert (noise.load_start, noise.frequency_start_mhz, last.peak_memory_mib) == (1e3, 12.0, 1e6)
    assert noise.cores_stolen is not None and noise.cores_stolen > 1.0
    assert noise.load_end != 1e3 and noise.frequency_end_mhz != 12.0


def _torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("damage", "fields", "reason"),
    [
        (_torn, {}, "is not a whole checkpoint"),
        (_flipped, {}, "is not as this suite wrote it"),
        (Path.unlink, {}, "no checkpoint had been made"),
        (lambda path: None, {"seed": 1}, "of another run: its spec differs"),
    ],
    ids=["torn", "flipped", "missing", "another run"],
)
def test_a_checkpoint_that_cannot_be_relied_on_is_named_and_the_run_starts_over(
    twin: Twin, tmp_path: Path, cut_short: Path, damage: Any, fields: dict[str, Any], reason: str
) -> None:
    shutil.copytree(cut_short, tmp_path / "first")
    damage(tmp_path / "first" / checkpoint.FILE)
    last = run(twin, tmp_path / "last", fields, until=0, earlier=tmp_path / "first")
    assert (last.resumes, last.epochs) == (0, [])
    assert last.started_over is not None and reason in last.started_over


@pytest.mark.parametrize("mode", ["model_parallel", "pipeline"])
def test_a_mode_whose_processes_hold_parts_starts_over_and_says_so(mode: str) -> None:
    assert made.settings(mode=mode, replicas=2).not_resumable_because == (
        f"mode {mode} starts over: each of its processes holds a part of what is trained"
    )


@pytest.mark.shared
def test_a_checkpoint_that_does_not_fit_on_the_disk_costs_the_run_nothing(
    twin: Twin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_files, "write_atomically", full)
    assert [record.epoch for record in run(twin, tmp_path / "run", {"epochs": 2}).epochs] == [1, 2]
    assert "No checkpoint after epoch 1: [Errno 28] No space left on device." in capsys.readouterr().err


# Real processes, killed.


@pytest.fixture
def processes(begin: Any, tmp_path: Path) -> Any:
    def start(name: str, fields: dict[str, Any], *words: str) -> Process:
        fields = {"model": "tests.twins.own_plain_model", "epochs": 20, "checkpoint_seconds": 0, **fields}
        return begin(tmp_path / name, fields, words=words)

    return start


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"cores": 1}, RANKS, SHARDED], ids=["serial", "multi_process", "sharded_data_parallel"])
def test_a_killed_process_goes_on_where_its_checkpoint_was_made(processes: Any, tmp_path: Path, fields: dict[str, Any]) -> None:
    alone = processes("alone", fields).end()
    first = processes("first", fields)
    deadline = time.monotonic() + 300
    while len(event_log.read_epochs(tmp_path / "first")) < 3:
        assert first.process.poll() is None and time.monotonic() < deadline, first.log
        time.sleep(0.01)
    found = first.processes()
    first.kill()
    wait_until_gone(found)
    last = processes("last", fields, "--resume", str(tmp_path / "first")).end()
    assert (last.status, last.resumes) == ("ok", 1), last.reason
    assert [record.epoch for record in last.epochs] == list(range(1, 21))
    assert last.order_hash == alone.order_hash
    if fields != {"cores": 1}:
        losses = [[record.train.loss for record in result.epochs] for result in (last, alone)]
        assert np.allclose(*losses, rtol=1e-9)
    else:
        assert learned(last) == learned(alone)

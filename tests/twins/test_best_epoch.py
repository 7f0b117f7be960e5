"""The best validation epoch: its weights are kept, and training ends when no epoch gets better; in every mode alike."""

from pathlib import Path
from typing import Any

import pytest

from common.artifacts import contradictions, event_log, results, trained
from common.artifacts.schema import RunResult
from common.artifacts.trained import Trained
from common.data import sources
from common.data.batches import BatchPlan
from common.models import architectures
from common.training import inference, observers
from common.training.loop import TrainingRun
from common.training.timing import Stopwatch
from tests.twins import made
from tests.twins.adapters import Twin
from tests.twins.runs import Run as Process

NETWORK = made.network(image_size=12)
DATA = made.dataset(NETWORK)
EPOCHS = 12
OWN = "tests.twins.own_plain_model"


@pytest.fixture(autouse=True)
def _found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architectures, "resolve", lambda *_, **__: NETWORK)


def run(twin: Twin, folder: Path, *, earlier: Path | None = None, **fields: Any) -> tuple[RunResult, Any]:
    folder.mkdir()
    wanted = made.settings(**{"epochs": EPOCHS, "optimizer": {"learning_rate": 0.1}, **fields})
    plan = BatchPlan(wanted, NETWORK, len(DATA.train.labels))
    trainer = twin.parallel.build(wanted, NETWORK, plan, DATA, made.values(NETWORK))
    running = TrainingRun(twin.framework, wanted, {}, folder, 0, Stopwatch(trainer.synchronize))
    running.record.update(data_hash=DATA.content_hash, weights_hash="same")
    running.train(trainer, plan, DATA, earlier)
    result = running.result("ok")
    assert contradictions.find_contradictions(result, event_log.read_events(folder)) == []
    return result, trainer


def best(folder: Path) -> Trained:
    return trained.load(folder / results.BEST_FILE)


def test_the_kept_weights_are_those_after_the_best_epoch(twin: Twin, tmp_path: Path) -> None:
    result, _ = run(twin, tmp_path / "a", best_epoch={"keep": True, "by": "loss"})
    number = observers.best_epoch(result.epochs, "loss")
    assert result.best_epoch == number and 1 < number < EPOCHS  # else the case shows nothing
    found = best(tmp_path / "a")
    assert (found.card.epoch, found.card.validation) == (number, result.epochs[number - 1].validation)
    assert found.card.spec_hash == result.spec.digest
    labels = list(DATA.validation.labels)
    assert found.card.chance_accuracy == max(map(labels.count, labels)) / len(labels)
    _, until_then = run(twin, tmp_path / "b", epochs=number)
    expected = until_then.weights()
    assert found.weights.keys() == expected.keys()
    assert all((found.weights[name] == expected[name]).all() for name in expected)


def test_training_ends_when_no_epoch_gets_better_for_so_long(twin: Twin, tmp_path: Path) -> None:
    result, _ = run(twin, tmp_path / "a", best_epoch={"patience": 2, "by": "loss"})
    number = observers.best_epoch(result.epochs, "loss")
    assert result.best_epoch == number and len(result.epochs) == number + 2 < EPOCHS
    assert result.test is not None
    assert not (tmp_path / "a" / results.BEST_FILE).exists()


@pytest.mark.shared
def test_a_run_that_went_on_has_the_best_weights_of_before(twin: Twin, tmp_path: Path) -> None:
    settings = {"best_epoch": {"keep": True, "by": "loss", "patience": 3}, "checkpoint_seconds": 0}
    whole, _ = run(twin, tmp_path / "a", **settings)
    assert len(whole.epochs) > (whole.best_epoch or 0) > 1
    # The last checkpoint is of the epoch before the last: the best epoch is not trained again.
    again, _ = run(twin, tmp_path / "b", earlier=tmp_path / "a", **settings)
    assert again.resumes == 1
    assert (again.best_epoch, len(again.epochs)) == (whole.best_epoch, len(whole.epochs))
    first, second = best(tmp_path / "a"), best(tmp_path / "b")
    assert first.card == second.card
    assert all((first.weights[name] == second.weights[name]).all() for name in first.weights)


MODES: dict[str, dict[str, Any]] = {
    "data_parallel": {"mode": "data_parallel", "replicas": 2},
    "multi_process": {"mode": "multi_process", "replicas": 2},
    "sharded_data_parallel": {"mode": "sharded_data_parallel", "replicas": 2},
    "parameter_server": {"mode": "parameter_server", "replicas": 2},
    "parameter_server_async": {"mode": "parameter_server", "replicas": 2, "parameter_server": {"updates": "asynchronous"}},
    "model_parallel": {"mode": "model_parallel", "replicas": 2},
    "tensor_parallel": {"mode": "tensor_parallel", "replicas": 2},
    "pipeline": {"mode": "pipeline", "replicas": 2},
    "pipeline_async": {"mode": "pipeline", "replicas": 2, "pipeline": {"schedule": "asynchronous"}},
    "hybrid": {"mode": "hybrid", "replicas": 4},
    "model_averaging": {"mode": "model_averaging", "replicas": 2},
    "workers": {"input": "workers", "workers": 2, "cores": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_keeps_what_it_scored_and_ends_early(
    twin: Twin, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learning rate that spoils the weights soon: what is kept must score as the best epoch did, not as the last."""
    monkeypatch.undo()
    wanted = {"best_epoch": {"keep": True, "patience": 2}, "epochs": 100, "optimizer": {"learning_rate": 0.5}}
    result = Process(twin.framework, tmp_path / mode, {"model": OWN, **wanted, **MODES[mode]}).end()
    assert result.status == "ok", result.reason
    assert result.best_epoch is not None and len(result.epochs) == result.best_epoch + 2
    found = trained.load(tmp_path / mode / results.BEST_FILE, OWN)
    assert found.card.validation == result.epochs[result.best_epoch - 1].validation
    split = sources.load(result.spec.data, seed=result.spec.split_seed, cache_dir=None).validation
    predicted = inference.score(twin.inference.Predictor(found), split.images).argmax(1)
    assert int((predicted == split.labels).sum()) == found.card.validation.num_correct

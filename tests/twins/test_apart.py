"""Modes of several processes that are no serial mathematics, and what they say of themselves."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from common.artifacts.schema import RunResult
from common.data import sources
from common.models import architectures
from tests.twins.runs import wait_until_gone
from tests.twins.test_command_line import Started

pytestmark = pytest.mark.slow

EPOCHS, STEPS_PER_EPOCH = 6, 3
PLAIN = {"optimizer": {"learning_rate": 0.02, "momentum": 0.0}, "batch_norm_statistics": "per_replica"}
RUNS: dict[str, dict[str, Any]] = {
    "multi_process": {**PLAIN, "mode": "multi_process"},
    "averaging at every step": {**PLAIN, "mode": "model_averaging", "averaging": {"every_steps": 1}},
    "averaging once": {**PLAIN, "mode": "model_averaging"},
    "averaging at every score": {**PLAIN, "mode": "model_averaging", "averaging": {"every_steps": STEPS_PER_EPOCH}},
    "averaging now and then": {**PLAIN, "mode": "model_averaging", "averaging": {"every_steps": 4}},
    "asynchronous": {
        "mode": "parameter_server",
        "parameter_server": {"updates": "asynchronous", "staleness": 2},
        "batch_norm_statistics": "per_replica",
    },
}


@pytest.fixture(scope="module")
def ended(framework: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunResult]:
    """Each run of two ranks, one after the other."""
    found: dict[str, RunResult] = {}
    for name, fields in RUNS.items():
        with Started(framework, tmp_path_factory.mktemp("run"), {"replicas": 2, "epochs": EPOCHS, **fields}) as run:
            found[name] = run.end()
        assert run.process.returncode == 0, run.log
    return found


def train_losses(result: RunResult) -> list[float]:
    return [epoch.train.loss for epoch in result.epochs if epoch.train is not None]


def num_values(result: RunResult, *, trainable: bool) -> int:
    dataset = sources.load(result.spec.data, seed=result.spec.seed)
    architecture = architectures.resolve(result.spec.model, len(dataset.class_names), dataset.image_size)
    return sum(parameter.size for parameter in architecture.parameters() if parameter.trainable or not trainable)


def test_averaging_after_every_plain_step_is_data_parallel_training(ended: dict[str, RunResult]) -> None:
    expected = train_losses(ended["multi_process"])
    assert train_losses(ended["averaging at every step"]) == pytest.approx(expected, rel=1e-9)
    # ... and training apart is not, from the second step on.
    assert train_losses(ended["averaging once"])[0] != pytest.approx(expected[0], rel=1e-6)


def test_a_score_of_the_average_changes_nothing_in_training_apart(ended: dict[str, RunResult]) -> None:
    once, at_scores = (train_losses(ended[name]) for name in ("averaging once", "averaging at every score"))
    assert once[0] == at_scores[0]
    assert all(ours != pytest.approx(theirs, rel=1e-6) for ours, theirs in zip(once[1:], at_scores[1:], strict=True))


def test_members_their_vote_and_their_average_are_scored_over_the_whole_test_split(ended: dict[str, RunResult]) -> None:
    for name in ("averaging at every step", "averaging once"):
        result = ended[name]
        members = result.members
        assert members is not None
        assert result.test is not None
        assert members.average == result.test
        assert len(members.members) == 2
        assert {score.num_examples for score in (members.ensemble, *members.members)} == {result.test.num_examples}
        losses = [member.loss for member in members.members]
        assert members.ensemble.loss == pytest.approx(sum(losses) / 2)
        # Right after an average all are the same model.
        apart = [loss != pytest.approx(result.test.loss, rel=1e-9) for loss in losses]
        assert apart == [name == "averaging once"] * 2


def test_the_bytes_of_averages_are_those_of_a_ring(ended: dict[str, RunResult]) -> None:
    a_ring = 2 * (2 - 1) * 8 * num_values(ended["averaging once"], trainable=False)
    steps = EPOCHS * STEPS_PER_EPOCH
    for name, averages in (("at every step", steps), ("once", 0), ("now and then", 4)):
        # Each epoch ends with an average that is scored.
        assert ended[f"averaging {name}"].bytes_per_step == pytest.approx((averages + EPOCHS) * a_ring / steps), name


def test_an_asynchronous_server_counts_every_push_and_learns(ended: dict[str, RunResult]) -> None:
    result = ended["asynchronous"]
    assert result.staleness is not None
    assert sum(result.staleness.counts) == 2 * EPOCHS * STEPS_PER_EPOCH
    assert len(result.staleness.counts) <= 2 * 2 + 2  # one other worker, from two steps behind to two ahead
    assert result.staleness.waiting_seconds > 0
    assert result.bytes_per_step == 2 * 2 * 8 * num_values(result, trainable=True)
    assert all(later < earlier for earlier, later in pairwise(train_losses(result)[::2]))
    assert result.members is None


@pytest.mark.parametrize("victim", ["rank 1 of 2", "parameter server"])
@pytest.mark.parametrize("updates", ["synchronous", "asynchronous"])
def test_a_killed_rank_or_server_ends_the_run_as_killed_and_is_named(
    begin: Any, tmp_path: Path, victim: str, updates: str
) -> None:
    fields = {**RUNS["asynchronous"], "replicas": 2, "epochs": 400_000, "parameter_server": {"updates": updates}}
    run = begin(tmp_path, fields, kind=Started)
    ranks = run.ranks()
    (server,) = [child for child in psutil.Process(run.process.pid).children() if child not in ranks]
    (ranks[1] if victim.startswith("rank") else server).kill()
    result = run.end()
    assert (run.process.returncode, result.status) == (1, "killed")
    assert result.reason is not None
    assert result.reason.startswith(f"{victim} was ended by SIGKILL")
    assert result.epochs
    wait_until_gone([ranks[1], server])

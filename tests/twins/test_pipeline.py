"""Pipelines as a user starts them: scored as serial is, what they sent, and where their time went."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common import results, spec, stages
from common.results import RunResult
from tests.twins import made

PROJECT = Path(__file__).parents[2]
BATCH, PARTS, STAGES = 12, 4, 3
SETTINGS: dict[str, Any] = {
    "model": "tests.twins.own_plain_model",
    "data": {"image_size": 12, "limit": 31},  # 12, 12 and 7: the last batch goes through whole
    "optimizer": {"learning_rate": 0.02},
    "global_batch_size": BATCH,
    "epochs": 2,
    "precision": "float64",
    "cores": 1,
    "pipeline": {"micro_batches": PARTS},
    "profile_steps": 3,
}
SECONDS = 240
"""How long any process may take on a machine that has much else to do."""


@pytest.fixture(scope="module")
def ended(framework: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunResult]:
    """The same training by several pipelines, and serially over the same micro-batches."""
    words = ("model_parallel", "pipeline", "pipeline_1f1b", "pipeline_async", "hybrid_pipeline")
    specs = {word: spec.build(spec.with_variant(SETTINGS, word, 2 if "hybrid" in word else STAGES)) for word in words}
    specs |= {f"serial {parts}": spec.build({**SETTINGS, "accumulation": parts, "profile_steps": 0}) for parts in (1, PARTS)}
    found: dict[str, RunResult] = {}
    for word, what in specs.items():
        folder = tmp_path_factory.mktemp(word)
        (folder / "spec.json").write_text(what.to_json(), encoding="utf-8")
        command = [sys.executable, "-m", f"{framework}_impl", "run", str(folder / "spec.json"), "--out", str(folder)]
        ran = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=SECONDS)
        assert ran.returncode == 0, ran.stderr
        found[word] = results.load(folder / results.RESULT_FILE)
    return found


@pytest.mark.parametrize(
    ("word", "serial"),
    [("model_parallel", "serial 1"), ("pipeline", f"serial {PARTS}"), ("pipeline_1f1b", f"serial {PARTS}")],
)
def test_a_pipeline_learns_and_is_scored_as_serial_is(ended: dict[str, RunResult], word: str, serial: str) -> None:
    ours, theirs = ended[word], ended[serial]
    assert ours.predictions_hash == theirs.predictions_hash
    assert (ours.order_hash, ours.weights_hash) == (theirs.order_hash, theirs.weights_hash)
    pairs = [(ours.test, theirs.test)]
    for own, other in zip(ours.epochs, theirs.epochs, strict=True):
        pairs += [(own.train, other.train), (own.validation, other.validation)]
    for own, other in pairs:
        assert own is not None and other is not None
        assert own.loss == pytest.approx(other.loss, rel=1e-9)
        assert (own.num_correct, own.num_examples) == (other.num_correct, other.num_examples)


@pytest.mark.parametrize("word", ["pipeline_async", "hybrid_pipeline"])
def test_a_pipeline_of_other_mathematics_learns_too_and_scores_every_example(ended: dict[str, RunResult], word: str) -> None:
    assert ended[word].status == "ok"
    assert ended[word].test is not None
    assert [epoch.train and np.isfinite(epoch.train.loss) for epoch in ended[word].epochs] == [True, True]
    assert ended[word].order_hash == ended["serial 1"].order_hash


def test_every_activation_and_every_gradient_is_counted_once(ended: dict[str, RunResult]) -> None:
    architecture = made.network(num_classes=10)
    handed_on = {number: 8 * BATCH * stages.values_handed_on(stages.cut(architecture, number)) for number in (2, STAGES)}
    trainable = sum(parameter.size for parameter in architecture.parameters() if parameter.trainable)
    sent = {word: result.bytes_per_step for word, result in ended.items()}
    assert sent["serial 1"] is None
    assert {sent[word] for word in ("model_parallel", "pipeline", "pipeline_1f1b", "pipeline_async")} == {handed_on[STAGES]}
    # Two copies: as a ring adds them up, each sends as many bytes as there are gradients.
    assert sent["hybrid_pipeline"] == pytest.approx(handed_on[2] + 2 * 8 * trainable)


@pytest.mark.parametrize("word", ["model_parallel", "pipeline", "pipeline_1f1b", "pipeline_async", "hybrid_pipeline"])
def test_the_parts_of_a_step_say_how_long_its_stages_wait(ended: dict[str, RunResult], word: str) -> None:
    parts = ended[word].step_parts
    assert parts is not None and parts.steps == 3
    assert parts.compute_seconds is not None and parts.idle_seconds is not None
    assert 0.0 < parts.compute_seconds <= parts.step_seconds
    assert 0.0 <= parts.idle_seconds < parts.step_seconds
    assert parts.not_separable is not None and "idling from receiving" in parts.not_separable


def test_more_stages_than_layers_are_refused_in_words(framework: str, tmp_path: Path) -> None:
    what = spec.build(spec.with_variant(SETTINGS, "pipeline", 6))
    (tmp_path / "spec.json").write_text(what.to_json(), encoding="utf-8")
    command = [sys.executable, "-m", f"{framework}_impl", "run", str(tmp_path / "spec.json"), "--out", str(tmp_path)]
    ran = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=SECONDS)
    assert ran.returncode == 1
    reason = json.loads((tmp_path / results.RESULT_FILE).read_text(encoding="utf-8"))["reason"]
    assert "has 5 layers with weights, and each stage of a pipeline needs one. Received: 6 stages" in reason

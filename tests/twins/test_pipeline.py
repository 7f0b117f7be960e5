"""Pipelines as a user starts them: scored as serial is, what they sent, and where their time went."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common import spec
from common.artifacts import results
from common.artifacts.schema import RunResult
from common.machine import machine
from common.models import stages
from common.spec import Spec
from tests.support import processes
from tests.twins import made
from tests.twins.adapters import Twin

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
WORDS = ("pipeline_1f1b", "pipeline", "pipeline_async", "model_parallel", "hybrid_pipeline")
SECONDS = 300
"""How long any process may take on a machine that has much else to do."""


Ended = Callable[[str], RunResult]


@pytest.fixture(scope="module")
def ended(framework: str, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The same training by a word of `--modes`, or serially over so many parts of each batch; each is run but once."""

    @cache
    def end(word: str) -> RunResult:
        if word.startswith("serial"):
            what = spec.build({**SETTINGS, "accumulation": int(word.removeprefix("serial ")), "profile_steps": 0})
        else:
            what = spec.build(spec.with_variant(SETTINGS, word, 2 if "hybrid" in word else STAGES))
        code, result, log = run(framework, what, tmp_path_factory.mktemp(word))
        assert code == 0, log
        return result

    return end


def run(framework: str, what: Spec, folder: Path) -> tuple[int, RunResult, str]:
    (folder / "spec.json").write_text(what.to_json(), encoding="utf-8")
    ran = processes.twin(framework, "run", folder / "spec.json", "--out", folder)
    return ran.exit_code, results.load(folder / results.RESULT_FILE), ran.stderr


def test_a_stage_copies_to_its_device_what_it_uses_alone(twin: Twin) -> None:
    if twin.framework != "pytorch":
        pytest.skip("one graph of all stages takes the batch")
    import torch

    from pytorch_impl.parallel.pipeline import Pipeline

    architecture = made.network()
    data = made.dataset(architecture).train
    batch = twin.batch(data.images[:BATCH], data.labels[:BATCH], made.masks(architecture, BATCH))
    rank = object.__new__(Pipeline)
    rank._device, rank._switches = torch.device("meta"), {}
    for stage in stages.cut(architecture, STAGES):
        rank._stage = stage
        images, labels, masks = rank._to_device(batch)
        assert [len(values) for values in (images, labels, *masks)] == [BATCH] * (2 + len(batch.masks))
        assert (images.is_meta, labels.is_meta) == (stage.is_first, stage.is_last)
        own = range(len(masks))[stage.masks]
        assert [mask.is_meta for mask in masks] == [number in own for number in range(len(masks))]


@pytest.mark.parametrize(
    ("word", "serial"),
    [
        pytest.param("pipeline_1f1b", f"serial {PARTS}", marks=pytest.mark.slow),
        pytest.param("pipeline", f"serial {PARTS}", marks=pytest.mark.slow),
        pytest.param("model_parallel", "serial 1", marks=pytest.mark.slow),
    ],
)
def test_a_pipeline_learns_and_is_scored_as_serial_is(ended: Ended, word: str, serial: str) -> None:
    ours, theirs = ended(word), ended(serial)
    assert ours.predictions_hash == theirs.predictions_hash
    assert (ours.order_hash, ours.weights_hash) == (theirs.order_hash, theirs.weights_hash)
    pairs = [(ours.test, theirs.test)]
    for own, other in zip(ours.epochs, theirs.epochs, strict=True):
        pairs += [(own.train, other.train), (own.validation, other.validation)]
    for own, other in pairs:
        assert own is not None and other is not None
        assert own.loss == pytest.approx(other.loss, rel=1e-9)
        assert (own.num_correct, own.num_examples) == (other.num_correct, other.num_examples)


@pytest.mark.slow
@pytest.mark.parametrize("word", ["pipeline_async", "hybrid_pipeline"])
def test_a_pipeline_of_other_mathematics_learns_too_and_scores_every_example(ended: Ended, word: str) -> None:
    ours = ended(word)
    assert ours.status == "ok" and ours.test is not None
    assert [epoch.train and np.isfinite(epoch.train.loss) for epoch in ours.epochs] == [True, True]
    assert ours.order_hash == ended(f"serial {PARTS}").order_hash


@pytest.mark.slow
def test_an_asynchronous_pipeline_trains_batch_norm_in_every_stage(framework: str, tmp_path: Path) -> None:
    """A micro-batch changes the running statistics that the way back of an earlier one reads."""
    values = {**SETTINGS, "model": "mini_xception", "data": {"limit": 31}, "epochs": 1, "profile_steps": 0}
    code, result, log = run(framework, spec.build(spec.with_variant(values, "pipeline_async", 2)), tmp_path)
    assert (code, result.status) == (0, "ok"), log


@pytest.mark.slow
@pytest.mark.parametrize("word", WORDS)
def test_every_activation_and_every_gradient_is_counted_once(ended: Ended, word: str) -> None:
    architecture = made.network(num_classes=10)
    number, gradients = STAGES, 0
    if word == "hybrid_pipeline":
        # Two copies: as a ring adds them up, each sends as many bytes as there are gradients.
        number, gradients = 2, 2 * sum(parameter.size for parameter in architecture.parameters() if parameter.trainable)
    handed_on = BATCH * stages.boundary_values(stages.cut(architecture, number))
    assert ended(word).bytes_per_step == 8 * (handed_on + gradients)


@pytest.mark.slow
@pytest.mark.parametrize("word", WORDS)
def test_the_parts_of_a_step_say_how_long_its_stages_wait(ended: Ended, word: str) -> None:
    parts = ended(word).step_parts
    assert parts is not None and parts.steps == SETTINGS["profile_steps"]
    assert parts.compute_seconds is not None and parts.idle_seconds is not None
    assert 0.0 < parts.compute_seconds <= parts.step_seconds
    assert 0.0 <= parts.idle_seconds < parts.step_seconds
    assert parts.not_separable is not None and "idling from receiving" in parts.not_separable


@pytest.mark.slow
def test_stages_work_side_by_side_in_a_pipeline_and_one_by_one_without_micro_batches(framework: str, tmp_path: Path) -> None:
    fields = {"model": "mini_xception", "data": {"limit": 128}, "global_batch_size": 64, "precision": "float32"}
    idle: dict[str, float] = {}
    for word in ("pipeline", "model_parallel"):
        (tmp_path / word).mkdir()
        what = spec.build(spec.with_variant({**SETTINGS, **fields, "cores": min(2, machine.available_cores())}, word, 2))
        code, result, log = run(framework, what, tmp_path / word)
        assert code == 0 and result.step_parts is not None and result.step_parts.idle_seconds is not None, log
        idle[word] = result.step_parts.idle_seconds / result.step_parts.step_seconds
    assert idle["pipeline"] < idle["model_parallel"]
    assert idle["model_parallel"] == pytest.approx(stages.idle_fraction(2, 1), abs=0.2)
    # 1/5 of equal stages. These differ by a sixth in multiply-adds, smaller parts are slower to compute, and what is received
    # counts as idle, so that more is measured; half, as without overlap, it must not be.
    assert stages.idle_fraction(2, PARTS) - 0.1 < idle["pipeline"] < stages.idle_fraction(2, PARTS) + 0.2


@pytest.mark.slow
def test_more_stages_than_layers_are_refused_in_words(framework: str, tmp_path: Path) -> None:
    code, result, _ = run(framework, spec.build(spec.with_variant(SETTINGS, "pipeline", 10)), tmp_path)
    assert code == 1 and result.reason is not None
    assert "has 9 layers with weights, and each stage of a pipeline needs one. Received: 10 stages" in result.reason

"""Check of whole runs: their results, resuming, and trained models."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from common.artifacts import checkpoint, results, trained
from common.artifacts.records import RecordError
from common.artifacts.schema import RunResult
from common.artifacts.trained import Trained
from common.data.batches import BatchPlan, order_digest
from common.data.sources import Dataset
from common.machine import heartbeat
from common.models import weights
from common.processes import signals
from common.spec import Spec
from common.training import inference
from compare.cli.differences import FLOAT32_TOLERANCE, relative_difference
from compare.cli.errors import LaunchError
from compare.proof.differences import scaled_difference
from compare.running import launch
from compare.tools.conformance.trial import (
    TOLERANCE,
    Faults,
    TwinUnderTest,
    ending,
    expected_logits,
    last_line,
    load_data_and_model,
    spec_of,
)

_EPOCHS = 12
"""Epochs of a run that is cut short after the first."""
_POLL_SECONDS = 0.02


def check_runs(trial: TwinUnderTest) -> Faults:
    spec = spec_of(
        data={"source": "digits", "limit": 100}, steps=None, epochs=_EPOCHS, checkpoint_seconds=0, best_epoch={"keep": True}
    )
    dataset, architecture = load_data_and_model(spec)
    code, output, folder = trial.run(spec, "run")
    try:
        result = results.load(folder / results.RESULT_FILE)
    except (OSError, RecordError) as error:
        yield f"run left no result ({launch.describe_exit(code)}): {error}. {last_line(output)}"
        return
    if code != 0 or result.status != "ok":
        yield f"run ended with {launch.describe_exit(code)} and status {result.status}: {result.reason}"
        return
    plan = BatchPlan(spec, architecture, len(dataset.train))
    order = np.concatenate([plan.draw(epoch).ids[: plan.batch(plan.steps_per_epoch - 1)[1]] for epoch in range(1, _EPOCHS + 1)])
    expected = {
        "framework": trial.contestant.twin,
        "order_hash": order_digest(order),
        "data_hash": dataset.content_hash,
        "weights_hash": weights.digest(
            {name: array.astype(spec.precision) for name, array in weights.initial(architecture, 0).items()}
        ),
    }
    for name, value in expected.items():
        if (received := getattr(result, name)) != value:
            yield f"the result's {name} is not {value}. Received: {received}"
    if lacking := {"layout", "graph", "mechanism"} - result.conditions.keys():
        yield f"the result's conditions lack {', '.join(sorted(lacking))}, see `sets` and `mechanism` of describe"
    yield from resume_faults(trial, spec, result)
    yield from _trained(trial, folder / results.BEST_FILE, dataset)


def resume_faults(trial: TwinUnderTest, spec: Spec, uninterrupted: RunResult) -> Faults:
    """Yield faults of a run that resumes from its checkpoint: it must reach the predictions and the loss of `uninterrupted`."""
    folder = trial.out / "cut-short"
    command = ["run", str(trial.write_spec(spec, "cut-short-spec")), "--out", str(folder)]
    log, process, code = folder.with_suffix(".log"), None, None
    try:
        with signals.defer_signals():
            process = trial.start(command, log)
        deadline = time.monotonic() + heartbeat.HANG_SECONDS
        while (code := process.poll()) is None and not (folder / checkpoint.FILE).exists() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    finally:
        if process is not None:
            launch.stop(process, grace_seconds=0.0)
    if not (folder / checkpoint.FILE).exists():
        stopped = f"was stopped after {heartbeat.HANG_SECONDS:.0f} s"
        words = stopped if code is None else f"ended with {launch.describe_exit(code)}"
        output = last_line(log.read_text(encoding="utf-8", errors="replace"))
        yield (
            f"run --resume could not be tried: a run must save {checkpoint.FILE} after each epoch but the last, because "
            f"checkpoint_seconds is 0. It {words} before one was seen: {output}"
        )
        return
    code, output, resumed_folder = trial.run(spec, "resumed", "--resume", folder)
    if code != 0:
        yield f"run --resume ended with {ending(code, output)}"
        return
    result = results.load(resumed_folder / results.RESULT_FILE)
    if result.resumes != 1:
        yield f"run --resume starts over. Received: {result.started_over}"
    if result.predictions_hash != uninterrupted.predictions_hash:
        yield "a run that goes on from its checkpoint makes other predictions than one that was left alone"
    elif (
        result.test
        and uninterrupted.test
        and (difference := relative_difference(result.test.loss, uninterrupted.test.loss)) > FLOAT32_TOLERANCE
    ):
        yield f"a run that goes on from its checkpoint has another loss than one that was left alone, by {difference:.1e} of it"


def _trained(trial: TwinUnderTest, best: Path, dataset: Dataset) -> Faults:
    model = trained.load(best)
    images = np.asarray(dataset.test.images[:10])
    np.save(images_file := trial.out / "images.npy", images, allow_pickle=False)
    expected = expected_logits(model.architecture, model.weights, images)
    for label, path in _files(trial, best, model):
        code, output = trial.call(
            ["score", path, "--images", images_file, "--out", out := trial.out / f"{label}-logits.safetensors"]
        )
        if code != 0:
            yield f"score ended with {ending(code, output)}"
            continue
        logits = inference.load_logits(out, trained.load(path), len(images))
        if (difference := scaled_difference(logits, expected)) > TOLERANCE:
            yield f"score gives logits of {label} that differ from the referee by {difference:.1e}, tolerance {TOLERANCE:.0e}"


def _files(trial: TwinUnderTest, best: Path, model: Trained) -> Iterator[tuple[str, Path]]:
    """Yield (label, path) of the trained model, and of its copies that went through each file format of the framework."""
    yield "a trained model", best
    card = trial.write_spec(model.card.model_dump_json(), "card")
    for suffix in trial.description["formats"]:
        framework_file, converted = trial.out / f"own{suffix}", trial.out / f"back{suffix}{trained.SUFFIX}"
        for words in (["write", best, "--out", framework_file], ["read", framework_file, "--card", card, "--out", converted]):
            code, output = trial.call(words)
            if code != 0:
                raise LaunchError(f"{words[0]} of {suffix} ended with {ending(code, output)}")
        yield f"a {suffix} file", converted

"""Whole runs: their results, resuming, and trained models."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from common.artifacts import checkpoint, results, trained
from common.artifacts.records import RecordError
from common.artifacts.schema import RunResult
from common.artifacts.trained import Trained
from common.data.batches import Plan, order_digest
from common.data.sources import Dataset
from common.machine import heartbeat
from common.models import weights
from common.processes import signals
from common.spec import Spec
from common.training import inference
from compare.conformance import evaluation
from compare.conformance.trial import TOLERANCE, Faults, Trial, last_line, loaded, spec_of
from compare.core.differences import FLOAT32_TOLERANCE, relative_difference
from compare.core.errors import LaunchError
from compare.execution import contestants, launch
from compare.proof.differences import scaled

_EPOCHS = 12
"""Of a run that is cut short after the first."""
_POLL_SECONDS = 0.02


def check(trial: Trial) -> Faults:
    what = spec_of(
        data={"source": "digits", "limit": 100}, steps=None, epochs=_EPOCHS, checkpoint_seconds=0, best_epoch={"keep": True}
    )
    dataset, architecture = loaded(what)
    code, said, folder = trial.run(what, "run")
    try:
        result = results.load(folder / results.RESULT_FILE)
    except (OSError, RecordError) as error:
        yield f"run left no result ({launch.describe_exit(code)}): {error}. {last_line(said)}"
        return
    if code != 0 or result.status != "ok":
        yield f"run ended with {launch.describe_exit(code)} and status {result.status}: {result.reason}"
        return
    plan = Plan(what, architecture, len(dataset.train))
    order = np.concatenate([plan.draw(epoch).ids[: plan.batch(plan.steps_per_epoch - 1)[1]] for epoch in range(1, _EPOCHS + 1)])
    expected = {
        "framework": contestants.by_name(trial.name).twin,
        "order_hash": order_digest(order),
        "data_hash": dataset.content_hash,
        "weights_hash": weights.digest(
            {name: array.astype(what.precision) for name, array in weights.initial(architecture, 0).items()}
        ),
    }
    for name, wanted in expected.items():
        if (received := getattr(result, name)) != wanted:
            yield f"the result's {name} is not {wanted}. Received: {received}"
    if lacking := {"layout", "graph", "mechanism"} - result.conditions.keys():
        yield f"the result's conditions lack {', '.join(sorted(lacking))}, see `sets` and `mechanism` of describe"
    yield from _resumed(trial, what, result)
    yield from _trained(trial, folder / results.BEST_FILE, dataset)


def _resumed(trial: Trial, what: Spec, whole: RunResult) -> Faults:
    """A run that is cut short after an epoch goes on from its checkpoint, to the predictions and the loss of a whole one."""
    folder = trial.out / "cut-short"
    words = ["run", str(trial.written(what, "cut-short-spec")), "--out", str(folder)]
    log, process, code = folder.with_suffix(".log"), None, None
    try:
        with signals.deferred():
            process = launch.start(trial.name, words, log=log)
        until = time.monotonic() + heartbeat.HANG_SECONDS
        while (code := process.poll()) is None and not (folder / checkpoint.FILE).exists() and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
    finally:
        if process is not None:
            launch.stop(process, grace_seconds=0.0)
    if not (folder / checkpoint.FILE).exists():
        ending = (
            f"was stopped after {heartbeat.HANG_SECONDS:.0f} s" if code is None else f"ended with {launch.describe_exit(code)}"
        )
        said = last_line(log.read_text(encoding="utf-8", errors="replace"))
        yield (
            f"run --resume could not be tried: a run must save {checkpoint.FILE} after each epoch but the last, because "
            f"checkpoint_seconds is 0. It {ending} before one was seen: {said}"
        )
        return
    code, said, again = trial.run(what, "resumed", "--resume", folder)
    if code != 0:
        yield f"run --resume ended with {launch.describe_exit(code)}: {last_line(said)}"
        return
    result = results.load(again / results.RESULT_FILE)
    if result.resumes != 1:
        yield f"run --resume starts over. Received: {result.started_over}"
    if result.predictions_hash != whole.predictions_hash:
        yield "a run that goes on from its checkpoint makes other predictions than one that was left alone"
    elif result.test and whole.test and (apart := relative_difference(result.test.loss, whole.test.loss)) > FLOAT32_TOLERANCE:
        yield f"a run that goes on from its checkpoint has another loss than one that was left alone, by {apart:.1e} of it"


def _trained(trial: Trial, best: Path, dataset: Dataset) -> Faults:
    model = trained.load(best)
    images = np.asarray(dataset.test.images[:10])
    np.save(given := trial.out / "images.npy", images, allow_pickle=False)
    expected = evaluation.logits(model.architecture, model.weights, images)
    for label, path in _files(trial, best, model):
        code, said = trial.call(["score", path, "--images", given, "--out", out := trial.out / f"{label}-logits.safetensors"])
        if code != 0:
            yield f"score ended with {launch.describe_exit(code)}: {last_line(said)}"
        elif (apart := scaled(inference.load_logits(out, trained.load(path), len(images)), expected)) > TOLERANCE:
            yield f"score gives logits of {label} that differ from the referee by {apart:.1e}, tolerance {TOLERANCE:.0e}"


def _files(trial: Trial, best: Path, model: Trained) -> Iterator[tuple[str, Path]]:
    """The trained model, and the same by way of the framework's own file."""
    yield "a trained model", best
    card = trial.written(model.card.model_dump_json(), "card")
    for suffix in trial.description["formats"]:
        own, back = trial.out / f"own{suffix}", trial.out / f"back{suffix}{trained.SUFFIX}"
        for words in (["write", best, "--out", own], ["read", own, "--card", card, "--out", back]):
            code, said = trial.call(words)
            if code != 0:
                raise LaunchError(f"{words[0]} of {suffix} ended with {launch.describe_exit(code)}: {last_line(said)}")
        yield f"a {suffix} file", back

"""The requests of `match`, one JSON object a line: open a model, measure the open model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import safetensors.numpy

from common.machine import heartbeat
from common.matching.records import Array, Ask, Model, images
from common.models import weights
from common.spec import SpecError


def serve(build: Callable[[Ask], Model], lines: Iterable[str], answers: TextIO) -> None:
    """Do one request after another.

    `{"open": Ask, "out": FILE}` builds a model, runs it, and writes its parameters. `{"measure": FILE or null, "out": FILE}`
    loads parameters into it and writes all that the ladder compares. The answer is `{"opened": ...}`, `{"measured": layers by
    mode, "optimizers": settings by rule}`, or `{"refused": why}`.
    """
    model: Model | None = None
    ask: Ask | None = None
    for line in lines:
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            if "open" in request:
                model, ask = None, Ask.model_validate(request["open"])
                model = build(ask)
                weights.save(model.parameters(), Path(request["out"]))
                answer = {"opened": model.opened.model_dump()}
            else:
                assert model is not None and ask is not None
                given = request["measure"] and safetensors.numpy.load_file(request["measure"])
                answer, arrays = measure(model, ask, given)
                weights.save(arrays, Path(request["out"]))
        except SpecError as error:
            answer = {"refused": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


def measure(model: Model, ask: Ask, given: dict[str, Array] | None) -> tuple[dict[str, Any], dict[str, Array]]:
    """(the answer, arrays by name).

    `MODE/PLACE/in` and `MODE/PLACE/out` are values of layers, `MODE/logits` the output. `statistics/NAME` are running
    statistics after one pass in training mode. `RULE/first/NAME` and `RULE/last/NAME` are parameters after the first and
    last step.
    """
    if given is not None:
        model.load(given)
    start = model.parameters()
    pixels, labels = images(ask)
    arrays: dict[str, Array] = {f"start/{name}": value for name, value in start.items()}
    layers: dict[str, list[Any]] = {}
    optimizers: dict[str, dict[str, Any]] = {}
    for mode in ("inference", "training"):
        model.load(start)
        ran, values, logits = model.forward(pixels, training=mode == "training")
        layers[mode] = [each.model_dump() for each in ran]
        for place, (taken, made) in enumerate(values):
            arrays |= {f"{mode}/{place}/in": taken, f"{mode}/{place}/out": made}
        arrays[f"{mode}/logits"] = logits
        heartbeat.heartbeat()
    moved = model.parameters()
    arrays |= {f"statistics/{name}": moved[name] for name in moved if name.endswith((".mean", ".variance"))}
    model.load(start)
    loss, gradients = model.gradients(pixels, labels)
    arrays |= {"loss": np.asarray(loss), **{f"gradients/{name}": value for name, value in gradients.items()}}
    for rule in ask.rules:
        model.load(start)
        optimizers[rule] = model.start(rule)
        losses: list[float] = []
        for step in range(ask.steps):
            losses.append(model.step(*images(ask, step)))
            heartbeat.heartbeat()
            if step == 0:
                arrays |= {f"{rule}/first/{name}": value for name, value in model.parameters().items()}
        arrays |= {f"{rule}/last/{name}": value for name, value in model.parameters().items()}
        arrays[f"{rule}/losses"] = np.asarray(losses)
    model.load(start)
    return {"measured": layers, "optimizers": optimizers}, {
        name: np.asarray(array, np.float64) for name, array in arrays.items()
    }

"""The requests of `match`, one JSON object a line: open a model, measure the open model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import safetensors.numpy

from common.machine import heartbeat
from common.matching.records import JITTERS, SEED, Array, Ask, Model, far, images
from common.models import weights
from common.spec import SpecError

_STATISTICS = (".mean", ".variance")
"""Ends of the names of running statistics."""


def serve(build: Callable[[Ask], Model], lines: Iterable[str], answers: TextIO) -> None:
    """Do one request after another.

    `{"open": Ask, "out": FILE}` builds a model, runs it, and writes its parameters. `{"measure": FILE or null, "out": FILE}`
    loads parameters into it and writes all that the ladder compares. The answer is `{"opened": ...}`, `{"measured": layers by
    mode, "optimizers": settings by rule, "far": why a model fails there}`, or `{"refused": why}`. `{"far": WORDS, "out": FILE}`
    looks closer at one of `records.far`, see `look`. It follows a measurement.
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
            elif "far" in request:
                assert model is not None and ask is not None
                answer, arrays = look(model, ask, request["far"], record=request["record"])
                weights.save(arrays, Path(request["out"]))
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
    last step. `far/WORDS` is the output of a pass of `records.far`.
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
        layers[mode], recorded = _recorded(model, pixels, mode)
        arrays |= recorded
        heartbeat.heartbeat()
    refused: dict[str, str] = {}
    moved = model.parameters()
    arrays |= {f"statistics/{name}": moved[name] for name in moved if name.endswith(_STATISTICS)}
    for words, (factor, few) in far(ask).items():
        model.load(_multiplied(start, factor))
        try:  # a model may check the range of its images
            arrays[f"far/{words}"] = model.forward(few, training=False)[2]
        except SpecError as error:
            refused[words] = str(error)
        heartbeat.heartbeat()
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
    return {"measured": layers, "optimizers": optimizers, "far": refused}, _in_float64(arrays)


def look(model: Model, ask: Ask, words: str, *, record: bool) -> tuple[dict[str, Any], dict[str, Array]]:
    """(the answer, arrays by name) of one pass of `records.far`.

    `record`: layers and values as `measure` gives them, in the place of its inference. Else `TYPE` is the output after weights
    and images have changed by as much as rounding to a type of `JITTERS` makes.
    """
    factor, few = far(ask)[words]
    start = model.parameters()
    parameters = _multiplied(start, factor)
    arrays: dict[str, Array] = {}
    layers: list[Any] = []
    try:
        if record:
            model.load(parameters)
            layers, arrays = _recorded(model, few, "inference")
            arrays |= {f"start/{name}": value for name, value in parameters.items()}
        for name, size in {} if record else JITTERS.items():
            model.load({key: _jittered(value, size) for key, value in parameters.items()})
            arrays[name] = model.forward(few if ask.prepare else _jittered(few, size), training=False)[2]
            heartbeat.heartbeat()
    finally:
        model.load(start)
    return {"measured": {"inference": layers}, "optimizers": {}}, _in_float64(arrays)


def _recorded(model: Model, pixels: Array, mode: str) -> tuple[list[Any], dict[str, Array]]:
    """(layers, values of layers and the output) of one pass, by the names of `measure`."""
    ran, values, logits = model.forward(pixels, training=mode == "training")
    arrays = {f"{mode}/logits": logits}
    for place, (taken, made) in enumerate(values):
        arrays |= {f"{mode}/{place}/in": taken, f"{mode}/{place}/out": made}
    return [each.model_dump() for each in ran], arrays


def _multiplied(parameters: dict[str, Array], factor: float) -> dict[str, Array]:
    return {name: value if name.endswith(_STATISTICS) else value * factor for name, value in parameters.items()}


def _jittered(array: Array, size: float) -> Array:
    """Each value moved by this part of itself, up or down. Zeros stay: a condition on them would turn."""
    signs = np.random.default_rng([SEED, 2]).integers(0, 2, array.shape) * 2 - 1
    return array * (1 + signs * size)


def _in_float64(arrays: dict[str, Array]) -> dict[str, Array]:
    return {name: np.asarray(array, np.float64) for name, array in arrays.items()}

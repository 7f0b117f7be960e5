"""Server for the requests of `match`, one JSON object per line: open a model, measure the open model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import safetensors.numpy

from common.machine import heartbeat
from common.matching.records import ROUNDING_JITTERS, SEED, Array, MatchModel, OpenRequest, images, stress_inputs
from common.models import weights
from common.spec import SpecError

_STATISTICS = (".mean", ".variance")
"""Suffixes of the names of running statistics."""


def serve(build: Callable[[OpenRequest], MatchModel], lines: Iterable[str], answers: TextIO) -> None:
    """Answer one request after another.

    - `{"open": OpenRequest, "out": FILE}` builds a model, runs it, writes its parameters. Answer: `{"opened": ModelReport}`.
    - `{"measure": FILE or null, "out": FILE}` loads parameters into it and writes all that the ladder compares. Answer:
      `{"measured": layers by mode, "optimizers": settings by rule, "far": why a model fails there}`.
    - `{"far": WORDS, "out": FILE}` measures one of `records.stress_inputs` again, see `measure_stress_input`. It follows a
      measurement.

    A request that a model refuses is answered with `{"refused": why}`.
    """
    model: MatchModel | None = None
    open_request: OpenRequest | None = None
    for line in lines:
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            if "open" in request:
                model, open_request = None, OpenRequest.model_validate(request["open"])
                model = build(open_request)
                weights.save(model.parameters(), Path(request["out"]))
                answer = {"opened": model.report.model_dump()}
            elif "far" in request:
                assert model is not None and open_request is not None
                answer, arrays = measure_stress_input(model, open_request, request["far"], record=request["record"])
                weights.save(arrays, Path(request["out"]))
            else:
                assert model is not None and open_request is not None
                parameters = request["measure"] and safetensors.numpy.load_file(request["measure"])
                answer, arrays = measure(model, open_request, parameters)
                weights.save(arrays, Path(request["out"]))
        except SpecError as error:
            answer = {"refused": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


def measure(
    model: MatchModel, request: OpenRequest, parameters: dict[str, Array] | None
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Measure the open model. Returns (the answer, arrays by name).

    `MODE/PLACE/in` and `MODE/PLACE/out` are values of layers, `MODE/logits` the output. `statistics/NAME` are running
    statistics after one pass in training mode. `RULE/first/NAME` and `RULE/last/NAME` are parameters after the first and
    last step. `far/WORDS` is the output of a pass of `records.stress_inputs`.
    """
    if parameters is not None:
        model.load(parameters)
    start = model.parameters()
    pixels, labels = images(request)
    arrays: dict[str, Array] = {f"start/{name}": value for name, value in start.items()}
    layers: dict[str, list[Any]] = {}
    optimizers: dict[str, dict[str, Any]] = {}
    for mode in ("inference", "training"):
        model.load(start)
        layers[mode], recorded = _record_pass(model, pixels, mode)
        arrays |= recorded
        heartbeat.heartbeat()
    refusals: dict[str, str] = {}
    updated_parameters = model.parameters()
    arrays |= {f"statistics/{name}": updated_parameters[name] for name in updated_parameters if name.endswith(_STATISTICS)}
    for words, (factor, batch) in stress_inputs(request).items():
        model.load(_scale_weights(start, factor))
        try:  # a model may check the range of its images
            arrays[f"far/{words}"] = model.forward(batch, training=False)[2]
        except SpecError as error:
            refusals[words] = str(error)
        heartbeat.heartbeat()
    model.load(start)
    loss, gradients = model.gradients(pixels, labels)
    arrays |= {"loss": np.asarray(loss), **{f"gradients/{name}": value for name, value in gradients.items()}}
    for rule in request.rules:
        model.load(start)
        optimizers[rule] = model.start(rule)
        losses: list[float] = []
        for step in range(request.steps):
            losses.append(model.step(*images(request, step)))
            heartbeat.heartbeat()
            if step == 0:
                arrays |= {f"{rule}/first/{name}": value for name, value in model.parameters().items()}
        arrays |= {f"{rule}/last/{name}": value for name, value in model.parameters().items()}
        arrays[f"{rule}/losses"] = np.asarray(losses)
    model.load(start)
    return {"measured": layers, "optimizers": optimizers, "far": refusals}, _to_float64(arrays)


def measure_stress_input(
    model: MatchModel, request: OpenRequest, words: str, *, record: bool
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Measure one pass of `records.stress_inputs`. Returns (the answer, arrays by name).

    With `record`, it returns layers and values as `measure` does for inference. Else `TYPE` is the output after weights and
    images have changed by as much as rounding to a type of `ROUNDING_JITTERS` does.
    """
    factor, batch = stress_inputs(request)[words]
    start = model.parameters()
    parameters = _scale_weights(start, factor)
    arrays: dict[str, Array] = {}
    layers: list[Any] = []
    try:
        if record:
            model.load(parameters)
            layers, arrays = _record_pass(model, batch, "inference")
            arrays |= {f"start/{name}": value for name, value in parameters.items()}
        for name, size in {} if record else ROUNDING_JITTERS.items():
            model.load({key: _jitter(value, size) for key, value in parameters.items()})
            arrays[name] = model.forward(batch if request.prepare else _jitter(batch, size), training=False)[2]
            heartbeat.heartbeat()
    finally:
        model.load(start)
    return {"measured": {"inference": layers}, "optimizers": {}}, _to_float64(arrays)


def _record_pass(model: MatchModel, pixels: Array, mode: str) -> tuple[list[Any], dict[str, Array]]:
    """Return (layers, values of layers and the output) of one pass, by the names of `measure`."""
    layers, values, logits = model.forward(pixels, training=mode == "training")
    arrays = {f"{mode}/logits": logits}
    for position, (layer_input, layer_output) in enumerate(values):
        arrays |= {f"{mode}/{position}/in": layer_input, f"{mode}/{position}/out": layer_output}
    return [layer.model_dump() for layer in layers], arrays


def _scale_weights(parameters: dict[str, Array], factor: float) -> dict[str, Array]:
    return {name: value if name.endswith(_STATISTICS) else value * factor for name, value in parameters.items()}


def _jitter(array: Array, size: float) -> Array:
    """Change each value by this part of itself, up or down. Zeros stay: a condition on them would change."""
    signs = np.random.default_rng([SEED, 2]).integers(0, 2, array.shape) * 2 - 1
    return array * (1 + signs * size)


def _to_float64(arrays: dict[str, Array]) -> dict[str, Array]:
    return {name: np.asarray(array, np.float64) for name, array in arrays.items()}

"""The layers that a twin builds: `models`."""

from __future__ import annotations

import json
from collections.abc import Iterator

from common.models import architectures
from common.models.architectures import Layer, ReLU
from compare.conformance.training import STEPS
from compare.conformance.trial import Faults, Trial, last_line, loaded, spec_of
from compare.execution import launch


def check(trial: Trial) -> Faults:
    for model in STEPS:
        what, out = spec_of(model), trial.out / f"{model}-summary.json"
        _, architecture = loaded(what)
        code, said = trial.call(["models", trial.written(what, f"models-{model}"), "--out", out])
        if code != 0:
            yield f"models {model} ended with {launch.exit_words(code)}: {last_line(said)}"
            continue
        found = json.loads(out.read_text(encoding="utf-8"))
        parameters = architecture.parameters()
        totals = sum(each.size for each in parameters), sum(each.size for each in parameters if each.trainable)
        if (received := (found.get("values"), found.get("trainable_values"))) != totals:
            yield f"{model} has {received[0]} values, {received[1]} of them trainable. Expected {totals[0]} and {totals[1]}"
        built = {layer["name"]: layer for layer in found["layers"]}
        size = architecture.image_size
        for name, shape in _shapes(architecture.layers, (size, size, 3)):
            values = sum(each.size for each in parameters if each.name.rpartition(".")[0] == name)
            wanted = {"output_shape": list(shape), "values": values}
            if {key: built.get(name, {}).get(key) for key in wanted} != wanted:
                yield f"{model}, layer {name} must be {wanted}. Received: {built.get(name)}"


def _shapes(layers: tuple[Layer, ...], shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, output shape) of each layer without branches but ReLUs."""
    for layer in layers:
        after = architectures.output_shape((layer,), shape, layer.name)
        if branches := architectures.branches(layer):
            for branch in branches:
                yield from _shapes(branch, shape)
        elif not isinstance(layer, ReLU):
            yield layer.name, after
        shape = after

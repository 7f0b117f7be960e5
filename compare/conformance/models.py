"""Check of the layers that a twin builds: `models`."""

from __future__ import annotations

import json
from collections.abc import Iterator

from common.models import architectures
from common.models.architectures import Layer, ReLU
from compare.conformance.training import STEPS
from compare.conformance.trial import Faults, TwinUnderTest, last_line, load_data_and_model, spec_of
from compare.execution import launch


def check(trial: TwinUnderTest) -> Faults:
    for model in STEPS:
        spec, out = spec_of(model), trial.out / f"{model}-summary.json"
        _, architecture = load_data_and_model(spec)
        code, output = trial.call(["models", trial.write_spec(spec, f"models-{model}"), "--out", out])
        if code != 0:
            yield f"models {model} ended with {launch.describe_exit(code)}: {last_line(output)}"
            continue
        summary = json.loads(out.read_text(encoding="utf-8"))
        parameters = architecture.parameters()
        totals = (
            sum(parameter.size for parameter in parameters),
            sum(parameter.size for parameter in parameters if parameter.trainable),
        )
        if (received := (summary.get("values"), summary.get("trainable_values"))) != totals:
            yield f"{model} has {received[0]} values, {received[1]} of them trainable. Expected {totals[0]} and {totals[1]}"
        built = {layer["name"]: layer for layer in summary["layers"]}
        size = architecture.image_size
        for name, shape in _shapes(architecture.layers, (size, size, 3)):
            values = sum(parameter.size for parameter in parameters if parameter.name.rpartition(".")[0] == name)
            expected = {"output_shape": list(shape), "values": values}
            if {key: built.get(name, {}).get(key) for key in expected} != expected:
                yield f"{model}, layer {name} must be {expected}. Received: {built.get(name)}"


def _shapes(layers: tuple[Layer, ...], shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield (name, output shape) of each layer without branches, except ReLUs."""
    for layer in layers:
        output = architectures.output_shape((layer,), shape, layer.name)
        if branches := architectures.branches(layer):
            for branch in branches:
                yield from _shapes(branch, shape)
        elif not isinstance(layer, ReLU):
            yield layer.name, output
        shape = output

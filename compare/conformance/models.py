"""Check of the layers that a twin builds: `models`."""

from __future__ import annotations

import json
from collections.abc import Iterator

from common.models import architectures
from common.models.architectures import Layer, ReLU
from compare.conformance.trial import Faults, TwinUnderTest, last_line, load_data_and_model, spec_of
from compare.execution import launch


def check(trial: TwinUnderTest) -> Faults:
    files = {model: trial.out / f"{model}-summary.json" for model in trial.model_steps}
    endings = trial.call_all(
        [["models", trial.write_spec(spec_of(model), f"models-{model}"), "--out", out] for model, out in files.items()]
    )
    for (model, out), (code, output) in zip(files.items(), endings, strict=True):
        _, architecture = load_data_and_model(spec_of(model))
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
        for name, shape in layer_shapes(architecture.layers, (size, size, 3)):
            values = sum(parameter.size for parameter in parameters if parameter.name.rpartition(".")[0] == name)
            expected = {"output_shape": list(shape), "values": values}
            if {key: built.get(name, {}).get(key) for key in expected} != expected:
                yield f"{model}, layer {name} must be {expected}. Received: {built.get(name)}"


def layer_shapes(layers: tuple[Layer, ...], shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield (name, output shape) of each layer without branches, except ReLUs."""
    for layer in layers:
        output = architectures.output_shape((layer,), shape, layer.name)
        if branches := architectures.branches(layer):
            for branch in branches:
                yield from layer_shapes(branch, shape)
        elif not isinstance(layer, ReLU):
            yield layer.name, output
        shape = output

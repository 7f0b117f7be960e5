"""Checks of what a twin says of itself, which layers it builds, and what it refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common import spec
from common.artifacts import results
from common.models import architectures
from common.models.architectures import Layer, ReLU
from common.spec import MODES
from compare.cli import exits
from compare.tools.conformance.trial import Faults, TwinUnderTest, ending, last_line, load_data_and_model, spec_of

FIELDS: dict[str, type] = {
    "framework": str, "versions": dict, "supported": dict, "libraries": dict, "devices": list, "modes": dict, "options": dict,
    "inputs": dict, "deterministic": bool, "formats": list,
}  # fmt: skip
"""Required fields of `describe` and their types, as `docs/a-new-twin.md` lists them."""
CONDITIONS = ("graph", "layout")
"""Conditions of a run that a switch must name."""
_MODE_KEYS = {"available", "reason", "max_replicas", "resource", "implementation", "mechanism", "batch_norm_statistics"}


def description_faults(description: Mapping[str, Any], framework: str) -> Faults:
    """Yield the faults of a twin's `describe`."""
    for name, kind in FIELDS.items():
        if not isinstance(description.get(name), kind):
            yield f"describe has no {name} of type {kind.__name__}. Received: {description.get(name)!r}"
            return
    if description["framework"] != framework:
        yield f"describe names another framework. Received: {description['framework']!r}, expected {framework!r}"
    if not description["versions"] or not all(isinstance(version, str) for version in description["versions"].values()):
        yield f"versions must name packages and their versions. Received: {description['versions']!r}"
    if not description["devices"] or any(device.keys() != {"name", "kind"} for device in description["devices"]):
        yield f"devices must have a name and a kind each. Received: {description['devices']!r}"
    if not all(isinstance(suffix, str) and suffix.startswith(".") for suffix in description["formats"]):
        yield f"formats must be suffixes that begin with a dot. Received: {description['formats']!r}"
    if not description["modes"].get("serial", {}).get("available"):
        yield "modes must have serial, and it must be available"
    for name, mode in description["modes"].items():
        if name not in MODES.names():
            yield f"modes names {name!r}, which is no mode. Use {', '.join(MODES.names())}"
        elif missing := _MODE_KEYS - mode.keys():
            yield f"modes.{name} lacks {', '.join(sorted(missing))}"
        elif mode["available"] != (mode["reason"] is None):
            yield f"modes.{name} must have a reason if it is not available, and only then. Received: {mode['reason']!r}"
    for name, option in description["options"].items():
        if missing := {"values", "default", "help"} - option.keys():
            yield f"options.{name} lacks {', '.join(sorted(missing))}"
        elif option["default"] not in option["values"]:
            yield f"options.{name} has a default that is none of its values. Received: {option['default']!r}"
    named_conditions = {condition for option in description["options"].values() for condition in option.get("sets", {})}
    if missing := [condition for condition in CONDITIONS if condition not in named_conditions]:
        yield f"options must have a switch whose `sets` names {' and '.join(missing)}. Received: {sorted(named_conditions)}"


def check_description(trial: TwinUnderTest) -> Faults:
    yield from description_faults(trial.description, trial.contestant.twin)


def check_models(trial: TwinUnderTest) -> Faults:
    files = {model: trial.out / f"{model}-summary.json" for model in trial.model_steps}
    endings = trial.call_all(
        [["models", trial.write_spec(spec_of(model), f"models-{model}"), "--out", out] for model, out in files.items()]
    )
    for (model, out), (code, output) in zip(files.items(), endings, strict=True):
        _, architecture = load_data_and_model(spec_of(model))
        if code != 0:
            yield f"models {model} ended with {ending(code, output)}"
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


def check_refusals(trial: TwinUnderTest) -> Faults:
    modes, out = trial.description["modes"], trial.out / "bad"
    missing = next((mode for mode in MODES.names() if not modes.get(mode, {}).get("available")), None)
    empty = trial.out / "no-images"
    empty.mkdir(exist_ok=True)
    pipe = trial.out / "pipe.json"
    if not pipe.exists():
        os.mkfifo(pipe)
    cases: list[tuple[str, list[str | Path], int, str]] = [
        ("an unknown command", ["nonsense"], exits.USAGE, "nonsense"),
        ("no spec file", ["run", trial.out / "none.json", "--out", out], exits.USAGE, "none.json"),
        ("a pipe in place of a spec", ["run", pipe, "--out", out], exits.USAGE, "no plain file"),
        ("an empty value", ["run", trial.write_spec(spec_of(), "whole"), "--out", ""], exits.USAGE, "empty"),
        ("an unknown field", ["run", trial.write_spec('{"modle": 1}', "misspelt"), "--out", out], exits.USAGE, "modle"),
        ("a torn spec", ["run", trial.write_spec("{", "torn"), "--out", out], exits.USAGE, "torn.json"),
    ]
    for label, fields, code, mentioned in (
        ("an unknown switch", {"framework_options": {"nonsense": 1}}, exits.USAGE, "nonsense"),
        ("data without images", {"data": {"source": str(empty)}}, exits.DATA_REFUSED, "no-images"),
        ("a loss that diverges", {"optimizer": {"learning_rate": 1e30}, "steps": 20}, exits.RUN_FAILED, ""),
    ):
        path = trial.write_spec(spec_of().with_fields(**fields), label.replace(" ", "-"))
        cases.append((label, ["run", path, "--out", trial.out / f"{path.stem}-run"], code, mentioned))
    if missing is not None:
        word = next(word for word, mode in MODES.items() if mode.name == missing)
        unavailable = spec.build(spec.with_variant(spec_of().model_dump(), word, 2))
        path = trial.write_spec(unavailable, f"mode-{missing}")
        cases.append((f"mode {missing}", ["run", path, "--out", out], exits.USAGE, "not available"))
    endings = trial.call_all([words for _, words, _, _ in cases])
    for (label, _, expected, mentioned), (code, output) in zip(cases, endings, strict=True):
        if code != expected:
            yield f"{label} must end with exit code {expected}. Received: {ending(code, output)}"
        elif mentioned not in output:
            yield f"{label} must be refused with a message that names {mentioned!r}. Received: {last_line(output)}"
    if out.exists():
        yield "a run that is refused must leave no folder"
    path = trial.out / "a-loss-that-diverges-run" / results.RESULT_FILE
    status = results.load(path).status if path.exists() else "none"
    if status != "diverged":
        yield f"a loss that diverges must leave a result of status diverged. Received: {status}"

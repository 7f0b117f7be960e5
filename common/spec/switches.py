"""A framework's own switches: their entries in `describe`, compared with a spec."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from common.spec import written
from common.spec.errors import SpecError, alternatives, did_you_mean, format_value
from common.spec.schema import Spec
from common.spec.written import Location


def description_for_device(spec: Spec, description: dict[str, Any]) -> dict[str, Any]:
    """Return a framework's description for the device of a run.

    Args:
        description: the twin's `describe`. If there are GPUs, `on_cpu` has the entries that differ without them.
    """
    return description | description.get("on_cpu", {}) if spec.device == "cpu" else description


def gpus(spec: Spec, descriptions: Iterable[dict[str, Any]]) -> list[str] | None:
    """Return the names of the GPUs for a run, from the first framework that finds any. None: there are none.

    Args:
        descriptions: each twin's `describe`.
    """
    names = (
        [device["name"] for device in description_for_device(spec, description)["devices"] if device["kind"] != "cpu"]
        for description in descriptions
    )
    return next(filter(None, names), None)


def check_against(
    spec: Spec,
    description: dict[str, Any],
    replicas_here: int | None = None,
    locations: Mapping[str, Location] = MappingProxyType({}),
) -> str | None:
    """Compare a spec with a framework's description of itself on this machine.

    Args:
        replicas_here: replicas that share its devices, if an outer launcher has placed them. None: as `hosts` places them.
        description: the twin's `describe` JSON: `modes` {name: {"available": bool, "reason": str,
            "max_replicas": int | None (on one machine), "batch_norm_statistics": [...]}}, `options`
            {name: {"values": [...], "default": ..., "help": str}}. The default is that of `usual`. Optional entries:
            "plain", "closed": those of these levels.
            "sets": {condition: {value: what it means there}}, see `conditions`.
            "sets_native": the same with the framework's own optimizer, where that differs.
            "elsewhere": {value: what it needs that this machine lacks}.
            "only": {value: {dotted field of the spec: [the values that it is for]}}.
            "reduced": values that compute with fewer digits than the precision says.
            "process": values that are set when a process starts.
            "found_for": fields of the spec that must be equal for a fastest value to be used again.
            Values that are keys are strings. `on_cpu`: see `description_for_device`. `inputs_not_available` (optional):
            {input: reason}.
        locations: fields that switches were written in, if not in `framework_options`. An error names them, and shows their
            values as they stand there.

    Returns:
        None if the run can start, else "not available: ..." with the reason, for the table's row.
    """
    description = description_for_device(spec, description)
    options = description["options"]
    fields = {name: locations.get(name, f"framework_options.{name}") for name in spec.framework_options}
    for name, value in spec.framework_options.items():
        field, received = written.name_of(fields[name]), format_value(value, fields[name])
        if name not in options:
            raise SpecError(
                f"{field} is unknown to {description['framework']}. Received: {received}. "
                f"Use {alternatives(tuple(options))}{did_you_mean(name, tuple(options))}."
            )
        if value not in options[name]["values"] and str(value) not in options[name].get("elsewhere", {}):
            raise SpecError(
                f"{field} has a value that {description['framework']} does not know. Received: {received}. "
                f"Use {alternatives(tuple(str(choice) for choice in options[name]['values']))}."
            )
    mode = description["modes"].get(spec.mode)
    if mode is None:
        return f"not available: {description['framework']} has no mode {spec.mode}"
    if not mode["available"]:
        return f"not available: {mode['reason']}"
    if (reason := description.get("inputs_not_available", {}).get(spec.input)) is not None:
        return f"not available: {reason}"
    num_replicas = spec.replicas_per_host if replicas_here is None else replicas_here
    if mode["max_replicas"] is not None and num_replicas > mode["max_replicas"]:
        return f"not available: needs {num_replicas} {mode['resource']}, found {mode['max_replicas']}"
    for name, value in spec.framework_options.items():
        if (reason := incompatibility(spec, options[name], value)) is not None:
            return f"not available: {written.name_of(fields[name])}={value} {reason}"
    if spec.batch_norm_statistics == "synchronised" and spec.traits.no_global_statistics_because is not None:
        return f"not available: {spec.traits.no_global_statistics_because}"
    if spec.traits.cuts_batches and spec.micro_batches() == 1 < spec.micro_batches_requested:
        return (
            f"not available: {spec.per_replica_batch_size} examples cannot be cut into 2 to {spec.micro_batches_requested} "
            "equal micro-batches, and with one nothing overlaps (model_parallel)"
        )
    if spec.batch_norm_statistics not in mode["batch_norm_statistics"]:
        return f"not available: no {spec.batch_norm_statistics} BatchNorm in this mode ({mode['implementation']})"
    if spec.communication.compression != "none" and not mode.get("compression", True):
        return f"not available: {mode['implementation']} sends gradients as they are"
    if spec.accumulation > 1 and not mode.get("accumulation", True):
        return f"not available: {mode['implementation']} trains on whole batches (accumulation {spec.accumulation})"
    return None


def incompatibility(spec: Spec, option: dict[str, Any], value: Any) -> str | None:
    """Return why a value of a switch does not fit this run or machine, as the end of a sentence. None if it fits."""
    if str(value) in option.get("elsewhere", {}):
        return f"needs {option['elsewhere'][str(value)]}"
    for field, allowed in option.get("only", {}).get(str(value), {}).items():
        received: Any = spec
        for name in field.split("."):
            received = getattr(received, name)
        if received not in allowed:
            return f"is for {field} {alternatives(tuple(map(str, allowed)))}, not for {received}"
    return None


def resolve_switches(spec: Spec, options: dict[str, Any]) -> dict[str, Any]:
    """Return the value of every switch in a run: the spec's, else its level's if that fits the run, else that of `usual`.

    Args:
        options: from the twin's `describe`, see `check_against`.
    """

    def level_value(option: dict[str, Any]) -> Any:
        value = option.get(spec.switches, option["default"])
        return value if incompatibility(spec, option, value) is None else option["default"]

    return {name: spec.framework_options.get(name, level_value(option)) for name, option in options.items()}


def refuse_per_process(spec: Spec, options: dict[str, Any], framework: str) -> None:
    """Refuse switches that are set when a process starts, for a trial that shares its process with others."""
    for name, value in resolve_switches(spec, options).items():
        if value in options[name].get("process", ()):
            raise SpecError(
                f"framework_options.{name} of {framework} is settled when a process starts, and one process serves many "
                f"trials. Received: {value!r} (switches: {spec.switches}). Use {options[name]['default']!r}."
            )


def conditions(spec: Spec, description: dict[str, Any]) -> dict[str, str]:
    """Return the conditions under which a run's mode and switches are timed. Both frameworks use the same words.

    Args:
        description: the twin's `describe`, see `check_against`. `deterministic`: whether the framework enforces it.
            `inputs`: what prepares batches, by input.

    Returns:
        `layout`, `precision`, `graph`, `update`, `mechanism` and `deterministic`, each if the twin says it.
    """
    description = description_for_device(spec, description)
    switches = resolve_switches(spec, description["options"])
    arithmetic = switches.get("arithmetic", "full")
    values = {"precision": spec.precision if arithmetic == "full" else f"{spec.precision}, layers in {arithmetic}"}
    for name, option in description["options"].items():
        sets = option.get("sets", {}) | (option.get("sets_native", {}) if spec.optimizer.native else {})
        values |= {condition: words[str(switches[name])] for condition, words in sets.items()}
    if (mechanism := description["modes"][spec.mode].get("mechanism")) is not None:
        input_words = description.get("inputs", {}).get(spec.input)
        values["mechanism"] = f"{mechanism}; input by {input_words}" if input_words else mechanism
    if "deterministic" in description:
        values["deterministic"] = "enforced" if description["deterministic"] else "not enforced"
    return values


def reduced_precision_switches(spec: Spec, options: dict[str, Any]) -> list[str]:
    """Return the switches, as `name=value`, that make a run compute with fewer digits than its precision says."""
    switches = resolve_switches(spec, options)
    return [f"{name}={switches[name]}" for name, option in options.items() if switches[name] in option.get("reduced", ())]

"""What `run` is asked for: a preset or a spec file, with the options of the command line over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from common import spec
from common.spec import SpecError
from compare.core import presets, until_decided
from compare.core.presets import Preset


def settings(preset: str | None, spec_file: Path | None, options: Mapping[str, Any], assignments: list[str]) -> Preset:
    """The preset or spec file with the options over it, and `--set` over these."""
    if preset is not None and spec_file is not None:
        raise SpecError(f"--preset and --spec exclude each other. Received: {preset} and {spec_file}. Use one of them.")
    settings = presets.preset(preset) if preset is not None else Preset()
    values = settings.values
    if spec_file is not None:
        values, until = until_decided.of_fields(spec.read_values(spec_file))
        named = values.pop("contestants", None) or {}
        if not isinstance(named, dict):
            raise SpecError(f"contestants must be a group of them. Received: {named!r}. Write {{NAME: {{twin: pytorch}}}}.")
        settings = replace(settings, until=until, contestants=cast(dict[str, Any], named))
    given = {field: value for field, value in options.items() if value is not None}
    for asked in (given, spec.parse_assignments(assignments)):
        for field, other in (("epochs", "steps"), ("steps", "epochs")):
            if asked.get(field) is not None:
                values = {name: value for name, value in values.items() if name != other}
        values = spec.overlay(values, asked)
    return _with_modes(replace(settings, values=values))


def _with_modes(settings: Preset) -> Preset:
    """Move mode and replicas from the values to the matrix, which sets both for each row.

    A spec that names a parallel mode is compared with serial.
    """
    values = {name: value for name, value in settings.values.items() if name not in ("mode", "replicas")}
    mode, replicas = (settings.values.get(name) for name in ("mode", "replicas"))
    settings = replace(settings, values=values)
    if replicas is not None and not (mode == "serial" and replicas == 1):
        if type(replicas) is not int or replicas < 2:
            raise SpecError(
                f"--replicas of the parallel modes must be a whole number of at least 2. Received: {replicas!r}. Use 2."
            )
        settings = replace(settings, replicas=replicas)
    if mode is None:
        return settings
    if mode == "serial":
        return replace(settings, modes=("serial",))
    asked = spec.build({**values, "mode": mode, "replicas": settings.replicas})
    copies = asked.data_replicas if asked.mode == "hybrid" else asked.replicas
    return replace(settings, modes=("serial", asked.variant), replicas=copies)

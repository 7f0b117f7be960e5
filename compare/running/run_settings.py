"""Settings of `run`: a preset or a spec file, overridden by the options of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from common import spec
from common.spec import MODES, SpecError
from common.spec.errors import format_value
from compare.cli.option_parsing import parse_choices, parse_modes, split_names
from compare.running import axes, presets
from compare.running.comparison_settings import ComparisonSettings
from compare.running.contestants import Contestant
from compare.statistics import until_decided

MATRIX_FIELDS = ("modes", "one_core", "repeats")
"""Fields of a spec file that are no fields of a single run. Commands that look at one run ignore them."""


def settings(
    preset: str | None, spec_file: Path | None, options: Mapping[str, Any], assignments: list[str]
) -> ComparisonSettings:
    """Return the preset or spec file, overridden by the options, and these by `--set`."""
    ((labels, first), *_) = settings_of_cells(preset, spec_file, options, assignments)
    if labels:
        raise SpecError(f"Only run takes several values. Received: a list for {', '.join(labels)}. Name one of them.")
    return first


def settings_of_cells(
    preset: str | None, spec_file: Path | Mapping[str, Any] | None, options: Mapping[str, Any], assignments: list[str]
) -> list[tuple[dict[str, str], ComparisonSettings]]:
    """Return (labels, settings) of each cell, see `axes.expand`.

    Args:
        spec_file: its path, or the values that it would hold.
    """
    if preset is not None and spec_file is not None:
        raise SpecError(f"--preset and --spec exclude each other. Received: {preset} and {spec_file}. Use one of them.")
    settings = presets.preset(preset) if preset is not None else ComparisonSettings()
    values = settings.values
    if spec_file is not None:
        stated = spec_file if isinstance(spec_file, Mapping) else spec.read_values(spec_file)
        try:
            values, settings = _with_stated(settings, stated)
        except SpecError as error:
            raise error if isinstance(spec_file, Mapping) else SpecError(f"{spec_file} is refused: {error}") from None
        if not isinstance(spec_file, Mapping):
            for _, cell_values in axes.expand(values):
                spec.check_fields(cell_values, f"spec file {spec_file}")
    given_options = {field: value for field, value in options.items() if value is not None}
    for overrides in (given_options, spec.parse_assignments(assignments)):
        for field, other in (("epochs", "steps"), ("steps", "epochs")):
            if overrides.get(field) is not None:
                values = {name: value for name, value in values.items() if name != other}
        values = spec.overlay(values, overrides)
    return [(labels, _with_modes(settings.updated(values=cell_values))) for labels, cell_values in axes.expand(values)]


def _with_stated(settings: ComparisonSettings, stated: Mapping[str, Any]) -> tuple[dict[str, Any], ComparisonSettings]:
    """Return the fields of runs among those that a spec file states, and the settings with its others."""
    values, until = until_decided.split_stopping_rule(stated)
    named = values.pop("contestants", {})
    if not isinstance(named, dict) or ("contestants" in stated and not named):
        received = format_value(named, "contestants")
        raise SpecError(f"contestants must be a group of them. Received: {received}. Write {{NAME: {{twin: pytorch}}}}.")
    values, matrix = _split_matrix_fields(values)
    contestants = tuple(Contestant.from_fields(name, fields) for name, fields in cast(dict[str, Any], named).items())
    return values, settings.updated(until=until, stated_settings=tuple(matrix), contestants=contestants, **matrix)


def with_matrix(
    settings: ComparisonSettings, modes: str | None, default_modes: str, repeats: int | None, default_repeats: int
) -> ComparisonSettings:
    """Return the settings with modes and repeats of the options, else of the spec file, else the command's defaults."""
    if modes is not None or "modes" not in settings.stated_settings:
        settings = settings.updated(modes=parse_modes(modes or default_modes))
    if repeats is not None or "repeats" not in settings.stated_settings:
        settings = settings.updated(repeats=repeats or default_repeats)
    return settings


def _split_matrix_fields(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the fields of a spec file into (other fields, MATRIX_FIELDS)."""
    others, matrix_fields = {name: value for name, value in values.items() if name not in MATRIX_FIELDS}, dict[str, Any]()
    if (modes := values.get("modes")) is not None:
        words = split_names(modes) if isinstance(modes, str) else modes
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise SpecError(
                f"modes must be a list of modes. Received: {format_value(modes, 'modes')}. Use e.g. [serial, data_parallel]."
            )
        if "mode" in values:
            received = f"{format_value(values['mode'], 'mode')} and {format_value(modes, 'modes')}"
            raise SpecError(f"mode and modes exclude each other. Received: {received}. Use one of them.")
        matrix_fields["modes"] = tuple(MODES if words == ["all"] else parse_choices("modes", words, tuple(MODES)))
    if (one_core := values.get("one_core")) is not None:
        if type(one_core) is not bool:
            raise SpecError(f"one_core must be true or false. Received: {format_value(one_core, 'one_core')}. Use false.")
        matrix_fields["one_core"] = one_core
    if (repeats := values.get("repeats")) is not None:
        if type(repeats) is not int or repeats < 1:
            received = format_value(repeats, "repeats")
            raise SpecError(f"repeats must be a whole number of at least 1. Received: {received}. Verdicts need 5.")
        matrix_fields["repeats"] = repeats
    return others, matrix_fields


def _with_modes(settings: ComparisonSettings) -> ComparisonSettings:
    """Move mode and replicas from the values to the matrix, which sets both for each row.

    A spec that names a parallel mode is compared with serial.
    """
    values = {name: value for name, value in settings.values.items() if name not in ("mode", "replicas")}
    mode, replicas = (settings.values.get(name) for name in ("mode", "replicas"))
    settings = settings.updated(values=values)
    is_serial = mode in MODES.names(lambda traits: not traits.is_parallel)
    if replicas is not None and not (is_serial and replicas == 1):
        if type(replicas) is not int or replicas < 2:
            raise SpecError(
                "--replicas of the parallel modes must be a whole number of at least 2. Received: "
                f"{format_value(replicas, 'replicas')}. Use 2."
            )
        settings = settings.updated(replicas=replicas)
    if mode is None:
        return settings
    if is_serial:
        return settings.updated(modes=("serial",))
    parallel_run = spec.build({**values, "mode": mode, "replicas": settings.replicas})
    copies = parallel_run.replicas_requested
    return settings.updated(modes=("serial", parallel_run.variant), replicas=copies)

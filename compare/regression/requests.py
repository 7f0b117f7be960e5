"""Requests of `regress` and `bisect`, built from their options."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.spec import SpecError
from compare.comparison import comparison_plan
from compare.comparison.comparison_plan import ComparisonRequest
from compare.execution import run_settings
from compare.execution.comparison_settings import ComparisonSettings
from compare.execution.twins import Twins

_EPOCHS = 4
"""Epochs of a run, by default: a few seconds a run, the median of a few epochs."""


def build_settings(
    preset: str | None,
    spec_file: Path | None,
    fields: Mapping[str, Any],
    assignments: list[str] | None,
    modes: str | None,
    repeats: int | None,
    usual_repeats: int,
) -> ComparisonSettings:
    """Build the settings from the options. Each pair of runs gets a seed of its own.

    Args:
        preset, spec_file, assignments, modes, repeats: values of the command line.
        fields: values by field, see `options.fields`.
        usual_repeats: pairs, if neither the options nor the spec file name a number.
    """
    if fields["epochs"] is None and preset is None and spec_file is None:
        fields = {**fields, "epochs": _EPOCHS}
    settings = run_settings.settings(preset, spec_file, fields, assignments or [])
    settings = run_settings.with_matrix(settings, modes, "serial", repeats, usual_repeats)
    first = settings.values.get("seed") or 0
    return comparison_plan.with_seeds(settings, tuple(range(first, first + settings.repeats)), settings.repeats)


def build_request(
    settings: ComparisonSettings, twins: Twins, folder: Path, only: str | None, *, prove: bool = False
) -> ComparisonRequest:
    """Build the request for the rows that `only` matches. None: all rows."""
    all_rows = settings.build_rows(twins.contestants)
    max_cores = {
        row.contestant: max(other.spec.cores for other in all_rows if other.contestant == row.contestant) for row in all_rows
    }
    # Serial on one core is only a reference for speed-ups, which are not judged here.
    rows = [row for row in all_rows if row.spec.is_parallel or row.spec.cores == max_cores[row.contestant]]
    chosen = [row for row in rows if only is None or fnmatch.fnmatchcase(row.id, only)]
    if not chosen:
        raise SpecError(f"--only matches no row. Received: {only!r}. Rows: {', '.join(row.id for row in rows)}.")
    return ComparisonRequest(settings.updated(prove=prove), chosen, twins, folder)

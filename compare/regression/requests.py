"""What `regress` and `bisect` run, from their options."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.spec import SpecError
from compare.comparison import comparison_plan
from compare.comparison.comparison_plan import Request
from compare.core.presets import Preset
from compare.execution import matrix, run_settings
from compare.execution.matrix import Row

_EPOCHS = 4
"""Epochs of a run, by default: a few seconds a run, the median of a few epochs."""


def settings(
    preset: str | None,
    spec_file: Path | None,
    fields: Mapping[str, Any],
    assignments: list[str] | None,
    modes: str | None,
    repeats: int | None,
    usual_repeats: int,
) -> Preset:
    """The settings of the options. Each pair of runs gets a seed of its own.

    Args:
        preset, spec_file, assignments, modes, repeats: as given.
        fields: of `options.fields`.
        usual_repeats: pairs, if neither the options nor the spec file name a number.

    Raises:
        SpecError: an option is refused.
    """
    if fields["epochs"] is None and preset is None and spec_file is None:
        fields = {**fields, "epochs": _EPOCHS}
    made = run_settings.settings(preset, spec_file, fields, assignments or [])
    made = run_settings.with_matrix(made, modes, "serial", repeats, usual_repeats)
    first = made.values.get("seed") or 0
    return comparison_plan.with_seeds(made, tuple(range(first, first + made.repeats)), made.repeats)


def request(settings: Preset, frameworks: Sequence[str], folder: Path, only: str | None, *, prove: bool = False) -> Request:
    """The request for the rows that `only` matches. None: for all."""

    def lay_out(settings: Preset, frameworks: Sequence[str]) -> list[Row]:
        made = matrix.rows(settings.values, frameworks, settings.modes, settings.replicas, settings.workers)
        whole = {row.contestant: max(each.spec.cores for each in made if each.contestant == row.contestant) for row in made}
        # Serial on one core is only a reference for speed-ups, which are not judged here.
        rows = [row for row in made if row.spec.mode != "serial" or row.spec.cores == whole[row.contestant]]
        chosen = [row for row in rows if only is None or fnmatch.fnmatchcase(row.id, only)]
        if not chosen:
            raise SpecError(f"--only matches no row. Received: {only!r}. Rows: {', '.join(row.id for row in rows)}.")
        return chosen

    return Request(settings, list(frameworks), folder, prove=prove, lay_out=lay_out)

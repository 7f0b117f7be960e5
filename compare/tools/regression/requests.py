"""Requests of `regress` and `bisect`, built from their options: each contestant may have a base beside it."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.spec import SpecError
from compare.cli import wording
from compare.comparison import comparison_plan
from compare.comparison.comparison_plan import ComparisonRequest
from compare.running import matrix, run_settings
from compare.running.comparison_settings import ComparisonSettings
from compare.running.contestants import Contestant
from compare.running.matrix import Row
from compare.running.twins import Twins
from compare.statistics.statistics import VERDICT_PAIRS
from compare.tools.regression.benchmark_command import BenchmarkCommand

PREPARING = "asking the frameworks and reading the data"

PYTEST = "Run `pytest ARGS` with pytest-benchmark in the place of trainings: each benchmark is a figure."
COMMAND = "Run this command in the place of trainings: its command seconds, or the figures that it writes to {json}."
PYTHON = "Interpreter or environment of --pytest and --command. Default: that of this command."

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
    if settings.repeats < VERDICT_PAIRS:
        raise SpecError(
            f"repeats is too small: a verdict needs {VERDICT_PAIRS} pairs. Received: {settings.repeats}. Add --repeats "
            f"{usual_repeats}."
        )
    first = settings.values.get("seed") or 0
    return comparison_plan.with_seeds(settings, tuple(range(first, first + settings.repeats)), settings.repeats)


def own_command(pytest_arguments: str | None, command_line: str | None) -> BenchmarkCommand | None:
    """Return what is run in the place of trainings. None: trainings are run."""
    if pytest_arguments is None and command_line is None:
        return None
    is_pytest = pytest_arguments is not None
    command = BenchmarkCommand("--pytest" if is_pytest else "--command", pytest_arguments if is_pytest else command_line or "")
    command.check()
    return command


def interrupted(folder: Path, what: str = "") -> str:
    """Return the last line of a measurement that is interrupted. `what` stays in its folder."""
    stays = f"{what} are in {folder}. " if what else ""
    return f"Interrupted. {stays}The same command with {wording.shell(['--out', str(folder)])} continues."


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


def runnable(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that this machine can run."""
    chosen = [row for row in rows if row.unavailable is None]
    if not chosen:
        raise SpecError(f"{rows[0].id}: {rows[0].unavailable}. Choose rows that this machine can do.")
    return chosen


def against_environment(pythons: Sequence[str], request: ComparisonRequest) -> ComparisonRequest:
    """Return the request with a base beside each contestant: its twin in another environment.

    Args:
        pythons: environment of the base and of the head: an interpreter, the folder of a virtual environment, or a name, see
            `contestants.interpreter`.
        request: what to run. Its repeats are the pairs. A proof compares the head's contestants with the base's.
    """
    bases, heads = (in_environment(python, request.twins.contestants) for python in pythons)
    return with_bases(request, heads, bases)


def in_environment(python: str, contestants: Sequence[Contestant]) -> list[Contestant]:
    """Return the contestants in another environment."""
    if with_python := [contestant for contestant in contestants if contestant.python is not None]:
        raise SpecError(
            f"--environments names the interpreters. Received also: {with_python[0].name}@{with_python[0].python}. "
            "Leave one of them out."
        )
    return [
        Contestant.from_fields(contestant.name, {**contestant.model_dump(include={"twin", "switches"}), "python": python})
        for contestant in contestants
    ]


def with_bases(request: ComparisonRequest, heads: Sequence[Contestant], bases: Sequence[Contestant]) -> ComparisonRequest:
    """Return the request with these contestants, which are measured in turn: each head with its base."""
    both = [contestant for base, head in zip(bases, heads, strict=True) for contestant in (base.as_base(), head)]
    names = [contestant.name for contestant in both]
    if len({*names}) < len(names):
        raise SpecError(f"A base is named NAME-base. Received: {', '.join(names)}. Give your contestants other names.")
    by_head = {base.base_of: base for base in both}
    rows: list[Row] = []
    for row in request.rows:
        if (base := by_head.get(row.contestant)) is not None:
            rows += [matrix.build_row(base.name + row.id.removeprefix(row.contestant), base, row.spec), row]
    return replace(request, rows=rows, twins=request.twins.with_contestants(both))

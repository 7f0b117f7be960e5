"""The options of `run` that become settings of a comparison, and those of `--resume` that change stored ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from common import spec
from common.spec import SpecError
from compare.cli import wording
from compare.cli.errors import FolderError
from compare.cli.option_types import Integers, Names, Range
from compare.comparison import comparison_plan, matrix_run
from compare.comparison.comparison_plan import ComparisonRequest
from compare.results import cells
from compare.results.cells import MatrixPlan
from compare.running import options, run_settings
from compare.running.comparison_settings import ComparisonSettings
from compare.running.options import ContestantOptions, MatrixOptions
from compare.statistics.statistics import VERDICT_PAIRS
from compare.statistics.until_decided import UntilDecided, stopping_rule_from_options

PROFILE_STEPS = 20
"""Profiled steps of the segment that `--profile` adds to a run."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """A group of options: which rows there are, how each is run, and how often."""

    modes: options.Modes = None
    replicas: options.Replicas = None
    one_core: Annotated[
        bool | None,
        typer.Option("--one-core/--no-one-core", help="Run serial on one core too, which a speed-up is against. Default: yes."),
    ] = None
    inputs: Annotated[
        tuple[str, ...] | None,
        Names(spec.INPUTS),
        typer.Option(
            "--input", help=f"How batches are fed: {' or '.join(spec.INPUTS)}. Several, with commas, make rows of each."
        ),
    ] = None
    workers: options.Workers = None
    input_only: Annotated[bool, typer.Option("--input-only", help="Time the input path alone.")] = False
    compute_only: Annotated[bool, typer.Option("--compute-only", help="Time the model alone, on one batch.")] = False
    on_bad: options.OnBad = None
    duplicates: options.Duplicates = None
    repeats: Annotated[int | None, typer.Option(min=1, help=f"{options.REPEATS} Verdicts need 5.")] = None
    until_decided: Annotated[
        bool, typer.Option("--until-decided", help="Add repeats until every question is decided, or is shown not to matter.")
    ] = False
    most_repeats: Annotated[
        int | None, typer.Option(min=VERDICT_PAIRS, help=f"{options.MOST_REPEATS} With --until-decided. Default: 30.")
    ] = None
    smallest_effect: Annotated[
        str | None, typer.Option(help="With --until-decided: the difference that matters. Default: 5%.")
    ] = None
    seeds: Annotated[
        tuple[int, ...] | None,
        Integers(least=0),
        typer.Option(help="A seed for each repeat, with commas, the same in all rows. The splits keep --seed."),
    ] = None
    target_accuracy: Annotated[
        float | None, typer.Option(help="Count the seconds until the validation accuracy is this, e.g. 0.95.")
    ] = None
    hosts: options.Hosts = None
    switches: Annotated[
        tuple[str, ...] | None,
        Names(spec.LEVELS),
        typer.Option(
            help=f"Level of the switches that the spec does not name: {', '.join(spec.LEVELS)}. Default: usual. Several, with "
            "commas, make rows of each."
        ),
    ] = None
    oversubscribe: Annotated[bool, typer.Option(help="Run modes with more replicas than cores. The replicas share cores.")] = (
        False
    )
    turns: options.Turns = None
    restarts: Annotated[
        int | None,
        typer.Option(min=0, max=10_000, help="How often a run whose process dies goes on from its checkpoint. Default: 0."),
    ] = None
    elastic: Annotated[
        tuple[int, int] | None,
        Range(),
        typer.Option(metavar="MIN:MAX", help="Replicas: a run whose process dies goes on with fewer. It does not count."),
    ] = None
    profile: Annotated[bool, typer.Option("--profile", help=f"{options.PROFILE} A trace is written too.")] = False
    proof: Annotated[bool, typer.Option(help=options.PROOF)] = True

    def request(
        self, spec_options: MatrixOptions, contestant_options: ContestantOptions, out: Path | None, on: str | None
    ) -> ComparisonRequest | MatrixPlan:
        """Return the request for a new comparison, or the plan of a new matrix.

        Args:
            on: see `MatrixPlan.on`.
        """
        cell_settings = run_settings.settings_of_cells(*spec_options.to_request(**self._spec_fields()))
        twins = contestant_options.twins(cell_settings[0][1].contestants)
        all_settings = [(labels, self._override(settings)) for labels, settings in cell_settings]
        requests = [
            (labels, ComparisonRequest(settings, settings.build_rows(twins.contestants), twins, out))
            for labels, settings in all_settings
        ]
        return matrix_run.build_plan(requests, on) if requests[0][0] or on else requests[0][1]

    def resumed_request(self, folder: Path, on: str | None) -> ComparisonRequest | MatrixPlan:
        """Return the request or the plan that made a results folder, with what these options change of it."""
        if cells.is_matrix(folder):
            plan = matrix_run.stored_plan(folder, self.repeats)
            return plan.model_copy(update={"settings": self._override_stored(plan.settings), "on": on or plan.on})
        request = comparison_plan.stored_request(folder, self.repeats)
        if list(request.argv[:1]) in (["regress"], ["bisect"]):
            has_both = any(contestant.base_of for contestant in request.twins.contestants)
            whole = folder if has_both and request.argv[0] == "regress" else folder.parent
            raise FolderError(
                f"{folder} holds runs of a measurement in turn, which are pairs. Received: --resume. Give the command "
                f"{request.argv[0]} again, with {wording.shell(['--out', str(whole)])}."
            )
        if on is not None:
            raise FolderError(
                f"{folder} was begun on this machine. Received: --on {on}. Leave it out, or start another comparison."
            )
        return replace(request, settings=self._override_stored(request.settings))

    def _spec_fields(self) -> Mapping[str, Any]:
        """Return the options that are fields of the spec, by the names of `options.fields`."""
        if self.elastic is not None and self.replicas not in (None, self.elastic[1]):
            received = f"{self.elastic[0]}:{self.elastic[1]} and --replicas {self.replicas}"
            raise SpecError(f"--elastic says how many replicas there are. Received: {received}. Give one.")
        if self.inputs and set(self.inputs) == {"inline"} and any(self.workers or ()):
            numbers = ", ".join(map(str, self.workers or ()))
            raise SpecError(
                f"--input inline has no workers. Received: --workers {numbers}. Leave out --workers, or use --input workers."
            )
        least, replicas = self.elastic or (None, self.replicas)
        return {
            "replicas": replicas,
            "least_replicas": least,
            "input": self.inputs[0] if self.inputs and len(self.inputs) == 1 else None,
            "part": "input" if self.input_only else "compute" if self.compute_only else None,
            "on_bad": self.on_bad,
            "duplicates": self.duplicates,
            "profile_steps": PROFILE_STEPS if self.profile else None,
            "hosts": self.hosts and [*self.hosts],
        }

    def _override(self, settings: ComparisonSettings) -> ComparisonSettings:
        """Return the settings of a spec file or preset, overridden by these options."""
        if self.target_accuracy is not None and not 0.0 < self.target_accuracy <= 1.0:
            raise SpecError(
                f"--target-accuracy must be above 0 and at most 1. Received: {self.target_accuracy:g}. Use 0.95 for 95 %."
            )
        settings = settings.updated(
            modes=self.modes, one_core=self.one_core, workers=self.workers, levels=self.switches,
            inputs=self.inputs if self.inputs and len(self.inputs) > 1 else None,
            repeats=self.repeats, until=self._stopping_rule(settings.until), target_accuracy=self.target_accuracy,
            oversubscribe=self.oversubscribe, turns=self.turns, restarts=self.restarts, prove=self.proof,
        )  # fmt: skip
        if self.elastic is not None and not any(spec.MODES[mode].is_elastic for mode in settings.modes):
            allowed = " or ".join(spec.MODES.names(lambda mode: mode.is_elastic))
            raise SpecError(f"--elastic is for {allowed}. Received: {', '.join(settings.modes)}. Add one to --modes.")
        return settings if self.seeds is None else comparison_plan.with_seeds(settings, self.seeds, self.repeats)

    def _override_stored(self, settings: ComparisonSettings) -> ComparisonSettings:
        return settings.updated(until=self._stopping_rule(settings.until), restarts=self.restarts)

    def _stopping_rule(self, stated: UntilDecided | None) -> UntilDecided | None:
        return stopping_rule_from_options(self.until_decided, self.most_repeats, self.smallest_effect, stated)

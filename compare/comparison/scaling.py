"""`convtwins scaling`: measure the gain from more replicas, and project it to other machines, labelled as such."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compare.comparison import run, scaling_fit, scaling_report, scaling_rows
from compare.comparison.comparison_plan import ComparisonRequest
from compare.comparison.scaling_fit import ProjectionTarget
from compare.core import commands, scaling_laws
from compare.core.commands import Outcome
from compare.core.option_rules import Excludes
from compare.core.option_types import Integers, Names
from compare.execution import options, run_settings, signing
from compare.reporting import comparison_report
from compare.reporting.comparison_report import JudgedComparison
from compare.reporting.document import Report

MODES = "multi_process"


@commands.command(Excludes("--stored", "--sign", advice="Sign with run --resume DIR --sign KEY first."))
def command(
    *,
    modes: Annotated[str | None, typer.Option(help=f"{options.MODES} Default: {MODES}.")] = None,
    replicas: Annotated[
        tuple[int, ...],
        Integers(least=1),
        typer.Option(help=f"{options.REPLICAS} Several numbers, with commas. 1 is serial and always measured."),
    ] = (1, 2),
    workers: options.Workers = None,
    kinds: Annotated[
        tuple[str, ...],
        Names(scaling_rows.KINDS),
        typer.Option(help="strong (global batch fixed), weak (batch of a replica fixed), or both."),
    ] = ("strong", "weak"),
    project: Annotated[
        tuple[int, ...] | None,
        Integers(least=1),
        typer.Option(help="Numbers of replicas to project to, with commas, e.g. 8,64,512."),
    ] = None,
    network: Annotated[
        str, typer.Option(help="10Gbit, 100Gbit, nvlink, or ALPHA,BETA in seconds and seconds per byte.")
    ] = "10Gbit",
    spec_options: options.SpecOptions,
    hosts: options.Hosts = None,
    contestants: options.ContestantOptions,
    epochs: Annotated[int | None, typer.Option(help=f"{options.EPOCHS} Default: 2.")] = None,
    limit: options.Limit = None,
    repeats: Annotated[int | None, typer.Option(min=1, help=f"{options.REPEATS} Intervals need 3, verdicts 5.")] = None,
    cores: options.Cores = None,
    out: options.Out = None,
    stored: Annotated[
        Path | None, typer.Option(help="Measure nothing: read this results folder of an earlier scaling.")
    ] = None,
    sign: options.Sign = None,
) -> Outcome | int:
    """Measure strong and weak scaling, fit Amdahl and Gustafson, and project to machines that are not here."""
    signing.check_key(sign)
    link = scaling_laws.parse_link(network)
    target = ProjectionTarget() if project is None else ProjectionTarget(project, link)
    projection_arguments = [] if project is None else ["--project", ",".join(map(str, project)), "--network", network]

    def view(compared: JudgedComparison, folder: Path) -> Report:
        return scaling_report.report(compared, folder, scaling_fit.read(compared.stored, target), projection_arguments)

    if stored is not None:
        return Outcome(view(comparison_report.read(stored), stored), stored)
    spec_request = spec_options.to_request(epochs=epochs, limit=limit, cores=cores, hosts=hosts and [*hosts])
    settings = run_settings.settings(*spec_request)
    settings = run_settings.with_matrix(settings, modes, MODES, repeats, 1)
    settings = settings.updated(workers=workers, prove=False, oversubscribe=True)
    sizes = tuple(size for size in replicas if size != 1)
    twins = contestants.twins(settings.contestants)
    rows = scaling_rows.build_rows(
        settings, twins.contestants, sizes=sizes, kinds=[kind for kind in scaling_rows.KINDS if kind in kinds]
    )
    request = ComparisonRequest(settings, rows, twins, out, sign=sign)
    return run.run(request, view)

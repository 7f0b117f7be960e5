"""`convtwins scaling`: measure the gain from more replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from common.machine.machine import COMMAND
from common.spec import SpecError
from compare.cli import commands
from compare.cli.commands import Outcome
from compare.cli.option_rules import Excludes
from compare.cli.option_types import Integers, Names
from compare.comparison import run
from compare.comparison.comparison_plan import ComparisonRequest
from compare.reporting import comparison_report
from compare.reporting.comparison_report import JudgedComparison
from compare.reporting.document import Report
from compare.results import signing
from compare.running import options, run_settings
from compare.statistics.scaling_laws import KINDS
from compare.tools.planning import scaling_fit, scaling_report, scaling_rows

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
        Names(KINDS),
        typer.Option(help="strong (global batch fixed), weak (batch of a replica fixed), or both."),
    ] = ("strong", "weak"),
    project: Annotated[str | None, typer.Option(hidden=True)] = None,
    network: Annotated[str | None, typer.Option(hidden=True)] = None,
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
    """Measure strong and weak scaling, and fit Amdahl and Gustafson. plan --project projects to machines that are not here."""
    if project is not None or network is not None:
        given = {"--project": project, "--network": network}
        received = " ".join(f"{option} {value}" for option, value in given.items() if value is not None)
        raise SpecError(
            f"--project and --network are options of plan: scaling only measures. Received: {received}. Use {COMMAND} plan "
            f"--model MODEL --project {project or '8,64,512'} --network {network or '10Gbit'} --kinds strong,weak; add "
            "--measure to see by how much it is off here."
        )
    signing.check_key(sign)

    def view(compared: JudgedComparison, folder: Path) -> Report:
        return scaling_report.report(compared, folder, scaling_fit.read(compared.stored))

    if stored is not None:
        return Outcome(view(comparison_report.read(stored), stored), stored)
    spec_request = spec_options.to_request(epochs=epochs, limit=limit, cores=cores, hosts=hosts and [*hosts])
    settings = run_settings.settings(*spec_request)
    settings = run_settings.with_matrix(settings, modes, MODES, repeats, 1)
    settings = settings.updated(workers=workers, prove=False, oversubscribe=True)
    sizes = tuple(size for size in replicas if size != 1)
    twins = contestants.twins(settings.contestants)
    rows = scaling_rows.build_rows(settings, twins.contestants, sizes=sizes, kinds=[kind for kind in KINDS if kind in kinds])
    request = ComparisonRequest(settings, rows, twins, out, sign=sign)
    return run.run(request, view)

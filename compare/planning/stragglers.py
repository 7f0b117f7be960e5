"""`convtwins stragglers`: which mode suffers how much from a slow rank, measured beside the simulator."""

from __future__ import annotations

from typing import Annotated

import typer

from common.machine.private_folder import PrivateFolder
from common.spec import SpecError
from compare.core import commands
from compare.core.commands import Invocation, Outcome
from compare.core.option_types import Factors
from compare.execution import options, run_settings
from compare.execution.workspace import FolderKind, Workspace
from compare.planning import planner, stragglers_report, straggling
from compare.planning.slow_rank import Straggler
from compare.reporting import document

MODES, REPEATS, FACTORS = "all", 5, (1.5, 2.0, 4.0)


@commands.command()
def command(
    invocation: Invocation,
    *,
    spec_options: options.SpecOptions,
    contestant_options: options.ContestantOptions,
    factor: Annotated[
        tuple[float, ...], Factors(above=1.0), typer.Option(help="Times as slow as the others that one rank is, with commas.")
    ] = FACTORS,
    jitter: Annotated[
        bool, typer.Option("--jitter", help="Also with each rank slow in turn, for a tenth of a second, by the largest factor.")
    ] = False,
    modes: Annotated[str | None, typer.Option(help=f"{options.MODES} Default: {MODES}.")] = None,
    replicas: options.Replicas = None,
    limit: options.Limit = None,
    cores: options.Cores = None,
    repeats: Annotated[int | None, typer.Option(min=1, help=f"{options.REPEATS} Default: {REPEATS}.")] = None,
    out: options.OutOrNone = None,
) -> Outcome:
    """Slow one rank down, and measure which mode suffers how much. The same command with the same --out goes on."""
    stragglers = [Straggler(number) for number in factor]
    if jitter:
        stragglers.append(Straggler(max(straggler.factor for straggler in stragglers), moves=True))
    settings = run_settings.settings(*spec_options.to_request(limit=limit, cores=cores, replicas=replicas))
    settings = run_settings.with_matrix(settings, modes, MODES, repeats, REPEATS)
    if "model" not in settings.values:
        raise SpecError("stragglers needs a model. Received: none. Add --model, or name one in --spec.")
    if settings.values.get("hosts"):
        raise SpecError("stragglers slows ranks of this machine. Received: hosts. Leave them out.")
    twins = contestant_options.twins(settings.contestants)
    kind = FolderKind[None](
        noun="measurement of stragglers",
        file=stragglers_report.RESULTS_FILE,
        allowed=(*document.report_files(), stragglers_report.MEASURED_FOLDER),
    )
    invocation.interrupt_message = "Interrupted. The same command goes on." if out else ""
    invocation.hold(Workspace.open(out, kind)).lock()
    folder = (out or invocation.hold(PrivateFolder()).path) / stragglers_report.MEASURED_FOLDER
    plan = planner.predict(settings, twins, invocation.progress)
    results = straggling.measure(plan, twins, stragglers, settings.repeats, folder, invocation.progress)
    return Outcome(stragglers_report.report(results, settings.repeats), out)

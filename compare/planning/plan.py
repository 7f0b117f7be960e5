"""`convtwins plan`: predicts which parallel mode pays, measures the best ones, and says how good the prediction was."""

from __future__ import annotations

from typing import Annotated

import typer

from common.machine.private_folder import PrivateFolder
from common.spec import SpecError
from compare.core import commands
from compare.core.commands import Invocation, Outcome
from compare.core.option_rules import Needs
from compare.core.option_types import Integers, Size
from compare.core.progress import display
from compare.execution import options, run_settings
from compare.execution.workspace import FolderKind, Workspace
from compare.planning import machine_file, plan_report, planner
from compare.reporting import document

MODES, REPEATS = "all", 3


@commands.command(Needs("--maps", ["--out", "--json"]), Needs("--repeats", ["--measure", "--score"]))
def command(
    invocation: Invocation,
    *,
    spec_options: options.SpecOptions,
    contestant_options: options.ContestantOptions,
    machine: Annotated[
        str, typer.Option(metavar="FILE|here", help="The machine to plan for: a file that an earlier plan wrote, or this one.")
    ] = machine_file.HERE,
    memory_limit: Annotated[float | None, Size(), typer.Option(help="Memory of each device, e.g. 2GiB.")] = None,
    modes: Annotated[str | None, typer.Option(help=f"{options.MODES} Default: {MODES}.")] = None,
    replicas: options.Replicas = None,
    hosts: options.Hosts = None,
    limit: options.Limit = None,
    cores: options.Cores = None,
    measure: Annotated[bool, typer.Option("--measure", help="Run serial and the three best layouts for a few steps.")] = False,
    score: Annotated[bool, typer.Option("--score", help="Like --measure, for the best layout of every mode.")] = False,
    repeats: Annotated[
        int | None, typer.Option(min=1, help=f"{options.REPEATS} With --measure or --score. Default: {REPEATS}.")
    ] = None,
    project: Annotated[
        tuple[int, ...] | None,
        Integers(least=2),
        typer.Option(help="Numbers of replicas to project to, with commas, e.g. 8,64,512."),
    ] = None,
    maps: Annotated[
        bool, typer.Option("--maps", help="Draw which mode wins over links, replicas and speeds. Needs --out.")
    ] = False,
    out: options.OutOrNone = None,
) -> Outcome:
    """Predict which parallel mode pays on a machine, from short runs; measure the best, and say how good that was."""
    if (measure or score) and machine != machine_file.HERE:
        raise SpecError(f"--measure and --score run on this machine. Received: --machine {machine}. Leave one of them out.")
    settings = run_settings.settings(
        *spec_options.to_request(limit=limit, cores=cores, replicas=replicas, hosts=hosts and [*hosts])
    )
    settings = run_settings.with_matrix(settings, modes, MODES, repeats, REPEATS)
    if "model" not in settings.values:
        raise SpecError("plan needs a model. Received: none. Add --model, or name one in --spec.")
    request = planner.PlanRequest(
        settings, contestant_options.twins(settings.contestants), machine, memory_limit, score, project or (), maps
    )
    own_files = (*document.report_files(), plan_report.MACHINE_FILE, plan_report.MEASURED_FOLDER)
    kind = FolderKind[None](noun="plan", file=plan_report.RESULTS_FILE, allowed=own_files)
    invocation.hold(Workspace.open(out, kind)).lock()
    with display() as progress:
        plan = planner.predict(request, progress)
    if measure or score:
        with PrivateFolder() as temporary:
            planner.measure(request, plan, (out or temporary.path) / plan_report.MEASURED_FOLDER)
    planner.extrapolate(request, plan)
    return Outcome(plan_report.report(plan, memory_limit), out)

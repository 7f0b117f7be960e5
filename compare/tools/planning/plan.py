"""`convtwins plan`: predicts which parallel mode pays, measures the best ones, and says how good the prediction was."""

from __future__ import annotations

from typing import Annotated

import typer

from common.machine.private_folder import PrivateFolder
from common.spec import SpecError
from compare.cli import commands
from compare.cli.commands import Invocation, Outcome
from compare.cli.option_rules import Needs
from compare.cli.option_types import Integers, Names, Size
from compare.cli.progress import display
from compare.comparison import comparison_plan
from compare.reporting import document
from compare.results.workspace import FolderKind, Workspace
from compare.running import options, run_settings
from compare.statistics import scaling_laws
from compare.statistics.scaling_laws import KINDS
from compare.tools.planning import plan_report, planner
from compare.tools.planning.planned_machine import HERE

MODES, REPEATS = "all", 3


@commands.command(
    Needs("--maps", ["--out", "--json"]),
    Needs("--repeats", ["--measure", "--score"]),
    Needs("--kinds", ["--project"]),
    Needs("--network", ["--project"]),
)
def command(
    invocation: Invocation,
    *,
    spec_options: options.SpecOptions,
    contestant_options: options.ContestantOptions,
    machine: Annotated[
        str, typer.Option(metavar="FILE|here", help="The machine to plan for: a file that an earlier plan wrote, or this one.")
    ] = HERE,
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
    kinds: Annotated[
        tuple[str, ...],
        Names(KINDS),
        typer.Option(help="Of a projection: weak (batch of a replica fixed), strong (global batch fixed), or both."),
    ] = ("weak",),
    network: Annotated[
        str | None,
        typer.Option(
            help="Of a projection: 10Gbit, 100Gbit, nvlink, or ALPHA,BETA in seconds and seconds per byte. Default: the links "
            "of the machine."
        ),
    ] = None,
    maps: Annotated[
        bool, typer.Option("--maps", help="Draw which mode wins over links, replicas and speeds. Needs --out.")
    ] = False,
    out: options.OutOrNone = None,
) -> Outcome:
    """Predict which parallel mode pays on a machine, from short runs; measure the best, and say how good that was."""
    if (measure or score) and machine != HERE:
        raise SpecError(f"--measure and --score run on this machine. Received: --machine {machine}. Leave one of them out.")
    settings = run_settings.settings(
        *spec_options.to_request(limit=limit, cores=cores, replicas=replicas, hosts=hosts and [*hosts])
    )
    settings = run_settings.with_matrix(settings, modes, MODES, repeats, REPEATS)
    comparison_plan.check_model("plan", settings.values)
    twins, link = contestant_options.twins(settings.contestants), None if network is None else scaling_laws.parse_link(network)
    own_files = (*document.report_files(), plan_report.MACHINE_FILE, plan_report.MEASURED_FOLDER)
    kind = FolderKind[None](noun="plan", file=plan_report.RESULTS_FILE, allowed=own_files)
    invocation.hold(Workspace.open(out, kind)).lock()
    with display() as progress:
        plan = planner.predict(settings, twins, progress, machine_path=machine, limit_mib=memory_limit)
    if measure or score:
        folder = (out or invocation.hold(PrivateFolder()).path) / plan_report.MEASURED_FOLDER
        planner.measure(plan, settings, twins, folder, every_mode=score)
    if project:
        planner.project(plan, settings.modes, project, [kind for kind in KINDS if kind in kinds], link)
    if maps:
        planner.map_fastest_modes(plan, settings.modes)
    return Outcome(plan_report.report(plan, memory_limit), out)

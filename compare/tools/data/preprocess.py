"""`convtwins preprocess`: compute mean and standard deviation of a training split by every engine, and time it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from common import spec
from common.spec import SpecError
from compare.cli import commands
from compare.cli.commands import Invocation, Outcome
from compare.cli.option_types import Integers
from compare.reporting import document
from compare.results.workspace import FolderKind, Workspace
from compare.running import launch, options
from compare.tools.data.engine_scans import LOGS, ScanRequest, run
from compare.tools.data.preprocess_report import KIND, NAME, RESULTS_FILE, report

WORKERS = (1, 2, 4, 8)


@commands.command()
def command(
    invocation: Invocation,
    data: Annotated[str, typer.Argument(metavar="DATA", help=options.DATA)],
    engines: Annotated[
        tuple[str, ...], options.BuiltinTwins(others=tuple(launch.SUITE_WORKERS)), typer.Option(help="Engines, with commas.")
    ] = (*launch.SUITE_WORKERS, *launch.FRAMEWORKS),
    workers: Annotated[tuple[int, ...], Integers(least=1), typer.Option(help="Numbers of workers, with commas.")] = WORKERS,
    scheduler: Annotated[str, typer.Option(help=f"{options.SCHEDULER} Or threads or processes of this machine.")] = "threads",
    limit: options.Limit = None,
    repeats: Annotated[int, typer.Option(min=1, help=f"{options.REPEATS} The median counts.")] = 3,
    image_size: options.ImageSize = None,
    on_bad: options.OnBad = None,
    duplicates: options.Duplicates = None,
    seed: options.DataSeed = 0,
    assignments: options.Set = None,
    out: options.OutOrNone = None,
) -> Outcome:
    """Compute each channel's mean and standard deviation of the training split by every engine, and time it."""
    options_by_field = {
        "source": data,
        "limit": limit,
        "image_size": image_size,
        "on_bad": on_bad,
        "duplicates": duplicates,
    }
    values = {"data": {name: value for name, value in options_by_field.items() if value is not None}, "seed": seed}
    request = _build_request(engines, workers, scheduler, repeats, values, assignments or [])
    allowed = (LOGS, *document.report_files(NAME))
    invocation.hold(Workspace.open(out, FolderKind[None](noun=KIND, file=RESULTS_FILE, kind=KIND, allowed=allowed))).lock()
    return Outcome(report(run(request, invocation.progress, out)), out)


def _build_request(
    engines: tuple[str, ...],
    workers: tuple[int, ...],
    scheduler: str,
    repeats: int,
    values: dict[str, Any],
    assignments: list[str],
) -> ScanRequest:
    if scheduler not in spec.SCHEDULERS and not scheduler.startswith(("tcp://", "tls://")):
        kinds = ", ".join(spec.SCHEDULERS)
        raise SpecError(f"--scheduler is unknown. Received: {scheduler!r}. Use {kinds}, tcp://host:port or tls://host:port.")
    data_spec = spec.build(spec.overlay(values, spec.parse_assignments(assignments)))
    return ScanRequest(engines, workers, scheduler, repeats, data_spec)

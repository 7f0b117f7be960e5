"""`convtwins bisect`: which commit, or which of several environments, made training slower or larger?"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer

from common.spec import SpecError
from compare.cli import commands
from compare.cli.commands import Invocation, Outcome
from compare.cli.option_rules import AllExcept, Excludes, Needs, OneOf
from compare.cli.option_types import Parsed, Percent
from compare.cli.progress import Display
from compare.comparison.comparison_plan import ComparisonRequest
from compare.results import store
from compare.results.workspace import Workspace
from compare.running import options
from compare.running.contestants import Contestant
from compare.statistics.statistics import VERDICT_PAIRS
from compare.tools.regression import bisect_report, candidates, requests, revisions
from compare.tools.regression.bisection import BisectionOutcome
from compare.tools.regression.candidates import Bisection, BisectionQuery, Candidates
from compare.tools.regression.records import JUDGED, choices, metrics_named
from compare.tools.regression.regress_screen import MeasuredBy

MOST_PAIRS = 30
_OWN = ("--pytest", "--command")
_MEASURING = ("--good", "--bad", "--environments", "[B ...]")
_OF_OWN = (*_OWN, *_MEASURING, "--python", "--threshold", "--most-repeats", "--only", "--out", "--json")
"""Options that have an effect on benchmarks of your own."""


@commands.command(
    OneOf(["--good", "--environments"]),
    Excludes("--pytest", "--command"),
    Needs("--python", "--good"),
    Needs("--python", _OWN),
    Excludes(_OWN, AllExcept(*_OF_OWN), "measures code of your own"),
    Needs("--bad", "--good"),
    Needs("[B ...]", "--environments"),
)
def command(
    invocation: Invocation,
    *,
    good: Annotated[str | None, typer.Option("--good", metavar="REV", help="A revision that is not slow yet.")] = None,
    bad: Annotated[
        str | None, typer.Option("--bad", metavar="REV", help="A later revision that is slow. Default: HEAD.")
    ] = None,
    environments: Annotated[
        str | None,
        typer.Option("--environments", metavar="A B ...", help=f"{options.ENVIRONMENTS} In order, the good one first."),
    ] = None,
    others: Annotated[
        list[str] | None, typer.Argument(metavar="[B ...]", help="The other environments of --environments.")
    ] = None,
    metric: Annotated[
        tuple[str, ...], Parsed(metrics_named), typer.Option(help=f"{options.METRIC} Here one. Of {', '.join(choices())}.")
    ] = JUDGED[:1],
    threshold: Annotated[
        float, Percent(), typer.Option(help=f"{options.THRESHOLD} Between the ends: less is not searched.")
    ] = 0.05,
    most_repeats: Annotated[int, typer.Option(min=VERDICT_PAIRS, help=f"{options.MOST_REPEATS} In pairs.")] = MOST_PAIRS,
    only: Annotated[str | None, typer.Option(help=f"{options.ONLY} Here one.")] = None,
    pytest_arguments: Annotated[str | None, typer.Option("--pytest", metavar="ARGS", help=requests.PYTEST)] = None,
    command_line: Annotated[str | None, typer.Option("--command", metavar="CMD", help=requests.COMMAND)] = None,
    python: Annotated[str | None, typer.Option("--python", help=requests.PYTHON)] = None,
    of_spec: options.TrainingOptions,
    contestants: options.ContestantOptions,
    modes: Annotated[str | None, typer.Option(help=f"{options.MODES} Here one. Default: serial, or as the spec says.")] = None,
    out: options.Out = None,
) -> Outcome:
    """Find the change that made a figure worse, by paired runs: --good REV --bad REV. Exit code 5: cannot tell.

    The same command with the same --out continues what was interrupted.
    """
    figure, *others_named = metric
    if others_named:
        raise SpecError(f"bisect follows one metric. Received: {', '.join(metric)}. Name one.")
    all_environments = tuple(filter(None, [environments, *(others or [])]))
    named_folder = out or store.new_folder("bisect")
    folder = named_folder.resolve()
    measured_by = MeasuredBy(most_repeats, sys.argv[1:], named_folder)
    invocation.interrupt_message = requests.interrupted(folder, "Finished runs")
    query = BisectionQuery(figure, threshold, good, bad or "HEAD", all_environments, only)
    if (benchmark_command := requests.own_command(pytest_arguments, command_line)) is not None:
        query = replace(query, metric=benchmark_command.metric)
        workspace = invocation.hold(candidates.open_workspace(query, 0, folder))
        command_candidates = candidates.from_command(
            benchmark_command, query, python or sys.executable, most_repeats, invocation.progress
        )
        outcome = candidates.search(command_candidates, query, range(most_repeats), workspace, invocation.progress)
        named = candidates.with_names(command_candidates, benchmark_command, query, outcome, folder)
        return Outcome(bisect_report.report(outcome, named, query, measured_by), folder)
    settings = requests.build_settings(*of_spec.to_request(), modes, most_repeats, most_repeats)
    twins = contestants.twins(settings.contestants, has_other_interpreters=bool(all_environments))
    request = requests.build_request(settings, twins, folder, only)
    workspace = invocation.hold(candidates.open_workspace(query, settings.seeds[0], folder))
    outcome, candidate_list = bisect(request, query, workspace, invocation.progress)
    return Outcome(bisect_report.report(outcome, candidate_list, query, measured_by), folder)


def bisect(
    request: ComparisonRequest, query: BisectionQuery, workspace: Workspace[Bisection], progress: Display
) -> tuple[BisectionOutcome, Candidates[Contestant]]:
    """Search for the change. Return the outcome and the candidates."""
    progress.stage(requests.PREPARING)
    if query.environments:
        candidate_list = candidates.from_environments(query.environments, request, progress)
    else:
        request = revisions.with_absolute_path(request)
        candidate_list = candidates.from_revisions(query.good or "", query.bad, request, progress)
    return candidates.search(candidate_list, query, request.settings.seeds, workspace, progress), candidate_list

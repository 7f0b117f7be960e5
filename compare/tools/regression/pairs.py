"""Pairs of runs in turn: base A, head B, then B A. They are a comparison where each contestant has a base."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.artifacts.schema import RunResult
from compare.cli.errors import LaunchError
from compare.cli.progress import Display
from compare.comparison import comparison_plan, executor, run
from compare.comparison.comparison_plan import ComparisonRequest
from compare.judgement import run_figures
from compare.results import store
from compare.results.store import Comparison
from compare.results.workspace import COMPARISON, Workspace
from compare.running import contestants
from compare.running.interleaving import Job
from compare.running.matrix import Row
from compare.tools.regression import requests
from compare.tools.regression.pair_loop import Pair, PairLoop
from compare.tools.regression.revisions import RevisionError
from compare.tools.regression.samples import is_time


def _has_runs(folder: Path) -> bool:
    return any((folder / store.RUNS_FOLDER).glob("*"))


def _settled_fields(plan: Comparison) -> dict[str, Any]:
    return {"repeats": plan.settings.repeats, "proof": plan.settings.prove, "commit": plan.machine.get("commit")}


GROWING = replace(COMPARISON, noun="measurement", has_started=_has_runs)
"""Folder of pairs whose number may grow, as a test of `bisect` is."""
MEASUREMENT = replace(GROWING, settled=_settled_fields)
"""Folder of pairs whose number is settled before the first one."""


def row_pairs(plan: Comparison) -> list[Pair[Row]]:
    """Return the pairs of rows that this machine can run."""
    base_names = {contestant.name for contestant in plan.settings.contestants if contestant.base_of is not None}
    bases = {plan.contestant_of(row).head_row(row.id): row for row in plan.rows if row.contestant in base_names}
    pairs: list[Pair[Row]] = []
    for head in requests.runnable([row for row in plan.rows if row.id in bases]):
        base = bases[head.id]
        if (base.spec, base.unavailable) != (head.spec, head.unavailable):
            raise RevisionError(
                f"Base and head cannot run {head.id} with the same switches. Received: {plan.contestant_of(base).interpreter} "
                f"and {plan.contestant_of(head).interpreter}. Choose rows and switches that both have."
            )
        pairs.append(Pair(base, head))
    return pairs


class PairedRuns(PairLoop[Row, RunResult]):
    """Runs of a comparison in pairs, in the folder that it is claimed for.

    Args:
        request: what to run. Its contestants have bases. Its repeats are the most pairs.
        workspace: the folder. It may hold a part of the same measurement, which is continued.
        base_name: name of the base, for messages.
        progress: shows the progress.
    """

    def __init__(self, request: ComparisonRequest, workspace: Workspace[Comparison], base_name: str, progress: Display) -> None:
        self.base_name, self.progress = base_name, progress
        self.twins = request.twins
        plan = comparison_plan.build_plan(request, progress)
        self.pairs = row_pairs(plan)
        for pair in self.pairs:
            for row in pair:
                if (checkout := self.twins[row.contestant].checkout) is not None:
                    checkout.spec_json(pair.head.id, row.spec)  # code that lacks a field is refused before anything runs
        claimed = workspace.claim(plan)
        self.folder = workspace.folder
        self.plan = claimed.with_settings(repeats=plan.settings.repeats)
        self.repeats = plan.settings.repeats
        self.takes_turns = self.plan.takes_turns
        self.cores = max(row.spec.cores for pair in self.pairs for row in pair)
        if request.settings.prove:
            self.plan = run.with_proof(self.plan, request, self.folder, progress)

    def name(self, pair: Pair[Row]) -> str:
        return pair.head.id

    def stored(self, item: Row, repeat: int) -> RunResult | None:
        return comparison_plan.good_result(self.folder, self.plan.row_for_repeat(item, repeat), repeat)

    def remove(self, item: Row, repeat: int) -> None:
        shutil.rmtree(store.run_folder(self.folder, item.id, repeat), ignore_errors=True)

    def rounds_left(self, again: Collection[tuple[str, int]]) -> list[list[Job[Row]]]:
        return comparison_plan.remaining_rounds(self.plan, self.folder, again)

    def failure(self, result: RunResult) -> str | None:
        return None if result.status in store.FINISHED else f"{result.status}: {result.reason}"

    def ending(self, result: RunResult) -> tuple[RunResult, str]:
        return run_figures.ending(result)

    def is_disturbed(self, result: RunResult) -> bool:
        return run_figures.disturbing_cores(result) is not None

    def check_stored(self, job: Job[Row], result: RunResult, label: str) -> None:
        if not executor.is_stored_with_space_left(store.run_folder(self.folder, job.item.id, job.repeat)):
            stopped = f"The measurement stops here; regress {self.folder} judges its runs"
            raise OSError(f"{label}: {result.reason}. {stopped}")

    def complete(self, judged: Collection[str]) -> None:
        """Make all pairs, see `complete_pairs`.

        Args:
            judged: metrics that are judged. Other work spoils times alone. So memory is measured on a busy machine, too.
        """
        are_times = [is_time(metric) for metric in judged]
        if any(are_times):
            self.complete_pairs(run_figures.times_in_doubt, may_give_up=all(are_times))
        else:
            self.make()

    def execute(self, item: Row, repeat: int, folder: Path) -> RunResult:
        watch = self.progress.watch if folder == self.folder else _ignore_events
        result = executor.execute(self.twins[item.contestant], item, repeat, folder, watch)
        return self._in_planned_environment(item, repeat, folder, result)

    def execute_together(self, jobs: Sequence[Job[Row]]) -> Generator[tuple[int, RunResult]]:
        for place, result in executor.execute_together(jobs, self.twins, self.folder, self.progress.watch):
            row, repeat = jobs[place]
            yield place, self._in_planned_environment(row, repeat, self.folder, result)

    def _in_planned_environment(self, item: Row, repeat: int, folder: Path, result: RunResult) -> RunResult:
        """Return a run. One that met another environment than planned is removed, and ends the measurement."""
        planned = self.plan.environments.get(item.contestant)
        if planned and result.environment and (changed := contestants.describe_changes(planned, result.environment)):
            shutil.rmtree(store.run_folder(folder, item.id, repeat), ignore_errors=True)
            raise LaunchError(
                f"The environment of {item.contestant} has changed since the command began: {changed}. Received: "
                f"{result.environment.interpreter}. Measure again in another folder, and leave the environment alone meanwhile."
            )
        return result


def _ignore_events(events: list[dict[str, Any]]) -> None:
    """Show nothing of a warm-up."""

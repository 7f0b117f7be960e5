"""Pairs of runs in turn: base A, head B, then B A. They are a comparison where each contestant has a base."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from common.artifacts.schema import RunResult
from common.machine.private_folder import PrivateFolder
from compare.cli.errors import LaunchError
from compare.cli.progress import Display
from compare.comparison import comparison_plan, executor, run
from compare.comparison.comparison_plan import ComparisonRequest
from compare.judgement import run_figures
from compare.judgement.sides import BASE, HEAD
from compare.results import store
from compare.results.store import Comparison
from compare.results.workspace import COMPARISON, Workspace
from compare.running import contestants
from compare.running.interleaving import Job, run_in_turns, turn
from compare.running.matrix import Row
from compare.statistics.statistics import VERDICT_PAIRS
from compare.tools.regression import requests
from compare.tools.regression.revisions import RevisionError


def _has_runs(folder: Path) -> bool:
    return any((folder / store.RUNS_FOLDER).glob("*"))


def _settled_fields(plan: Comparison) -> dict[str, Any]:
    return {"repeats": plan.settings.repeats, "proof": plan.settings.prove, "commit": plan.machine.get("commit")}


GROWING = replace(COMPARISON, noun="measurement", has_started=_has_runs)
"""Folder of pairs whose number may grow, as a test of `bisect` is."""
MEASUREMENT = replace(GROWING, settled=_settled_fields)
"""Folder of pairs whose number is settled before the first one."""


class RowPair(NamedTuple):
    """A row of the head, and the same one of its base."""

    base: Row
    head: Row


def row_pairs(plan: Comparison) -> list[RowPair]:
    """Return the pairs of rows that this machine can run."""
    base_names = {contestant.name for contestant in plan.settings.contestants if contestant.base_of is not None}
    bases = {plan.contestant_of(row).head_row(row.id): row for row in plan.rows if row.contestant in base_names}
    pairs: list[RowPair] = []
    for head in requests.runnable([row for row in plan.rows if row.id in bases]):
        base = bases[head.id]
        if (base.spec, base.unavailable) != (head.spec, head.unavailable):
            raise RevisionError(
                f"Base and head cannot run {head.id} with the same switches. Received: {plan.contestant_of(base).interpreter} "
                f"and {plan.contestant_of(head).interpreter}. Choose rows and switches that both have."
            )
        pairs.append(RowPair(base, head))
    return pairs


class PairedRuns:
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
        if request.settings.prove:
            self.plan = run.with_proof(self.plan, request, self.folder, progress)

    def runs(self, pair: RowPair, repeat: int) -> list[RunResult]:
        """Return the stored runs of both sides, if both ended well. Else empty."""
        rows = (self.plan.row_for_repeat(row, repeat) for row in pair)
        runs = [result for row in rows if (result := comparison_plan.good_result(self.folder, row, repeat)) is not None]
        return runs if len(runs) == len(pair) else []

    def make(
        self,
        enough: Callable[[], bool] | None = None,
        warm: Collection[str] = (),
        needs_rerun: Callable[[RowPair, RunResult], bool] = lambda pair, run: False,
    ) -> None:
        """Warm up both sides, then run them in turn. Pairs that the folder holds already are not repeated.

        A pair without one of its runs is made again as a whole: both must meet the same state of the machine.

        Args:
            enough: asked after each pair whether more are needed. Then the runs of both sides must succeed. None: all pairs of
                the plan are made.
            warm: sides that need no warm-up.
            needs_rerun: whether a stored run does not count, so that its pair is made again.

        Raises:
            OSError: a result could not be stored.
        """
        again: set[tuple[str, int]] = set()
        for pair in self.pairs:
            for repeat in range(self.plan.settings.repeats):
                runs = self.runs(pair, repeat)
                if not runs or any(needs_rerun(pair, run) for run in runs):
                    again |= {(row.id, repeat) for row in pair}
        left = comparison_plan.remaining_rounds(self.plan, self.folder, again)
        num_planned, num_left = len(self.pairs) * self.plan.settings.repeats, len(again) // 2
        if num_left < num_planned:
            self.progress.stage(f"{num_planned - num_left} of {num_planned} pairs are in {self.folder}")
        if not left:
            return
        self._warm_up([side for side in (BASE, HEAD) if side not in warm], strict=enough is not None)
        places = {row.id: (pair, side) for pair in self.pairs for row, side in zip(pair, (BASE, HEAD), strict=True)}

        def label(job: Job[Row]) -> str:
            pair, side = places[job.item.id]
            most = "at most " if enough is not None else ""
            return f"{pair.head.id}, {side} ({job.repeat + 1} of {most}{self.plan.settings.repeats})"

        def execute(job: Job[Row]) -> RunResult:
            pair, side = places[job.item.id]
            if side == turn((BASE, HEAD), job.repeat)[0]:  # the first of its pair
                for row in pair:
                    shutil.rmtree(store.run_folder(self.folder, row.id, job.repeat), ignore_errors=True)
            result = self._execute(job.item, job.repeat, self.folder, self.progress.watch)
            if result.status not in store.FINISHED and not executor.is_stored_with_space_left(
                store.run_folder(self.folder, job.item.id, job.repeat)
            ):
                stopped = f"The measurement stops here; regress {self.folder} judges its runs"
                raise OSError(f"{label(job)}: {result.reason}. {stopped}")
            return result

        def accept(job: Job[Row], result: RunResult) -> bool:
            if enough is None or result.status in store.FINISHED:
                return True
            pair, side = places[job.item.id]
            words = f"{pair.head.id} did not end well ({result.status}: {result.reason})."
            if side == BASE:
                raise LaunchError(f"{self.base_name}: {words} It had ended well before. The same command continues.")
            raise RevisionError(words)

        for _ in run_in_turns(
            left,
            execute,
            self.progress,
            name=lambda row: places[row.id][0].head.id,
            label=label,
            accept=accept,
            ending=run_figures.ending,
        ):
            if enough is not None and enough():
                return

    def complete(self, *, judges_times: bool) -> None:
        """Make all pairs, and those again that other work disturbed, in rows with too few reliable pairs for a verdict.

        Pairs of other rows stay. Their times have been judged, and whoever could draw them again would choose among verdicts.

        Args:
            judges_times: whether a time is judged. Else a disturbance spoils nothing.
        """

        def num_reliable(pair: RowPair) -> int:
            all_runs = [self.runs(pair, repeat) for repeat in range(self.plan.settings.repeats)]
            return sum(bool(runs) and not any(map(run_figures.times_in_doubt, runs)) for runs in all_runs)

        undecided = [pair for pair in self.pairs if judges_times and num_reliable(pair) < VERDICT_PAIRS]
        self.make(needs_rerun=lambda pair, result: pair in undecided and run_figures.disturbing_cores(result) is not None)

    def _execute(self, row: Row, repeat: int, folder: Path, watch: executor.Watch) -> RunResult:
        """Run a row. A run that met another environment than planned is removed, and ends the measurement."""
        result = executor.execute(self.twins[row.contestant], row, repeat, folder, watch)
        planned = self.plan.environments.get(row.contestant)
        if planned and result.environment and (changed := contestants.describe_changes(planned, result.environment)):
            shutil.rmtree(store.run_folder(folder, row.id, repeat), ignore_errors=True)
            raise LaunchError(
                f"The environment of {row.contestant} has changed since the command began: {changed}. Received: "
                f"{result.environment.interpreter}. Measure again in another folder, and leave the environment alone meanwhile."
            )
        return result

    def _warm_up(self, sides: Collection[str], *, strict: bool) -> None:
        """Make one run of each row and side, and discard it. It compiles, fills caches, and shows whether the side can run."""
        with PrivateFolder() as temporary:
            for pair in self.pairs:
                for row, side in zip(pair, (BASE, HEAD), strict=True):
                    if side not in sides:
                        continue
                    self.progress.stage(f"{pair.head.id}, {side}: warm-up")
                    result = self._execute(row, 0, temporary.path, lambda events: None)
                    if result.status in store.FINISHED:
                        continue
                    if side == BASE:
                        raise RevisionError(
                            f"{self.base_name} cannot do {pair.head.id} ({result.status}: {result.reason}), so there is "
                            "nothing to compare with. Choose another base, or rows that it can do with --only."
                        )
                    words = f"{pair.head.id} did not end well ({result.status}: {result.reason})."
                    if strict:
                        raise RevisionError(words)
                    raise LaunchError(
                        f"The head's warm-up of {words} {self.base_name} can do it. Repair it, or choose other rows with "
                        "--only."
                    )

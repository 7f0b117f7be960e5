"""Simulates and measures the slowdown of a step by a slow rank, in each mode whose replicas are processes."""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

from common.artifacts.schema import RunResult
from common.frozen import Frozen
from common.machine import machine
from compare.cli.errors import LaunchError
from compare.cli.progress import Display
from compare.comparison import comparison_plan, executor
from compare.judgement import slices
from compare.judgement.run_figures import disturbance_words, times_in_doubt
from compare.results import store
from compare.results.workspace import FolderKind, PlannedWork, Workspace
from compare.running import code_digest
from compare.running.interleaving import Job, rounds, run_in_turns
from compare.running.launch import StartedProcess, waited_for
from compare.running.matrix import Row
from compare.running.taking_turns import Seat
from compare.running.twins import Twins
from compare.statistics.statistics import Ratio, paired_ratio
from compare.tools.planning import planner, prediction, schedules
from compare.tools.planning.case import Case
from compare.tools.planning.planner import PlanResult
from compare.tools.planning.prediction import PredictedLayout
from compare.tools.planning.slow_rank import EVEN, Brake, Straggler

RECORD_FILE = "plan.json"
MEASURED_SECONDS = 4.0
"""Predicted seconds of the timed steps of a run without a slow rank."""
MIN_STEPS, MAX_STEPS = 20, 400
MAX_FACTOR_ERROR = 0.1
"""Largest relative error of a rank's slow-down. Runs beyond it are left out."""


class StragglerRecord(PlannedWork):
    """The request whose runs a folder holds."""

    kind: Literal["stragglers"] = "stragglers"
    spec: dict[str, Any]
    """Spec of the serial run that the layouts derive from."""
    rows: list[Row]
    stragglers: list[Straggler]
    repeats: int

    @property
    def takes_turns(self) -> bool:
        """Whether the runs of a layout take turns. On GPUs they would have to share their memory."""
        return not self.machine.get("gpus")

    def identity(self) -> dict[str, Any]:
        """Numbers of steps follow from a prediction, and stay as they were."""
        return {
            "spec": self.spec,
            "rows": [row.id for row in self.rows],
            "slow ranks": [list(entry) for entry in self.stragglers],
            "repeats": self.repeats,
        }


class SlowdownResult(Frozen):
    """Slowdown of one layout by one slow rank."""

    contestant: str
    words: str
    """Description of the layout."""
    factor: float
    moves: bool
    simulated: float
    """Simulated ratio of the time of a step to that without a slow rank."""
    measured: Ratio | None
    """Measured ratio over pairs of runs of one repeat. Its interval assumes that the number of pairs was fixed in advance."""
    in_doubt: int = 0
    """Number of runs, with and without the slow rank, that other work disturbed."""

    @property
    def n(self) -> int:
        """Number of pairs of runs."""
        return self.measured.n if self.measured else 0

    @property
    def straggler(self) -> Straggler:
        return Straggler(self.factor, self.moves)

    @property
    def error(self) -> float | None:
        """Relative error of the simulation: (simulated - measured) / measured."""
        return self.simulated / self.measured.value - 1.0 if self.measured else None


@dataclass
class StragglerResults:
    """Slowdowns of all layouts."""

    plan: PlanResult
    slowdowns: list[SlowdownResult]
    one_process_modes: dict[str, list[str]]
    """Modes that have no rank to slow, by framework."""
    cautions: list[str] = field(default_factory=list[str])

    @property
    def median_error(self) -> float | None:
        errors = [abs(slowdown.error) for slowdown in self.slowdowns if slowdown.error is not None]
        return statistics.median(errors) if errors else None


def simulate_slowdown(case: Case, straggler: Straggler) -> float:
    """Simulate the ratio of the time of a step to that without a slow rank.

    Each rank is slow for many steps, if ranks take turns. So the speeds with each slow rank are averaged. If ranks
    synchronise less often than they take turns, each rank has the mean of its own speeds.
    """
    ranks = len(case.devices)

    def seconds(factors: Sequence[float]) -> float:
        devices = (
            device.model_copy(update={"speed": device.speed / factor})
            for device, factor in zip(case.devices, factors, strict=True)
        )
        return schedules.step(replace(case, devices=tuple(devices)))[0].total

    def slow_factors(slow_rank: int) -> list[float]:
        return [straggler.factor if rank == slow_rank else 1.0 for rank in range(ranks)]

    even = seconds([1.0] * ranks)
    if not straggler.moves:
        return seconds(slow_factors(ranks - 1)) / even
    if _synchronises_rarely(case):
        return seconds([ranks / (ranks - 1 + 1 / straggler.factor)] * ranks) / even
    return ranks / sum(even / seconds(slow_factors(rank)) for rank in range(ranks))


def _synchronises_rarely(case: Case) -> bool:
    """Return whether ranks compute for more than a step between synchronisations."""
    if case.run.traits.trains_apart:
        return case.run.averaging.every_steps != 1
    return case.run.traits.has_server and case.run.traits.has_late_gradients


def measurable_layouts(plan: PlanResult) -> tuple[list[PredictedLayout], dict[str, list[str]]]:
    """Return (the best predicted layout of each mode whose replicas are processes, modes of one process by framework)."""
    best: list[PredictedLayout] = []
    one_process_modes: dict[str, list[str]] = {}
    for name in plan.names:
        layouts = [layout for layout in plan.predictions_of(name) if layout.rankable and layout.run.is_parallel]
        together = [layout for layout in layouts if plan.case(layout).one_process]
        best += prediction.best_of_each_mode([layout for layout in layouts if layout not in together])
        if together:
            one_process_modes[name] = list(dict.fromkeys(layout.run.variant for layout in together))
    return best, one_process_modes


def build_rows(layouts: Sequence[PredictedLayout], twins: Twins) -> list[Row]:
    """Return a row for each layout, with the number of steps that takes a few seconds."""
    steps = [math.ceil(MEASURED_SECONDS / (layout.step_seconds or math.inf)) for layout in layouts]
    return [
        planner.build_row(layout, twins, min(max(number, MIN_STEPS), MAX_STEPS))
        for layout, number in zip(layouts, steps, strict=True)
    ]


def measure(
    plan: PlanResult, twins: Twins, stragglers: Sequence[Straggler], repeats: int, folder: Path, progress: Display
) -> StragglerResults:
    """Run each layout without a slow rank and with each, interleaved, in fresh processes.

    Runs of the same request in the folder are kept, and the others are added.
    """
    layouts, one_process_modes = measurable_layouts(plan)
    by_id = {planner.row_id(layout): layout for layout in layouts}
    results = StragglerResults(plan, [], one_process_modes, [*plan.cautions])
    if not layouts:
        return results
    record = StragglerRecord(
        spec=plan.run.model_dump(mode="json"),
        rows=build_rows(layouts, twins),
        stragglers=[*stragglers],
        repeats=repeats,
        code_hash=code_digest.compute([twins[name] for name in plan.names], plan.run.model),
        machine=machine.describe() | {"gpus": plan.machine.facts.get("gpus")},
    )
    with Workspace.open(folder, STRAGGLERS) as workspace:
        stored_record = workspace.claim(record)
        runs = _runs(stored_record, twins, folder, progress, results.cautions)
    for row in stored_record.rows:
        for straggler in stragglers:
            results.slowdowns.append(_compare_runs(by_id[row.id], plan, straggler, runs[row.id, straggler], runs[row.id, EVEN]))
    if not any(slowdown.measured for slowdown in results.slowdowns):
        raise LaunchError(f"No pair of runs went well. {folder} has their results and logs.")
    return results


STRAGGLERS = FolderKind(noun="measurement of stragglers", file=RECORD_FILE, kind="stragglers", record=StragglerRecord)


_RunsByRepeat = dict[int, RunResult]
"""Good runs by repeat."""


class _SlowedRow(NamedTuple):
    """A row with a slow rank."""

    layout: str
    """Id of the row of the layout."""
    straggler: Straggler
    row: Row
    """The row, with an id for this slow rank."""


def _runs(
    record: StragglerRecord, twins: Twins, folder: Path, progress: Display, cautions: list[str]
) -> Mapping[tuple[str, Straggler], _RunsByRepeat]:
    """Return the good runs by (row, slow rank). Others are named in the cautions."""
    items = [
        _SlowedRow(row.id, straggler, row.model_copy(update={"id": f"{row.id}-{straggler.key}"}))
        for row in record.rows
        for straggler in (EVEN, *record.stragglers)
    ]
    runs: dict[tuple[str, Straggler], _RunsByRepeat] = {(item.layout, item.straggler): {} for item in items}
    factors: dict[tuple[str, int], float] = {}
    """How slow the rank of a run was."""

    def stored(job: Job[_SlowedRow]) -> RunResult | None:
        result = comparison_plan.good_result(folder, job.item.row, job.repeat)
        # Nothing was found from disturbed runs, so none is chosen.
        return None if result is None or disturbance_words(result) else result

    def running(job: Job[_SlowedRow], seat: Seat | None = None) -> Generator[StartedProcess, None, RunResult]:
        row = job.item.row
        shutil.rmtree(store.run_folder(folder, row.id, job.repeat), ignore_errors=True)
        with Brake(job.item.straggler, row.spec.replicas, seat.slowing if seat else None) as brake:
            looks = executor.executing(twins[row.contestant], row, job.repeat, folder, progress.watch, seat=seat)
            result = yield from brake.watching(looks)
        factors[row.id, job.repeat] = brake.factor
        return result

    def run_layout(jobs: Sequence[Job[_SlowedRow]]) -> Generator[tuple[int, RunResult]]:
        rows = [job.item.row for job in jobs]
        contestants = [twins[row.contestant] for row in rows]
        return executor.run_together(rows, contestants, lambda place, seat: running(jobs[place], seat))

    def run_together(jobs: Sequence[Job[_SlowedRow]]) -> Generator[tuple[int, RunResult]]:
        """Run a layout with each slow rank in turns. Layouts are not compared with each other."""
        first = 0
        for _, group in groupby(jobs, lambda job: job.item.layout):
            slowed = list(group)
            for place, result in run_layout(slowed):
                yield first + place, result
            first += len(slowed)

    def accept(job: Job[_SlowedRow], result: RunResult) -> bool:
        row_id, factor = job.item.row.id, factors[job.item.row.id, job.repeat]
        if result.status not in store.FINISHED:
            words = f"{result.status}: {result.reason}"
        elif abs(factor / job.item.straggler.factor - 1.0) > MAX_FACTOR_ERROR:
            shutil.rmtree(store.run_folder(folder, row_id, job.repeat), ignore_errors=True)
            words = f"left out, since the rank was {factor:.2f} times as slow."
        else:
            return True
        cautions.append(f"{row_id}, repeat {job.repeat + 1}: {words}")
        return False

    for ended in run_in_turns(
        rounds(items, record.repeats),
        lambda job: waited_for(running(job)),
        progress,
        name=lambda item: item.row.id,
        label=lambda job: f"{job.item.row.id} ({job.repeat + 1} of {record.repeats})",
        stored=stored,
        accept=accept,
        ending=lambda run: (run, disturbance_words(run)),
        execute_together=run_together if record.takes_turns else None,
    ):
        for (item, repeat), run in ended:
            runs[item.layout, item.straggler][repeat] = run
    return runs


def _seconds_of_pair(slow: RunResult, even: RunResult) -> tuple[float, float]:
    """Return the seconds of a step of both. If they took turns, their ratio is that of their slices."""
    ratio, seconds = slices.ratio(slow, even), planner.step_seconds(even)
    return (planner.step_seconds(slow) if ratio is None else ratio * seconds), seconds


def _compare_runs(
    layout: PredictedLayout, plan: PlanResult, straggler: Straggler, slow: _RunsByRepeat, even: _RunsByRepeat
) -> SlowdownResult:
    repeats = sorted(slow.keys() & even.keys())
    pairs = [_seconds_of_pair(slow[repeat], even[repeat]) for repeat in repeats]
    return SlowdownResult(
        contestant=layout.contestant,
        words=layout.words,
        factor=straggler.factor,
        moves=straggler.moves,
        simulated=simulate_slowdown(plan.case(layout), straggler),
        measured=paired_ratio(pairs, one_look=True),
        in_doubt=sum(times_in_doubt(runs[repeat]) for repeat in repeats for runs in (slow, even)),
    )

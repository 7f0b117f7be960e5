"""How much longer a step takes with a slow rank, in each mode whose replicas are processes: simulated, and measured."""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from common.artifacts.schema import RunResult
from common.frozen import Frozen
from common.machine import machine
from common.machine.machine import Facts
from compare.comparison import comparison_plan
from compare.core.errors import LaunchError
from compare.core.progress import Display
from compare.core.statistics import Ratio, paired_ratio
from compare.execution import code_digest, executor, matrix, results_folder, store
from compare.execution.interleaving import turn
from compare.execution.matrix import Row
from compare.judgement.run_figures import disturbance_words, times_in_doubt
from compare.planning import planner, schedules
from compare.planning.case import Case
from compare.planning.planner import Plan
from compare.planning.prediction import Predicted
from compare.planning.slow_rank import EVEN, Brake, Straggler

RECORD_FILE = "plan.json"
MEASURED_SECONDS = 4.0
"""That the timed steps of an even run should take, by the prediction."""
LEAST_STEPS, MOST_STEPS = 20, 400
MOST_OFF = 0.1
"""A run whose rank was slowed by another factor than asked for is left out from here on."""


class Record(Frozen):
    """What a folder holds runs of."""

    kind: Literal["stragglers"] = "stragglers"
    spec: dict[str, Any]
    """Of the serial run that the layouts come from."""
    rows: list[Row]
    stragglers: list[tuple[float, bool]]
    repeats: int
    code_hash: str
    machine: Facts


class Suffered(Frozen):
    """One layout with one straggler."""

    contestant: str
    words: str
    """The layout."""
    factor: float
    moves: bool
    simulated: float
    """Times as long as a step without a slow rank."""
    measured: Ratio | None
    """The same, in pairs of runs of one repeat. Its interval is for a number of pairs that was settled beforehand."""
    in_doubt: int = 0
    """Runs, of both kinds, that other work disturbed."""

    @property
    def n(self) -> int:
        """Pairs of runs."""
        return self.measured.n if self.measured else 0

    @property
    def straggler(self) -> Straggler:
        return Straggler(self.factor, self.moves)

    @property
    def error(self) -> float | None:
        """(simulated - measured) / measured."""
        return self.simulated / self.measured.value - 1.0 if self.measured else None


@dataclass
class Found:
    """What was found."""

    plan: Plan
    suffered: list[Suffered]
    in_one_process: dict[str, list[str]]
    """By framework: modes that have no rank to slow."""
    cautions: list[str] = field(default_factory=list[str])

    @property
    def median_error(self) -> float | None:
        errors = [abs(each.error) for each in self.suffered if each.error is not None]
        return statistics.median(errors) if errors else None


def simulated(case: Case, straggler: Straggler) -> float:
    """Times as long as a step without a slow rank, by the simulator.

    A slow rank that moves stays long against a step. So the paces with each slow rank are averaged. Ranks that meet less often
    than they take turns each have the mean of their own paces.
    """
    ranks = len(case.devices)

    def seconds(factors: Sequence[float]) -> float:
        devices = (
            each.model_copy(update={"speed": each.speed / factor}) for each, factor in zip(case.devices, factors, strict=True)
        )
        return schedules.step(replace(case, devices=tuple(devices)))[0].total

    def with_slow(slow: int) -> list[float]:
        return [straggler.factor if rank == slow else 1.0 for rank in range(ranks)]

    even = seconds([1.0] * ranks)
    if not straggler.moves:
        return seconds(with_slow(ranks - 1)) / even
    if _meets_seldom(case):
        return seconds([ranks / (ranks - 1 + 1 / straggler.factor)] * ranks) / even
    return ranks / sum(even / seconds(with_slow(rank)) for rank in range(ranks))


def _meets_seldom(case: Case) -> bool:
    """Whether ranks go on by themselves for more than a step."""
    if case.run.mode == "model_averaging":
        return case.run.averaging.every_steps != 1
    return case.run.variant == "parameter_server_async"


def layouts(plan: Plan) -> tuple[list[Predicted], dict[str, list[str]]]:
    """(the best predicted layout of each mode whose replicas are processes, modes of one process by framework)."""
    best: dict[tuple[str, str], Predicted] = {}
    in_one: dict[str, list[str]] = {}
    for each in plan.predicted:
        if not each.rankable or each.run.replicas < 2:
            continue
        if plan.cases[each.contestant][each.words].one_process:
            modes = in_one.setdefault(each.contestant, [])
            modes += [each.run.variant] * (each.run.variant not in modes)
        else:
            best.setdefault((each.contestant, each.run.variant), each)
    return list(best.values()), in_one


def rows_of(chosen: Sequence[Predicted]) -> list[Row]:
    """A row for each layout, of as many steps as take a few seconds."""
    made: list[Row] = []
    for each in chosen:
        assert each.step_seconds is not None
        steps = min(max(math.ceil(MEASURED_SECONDS / each.step_seconds), LEAST_STEPS), MOST_STEPS)
        short = each.run.with_fields(epochs=None, steps=steps, checkpoint_seconds=None)
        made.append(matrix.build_row(planner.row_id(each), each.contestant, short))
    return made


def measure(plan: Plan, stragglers: Sequence[Straggler], repeats: int, folder: Path, shown: Display) -> Found:
    """Run each layout without a slow rank and with each, interleaved, in fresh processes.

    A folder that holds runs of the same request already is gone on with.

    Raises:
        LaunchError: no pair of runs went well.
        FolderError: the folder holds something else.
        Interrupted: some runs were made; the folder holds them.
    """
    chosen, in_one = layouts(plan)
    by_id = {planner.row_id(each): each for each in chosen}
    found = Found(plan, [], in_one, [*plan.cautions])
    if not chosen:
        return found
    record = Record(
        spec=plan.run.model_dump(mode="json"),
        rows=rows_of(chosen),
        stragglers=[(each.factor, each.moves) for each in stragglers],
        repeats=repeats,
        code_hash=code_digest.compute([*plan.cases], plan.run.model),
        machine=machine.describe(),
    )
    with results_folder.open_or_resume(folder, RECORD_FILE, record, "measurement of stragglers", identity=_identity) as kept:
        made = _runs(kept, stragglers, folder, shown, found.cautions)
    for row in kept.rows:
        for each in stragglers:
            found.suffered.append(_suffered(by_id[row.id], plan, each, made[row.id, each], made[row.id, EVEN]))
    if not any(each.measured for each in found.suffered):
        raise LaunchError(f"No pair of runs went well. {folder} has their results and logs.")
    return found


def _identity(record: Record) -> dict[str, Any]:
    """What must be the same to go on. Numbers of steps follow from a prediction, and stay as they were."""
    return {
        "spec": record.spec,
        "rows": [row.id for row in record.rows],
        "slow ranks": [list(each) for each in record.stragglers],
        "repeats": record.repeats,
    }


_Runs = dict[int, RunResult]
"""Good runs by repeat."""


def _runs(
    record: Record, stragglers: Sequence[Straggler], folder: Path, shown: Display, cautions: list[str]
) -> Mapping[tuple[str, Straggler], _Runs]:
    every = [EVEN, *stragglers]
    jobs = [
        (row, straggler, repeat)
        for repeat in range(record.repeats)
        for row in turn(record.rows, repeat)
        for straggler in turn(every, repeat)
    ]
    shown.plan([_named(row, straggler).id for row, straggler, _ in jobs])
    made: dict[tuple[str, Straggler], _Runs] = {(row.id, each): {} for row in record.rows for each in every}
    for row, straggler, repeat in jobs:
        own = _named(row, straggler)
        shown.begin(own.id, f"{own.id} ({repeat + 1} of {record.repeats})")
        result = store.load_result(folder, own, repeat) if comparison_plan.is_done(folder, own, repeat) else None
        if result is None or disturbance_words(result):  # nothing was found from disturbed runs, so none is chosen
            shutil.rmtree(store.run_folder(folder, own.id, repeat), ignore_errors=True)
            with Brake(straggler, row.spec.replicas) as brake:
                result = executor.execute(own, repeat, folder, shown.watch)
            if result.status in store.FINISHED and abs(brake.factor / straggler.factor - 1.0) > MOST_OFF:
                cautions.append(
                    f"{own.id}, repeat {repeat + 1}: left out, since the rank was {brake.factor:.2f} times as slow."
                )
                shutil.rmtree(store.run_folder(folder, own.id, repeat), ignore_errors=True)
                shown.end(result)
                continue
        shown.end(result, disturbance_words(result))
        if result.status in store.FINISHED:
            made[row.id, straggler][repeat] = result
        else:
            cautions.append(f"{own.id}, repeat {repeat + 1}: {result.status}: {result.reason}")
    return made


def _named(row: Row, straggler: Straggler) -> Row:
    return row.model_copy(update={"id": f"{row.id}-{straggler.key}"})


def _suffered(each: Predicted, plan: Plan, straggler: Straggler, slow: _Runs, even: _Runs) -> Suffered:
    repeats = sorted(slow.keys() & even.keys())
    pairs = [(planner.step_seconds(slow[repeat]), planner.step_seconds(even[repeat])) for repeat in repeats]
    return Suffered(
        contestant=each.contestant,
        words=each.words,
        factor=straggler.factor,
        moves=straggler.moves,
        simulated=simulated(plan.cases[each.contestant][each.words], straggler),
        measured=paired_ratio(pairs, one_look=True),
        in_doubt=sum(times_in_doubt(runs[repeat]) for repeat in repeats for runs in (slow, even)),
    )

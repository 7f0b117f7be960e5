"""The statements beside the tables of a comparison. They say what its figures mean."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from pydantic import JsonValue

from common.frozen import Frozen
from compare.judgement import cautions, conditions, decision, environments, inexact_modes, sameness, slices, verdict_statements
from compare.judgement.row_figures import Summary
from compare.judgement.run_pairs import pairs_of_runs
from compare.judgement.statement import Statement
from compare.judgement.summary import Family, compared_row_ids, family
from compare.results.store import StoredComparison
from compare.running.matrix import Row
from compare.statistics.statistics import JudgedRatio

SMALL_IN_TURNS = 1.05
"""Ratio of two frameworks below which a difference may come from what is left of a handover: see docs/turns.md."""
MIN_INPUT_WAIT = 0.1
"""Fraction of the training time spent waiting for input, below which the model alone bounds a run."""


class ComparisonFindings(Frozen):
    """Statements by subject. Each list may be empty."""

    sameness: list[Statement]
    """The proof, and what the timed runs themselves show."""
    comparable: bool
    """Whether the timed runs had the same data, weights and order, and the same first step up to rounding."""
    divisions: list[Statement]
    """Why nothing is trained, then divisions that disagree, then the division of each pair of rows."""
    contestants: list[Statement]
    """Which framework is faster, for each configuration that both ran."""
    modes: list[Statement]
    """Which parallel modes pay."""
    inputs: list[Statement]
    """Which inputs pay."""
    verdicts: list[JudgedRatio]
    """Every comparison that was judged. `contestants`, `modes` and `inputs` state these."""
    surety: list[Statement]
    """How sure the verdicts are, and how many there are."""
    scores: list[Statement]
    """Accuracy over seeds, and the time to the target accuracy."""
    inexact_modes: list[Statement]
    """Modes whose mathematics differ from serial's by design, and their accuracy."""
    bounds: list[Statement]
    """Runs that wait for their input, each with the part of its training that it waits."""
    environments: list[Statement]
    """In what the environments of two contestants differ."""
    troubles: list[Statement]
    """Runs that failed or are missing, exceeded their budget or did not get it."""

    @property
    def statements(self) -> dict[str, list[Statement]]:
        """All statements, by subject."""
        return {subject: value for subject, value in self if subject not in ("comparable", "verdicts")}


def findings(stored: StoredComparison, summaries: Sequence[Summary]) -> ComparisonFindings:
    comparable = sameness.is_comparable(stored, summaries)
    judged_family = family(stored, summaries) if comparable else Family([], {}, [])
    disturbed = {summary.id for summary in summaries if summary.disturbed}
    verdicts = [
        judged.model_copy(update={"disturbed": not disturbed.isdisjoint(compared_row_ids(stored.comparison, judged))})
        for judged in judged_family.judged
    ]
    surety = [decision.statement(stored, verdicts)]
    if not all(verdict.disturbed for verdict in verdicts) and any(verdict.p is not None for verdict in verdicts):
        judged_values: list[JsonValue] = [judged.model_dump() for judged in judged_family.judged]
        surety.append(Statement(kind="family", level="info", values={"judged": judged_values}))
    surety += _noise(stored, verdicts)
    return ComparisonFindings(
        sameness=sameness.statements(stored, summaries),
        comparable=comparable,
        divisions=cautions.nothing_can_run(stored.comparison) + _divisions(stored, summaries, judged_family),
        contestants=verdict_statements.contestant_statements(stored, judged_family),
        modes=verdict_statements.mode_statements(stored, summaries, judged_family),
        inputs=verdict_statements.input_statements(stored, judged_family),
        verdicts=verdicts,
        surety=[statement for statement in surety if statement],
        scores=[statement for summary in summaries for statement in _scores(summary)],
        inexact_modes=inexact_modes.statements(stored, summaries),
        bounds=[statement for summary in summaries if (statement := _input_bound(summary))],
        environments=environments.statements(
            environments.relevant_environments(stored.comparison.environments, stored.comparison.machine)
        ),
        troubles=[*cautions.statements(stored, summaries), *_small_in_turns(stored, judged_family)],
    )


def _divisions(stored: StoredComparison, summaries: Sequence[Summary], judged_family: Family) -> list[Statement]:
    names = {summary.id: summary.configuration for summary in summaries if summary.repeats_done}
    return [
        *conditions.disagreements(conditions.faster_frameworks(stored, undisturbed_pairs(stored, judged_family))),
        *conditions.division_statements(stored, names),
    ]


def undisturbed_pairs(stored: StoredComparison, judged_family: Family) -> list[tuple[Row, Row, JudgedRatio]]:
    """The rows of two frameworks that were judged. Rows that other work disturbed are left out."""
    rows = {row.id: row for row in stored.comparison.rows}
    return [
        (rows[first.id], rows[second.id], judged)
        for first, second, judged in judged_family.contestants
        if not (first.disturbed or second.disturbed)
    ]


def _small_in_turns(stored: StoredComparison, judged_family: Family) -> list[Statement]:
    """Caution against verdicts on two frameworks that the handovers of turns may make: see `SMALL_IN_TURNS`."""
    if not any(slices.took_turns(runs.values()) for runs in stored.runs.values()):
        return []
    frameworks = {row.id: row.framework for row in stored.comparison.rows}
    names = [
        judged.name
        for first, second, judged in judged_family.contestants
        if frameworks[first.id] != frameworks[second.id] and _may_come_from_turns(judged)
    ]
    values: dict[str, JsonValue] = {"names": [*names], "percent": 100.0 * (SMALL_IN_TURNS - 1.0)}
    return [Statement(kind="small_in_turns", level="caution", values=values)] if names else []


def _may_come_from_turns(judged: JudgedRatio) -> bool:
    """Return whether a ratio that is SMALL_IN_TURNS times as large or small might have another verdict."""
    distances = [abs(math.log(bound)) for bound in (judged.ratio.low, judged.ratio.high) if bound]
    if judged.verdict == "no difference that matters":
        return max(distances) + math.log(SMALL_IN_TURNS) > math.log1p(judged.smallest_effect or 0.0)
    return judged.verdict in ("above", "below") and min(distances) < math.log(SMALL_IN_TURNS)


def _noise(stored: StoredComparison, verdicts: Sequence[JudgedRatio]) -> list[Statement]:
    """Say how much of the noise between repeats comes from within them, if the runs took turns."""
    rows = {row.id: row for row in stored.comparison.rows}
    noises: list[slices.RatioNoise] = []
    for judged in verdicts:
        compared = [rows[row_id] for row_id in compared_row_ids(stored.comparison, judged)]
        if judged.disturbed or len(compared) != 2:
            continue
        slow, fast = compared
        pairs = [counting for repeat in stored.wall_seconds if (counting := pairs_of_runs(stored, repeat, slow, fast)[0])]
        if (noise := slices.noise([counting[0] for counting in pairs])) is not None:
            noises.append(noise)
    if not noises:
        return []
    between, within = map(statistics.median, zip(*noises, strict=True))
    return [Statement(kind="noise_in_turns", level="info", values={"between_repeats": between, "within_repeats": within})]


def _scores(summary: Summary) -> list[Statement]:
    statements: list[Statement] = []
    over_seeds, target, pace = summary.test_accuracy_over_seeds, summary.target, summary.epoch_seconds
    if over_seeds is not None:
        values: dict[str, JsonValue] = {"accuracy": over_seeds.model_dump(), "guesses": summary.guesses}
        statements.append(Statement(kind="accuracy_over_seeds", level="finding", rows=(summary.id,), values=values))
    if target is not None and target.repeats:
        values = {
            "target": target.model_dump(),
            "epochs_done": summary.epochs_done,
            "epoch_seconds": pace.median if pace else None,
        }
        statements.append(Statement(kind="target_accuracy", level="finding", rows=(summary.id,), values=values))
    return statements


def _input_bound(summary: Summary) -> Statement | None:
    wait = summary.input_wait
    if summary.part != "training" or wait is None or wait < MIN_INPUT_WAIT:
        return None
    values: dict[str, JsonValue] = {"wait": wait, "doubt": verdict_statements.doubt(summary)}
    return Statement(kind="input_wait", level="finding", rows=(summary.id,), values=values)

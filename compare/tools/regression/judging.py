"""Is a candidate worse than a baseline? Every figure has its interval, and all are judged as one family."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from common.machine import machine
from compare.cli import wording
from compare.cli.errors import FolderError
from compare.judgement import environments, statement_words
from compare.judgement.sides import BASE, HEAD
from compare.statistics import noise
from compare.statistics.statistics import (
    LEAST_PAIRS,
    SIGNIFICANCE,
    VERDICT_PAIRS,
    MeanEstimate,
    Ratio,
    bounded_exp,
    corrected_p,
    critical,
    holm,
    mean_difference,
    mean_difference_of_samples,
    spread,
)
from compare.tools.regression import facts
from compare.tools.regression.measured import Measurement
from compare.tools.regression.records import (
    ACCURACY,
    FAILED,
    UNDECIDED,
    Change,
    Criteria,
    Judgement,
    MeasuredSide,
    OperationChange,
    Verdict,
)
from compare.tools.regression.samples import (
    SubjectPair,
    is_named,
    is_time,
    pair_interleaved_files,
    pair_subjects,
    unwritten,
    usable_samples,
)


def judge(baseline: Measurement, candidate: Measurement, criteria: Criteria, *, paired: bool) -> Judgement:
    """Compare a candidate with a baseline.

    Args:
        baseline: the earlier measurement.
        candidate: the later measurement.
        criteria: what counts as a regression.
        paired: whether one command ran repeats of the same number next to each other, as many as it had settled. So their
            ratios leave the machine's drift out, and they are looked at once. Benchmark files are paired where their times show
            that they were made in turn. Otherwise the two are independent samples.
    """
    _refuse_another_machine(baseline, candidate)
    if baseline.kind == "benchmarks" and criteria.metrics is not None:
        raise FolderError(
            f"{baseline.source} holds seconds alone. Received: --metric {','.join(criteria.metrics)}. Leave it out, or name "
            "results folders."
        )
    baseline_ids, candidate_ids = (
        [subject_id for subject_id in measured.subjects if is_named(subject_id, criteria.only)]
        for measured in (baseline, candidate)
    )
    pairs = [
        pair_subjects(baseline.subjects[subject_id], candidate.subjects[subject_id], paired=paired)
        for subject_id in baseline_ids
        if subject_id in candidate.subjects
    ]
    _refuse_other_work(baseline, candidate, pairs, criteria)
    one_look = paired
    if interleaved_pairs := pair_interleaved_files(pairs):
        pairs, paired = interleaved_pairs, True
    sides = ((BASE, baseline), (HEAD, candidate))
    shared = [name for name in baseline.environments if name in candidate.environments]
    environment_pairs = [{f"{side}'s {name}": measured.environments[name] for side, measured in sides} for name in shared]
    changes = _changes(pairs, criteria, one_look=one_look)
    in_turn = baseline.side is not None and baseline.measured_in == candidate.measured_in
    timed = [(pair, metric) for pair in pairs for metric in criteria.metrics_of(pair.before)[:1] if is_time(metric)]
    neighbours = [both for pair, metric in timed for both in pair.neighbours(metric, in_turn=in_turn)]
    cautions = facts.cautions(baseline, candidate, pairs, criteria)
    timed_pairs = [pair for pair in pairs if any(map(is_time, criteria.metrics_of(pair.before)))]
    num_pairs, num_disturbed = _count_pairs(timed_pairs) if in_turn else (0, 0)
    return Judgement(
        baseline=_side(baseline),
        candidate=_side(candidate),
        machine=candidate.machine_name,
        kind=candidate.kind,
        paired=paired,
        one_look=one_look,
        in_turn=in_turn,
        planned_pairs=candidate.planned_repeats if in_turn else 0,
        pairs=num_pairs,
        disturbed_pairs=num_disturbed,
        noise=noise.of_neighbours(neighbours),
        threshold=criteria.threshold,
        accuracy_threshold=criteria.accuracy_threshold,
        tested=sum(change.adjusted_p is not None for change in changes),
        changes=changes,
        facts=[fact for pair in pairs for fact in facts.facts(pair, criteria)],
        operations=sorted(_operations(pairs), key=lambda change: -abs(change.milliseconds)),
        missing=[baseline.subjects[subject_id].name for subject_id in baseline_ids if subject_id not in candidate.subjects],
        added=[candidate.subjects[subject_id].name for subject_id in candidate_ids if subject_id not in baseline.subjects],
        cautions=statement_words.sentences(cautions),
        statements=cautions,
        environments=[
            sentence for both in environment_pairs for sentence in statement_words.sentences(environments.statements(both))
        ],
        differences=environments.differences(
            {
                f"{key}'s {name}": measured.environments[name]
                for name in shared
                for key, measured in (("baseline", baseline), ("candidate", candidate))
            }
        ),
    )


def _count_pairs(pairs: Sequence[SubjectPair]) -> tuple[int, int]:
    """Return (the number of pairs that were measured, how many of them other work disturbed in each row or benchmark)."""
    measured = [pair.before.repeats & pair.now.repeats for pair in pairs]
    usable = [
        repeats - pair.before.cores_taken.keys() - pair.now.cores_taken.keys()
        for pair, repeats in zip(pairs, measured, strict=True)
    ]
    all_repeats, all_usable = set[int]().union(*measured), set[int]().union(*usable)
    return len(all_repeats), len(all_repeats - all_usable)


def _side(measured: Measurement) -> MeasuredSide:
    return MeasuredSide(
        source=str(measured.source),
        commit=measured.commit_name,
        repository=measured.repository,
        suite_commit=measured.suite_commit,
        measured_at=measured.measured_at.isoformat(timespec="seconds"),
        versions=measured.versions,
    )


def _refuse_another_machine(baseline: Measurement, candidate: Measurement) -> None:
    if baseline.kind != candidate.kind:
        raise FolderError(
            f"{baseline.source} and {candidate.source} cannot be compared: one is a comparison's folder, the other a "
            "benchmark's file. Name two of a kind."
        )
    for measured in (baseline, candidate):
        for fact in ("processor", "logical_cores"):
            if not measured.machine[fact]:
                raise FolderError(f"{measured.source} does not say its {_words(fact)}, so nothing can be compared with it.")
    if differing := machine.differences(baseline.machine, candidate.machine):
        fact = differing[0]
        raise FolderError(
            f"{baseline.source} and {candidate.source} were measured on different machines: {_words(fact)} was "
            f"{baseline.machine[fact]} and is {candidate.machine[fact]}. Measure both on one machine"
            f"{', with --interleaved REV or --environments A B' if baseline.kind == 'comparison' else ', in turn'}."
        )


def _words(fact: str) -> str:
    return fact.replace("_", " ").replace(" mib", " MiB")


def _refuse_other_work(baseline: Measurement, candidate: Measurement, pairs: Sequence[SubjectPair], criteria: Criteria) -> None:
    """Refuse two measurements of other work. The data come last, because a setting that changes them says more."""
    both = f"{baseline.source} and {candidate.source}"
    if not pairs:
        what = "rows" if baseline.kind == "comparison" else "benchmarks"
        chosen = f" that match {criteria.only}" if criteria.only else ""
        received = f"{wording.listed(baseline.subjects)} and {wording.listed(candidate.subjects)}"
        raise FolderError(f"{both} have no {what} in common{chosen}. Received: {received}. Measure the same.")
    for before, now in ((pair.before, pair.now) for pair in pairs):
        if before.device != now.device and before.device and now.device:
            raise FolderError(
                f"{now.name} ran on another device in {candidate.source}: {before.device} before, {now.device} now. "
                "Measure it on the same."
            )
        old, new = before.work, now.work
        differing = [
            f"{name} was {old.get(name)} and is {new.get(name)}" for name in {**old, **new} if old.get(name) != new.get(name)
        ]
        if differing:
            raise FolderError(f"{now.name} did other work in {candidate.source}: {'; '.join(differing)}. Measure the same.")
    if baseline.data_hash != candidate.data_hash:
        raise FolderError(
            f"{both} cannot be compared: their data has other content. Received: {baseline.data_name} and "
            f"{candidate.data_name}. Measure the same."
        )
    # The data that the runs found, not the planned data: another revision may read the same files differently.
    for before, now in ((pair.before, pair.now) for pair in pairs):
        for what, baseline_values in before.recorded_data.items():
            candidate_values = now.recorded_data.get(what)
            if baseline_values and candidate_values and baseline_values != candidate_values:
                old, new = (", ".join(value[:12] for value in values) for values in (baseline_values, candidate_values))
                raise FolderError(
                    f"{now.name} did other work in {candidate.source}: {what}: {old} before, {new} now. Measure revisions "
                    "that read the data alike."
                )


def _operations(pairs: Sequence[SubjectPair]) -> Iterator[OperationChange]:
    """Operations of rows that both sides have profiled."""
    for before, now in ((pair.before, pair.now) for pair in pairs):
        if before.operations and now.operations:
            for operation in {**before.operations, **now.operations}:
                old, new = before.operations.get(operation), now.operations.get(operation)
                yield OperationChange(id=now.id, name=now.name, operation=operation, baseline=old, candidate=new)


def _changes(pairs: Sequence[SubjectPair], criteria: Criteria, *, one_look: bool) -> list[Change]:
    """Every figure of both sides, judged as one family."""
    changes = [change for pair in pairs for change in _compare(pair, criteria, one_look=one_look)]
    tested = [place for place, change in enumerate(changes) if change.change.n >= VERDICT_PAIRS and change.method != "none"]
    # What may be tested when the same command goes on is in the family from the beginning.
    untested = [1.0 for place, change in enumerate(changes) if place not in tested and change.verdict in UNDECIDED]
    adjusted = dict(zip(tested, holm([*(changes[place].change.p or 0.0 for place in tested), *untested]), strict=False))
    faster_fails = {pair.now.id for pair in pairs if pair.now.fails_when_faster}
    return [
        _judged(change, adjusted.get(place), criteria, faster_fails=change.id in faster_fails)
        for place, change in enumerate(changes)
    ]


def _compare(pair: SubjectPair, criteria: Criteria, *, one_look: bool) -> Iterator[Change]:
    """The changes of one row or benchmark, not yet judged. Seconds and MiB are compared as logarithms, so as ratios."""
    for metric in criteria.metrics_of(pair.before):
        is_judged = all(pair.samples(metric))
        if not is_judged and not all(pair.samples(metric, in_doubt=True)):
            continue
        before, now = pair.samples(metric) if is_judged else pair.displayed_samples(metric)
        first, second = ([math.log(value) for value in values] for values in (before, now))
        paired = pair.log_ratios(metric) if pair.paired and is_judged else []
        estimate = mean_difference(paired) if paired else mean_difference_of_samples(first, second)
        left_out = unwritten(metric, [*before, *now])
        inert = len({*before, *now}) == 1 and min(len(before), len(now)) >= VERDICT_PAIRS
        method = "paired" if pair.paired else "Welch"
        change = _build_change(pair, metric, method, before, now, estimate, bounded_exp, one_look=one_look, left_out=left_out)
        if not is_judged:
            without_interval = change.change.model_copy(update={"low": None, "high": None, "p": None})
            sides = {"baseline": pair.before, "candidate": pair.now}
            unreliable = [name for name, side in sides.items() if not usable_samples(side, metric)]
            update = {"method": "none", "verdict": "not judged", "change": without_interval, "unreliable": unreliable}
            change = change.model_copy(update=update)
        if is_judged and inert:
            threshold = criteria.threshold if change.limit is None else change.limit
            update = {"method": "none", "verdict": "no change shown", "not_ruled_out": math.expm1(left_out) > threshold}
            change = change.model_copy(update=update)
        yield change
    if pair.tests_accuracy:
        before, now = map(list, zip(*pair.by_seed.values(), strict=True))
        image = 1.0 / next(iter(pair.now.tests.values())).num_examples
        estimate = mean_difference([b - a for a, b in zip(before, now, strict=True)], rounding=image)
        yield _build_change(pair, ACCURACY, "paired by seed", before, now, estimate, float, one_look=one_look)


def _build_change(
    pair: SubjectPair,
    metric: str,
    method: str,
    before: Sequence[float],
    now: Sequence[float],
    estimate: MeanEstimate,
    scale: Callable[[float], float],
    *,
    one_look: bool,
    left_out: float = 0.0,
) -> Change:
    """A change that is not yet judged.

    Args:
        scale: turns the estimate into the figure that is shown.
        left_out: the most that digits which were not written can change the estimate. All runs may be rounded alike, so more
            of them do not help.
    """
    baseline, candidate = spread(before), spread(now)
    assert baseline is not None and candidate is not None  # the values are finite, and not none
    num_samples = min(len(before), len(now))
    looks = None if one_look else num_samples
    known = math.isfinite(estimate.error) and (one_look or num_samples >= LEAST_PAIRS)
    half_width = critical(estimate.freedom, looks) * estimate.error + left_out if known else math.nan
    low, high = (scale(estimate.mean + side * half_width) for side in (-1.0, 1.0)) if known else (None, None)
    at_least = math.copysign(max(abs(estimate.mean) - left_out, 0.0), estimate.mean)
    p = corrected_p(estimate._replace(mean=at_least), looks) if known else None
    ratio = Ratio(value=scale(estimate.mean), low=low, high=high, n=num_samples, p=p)
    return Change(
        id=pair.now.id,
        name=pair.now.name,
        metric=metric,
        method=method,
        baseline=baseline,
        candidate=candidate,
        change=ratio,
        limit=pair.now.limit,
        unwritten=left_out,
    )


def _judged(change: Change, p: float | None, criteria: Criteria, *, faster_fails: bool = False) -> Change:
    """The change with its verdict. Worse means more seconds, more memory or less accuracy.

    Args:
        faster_fails: whether a gain beyond the limit fails, too: the baseline is out of date then.
    """
    ratio = change.change
    if p is None or ratio.low is None or ratio.high is None:
        return change
    if change.is_accuracy:
        worse, at_worst, threshold = -ratio.value, -ratio.low, criteria.accuracy_threshold
    else:
        worse, at_worst = ratio.value - 1.0, ratio.high - 1.0
        threshold = criteria.threshold if change.limit is None else change.limit
    verdict: Verdict = "no change shown"
    if p < SIGNIFICANCE:
        if worse > 0:
            verdict = "regression" if worse > threshold else "worse, within the threshold"
        else:
            verdict = "faster than allowed" if faster_fails and -worse > threshold else "better"
    unsure = verdict not in (*FAILED, "better") and at_worst > threshold
    return change.model_copy(update={"adjusted_p": p, "verdict": verdict, "not_ruled_out": unsure})

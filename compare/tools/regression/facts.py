"""Facts besides the figures: how runs ended, which proofs there are, and what a reader must know of both measurements."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from pydantic import JsonValue

from compare.cli.wording import count
from compare.judgement.row_figures import FAILURES, UNFINISHED
from compare.judgement.sides import BASE, HEAD
from compare.judgement.statement import Level, Statement
from compare.results.store import IN_FLOAT64
from compare.statistics.statistics import VERDICT_PAIRS
from compare.statistics.verdict_words import percent_words
from compare.tools.regression.measured import MeasuredSubject, Measurement
from compare.tools.regression.records import ACCURACY, Criteria, Fact, Verdict, heading
from compare.tools.regression.samples import SubjectPair, usable_samples

_MAX_MEDIAN_RATIO = 1.5
"""A file whose median is more times the smallest of its commit than this gets a caution."""
_AGREEMENT = {None: "not recorded on both sides", True: "agrees", False: "does not agree"}


def facts(pair: SubjectPair, criteria: Criteria) -> Iterator[Fact]:
    """Facts about a row or benchmark, with their verdicts."""
    before, now = pair.before, pair.now

    def fact(what: str, baseline: str, candidate: str, verdict: Verdict) -> Fact:
        return Fact(id=now.id, name=now.name, what=what, baseline=baseline, candidate=candidate, verdict=verdict)

    if (before.status, now.status) != ("ok", "ok"):
        reason = f"{now.status}: {now.reason}" if now.reason else now.status
        yield fact("ended", before.status, reason, status_verdict(before.status, now.status))
    else:
        for metric in criteria.metrics_of(before):
            baseline, candidate = (_availability(subject, metric) for subject in (before, now))
            is_needed = metric in criteria.needed or (baseline, candidate) != ("not measured", "not measured")
            if is_needed and not all(pair.samples(metric, in_doubt=True)):
                yield fact(heading(metric), baseline, candidate, "cannot tell")
        if (before.tests or now.tests) and not pair.tests_accuracy:
            yield fact(heading(ACCURACY), *_accuracies(pair, criteria))
    baseline, candidate = before.parity or "not examined", now.parity or "not examined"
    if not {baseline, candidate}.isdisjoint(("proved", IN_FLOAT64, "not proved")):
        yield fact("same training in both frameworks", baseline, candidate, _parity_verdict(baseline, candidate))
    agreed, agrees = before.first_step_agrees, now.first_step_agrees
    if agrees is not None:
        verdict = _agreement_verdict(agreed, agrees)
        yield fact("first loss in both frameworks", _AGREEMENT[agreed], _AGREEMENT[agrees], verdict)


def _availability(subject: MeasuredSubject, metric: str) -> str:
    if not subject.samples.get(metric):
        return "not measured"
    return "measured" if usable_samples(subject, metric, in_doubt=True) else "not above 0, so there is no ratio"


def _accuracies(pair: SubjectPair, criteria: Criteria) -> tuple[str, str, Verdict]:
    """Accuracies that are not tested, because they are equal or have too few seeds."""
    by_seed = pair.by_seed
    if not by_seed:
        baseline, candidate = map(_tested_seeds, (pair.before, pair.now))
        return baseline, candidate, "cannot tell"
    baseline, candidate = (statistics.median(accuracies[side] for accuracies in by_seed.values()) for side in (0, 1))
    if all(first == second for first, second in by_seed.values()):
        same = {*pair.before.predictions.values()} == {*pair.now.predictions.values()} != set()
        return f"{baseline:.4f}", f"{candidate:.4f}{', by equal predictions' if same else ''}", "no change shown"
    seeds = f"{count(len(by_seed), 'seed')} of the {VERDICT_PAIRS} that a verdict needs"
    return (
        f"{baseline:.4f}",
        f"{candidate:.4f}, of {seeds}",
        "cannot tell" if baseline - candidate > criteria.accuracy_threshold else "not tested",
    )


def _tested_seeds(subject: MeasuredSubject) -> str:
    seeds = sorted({subject.seeds[repeat] for repeat in subject.tests})
    return f"of seeds {', '.join(map(str, seeds))}" if seeds else "not measured"


def status_verdict(before: str, now: str) -> Verdict:
    if before == now == "not available":
        return "no change shown"
    if before in ("ok", "not parallel"):
        if now in FAILURES or (before, now) == ("ok", "not parallel"):
            return "regression"
        return "cannot tell" if now in (*UNFINISHED, "not available") else "no change shown" if before == now else "better"
    return "better" if now in ("ok", "not parallel") and before not in UNFINISHED else "cannot tell"


def _parity_verdict(before: str, now: str) -> Verdict:
    """A refuted proof is never "no change" if there was no proof before, because the change may have broken it."""
    if (before, now) == ("proved", IN_FLOAT64):
        return "cannot tell"
    if now in ("proved", IN_FLOAT64):
        return "better" if before == "not proved" else "no change shown"
    if before in ("proved", IN_FLOAT64):
        return "cannot tell" if now == "not examined" else "regression"
    return "cannot tell" if now == "not proved" != before else "no change shown"


def _agreement_verdict(before: bool | None, now: bool) -> Verdict:
    if before is None:
        return "no change shown" if now else "cannot tell"
    return "no change shown" if before == now else "better" if now else "regression"


def unreliable_runs(subject: MeasuredSubject, whose: str) -> Iterator[Statement]:
    """How many runs have no reliable times, one statement for each reason.

    Args:
        whose: side of the runs, in words.
    """
    reasons = list(subject.unreliable_repeats.values())
    for why in dict.fromkeys(reasons):
        values: dict[str, JsonValue] = {
            "name": subject.name,
            "unreliable": reasons.count(why),
            "runs": len(subject.repeats),
            "whose": whose,
            "why": why,
        }
        if why == "late_losses":
            values["cautions"] = [*dict.fromkeys(subject.clock_cautions.values())]
        if why == "disturbed":
            values["cores_taken"] = [*subject.cores_taken.values()]
            values["cores"] = subject.spec.cores if subject.spec else None
        yield Statement(kind="unreliable_runs", level="caution", values=values)


def _hashes_differ(hashes: Mapping[int, str], others: Mapping[int, str]) -> bool:
    """Whether a repeat that both sides have has another hash. Without a common one: whether they share none."""
    if common := hashes.keys() & others.keys():
        return any(hashes[repeat] != others[repeat] for repeat in common)
    return bool(hashes and others) and {*hashes.values()}.isdisjoint(others.values())


def cautions(
    baseline: Measurement, candidate: Measurement, pairs: Sequence[SubjectPair], criteria: Criteria
) -> list[Statement]:
    """Statements on what differs between the two measurements besides the code, and on what was left out."""
    sides = ((baseline, BASE), (candidate, HEAD))
    statements: list[Statement] = []

    def add(kind: str, level: Level = "caution", **values: JsonValue) -> None:
        statements.append(Statement(kind=kind, level=level, values=values))

    for package in {**baseline.versions, **candidate.versions}:
        old, new = (measurement.versions.get(package, "not recorded") for measurement, _ in sides)
        if old != new:
            add("package_changed", package=package, baseline=old, candidate=new)
    for measured, side in sides:
        if measured.dirty:
            add("uncommitted_changes", side=side)
    for measured, side in sides:
        for caution in measured.environment_changes:
            add("caution_of_side", side=side, caution=caution.model_dump(mode="json"))
        for reason in measured.set_aside:
            add("set_aside_of_side", side=side, reason=reason)
    for pair in pairs:
        name, metrics, both = pair.now.name, criteria.metrics_of(pair.now), (pair.before, pair.now)
        sided = tuple(zip(both, (BASE, HEAD), strict=True))
        if pair.before.limit != pair.now.limit:
            limits = ["none" if subject.limit is None else percent_words(subject.limit) for subject in both]
            add("limit_changed", name=name, baseline=limits[0], candidate=limits[1])
        for what, hashes in pair.before.hashes.items():
            if _hashes_differ(hashes, pair.now.hashes.get(what, {})):
                add("other_work", name=name, what=what)
        for metric in metrics:
            for subject, side in sided:
                figures, above = len(subject.samples.get(metric, ())), len(usable_samples(subject, metric, in_doubt=True))
                if figures > above > 0:
                    left_out = figures - above
                    add("not_above_zero", name=name, left_out=left_out, figures=figures, side=side, metric=heading(metric))
        for metric in metrics:
            repeats = [subject.samples.get(metric, {}).keys() for subject in both]
            if pair.paired and all(repeats) and (alone := len(repeats[0] ^ repeats[1])):
                add("without_partner", name=name, figures=alone, metric=heading(metric))
        for subject, side in sided if candidate.kind == "benchmarks" else ():
            medians = [value for metric in metrics for value in usable_samples(subject, metric).values()]
            if medians and max(medians) > _MAX_MEDIAN_RATIO * min(medians):
                add("medians_differ", name=name, side=side, times=max(medians) / min(medians))
        for subject, side in sided:
            statements += unreliable_runs(subject.model_copy(update={"name": name}), f"of the {side}")
    if {subject.parity for pair in pairs for subject in (pair.before, pair.now)} == {"not examined"}:
        add("neither_side_proved", "info")
    if not all(subject.is_watched for pair in pairs for subject in (pair.before, pair.now)):
        add("files_unwatched", "info")
    if candidate.proof is not None:
        add("proof_of_candidate", "info", proof=candidate.proof.removesuffix("."))
    return statements

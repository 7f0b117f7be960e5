"""Facts besides the figures: how runs ended, which proofs there are, and what a reader must know of both measurements."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from common.machine.interference import DISTURBED_FROM
from compare.core.statistics import VERDICT_PAIRS
from compare.core.wording import count
from compare.execution.store import IN_FLOAT64
from compare.judgement.measurements import SECONDS, MeasuredSubject, Measurement
from compare.judgement.row_figures import FAILURES, UNFINISHED
from compare.judgement.run_figures import DISTURBED
from compare.regression.records import ACCURACY, Criteria, Fact, Verdict, heading
from compare.regression.samples import SubjectPair, usable_samples

UNWATCHED = "Files of pytest-benchmark do not say whether other work disturbed a benchmark."
_MAX_MEDIAN_RATIO = 1.5
"""A file whose median is more times the smallest of its commit than this gets a caution."""
PROOF = "The candidate's proof:"
UNPROVED = "Neither side has a proof that both frameworks train the same."
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


def doubts(subject: MeasuredSubject, whose: str) -> Iterator[str]:
    """How many runs have no reliable times, one sentence for each reason."""
    reasons = list(subject.unreliable_repeats.values())
    for why in dict.fromkeys(reasons):
        words = f"{reasons.count(why)} of {count(len(subject.seeds), 'run')} {whose} {why}"
        if why == DISTURBED:
            taken = dict.fromkeys(f"{end(subject.cores_taken.values()):.2f}" for end in (min, max))
            budget = f" of a budget of {subject.spec.cores}" if subject.spec else ""
            words += f": other work or the hypervisor took {' to '.join(taken)} cores{budget}, more than {DISTURBED_FROM}"
        yield f"{words}."


def _hashes_differ(hashes: Mapping[int, str], others: Mapping[int, str]) -> bool:
    """Whether a repeat that both sides have has another hash. Without a common one: whether they share none."""
    if common := hashes.keys() & others.keys():
        return any(hashes[repeat] != others[repeat] for repeat in common)
    return bool(hashes and others) and {*hashes.values()}.isdisjoint(others.values())


def cautions(baseline: Measurement, candidate: Measurement, pairs: Sequence[SubjectPair], criteria: Criteria) -> list[str]:
    """Sentences on what differs between the two measurements besides the code, and on what was left out."""
    sides = ((baseline, "baseline"), (candidate, "candidate"))
    lines: list[str] = []
    for package in {**baseline.versions, **candidate.versions}:
        old, new = (measurement.versions.get(package) for measurement, _ in sides)
        if old != new:
            lines.append(f"{package} was {old or 'not recorded'} and is {new or 'not recorded'}.")
    lines += [f"The {what} was measured with uncommitted changes." for measured, what in sides if measured.dirty]
    lines += [
        f"The {what}: {sentence}"
        for measured, what in sides
        for sentence in (*measured.environment_changes, *measured.set_aside)
    ]
    for pair in pairs:
        before, now = pair.before, pair.now
        lines += [
            f"{now.name}: the {what} changed, so the runs compute something else than before."
            for what, hashes in before.hashes.items()
            if _hashes_differ(hashes, now.hashes.get(what, {}))
        ]
        sided = ((before, "baseline"), (now, "candidate"))
        lines += [
            f"{now.name}: {measured - above} of {measured} figures of the {what} do not count ({heading(metric)}): not above 0."
            for metric in criteria.metrics_of(now)
            for subject, what in sided
            if (measured := len(subject.samples.get(metric, ())))
            > (above := len(usable_samples(subject, metric, in_doubt=True)))
            > 0
        ]
        lines += [
            f"{now.name}: {count(alone, 'figure')} without a partner in the pairs, not counted ({heading(metric)})."
            for metric in criteria.metrics_of(now)
            if (both := [subject.samples.get(metric, {}).keys() for subject, _ in sided])
            and all(both)
            and pair.paired
            and (alone := len(both[0] ^ both[1]))
        ]
        if candidate.kind == "benchmarks":
            lines += [
                f"{now.name}: the medians of the {what}'s files differ by up to {max(files) / min(files):.1f} times."
                for subject, what in sided
                if (files := [*usable_samples(subject, SECONDS).values()]) and max(files) > _MAX_MEDIAN_RATIO * min(files)
            ]
        lines += [
            f"{now.name}: {words} Their times do not count."
            for subject, what in sided
            for words in doubts(subject, f"of the {what}")
        ]
    if {subject.parity for pair in pairs for subject in (pair.before, pair.now)} == {"not examined"}:
        lines.append(UNPROVED)
    if candidate.kind == "benchmarks":
        lines.append(UNWATCHED)
    if candidate.proof is not None:
        lines.append(f"{PROOF} {candidate.proof.removesuffix('.')}.")
    return lines

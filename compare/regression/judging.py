"""Is a candidate worse than a baseline? Every figure has its interval, and all are judged as one family."""

from __future__ import annotations

import fnmatch
import math
import statistics as python_statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from common.frozen import Frozen
from common.machine import machine
from compare.core import wording
from compare.core.errors import FolderError
from compare.core.statistics import SIGNIFICANCE, VERDICT_PAIRS, Ratio, Spread, exp, holm, of_differences, of_samples, spread
from compare.judgement.measurements import METRICS, SECONDS, TIMES, Kind, Measured, Subject
from compare.judgement.summary import FAILURES

Verdict = Literal[
    "regression", "worse, within the threshold", "no change shown", "better", "not tested", "too few to tell", "cannot tell"
]
"""`not tested`: no test exists, and nothing beyond a threshold needs one."""
UNTOLD = ("too few to tell", "cannot tell")
UNPROVED = "Whether both frameworks train the same was proved on neither side."

ACCURACY = "test_accuracy"
JUDGED = ("epoch_seconds", "first_step_seconds", "peak_memory_mib")
"""Metrics that are judged by default. The accuracy is always judged."""

Pairs = dict[int, tuple[float, float]]

EXIT_OK, EXIT_UNTOLD, EXIT_REGRESSION = 0, 2, 3


@dataclass(frozen=True)
class Criteria:
    """What counts as a regression."""

    threshold: float = 0.05
    """Fraction by which a figure must be worse."""
    accuracy_threshold: float = 0.01
    """Loss of accuracy, in 0..1, that counts."""
    metrics: tuple[str, ...] | None = None
    """Metrics that are judged and must be measured. None: `JUDGED`, of which only the first must be measured."""
    only: str | None = None
    """A pattern of the ids of rows or benchmarks, as for file names. None: all."""

    @property
    def judged(self) -> tuple[str, ...]:
        return self.metrics or JUDGED

    @property
    def needed(self) -> tuple[str, ...]:
        return self.metrics or JUDGED[:1]


class Change(Frozen):
    """One figure of one row or benchmark, before and now."""

    id: str
    name: str
    metric: str
    method: str
    """paired, paired by seed, Welch, or none. `none`: the figure is the same number in every run."""
    baseline: Spread
    candidate: Spread
    change: Ratio
    """Candidate over baseline, 1: unchanged; of the accuracy, candidate minus baseline. `p` is its own."""
    adjusted_p: float | None
    """Holm-corrected p over all tested figures. None if there are too few samples, or nothing to test."""
    verdict: Verdict
    not_ruled_out: bool
    """No regression was shown, but the interval reaches beyond the threshold."""


class Fact(Frozen):
    """A fact that holds or does not: how the runs ended, whether the training is proved to be the same."""

    id: str
    name: str
    what: str
    baseline: str
    candidate: str
    verdict: Verdict


class Side(Frozen):
    """What was compared."""

    source: str
    commit: str
    measured_at: str
    versions: dict[str, str]


class Judgement(Frozen):
    """The complete result of `compare regress`."""

    baseline: Side
    candidate: Side
    machine: str
    kind: Kind
    paired: bool
    threshold: float
    accuracy_threshold: float
    tested: int
    """Figures with enough samples that differ. They make one family."""
    changes: list[Change]
    facts: list[Fact]
    missing: list[str]
    """Rows or benchmarks of the baseline that the candidate lacks."""
    added: list[str]
    cautions: list[str]

    @property
    def verdicts(self) -> list[Verdict]:
        return [each.verdict for each in (*self.changes, *self.facts)]

    @property
    def num_not_ruled_out(self) -> int:
        """Figures that are not shown to be worse, but may be worse by more than their threshold."""
        return sum(change.not_ruled_out for change in self.changes)

    @property
    def exit_code(self) -> int:
        """3 on a regression, 2 if something cannot be judged, else 0."""
        if "regression" in self.verdicts:
            return EXIT_REGRESSION
        untold = self.missing or not self.changes or any(verdict in UNTOLD for verdict in self.verdicts)
        return EXIT_UNTOLD if untold else EXIT_OK


def judge(baseline: Measured, candidate: Measured, criteria: Criteria, *, paired: bool) -> Judgement:
    """Compare a candidate with a baseline.

    Args:
        baseline: the earlier measurement.
        candidate: the later measurement.
        criteria: what counts as a regression.
        paired: whether repeats of the same number were made next to each other, so that their ratios leave the machine's
            drift out; else the two are independent samples.

    Raises:
        FolderError: they are not comparable: another machine or device, other data, other work, or nothing in common.
    """
    _refuse_another_machine(baseline, candidate)
    if baseline.kind == "benchmarks" and criteria.metrics is not None:
        raise FolderError(
            f"{baseline.source} holds seconds alone. Received: --metric {','.join(criteria.metrics)}. Leave it out, or name "
            "results folders."
        )
    ids, theirs = (
        [each for each in measured.subjects if criteria.only is None or fnmatch.fnmatchcase(each, criteria.only)]
        for measured in (baseline, candidate)
    )
    both = [each for each in ids if each in candidate.subjects]
    if not both:
        what = "rows" if baseline.kind == "comparison" else "benchmarks"
        chosen = f" that match {criteria.only}" if criteria.only else ""
        raise FolderError(
            f"{baseline.source} and {candidate.source} have no {what} in common{chosen}. Received: "
            f"{_listed(baseline.subjects)} and {_listed(candidate.subjects)}. Measure the same."
        )
    pairs = [(baseline.subjects[each], candidate.subjects[each]) for each in both]
    for before, now in pairs:
        _refuse_other_work(before, now)
    if baseline.data_hash != candidate.data_hash:  # checked last: a setting that changes the data is named above
        raise FolderError(
            f"{baseline.source} and {candidate.source} do not compare: their data has other content. Received: "
            f"{baseline.data_name} and {candidate.data_name}. Measure the same."
        )
    for before, now in pairs:
        _refuse_other_data(before, now)
    changes = _changes(pairs, criteria, paired=paired)
    return Judgement(
        baseline=_side(baseline),
        candidate=_side(candidate),
        machine=candidate.machine_name,
        kind=candidate.kind,
        paired=paired,
        threshold=criteria.threshold,
        accuracy_threshold=criteria.accuracy_threshold,
        tested=sum(change.adjusted_p is not None for change in changes),
        changes=changes,
        facts=[fact for before, now in pairs for fact in _facts(before, now, criteria, paired=paired)],
        missing=[baseline.subjects[each].name for each in ids if each not in candidate.subjects],
        added=[candidate.subjects[each].name for each in theirs if each not in baseline.subjects],
        cautions=_cautions(baseline, candidate, pairs),
    )


def _refuse_another_machine(baseline: Measured, candidate: Measured) -> None:
    if baseline.kind != candidate.kind:
        raise FolderError(
            f"{baseline.source} and {candidate.source} do not compare: one is a comparison's folder, the other a benchmark's "
            "file. Name two of a kind."
        )
    for measured in (baseline, candidate):
        for fact in ("processor", "logical_cores"):
            if not measured.machine[fact]:
                raise FolderError(f"{measured.source} does not say its {_words(fact)}, so nothing can be compared with it.")
    if differing := machine.differences(baseline.machine, candidate.machine):
        fact = differing[0]
        raise FolderError(
            f"{baseline.source} and {candidate.source} were measured on different machines: {_words(fact)} was "
            f"{baseline.machine[fact]} and is {candidate.machine[fact]}. Measure both on one machine, with --interleaved REV."
        )


def _words(fact: str) -> str:
    return fact.replace("_", " ").replace(" mib", " MiB")


def _refuse_other_work(before: Subject, now: Subject) -> None:
    if before.device != now.device and before.device and now.device:
        raise FolderError(
            f"{now.name} ran on another device: {before.device} before, {now.device} now. Measure it on the same."
        )
    there, here = before.work, now.work
    differing = [
        f"{field} was {there.get(field)} and is {here.get(field)}"
        for field in {**there, **here}
        if there.get(field) != here.get(field)
    ]
    if differing:
        raise FolderError(f"{now.name} did other work: {'; '.join(differing)}. Measure the same.")


def _refuse_other_data(before: Subject, now: Subject) -> None:
    """Compares the data that the runs found, not the planned data: another revision may read the same files differently."""
    for what, were in before.found.items():
        are = now.found.get(what)
        if were and are and were != are:
            was, is_ = (", ".join(each[:12] for each in values) for values in (were, are))
            raise FolderError(
                f"{now.name} did other work: {what}: {was} before, {is_} now. Times and scores do not "
                "compare: measure revisions that read the data alike."
            )


def _changes(pairs: Sequence[tuple[Subject, Subject]], criteria: Criteria, *, paired: bool) -> list[Change]:
    found: list[Change] = []
    for before, now in pairs:
        for metric in [SECONDS] if before.spec is None else criteria.judged:
            first, second = _samples(before, now, metric, paired=paired)
            if first and second:
                found.append(_change(now, metric, first, second, paired=paired))
        by_seed = _by_seed(before, now)
        if _is_tested(by_seed):
            found.append(_change_of_accuracy(now, by_seed))
    tested = [place for place, each in enumerate(found) if each.change.n >= VERDICT_PAIRS and each.method != "none"]
    adjusted = dict(zip(tested, holm([found[place].change.p or 0.0 for place in tested]), strict=True))
    return [_judged(change, adjusted.get(place), criteria) for place, change in enumerate(found)]


def _samples(before: Subject, now: Subject, metric: str, *, paired: bool) -> tuple[list[float], list[float]]:
    """The compared samples. For pairs, only complete ones."""
    first, second = (_usable(each, metric) for each in (before, now))
    if paired:
        both = sorted(first.keys() & second.keys())
        first, second = ({repeat: each[repeat] for repeat in both} for each in (first, second))
    return list(first.values()), list(second.values())


def _usable(subject: Subject, metric: str) -> dict[int, float]:
    """Figures of usable runs: no times of disturbed runs, and no zeros, which mean that the system reports nothing."""
    doubtful = subject.in_doubt if metric in TIMES else ()
    samples = subject.samples.get(metric, {})
    return {repeat: value for repeat, value in samples.items() if value > 0 and repeat not in doubtful}


def _by_seed(before: Subject, now: Subject) -> Pairs:
    """Accuracy of each common seed, before and now: the median of its repeats, so that each seed counts once."""

    def medians(subject: Subject) -> dict[int, float]:
        found: dict[int, list[float]] = {}
        for repeat, scores in subject.tests.items():
            found.setdefault(subject.seeds[repeat], []).append(scores.accuracy)
        return {seed: python_statistics.median(values) for seed, values in found.items()}

    first, second = medians(before), medians(now)
    return {seed: (first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())}


def _is_tested(by_seed: Pairs) -> bool:
    """Whether accuracies differ, over enough seeds to separate a change from the effect of rounding on each training."""
    return len(by_seed) >= VERDICT_PAIRS and any(first != second for first, second in by_seed.values())


def _change(now: Subject, metric: str, before: Sequence[float], after: Sequence[float], *, paired: bool) -> Change:
    """Compares logarithms, so that a difference is a ratio."""
    logs = [[math.log(value) for value in values] for values in (before, after)]
    if paired:
        estimate = of_differences([second - first for first, second in zip(*logs, strict=True)])
    else:
        estimate = of_samples(*logs)
    low, high = (exp(estimate.mean + side * estimate.half) for side in (-1.0, 1.0))
    number = min(len(before), len(after))
    known = math.isfinite(estimate.error)
    ratio = Ratio(
        value=exp(estimate.mean),
        low=low if known else None,
        high=high if known else None,
        n=number,
        p=estimate.p if known else None,
    )
    inert = len({*before, *after}) == 1 and number >= VERDICT_PAIRS
    change = _untested(now, metric, "none" if inert else "paired" if paired else "Welch", before, after, ratio)
    return change.model_copy(update={"verdict": "no change shown"}) if inert else change


def _change_of_accuracy(now: Subject, by_seed: Pairs) -> Change:
    """Compares over the seeds, on the same test images."""
    before, after = ([pair[side] for pair in by_seed.values()] for side in (0, 1))
    image = 1.0 / next(iter(now.tests.values())).num_examples
    estimate = of_differences([second - first for first, second in by_seed.values()], rounding=image)
    ratio = Ratio(
        value=estimate.mean,
        low=estimate.mean - estimate.half,
        high=estimate.mean + estimate.half,
        n=len(by_seed),
        p=estimate.p,
    )
    return _untested(now, ACCURACY, "paired by seed", before, after, ratio)


def _untested(now: Subject, metric: str, method: str, before: Sequence[float], after: Sequence[float], ratio: Ratio) -> Change:
    was, is_ = spread(before), spread(after)
    assert was is not None and is_ is not None  # the values are finite, and not none
    return Change(
        id=now.id,
        name=now.name,
        metric=metric,
        method=method,
        baseline=was,
        candidate=is_,
        change=ratio,
        adjusted_p=None,
        verdict="too few to tell",
        not_ruled_out=False,
    )


def _judged(change: Change, p: float | None, criteria: Criteria) -> Change:
    """The change with its verdict. Worse means more seconds, more memory or less accuracy."""
    ratio = change.change
    if p is None or ratio.low is None or ratio.high is None:
        return change
    if change.metric == ACCURACY:
        worse, at_worst, threshold = -ratio.value, -ratio.low, criteria.accuracy_threshold
    else:
        worse, at_worst, threshold = ratio.value - 1.0, ratio.high - 1.0, criteria.threshold
    significant = p < SIGNIFICANCE
    verdict: Verdict = "no change shown"
    if significant:
        verdict = "better" if worse < 0 else "regression" if worse > threshold else "worse, within the threshold"
    unsure = verdict not in ("regression", "better") and at_worst > threshold
    return change.model_copy(update={"adjusted_p": p, "verdict": verdict, "not_ruled_out": unsure})


def _facts(before: Subject, now: Subject, criteria: Criteria, *, paired: bool) -> list[Fact]:
    facts: list[Fact] = []

    def add(what: str, was: str, is_: str, verdict: Verdict) -> None:
        facts.append(Fact(id=now.id, name=now.name, what=what, baseline=was, candidate=is_, verdict=verdict))

    if (before.status, now.status) != ("ok", "ok"):
        said = f"{now.status}: {now.reason}" if now.reason else now.status
        add("ended", before.status, said, _status_verdict(before.status, now.status))
    elif before.spec is not None:
        for metric in criteria.judged:
            was, is_ = (_availability(each, metric) for each in (before, now))
            if not all(_samples(before, now, metric, paired=paired)) and (
                metric in criteria.needed or (was, is_) != ("not measured", "not measured")
            ):
                add(METRICS[metric].heading, was, is_, "cannot tell")
        if (before.tests or now.tests) and not _is_tested(_by_seed(before, now)):
            add(METRICS[ACCURACY].heading, *_accuracies(before, now, criteria))
    was, is_ = before.parity or "not examined", now.parity or "not examined"
    if not {was, is_}.isdisjoint(("proved", "not proved")):
        add("same training in both frameworks", was, is_, _parity_verdict(was, is_))
    words = {None: "not recorded on both sides", True: "agrees", False: "does not agree"}
    was, is_ = words[before.first_step_agrees], words[now.first_step_agrees]
    if now.first_step_agrees is not None:
        add("first loss in both frameworks", was, is_, _agreement_verdict(before.first_step_agrees, now.first_step_agrees))
    return facts


def _availability(subject: Subject, metric: str) -> str:
    if not subject.samples.get(metric):
        return "not measured"
    return "measured" if _usable(subject, metric) else "measured in no run that can be relied on"


def _accuracies(before: Subject, now: Subject, criteria: Criteria) -> tuple[str, str, Verdict]:
    """Accuracies that are not tested, because they are equal or have too few seeds."""
    by_seed = _by_seed(before, now)
    if not by_seed:
        was, is_ = (f"of seeds {', '.join(map(str, sorted({*each.seeds.values()})))}" for each in (before, now))
        return was, is_, "cannot tell"
    was, is_ = (python_statistics.median(pair[side] for pair in by_seed.values()) for side in (0, 1))
    if all(first == second for first, second in by_seed.values()):
        same = {*before.predictions.values()} == {*now.predictions.values()} != set()
        return f"{was:.4f}", f"{is_:.4f}{', by equal predictions' if same else ''}", "no change shown"
    seeds = f"{wording.count(len(by_seed), 'seed')} of the {VERDICT_PAIRS} that a verdict needs"
    verdict: Verdict = "cannot tell" if was - is_ > criteria.accuracy_threshold else "not tested"
    return f"{was:.4f}", f"{is_:.4f}, of {seeds}", verdict


def _status_verdict(before: str, now: str) -> Verdict:
    if before == now == "not available":
        return "no change shown"
    if before in ("ok", "not parallel"):
        if now in FAILURES or (before, now) == ("ok", "not parallel"):
            return "regression"
        return "cannot tell" if now in ("not run", "not available") else "no change shown" if before == now else "better"
    return "better" if now in ("ok", "not parallel") and before != "not run" else "cannot tell"


def _parity_verdict(before: str, now: str) -> Verdict:
    """A refuted proof is never "no change" if there was no proof before: then nobody knows since when."""
    if now == "proved":
        return "better" if before == "not proved" else "no change shown"
    if before == "proved":
        return "cannot tell" if now == "not examined" else "regression"
    return "cannot tell" if now == "not proved" != before else "no change shown"


def _agreement_verdict(before: bool | None, now: bool) -> Verdict:
    if before is None:
        return "no change shown" if now else "cannot tell"
    return "no change shown" if before == now else "better" if now else "regression"


def _cautions(baseline: Measured, candidate: Measured, pairs: Sequence[tuple[Subject, Subject]]) -> list[str]:
    said: list[str] = []
    for package in {**baseline.versions, **candidate.versions}:
        before, now = baseline.versions.get(package), candidate.versions.get(package)
        if before != now:
            said.append(f"{package} was {before or 'not recorded'} and is {now or 'not recorded'}.")
    for measured, what in ((baseline, "baseline"), (candidate, "candidate")):
        if measured.dirty:
            said.append(f"The {what} was measured with changes that are in no commit.")
    for before, now in pairs:
        said += [
            f"{now.name}: another {what} than before: the change alters what a run computes."
            for what, hashes in before.hashes.items()
            if hashes and now.hashes.get(what) and hashes != now.hashes[what]
        ]
        said += [
            f"{now.name}: {len(each.in_doubt)} of {len(each.seeds)} runs of the {what} were disturbed by other work, or too "
            "short to tell: their times do not count."
            for each, what in ((before, "baseline"), (now, "candidate"))
            if each.in_doubt
        ]
    if {each.parity for pair in pairs for each in pair} == {"not examined"}:
        said.append(UNPROVED)
    if candidate.proof is not None:
        said.append(f"The candidate's proof: {candidate.proof.removesuffix('.')}.")
    return said


def _side(measured: Measured) -> Side:
    return Side(
        source=str(measured.source),
        commit=measured.commit_name,
        measured_at=measured.measured_at.isoformat(timespec="seconds"),
        versions=measured.versions,
    )


def _listed(subjects: Mapping[str, Subject]) -> str:
    names = list(subjects)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3]) or 'none'}{more}"

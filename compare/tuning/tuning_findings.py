"""The comparisons of a tuning as numbers: time gained, quality lost, importance of fields."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import optuna

from common.machine import interference
from common.machine.interference import DISTURBED_FROM
from compare.core.statistics import JudgedRatio, Ratio, Spread, paired_ratio, spread, verdicts
from compare.tuning.records import Objective, SearchResult, Trial, Tuned

IMPORTANCE_TRIALS = 10
"""Trials trained to their end. With fewer, no importance is reported."""

_SECONDS, _AFTER_TRIALS, _AFTER_SECONDS = "seconds", "after the same trials", "after the same seconds"

Pairs = Sequence[tuple[SearchResult, SearchResult]]
_Samples = list[tuple[float | None, float | None]]


@dataclass(frozen=True)
class Gain:
    """Several jobs compared with the fewest, for one framework. Paired over repeats, each with its repeat's sampler seed."""

    contestant: str
    jobs: int
    against: int
    seconds: JudgedRatio | None
    """Seconds of the fewest jobs divided by these. Above 1, these are faster."""
    after_trials: JudgedRatio | None
    """Best value of these divided by that of the fewest, each after all its trials."""
    after_seconds: JudgedRatio | None
    """The same, after the seconds of the faster of the two searches."""
    empty: int = 0
    """Repeats with a search that had no trial trained to its end by then. If there are any, `after_seconds` is None: the
    remaining pairs would be those that went well."""


@dataclass(frozen=True)
class Findings:
    """All findings of a tuning."""

    gains: list[Gain]
    judged: list[JudgedRatio]
    """Every comparison, as one family."""
    importances: dict[str, dict[str, float]]
    """Framework: part of the objective's variance by field (fANOVA). Missing if too few trials were trained to their end."""


def find(tuned: Tuned) -> Findings:
    """Judge every comparison of a tuning as one family."""
    settings = tuned.plan.settings
    image = 1.0 / tuned.plan.validation_examples if settings.objective == "accuracy" else 0.0
    ratios: dict[tuple[str, int, str], Ratio] = {}
    empty: dict[tuple[str, int], int] = {}
    for contestant, jobs, few, many in _compared(tuned):
        for what, values in _samples(pairs(few, many), settings.objective).items():
            known = [(a, b) for a, b in values if a is not None and b is not None]
            if what == _AFTER_SECONDS:
                empty[contestant, jobs] = len(values) - len(known)
            if len(known) < len(values):
                continue  # a search that found nothing is the worst outcome, and the other pairs alone would be too good
            if (ratio := paired_ratio(known, rounding=0.0 if what == _SECONDS else image)) is not None:
                ratios[contestant, jobs, what] = ratio
    judged = verdicts([(f"{contestant} {jobs} jobs, {what}", ratio) for (contestant, jobs, what), ratio in ratios.items()])
    found = dict(zip(ratios, judged, strict=True))
    gains = [
        Gain(
            contestant,
            jobs,
            min(settings.jobs),
            found.get((contestant, jobs, _SECONDS)),
            found.get((contestant, jobs, _AFTER_TRIALS)),
            found.get((contestant, jobs, _AFTER_SECONDS)),
            empty[contestant, jobs],
        )
        for contestant, jobs, _, _ in _compared(tuned)
    ]
    importances = {contestant: _importance(tuned, contestant) for contestant in settings.frameworks}
    return Findings(gains, judged, {contestant: found for contestant, found in importances.items() if found})


def _compared(tuned: Tuned) -> Iterator[tuple[str, int, Sequence[SearchResult], Sequence[SearchResult]]]:
    """(framework, jobs, searches with the fewest jobs, searches with these jobs) of each comparison."""
    for contestant in tuned.plan.settings.frameworks:
        by_jobs = tuned.by_jobs(contestant)
        for jobs in list(by_jobs)[1:]:
            yield contestant, jobs, by_jobs[min(by_jobs)], by_jobs[jobs]


def pairs(few: Sequence[SearchResult], many: Sequence[SearchResult], *, timed: bool = False) -> Pairs:
    """Searches of the same repeat that are done.

    Args:
        few, many: searches with fewer and with more jobs.
        timed: leaves out pairs with seconds that are not valid for a ratio.
    """
    by_repeat = {search.repeat: search for search in few if search.done}
    found = [(by_repeat[each.repeat], each) for each in many if each.done and each.repeat in by_repeat]
    return [(first, second) for first, second in found if not timed or (first.timed and second.timed)]


def _samples(found: Pairs, objective: Objective) -> dict[str, _Samples]:
    """Pairs of values by what they compare. None: no trial was trained to its end."""
    timed = [(few, many, min(few.seconds, many.seconds)) for few, many in found if few.timed and many.timed]
    return {
        _SECONDS: [(few.seconds, many.seconds) for few, many, _ in timed],
        _AFTER_TRIALS: [(many.best(objective), few.best(objective)) for few, many in found],
        _AFTER_SECONDS: [(many.best(objective, until=end), few.best(objective, until=end)) for few, many, end in timed],
    }


def over_repeats(searches: Sequence[SearchResult], objective: Objective, *, trials: int | None = None) -> Spread | None:
    """The best values of a search's repeats. None if one of them has none."""
    values = [search.best(objective, trials=trials) for search in searches]
    return None if None in values else spread([value for value in values if value is not None])


def cores_taken(tuned: Tuned, search: SearchResult) -> float:
    """Cores of the search's budget that other work used."""
    if search.cores_of_others is None:
        return 0.0
    return interference.cores_taken(search.cores_of_others, tuned.plan.budget, tuned.plan.machine)


def disturbed(tuned: Tuned) -> list[SearchResult]:
    """Searches with seconds that other work disturbed."""
    return [search for search in tuned.searches if search.timed and cores_taken(tuned, search) > DISTURBED_FROM]


def disturbs(tuned: Tuned, contestant: str, *jobs: int) -> bool:
    """Whether other work disturbed the seconds of a contestant's searches with one of these numbers of jobs."""
    return any(search.contestant == contestant and search.jobs in jobs for search in disturbed(tuned))


def settings_scored(tuned: Tuned, contestant: str) -> list[Trial]:
    """One trial for each setting that was trained to its end. Searches with different jobs may train the same setting."""
    return list({repr(sorted(trial.fields.items())): trial for trial in tuned.scored(contestant)}.values())


def _importance(tuned: Tuned, contestant: str) -> dict[str, float]:
    """Importance over a framework's trials of all searches, by functional ANOVA (Hutter et al. 2014)."""
    settings = tuned.plan.settings
    scored = settings_scored(tuned, contestant)
    distributions = settings.judged_space().distributions
    varying = {
        field: drawn for field, drawn in distributions.items() if len({repr(trial.fields[field]) for trial in scored}) > 1
    }
    if len(scored) < IMPORTANCE_TRIALS or len({trial.value for trial in scored}) < 2 or not varying:
        return {}
    if len(varying) == 1:
        return dict.fromkeys(varying, 1.0)
    study = optuna.create_study(direction=settings.direction)
    for trial in scored:
        fields = {field: trial.fields[field] for field in varying}
        study.add_trial(optuna.trial.create_trial(params=fields, distributions=varying, value=trial.value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        return optuna.importance.get_param_importances(study, evaluator=evaluator)

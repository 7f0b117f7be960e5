"""The comparisons of a tuning as numbers: time gained, quality lost, importance of fields."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import optuna

from common.machine import interference
from common.machine.interference import DISTURBED_FROM
from compare.statistics.statistics import JudgedRatio, Ratio, Spread, paired_ratio, spread, verdicts
from compare.tools.tuning.records import Objective, TunedTrial, TuningRecord, TuningSearch

IMPORTANCE_TRIALS = 10
"""Number of trials trained to their end that an importance needs."""

_SECONDS, _AFTER_TRIALS, _AFTER_SECONDS = "seconds", "after the same trials", "after the same seconds"

Pairs = Sequence[tuple[TuningSearch, TuningSearch]]
_Samples = list[tuple[float | None, float | None]]


@dataclass(frozen=True)
class Gain:
    """Several jobs compared with the fewest, for one framework. Paired over repeats, each with its repeat's sampler seed."""

    contestant: str
    jobs: int
    against: int
    seconds: JudgedRatio | None
    """Seconds of the fewest jobs divided by those of these jobs. Above 1, these jobs are faster."""
    after_trials: JudgedRatio | None
    """Best value of these jobs divided by that of the fewest, each after all its trials."""
    after_seconds: JudgedRatio | None
    """Best value of these jobs divided by that of the fewest, after the seconds of the faster of the two searches."""
    empty: int = 0
    """Repeats with a search that had no trial trained to its end by then. If there are any, `after_seconds` is None: the
    remaining pairs would be those that went well."""


@dataclass(frozen=True)
class Findings:
    """All findings of a tuning."""

    gains: list[Gain]
    judged: list[JudgedRatio]
    """All comparisons, judged as one family."""
    importances: dict[str, dict[str, float]]
    """Fraction of the objective's variance by framework and field (fANOVA). Missing if too few trials were finished."""


def judge_tuning(tuned: TuningRecord) -> Findings:
    """Judge every comparison of a tuning as one family."""
    settings = tuned.plan.settings
    image = 1.0 / tuned.plan.validation_examples if settings.objective == "accuracy" else 0.0
    ratios: dict[tuple[str, int, str], Ratio] = {}
    empty: dict[tuple[str, int], int] = {}
    for contestant, jobs, fewest_searches, many in _comparisons(tuned):
        for quantity, values in _samples(pairs(fewest_searches, many), settings.objective).items():
            complete = [(a, b) for a, b in values if a is not None and b is not None]
            if quantity == _AFTER_SECONDS:
                empty[contestant, jobs] = len(values) - len(complete)
            if len(complete) < len(values):
                continue  # a search that found nothing is the worst outcome, and the other pairs alone would be too good
            if (ratio := paired_ratio(complete, rounding=0.0 if quantity == _SECONDS else image)) is not None:
                ratios[contestant, jobs, quantity] = ratio
    judged = verdicts([(f"{contestant} {jobs} jobs, {what}", ratio) for (contestant, jobs, what), ratio in ratios.items()])
    ratio_by_key = dict(zip(ratios, judged, strict=True))
    gains = [
        Gain(
            contestant,
            jobs,
            min(settings.jobs),
            ratio_by_key.get((contestant, jobs, _SECONDS)),
            ratio_by_key.get((contestant, jobs, _AFTER_TRIALS)),
            ratio_by_key.get((contestant, jobs, _AFTER_SECONDS)),
            empty[contestant, jobs],
        )
        for contestant, jobs, _, _ in _comparisons(tuned)
    ]
    importances = {contestant: _importance(tuned, contestant) for contestant in settings.frameworks}
    return Findings(gains, judged, {contestant: parts for contestant, parts in importances.items() if parts})


def _comparisons(tuned: TuningRecord) -> Iterator[tuple[str, int, Sequence[TuningSearch], Sequence[TuningSearch]]]:
    """Yield (framework, jobs, searches with the fewest jobs, searches with these jobs) for each comparison."""
    for contestant in tuned.plan.settings.frameworks:
        by_jobs = tuned.by_jobs(contestant)
        for jobs in list(by_jobs)[1:]:
            yield contestant, jobs, by_jobs[min(by_jobs)], by_jobs[jobs]


def pairs(few: Sequence[TuningSearch], many: Sequence[TuningSearch], *, timed: bool = False) -> Pairs:
    """Pair the finished searches of the same repeat.

    Args:
        few, many: searches with fewer and with more jobs.
        timed: leave out pairs with seconds that are not valid for a ratio.
    """
    by_repeat = {search.repeat: search for search in few if search.done}
    search_pairs = [(by_repeat[search.repeat], search) for search in many if search.done and search.repeat in by_repeat]
    return [(first, second) for first, second in search_pairs if not timed or (first.timed and second.timed)]


def _samples(search_pairs: Pairs, objective: Objective) -> dict[str, _Samples]:
    """Return pairs of values by the quantity that they compare. None: no trial was trained to its end."""
    timed = [(few, many, min(few.seconds, many.seconds)) for few, many in search_pairs if few.timed and many.timed]
    return {
        _SECONDS: [(few.seconds, many.seconds) for few, many, _ in timed],
        _AFTER_TRIALS: [(many.best(objective), few.best(objective)) for few, many in search_pairs],
        _AFTER_SECONDS: [(many.best(objective, until=end), few.best(objective, until=end)) for few, many, end in timed],
    }


def over_repeats(searches: Sequence[TuningSearch], objective: Objective, *, trials: int | None = None) -> Spread | None:
    """Return the spread of the best values of a search's repeats. None if a repeat has none."""
    values = [search.best(objective, trials=trials) for search in searches]
    return None if None in values else spread([value for value in values if value is not None])


def cores_taken(tuned: TuningRecord, search: TuningSearch) -> float:
    """Return the cores of the search's budget that other work used."""
    if search.cores_of_others is None:
        return 0.0
    return interference.cores_taken(search.cores_of_others, tuned.plan.budget, tuned.plan.machine)


def disturbed(tuned: TuningRecord) -> list[TuningSearch]:
    """Return the searches with seconds that other work disturbed."""
    return [search for search in tuned.searches if search.timed and cores_taken(tuned, search) > DISTURBED_FROM]


def disturbs(tuned: TuningRecord, contestant: str, *jobs: int) -> bool:
    """Whether other work disturbed the seconds of a contestant's searches with one of these numbers of jobs."""
    return any(search.contestant == contestant and search.jobs in jobs for search in disturbed(tuned))


def settings_scored(tuned: TuningRecord, contestant: str) -> list[TunedTrial]:
    """Return one trial for each setting that was trained to its end. Several searches may train the same setting."""
    return list({repr(sorted(trial.fields.items())): trial for trial in tuned.scored(contestant)}.values())


def _importance(tuned: TuningRecord, contestant: str) -> dict[str, float]:
    """Return the importance of each field over all trials of a framework, by functional ANOVA (Hutter et al. 2014)."""
    settings = tuned.plan.settings
    scored = settings_scored(tuned, contestant)
    distributions = settings.checked_space().distributions
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

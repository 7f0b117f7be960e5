"""What the searches show: time gained, quality lost, and the best settings."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import optuna
from optuna.distributions import BaseDistribution

from common.training.loop import relative_difference
from compare.core import statistics, wording
from compare.core.statistics import VERDICT_PAIRS, Judged, Ratio, Spread, interval_words, paired_ratio, spread
from compare.judgement.summary import DISTURBED_FROM, cores_lost
from compare.judgement.verdict_sentences import DISTURBED
from compare.tuning import search_space
from compare.tuning.optuna_study import Objective, Searched, Trial, random_trials
from compare.tuning.tuner import Tuned

IMPORTANCE_TRIALS = 10
"""Trials trained to their end. With fewer, no importance is reported."""

_SECONDS, _AFTER_TRIALS, _AFTER_SECONDS = "seconds", "after the same trials", "after the same seconds"


@dataclass(frozen=True)
class Gain:
    """Several jobs compared with the fewest, for one framework. Paired over repeats, each with its repeat's sampler seed."""

    framework: str
    jobs: int
    against: int
    seconds: Judged | None
    """Seconds of the fewest jobs divided by these: above 1, these are faster."""
    after_trials: Judged | None
    """Best value of these divided by that of the fewest, each after all its trials."""
    after_seconds: Judged | None
    """The same, after the seconds that the faster of the two searches took."""
    empty: int = 0
    """Repeats in which one of the two had no trial trained to its end by then: where there is one, `after_seconds` is None, for
    the pairs that are left would be those that went well."""


@dataclass(frozen=True)
class Findings:
    """All findings of a tuning."""

    gains: list[Gain]
    judged: list[Judged]
    """Every comparison, as one family."""
    importances: dict[str, dict[str, float]]
    """Framework: part of the objective's variance by field (fANOVA); none where too few trials were trained to their end."""


def find(tuned: Tuned) -> Findings:
    """Judge every comparison of a tuning as one family."""
    objective = tuned.plan.settings.objective
    image = 1.0 / tuned.plan.validation_examples if objective == "accuracy" else 0.0
    ratios: dict[tuple[str, int, str], Ratio] = {}
    empty: dict[tuple[str, int], int] = {}
    for framework in tuned.plan.settings.frameworks:
        by_jobs = grouped(tuned, framework)
        for jobs in list(by_jobs)[1:]:
            pairs = _pairs(by_jobs[min(by_jobs)], by_jobs[jobs])
            timed = [(few, many) for few, many in pairs if few.timed and many.timed]
            ends = [min(few.seconds, many.seconds) for few, many in timed]
            samples: dict[str, list[tuple[float | None, float | None]]] = {
                _SECONDS: [(few.seconds, many.seconds) for few, many in timed],
                _AFTER_TRIALS: [(best(many, objective), best(few, objective)) for few, many in pairs],
                _AFTER_SECONDS: [
                    (best(many, objective, until=end), best(few, objective, until=end))
                    for (few, many), end in zip(timed, ends, strict=True)
                ],
            }
            for what, values in samples.items():
                known = [(a, b) for a, b in values if a is not None and b is not None]
                if what == _AFTER_SECONDS:
                    empty[framework, jobs] = len(values) - len(known)
                if len(known) < len(values):
                    continue  # to have found nothing is an outcome too, and the worst: without it the rest would flatter
                if (ratio := paired_ratio(known, rounding=0.0 if what == _SECONDS else image)) is not None:
                    ratios[framework, jobs, what] = ratio
    judged = statistics.verdicts(
        [(f"{framework} {jobs} jobs, {what}", ratio) for (framework, jobs, what), ratio in ratios.items()]
    )
    found = dict(zip(ratios, judged, strict=True))
    gains = [
        Gain(
            framework,
            jobs,
            min(tuned.plan.settings.jobs),
            found.get((framework, jobs, _SECONDS)),
            found.get((framework, jobs, _AFTER_TRIALS)),
            found.get((framework, jobs, _AFTER_SECONDS)),
            empty.get((framework, jobs), 0),
        )
        for framework in tuned.plan.settings.frameworks
        for jobs in list(grouped(tuned, framework))[1:]
    ]
    importances = {framework: _importance(tuned, framework) for framework in tuned.plan.settings.frameworks}
    return Findings(gains, judged, {framework: found for framework, found in importances.items() if found})


def grouped(tuned: Tuned, framework: str) -> dict[int, list[Searched]]:
    """A framework's searches by number of jobs, in ascending order."""
    made: dict[int, list[Searched]] = {}
    for search in tuned.searches:
        if search.framework == framework:
            made.setdefault(search.jobs, []).append(search)
    return dict(sorted(made.items()))


def best(search: Searched, objective: Objective, *, trials: int | None = None, until: float = math.inf) -> float | None:
    """The best value among trials that were trained to their end.

    Args:
        search: whose trials.
        objective: what is best.
        trials: only the first so many that ended; None: all.
        until: only trials that ended within so many seconds of the search's start.
    """
    told = search.trials[:trials]
    values = [trial.value for trial in told if trial.state == "ok" and trial.value is not None and trial.ended_seconds <= until]
    return (min if objective == "loss" else max)(values, default=None)


def over_repeats(searches: Sequence[Searched], objective: Objective, *, trials: int | None = None) -> Spread | None:
    """The best values of a search's repeats. None while one of them has none."""
    values = [best(search, objective, trials=trials) for search in searches]
    known = [value for value in values if value is not None]
    return spread(known) if len(known) == len(values) else None


def sections(tuned: Tuned, found: Findings) -> list[tuple[str, list[str]]]:
    """The findings, as sentences under headings."""
    parts = [
        ("What was found?", _bests(tuned)),
        ("Did both frameworks search the same?", _sameness(tuned)),
        ("What does it gain to search side by side?", [_gain(tuned, gain) for gain in found.gains if gain.seconds]),
        ("Does it cost quality?", _costs(tuned, found)),
        ("Which fields matter?", _matters(tuned, found)),
        ("How sure is that?", _surety(tuned, found)),
        ("Cautions", _cautions(tuned)),
    ]
    return [(title, sentences) for title, sentences in parts if sentences]


def field_words(fields: dict[str, object]) -> str:
    """`optimizer.momentum 0.9, global_batch_size 64`."""
    return ", ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in fields.items())


def jobs_words(count: int) -> str:
    """`1 job`, `2 jobs`."""
    return f"{wording.count(count, 'job')}"


def _pairs(few: Sequence[Searched], many: Sequence[Searched]) -> list[tuple[Searched, Searched]]:
    by_repeat = {search.repeat: search for search in few if search.done}
    return [(by_repeat[search.repeat], search) for search in many if search.done and search.repeat in by_repeat]


def _bests(tuned: Tuned) -> list[str]:
    settings = tuned.plan.settings
    said: list[str] = []
    for framework in settings.frameworks:
        own = [search for search in tuned.searches if search.framework == framework]
        count = sum(len(search.trials) for search in own)
        if (top := tuned.best_trials.get(framework)) is None:
            said.append(f"{framework}: no trial was trained to its end, of {count} so far.")
            continue
        scores = f"validation loss {top.trial.loss:.4f}, accuracy {top.trial.accuracy:.4f}"
        chosen = f"the best of {wording.count(count, 'trial')}"
        epochs = f"{wording.count(top.trial.epochs, 'epoch')}"
        said.append(f"{framework}: {scores} after {epochs}, {chosen}: {field_words(top.fields)}.")
    if tuned.best_trials:
        said.append(
            "The best of many flatters: it was chosen for this very score, on the validation split. What it is worth, the test "
            "split says, which no trial has seen."
        )
    return said


def _sameness(tuned: Tuned) -> list[str]:
    """How many trials had the same settings in the first two frameworks, and how far their results differ."""
    frameworks = tuned.plan.settings.frameworks
    if len(frameworks) < 2:
        return []
    first, second = (
        {
            (search.jobs, search.repeat, trial.slot): trial
            for search in tuned.searches
            if search.framework == name
            for trial in search.trials
        }
        for name in frameworks[:2]
    )
    both = [(first[key], second[key]) for key in first if key in second]
    same = [(a, b) for a, b in both if a.fields == b.fields]
    if not both:
        return []
    said = f"{len(same)} of {len(both)} trials had the same settings in {frameworks[0]} and {frameworks[1]}."
    ended = [relative_difference(a.loss, b.loss) for a, b in same if _scored(a) and _scored(b) and a.loss and b.loss]
    if ended:
        middle = sorted(ended)[len(ended) // 2]
        said += f" Their validation losses differ by {middle:.1e} in the middle, {max(ended):.1e} at most (relative)."
    if tuned.plan.settings.sampler == "tpe":
        drawn = random_trials(tuned.plan.settings.trials)
        first_ones = "first trial of a search is" if drawn == 1 else f"first {drawn} trials of a search are"
        said += (
            f" At least the {first_ones} drawn at random, alike in all; what TPE proposes then depends on the results, whose "
            "last digits differ."
        )
    return [said]


def _scored(trial: Trial) -> bool:
    return trial.state == "ok"


def _cores_lost(tuned: Tuned, search: Searched) -> float:
    """Fraction of the core budget that other work on the machine took."""
    if search.cores_of_others is None:
        return 0.0
    return cores_lost(search.cores_of_others, tuned.plan.budget, tuned.plan.machine)


def disturbed(tuned: Tuned) -> list[Searched]:
    """Searches whose seconds other work disturbed."""
    return [search for search in tuned.searches if search.timed and _cores_lost(tuned, search) > DISTURBED_FROM]


def _gain(tuned: Tuned, gain: Gain) -> str:
    judged = gain.seconds
    assert judged is not None
    times = f"{interval_words(judged.ratio)} times as fast as {jobs_words(gain.against)}"
    verdict = _verdict(judged, above="faster", below="slower")
    return f"{gain.framework}, {jobs_words(gain.jobs)}: {verdict}: {times}{statistics.surety(judged)}.{_doubt(tuned, gain)}"


def _doubt(tuned: Tuned, gain: Gain) -> str:
    """A caution for verdicts on seconds, if other work disturbed them."""
    involved = (gain.jobs, gain.against)
    found = any(search.framework == gain.framework and search.jobs in involved for search in disturbed(tuned))
    return DISTURBED if found else ""


def _verdict(judged: Judged, *, above: str, below: str) -> str:
    """A verdict in words, with the number of missing pairs or the size of the difference."""
    word = statistics.word(judged, above=above, below=below, neither="no difference shown")
    lacking = f" ({judged.ratio.n} of {VERDICT_PAIRS})" if judged.verdict == "too few repeats to tell" else ""
    return f"{word}{lacking}{statistics.hardly(judged)}"


def _costs(tuned: Tuned, found: Findings) -> list[str]:
    objective = tuned.plan.settings.objective
    worse, better = ("above", "below") if objective == "loss" else ("below", "above")
    words = {worse: "worse", better: "better"}
    said: list[str] = []
    for gain in found.gains:
        for judged, when, doubt in (
            (gain.after_trials, "after the same number of trials", ""),
            (gain.after_seconds, "after the same seconds", _doubt(tuned, gain)),
        ):
            if judged is None:
                continue
            verdict = _verdict(judged, above=words["above"], below=words["below"])
            said.append(
                f"{gain.framework}, {jobs_words(gain.jobs)}, {when}: {verdict}: the best validation {objective} is "
                f"{interval_words(judged.ratio)} times that of {jobs_words(gain.against)}{statistics.surety(judged)}.{doubt}"
            )
        if gain.empty:
            said.append(
                f"{gain.framework}, {jobs_words(gain.jobs)}, after the same seconds: cannot be told: in {gain.empty} of the "
                f"repeats this or {jobs_words(gain.against)} had trained no trial to its end by then."
            )
    return said


def _matters(tuned: Tuned, found: Findings) -> list[str]:
    said: list[str] = []
    for framework in tuned.plan.settings.frameworks:
        count = len(_whole(tuned, framework))
        if framework in found.importances:
            parts = ", ".join(f"{field} {part:.0%}" for field, part in found.importances[framework].items())
            said.append(f"{framework}: of the variance over {count} settings, by fANOVA: {parts}.")
        else:
            said.append(
                f"{framework}: too few settings to tell: {count} trained to their end, of the {IMPORTANCE_TRIALS} needed."
            )
    if found.importances:
        said.append(
            "No interval stands behind these parts: they are of a forest over so many settings, which a sampler that seeks "
            "the best does not spread evenly, and another search may put another field first. Take them as a hint alone."
        )
    return said


def _surety(tuned: Tuned, found: Findings) -> list[str]:
    said = [sentence for sentence in (statistics.family_words(found.judged),) if sentence]
    settings = tuned.plan.settings
    if found.judged:
        said.append(
            f"Repeats differ by the sampler's seed alone: all trials train with seed {settings.values.get('seed', 0)}. The "
            "searches of a repeat share the sampler's seed, and are compared in pairs."
        )
    return said


def _cautions(tuned: Tuned) -> list[str]:
    settings, budget = tuned.plan.settings, tuned.plan.budget
    said: list[str] = []
    for search in tuned.searches:
        name = f"{search.framework}, {jobs_words(search.jobs)}, repeat {search.repeat + 1}"
        for trial in search.trials:
            if trial.state not in ("ok", "pruned"):
                said.append(f"{name}: trial {trial.slot + 1} {trial.state}: {str(trial.reason).rstrip('.')}.")
        if search.attempts > 1:
            often = "once" if search.attempts == 2 else f"{search.attempts - 1} times"
            said.append(
                f"{name}: cut short {often}; its seconds are those of its attempts, each until its last told trial, and stand "
                "in no ratio."
            )
        if search.servers_lost:
            said.append(
                f"{name}: {search.servers_lost} of its processes ended and could not be replaced, so that it went on with "
                "fewer jobs; its seconds stand in no ratio."
            )
        if (lost := _cores_lost(tuned, search)) > DISTURBED_FROM:
            said.append(f"{name}: other work took {lost:.2f} cores of its budget of {budget}: rely on no time of it.")
    waiting = [search for search in tuned.searches if not search.done]
    if waiting:
        said.append(f"{len(waiting)} of {len(tuned.searches)} searches are not done, and stand in no ratio.")
    over = [jobs for jobs in settings.jobs if jobs > budget]
    if over:
        said.append(f"{', '.join(map(str, over))} jobs took turns on {wording.count(budget, 'core')}.")
    for jobs in sorted(settings.jobs):
        if jobs <= budget and budget % jobs:
            said.append(
                f"{jobs_words(jobs)} used {budget // jobs * jobs} of the budget's {budget} cores, which they do not divide."
            )
    if len(settings.jobs) > 1 and (settings.sampler == "tpe" or settings.pruner != "none"):
        said.append(
            "Searches of different numbers of jobs do not train the same trials, for what is proposed or pruned depends on "
            "what was known then: images per second stand beside the seconds."
        )
    return said


def _whole(tuned: Tuned, framework: str) -> list[Trial]:
    """One trial for each setting that was trained to its end. Searches with different jobs may train the same setting."""
    own = (search for search in tuned.searches if search.framework == framework)
    whole = [trial for search in own for trial in search.trials if trial.state == "ok" and trial.value is not None]
    return list({repr(sorted(trial.fields.items())): trial for trial in whole}.values())


def _importance(tuned: Tuned, framework: str) -> dict[str, float]:
    """Importance over a framework's trials of all searches, by functional ANOVA (Hutter et al. 2014)."""
    settings = tuned.plan.settings
    whole = _whole(tuned, framework)
    distributions = search_space.judged(settings.space, settings.values, settings.space_name).distributions
    varying = [field for field in distributions if len({repr(trial.fields[field]) for trial in whole}) > 1]
    if len(whole) < IMPORTANCE_TRIALS or len({trial.value for trial in whole}) < 2 or not varying:
        return {}
    if len(varying) == 1:
        return {varying[0]: 1.0}
    study = optuna.create_study(direction="minimize" if settings.objective == "loss" else "maximize")
    for trial in whole:
        study.add_trial(_frozen(trial, {field: distributions[field] for field in varying}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        return optuna.importance.get_param_importances(study, evaluator=evaluator)


def _frozen(trial: Trial, distributions: dict[str, BaseDistribution]) -> optuna.trial.FrozenTrial:
    fields = {field: trial.fields[field] for field in distributions}
    return optuna.trial.create_trial(params=fields, distributions=distributions, value=trial.value)

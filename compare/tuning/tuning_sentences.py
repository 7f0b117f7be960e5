"""The findings of a tuning as sentences."""

from __future__ import annotations

import statistics as python_statistics
from collections import Counter

from common.machine.interference import DISTURBED_FROM
from compare.core.differences import relative_difference
from compare.core.statistics import VERDICT_PAIRS, JudgedRatio
from compare.core.verdict_words import family_words, within_margin_text, interval_words, p_value_text, verdict_text
from compare.core.wording import count, percent
from compare.judgement.cautions import data_cautions
from compare.judgement.verdict_sentences import DISTURBED, NO_FINDING
from compare.tuning.optuna_study import random_trials
from compare.tuning.records import SearchResult, Trial, Tuned
from compare.tuning.tuning_findings import IMPORTANCE_TRIALS, Findings, Gain, cores_taken, disturbs, settings_scored

_FIELDS = 3
"""Fields that the first screen names."""


def sentences(tuned: Tuned, found: Findings) -> list[tuple[str, list[str]]]:
    """The findings under headings."""
    parts = [
        ("What was found?", _bests(tuned)),
        ("Did both frameworks search the same?", _sameness(tuned)),
        (
            "What does it gain to search side by side?",
            [_gain(tuned, gain, gain.seconds) for gain in found.gains if gain.seconds],
        ),
        ("Does it cost quality?", [sentence for gain in found.gains for sentence in _costs(tuned, gain)]),
        ("Which fields matter?", _importances(tuned, found)),
        ("How sure is that?", _surety(tuned, found)),
        ("Cautions", [*_cautions(tuned), *data_cautions(tuned.plan.data_notes)]),
        ("The data", tuned.plan.data_notes),
    ]
    return [(title, sentences) for title, sentences in parts if sentences]


def verdict(tuned: Tuned, judged: JudgedRatio, *, seconds: bool = False) -> str:
    """The verdict on a ratio of seconds or of best values, in a word.

    Args:
        tuned: its objective decides which value is better.
        judged: the ratio, of these jobs over the fewest.
        seconds: whether it is a ratio of seconds: of the fewest jobs over these.
    """
    above, below = ("worse", "better") if tuned.plan.settings.objective == "loss" else ("better", "worse")
    if seconds:
        above, below = "faster", "slower"
    return verdict_text(judged, when_above=above, when_below=below, when_neither="no difference shown")


def bests_in_short(tuned: Tuned) -> list[str]:
    """The best score of each framework, for the first screen. The settings stand in a table."""
    said: list[str] = []
    for contestant in tuned.plan.settings.frameworks:
        number = count(sum(len(search.trials) for search in tuned.of(contestant)), "trial")
        if (best := tuned.best_trials.get(contestant)) is None:
            said.append(f"{contestant}: none of {number} so far was trained to its end.")
        else:
            scores = f"validation loss {best.trial.loss:.4f}, accuracy {best.trial.accuracy:.4f}"
            said.append(f"{contestant}: {scores}, the best of {number}.")
    return said


def gains_in_short(tuned: Tuned, found: Findings) -> list[str]:
    """What several jobs gain and cost, for the first screen."""
    objective = tuned.plan.settings.objective
    said: list[str] = []
    for gain in found.gains:
        if gain.seconds and disturbs(tuned, gain.contestant, gain.jobs, gain.against):
            said.append(f"{_who(gain)}: no finding. Other work disturbed these runs.")
        elif gain.seconds:
            words = _with_size(gain.seconds, verdict(tuned, gain.seconds, seconds=True))
            said.append(f"{_who(gain)}: {words}, {interval_words(gain.seconds.ratio)} times as fast.")
        if (judged := gain.after_trials) is not None:
            words = _with_size(judged, verdict(tuned, judged))
            said.append(
                f"{_who(gain)}, after the same trials, best {objective}: {words}, {interval_words(judged.ratio)} times."
            )
    return said


def importances_in_short(found: Findings) -> list[str]:
    """Which fields matter, for the first screen. Parts without an interval are a hint alone."""
    return [
        f"{contestant}, a hint alone: " + ", ".join(f"{field} {percent(part)}" for field, part in list(parts.items())[:_FIELDS])
        for contestant, parts in found.importances.items()
    ]


def trouble(tuned: Tuned) -> list[str]:
    """What changes the answer, and why the exit code is not 0."""
    said: list[str] = []
    if waiting := sum(not search.done for search in tuned.searches):
        said.append(f"{waiting} of {count(len(tuned.searches), 'search', 'searches')} not done.")
    bad = [(search, trial) for search in tuned.searches for trial in search.trials if trial.state in ("failed", "killed")]
    if bad:
        search, trial = bad[0]
        states = ", ".join(f"{number} {state}" for state, number in Counter(trial.state for _, trial in bad).items())
        why = str(trial.reason).rstrip(".")
        said.append(
            f"{states} of {count(sum(len(each.trials) for each in tuned.searches), 'trial')}. {search.contestant}: {why}."
        )
    if lost := sum(cores_taken(tuned, search) > DISTURBED_FROM for search in tuned.searches):
        said.append(f"Other work disturbed {count(lost, 'search', 'searches')}: do not rely on their times.")
    return [*said, *data_cautions(tuned.plan.data_notes)]


def _bests(tuned: Tuned) -> list[str]:
    found: list[str] = []
    for contestant in tuned.plan.settings.frameworks:
        number = sum(len(search.trials) for search in tuned.of(contestant))
        if (best := tuned.best_trials.get(contestant)) is None:
            found.append(f"{contestant}: none of {count(number, 'trial')} so far was trained to its end.")
            continue
        fields = ", ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in best.fields.items()
        )
        found.append(
            f"{contestant}: validation loss {best.trial.loss:.4f}, accuracy {best.trial.accuracy:.4f} after "
            f"{count(best.trial.epochs, 'epoch')}, the best of {count(number, 'trial')}: {fields}."
        )
    if tuned.best_trials:
        found.append(
            "The best score of many trials is too good, because the trial was chosen by this very score on the validation "
            "split. The test split, which no trial has seen, shows its real worth."
        )
    return found


def _sameness(tuned: Tuned) -> list[str]:
    """How many trials had the same settings in the first two frameworks, and how much their results differ."""
    settings = tuned.plan.settings
    if len(settings.frameworks) < 2:
        return []
    first, second = (
        {(search.jobs, search.repeat, trial.slot): trial for search in tuned.of(contestant) for trial in search.trials}
        for contestant in settings.frameworks[:2]
    )
    both: list[tuple[Trial, Trial]] = [(first[key], second[key]) for key in first if key in second]
    if not both:
        return []
    same = [(a, b) for a, b in both if a.fields == b.fields]
    sentence = (
        f"{len(same)} of {len(both)} trials had the same settings in {settings.frameworks[0]} and {settings.frameworks[1]}."
    )
    differences = [relative_difference(a.loss, b.loss) for a, b in same if a.state == b.state == "ok" and a.loss and b.loss]
    if differences:
        middle = python_statistics.median_high(differences)
        sentence += (
            f" Their validation losses differ by {middle:.1e} in the median and {max(differences):.1e} at most (relative)."
        )
    if settings.sampler == "tpe":
        drawn = random_trials(settings.trials)
        first_ones = "first trial of a search is" if drawn == 1 else f"first {drawn} trials of a search are"
        sentence += (
            f" At least the {first_ones} drawn at random, the same in all. Later proposals of TPE depend on the results, and "
            "their last digits differ."
        )
    return [sentence]


def _who(gain: Gain) -> str:
    return f"{gain.contestant}, {count(gain.jobs, 'job')} against {count(gain.against, 'job')}"


def _with_size(judged: JudgedRatio, verdict: str) -> str:
    """A verdict with the number of its pairs if these are too few, or how small the difference is."""
    lacking = f" ({judged.ratio.n} of {VERDICT_PAIRS})" if judged.verdict == "too few repeats to tell" else ""
    return f"{verdict}{lacking}{within_margin_text(judged)}"


def _gain(tuned: Tuned, gain: Gain, judged: JudgedRatio) -> str:
    if disturbs(tuned, gain.contestant, gain.jobs, gain.against):
        return f"{_who(gain)}: no finding.{NO_FINDING}"
    found = _with_size(judged, verdict(tuned, judged, seconds=True))
    return f"{_who(gain)}: {interval_words(judged.ratio)} times as fast{p_value_text(judged)}: {found}."


def _doubt(tuned: Tuned, gain: Gain) -> str:
    """A caution for verdicts after the same seconds, if other work disturbed these."""
    return DISTURBED if disturbs(tuned, gain.contestant, gain.jobs, gain.against) else ""


def _costs(tuned: Tuned, gain: Gain) -> list[str]:
    lines = [
        f"{_who(gain)}: {interval_words(judged.ratio)} times the best validation {tuned.plan.settings.objective}"
        f"{p_value_text(judged)}, {when}: {_with_size(judged, verdict(tuned, judged))}.{doubt}"
        for judged, when, doubt in (
            (gain.after_trials, "after the same number of trials", ""),
            (gain.after_seconds, "after the same seconds", _doubt(tuned, gain)),
        )
        if judged is not None
    ]
    if gain.empty:
        lines.append(
            f"{_who(gain)}, after the same seconds: cannot tell. In {count(gain.empty, 'repeat')} one of the two had no trial "
            "trained to its end by then."
        )
    return lines


def _importances(tuned: Tuned, found: Findings) -> list[str]:
    lines: list[str] = []
    for contestant in tuned.plan.settings.frameworks:
        number = len(settings_scored(tuned, contestant))
        if contestant in found.importances:
            parts = ", ".join(f"{field} {percent(part)}" for field, part in found.importances[contestant].items())
            lines.append(f"{contestant}: of the variance over {number} settings, by fANOVA: {parts}.")
        else:
            lines.append(
                f"{contestant}: too few settings to tell: {number} trained to their end, of the {IMPORTANCE_TRIALS} needed."
            )
    if found.importances:
        lines.append(
            "These parts have no interval. They come from a forest over these settings, and a sampler that seeks the best does "
            "not spread its settings evenly. Another search may rank the fields differently, so take them as a hint alone."
        )
    return lines


def _surety(tuned: Tuned, found: Findings) -> list[str]:
    if not found.judged:
        return []
    family = family_words(found.judged)
    return [
        *([family] if family else []),
        f"Repeats differ only by the sampler's seed: all trials train with seed {tuned.plan.settings.values.get('seed', 0)}. "
        "The searches of a repeat share the sampler's seed, and are compared in pairs.",
    ]


def _cautions(tuned: Tuned) -> list[str]:
    settings, budget = tuned.plan.settings, tuned.plan.budget
    lines = [sentence for search in tuned.searches for sentence in _cautions_of(tuned, search)]
    if waiting := sum(not search.done for search in tuned.searches):
        lines.append(f"{waiting} of {len(tuned.searches)} searches are not done, and are in no ratio.")
    if over := [jobs for jobs in settings.jobs if jobs > budget]:
        lines.append(f"{', '.join(map(str, over))} jobs took turns on {count(budget, 'core')}.")
    lines += [
        f"{count(jobs, 'job')} used {budget // jobs * jobs} of the budget's {budget} cores, because {jobs} does not divide "
        f"{budget}."
        for jobs in sorted(settings.jobs)
        if jobs <= budget and budget % jobs
    ]
    if len(settings.jobs) > 1 and (settings.sampler == "tpe" or settings.pruner != "none"):
        lines.append(
            "Searches with different numbers of jobs do not train the same trials, because proposals and pruning depend on the "
            "results known at that time. So images per second are shown beside the seconds."
        )
    return lines


def _cautions_of(tuned: Tuned, search: SearchResult) -> list[str]:
    name = f"{search.contestant}, {count(search.jobs, 'job')}, repeat {search.repeat + 1}"
    lines = [
        f"{name}: trial {trial.slot + 1} {trial.state}: {str(trial.reason).rstrip('.')}."
        for trial in search.trials
        if trial.state not in ("ok", "pruned")
    ]
    if search.attempts > 1:
        often = "once" if search.attempts == 2 else f"{search.attempts - 1} times"
        lines.append(
            f"{name}: interrupted {often}. Its seconds are those of its attempts, each until its last finished trial. They are "
            "in no ratio."
        )
    if search.servers_lost:
        lines.append(
            f"{name}: {search.servers_lost} of its processes ended and could not be replaced. It went on with fewer jobs. Its "
            "seconds are in no ratio."
        )
    if (lost := cores_taken(tuned, search)) > DISTURBED_FROM:
        lines.append(
            f"{name}: other work took {lost:.2f} cores of its budget of {tuned.plan.budget}. Do not rely on its times."
        )
    return lines

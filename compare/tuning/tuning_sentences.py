"""The findings of a tuning as sentences."""

from __future__ import annotations

import statistics as python_statistics
from collections import Counter

from common.machine.interference import DISTURBED_FROM
from compare.core.differences import relative_difference
from compare.core.statistics import VERDICT_PAIRS, JudgedRatio
from compare.core.verdict_words import family_words, interval_words, p_value_text, verdict_text, within_margin_text
from compare.core.wording import count, percent
from compare.judgement import statement_words
from compare.judgement.cautions import data_cautions
from compare.judgement.statement_words import DISTURBED, NO_FINDING
from compare.tuning.optuna_study import random_trials
from compare.tuning.records import TunedTrial, TuningRecord, TuningSearch
from compare.tuning.tuning_findings import IMPORTANCE_TRIALS, Findings, Gain, cores_taken, disturbs, settings_scored

_FIELDS = 3
"""Fields that the first screen names."""


def sentences(tuned: TuningRecord, findings: Findings) -> list[tuple[str, list[str]]]:
    """Return the findings under headings."""
    parts = [
        ("What was found?", _bests(tuned)),
        ("Did both frameworks search the same?", _sameness(tuned)),
        (
            "What does it gain to search side by side?",
            [_gain(tuned, gain, gain.seconds) for gain in findings.gains if gain.seconds],
        ),
        ("Does it cost quality?", [sentence for gain in findings.gains for sentence in _costs(tuned, gain)]),
        ("Which fields matter?", _importances(tuned, findings)),
        ("How sure is that?", _certainty(tuned, findings)),
        ("Cautions", [*_cautions(tuned), *statement_words.sentences(data_cautions(tuned.plan.data_notes))]),
        ("The data", tuned.plan.data_notes),
    ]
    return [(title, sentences) for title, sentences in parts if sentences]


def verdict(tuned: TuningRecord, judged: JudgedRatio, *, seconds: bool = False) -> str:
    """Return the verdict on a ratio of seconds or of best values, in a word.

    Args:
        tuned: its objective decides which value is better.
        judged: the ratio, of these jobs over the fewest.
        seconds: whether it is a ratio of seconds: of the fewest jobs over these.
    """
    above, below = ("worse", "better") if tuned.plan.settings.objective == "loss" else ("better", "worse")
    if seconds:
        above, below = "faster", "slower"
    return verdict_text(judged, when_above=above, when_below=below, when_neither="no difference shown")


def short_bests(tuned: TuningRecord) -> list[str]:
    """Return the best score of each framework, for the first screen. The settings stand in a table."""
    lines: list[str] = []
    for contestant in tuned.plan.settings.frameworks:
        number = count(sum(len(search.trials) for search in tuned.searches_of(contestant)), "trial")
        if (best := tuned.best_trials.get(contestant)) is None:
            lines.append(f"{contestant}: none of {number} so far was trained to its end.")
        else:
            scores = f"validation loss {best.trial.loss:.4f}, accuracy {best.trial.accuracy:.4f}"
            lines.append(f"{contestant}: {scores}, the best of {number}.")
    return lines


def short_gains(tuned: TuningRecord, findings: Findings) -> list[str]:
    """Say for the first screen how much faster several jobs are, and what they cost."""
    objective = tuned.plan.settings.objective
    lines: list[str] = []
    for gain in findings.gains:
        if gain.seconds and disturbs(tuned, gain.contestant, gain.jobs, gain.against):
            lines.append(f"{_subject(gain)}: no finding. Other work disturbed these runs.")
        elif gain.seconds:
            words = _with_size(gain.seconds, verdict(tuned, gain.seconds, seconds=True))
            lines.append(f"{_subject(gain)}: {words}, {interval_words(gain.seconds.ratio)} times as fast.")
        if (judged := gain.after_trials) is not None:
            words = _with_size(judged, verdict(tuned, judged))
            lines.append(
                f"{_subject(gain)}, after the same trials, best {objective}: {words}, {interval_words(judged.ratio)} times."
            )
    return lines


def short_importances(findings: Findings) -> list[str]:
    """Say for the first screen which fields matter. Parts without an interval are a hint alone."""
    return [
        f"{contestant}, a hint alone: " + ", ".join(f"{field} {percent(part)}" for field, part in list(parts.items())[:_FIELDS])
        for contestant, parts in findings.importances.items()
    ]


def trouble_sentences(tuned: TuningRecord) -> list[str]:
    """Return the sentences that change the answer, and the reasons why the exit code is not 0."""
    lines: list[str] = []
    if num_unfinished := sum(not search.done for search in tuned.searches):
        lines.append(f"{num_unfinished} of {count(len(tuned.searches), 'search', 'searches')} not done.")
    failures = [(search, trial) for search in tuned.searches for trial in search.trials if trial.state in ("failed", "killed")]
    if failures:
        search, trial = failures[0]
        states = ", ".join(f"{number} {state}" for state, number in Counter(trial.state for _, trial in failures).items())
        why = str(trial.reason).rstrip(".")
        lines.append(
            f"{states} of {count(sum(len(other.trials) for other in tuned.searches), 'trial')}. {search.contestant}: {why}."
        )
    if num_disturbed := sum(cores_taken(tuned, search) > DISTURBED_FROM for search in tuned.searches):
        lines.append(f"Other work disturbed {count(num_disturbed, 'search', 'searches')}: do not rely on their times.")
    return [*lines, *statement_words.sentences(data_cautions(tuned.plan.data_notes))]


def _bests(tuned: TuningRecord) -> list[str]:
    lines: list[str] = []
    for contestant in tuned.plan.settings.frameworks:
        number = sum(len(search.trials) for search in tuned.searches_of(contestant))
        if (best := tuned.best_trials.get(contestant)) is None:
            lines.append(f"{contestant}: none of {count(number, 'trial')} so far was trained to its end.")
            continue
        fields = ", ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in best.fields.items()
        )
        lines.append(
            f"{contestant}: validation loss {best.trial.loss:.4f}, accuracy {best.trial.accuracy:.4f} after "
            f"{count(best.trial.epochs, 'epoch')}, the best of {count(number, 'trial')}: {fields}."
        )
    if tuned.best_trials:
        lines.append(
            "The best score of many trials is too good, because the trial was chosen by this very score on the validation "
            "split. The test split, which no trial has seen, shows its real worth."
        )
    return lines


def _sameness(tuned: TuningRecord) -> list[str]:
    """Say how many trials had the same settings in the first two frameworks, and how much their results differ."""
    settings = tuned.plan.settings
    if len(settings.frameworks) < 2:
        return []
    first, second = (
        {(search.jobs, search.repeat, trial.slot): trial for search in tuned.searches_of(contestant) for trial in search.trials}
        for contestant in settings.frameworks[:2]
    )
    common: list[tuple[TunedTrial, TunedTrial]] = [(first[key], second[key]) for key in first if key in second]
    if not common:
        return []
    same = [(a, b) for a, b in common if a.fields == b.fields]
    sentence = (
        f"{len(same)} of {len(common)} trials had the same settings in {settings.frameworks[0]} and {settings.frameworks[1]}."
    )
    differences = [relative_difference(a.loss, b.loss) for a, b in same if a.state == b.state == "ok" and a.loss and b.loss]
    if differences:
        middle = python_statistics.median_high(differences)
        sentence += (
            f" Their validation losses differ by {middle:.1e} in the median and {max(differences):.1e} at most (relative)."
        )
    if settings.sampler == "tpe":
        num_random = random_trials(settings.trials)
        random_trials_text = "first trial of a search is" if num_random == 1 else f"first {num_random} trials of a search are"
        sentence += (
            f" At least the {random_trials_text} drawn at random, the same in all. Later proposals of TPE depend on the "
            "results, and their last digits differ."
        )
    return [sentence]


def _subject(gain: Gain) -> str:
    return f"{gain.contestant}, {count(gain.jobs, 'job')} against {count(gain.against, 'job')}"


def _with_size(judged: JudgedRatio, verdict: str) -> str:
    """Return a verdict with the number of its pairs if these are too few, or how small the difference is."""
    lacking = f" ({judged.ratio.n} of {VERDICT_PAIRS})" if judged.verdict == "too few repeats to tell" else ""
    return f"{verdict}{lacking}{within_margin_text(judged)}"


def _gain(tuned: TuningRecord, gain: Gain, judged: JudgedRatio) -> str:
    if disturbs(tuned, gain.contestant, gain.jobs, gain.against):
        return f"{_subject(gain)}: no finding. {NO_FINDING}"
    verdict_words = _with_size(judged, verdict(tuned, judged, seconds=True))
    return f"{_subject(gain)}: {interval_words(judged.ratio)} times as fast{p_value_text(judged)}: {verdict_words}."


def _doubt(tuned: TuningRecord, gain: Gain) -> str:
    """Return a caution for verdicts after the same seconds, if other work disturbed these."""
    return f" {DISTURBED}" if disturbs(tuned, gain.contestant, gain.jobs, gain.against) else ""


def _costs(tuned: TuningRecord, gain: Gain) -> list[str]:
    lines = [
        f"{_subject(gain)}: {interval_words(judged.ratio)} times the best validation {tuned.plan.settings.objective}"
        f"{p_value_text(judged)}, {when}: {_with_size(judged, verdict(tuned, judged))}.{doubt}"
        for judged, when, doubt in (
            (gain.after_trials, "after the same number of trials", ""),
            (gain.after_seconds, "after the same seconds", _doubt(tuned, gain)),
        )
        if judged is not None
    ]
    if gain.empty:
        lines.append(
            f"{_subject(gain)}, after the same seconds: cannot tell. In {count(gain.empty, 'repeat')} one of the two had no "
            "trial trained to its end by then."
        )
    return lines


def _importances(tuned: TuningRecord, findings: Findings) -> list[str]:
    lines: list[str] = []
    for contestant in tuned.plan.settings.frameworks:
        number = len(settings_scored(tuned, contestant))
        if contestant in findings.importances:
            parts = ", ".join(f"{field} {percent(part)}" for field, part in findings.importances[contestant].items())
            lines.append(f"{contestant}: of the variance over {number} settings, by fANOVA: {parts}.")
        else:
            lines.append(
                f"{contestant}: too few settings to tell: {number} trained to their end, of the {IMPORTANCE_TRIALS} needed."
            )
    if findings.importances:
        lines.append(
            "These parts have no interval. They come from a forest over these settings, and a sampler that seeks the best does "
            "not spread its settings evenly. Another search may rank the fields differently, so take them as a hint alone."
        )
    return lines


def _certainty(tuned: TuningRecord, findings: Findings) -> list[str]:
    if not findings.judged:
        return []
    family = family_words(findings.judged)
    return [
        *([family] if family else []),
        f"Repeats differ only by the sampler's seed: all trials train with seed {tuned.plan.settings.values.get('seed', 0)}. "
        "The searches of a repeat share the sampler's seed, and are compared in pairs.",
    ]


def _cautions(tuned: TuningRecord) -> list[str]:
    settings, budget = tuned.plan.settings, tuned.plan.budget
    lines = [sentence for search in tuned.searches for sentence in _search_cautions(tuned, search)]
    if num_unfinished := sum(not search.done for search in tuned.searches):
        lines.append(f"{num_unfinished} of {len(tuned.searches)} searches are not done, and are in no ratio.")
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


def _search_cautions(tuned: TuningRecord, search: TuningSearch) -> list[str]:
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
    if (taken := cores_taken(tuned, search)) > DISTURBED_FROM:
        lines.append(
            f"{name}: other work took {taken:.2f} cores of its budget of {tuned.plan.budget}. Do not rely on its times."
        )
    return lines

"""The words of a tuning's findings, in its report and on its first screen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from compare.cli.wording import count, percent
from compare.judgement import statement_words
from compare.judgement.statement import Statement
from compare.judgement.statement_words import DISTURBED, NO_FINDING, Templates, fill
from compare.statistics.statistics import VERDICT_PAIRS, JudgedRatio
from compare.statistics.verdict_words import interval_words, p_value_text, verdict_text, within_margin_text

HEADINGS = {
    "bests": "What was found?",
    "sameness": "Did both frameworks search the same?",
    "gains": "What does it gain to search side by side?",
    "costs": "Does it cost quality?",
    "importances": "Which fields matter?",
    "surety": "How sure is that?",
    "cautions": "Cautions",
}
_SUBJECT = "{contestant}, {jobs:job} against {against:job}"
_SEARCH = "{contestant}, {jobs:job}, repeat {repeat}"
_FIELDS = 3
"""Fields that the first screen names."""


def sentences(statements: Iterable[Statement], *, short: bool = False) -> list[str]:
    """Statements on a tuning in words. `short`: those of the first screen."""
    return statement_words.sentences(statements, templates={**TEMPLATES, **SHORT_TEMPLATES} if short else TEMPLATES)


def verdict(judged: JudgedRatio, objective: str, *, seconds: bool = False) -> str:
    """Return the verdict on a ratio of seconds or of best values, in a word.

    Args:
        judged: the ratio, of these jobs over the fewest.
        objective: decides which value is better.
        seconds: whether it is a ratio of seconds: of the fewest jobs over these.
    """
    above, below = ("worse", "better") if objective == "loss" else ("better", "worse")
    if seconds:
        above, below = "faster", "slower"
    return verdict_text(judged, when_above=above, when_below=below, when_neither="no difference shown")


def _scores(values: Mapping[str, Any]) -> str:
    return "validation loss {loss:.4f}, accuracy {accuracy:.4f}".format(**values)


def _best(values: Mapping[str, Any]) -> str:
    fields = [
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in values["fields"].items()
    ]
    best = f"{_scores(values)} after {count(values['epochs'], 'epoch')}, the best of {count(values['trials'], 'trial')}"
    return f"{values['contestant']}: {best}: {', '.join(fields)}."


def _same_settings(values: Mapping[str, Any]) -> str:
    text = "{same} of {common} trials had the same settings in {frameworks[0]} and {frameworks[1]}.".format(**values)
    if values["differences"]:
        middle, most = values["differences"]
        text += f" Their validation losses differ by {middle:.1e} in the median and {most:.1e} at most (relative)."
    if (drawn := values["drawn_at_random"]) is not None:
        trials = "first trial of a search is" if drawn == 1 else f"first {drawn} trials of a search are"
        text += (
            f" At least the {trials} drawn at random, the same in all. Later settings are proposed from earlier results (TPE), "
            "whose last digits differ."
        )
    return text


def _judged(values: Mapping[str, Any], *, seconds: bool = False) -> tuple[JudgedRatio, str]:
    """Return a ratio, and its verdict with the number of its pairs if these are too few, or how small the difference is."""
    judged = JudgedRatio.model_validate(values["judged"])
    lacking = f" ({judged.ratio.n} of {VERDICT_PAIRS})" if judged.verdict == "too few repeats to tell" else ""
    return judged, f"{verdict(judged, values['objective'], seconds=seconds)}{lacking}{within_margin_text(judged)}"


def _gain(values: Mapping[str, Any]) -> str:
    if values["disturbed"]:
        return f"{fill(_SUBJECT, values)}: not known. {NO_FINDING}"
    judged, words = _judged(values, seconds=True)
    return f"{fill(_SUBJECT, values)}: {interval_words(judged.ratio)} times as fast{p_value_text(judged)}: {words}."


def _short_gain(values: Mapping[str, Any]) -> str:
    if values["disturbed"]:
        return f"{fill(_SUBJECT, values)}: not known. Other programs took cores from these runs."
    judged, words = _judged(values, seconds=True)
    return f"{fill(_SUBJECT, values)}: {words}, {interval_words(judged.ratio)} times as fast."


def _cost(values: Mapping[str, Any]) -> str:
    judged, words = _judged(values)
    when = {"trials": "after the same number of trials", "seconds": "after the same seconds"}[values["after"]]
    times = f"{interval_words(judged.ratio)} times the best validation {values['objective']}{p_value_text(judged)}"
    return f"{fill(_SUBJECT, values)}: {times}, {when}: {words}.{f' {DISTURBED}' if values['disturbed'] else ''}"


def _short_cost(values: Mapping[str, Any]) -> str:
    judged, words = _judged(values)
    best = f"after the same trials, best {values['objective']}"
    return f"{fill(_SUBJECT, values)}, {best}: {words}, {interval_words(judged.ratio)} times."


def _parts(values: Mapping[str, Any], most: int | None = None) -> str:
    return ", ".join(f"{field} {percent(part)}" for field, part in list(values["parts"].items())[:most])


def _failures(values: Mapping[str, Any]) -> str:
    states = ", ".join(f"{number} {state}" for state, number in values["states"].items())
    return f"{states} of {count(values['trials'], 'trial')}. {values['contestant']}: {values['reason']}."


TEMPLATES: Templates = {
    "none_trained": "{contestant}: none of {trials:trial} so far was trained to its end.",
    "best": _best,
    "best_is_too_good": (
        "The best score of many trials looks too good, because the trial was chosen by this very score on the validation "
        "split. The test split, which no trial has seen, shows its real worth."
    ),
    "same_settings": _same_settings,
    "gain": _gain,
    "cost": _cost,
    "cost_unknown": (
        f"{_SUBJECT}, after the same seconds: cannot tell. In {{empty:repeat}} one of the two had no trial trained to its end "
        "by then."
    ),
    "importance": lambda values: (
        f"{values['contestant']}: part of the differences among {values['settings']} settings that each field explains "
        f"(fANOVA): {_parts(values)}."
    ),
    "importance_unknown": ("{contestant}: too few settings to tell: {settings} trained to their end, of the {needed} needed."),
    "importance_is_a_hint": (
        "Take these parts as a hint alone: nobody knows how sure they are. They are computed from the settings that were "
        "tried, and a search tries more of what looks good. Another search may rank the fields differently."
    ),
    "sampler_seed": (
        "Repeats differ only by the sampler's seed: all trials train with seed {seed}. The searches of a repeat share the "
        "sampler's seed, and are compared in pairs."
    ),
    "unfinished": "{unfinished} of {searches} searches are not done, and are not compared.",
    "turns": "{jobs:,} jobs took turns on {budget:core}.",
    "cores_unused": "{jobs:job} used {used} of the budget's {budget} cores, because {jobs} does not divide {budget}.",
    "other_trials": (
        "Searches with different numbers of jobs do not train the same trials, because proposals and pruning depend on the "
        "results known at that time. So images per second are shown beside the seconds."
    ),
    "trial_ended": f"{_SEARCH}: trial {{trial}} {{state}}: {{reason}}.",
    "interrupted": (
        f"{_SEARCH}: interrupted {{times:time}}. Its seconds are those of its attempts, each until its last finished trial. "
        "They are not compared."
    ),
    "servers_lost": (
        f"{_SEARCH}: {{lost}} of its processes ended and could not be replaced. It went on with fewer jobs. Its seconds "
        "are not compared."
    ),
    "search_disturbed": (
        f"{_SEARCH}: other programs took {{cores_taken:.2f}} cores of its budget of {{budget}}. Do not rely on its times."
    ),
    "failures": _failures,
    "searches_disturbed": lambda values: (
        f"Other programs took cores from {count(values['searches'], 'search', 'searches')}: do not rely on their times."
    ),
}
"""Words by kind of statement."""

SHORT_TEMPLATES: Templates = {
    "best": lambda values: f"{values['contestant']}: {_scores(values)}, the best of {count(values['trials'], 'trial')}.",
    "gain": _short_gain,
    "cost": _short_cost,
    "importance": lambda values: f"{values['contestant']}, a hint alone: {_parts(values, _FIELDS)}",
    "unfinished": lambda values: f"{values['unfinished']} of {count(values['searches'], 'search', 'searches')} not done.",
}
"""Words of the first screen, where they are others."""

"""The findings of a tuning as statements."""

from __future__ import annotations

import statistics as python_statistics
from collections import Counter
from collections.abc import Iterator
from typing import Any

from common.machine.interference import DISTURBED_FROM
from compare.cli.differences import relative_difference
from compare.judgement.cautions import data_cautions
from compare.judgement.statement import Level, Statement
from compare.statistics.statistics import JudgedRatio
from compare.tools.tuning.optuna_study import random_trials
from compare.tools.tuning.records import TunedTrial, TuningRecord, TuningSearch
from compare.tools.tuning.tuning_findings import IMPORTANCE_TRIALS, Findings, Gain, cores_taken, disturbs, settings_scored


def statements(tuned: TuningRecord, findings: Findings) -> dict[str, list[Statement]]:
    """Return the findings by a key of `tuning_words.HEADINGS`."""
    return {
        "bests": _bests(tuned),
        "sameness": [*_sameness(tuned)],
        "gains": [statement for gain in findings.gains for statement in _gains(tuned, gain)],
        "costs": [statement for gain in findings.gains for statement in _costs(tuned, gain)],
        "importances": _importances(tuned, findings),
        "surety": _surety(tuned, findings),
        "cautions": [*_cautions(tuned), *data_cautions(tuned.plan.data_notes)],
    }


def short_statements(tuned: TuningRecord, findings: Findings) -> dict[str, list[Statement]]:
    """Return the answers of the first screen. Only costs after the same trials are among them."""
    by_subject = statements(tuned, findings)
    by_gain = [statement for gain in findings.gains for statement in (*_gains(tuned, gain), *_costs(tuned, gain))]
    return {
        "bests": [statement for statement in by_subject["bests"] if statement.level == "finding"],
        "gains": [statement for statement in by_gain if statement.values["after"] != "seconds"],
        "importances": [statement for statement in by_subject["importances"] if statement.kind == "importance"],
        "trouble": _trouble(tuned),
    }


def _trouble(tuned: TuningRecord) -> list[Statement]:
    """Return what changes the answer, and the reasons why the exit code is not 0."""
    answers: list[Statement] = []
    trials = [(search, trial) for search in tuned.searches for trial in search.trials]
    if failures := [(search, trial) for search, trial in trials if trial.state in ("failed", "killed")]:
        search, trial = failures[0]
        states = Counter(trial.state for _, trial in failures)
        values = {"states": {**states}, "trials": len(trials), "reason": str(trial.reason).rstrip(".")}
        answers.append(_say("trouble", "failures", contestant=search.contestant, **values))
    if disturbed := sum(cores_taken(tuned, search) > DISTURBED_FROM for search in tuned.searches):
        answers.append(_say("trouble", "searches_disturbed", searches=disturbed))
    return [*_unfinished(tuned), *answers, *data_cautions(tuned.plan.data_notes)]


def _say(level: Level, kind: str, **values: Any) -> Statement:
    return Statement(kind=kind, level=level, values=values)


def _bests(tuned: TuningRecord) -> list[Statement]:
    answers: list[Statement] = []
    for contestant in tuned.plan.settings.frameworks:
        trials = sum(len(search.trials) for search in tuned.searches_of(contestant))
        if (best := tuned.best_trials.get(contestant)) is None:
            answers.append(_say("finding", "none_trained", contestant=contestant, trials=trials))
            continue
        scores = {"loss": best.trial.loss, "accuracy": best.trial.accuracy, "epochs": best.trial.epochs}
        answers.append(_say("finding", "best", contestant=contestant, trials=trials, **scores, fields=best.fields))
    return [*answers, *([_say("info", "best_is_too_good")] if tuned.best_trials else [])]


def _sameness(tuned: TuningRecord) -> Iterator[Statement]:
    """How many trials had the same settings in the first two frameworks, and how much their results differ."""
    settings = tuned.plan.settings
    first, second = (
        {(search.jobs, search.repeat, trial.slot): trial for search in tuned.searches_of(contestant) for trial in search.trials}
        for contestant in (settings.frameworks * 2)[:2]
    )
    common: list[tuple[TunedTrial, TunedTrial]] = [(first[key], second[key]) for key in first if key in second]
    if len(settings.frameworks) < 2 or not common:
        return
    same = [(a, b) for a, b in common if a.fields == b.fields]
    differences = [relative_difference(a.loss, b.loss) for a, b in same if a.state == b.state == "ok" and a.loss and b.loss]
    middle = python_statistics.median_high(differences) if differences else None
    yield _say(
        "finding",
        "same_settings",
        frameworks=[*settings.frameworks[:2]],
        same=len(same),
        common=len(common),
        differences=[middle, max(differences)] if differences else [],
        drawn_at_random=random_trials(settings.trials) if settings.sampler == "tpe" else None,
    )


def _gain(tuned: TuningRecord, gain: Gain, judged: JudgedRatio | None, *, after: str = "") -> dict[str, Any]:
    """Values of a statement on several jobs against the fewest. After the same trials, other work does not matter."""
    return {
        "contestant": gain.contestant,
        "jobs": gain.jobs,
        "against": gain.against,
        "objective": tuned.plan.settings.objective,
        "after": after,
        "judged": judged and judged.model_dump(mode="json"),
        "disturbed": after != "trials" and disturbs(tuned, gain.contestant, gain.jobs, gain.against),
    }


def _gains(tuned: TuningRecord, gain: Gain) -> Iterator[Statement]:
    if gain.seconds is not None:
        yield _say("finding", "gain", **_gain(tuned, gain, gain.seconds))


def _costs(tuned: TuningRecord, gain: Gain) -> Iterator[Statement]:
    for after, judged in (("trials", gain.after_trials), ("seconds", gain.after_seconds)):
        if judged is not None:
            yield _say("finding", "cost", **_gain(tuned, gain, judged, after=after))
    if gain.empty:
        yield _say("finding", "cost_unknown", **_gain(tuned, gain, None, after="seconds"), empty=gain.empty)


def _importances(tuned: TuningRecord, findings: Findings) -> list[Statement]:
    answers: list[Statement] = []
    for contestant in tuned.plan.settings.frameworks:
        values = {"contestant": contestant, "settings": len(settings_scored(tuned, contestant))}
        if contestant in findings.importances:
            answers.append(_say("finding", "importance", **values, parts=findings.importances[contestant]))
        else:
            answers.append(_say("finding", "importance_unknown", **values, needed=IMPORTANCE_TRIALS))
    return [*answers, *([_say("info", "importance_is_a_hint")] if findings.importances else [])]


def _surety(tuned: TuningRecord, findings: Findings) -> list[Statement]:
    if not findings.judged:
        return []
    tested = any(judged.p is not None for judged in findings.judged)
    family = _say("info", "family", judged=[judged.model_dump(mode="json") for judged in findings.judged])
    return [*([family] if tested else []), _say("info", "sampler_seed", seed=tuned.plan.settings.values.get("seed", 0))]


def _unfinished(tuned: TuningRecord) -> list[Statement]:
    unfinished = sum(not search.done for search in tuned.searches)
    return [_say("caution", "unfinished", searches=len(tuned.searches), unfinished=unfinished)] if unfinished else []


def _cautions(tuned: TuningRecord) -> Iterator[Statement]:
    settings, budget = tuned.plan.settings, tuned.plan.budget
    for search in tuned.searches:
        yield from _search_cautions(tuned, search)
    yield from _unfinished(tuned)
    if over := [jobs for jobs in settings.jobs if jobs > budget]:
        yield _say("caution", "turns", jobs=over, budget=budget)
    for jobs in sorted(settings.jobs):
        if jobs <= budget and budget % jobs:
            yield _say("caution", "cores_unused", jobs=jobs, budget=budget, used=budget // jobs * jobs)
    if len(settings.jobs) > 1 and (settings.sampler == "tpe" or settings.pruner != "none"):
        yield _say("caution", "other_trials")


def _search(search: TuningSearch) -> dict[str, Any]:
    return {"contestant": search.contestant, "jobs": search.jobs, "repeat": search.repeat + 1}


def _search_cautions(tuned: TuningRecord, search: TuningSearch) -> Iterator[Statement]:
    for trial in search.trials:
        if trial.state not in ("ok", "pruned"):
            values = {**_search(search), "trial": trial.slot + 1, "state": trial.state, "reason": str(trial.reason).rstrip(".")}
            yield _say("caution", "trial_ended", **values)
    if search.attempts > 1:
        yield _say("caution", "interrupted", **_search(search), times=search.attempts - 1)
    if search.servers_lost:
        yield _say("caution", "servers_lost", **_search(search), lost=search.servers_lost)
    if (taken := cores_taken(tuned, search)) > DISTURBED_FROM:
        yield _say("caution", "search_disturbed", **_search(search), cores_taken=taken, budget=tuned.plan.budget)

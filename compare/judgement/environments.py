"""In what the environments of contestants differ, and which runs were made in another environment than their contestant's."""

from __future__ import annotations

from itertools import combinations

from common.artifacts.schema import Environment
from compare.execution import contestants
from compare.execution.store import Stored

_MOST_NAMED = 6


def sentences(stored: Stored) -> list[str]:
    """One for each two contestants whose environments differ."""
    found: list[str] = []
    for (one, ours), (other, theirs) in combinations(_counted(stored).items(), 2):
        differing = contestants.differing(ours, theirs)
        if differing:
            words = [f"{what} {then or 'not there'} against {now or 'not there'}" for what, then, now in differing]
            found.append(f"{one} against {other}: {contestants.some(words, _MOST_NAMED)}.")
        elif ours.interpreter != theirs.interpreter:
            found.append(f"{one} and {other}: two interpreters with the same distributions.")
    return found


def differences(stored: Stored) -> list[dict[str, str | None]]:
    """What differs between any two contestants: {"what": ..., contestant: version, ...}. None: it is not there."""
    counted = _counted(stored)
    names: dict[str, None] = {}
    for ours, theirs in combinations(counted.values(), 2):
        names |= dict.fromkeys(what for what, _, _ in contestants.differing(ours, theirs))
    versions = {
        contestant: {"Python": each.python, **dict(text.split("==", 1) for text in each.distributions), **each.libraries}
        for contestant, each in counted.items()
    }
    return [{"what": what, **{name: each.get(what) for name, each in versions.items()}} for what in names]


def cautions(stored: Stored) -> list[str]:
    """Runs that were made in another environment than their contestant had before the proof."""
    found: list[str] = []
    for row in stored.comparison.rows:
        expected = stored.comparison.environments.get(row.contestant)
        for repeat, run in stored.runs.get(row.id, {}).items():
            if expected and run.environment and (changed := contestants.changes(expected, run.environment)):
                found.append(f"{row.id}, repeat {repeat + 1}: ANOTHER ENVIRONMENT than before the proof: {changed}.")
    return found


def _counted(stored: Stored) -> dict[str, Environment]:
    """Environments of contestants. Without a GPU, the libraries of a framework do not count."""
    comparison = stored.comparison
    used = {"libraries": {}} if not comparison.machine.get("gpus") else {}
    return {name: each.model_copy(update=used) for name, each in comparison.environments.items()}

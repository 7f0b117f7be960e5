"""In what the environments of contestants differ, and which runs were made in another environment than their contestant's."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from common.artifacts.schema import Environment
from common.machine.machine import Facts
from compare.execution import contestants
from compare.execution.store import Stored

_MOST_NAMED = 6
_OF_GPUS = ("NVIDIA driver", "CUDA", "cuDNN", "NCCL")


def counted(environments: Mapping[str, Environment], facts: Facts) -> dict[str, Environment]:
    """Environments by contestant. Without a GPU, libraries for GPUs do not count."""
    dropped = () if facts.get("gpus") else _OF_GPUS

    def kept(each: Environment) -> Environment:
        libraries = {name: version for name, version in each.libraries.items() if name not in dropped}
        return each.model_copy(update={"libraries": libraries})

    return {name: kept(each) for name, each in environments.items()}


def sentences(environments: Mapping[str, Environment]) -> list[str]:
    """One for each two environments that differ.

    Args:
        environments: of contestants or of the sides of a measurement, see `counted`.
    """
    found: list[str] = []
    for (one, ours), (other, theirs) in combinations(environments.items(), 2):
        differing = contestants.differing(ours, theirs)
        if differing:
            words = [f"{what} {then or 'not there'} against {now or 'not there'}" for what, then, now in differing]
            found.append(f"{one} against {other}: {contestants.some(words, _MOST_NAMED)}.")
        elif ours.interpreter != theirs.interpreter:
            found.append(f"{one} and {other}: two interpreters with the same distributions.")
    return found


def differences(environments: Mapping[str, Environment]) -> list[dict[str, str | None]]:
    """What differs between any two of them: {"what": ..., name: version, ...}. None: it is not there."""
    names: dict[str, None] = {}
    for ours, theirs in combinations(environments.values(), 2):
        names |= dict.fromkeys(what for what, _, _ in contestants.differing(ours, theirs))
    versions = {
        name: {"Python": each.python, **dict(text.split("==", 1) for text in each.distributions), **each.libraries}
        for name, each in environments.items()
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

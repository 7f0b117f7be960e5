"""In what the environments of contestants differ, and which runs were made in another environment than their contestant's."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from pydantic import JsonValue

from common.artifacts.schema import Environment
from common.machine.machine import Facts
from compare.judgement.statement import Statement
from compare.results.store import StoredComparison
from compare.running import contestants

_GPU_LIBRARIES = ("NVIDIA driver", "CUDA", "cuDNN", "NCCL")


def relevant_environments(environments: Mapping[str, Environment], facts: Facts) -> dict[str, Environment]:
    """Environments by contestant, without the libraries for GPUs if the machine has no GPU."""
    dropped = () if facts.get("gpus") else _GPU_LIBRARIES

    def without_unused(environment: Environment) -> Environment:
        libraries = {name: version for name, version in environment.libraries.items() if name not in dropped}
        return environment.model_copy(update={"libraries": libraries})

    return {name: without_unused(environment) for name, environment in environments.items()}


def statements(environments: Mapping[str, Environment]) -> list[Statement]:
    """One statement for each pair of environments that differ.

    Args:
        environments: by contestant or side of a measurement, see `relevant_environments`.
    """
    statements: list[Statement] = []
    for (one, ours), (other, theirs) in combinations(environments.items(), 2):
        differing = contestants.version_differences(ours, theirs)
        values: dict[str, JsonValue] = {"one": one, "other": other}
        if differing:
            versions: list[JsonValue] = [{"name": name, "one": then, "other": now} for name, then, now in differing]
            statements.append(Statement(kind="other_versions", level="caution", values={**values, "versions": versions}))
        elif ours.interpreter != theirs.interpreter:
            statements.append(Statement(kind="other_interpreter", level="caution", values=values))
    return statements


def differences(environments: Mapping[str, Environment]) -> list[dict[str, str | None]]:
    """Distributions that differ between two environments: {"what": ..., name: version, ...}. None if one is not installed."""
    names: dict[str, None] = {}
    for ours, theirs in combinations(environments.values(), 2):
        names |= dict.fromkeys(distribution for distribution, _, _ in contestants.version_differences(ours, theirs))
    versions = {
        name: {
            "Python": environment.python,
            **dict(text.split("==", 1) for text in environment.distributions),
            **environment.libraries,
        }
        for name, environment in environments.items()
    }
    return [
        {
            "what": distribution,
            **{name: contestant_versions.get(distribution) for name, contestant_versions in versions.items()},
        }
        for distribution in names
    ]


def cautions(stored: StoredComparison) -> list[Statement]:
    """Runs that were made in another environment than their contestant had before the proof."""
    statements: list[Statement] = []
    for row in stored.comparison.rows:
        expected = stored.comparison.environments.get(row.contestant)
        for repeat, run in stored.runs.get(row.id, {}).items():
            if expected and run.environment and (changed := contestants.describe_changes(expected, run.environment)):
                values: dict[str, JsonValue] = {"repeat": repeat + 1, "changes": changed}
                statements.append(Statement(kind="another_environment", level="trouble", rows=(row.id,), values=values))
    return statements

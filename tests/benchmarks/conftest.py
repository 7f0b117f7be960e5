"""What the benchmarks share: one framework a process, and what the machine says of itself in every file that is saved."""

from pathlib import Path
from typing import Any

import pytest

from common.machine import machine

OF_BOTH = ("test_connections.py", "test_proof.py", "test_reports.py")
"""Their benchmarks start both frameworks as processes, or none, so they run without --framework, and the others with it."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    return (collection_path.name in OF_BOTH) == (config.getoption("--framework") is not None) or None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Name the framework in every benchmark, so that those of both can stand in one history."""
    if "framework" in metafunc.fixturenames:
        metafunc.parametrize("framework", [metafunc.config.getoption("--framework")], scope="session")


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Add what `compare regress` and `history` tell machines by; the commit stands in `commit_info` already."""
    facts = machine.describe()
    machine_info["convtwins"] = {name: facts.get(name) for name in (*machine.IDENTITY, "system")}
    machine_info["convtwins"]["versions"] = machine.versions("torch", "torchvision", "tensorflow", "keras", "numpy")


@pytest.fixture(scope="session", autouse=True)
def tame_memory() -> None:
    """As every timed run does before its first tensor."""
    machine.keep_freed_memory()

"""The twin under test, its process set up once as a run would set it up."""

import importlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from common.processes import supervisor
from tests.conftest import CONTRACT_ALONE, NO_FRAMEWORK
from tests.support import processes
from tests.twins import made
from tests.twins.adapters import Twin
from tests.twins.runs import Run
from tests.twins.split_model import settings

# TensorFlow reads it when it is imported: its greetings are no part of a test's report.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


FOLDER = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What both twins do by the same code is shown quickly with one of them. Twins of packages have the contract alone."""
    framework = config.getoption("--framework")
    for item in items:
        if not item.path.is_relative_to(FOLDER):
            continue
        if framework is None:
            raise pytest.UsageError(NO_FRAMEWORK)
        if framework != "pytorch" and framework != "jax" and item.get_closest_marker("shared"):
            item.add_marker(pytest.mark.slow)
        if framework in CONTRACT_ALONE and item.path.name != "test_contract.py":
            item.add_marker(pytest.mark.skip(f"{framework} has only test_contract.py"))


@pytest.fixture(scope="session")
def twin(framework: str) -> Twin:
    """The framework's twin in a process with all the replicas of the tests: they must stand before the first tensor."""
    twin = Twin(framework)
    twin.device.configure(made.settings(mode="data_parallel"))
    return twin


@pytest.fixture
def begin(framework: str) -> Iterator[Any]:
    """Starts a `Run`, or one of another kind. After the test none is left."""
    with ExitStack() as begun:

        def begin_one(*arguments: Any, kind: type[Run] = Run, **more: Any) -> Run:
            return begun.enter_context(kind(framework, *arguments, **more))

        yield begin_one


@pytest.fixture(scope="session")
def divided(framework: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process of `split_model` has to say, in order of rank."""
    folder = tmp_path_factory.mktemp("split")
    environments = importlib.import_module(f"{framework}_impl.rendezvous").environments(settings())
    meeting = {"MASTER_PORT": str(*supervisor.free_ports(1))}
    words = [json.dumps(environment | meeting) for environment in environments]
    processes.python("-m", "tests.twins.split_model", framework, folder, *words, TF_CPP_MIN_LOG_LEVEL="2").succeeded()
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(len(environments) or 1)]

"""The twin under test, its process set up once as a run would set it up."""

import os

import pytest

from tests.twins import made
from tests.twins.adapters import Twin

# TensorFlow reads it when it is imported: its greetings are no part of a test's report.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@pytest.fixture(scope="session")
def twin(framework: str) -> Twin:
    """The framework's twin in a process with all the replicas of the tests: they must stand before the first tensor."""
    twin = Twin(framework)
    twin.device.configure(made.settings(mode="data_parallel"))
    return twin

import pytest


@pytest.fixture(scope="session", autouse=True)
def tame_memory() -> None:
    """As every timed run does before its first tensor."""
    from common import machine

    machine.keep_freed_memory()

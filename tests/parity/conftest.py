from pathlib import Path

import pytest

from compare.proof import single_steps
from compare.running import launch
from compare.running.twins import Twins
from tests.parity.made_up import FakeTwins
from tests.support.snapshots import screens

__all__ = ["screens"]


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeTwins:
    """Two frameworks that only pretend, and a store of proofs of their own."""
    fake = FakeTwins()
    monkeypatch.setattr(Twins, "describe", lambda twins, name: fake.describe(name))  # no framework is started
    monkeypatch.setattr(launch, "call_all", fake.call_each)
    monkeypatch.setattr(single_steps, "MOST_BYTES", 0)  # two steps are enough of a pretence
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return fake

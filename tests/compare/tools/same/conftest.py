"""A folder to work in, where programs that a test starts can import the suite."""

import os
from pathlib import Path

import pytest

from common.machine.machine import PROJECT_ROOT
from tests.support.snapshots import screens as screens


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the test, from where commands are started."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(PROJECT_ROOT), os.environ.get("PYTHONPATH")])))
    monkeypatch.chdir(tmp_path)
    return tmp_path

"""What a run of the suite leaves behind, on a suite of two tests."""

import shutil
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from common.machine import machine
from tests.conftest import in_folder
from tests.support.processes import started

DRIVER = """
import signal, sys
from pathlib import Path
from tests import suite
signal.signal(signal.SIGINT, signal.default_int_handler)  # even where who runs these tests ignores it
suite.PROJECT, suite.PARTS = Path.cwd(), {"made": ("test_made.py",)}
suite.FAILED_FOLDERS = suite.PROJECT / "failed"
sys.argv = ["suite", "--at-once", "1"]
sys.exit(suite.main())
"""


def suite(folder: Path, tests: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """A run of a suite that is made of this code."""
    (folder / "temporary").mkdir()
    (folder / "test_made.py").write_text(f"import pathlib, tempfile, time\n{textwrap.dedent(tests)}")
    shutil.copy(machine.PROJECT_ROOT / "pyproject.toml", folder)
    variables = {"TMPDIR": str(folder / "temporary"), "PYTHONPATH": str(machine.PROJECT_ROOT)}
    return started([sys.executable, "-c", DRIVER], folder=folder, variables=variables, stderr=subprocess.STDOUT)


def test_only_the_folders_of_failed_tests_stay_and_their_place_is_said(tmp_path: Path) -> None:
    made = suite(
        tmp_path,
        """
        def test_good(tmp_path):
            (tmp_path / "large").touch()
            tempfile.mkstemp(prefix="__autograph_generated_file")
        def test_bad(tmp_path):
            (tmp_path / "evidence").touch()
            assert False
        """,
    )
    with made as process:
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 1 and "FAILED: made" in said
    assert list((tmp_path / "temporary").iterdir()) == []
    assert str(tmp_path / "failed") in said
    assert [path.name for path in (tmp_path / "failed" / "made").rglob("*") if path.is_file()] == ["evidence"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_stays_of_a_suite_that_is_ended(number: signal.Signals, tmp_path: Path) -> None:
    made = suite(
        tmp_path,
        """
        def test_long(tmp_path):
            tempfile.mkstemp()
            pathlib.Path("begun").touch()
            time.sleep(600)
        """,
    )
    with made as process:
        deadline = time.monotonic() + 120
        while not (tmp_path / "begun").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        process.communicate(timeout=300)
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not (tmp_path / "failed").exists()


def test_what_a_test_leaves_in_a_checkout_is_seen(tmp_path: Path) -> None:
    before = in_folder(tmp_path)
    for folder in ("results/20260101-evaluate", "leftover", ".pytest_cache"):
        (tmp_path / folder).mkdir(parents=True)
    assert in_folder(tmp_path) - before == {"results", "results/20260101-evaluate", "leftover"}

"""What continuous integration installs besides the lock can be missing without failing it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
RELEASE = (PROJECT / ".ci" / "release").read_text()
CREATE = """
mkdir -p .environments/$3/bin
cp .venv/bin/python .environments/$3/bin/python
exit 1"""
"""As `env create` does it: exit code 1, because no twin runs there yet."""


def ran(
    folder: Path, create: str, install: str, gate: int = 0, release: str | None = RELEASE
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """What `.ci/run` does with programs in place of make, the command and Python, and the calls of these."""
    shutil.copytree(PROJECT / ".ci", folder / ".ci")
    (folder / ".ci" / "release").unlink()
    if release is not None:
        (folder / ".ci" / "release").write_text(release)
    python = f'case "$*" in *tests.benchmarks.gate*) exit {gate};; esac\n{install}'
    programs = {"bin/make": "", "bin/chromium": "", ".venv/bin/convtwins": create, ".venv/bin/python": python}
    for name, text in programs.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "{path.name} $*" >> {folder}/calls\n{text}\n')
        path.chmod(0o755)
    # The tests of the rules import nothing, not even the helpers of other tests.
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run([folder / ".ci" / "run"], env=environment, capture_output=True, text=True, check=False)
    return done, (folder / "calls").read_text().splitlines()


@pytest.mark.parametrize(
    ("create", "install", "skipped"),
    [(CREATE, "exit 0", False), ("exit 1", "exit 0", True), (CREATE, "exit 1", True)],
    ids=["installed", "no JAX", "no twin"],
)
def test_jax_is_installed_and_its_tests_are_skipped_by_name_where_it_cannot_be(
    create: str, install: str, skipped: bool, tmp_path: Path
) -> None:
    done, calls = ran(tmp_path, create, install)
    assert done.returncode == 0, done.stderr
    assert ("JAX twin" in done.stderr) == skipped
    assert calls[0] == "make check" and calls[-2] == "make test"
    assert "convtwins env create jax --lock plugins/jax_twin/requirements.lock" in calls
    assert "convtwins env create keras-jax --lock plugins/keras_twin/requirements.lock" in calls
    assert ("with JAX" in done.stderr) == (create == "exit 1")


@pytest.mark.parametrize(("gate", "code"), [(0, 0), (1, 1), (2, 1), (5, 0)])
def test_the_gate_fails_it_where_something_is_slower_or_wrong_and_not_where_it_cannot_be_told(
    gate: int, code: int, tmp_path: Path
) -> None:
    done, calls = ran(tmp_path, CREATE, "exit 0", gate)
    assert done.returncode == code
    assert calls[-1] == f"python -m tests.benchmarks.gate {RELEASE.strip()}"


@pytest.mark.parametrize("release", [None, "", "\n"])
def test_it_fails_without_the_commit_of_the_last_release(release: str | None, tmp_path: Path) -> None:
    done, calls = ran(tmp_path, CREATE, "exit 0", 0, release)
    assert done.returncode == 1 and calls[-1] == "make test"
    assert ".ci/release" in done.stderr

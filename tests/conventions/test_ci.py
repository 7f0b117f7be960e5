"""What continuous integration installs besides the lock can be missing without failing it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
CREATE = """
mkdir -p .environments/jax/bin
cp .venv/bin/python .environments/jax/bin/python
exit 1"""
"""As `env create` does it: exit code 1, because no twin runs there yet."""


@pytest.mark.parametrize(
    ("create", "install", "skipped"),
    [(CREATE, "exit 0", False), ("exit 1", "exit 0", True), (CREATE, "exit 1", True)],
    ids=["installed", "no JAX", "no twin"],
)
def test_jax_is_installed_and_its_tests_are_skipped_by_name_where_it_cannot_be(
    create: str, install: str, skipped: bool, tmp_path: Path
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(PROJECT / ".ci" / "run", tmp_path / ".ci" / "run")
    programs = {"bin/make": "", "bin/chromium": "", ".venv/bin/convtwins": create, ".venv/bin/python": install}
    for name, text in programs.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "{path.name} $*" >> {tmp_path}/calls\n{text}\n')
        path.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run([tmp_path / ".ci" / "run"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ("JAX could not be installed: the tests of tests/parity/test_jax.py will be skipped." in done.stderr) == skipped
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0] == "make check" and calls[-1] == "make test"
    assert "convtwins env create jax --lock plugins/jax_twin/requirements.lock" in calls

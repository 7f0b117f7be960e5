"""What every command does alike, started as a user starts it."""

import subprocess
import sys
from pathlib import Path

import pytest

from compare import launch

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="a device that is always full is Linux's")
@pytest.mark.parametrize("words", [["cache"], ["cache", "--json"], ["data", "--help"]])
def test_output_that_cannot_be_written_ends_with_one_line(words: list[str], tmp_path: Path) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "compare", *words],
            cwd=launch.PROJECT_ROOT,
            env={"CONVTWINS_CACHE": str(tmp_path)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    said = "The output cannot be written (No space left on device). Free space, or send it elsewhere.\n"
    assert (done.returncode, done.stderr) == (1, said)

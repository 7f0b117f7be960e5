"""Control groups of the first version, for tests and recordings. They need root."""

import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

GROUPS = Path("/sys/fs/cgroup")


@contextmanager
def control_group(controller: str, settings: Mapping[str, str], name: str = "test") -> Generator[Path]:
    """A control group for processes whose numbers are written into its `cgroup.procs`; skipped where none can be made.

    Args:
        name: tells groups of one process apart.
    """
    folder = GROUPS / controller / f"convtwins-{name}-{os.getpid()}"
    if not (GROUPS / controller).is_dir() or not os.access(GROUPS / controller, os.W_OK):
        pytest.skip(f"the control groups of {controller} cannot be written here")
    folder.mkdir()
    try:
        for key, value in settings.items():
            (folder / key).write_text(value, encoding="utf-8")
        yield folder
    finally:
        for _ in range(200):
            try:
                folder.rmdir()
                break
            except OSError:  # its last process is still ending
                time.sleep(0.05)

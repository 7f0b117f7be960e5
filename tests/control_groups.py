"""Control groups of either version, for tests and recordings. They need root."""

import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

GROUPS = Path("/sys/fs/cgroup")


@contextmanager
def control_group(
    controller: str, first: Mapping[str, str] | None, second: Mapping[str, str] | None, name: str = "test"
) -> Generator[Path]:
    """A control group for processes whose numbers are written into its `cgroup.procs`; skipped where none can be made.

    Args:
        first: settings by file, in version 1. None: none of that version.
        second: the same in version 2.
        name: tells groups of one process apart.
    """
    for parent, settings in ((GROUPS / controller, first), (GROUPS, second), (GROUPS / "unified", second)):
        folder = parent / f"convtwins-{name}-{os.getpid()}"
        if settings is None:
            continue
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            for key, value in settings.items():
                (folder / key).write_text(value, encoding="ascii")
        except OSError:
            folder.rmdir()
            continue
        try:
            yield folder
        finally:
            _remove(folder)
        return
    pytest.skip(f"no control group of {controller} can be made here")


@contextmanager
def freezer(version: int) -> Generator[tuple[Path, Callable[[bool], None]]]:
    """A control group of version 1 or 2, and what freezes or thaws all its processes. They are thawed in the end."""
    name, words = ("freezer.state", ("THAWED", "FROZEN")) if version == 1 else ("cgroup.freeze", ("0", "1"))
    settings = {name: words[False]}
    with control_group("freezer", settings if version == 1 else None, settings if version == 2 else None) as group:

        def freeze(wanted: bool) -> None:
            (group / name).write_text(words[wanted], encoding="ascii")

        try:
            yield group, freeze
        finally:
            freeze(False)


def within(group: Path) -> list[str]:
    """The words before a command that start it in a control group."""
    return ["bash", "-c", f'echo $$ > {group / "cgroup.procs"} && exec "$@"', "bash"]


def _remove(folder: Path) -> None:
    for _ in range(200):
        try:
            folder.rmdir()
            return
        except OSError:  # its last process is still ending
            time.sleep(0.05)

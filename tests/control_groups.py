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
    controller: str, version_1: Mapping[str, str] | None, version_2: Mapping[str, str] | None, name: str = "test"
) -> Generator[Path]:
    """A control group for processes whose numbers are written into its `cgroup.procs`; skipped where none can be made.

    Args:
        version_1: settings by file. None: no group of that version.
        version_2: the same.
        name: tells groups of one process apart.
    """
    places = ((GROUPS / controller, version_1), (GROUPS, version_2), (GROUPS / "unified", version_2))
    for parent, settings in places:
        folder = parent / f"convtwins-{name}-{os.getpid()}"
        if settings is None:
            continue
        try:
            folder.mkdir()
        except OSError:
            continue
        if not (folder / "cgroup.procs").exists():  # no control groups are mounted there: it is a plain folder
            folder.rmdir()
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
            state, frozen = (name, "FROZEN") if version == 1 else ("cgroup.events", "frozen 1")
            while (frozen in (group / state).read_text(encoding="ascii")) != wanted:
                time.sleep(0.01)

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
    raise AssertionError(f"{folder} holds processes still: {(folder / 'cgroup.procs').read_text(encoding='ascii').split()}")

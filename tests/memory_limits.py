"""Control groups that the kernel holds to a limit of memory."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

_ROOT = Path("/sys/fs/cgroup")
_FIRST, _SECOND = _ROOT / "memory", _ROOT
"""Where version 1 and version 2 of control groups keep memory."""


@contextmanager
def limited(number: int, mib: int) -> Generator[list[str]]:
    """Groups of so many MiB each, without swap. The test is skipped where none can be made.

    Yields:
        The words before a command. They put it into the group of its RANK, or into the first.
    """
    second = (_SECOND / "cgroup.controllers").exists()
    parent = _SECOND if second else _FIRST
    limit, swap = ("memory.max", "memory.swap.max") if second else ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    name = f"convtwins-{random.randrange(10**9)}"
    groups = [parent / f"{name}-{place}" for place in range(number)]
    with contextlib.ExitStack() as undo:
        try:
            for group in groups:
                group.mkdir()
                undo.callback(group.rmdir)
                (group / limit).write_text(str(mib * 2**20), encoding="ascii")
                if (group / swap).exists():
                    (group / swap).write_text("0" if second else str(mib * 2**20), encoding="ascii")
        except OSError as error:
            pytest.skip(f"control groups of memory cannot be made here: {error}")
        enter = f'echo $$ > {parent}/{name}-${{RANK:-0}}/cgroup.procs && exec "$@"'
        yield ["sh", "-c", enter, "sh"]

"""A disk that is slow, or full from a chosen write on, for one file, in all processes of a command: see full_disk.c."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

_TEMPORARY = "temporary"


class Write(NamedTuple):
    """One write to a file."""

    call: str
    """Of the C library."""
    path: Path

    @property
    def kind(self) -> tuple[str, str]:
        """The call, and the file without what differs from run to run."""
        return self.call, _TEMPORARY if self.is_temporary else re.sub(r"^\.(.+)\.\w+\.partial$", r"\1", self.path.name)

    @property
    def is_temporary(self) -> bool:
        """Whether the file is in the folder for temporary files."""
        return _TEMPORARY in self.path.parts


class FullDisk:
    """A folder, in which the `at`-th write fails, or none. It has a folder for temporary files."""

    def __init__(self, library: Path, folder: Path, at: int = 0, delay_ms: int = 0) -> None:
        self.at = at
        self._points = folder.with_name(f"{folder.name}.writes")
        self._points.touch()
        temporary = folder / _TEMPORARY
        temporary.mkdir(parents=True)
        self.environment = {
            "LD_PRELOAD": str(library),
            "FULL_DISK_BELOW": str(folder),
            "FULL_DISK_POINTS": str(self._points),
            "FULL_DISK_AT": str(at),
            "FULL_DISK_DELAY_MS": str(delay_ms),
            "TMPDIR": str(temporary),
        }

    def writes(self) -> list[Write]:
        """Every write but those that failed after the first."""
        lines = self._points.with_name(f"{self._points.name}.log").read_text(encoding="utf-8").splitlines()
        found = sorted((int(number), call, path) for number, call, path in (line.split(" ", 2) for line in lines))
        return [Write(call, Path(path)) for _, call, path in found]

    def met(self) -> Write:
        """The write that did not fit."""
        return self.writes()[self.at - 1]


def compiled(folder: Path) -> Path:
    """The library that stands before the C library. The test is skipped where it cannot be made."""
    library = folder / "full_disk.so"
    if shutil.which("cc") is None or not Path("/proc/self/fd").exists():
        pytest.skip("a full disk is played by a C library for Linux, which needs a C compiler (cc)")
    source = Path(__file__).with_name("full_disk.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", str(source), "-o", str(library)], check=True)
    return library

"""First screens as they are printed, held against kept ones. `make snapshots` renews what is kept; read the difference."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from compare.reporting.document import Report
from compare.reporting.screen import MAX_LINES

WIDTHS = (80, 100, 120, 200)
SPECIAL = re.compile(r"\brungs?\b|\bdivisions?\b|\bHolm", re.IGNORECASE)
"""Words that stand behind `--full`."""
FOLDER = Path("results/made")
"""Stands for the folder of a report's files."""


def printed(report: Report, width: int, folder: Path | None = FOLDER, *, is_terminal: bool = False) -> str:
    """The first screen of a report. A terminal has colours, as escape sequences; anything else has none."""
    console = Console(
        file=io.StringIO(), width=width, force_terminal=is_terminal, color_system="standard" if is_terminal else None,
        highlight=False, legacy_windows=False,
    )  # fmt: skip
    return report.first_screen(console, folder)


class Screens:
    """Holds first screens against the snapshot of a test, at all widths, with and without colours."""

    def __init__(self, snapshot: SnapshotAssertion) -> None:
        self._snapshot = snapshot

    def __call__(self, report: Report, folder: Path | None = FOLDER, *, most: int = MAX_LINES) -> str:
        """Hold a report's first screen against the kept one. Return that of 100 columns, which has `most` lines or fewer."""
        variants = {
            f"{width} columns{', colours' * is_terminal}": printed(report, width, folder, is_terminal=is_terminal)
            for width in WIDTHS
            for is_terminal in (False, True)
        }
        for text in variants.values():
            assert text == "\n".join(line.rstrip() for line in text.splitlines()), "no blanks at the ends of lines"
        narrow = variants["100 columns"]
        assert narrow.count("\n") + 1 <= most, narrow
        assert not SPECIAL.search(narrow), narrow
        assert variants == self._snapshot
        return narrow


@pytest.fixture
def screens(snapshot: SnapshotAssertion) -> Screens:
    """Holds first screens against those that are kept for a test."""
    return Screens(snapshot)

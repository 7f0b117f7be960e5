"""First screens as they are printed, held against kept ones.

To renew them after a wanted change: UPDATE_GOLDEN=1 pytest <the file of a test>. Read the difference.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

from rich.console import Console

from compare.reporting.document import Report
from compare.reporting.screen import LINES

WIDTHS = (80, 100, 120, 200)
FOLDER = Path("results/made")
"""Stands for the folder of a report's files."""


def printed(report: Report, width: int, folder: Path | None = FOLDER, *, is_terminal: bool = False) -> str:
    """The first screen. A terminal has colours, as escape sequences; anything else has none."""
    console = Console(
        file=io.StringIO(), width=width, force_terminal=is_terminal, color_system="standard" if is_terminal else None,
        highlight=False, legacy_windows=False,
    )  # fmt: skip
    return report.first_screen(console, folder)


def assert_screens(name: str, report: Report, golden: Path, folder: Path | None = FOLDER, *, most: int = LINES) -> str:
    """Hold a report's first screen against the kept ones, at all widths. Return that of 100 columns.

    Args:
        name: of the kept files, without what follows: `<name>_<columns>.txt`, and `<name>_<columns>_colour.txt` of a terminal.
        golden: the folder that holds them.
        most: lines at 100 columns.
    """
    shown = printed(report, 100, folder)
    assert shown.count("\n") + 1 <= most, shown
    for width in WIDTHS:
        for suffix, is_terminal in (("", False), ("_colour", True)):
            text = printed(report, width, folder, is_terminal=is_terminal)
            assert text == "\n".join(line.rstrip() for line in text.splitlines()), "no blanks at the ends of lines"
            path = golden / f"{name}_{width}{suffix}.txt"
            if os.environ.get("UPDATE_GOLDEN"):
                path.parent.mkdir(exist_ok=True)
                path.write_text(text + "\n", encoding="utf-8")
            assert text + "\n" == path.read_text(encoding="utf-8")
    return shown

"""The terminal that commands print their tables on."""

from __future__ import annotations

import os
from contextvars import ContextVar

from rich.console import Console

FULL = "--full"
_WIDTH_WITHOUT_TERMINAL = 120
_full = ContextVar("full", default=False)


def stdout() -> Console:
    """Return stdout for tables: as wide as the terminal, else 120 characters. COLUMNS in the environment wins."""
    console = Console(highlight=False)
    return (
        console if console.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=_WIDTH_WITHOUT_TERMINAL)
    )


def is_full() -> bool:
    """Whether `--full` was given to the command that is running."""
    return _full.get()


def show_all(full: bool) -> None:
    """Print the reports of this command whole, or their first screens."""
    _full.set(full)

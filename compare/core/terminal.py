"""The terminal that commands print their tables on."""

from __future__ import annotations

import os

from rich.console import Console

_WIDTH_WITHOUT_TERMINAL = 120


def stdout() -> Console:
    """Return stdout for tables: as wide as the terminal, else 120 characters. COLUMNS in the environment wins."""
    made = Console(highlight=False)
    return made if made.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=_WIDTH_WITHOUT_TERMINAL)

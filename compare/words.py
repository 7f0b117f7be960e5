"""Lists on the command line."""

from __future__ import annotations


def names(text: str) -> list[str]:
    """The words between the commas, in order; empty ones are passed over."""
    return [name.strip() for name in text.split(",") if name.strip()]

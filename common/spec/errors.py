"""Errors of a spec, and the words that its messages share."""

from __future__ import annotations

import difflib

_LONGEST_VALUE = 200


class SpecError(ValueError):
    """A spec was refused. The message names the field, the value received, and the fix."""


def alternatives(names: tuple[str, ...]) -> str:
    """`a, b or c`."""
    if len(names) > 1:
        return " or ".join((", ".join(names[:-1]), names[-1]))
    return "".join(names) or "nothing: there is none"


def did_you_mean(name: str, names: tuple[str, ...], *, sentence: bool = False) -> str:
    """A question with the most similar name. Empty if none is similar."""
    close = difflib.get_close_matches(name, names, n=1)
    if not close:
        return ""
    return f" Did you mean {close[0]}?" if sentence else f" (did you mean {close[0]}?)"


def shown(value: object) -> str:
    """A received value in a message. Of a long one, the start."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."

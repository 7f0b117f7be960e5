"""Lists of words that a user types, on the command line or in a file."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence

from common.spec import MODES, SpecError

_QUOTED_OR_SHELL = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|(?P<shell>[<>|&;]+|`|\$(?:\w+|[({]))""", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def split_names(text: str) -> list[str]:
    """Return the words between the commas, in order. Empty words are left out."""
    return [name.strip() for name in text.split(",") if name.strip()]


def split_command(name: str, text: str, advice: str = "") -> list[str]:
    """Return the words of a command that is started without a shell. What only a shell would understand is refused.

    Args:
        name: its option, or its name on the command line.
        advice: what to do in its place. Empty: it is a whole command.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SpecError(f"{name} cannot be read as a command ({error}). Received: {text}. Close the quotes.") from None
    for match in _QUOTED_OR_SHELL.finditer(text):
        if shell := match["shell"]:
            fix = advice or "Use sh -c '...', or quote it."
            raise SpecError(f"{name} has {shell}, but no shell reads it. Received: {text}. {fix}")
    if words and _ASSIGNMENT.match(words[0]):
        fix = advice or f"Use 'env {text.strip()}'."
        raise SpecError(f"{name} sets a variable, but no shell reads it. Received: {text}. {fix}")
    return words


def require_distinct(option: str, words: Sequence[str], known: Sequence[str]) -> list[str]:
    """Check that there is at least one word, and none twice.

    Args:
        option: its name, as a user types it.
        known: examples for the error. `parse_choices` allows no others.
    """
    if not words:
        raise SpecError(f"{option} is empty. Use {', '.join(known)}.")
    if len(set(words)) < len(words):
        raise SpecError(f"{option} names something twice. Received: {', '.join(words)}. Name each once.")
    return list(words)


def parse_choices(option: str, words: Sequence[str], known: Sequence[str]) -> list[str]:
    """Check that there is at least one word, none twice, and each of them known."""
    for word in require_distinct(option, words, known):
        if word not in known:
            close = difflib.get_close_matches(word, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise SpecError(f"{option} names something unknown. Received: {word!r}. Use {', '.join(known)}.{hint}")
    return list(words)


def parse_modes(modes: str) -> tuple[str, ...]:
    """Return the modes named by `--modes`. `all`: every mode."""
    return tuple(MODES if modes == "all" else parse_choices("--modes", split_names(modes), tuple(MODES)))

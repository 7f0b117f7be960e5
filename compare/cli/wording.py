"""Text for people: one line, visible letters, a length."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, PlainSerializer

from common.machine.machine import COMMAND

_CONTROL = re.compile(
    r"(?:\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff])+"
)
"""Escape sequences, control characters and invisible letters, except the joiners that some scripts need."""


class Detail(str):
    """A sentence that belongs below the one before."""


def _read(text: str) -> str:
    return Detail(text.lstrip()) if text.startswith(" ") else text


def _to_store(sentence: str) -> str:
    return f" {sentence}" if isinstance(sentence, Detail) else sentence


Sentence = Annotated[str, AfterValidator(_read), PlainSerializer(_to_store)]
"""A sentence of a record. A space before it says that it is a `Detail`."""


def visible(name: str) -> str:
    """Escape a name from outside (e.g. of a class or a file) as Python's repr does, so that each character is visible.

    Reports show every name this way, in all their forms. JSON holds the name itself.
    """
    start, end = len(name) - len(name.lstrip(" ")), len(name.rstrip(" "))  # a space at an end is seen in no table
    around = "".join(repr(letter)[1:-1] if letter == "\\" or not letter.isprintable() else letter for letter in name[start:end])
    return r"\x20" * start + around + r"\x20" * (len(name) - max(start, end))


def shortened(text: str, length: int) -> str:
    """Shorten a text to at most `length` characters (at least 3). A longer text keeps its start and its end."""
    end = (length - 1) // 3
    return text if len(text) <= length else f"{text[: length - 1 - end]}…{text[len(text) - end :]}"


def one_line(text: str) -> str:
    """Strip line breaks, escape sequences and direction marks from a text from outside (e.g. the last line of a log)."""
    return _CONTROL.sub(" ", text).strip()


def count(number: float, one: str, many: str = "") -> str:
    """Format a number with its noun: `1 core`, `2,000 images`, `2.5 epochs`, `3 classes`. `many` is an irregular plural."""
    return f"{number:{',' if isinstance(number, int) else 'g'}} {one if number == 1 else many or f'{one}s'}"


def listed(names: Iterable[str], most: int = 3) -> str:
    """List at most `most` names: `a, b, c and 2 more`, or `none` if there are no names."""
    items = list(names)
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{', '.join(items[:most]) or 'none'}{more}"


def joined(names: Sequence[str]) -> str:
    """List all names: `a, b and c`, or `none` if there are no names."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "none"


def versions(version_of: Mapping[str, str]) -> str:
    """List packages with their versions: `torch 2.14.1, numpy 2.3.5`."""
    return ", ".join(f"{name} {version}" for name, version in version_of.items())


def clock_words(seconds: float, *, hours: bool = False) -> str:
    """Format 125 seconds as `2:05`. With `hours`, 3725 seconds become `1:02:05`."""
    minutes, rest = divmod(round(seconds), 60)
    if hours and minutes >= 60:
        return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}"


def percent(part: float, digits: int = 0) -> str:
    """Format 0.95 as `95 %`."""
    return f"{100 * part:.{digits}f} %"


def shell(words: Sequence[str]) -> str:
    """Quote words as a command line. A word with letters that are invisible or change direction is written by its bytes."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{_by_bytes(word)}'" for word in words)


def command(*words: str) -> str:
    """Return a command of the suite with these words, as a user can paste it."""
    return f"{COMMAND} {shell(words)}"


def _by_bytes(word: str) -> str:
    characters = (letter if letter.isprintable() and letter not in "'\\" else None for letter in word)
    return "".join(
        letter or "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
        for letter, character in zip(characters, word, strict=True)
    )

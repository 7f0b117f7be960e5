"""Lists on the command line."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from common.spec import VARIANTS, SpecError


def names(text: str) -> list[str]:
    """The words between the commas, in order; empty ones are passed over."""
    return [name.strip() for name in text.split(",") if name.strip()]


def each_once(option: str, words: Sequence[str], known: Sequence[str]) -> list[str]:
    """Words that must be at least one, and none twice.

    Args:
        option: where they were given, as it is typed.
        words: what it was given.
        known: words that make sense; others may, too, see `chosen`.

    Raises:
        SpecError: there is no word, or one comes again.
    """
    if not words:
        raise SpecError(f"{option} is empty. Use {', '.join(known)}.")
    if len(set(words)) < len(words):
        raise SpecError(f"{option} names something twice. Received: {', '.join(words)}. Name each once.")
    return list(words)


def chosen(option: str, words: Sequence[str], known: Sequence[str]) -> list[str]:
    """The same where there are no words but the known ones.

    Raises:
        SpecError: also where a word is unknown.
    """
    for word in each_once(option, words, known):
        if word not in known:
            close = difflib.get_close_matches(word, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise SpecError(f"{option} names something unknown. Received: {word!r}. Use {', '.join(known)}.{hint}")
    return list(words)


def variants(modes: str) -> list[str]:
    """The words of `--modes`, or all that there are."""
    return list(VARIANTS) if modes == "all" else chosen("--modes", names(modes), tuple(VARIANTS))


def numbers(option: str, text: str, *, least: int) -> tuple[int, ...]:
    """The whole numbers of an option, each once.

    Raises:
        SpecError: also where a word is no number, or one below `least`.
    """
    examples = [str(least + more) for more in range(3)]
    words = each_once(option, names(text), examples)
    for word in words:
        if not (word.isascii() and word.isdecimal()) or int(word) < least:
            use = ",".join(examples)
            raise SpecError(f"{option} must be whole numbers of at least {least}. Received: {word!r}. Use e.g. {use}.")
    return tuple(map(int, words))

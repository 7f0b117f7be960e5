"""Words, numbers and lists that a user types on the command line."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Sequence

import typer

from common.spec import LEVELS, VARIANTS, SpecError
from common.spec.errors import format_value

_MOST_DIGITS = 19
"""Of a whole number: more have no use, and very many are slow to read."""


def names(text: str) -> list[str]:
    """The words between the commas, in order. Empty words are left out."""
    return [name.strip() for name in text.split(",") if name.strip()]


def each_once(option: str, words: Sequence[str], known: Sequence[str]) -> list[str]:
    """Check that there is at least one word, and none twice.

    Args:
        option: its name, as a user types it.
        known: examples for the error. `chosen` allows no others.

    Raises:
        SpecError: there is no word, or one occurs twice.
    """
    if not words:
        raise SpecError(f"{option} is empty. Use {', '.join(known)}.")
    if len(set(words)) < len(words):
        raise SpecError(f"{option} names something twice. Received: {', '.join(words)}. Name each once.")
    return list(words)


def chosen(option: str, words: Sequence[str], known: Sequence[str]) -> list[str]:
    """The same, if only known words are allowed.

    Raises:
        SpecError: also if a word is unknown.
    """
    for word in each_once(option, words, known):
        if word not in known:
            close = difflib.get_close_matches(word, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise SpecError(f"{option} names something unknown. Received: {word!r}. Use {', '.join(known)}.{hint}")
    return list(words)


def variants(modes: str) -> list[str]:
    """The modes named by `--modes`. `all`: every mode."""
    return list(VARIANTS) if modes == "all" else chosen("--modes", names(modes), tuple(VARIANTS))


def levels(switches: str) -> list[str]:
    """The levels named by `--switches`."""
    return chosen("--switches", names(switches), LEVELS)


def numbers(option: str, text: str, *, least: int) -> tuple[int, ...]:
    """The whole numbers of an option, each once.

    Raises:
        SpecError: also if a word is not a number, or is below `least`.
    """
    examples = [str(least + more) for more in range(3)]
    words = each_once(option, names(text), examples)
    for word in words:
        if not (word.isascii() and word.isdecimal() and len(word) <= _MOST_DIGITS) or int(word) < least:
            use = ",".join(examples)
            raise SpecError(f"{option} must be whole numbers of at least {least}. Received: {format_value(word)}. Use e.g. {use}.")
    return tuple(map(int, words))


def factors(option: str, text: str, *, above: float) -> tuple[float, ...]:
    """The numbers of an option, each once.

    Raises:
        SpecError: also if a word is not a number above `above`.
    """
    examples = [f"{above + more:g}" for more in (0.5, 1.0, 3.0)]
    made: list[float] = []
    for word in each_once(option, names(text), examples):
        try:
            made.append(float(word))
        except ValueError:
            made.append(math.nan)
        if not above < made[-1] < math.inf:
            use = ",".join(examples)
            raise SpecError(f"{option} must be numbers above {above:g}. Received: {format_value(word)}. Use e.g. {use}.")
    return tuple(made)


def at_least_and_most(option: str, text: str) -> tuple[int, int]:
    """`1:4` as (1, 4).

    Raises:
        SpecError: it is no such pair, or the first number is not smaller.
    """
    least, _, most = text.partition(":")
    try:
        found = numbers(option, least, least=1) + numbers(option, most, least=2)
    except SpecError:
        found = ()
    if len(found) != 2 or found[0] >= found[1]:
        raise SpecError(f"{option} takes MIN:MAX, numbers of replicas. Received: {format_value(text)}. Use e.g. 1:2.")
    return found[0], found[1]


def mebibytes(option: str, text: str) -> float:
    """`2GiB` or `512MiB` in MiB.

    Raises:
        SpecError: it is neither, or no size above 0.
    """
    number, unit = text.strip()[:-3], text.strip()[-3:].lower()
    try:
        size = float(number) * {"mib": 1.0, "gib": 1024.0}[unit]
    except (ValueError, KeyError):
        size = math.nan
    if not 0 < size < math.inf:
        raise SpecError(f"{option} must be a size in MiB or GiB. Received: {format_value(text)}. Use e.g. 2GiB.")
    return size


def fraction(text: str) -> float:
    """`5%`, `5 %` or `0.05` as 0.05. NaN: it is no number."""
    number = text.strip()
    try:
        return float(number.removesuffix("%")) / (100.0 if number.endswith("%") else 1.0)
    except ValueError:
        return math.nan


def given_besides(context: typer.Context, allowed: Collection[str]) -> list[str]:
    """Options that were typed on the command line, by the names a user types, except the allowed parameters.

    How much is printed goes with everything.
    """
    typed: list[str] = []
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE" and option.name not in (*allowed, "full"):
            typed.append("/".join((option.opts[0], *option.secondary_opts[:1])))
    return typed

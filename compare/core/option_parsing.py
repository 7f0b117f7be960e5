"""Words, numbers and lists that a user types on the command line."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Sequence

import typer

from common.spec import LEVELS, MODES, SpecError
from common.spec.errors import format_value

_MOST_DIGITS = 19
"""Digits of a whole number. More have no use, and very many are slow to read."""


def split_names(text: str) -> list[str]:
    """Return the words between the commas, in order. Empty words are left out."""
    return [name.strip() for name in text.split(",") if name.strip()]


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


def parse_modes(modes: str) -> list[str]:
    """Return the modes named by `--modes`. `all`: every mode."""
    return list(MODES) if modes == "all" else parse_choices("--modes", split_names(modes), tuple(MODES))


def parse_levels(switches: str) -> list[str]:
    """Return the levels named by `--switches`."""
    return parse_choices("--switches", split_names(switches), LEVELS)


def parse_integers(option: str, text: str, *, least: int) -> tuple[int, ...]:
    """Return the whole numbers of an option, each once."""
    examples = [str(least + more) for more in range(3)]
    words = require_distinct(option, split_names(text), examples)
    for word in words:
        if not (word.isascii() and word.isdecimal() and len(word) <= _MOST_DIGITS) or int(word) < least:
            use = ",".join(examples)
            raise SpecError(
                f"{option} must be whole numbers of at least {least}. Received: {format_value(word)}. Use e.g. {use}."
            )
    return tuple(map(int, words))


def parse_factors(option: str, text: str, *, above: float) -> tuple[float, ...]:
    """Return the numbers of an option, each once."""
    examples = [f"{above + more:g}" for more in (0.5, 1.0, 3.0)]
    values: list[float] = []
    for word in require_distinct(option, split_names(text), examples):
        try:
            values.append(float(word))
        except ValueError:
            values.append(math.nan)
        if not above < values[-1] < math.inf:
            use = ",".join(examples)
            raise SpecError(f"{option} must be numbers above {above:g}. Received: {format_value(word)}. Use e.g. {use}.")
    return tuple(values)


def parse_range(option: str, text: str) -> tuple[int, int]:
    """Parse `1:4` into (1, 4)."""
    least, _, most = text.partition(":")
    try:
        numbers = parse_integers(option, least, least=1) + parse_integers(option, most, least=2)
    except SpecError:
        numbers = ()
    if len(numbers) != 2 or numbers[0] >= numbers[1]:
        raise SpecError(f"{option} takes MIN:MAX, numbers of replicas. Received: {format_value(text)}. Use e.g. 1:2.")
    return numbers[0], numbers[1]


def parse_mebibytes(option: str, text: str) -> float:
    """Parse `2GiB` or `512MiB` into MiB."""
    number, unit = text.strip()[:-3], text.strip()[-3:].lower()
    try:
        size = float(number) * {"mib": 1.0, "gib": 1024.0}[unit]
    except (ValueError, KeyError):
        size = math.nan
    if not 0 < size < math.inf:
        raise SpecError(f"{option} must be a size in MiB or GiB. Received: {format_value(text)}. Use e.g. 2GiB.")
    return size


def parse_fraction(text: str) -> float:
    """Parse `5%`, `5 %` or `0.05` into 0.05. NaN if the text is no number."""
    number = text.strip()
    try:
        return float(number.removesuffix("%")) / (100.0 if number.endswith("%") else 1.0)
    except ValueError:
        return math.nan


def unexpected_options(context: typer.Context, allowed: Collection[str]) -> list[str]:
    """Return the options that were typed on the command line, by the names a user types, except the allowed parameters.

    `--full` is always allowed, because it only sets how much is printed.
    """
    typed: list[str] = []
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE" and option.name not in (*allowed, "full"):
            typed.append("/".join((option.opts[0], *option.secondary_opts[:1])))
    return typed

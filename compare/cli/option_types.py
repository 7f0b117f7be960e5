"""Types of option values. A command names one in the annotation of its parameter, and gets the value instead of the text."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from common.spec import SpecError
from common.spec.errors import format_value
from compare.cli.option_parsing import parse_choices, require_distinct, split_names

_MOST_DIGITS = 19
"""Digits of a whole number. More have no use, and very many are slow to read."""


class OptionType(ABC):
    """Base of the types: `workers: Annotated[tuple[int, ...], Integers(least=1), typer.Option(...)] = (1, 2)`."""

    @abstractmethod
    def parse(self, option: str, text: str) -> Any:
        """Return the value of an option.

        Args:
            option: its name, as a user types it.
            text: what the user typed.
        """

    def format(self, value: Any) -> str:
        """Return a default as a user would type it."""
        return ",".join(f"{word:g}" if isinstance(word, float) else str(word) for word in value)


@dataclass(frozen=True)
class Names(OptionType):
    """Words between commas, in order. Empty ones are left out."""

    known: Sequence[str] = ()
    """All words that are allowed, at least one and each once. Empty: any words."""

    def parse(self, option: str, text: str) -> tuple[str, ...]:
        words = split_names(text)
        return tuple(parse_choices(option, words, self.known) if self.known else words)


@dataclass(frozen=True)
class DistinctNames(OptionType):
    """At least one word, each once."""

    examples: Sequence[str]
    """Words for the error. Others are allowed too."""

    def parse(self, option: str, text: str) -> tuple[str, ...]:
        return tuple(require_distinct(option, split_names(text), self.examples))


@dataclass(frozen=True)
class Choice(OptionType):
    """One of some words."""

    known: Sequence[str]

    def parse(self, option: str, text: str) -> str:
        return parse_choices(option, [text], self.known)[0]

    def format(self, value: str) -> str:
        return value


@dataclass(frozen=True)
class Integers(OptionType):
    """Whole numbers between commas, each once."""

    least: int

    def parse(self, option: str, text: str) -> tuple[int, ...]:
        examples = [str(self.least + more) for more in range(3)]
        words = require_distinct(option, split_names(text), examples)
        for word in words:
            if not (word.isascii() and word.isdecimal() and len(word) <= _MOST_DIGITS) or int(word) < self.least:
                raise SpecError(
                    f"{option} must be whole numbers of at least {self.least}. Received: {format_value(word)}. "
                    f"Use e.g. {','.join(examples)}."
                )
        return tuple(map(int, words))


@dataclass(frozen=True)
class Factors(OptionType):
    """Numbers between commas, each once."""

    above: float

    def parse(self, option: str, text: str) -> tuple[float, ...]:
        examples = [f"{self.above + more:g}" for more in (0.5, 1.0, 3.0)]
        values: list[float] = []
        for word in require_distinct(option, split_names(text), examples):
            values.append(_number(word))
            if not self.above < values[-1] < math.inf:
                raise SpecError(
                    f"{option} must be numbers above {self.above:g}. Received: {format_value(word)}. "
                    f"Use e.g. {','.join(examples)}."
                )
        return tuple(values)


@dataclass(frozen=True)
class Range(OptionType):
    """Two numbers of replicas: `1:4` is (1, 4)."""

    def parse(self, option: str, text: str) -> tuple[int, int]:
        least, _, most = text.partition(":")
        try:
            numbers = Integers(least=1).parse(option, least) + Integers(least=2).parse(option, most)
        except SpecError:
            numbers = ()
        if len(numbers) != 2 or numbers[0] >= numbers[1]:
            raise SpecError(f"{option} takes MIN:MAX, numbers of replicas. Received: {format_value(text)}. Use e.g. 1:2.")
        return numbers[0], numbers[1]


@dataclass(frozen=True)
class Size(OptionType):
    """A number of MiB: `2GiB` is 2048."""

    def parse(self, option: str, text: str) -> float:
        size = _number(text.strip()[:-3]) * {"mib": 1.0, "gib": 1024.0}.get(text.strip()[-3:].lower(), math.nan)
        if not 0 < size < math.inf:
            raise SpecError(f"{option} must be a size in MiB or GiB. Received: {format_value(text)}. Use e.g. 2GiB.")
        return size


@dataclass(frozen=True)
class Percent(OptionType):
    """A fraction: `5%`, `5 %` and `0.05` are 0.05."""

    is_open: bool = False
    """Whether the fraction must be above 0 and below 1. Otherwise it may be 0, and more than 1 with a percent sign."""

    def parse(self, option: str, text: str) -> float:
        number = text.strip()
        value = _number(number.removesuffix("%")) / (100.0 if number.endswith("%") else 1.0)
        if value >= 1.0 and not self.is_open and "%" not in text:
            raise SpecError(
                f"{option} must have a percent sign from 1 on. Received: {text!r}, which is {value:.0%}. Write {text}%."
            )
        if not (0.0 < value < 1.0 if self.is_open else 0.0 <= value < math.inf):
            limits = "above 0 and below 100 %" if self.is_open else "of at least 0"
            raise SpecError(f"{option} must be a percentage or a fraction, {limits}. Received: {text!r}. Use 5% or 0.05.")
        return value

    def format(self, value: float) -> str:
        return f"{value:.6g}" if value * 100 % 1 else f"{value:.0%}"


@dataclass(frozen=True)
class Parsed(OptionType):
    """A value that one command takes."""

    function: Callable[[str], Any]
    """Returns the value of a text."""

    def parse(self, option: str, text: str) -> Any:
        return self.function(text)


def _number(text: str) -> float:
    """Return a number, or NaN."""
    try:
        return float(text)
    except ValueError:
        return math.nan

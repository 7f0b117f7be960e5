"""Types of option values: what they accept, what they refuse, and how a default is shown."""

from __future__ import annotations

from typing import Any

import pytest

from common.spec import SpecError
from compare.cli.option_types import (
    Choice,
    DistinctNames,
    Factors,
    Integers,
    Names,
    OptionType,
    Parsed,
    Percent,
    Range,
    Size,
)
from tests.support.refusals import refused


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Names(), " b, a,,c ", ("b", "a", "c")),
        (Names(("a", "b", "c")), "b,a", ("b", "a")),
        (DistinctNames(("a", "b")), "b,my.module", ("b", "my.module")),
        (Choice(("a", "b")), "b", "b"),
        (Integers(least=0), "4, 0,1", (4, 0, 1)),
        (Factors(above=1.0), "1.5,2", (1.5, 2.0)),
        (Range(), "1:4", (1, 4)),
        (Size(), "2GiB", 2048.0),
        (Size(), "512 mib", 512.0),
        (Percent(), "5%", 0.05),
        (Percent(), "5 %", 0.05),
        (Percent(), "0.05", 0.05),
        (Percent(), "150%", 1.5),
        (Percent(is_open=True), "5%", 0.05),
        (Parsed(len), "four", 4),
    ],
)
def test_a_text_becomes_its_value(kind: OptionType, text: str, value: Any) -> None:
    assert kind.parse("--of", text) == value


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Names(), ("a", "b"), "a,b"),
        (Integers(least=1), (1, 2), "1,2"),
        (Factors(above=1.0), (1.5, 2.0), "1.5,2"),
        (Choice(("a",)), "a", "a"),
        (Percent(), 0.05, "5%"),
        (Percent(), 0.125, "0.125"),
    ],
)
def test_a_default_is_shown_as_it_would_be_typed_and_read_again(kind: OptionType, value: Any, text: str) -> None:
    assert kind.format(value) == text and kind.parse("--of", text) == value


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", {"fix": "1, 2, 3"}),
        (" ,", {"fix": "1, 2, 3"}),
        ("1,2,1", {"received": "1, 2, 1"}),
        ("1,0", {"received": "'0'", "names": ["at least 1"], "fix": "1,2,3"}),
        *((text, {"received": repr(text)}) for text in ("-1", "1.5", "²", "٣")),
    ],
)
def test_what_is_no_list_of_numbers_is_refused(text: str, parts: dict[str, Any]) -> None:
    with refused(SpecError, field="--workers", **parts):
        Integers(least=1).parse("--workers", text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [("", {"fix": "a, b"}), ("a,a", {"received": "a, a"}), ("a,c", {"received": "'c'", "fix": "a, b"})],
)
def test_what_is_no_choice_of_known_words_is_refused(text: str, parts: dict[str, Any]) -> None:
    with refused(SpecError, field="--of", **parts):
        Names(("a", "b")).parse("--of", text)


@pytest.mark.parametrize(
    ("kind", "text", "fix"),
    [
        (Factors(above=1.0), "1", "1.5,2,4"),
        (Factors(above=1.0), "2,inf", "1.5,2,4"),
        (Range(), "4:1", "1:2"),
        (Range(), "2", "1:2"),
        (Size(), "2 apples", "2GiB"),
        (Size(), "-1GiB", "2GiB"),
        (Size(), "nanGiB", "2GiB"),
        (Percent(), "5", "5%"),
        (Percent(), "five", "5%"),
        (Percent(), "-1%", "5%"),
        (Percent(), "inf%", "5%"),
        (Percent(is_open=True), "0", "5%"),
        (Percent(is_open=True), "100%", "5%"),
    ],
)
def test_what_is_no_value_of_the_type_is_refused(kind: OptionType, text: str, fix: str) -> None:
    with refused(SpecError, field="--of", fix=fix) as caught:
        kind.parse("--of", text)
    assert text.rpartition(",")[2] in str(caught.error)

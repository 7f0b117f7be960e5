from typing import Any

import pytest

from common.spec import SpecError
from compare.core import option_parsing
from tests.support.refusals import refused


def test_words_keep_their_order_and_empty_ones_are_passed_over() -> None:
    assert option_parsing.split_names(" b, a,,c ") == ["b", "a", "c"]
    assert option_parsing.parse_choices("--of", ["b", "a"], ("a", "b", "c")) == ["b", "a"]
    assert option_parsing.require_distinct("--of", ["b", "own.module"], ("a", "b")) == ["b", "own.module"]
    assert option_parsing.parse_integers("--workers", "4, 0,1", least=0) == (4, 0, 1)


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
        option_parsing.parse_integers("--workers", text, least=1)


@pytest.mark.parametrize(
    ("text", "parts"),
    [("", {"fix": "a, b"}), ("a,a", {"received": "a, a"}), ("a,c", {"received": "'c'", "fix": "a, b"})],
)
def test_what_is_no_choice_of_known_words_is_refused(text: str, parts: dict[str, Any]) -> None:
    with refused(SpecError, field="--of", **parts):
        option_parsing.parse_choices("--of", option_parsing.split_names(text), ("a", "b"))


def test_an_unknown_level_of_switches_is_refused() -> None:
    with refused(SpecError, received="'quick'", fix=["plain", "usual", "closed", "best"]):
        option_parsing.parse_levels("quick")

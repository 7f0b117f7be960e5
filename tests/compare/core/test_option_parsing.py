import re

import pytest

from common.spec import SpecError
from compare.core import option_parsing


def test_words_keep_their_order_and_empty_ones_are_passed_over() -> None:
    assert option_parsing.split_names(" b, a,,c ") == ["b", "a", "c"]
    assert option_parsing.parse_choices("--of", ["b", "a"], ("a", "b", "c")) == ["b", "a"]
    assert option_parsing.require_distinct("--of", ["b", "own.module"], ("a", "b")) == ["b", "own.module"]
    assert option_parsing.parse_integers("--workers", "4, 0,1", least=0) == (4, 0, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--workers is empty. Use 1, 2, 3."),
        (" ,", "--workers is empty. Use 1, 2, 3."),
        ("1,2,1", "--workers names something twice. Received: 1, 2, 1. Name each once."),
        ("1,0", "--workers must be whole numbers of at least 1. Received: '0'. Use e.g. 1,2,3."),
        ("-1", "Received: '-1'"),
        ("1.5", "Received: '1.5'"),
        ("²", "Received: '²'"),
        ("٣", "Received: '٣'"),
    ],
)
def test_what_is_no_list_of_numbers_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        option_parsing.parse_integers("--workers", text, least=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--of is empty. Use a, b."),
        ("a,a", "--of names something twice. Received: a, a. Name each once."),
        ("a,c", "--of names something unknown. Received: 'c'. Use a, b."),
    ],
)
def test_what_is_no_choice_of_known_words_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        option_parsing.parse_choices("--of", option_parsing.split_names(text), ("a", "b"))


def test_an_unknown_level_of_switches_is_refused() -> None:
    with pytest.raises(SpecError, match=re.escape("Received: 'quick'. Use plain, usual, closed, best.")):
        option_parsing.parse_levels("quick")

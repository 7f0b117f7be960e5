from common.spec import LEVELS, SpecError
from compare.cli import option_parsing
from compare.cli.option_types import Names
from tests.support.refusals import refused


def test_words_keep_their_order_and_empty_ones_are_passed_over() -> None:
    assert option_parsing.split_names(" b, a,,c ") == ["b", "a", "c"]
    assert option_parsing.parse_choices("--of", ["b", "a"], ("a", "b", "c")) == ["b", "a"]
    assert option_parsing.require_distinct("--of", ["b", "own.module"], ("a", "b")) == ["b", "own.module"]


def test_an_unknown_level_of_switches_is_refused() -> None:
    with refused(SpecError, received="'quick'", fix=["plain", "usual", "closed", "best"]):
        Names(LEVELS).parse("--switches", "quick")

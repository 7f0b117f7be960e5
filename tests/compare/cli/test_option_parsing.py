import pytest

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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python train.py --lr 0.1", ["python", "train.py", "--lr", "0.1"]),
        ("grep '>' \"a|b\" c\\;d", ["grep", ">", "a|b", "c;d"]),
        ("sh -c 'python train.py > out && rm $OUT'", ["sh", "-c", "python train.py > out && rm $OUT"]),
        ("pytest -k foo$ {json}", ["pytest", "-k", "foo$", "{json}"]),
        (" ", []),
    ],
)
def test_a_command_is_split_as_a_shell_would_split_it(text: str, words: list[str]) -> None:
    assert option_parsing.split_command("--of", text) == words


@pytest.mark.parametrize(
    ("text", "shell", "fix"),
    [
        ("python train.py > out", ">", "sh -c"),
        ("python train.py>out 2>&1", ">", "sh -c"),
        ("python train.py 'a' | tee log", "|", "sh -c"),
        ("cd there && python train.py", "&&", "sh -c"),
        ("python train.py; true", ";", "sh -c"),
        ("python train.py &", "&", "sh -c"),
        ("python train.py < in", "<", "sh -c"),
        ("python train.py $HOME", "$HOME", "sh -c"),
        ("python `which train`", "`", "sh -c"),
        ("SEED=1 python train.py", "a variable", "'env SEED=1 python train.py'"),
        ("python 'train.py", "No closing quotation", "Close"),
    ],
)
def test_what_only_a_shell_would_understand_is_refused(text: str, shell: str, fix: str) -> None:
    with pytest.raises(SpecError) as caught:
        option_parsing.split_command("--of", text)
    assert caught.value.field == "--of" and caught.value.received == text
    assert shell in caught.value.problem and fix in caught.value.fix

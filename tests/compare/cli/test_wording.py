import pytest

from compare.cli import wording


@pytest.mark.parametrize(
    ("names", "said"), [([], "none"), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_names_in_a_sentence_are_joined_however_many_there_are(names: list[str], said: str) -> None:
    assert wording.joined(names) == said

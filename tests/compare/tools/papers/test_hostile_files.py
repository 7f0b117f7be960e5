"""Study files and papers from anybody: each is read, or refused with a sentence, and nothing else. See `test_fuzz`."""

import pytest
from hypothesis import strategies as st

from common import spec
from common.spec.plain_values import MAX_BYTES
from compare.tools.papers import paper_file
from compare.tools.papers.study_file import SCALES, Study
from tests.compare.test_fuzz import MANY, QUICK, Kinds, draw, file_of, file_values, of_file, refused_at_most


def check_study(text: tuple[str, str], scale: str) -> None:
    with file_of(text) as path, refused_at_most():
        Study.read(path, scale, {})


def check_paper(text: tuple[str, str]) -> None:
    with file_of(text) as path, refused_at_most():
        paper_file.read_paper(path, "given")


KINDS: Kinds = {
    "studies": (check_study, (of_file(lambda: file_values("studies/plant-disease.yaml")), st.sampled_from(SCALES))),
    "papers": (check_paper, (of_file(lambda: file_values("compare/tools/papers/tomato-two-frameworks.yaml")),)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_input_is_read_or_refused_with_a_sentence(kind: str) -> None:
    draw(kind, QUICK, KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_very_much_hostile_input_is_read_or_refused_with_a_sentence(kind: str) -> None:
    draw(kind, MANY, KINDS)


def test_the_papers_of_this_project_are_far_from_every_limit() -> None:
    files = list(paper_file.FOLDER.glob("*.yaml"))
    assert len(files) == 3
    for file in files:
        assert file.stat().st_size < MAX_BYTES / 8
        assert spec.read_values(file)

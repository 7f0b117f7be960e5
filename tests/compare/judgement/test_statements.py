"""Statements are facts, and their words are made last: each kind has one template, and the JSON holds all of it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.artifacts.schema import Noise
from compare.judgement import statement_words
from compare.judgement.statement import Advice, Statement
from compare.judgement.statement_words import ADVICE, TEMPLATES, Fields, sentences
from compare.judgement.summary import summarize
from compare.reporting import comparison_report
from compare.results.store import StoredComparison
from tests.support import comparisons
from tests.support.comparisons import with_runs
from tests.support.statements import kinds, texts

FACTS = Path(comparison_report.__file__).parents[1] / "tools" / "regression" / "facts.py"
"""Makes statements of a tool, whose words stand in the core."""
JUDGING = [
    *(path for path in Path(statement_words.__file__).parent.glob("*.py") if path.name != "statement_words.py"),
    *([FACTS] if FACTS.exists() else []),
]
"""The modules that make statements, without that of the templates."""
STORED: dict[str, Callable[[], StoredComparison]] = {
    "repeated": comparisons.repeated,
    "troubled": comparisons.troubled,
    "observed": comparisons.observed,
    "input alone": comparisons.input_only,
    "disturbed": lambda: with_runs(comparisons.repeated(), noise=Noise(cores_stolen=1.0)),
    "other weights": lambda: with_runs(comparisons.repeated(), "tensorflow", weights_hash="another"),
}


def test_every_kind_of_statement_and_advice_has_words() -> None:
    assert kinds(JUDGING, "Statement") and kinds(JUDGING, "Statement") <= TEMPLATES.keys()
    assert kinds(JUDGING, "Advice") and kinds(JUDGING, "Advice") <= ADVICE.keys()


def test_every_template_is_of_a_kind_that_a_judgement_makes() -> None:
    if not FACTS.exists():
        pytest.skip("the tool that makes some of these statements was taken away")
    assert not TEMPLATES.keys() - texts(JUDGING) and not ADVICE.keys() - texts(JUDGING)


@pytest.mark.parametrize("name", STORED)
def test_the_json_has_all_facts_and_its_sentences_follow_from_them(name: str) -> None:
    stored = STORED[name]()
    values = json.loads(comparison_report.report(comparison_report.judge(stored), Path("out")).to_json())
    assert values["statements"] and values["findings"].keys() - values["statements"].keys() == {"comparable", "verdicts"}
    for subject, records in values["statements"].items():
        statements = [Statement.model_validate(record) for record in records]
        assert [statement.model_dump(mode="json") for statement in statements] == records
        assert sentences(statements, summarize(stored)) == values["findings"][subject]
        ids = {row.id for row in stored.comparison.rows}
        assert all(set(statement.rows) <= ids for statement in statements)


@given(st.integers(1, 6), st.integers(0, 5))
def test_rows_with_the_same_words_share_a_sentence_that_names_each_with_its_figure(number: int, others: int) -> None:
    ids = [f"row-{index}" for index in range(number + others)]
    summaries = [
        summary.model_copy(update={"id": row_id, "shares_name": True})
        for row_id, summary in zip(ids, summarize(comparisons.of_rows([comparisons.row("pytorch")])) * len(ids), strict=True)
    ]
    used = [
        Statement(kind="exceeds_budget", level="caution", rows=(row_id,), values={"cores_used": 2.0 + index, "cores": 2})
        for index, row_id in enumerate(ids[:number])
    ]
    (sentence,) = sentences(used, summaries)
    assert all(f"{2 + index:.2f} of 2" in sentence for index in range(number)) and sentence.count("used more cores") == 1
    assert all((row_id in sentence) == (row_id in ids[:number]) for row_id in ids)
    assert ("These are:" in sentence) == (number > 1)
    assert (f"{number} of {len(ids)} rows" in sentence) == (number > 1 and others > 0)


def test_runs_of_one_row_share_a_sentence_with_the_figure_of_each() -> None:
    used = [
        Statement(kind="exceeds_budget", level="caution", rows=("row",), values={"cores_used": cores_used, "cores": 2})
        for cores_used in (2.5, 3.0, 2.5)
    ]
    assert sentences(used) == ["row: used more cores than the budget: 2.50 of 2; 3.00 of 2."]


def test_a_caution_of_one_side_is_the_fact_itself_with_its_side() -> None:
    values = {"repeat": 2, "changes": "numpy was 1, now 2"}
    caution = Statement(kind="another_environment", level="trouble", rows=("a-serial",), values=values)
    of_side = Statement(
        kind="caution_of_side", level="caution", values={"side": "baseline", "caution": caution.model_dump(mode="json")}
    )
    (words,), (sentence,) = sentences([of_side]), sentences([caution])
    assert words == f"The baseline: {sentence}"


@given(st.integers(0, 10**6))
def test_a_noun_follows_its_number(number: int) -> None:
    text = Fields().format("{steps:timed step}", steps=number)
    assert text == f"{number:,} timed step{'' if number == 1 else 's'}"


def test_advice_names_the_folder_that_the_report_is_of() -> None:
    again = Advice(kind="again", options=("--again", "disturbed"))
    assert "run --resume DIR --again disturbed" in statement_words.advice_words(again)
    assert "run --resume 'a b' --again disturbed" in statement_words.advice_words(again, "a b")
    assert statement_words.advice_words(None) == ""


def test_one_disturbed_run_is_one_and_its_cores_are_more_than_the_limit_beside_them() -> None:
    values = {"name": "it", "unreliable": 1, "runs": 6, "whose": "of the base", "why": "disturbed", "cores": 2}
    statement = Statement(kind="unreliable_runs", level="caution", values={**values, "cores_taken": [0.1512]})
    (words,) = sentences([statement])
    assert words.startswith("it: 1 of 6 runs of the base was disturbed") and words.endswith("Its times do not count.")
    assert "took 0.151 cores of a budget of 2, more than 0.15." in words

"""Statements are facts, and their words are made last: each kind has one template, and the JSON holds all of it."""

import ast
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.artifacts.schema import Noise
from compare.judgement import statement_words
from compare.judgement.statement import Advice, Statement
from compare.judgement.statement_words import ADVICE, Fields, sentences
from compare.judgement.summary import summarize
from compare.reporting import comparison_report
from compare.results.store import StoredComparison
from compare.tools.matching import match_words
from compare.tools.tuning import tuning_words
from tests.support import comparisons
from tests.support.comparisons import with_runs

COMPARE = Path(comparison_report.__file__).parents[1]
JUDGING = (
    *Path(statement_words.__file__).parent.glob("*.py"),
    *(
        COMPARE / "tools" / name
        for name in ("regression/facts.py", "matching/model_comparison.py", "tuning/tuning_statements.py")
    ),
)
TEMPLATES = {**statement_words.TEMPLATES, **match_words.TEMPLATES, **tuning_words.TEMPLATES, **tuning_words.SHORT_TEMPLATES}
STORED: dict[str, Callable[[], StoredComparison]] = {
    "repeated": comparisons.repeated,
    "troubled": comparisons.troubled,
    "observed": comparisons.observed,
    "input alone": comparisons.input_only,
    "disturbed": lambda: with_runs(comparisons.repeated(), noise=Noise(cores_stolen=1.0)),
    "other weights": lambda: with_runs(comparisons.repeated(), "tensorflow", weights_hash="another"),
}


def texts() -> set[str]:
    """Every text in the modules that make statements, without that of the templates."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in JUDGING if path.name != "statement_words.py"]
    return {
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def kinds(of: str) -> set[str]:
    """Kinds that the modules write as `Statement(kind=...)` or `Advice(kind=...)`."""
    calls = [
        node for path in JUDGING for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)
    ]
    return {
        part.value
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == of
        for keyword in call.keywords
        if keyword.arg == "kind"
        for part in ast.walk(keyword.value)
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.islower() and " " not in part.value
    }


def test_every_kind_of_statement_and_advice_has_words() -> None:
    assert kinds("Statement") and kinds("Statement") <= TEMPLATES.keys()
    assert kinds("Advice") and kinds("Advice") <= ADVICE.keys()


def test_every_template_is_of_a_kind_that_a_judgement_makes() -> None:
    assert not TEMPLATES.keys() - texts() and not ADVICE.keys() - texts()


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

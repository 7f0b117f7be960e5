"""A figure is declared once, in `compare.judgement.figures`. Everything else follows, docs/reading-a-report.md too.

`pytest tests/compare/judgement/test_figures.py --snapshot-update` writes the table of the page anew.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.artifacts.schema import RunResult
from compare.judgement import figures
from compare.judgement.figures import Figure, Metric
from compare.judgement.row_figures import Summary
from compare.judgement.row_values import largest
from compare.reporting import comparison_report
from compare.reporting.comparison_report import JudgedComparison
from tests.support import comparisons

PAGE = Path(__file__).parents[3] / "docs" / "reading-a-report.md"
_TABLE = re.compile(r"^\| figure \|.*?(?=\n\n|\n?\Z)", re.MULTILINE | re.DOTALL)


def joules(run: RunResult) -> float:
    return 40.0 * len(run.epochs)


JOULES = Figure(
    "joules", "Energy of a run, made up.", run=joules, over=largest, heading="energy in J", digits=1,
    tables={"comparison": {}, "phases": {"heading": "J"}}, metric=Metric(is_time=False),
)  # fmt: skip


@pytest.fixture
def another_figure() -> Iterator[None]:
    with figures.registered(JOULES):
        yield


def table() -> str:
    """Return the table of all figures: the meaning of each, and where it is found."""
    lines = ["| figure | meaning | values | columns of |", "|---|---|---|---|"]
    for figure in figures.all_figures():
        places = {"JSON": figure.is_in_summary, "`runs.csv`": figure.is_in_frame, "`--metric`": figure.metric}
        values, columns = ", ".join(name for name, there in places.items() if there), ", ".join(figure.tables)
        lines.append(f"| {figure.name} | {figure.docs} | {values} | {columns} |")
    return "\n".join(lines)


def judged(folder: Path) -> JudgedComparison:
    return comparison_report.read(comparisons.stored_in(comparisons.repeated(), folder))


@pytest.mark.usefixtures("another_figure")
def test_a_figure_that_is_declared_once_is_in_the_summaries_the_json_the_tables_and_the_frame(tmp_path: Path) -> None:
    comparison = judged(tmp_path)
    assert {summary.model_dump()["joules"] for summary in comparison.summaries} == {80.0}
    report = comparison_report.report(comparison, tmp_path)
    assert {summary["joules"] for summary in report.values["summaries"]} == {80.0}
    headings = {each.name: column.heading for each in report.tables for column in each.columns if column.key == "joules"}
    assert headings == {"comparison": "energy in J", "phases": "J"}
    assert all(row["joules"] == 80.0 for each in report.tables if each.name in headings for row in each.rows)
    header, *lines = str(report.files["tables/runs.csv"]).splitlines()
    place = header.split(",").index('"joules"')
    assert len(lines) > 1 and {line.split(",")[place] for line in lines} == {"80.0"}


@pytest.mark.usefixtures("another_figure")
def test_a_figure_that_is_declared_once_is_a_row_of_the_page() -> None:
    assert "| joules | Energy of a run, made up. | JSON, `runs.csv`, `--metric` | comparison, phases |" in table().splitlines()


def test_a_registered_figure_goes_again_and_no_name_is_taken_twice() -> None:
    before = list(figures.all_figures())
    with figures.registered(JOULES), pytest.raises(ValueError, match="joules"), figures.registered(JOULES):
        pass
    assert list(figures.all_figures()) == before


def test_every_value_that_code_reads_by_attribute_is_a_figure() -> None:
    names = {figure.name for figure in figures.all_figures()}
    assert Summary.model_fields.keys() - names == {"hidden_ratios", "shares_name"}


def test_every_figure_is_shown_or_stored_somewhere_and_has_a_meaning() -> None:
    hidden = [
        each.name
        for each in figures.all_figures()
        if not (each.is_in_summary or each.is_in_frame or each.tables or each.metric)
    ]
    assert hidden == []
    assert [each.name for each in figures.all_figures() if not each.docs.endswith(".")] == []


def test_the_page_has_every_figure(pytestconfig: pytest.Config) -> None:
    text = PAGE.read_text(encoding="utf-8")
    if pytestconfig.getoption("update_snapshots", default=False):
        text = _TABLE.sub(lambda _: table(), text)
        PAGE.write_text(text, encoding="utf-8")
    assert _TABLE.findall(text) == [table()], "pytest tests/compare/judgement/test_figures.py --snapshot-update writes them."

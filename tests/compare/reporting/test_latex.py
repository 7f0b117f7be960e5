"""Tables as a paper takes them, compiled by a real TeX where there is one."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from compare.judgement.summary import summarize
from compare.reporting import class_tables, comparison_report, comparison_tables, latex, tables
from compare.results.store import StoredComparison
from compare.statistics.statistics import Ratio, Spread
from tests.support import comparisons

_LETTERS = st.characters(codec="ascii", exclude_categories=["Cc"])


@pytest.fixture(scope="module")
def tex() -> str:
    if (found := shutil.which("pdflatex")) is None:
        pytest.skip("pdflatex is not installed")
    return found


def test_latex_writes_intervals_and_numbers_as_a_paper_does(snapshot: SnapshotAssertion) -> None:
    assert latex.to_latex(comparison_tables.speedup_table(summarize(comparisons.repeated()))) == snapshot


def test_quartiles_that_read_as_their_median_do_not_widen_a_table() -> None:
    (table,) = (each for each in _everything(comparisons.repeated()) if each.name == "accuracy")
    assert all(isinstance(row["test_accuracy"], Spread) for row in table.rows)
    written = latex.to_latex(table)
    assert written.count(r"\begin{table}") == 1 and "0.7000 & 0.6000" in written and "0.7000--" not in written
    column = tables.Column("a", "a", 2)
    cells = (Spread(median=0.5, low=0.499, high=0.506, n=3), Ratio(value=1.0, low=1.0, high=1.0, n=5))
    assert [tables.cell_text(cell, column) for cell in cells] == ["0.50 (0.50 to 0.51)", "1.00 (1.00 to 1.00)"]


def test_each_row_has_a_confusion_table_of_its_own_with_short_names_and_a_legend() -> None:
    (table,) = class_tables.confusion_table(summarize(comparisons.hostile(38)), comparisons.hostile(38).comparison.class_names)
    written = latex.to_latex(table)
    assert len(set(re.findall(r"\\caption\{Confusion: ([^.]*)\.", written))) == 4
    assert r"37: Class\_\_\_\allowbreak{}number\_3" in written


def test_each_part_of_a_wide_table_has_the_columns_that_tell_its_rows_apart() -> None:
    assert r"\caption{Where?}" in latex.to_latex(tables.Table("t", "Where?", (tables.Column("a", "a"),), [{"a": 1}]))
    names = [("pytorch", "serial", 1), ("pytorch", "x2", 1), ("pytorch", "x2", 2), ("tensorflow", "x2", 2)]
    heads = (tables.Column("one", "one"), tables.Column("same", "same"), tables.Column("two", "two"), tables.Column("n", "n"))
    columns = (*heads, *(tables.Column(f"figure {at}", f"figure {at}", 9) for at in range(12)))
    rows = [dict(zip(("one", "same", "two", "n"), (one, "a", *rest), strict=True)) for one, *rest in names]
    for row in rows:
        row |= {column.key: 0.5 for column in columns[4:]}
    _, *others = latex.to_latex(tables.Table("t", "T", columns, rows)).split(r"\begin{table}")[1:]
    assert others and all(re.search(r"toprule\none & two & n & figure", each) for each in others)


@pytest.mark.parametrize("number", [7, 8, 12, 13, 30])
def test_no_part_of_a_wide_table_holds_what_little_the_others_left(number: int) -> None:
    columns = [tables.Column(f"figure {at}", f"figure {at}", 9) for at in range(number)]
    table = tables.Table("t", "t", tuple(columns), [{column.key: 0.5 for column in columns}])
    own = [len(each) - 1 for each in latex._column_sets(table, columns, {})]
    assert sum(own) == number - 1 and max(own) - min(own) <= 1


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("50 % of a_b & #1 {x}", r"50 \% of a\_b \& \#1 \{x\}"),
        (r"\input{/etc/passwd}$x^2$~", r"\textbackslash{}input\{/etc/passwd\}\$x\textasciicircum{}2\$\textasciitilde{}"),
        ('<b> | "q" `', r"\textless{}b\textgreater{} \textbar{} \textquotedbl{}q\textquotedbl{} \textasciigrave{}"),
        ("[2cm] * --epochs ''", r"{[}2cm{]} {*} -{}-epochs '{}'"),
        ("1 (2 to 3)\n\x1b[31m", "1 (2 to 3)"),  # text is no interval
    ],
)
def test_latex_takes_no_command_from_outside(text: str, written: str) -> None:
    table = tables.Table("t", "T", (tables.Column("a", "a"),), [{"a": text}])
    assert f"\n{written} \\\\\n" in latex.to_latex(table)


@given(st.text())
def test_latex_has_no_special_letter_that_is_not_escaped(text: str) -> None:
    written = latex.escaped_latex(text)
    left = re.sub(r"\\text\w+\{\}|\\[&%$#_{}]|\{[][*]\}|(?<=[-',])\{\}", "", written)
    assert not set(left) & set('\\&%$#_{}~^<>|"`\n\r\t') and not re.search("--|''|,,", written)


@given(st.lists(st.lists(st.one_of(st.floats(), st.text(_LETTERS, max_size=80)), min_size=6, max_size=6), max_size=3))
def test_every_text_stands_in_the_table_or_in_the_legend(rows: list[list[float | str]]) -> None:
    columns = tuple(tables.Column(key, f"heading {key}", 4) for key in "abcdef")
    table = tables.Table("t", "T", columns, [dict(zip("abcdef", row, strict=True)) for row in rows])
    written = latex.to_latex(table).replace(r"\allowbreak{}", "")
    for row in table.rows:
        for column in columns:
            text = latex.escaped_latex(tables.cell_text(row[column.key], column)) if row[column.key] else ""
            assert re.sub(r"\s+|\{\}", "", text) in re.sub(r"\s+|\{\}", "", written)


def _everything(stored: StoredComparison) -> list[tables.Table]:
    made_of = comparison_report.report(comparison_report.judge(stored), Path("x"))
    return [*made_of.tables, *made_of.detail_tables]


def _wide() -> list[tables.Table]:
    """Each kind of text that could be too wide, and letters that are the widest."""
    columns = tuple(tables.Column(name, name * length, 4) for name, length in (("W", 30), ("m", 9), ("a%", 12), ("b", 1)))
    rows = [{"W": letter * size, "m": 1e17 + size, "a%": 0.5, "b": "x y " * 30} for letter in "Wm@%_\\" for size in (5, 12, 60)]
    return [tables.Table("wide", "W" * 90, columns, [dict(row) for row in rows], note=f"{'/long-path' * 20} and {'Mm' * 40}")]


def _compiled(tex: str, made_of: Sequence[tables.Table], folder: Path) -> str:
    for table in made_of:
        (folder / f"{table.name}.tex").write_text(latex.to_latex(table), encoding="utf-8")
    inputs = "".join(f"\\input{{{table.name}}}\\clearpage\n" for table in made_of)
    head = "\\documentclass[a4paper]{article}\\usepackage[T1]{fontenc}\\usepackage{booktabs}\\begin{document}\n"
    (folder / "paper.tex").write_text(f"{head}{inputs}\\end{{document}}\n", encoding="utf-8")
    command = [tex, "-draftmode", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper.tex"]
    # What it prints is of any encoding.
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    return (folder / "paper.log").read_text(encoding="latin-1")


@pytest.mark.parametrize("kind", ["repeated", "observed", "profiled", "hostile", "wide"])
def test_every_table_fits_the_page_of_a_real_tex(kind: str, tex: str, tmp_path: Path) -> None:
    made_of = (
        _wide()
        if kind == "wide"
        else _everything(comparisons.hostile(38) if kind == "hostile" else getattr(comparisons, kind)())
    )
    log = _compiled(tex, made_of, tmp_path)
    assert "Overfull \\hbox" not in log and "Float too large" not in log


def test_a_table_that_is_too_wide_is_seen_to_be(tex: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latex, "WIDTH_PT", 1e9)  # the defect
    assert "Overfull \\hbox" in _compiled(tex, _everything(comparisons.repeated()), tmp_path)

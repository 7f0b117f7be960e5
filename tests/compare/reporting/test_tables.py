"""Printed tables as whole text. `make snapshots` renews it after a wanted change."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from sklearn.metrics import precision_recall_fscore_support
from syrupy.assertion import SnapshotAssertion

from common.machine.rates import DeviceRates
from common.training import metrics, scores
from compare.cli import wording
from compare.judgement.summary import summarize
from compare.reporting import class_tables, comparison_report, comparison_tables, proof_tables, step_tables, tables
from compare.reporting.comparison_report import judge
from compare.results.store import StoredComparison
from compare.statistics import verdict_words
from compare.statistics.statistics import Ratio, Spread
from tests.support import comparisons


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("kind", ["troubled", "repeated"])
@pytest.mark.usefixtures("everything")
def test_the_terminal_shows_good_failed_and_missing_rows(
    snapshot: SnapshotAssertion, kind: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"TTY_COMPATIBLE": "1", "TERM": "dumb", "COLUMNS": str(width), "LINES": "25"}.items():
        monkeypatch.setenv(name, value)
    comparison_report.report(judge(getattr(comparisons, kind)()), Path("out")).show(Path("out"), as_json=False)
    printed = "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())
    assert max(map(len, printed.splitlines())) <= width
    assert printed == snapshot


@pytest.mark.usefixtures("everything")
def test_a_log_has_one_field_a_line_where_a_table_does_not_fit(
    snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = judge(comparisons.troubled())
    monkeypatch.setenv("COLUMNS", "80")
    comparison_report.report(compared, Path("out")).show(Path("out"), as_json=False)
    printed = "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())
    assert printed == snapshot
    for table in comparison_tables.terminal_tables(compared.summaries):
        for column in table.columns if tables.is_truncated(table, 80) else ():
            for row in table.rows if column.terminal else ():
                assert tables.cell_text(row.get(column.key), column, table.spreads_on_terminal) in printed


@given(
    st.lists(
        st.lists(
            st.one_of(st.floats(), st.integers(), st.text(st.characters(codec="ascii"), max_size=60)), min_size=3, max_size=3
        )
    ),
    st.integers(20, 130),
)
def test_no_number_is_cut_off_outside_a_terminal(rows: list[list[float | int | str]], width: int) -> None:
    columns = tuple(tables.Column(key, f"heading {key}", 4) for key in "abc")
    table = tables.Table("t", "T", columns, [dict(zip("abc", row, strict=True)) for row in rows])
    output = io.StringIO()
    tables.print_tables(Console(file=output, width=width, highlight=False), [table], where="report.md")
    for row in table.rows:
        for column in columns:
            if not isinstance(cell := row[column.key], str):
                assert tables.cell_text(cell, column) in output.getvalue()


@pytest.mark.parametrize("kind", ["troubled", "repeated"])
def test_markdown_shows_every_column_with_spreads(snapshot: SnapshotAssertion, kind: str) -> None:
    written = "\n".join(
        tables.to_markdown(table) for table in comparison_tables.written_tables(judge(getattr(comparisons, kind)()).summaries)
    )
    assert written == snapshot


def test_csv_keeps_full_precision_and_low_and_high(snapshot: SnapshotAssertion) -> None:
    assert tables.to_csv(comparison_tables.speedup_table(judge(comparisons.repeated()).summaries)) == snapshot


def test_csv_runs_no_formula_and_keeps_every_row_on_its_line() -> None:
    hostile = ['=HYPERLINK("x")', "+1", "-1", "@SUM(A1)", "\t=1", "a\nb", "\x1b[31mred", "cat;=1+1", 'dog,"@x', "\uff1d1"]
    table = tables.Table("t", "T", (tables.Column("a", "a"),), [{"a": text} for text in hostile])
    header, *read = [cells[0] for cells in csv.reader(io.StringIO(tables.to_csv(table)))]
    assert header == "a"
    assert read == ['\'=HYPERLINK("x")', "'+1", "'-1", "'@SUM(A1)", "'=1", "a b", "red", "cat;'=1+1", "dog,\"'@x", "'\uff1d1"]
    where_semicolons_part = list(csv.reader(io.StringIO(tables.to_csv(table)), delimiter=";"))
    assert not any(cell.startswith(("=", "+", "-", "@")) for cells in where_semicolons_part for cell in cells)


def test_csv_leaves_negative_numbers_alone() -> None:
    assert tables.to_csv(tables.Table("t", "T", (tables.Column("a", "a"),), [{"a": -1.5}, {"a": None}])) == '"a"\n-1.5\n""\n'


def test_frames_run_no_formula_either_and_keep_numbers() -> None:
    frame = pd.DataFrame({"text": ["=1+1", "@x\t", "plain"], "number": [-1.5, 0.1, float("nan")]})
    assert tables.frame_to_csv(frame) == '"text","number"\n"\'=1+1",-1.5\n"\'@x",0.1\n"plain",""\n'
    assert tables.frame_to_csv(pd.DataFrame([])) == "\n"


def test_precision_and_recall_are_those_of_scikit_learn_and_of_evaluate_and_images_are_counted_once() -> None:
    labels, predictions = [0, 0, 0, 1, 1, 3], [0, 1, 0, 1, 0, 1]
    counts = metrics.confusion(np.array(labels), np.array(predictions), 4)
    stored = comparisons.with_runs(comparisons.repeated(3), confusion=counts)
    (table,) = class_tables.class_table(summarize(stored), ["a", "b", "c"])
    precision, recall, f1, support = precision_recall_fscore_support(
        labels * 3, predictions * 3, labels=range(4), zero_division=0.0
    )
    for row, *expected in zip(table.rows[:4], precision, recall, f1, strict=True):
        assert [row["precision"], row["recall"], row["f1"]] == pytest.approx(expected)
    logits = np.eye(4)[predictions]
    evaluated = scores.score(np.array(labels), logits).classes
    for row, other in zip(table.rows[:4], evaluated, strict=True):
        assert [row["precision"], row["recall"], row["f1"]] == pytest.approx([other.precision, other.recall, other.f1])
    assert class_tables.ZERO in table.note
    assert [row["class"] for row in table.rows[:4]] == ["a", "b", "c", "3"]
    assert [row["predictions"] for row in table.rows[:4]] == support.tolist()
    assert [row["images"] for row in table.rows[:4]] == [3, 2, 0, 1]


def test_a_confusion_matrix_is_a_row_of_numbers_for_each_true_class_under_safe_names() -> None:
    stored = comparisons.with_runs(comparisons.repeated(2), confusion=[[3, 1, 0], [0, 2, 0], [0, 0, 0]])
    (table,) = class_tables.confusion_table(summarize(stored), ["=cat", "a,b"])
    lines = tables.to_csv(table).splitlines()
    assert lines[0] == '"contestant","run","class","images","predicted =cat","predicted a,b","predicted 2"'
    assert lines[1:4] == [
        '"pytorch","serial, 2 cores","\'=cat",4,6,2,0',
        '"pytorch","serial, 2 cores","a,b",2,0,4,0',
        '"pytorch","serial, 2 cores","2",0,0,0,0',
    ]
    assert len(lines) == 1 + 3 * len(stored.comparison.rows)
    assert class_tables.confusion_table(summarize(comparisons.repeated(1)), ["a"]) == []


class Run(NamedTuple):
    name: str
    seconds: float
    scores: dict[str, float] | None


def test_a_table_of_items_has_a_row_for_each_and_every_column_picks_its_cell() -> None:
    columns = (
        tables.Column("name", "run"),
        tables.Column("milliseconds", "ms", 1, pick=lambda run: 1e3 * run.seconds),
        tables.Column("accuracy", "accuracy", 2, pick="scores.accuracy"),
    )
    runs = [Run("a", 0.5, {"accuracy": 0.25}), Run("b", 1.0, None), Run("c", 2.0, {})]
    table = tables.Table.from_items("t", "T", columns, runs, "N", spreads_on_terminal=False)
    assert table == tables.Table(
        "t",
        "T",
        tuple(replace(column, pick="") for column in columns),  # what picks is not part of a table, which steps store
        [
            {"name": "a", "milliseconds": 500.0, "accuracy": 0.25},
            {"name": "b", "milliseconds": 1000.0, "accuracy": None},
            {"name": "c", "milliseconds": 2000.0, "accuracy": None},
        ],
        spreads_on_terminal=False,
        note="N",
    )


@pytest.mark.parametrize(
    ("path", "value"), [("0.name", "a"), ("1", 2), ("0.scores.x", 3.0), ("0.scores.y", None), ("2", None), ("2.more", None)]
)
def test_a_path_goes_through_attributes_keys_and_places(path: str, value: object) -> None:
    assert tables.value_at((Run("a", 0.5, {"x": 3.0}), 2, None), path) == value


def test_a_path_to_an_attribute_that_there_is_not_is_an_error_and_no_gap() -> None:
    with pytest.raises(AttributeError) as error:
        tables.Table.from_items("t", "T", [tables.Column("nmae", "run")], [Run("a", 0.5, None)])
    assert error.value.name == "nmae"


def test_a_proof_of_nothing_has_no_table() -> None:
    assert proof_tables.proof_tables({"rungs": [], "mode_verdicts": {}, "not_claimed": {}}) == []


def test_markdown_and_terminal_take_no_markup_from_outside() -> None:
    table = tables.Table("t", "T", (tables.Column("a", "a"),), [{"a": "[red]x[/red] | <b>\n"}])
    assert "| \\[red\\]x\\[/red\\] \\| \\<b\\> |" in tables.to_markdown(table)
    assert "[red]x[/red] | <b>" in rendered(80, table)


def test_a_title_is_as_wide_as_the_terminal_and_not_as_its_table() -> None:
    table = tables.Table("t", "What differs around them", (tables.Column("a", "a"),), [{"a": "x"}])
    assert rendered(80, table).splitlines()[0] == "What differs around them"


def test_titles_and_notes_take_no_markup_and_no_escape_sequence_from_outside_either() -> None:
    hostile = "Error: <img src=x>\n# $x$ &lt; ~~b~~ \x1b[31mred \u200f\u061ca\u200bb http://x www.x.de"
    table = tables.Table("t", hostile, (tables.Column("a", "a"),), [{"a": hostile}], note=hostile)
    expected = r"Error: \<img src=x\> \# \$x\$ \&lt; \~\~b\~\~  red  a b http\://x www\.x.de"
    assert tables.to_markdown(table) == f"### {expected}\n\n| a |\n| --- |\n| {expected} |\n\n{expected}\n"
    output = io.StringIO()
    tables.print_tables(Console(file=output, width=200), [table], where="report.md")
    assert "\x1b" not in output.getvalue() and "<img src=x> # $x$ &lt; ~~b~~  red  a b" in output.getvalue()


def test_joiners_that_scripts_are_written_with_stay() -> None:
    assert wording.one_line("\u0645\u06cc\u200c\u0631\u0648\u062f \U0001f469\u200d\U0001f33e") == (
        "\u0645\u06cc\u200c\u0631\u0648\u062f \U0001f469\u200d\U0001f33e"
    )


def test_json_has_null_where_a_number_is_none() -> None:
    table = tables.Table("t", "T", (tables.Column("a", "a"),), [{"a": float("nan")}])
    assert tables.to_plain(table)["rows"] == [{"a": None}]


def rendered(width: int, *shown: tables.Table | str) -> str:
    output = io.StringIO()
    console = Console(file=output, width=width, highlight=False)
    for each in shown:
        console.print(tables.to_rich(each, width) if isinstance(each, tables.Table) else each)
    return "".join(f"{line.rstrip()}\n" for line in output.getvalue().splitlines())


SOME: dict[str, tuple[Callable[[], StoredComparison], tuple[str, ...]]] = {
    "where the time of a step goes": (comparisons.profiled, ("step_parts",)),
    "the longest operations of a mode": (comparisons.profiled, ("operations_data_parallel-2",)),
    "seeds, a target, the limit and noise": (comparisons.observed, ("accuracy", "time_to_accuracy", "limit", "noise")),
}
"""Tables that some comparisons have."""


@pytest.mark.parametrize("name", SOME)
def test_tables_that_some_comparisons_have_on_the_terminal_and_in_markdown(name: str, snapshot: SnapshotAssertion) -> None:
    make, names = SOME[name]
    compared = judge(make())
    on_terminal, written = (
        [table for table in all_tables(compared.summaries) if table.name in names]
        for all_tables in (comparison_tables.terminal_tables, comparison_tables.written_tables)
    )
    assert len(written) == len(names) and on_terminal
    shown = {f"{width} columns": rendered(width, *on_terminal) for width in (80, 120)}
    assert all(len(line) <= int(width.split()[0]) for width, text in shown.items() for line in text.splitlines())
    sentences = rendered(120, *compared.in_words(compared.findings.scores))
    assert {"markdown": "\n".join(map(tables.to_markdown, written)), **shown, "sentences": sentences} == snapshot


def test_json_shows_where_a_steps_time_goes() -> None:
    stored = comparisons.profiled()
    everything = json.loads(comparison_report.report(judge(stored), Path("out")).to_json())
    (plain,) = [table for table in everything["tables"] if table["name"] == "step_parts"]
    assert plain["rows"][1]["communication_exposed_milliseconds"] == 6.25
    assert plain["rows"][3]["not_separable"] == "the framework computes and sends in one"
    assert (plain["rows"][1]["backward_milliseconds"], plain["rows"][3]["pieces"]) == (14.5, "sent in between")
    separable = [summary for summary in summarize(stored) if summary.contestant == "pytorch"]
    assert "Not separable" in plain["note"] and "Not separable" not in step_tables.step_table(separable)[0].note


def test_parts_that_add_up_to_more_than_their_whole_are_remarked_on(snapshot: SnapshotAssertion) -> None:
    stored = comparisons.profiled()
    (plain,) = step_tables.step_table(summarize(stored))
    assert "noise" not in plain.note and "shares" not in plain.note  # 1 % is rounding
    longer = {"step_parts__compute_seconds": 0.04, "step_parts__forward_seconds": 0.03}
    (table,) = step_tables.step_table(summarize(comparisons.with_runs(stored, "pytorch-data_parallel", **longer)))
    assert table.note.startswith(plain.note) and table.note.removeprefix(plain.note) == snapshot


def test_rates_above_the_machines_measured_ones_are_remarked_on() -> None:
    stored = comparisons.observed()
    (plain,) = step_tables.limit_table(summarize(stored))
    assert "Above the matrix rate" not in plain.note  # 1.00 is not above
    slow = {2: comparisons.with_fields(stored.comparison.rates[2], float32_gflops=640.0)}
    (table,) = step_tables.limit_table(summarize(comparisons.with_plan(stored, rates=slow)))
    assert "Above the matrix rate: pytorch data_parallel x2 (1.50 times)" in table.note
    assert "Above the copy rate: pytorch data_parallel x2 (1.02 times)" in table.note
    assert "Not measured" not in table.note


@pytest.mark.parametrize("rates", [None, DeviceRates(matrix_gflops=1e3, copy_gb_per_second=1e2)])
def test_rows_on_a_gpu_are_held_to_its_own_rates_or_said_to_have_none(rates: DeviceRates | None) -> None:
    stored = comparisons.with_runs(comparisons.observed(), "pytorch-serial-2", device="cuda", device_rates=rates)
    (table,) = step_tables.limit_table(summarize(stored))
    assert table.note.endswith("Not measured: pytorch serial, 2 cores.") == (rates is None)
    assert ("Of a GPU:" in table.note) == (rates is not None)
    assert (table.rows[0]["matrix_fraction"] is None) == (rates is None)


def test_many_epochs_are_thinned_on_the_terminal_with_first_and_last_kept() -> None:
    epochs = [comparisons.epoch(number + 1, 1.0) for number in range(20)]
    stored = comparisons.with_runs(comparisons.repeated(1), epochs=epochs)
    table = comparison_tables.terminal_tables(summarize(stored))[-1]
    assert [column.heading for column in table.columns[2:]] == [f"epoch {number}" for number in (1, 5, 9, 12, 16, 20)]
    assert table.note == "6 of 20 epochs; all of them in the report."


def test_the_input_alone_has_no_columns_of_nothing() -> None:
    summaries = summarize(comparisons.input_only())
    assert [table.name for table in comparison_tables.terminal_tables(summaries)] == [
        "comparison",
        "conditions",
        "phases",
        "epoch_seconds",
    ]
    documents = comparison_tables.written_tables(summaries)
    assert [table.name for table in documents] == [
        "comparison", "conditions", "seconds", "phases", "epoch_seconds", "epochs",
    ]  # fmt: skip
    keys = {column.key for table in documents for column in table.columns}
    assert "images_per_second" in keys and not [key for key in keys if "accuracy" in key or "loss" in key or "parity" in key]


def test_a_p_that_rounds_to_zero_is_smaller_than_the_last_digit() -> None:
    column = tables.Column("p", "p", 4, least=True)
    said = [tables.cell_text(p, column) for p in (0.0, 1e-12, 0.00004, 0.0002, 0.5)]
    assert said == ["< 0.0001", "< 0.0001", "< 0.0001", "0.0002", "0.5000"]
    assert tables.to_csv(tables.Table("x", "x", (column,), [{"p": 1e-12}])).splitlines()[1] == "1e-12"


def test_a_word_of_a_status_is_not_broken_where_its_column_is_narrow() -> None:
    column = tables.Column("status", "status", fold=9)
    table = tables.Table("x", "x", (column,), [{"status": "incomplete"}, {"status": "not comparable"}])
    assert {"incomplete", "not", "comparable"} <= {*rendered(40, table).split()}


def test_an_interval_of_two_noisy_repeats_is_words_and_no_millions() -> None:
    column = tables.Column("ratio", "ratio", 2, interval=True)
    wide = Ratio(value=1.1, low=3e-7, high=4e6, n=2)
    assert tables.cell_text(wide, column) == "1.10 (too few repeats for an interval)"
    assert verdict_words.interval_words(wide) == "1.10 (too few repeats for an interval)"
    assert tables.cell_text(comparisons.with_fields(wide, low=0.5, high=2.42), column) == "1.10 (0.50 to 2.42)"
    assert tables.cell_text(comparisons.with_fields(wide, n=5), column).endswith("4000000.00)")
    assert "4000000.0" in tables.to_csv(tables.Table("x", "x", (column,), [{"ratio": wide}]))


def test_a_note_names_no_column_that_is_not_shown() -> None:
    conditions = next(
        each for each in comparison_tables.terminal_tables(summarize(comparisons.repeated())) if each.name == "conditions"
    )
    headings = {column.heading for column in conditions.columns if column.terminal}
    assert not any("etermin" in heading for heading in headings) and "etermin" not in conditions.note
    assert "Determinism: whether" in tables.to_markdown(conditions)


def test_eighty_columns_have_the_accuracy_the_pace_the_proof_and_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    table = comparison_tables.without_empty_speedups(comparison_tables.main_table(summarize(comparisons.troubled())))
    Console(width=80, force_terminal=True, color_system=None).print(tables.to_rich(table, 80))
    printed = capsys.readouterr().out
    headings = " ".join(printed.splitlines()[1:3])
    assert all(word in headings for word in ("acc.", "epoch", "proof", "status"))
    assert "killed" in printed and "proved" in printed


def test_the_note_of_a_piped_table_is_no_wider_than_its_console() -> None:
    output = io.StringIO()
    table = comparison_tables.main_table(summarize(comparisons.troubled()))
    tables.print_tables(Console(file=output, width=60), [table], where="the files")
    (*_, note) = output.getvalue().strip().split("\n\n")
    assert table.note.split()[-1] in output.getvalue() and len(table.note) > 60
    assert all(len(line) <= 60 for line in note.splitlines()[-3:])


def test_a_heading_says_what_stands_in_brackets() -> None:
    columns = (
        tables.Column("a", "seconds", 1),
        tables.Column("b", "speed-up", 1, short="faster"),
        tables.Column("c", "steady", 1),
        tables.Column("d", "n"),
    )
    spread, equal = Spread(median=2.0, low=1.0, high=3.0, n=5), Spread(median=2.0, low=2.0, high=2.0, n=5)
    table = tables.Table("t", "T", columns, [{"a": spread, "b": Ratio(value=2.0, low=1.5, high=2.5, n=5), "c": equal, "d": 5}])
    named = tables.with_interval_headings(table).columns
    assert [column.heading for column in named] == ["seconds (25 to 75 %)", "speed-up (95 %)", "steady", "n"]
    assert named[1].short == "faster (95 %)"
    assert tables.with_interval_headings(table, spreads=False).columns[0].heading == "seconds"
    assert all(heading in tables.to_markdown(table) for heading in ("seconds (25 to 75 %)", "speed-up (95 %)"))

"""The files of a report, made again."""

import hashlib
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from common.artifacts import event_log, results
from common.artifacts.schema import Metrics, Noise
from common.machine import machine
from compare.cli import errors
from compare.reporting import comparison_report, document
from compare.reporting.tables import Cell, Column, Table
from compare.results import store
from compare.results.store import StoredComparison
from compare.statistics.statistics import Ratio
from tests import hostile_files
from tests.support import comparisons, trees
from tests.support.command_line import convtwins, here
from tests.support.refusals import check_ended, refused


def test_tables_that_a_report_has_no_more_are_removed_and_no_others(tmp_path: Path) -> None:
    out, tables = tmp_path / "out", tmp_path / "out" / "tables"
    profiled, plain = (comparison_report.read(comparisons.stored_in(stored, tmp_path / kind)) for kind, stored in (
        ("profiled", comparisons.profiled()), ("plain", comparisons.repeated(1)),
    ))  # fmt: skip
    assert comparison_report.report(profiled, out).write(out) is None
    (tables / "scaling.md").write_text("of another command")
    gone = {f"{name}.{form}" for name in ("step_parts", "operations_data_parallel-2") for form in ("md", "csv", "tex")}
    before = {path.name for path in tables.iterdir()}
    assert comparison_report.report(plain, out).write(out) is None
    assert before - {path.name for path in tables.iterdir()} == gone


def test_a_results_file_from_elsewhere_names_no_other_file_for_removal(tmp_path: Path) -> None:
    named = [{"name": "../../README"}, {"name": ".."}, {"name": str(tmp_path / "README")}]
    results_file = f"out/{comparison_report.RESULTS_FILE}"
    trees.write(tmp_path, {"README.md": "mine", "out/tables": None, results_file: {"tables": named}})
    stored = comparisons.stored_in(comparisons.repeated(1), tmp_path / "stored")
    assert comparison_report.report(comparison_report.read(stored), stored).write(tmp_path / "out") is None
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_number_that_json_does_not_know_is_null_in_a_result_too() -> None:
    scores = [Metrics(loss=loss, accuracy=0.5, num_correct=1, num_examples=2) for loss in (math.nan, math.inf, 0.1)]
    found = json.loads(document.to_json({"runs": {"NaN": scores}}), parse_constant=lambda name: f"no JSON: {name}")
    assert [each["loss"] for each in found["runs"]["NaN"]] == [None, None, 0.1]


def test_the_result_of_another_repeat_counts_once(tmp_path: Path) -> None:
    stored = comparisons.repeated(3)
    folder = comparisons.stored_in(stored, tmp_path / "results")
    row = stored.comparison.rows[0]
    first, second = (store.run_folder(folder, row.id, repeat) / results.RESULT_FILE for repeat in (0, 1))
    shutil.copy(second, first)
    read = store.read(folder)
    assert sorted(read.runs[row.id]) == [1, 2]
    ((_, reason),) = read.set_aside
    assert reason.startswith(f"{first.relative_to(folder)} ") and "another repeat: of 1" in reason


def test_a_result_that_was_made_faster_and_has_lost_its_checksum_is_set_aside(tmp_path: Path) -> None:
    stored = comparisons.repeated(3)
    folder = comparisons.stored_in(stored, tmp_path / "results")
    row = stored.comparison.rows[0]
    path = store.run_folder(folder, row.id, 1) / results.RESULT_FILE
    values = json.loads(path.read_text())
    del values["sha256"]
    for epoch in values["epochs"]:
        epoch["timed_seconds"] /= 4
    path.write_text(json.dumps(values))
    compared = comparison_report.read(folder)
    assert compared.exit_code == 1 and compared.summaries[0].repeats_done == 2
    ((_, reason),) = compared.stored.set_aside
    assert reason.startswith(f"{path.relative_to(folder)} ") and "checksum" in reason


def test_results_that_the_plan_does_not_ask_for_are_named(tmp_path: Path) -> None:
    stored = comparisons.repeated(5)
    folder = comparisons.stored_in(stored, tmp_path / "results")
    assert not any(caution.kind == "unplanned" for caution in comparison_report.read(folder).cautions)
    fewer = comparisons.with_fields(stored.comparison, settings__repeats=3)
    store.write_plan(folder, fewer)
    rows = [row.id for row in fewer.rows]
    last = store.run_folder(folder, rows[-1], 4)
    last.rename(last.with_name(f"{rows[-1]}-r0.attempt1"))
    store.run_folder(folder, rows[-1], 3).rename(last.with_name("zz\udcff"))
    compared = comparison_report.read(folder)
    left = [*sorted(f"{row}-r{repeat}" for row in rows[:-1] for repeat in (3, 4)), "zz\\xff"]
    assert compared.stored.unplanned == left and compared.exit_code == 0
    (caution,) = compared.in_words([caution for caution in compared.cautions if caution.kind == "unplanned"])
    assert caution.startswith(f"{len(left)} ") and f"{', '.join(left[:3])} and {len(left) - 3} more" in caution


def test_a_row_with_a_torn_repeat_is_incomplete_beside_the_figures_of_the_others(tmp_path: Path) -> None:
    stored = comparisons.repeated(3)
    folder = comparisons.stored_in(stored, tmp_path / "results")
    first, second = (row.id for row in stored.comparison.rows[:2])
    (store.run_folder(folder, first, 1) / results.RESULT_FILE).write_text("{")
    for repeat in range(3):
        (store.run_folder(folder, second, repeat) / results.RESULT_FILE).unlink()
    (store.run_folder(folder, first, 2) / results.RESULT_FILE).unlink()
    compared = comparison_report.read(folder)
    rows = {each.id: each for each in compared.summaries}
    assert (rows[first].status, rows[first].repeats_done) == ("incomplete", 1)
    assert rows[first].reason == "1 of 3 repeats has no result, 1 has a torn result"
    assert (rows[second].status, rows[second].reason) == ("not run", "3 of 3 repeats have no result")
    assert compared.exit_code == 1


@pytest.mark.parametrize(
    "words",
    here(
        ("report", "FOLDER", "--out", "FILE"),
        ("report", "FOLDER", "FOLDER", "--out", "FILE"),
        ("history", "FOLDER", "--out", "FILE"),
        ("export", "FOLDER", "--to", "tensorboard", "--out", "FILE"),
        ("run", "--data", "digits", "--out", "FILE"),
        ("parity", "--modes", "serial", "--out", "FILE"),
        ("data", "digits", "--out", "FILE"),
        ("preprocess", "digits", "--engines", "dask", "--out", "FILE"),
        ("report", "FILE"),
    ),
)
def test_a_file_in_place_of_a_folder_is_wrong_usage_in_every_command(words: tuple[str, ...], tmp_path: Path) -> None:
    folder, file = comparisons.stored_in(comparisons.repeated(1), tmp_path / "results"), tmp_path / "letter.txt"
    other = comparisons.stored_in(comparisons.repeated(1), tmp_path / "other")
    file.write_text("mine")
    places = {"FOLDER": iter((folder, other)), "FILE": iter((file,))}
    done = convtwins(*[str(next(places[word])) if word in places else word for word in words])
    check_ended(done, names=[f"{file} is a file"])
    assert file.read_text() == "mine"


def test_stored_files_that_a_command_needs_are_wrong_usage_where_they_are_damaged(tmp_path: Path) -> None:
    folder = comparisons.stored_in(comparisons.repeated(1), tmp_path / "results")
    (folder / store.PLAN_FILE).write_text("{")
    check_ended(convtwins("report", folder), names=[folder / store.PLAN_FILE])


def test_an_empty_table_is_in_the_files_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    columns = (Column("a", "a"),)
    found = document.Report(
        title="T",
        tables=[Table.from_items("none", "Nothing", columns, []), Table.from_items("one", "One", columns, [{"a": 1}])],
        findings=[("Silence", []), ("Word", ["Yes."])],
    )  # fmt: skip
    found.show(None, as_json=False)
    for text in (capsys.readouterr().out, found.to_markdown(), found.to_html(Path())):
        assert "One" in text and "Word" in text and "Nothing" not in text and "Silence" not in text
    assert [each["name"] for each in json.loads(found.to_json())["tables"]] == ["none", "one"]


@pytest.mark.parametrize("content", [b"[" * 100_000, b"1" * 5_000, b"", b"\xff"])
def test_a_plan_that_is_no_json_is_refused_in_words(content: bytes, tmp_path: Path) -> None:
    (tmp_path / store.PLAN_FILE).write_bytes(content)
    with refused(errors.FolderError, field=store.PLAN_FILE):
        store.read(tmp_path)


def test_a_report_has_the_hashes_of_what_it_was_made_from(tmp_path: Path) -> None:
    comparisons.stored_in(comparisons.repeated(2), tmp_path)

    def written() -> tuple[dict[str, str], str]:
        assert comparison_report.report(comparison_report.read(tmp_path), tmp_path).write(tmp_path) is None
        page = (tmp_path / "report.html").read_text()
        return json.loads((tmp_path / "results.json").read_text())["made_from"], page

    found, page = written()
    files = [tmp_path / store.PLAN_FILE, *tmp_path.glob("runs/*/result.json")]
    own = {path.relative_to(tmp_path).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert found == own and len(own) > 2
    lines = "".join(f"{own[path]}  {path}\n" for path in sorted(own))
    assert f"{len(own)} files, SHA-256 {hashlib.sha256(lines.encode()).hexdigest()}" in page
    files[-1].write_text(json.dumps(json.loads(files[-1].read_text()), indent=1))  # the same values, other bytes
    again, page_of_others = written()
    assert sum(again[path] != own[path] for path in own) == 1
    assert hashlib.sha256(lines.encode()).hexdigest() not in page_of_others


LONG = 15
"""Words in a row. Fewer are the name of a row, or how sure a verdict is."""


def disturbed(made_of: Callable[[], StoredComparison] = comparisons.repeated) -> StoredComparison:
    return comparisons.with_runs(made_of(), noise=Noise(cores_stolen=0.5))


def test_no_ratio_of_times_that_other_work_disturbed_is_shown(tmp_path: Path) -> None:
    def ratios(stored: StoredComparison) -> list[Cell]:
        folder = comparisons.stored_in(stored, tmp_path / f"{len(list(tmp_path.iterdir()))}")
        report = comparison_report.report(comparison_report.read(folder), folder)
        keys = ("speedup_one_core", "speedup_same_cores", "parallel_efficiency", "matrix_fraction", "copy_fraction")
        every = [row for table in (*report.tables, *report.detail_tables) for row in table.rows]
        assert not any(isinstance(cell, Ratio) for row in every for key, cell in row.items() if key not in keys)
        return [row[key] for row in every for key in keys if row.get(key) is not None]

    assert {type(cell) for cell in ratios(comparisons.observed())} == {Ratio, float}
    assert {*ratios(disturbed(comparisons.observed))} == {"disturbed"}


@pytest.mark.parametrize("stored", [comparisons.repeated, comparisons.observed, disturbed, comparisons.troubled])
def test_nothing_long_is_said_twice(stored: Callable[[], StoredComparison], tmp_path: Path) -> None:
    folder = comparisons.stored_in(stored(), tmp_path / "results")
    report = comparison_report.report(comparison_report.read(folder), folder)
    sentences = [*report.facts, *report.first_sentences, *(each for _, found in report.findings for each in found)]
    words = [sentence.split() for sentence in sentences]
    seen = Counter(" ".join(each[start : start + LONG]) for each in words for start in range(len(each) - LONG + 1))
    assert [phrase for phrase, times in seen.items() if times > 1] == []
    page = report.to_html(tmp_path)
    assert page.count("Accuracy and loss: test split of") == 1


def test_a_report_names_its_folder_in_commands_that_a_shell_takes(tmp_path: Path) -> None:
    folder = comparisons.stored_in(disturbed(), tmp_path / "out ü")
    report = comparison_report.report(comparison_report.read(folder), folder)
    text = " ".join(sentence for _, sentences in report.findings for sentence in sentences)
    assert text.count(f"{machine.COMMAND} run --resume '{folder}' --again disturbed") > 1 and "DIR" not in text


@pytest.mark.parametrize("name", hostile_files.IN_PLACE)
@pytest.mark.parametrize("file", [store.PLAN_FILE, results.RESULT_FILE, event_log.EVENTS_FILE])
def test_a_pipe_or_an_endless_file_in_a_results_folder_is_named_and_not_waited_for(
    name: str, file: str, tmp_path: Path
) -> None:
    stored = comparisons.repeated(2)
    folder = comparisons.stored_in(stored, tmp_path / "out")
    run = store.run_folder(folder, stored.comparison.rows[0].id, 0)
    fault = hostile_files.put(name, (folder if file == store.PLAN_FILE else run) / file)
    with hostile_files.soon():
        if file == store.PLAN_FILE:
            done = convtwins("report", folder)
            assert done.exit_code == 2 and f"{folder / file} {fault}" in done.stderr
        else:
            ((_, sentence),) = store.read(folder).set_aside
            assert sentence.startswith(f"{run.relative_to(folder) / file} {fault}")


@pytest.mark.parametrize("name", hostile_files.IN_PLACE)
def test_a_replaced_result_that_is_no_plain_file_was_changed(name: str, tmp_path: Path) -> None:
    stored = comparisons.repeated(1)
    row = stored.comparison.rows[0].id
    replaced = store.ReplacedRun(row=row, repeat=0, sha256="0" * 64, number=1, cores_taken=None, epoch_seconds=1.0)
    folder = comparisons.stored_in(comparisons.with_plan(stored, replaced=[replaced]), tmp_path / "out")
    (folder / replaced.path).parent.mkdir()
    hostile_files.put(name, folder / replaced.path)
    with hostile_files.soon():
        ((_, reason),) = store.read(folder).set_aside
    assert reason.startswith(f"{replaced.path} was changed")


@pytest.mark.parametrize("name", [document.TABLES_FOLDER, document.PLOTS_FOLDER])
def test_a_report_writes_into_no_folder_that_a_link_leads_to(name: str, tmp_path: Path) -> None:
    folder, elsewhere = comparisons.stored_in(comparisons.repeated(1), tmp_path / "out"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / name).symlink_to(elsewhere)
    (tmp_path / "named").symlink_to(folder)
    check_ended(convtwins("report", tmp_path / "named"), names=[f"{tmp_path / 'named' / name} is a link"])
    assert not list(elsewhere.iterdir())
    (folder / name).unlink()
    convtwins("report", tmp_path / "named").succeeded()  # the user named this link

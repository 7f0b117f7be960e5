"""The files of a report, made again."""

import json
import math
import shutil
from pathlib import Path

import pytest

from common.artifacts import results
from common.artifacts.schema import Metrics
from compare.core import errors
from compare.execution import store
from compare.regression import history
from compare.reporting import comparison_report, document
from tests.compare import made


def test_tables_that_a_report_has_no_more_are_removed_and_no_others(tmp_path: Path) -> None:
    out, tables = tmp_path / "out", tmp_path / "out" / "tables"
    profiled, plain = (comparison_report.read(made.stored_in(stored, tmp_path / kind)) for kind, stored in (
        ("profiled", made.profiled()), ("plain", made.repeated(1)),
    ))  # fmt: skip
    assert comparison_report.report(profiled, out).write(out) is None
    (tables / "scaling.md").write_text("of another command")
    gone = {f"{name}.{form}" for name in ("step_parts", "operations_data_parallel-2") for form in ("md", "csv", "tex")}
    before = {path.name for path in tables.iterdir()}
    assert comparison_report.report(plain, out).write(out) is None
    assert before - {path.name for path in tables.iterdir()} == gone


def test_a_results_file_from_elsewhere_names_no_other_file_for_removal(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "out" / "tables").mkdir(parents=True)
    named = [{"name": "../../README"}, {"name": ".."}, {"name": str(tmp_path / "README")}]
    (tmp_path / "out" / comparison_report.RESULTS_FILE).write_text(json.dumps({"tables": named}))
    stored = made.stored_in(made.repeated(1), tmp_path / "stored")
    assert comparison_report.report(comparison_report.read(stored), stored).write(tmp_path / "out") is None
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_number_that_json_does_not_know_is_null_in_a_result_too() -> None:
    scores = [Metrics(loss=loss, accuracy=0.5, num_correct=1, num_examples=2) for loss in (math.nan, -math.inf, 0.1)]
    found = json.loads(document.to_json({"runs": {"NaN": scores}}), parse_constant=lambda name: f"no JSON: {name}")
    assert [each["loss"] for each in found["runs"]["NaN"]] == [None, None, 0.1]


def test_the_result_of_another_repeat_counts_once_and_history_says_so(tmp_path: Path) -> None:
    stored = made.repeated(3)
    folder = made.stored_in(stored, tmp_path / "results")
    row = stored.comparison.rows[0]
    first, second = (store.run_folder(folder, row.id, repeat) / results.RESULT_FILE for repeat in (0, 1))
    shutil.copy(second, first)
    read = store.read(folder)
    assert sorted(read.runs[row.id]) == [1, 2]
    (said,) = read.set_aside
    assert said == f"{first.relative_to(folder)} is the result of another repeat: of 1. Run it again."
    assert history.points(tmp_path, ["epoch_seconds"])[1] == [f"{folder}: {said}"]


@pytest.mark.parametrize("content", [b"[" * 100_000, b"1" * 5_000, b"", b"\xff"])
def test_a_plan_that_is_no_json_is_refused_in_words(content: bytes, tmp_path: Path) -> None:
    (tmp_path / store.PLAN_FILE).write_bytes(content)
    with pytest.raises(errors.FolderError, match="is not a whole comparison"):
        store.read(tmp_path)

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from compare.core import alpha_spending, errors, wording
from compare.core.statistics import Ratio, unpaired_ratio
from compare.execution import store
from compare.execution.store import StoredComparison
from compare.judgement.run_figures import epoch_seconds
from compare.reporting import side_by_side
from compare.reporting.comparison_report import read
from compare.reporting.document import Report
from tests.support import comparisons
from tests.support.command_line import convtwins


def faster(stored: StoredComparison, times: float, **comparison: Any) -> StoredComparison:
    """The same comparison, its epochs so many times as fast."""
    runs = {
        row_id: {repeat: comparisons.paced(run, 1 / times) for repeat, run in repeats.items()}
        for row_id, repeats in stored.runs.items()
    }
    return stored.model_copy(update={"runs": runs, "comparison": stored.comparison.model_copy(update=comparison)})


def pair_of(a: Path, b: Path) -> Report:
    return side_by_side.report((a, b), (read(a), read(b)), None)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_two_folders_of_one_machine_are_matched_row_by_row_and_left_untouched(tmp_path: Path) -> None:
    a = comparisons.stored_in(comparisons.repeated(), tmp_path / "a")
    b = comparisons.stored_in(faster(comparisons.repeated(), 2.0, versions={"pytorch": {"torch": "3.0"}}), tmp_path / "b")
    before = files(tmp_path)
    done = convtwins("report", a, b, "--json")
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert files(tmp_path) == before
    seconds = {row["run"]: row for row in printed["tables"][0]["rows"] if row["contestant"] == "pytorch"}
    assert seconds["serial, 2 cores"]["epoch_seconds_a"]["median"] == 4.0
    assert seconds["serial, 2 cores"]["epoch_seconds_b"]["median"] == 2.0
    assert seconds["serial, 2 cores"]["ratio"]["value"] == pytest.approx(2.0)
    said = printed["sentences"]["Which is faster?"]
    assert said[0] == "pytorch serial, 2 cores: B is 2.00 (1.95 to 2.05) times as fast as A (p < 0.001 among 4 comparisons)."
    assert "not paired" in said[-1]
    assert printed["sentences"]["Is it the same training?"] == [
        "The first losses of A and B are the same numbers in all 4 rows."
    ]
    assert {"what": "pytorch", "a": "torch 2.0", "b": "torch 3.0"} in printed["differences"]


@pytest.mark.parametrize("side", ["a", "b"])
def test_a_verdict_on_rows_whose_proof_failed_says_so(tmp_path: Path, side: str) -> None:
    stored = {"a": comparisons.repeated(), "b": faster(comparisons.repeated(), 2.0)}
    failed = {row.id: "not proved" for row in stored[side].comparison.rows if row.contestant == "pytorch"}
    proof = store.ProofRecord(verdict="not proved", sentence="rung 5 failed", row_verdicts=failed)
    stored[side] = stored[side].model_copy(update={"comparison": stored[side].comparison.model_copy(update={"proof": proof})})
    report = pair_of(*(comparisons.stored_in(each, tmp_path / name) for name, each in stored.items()))
    said = dict(report.findings)["Which is faster?"]
    verdicts = [sentence for sentence in said if "times as fast" in sentence]
    assert len(verdicts) == 4
    for sentence in verdicts:
        assert ("The same training is not proved." in sentence) is sentence.startswith("pytorch")


def test_where_machines_differ_nothing_is_said_about_speed(tmp_path: Path) -> None:
    a = comparisons.stored_in(comparisons.repeated(), tmp_path / "a")
    b = comparisons.stored_in(faster(comparisons.repeated(), 2.0, machine={"processor": "Another CPU"}), tmp_path / "b")
    done = convtwins("report", a, b, "--full")
    assert done.exit_code == 0 and "times as fast" not in done.stdout
    assert re.search(r"pytorch +serial, 2 cores +4\.000 \(3\.960 +2\.000 \(1\.980 +- ", done.stdout), done.stdout
    assert "nothing is said about speed" in done.stdout.replace("\n", " ")
    assert re.search(r"processor +Some CPU +Another CPU", done.stdout)


def test_machines_of_one_kind_are_two_machines_and_a_folder_of_one_is_not_gone_on_with_on_the_other(tmp_path: Path) -> None:
    here, there = ({"processor": "Some CPU", "gpus": ["H100"], "host": host} for host in "ab")
    plan = comparisons.repeated().comparison.model_copy(update={"machine": here})
    a = comparisons.stored_in(comparisons.repeated().model_copy(update={"comparison": plan}), tmp_path / "a")
    b = comparisons.stored_in(faster(comparisons.repeated(), 2.0, machine=there), tmp_path / "b")
    assert not pair_of(a, b).values["same_machine"]
    with pytest.raises(errors.FolderError, match="host was a there and is b now"):
        store.merge_with_stored(a, plan.model_copy(update={"machine": there}))


@pytest.mark.parametrize(
    ("fields", "data_hash", "said"),
    [
        ({"data": {"limit": 100}}, "of 100", "data.limit"),
        ({"data": {"image_size": 16}}, "smaller", "data.image_size"),
        ({"global_batch_size": 128}, "data", "global_batch_size"),
        ({"precision": "float64"}, "data", "precision"),
        ({"optimizer": {"name": "adam"}}, "data", "optimizer.name"),
        ({}, "other", "content of the data"),
    ],
)
def test_epochs_of_other_work_have_no_ratio_and_no_verdict(
    tmp_path: Path, fields: dict[str, Any], data_hash: str, said: str
) -> None:
    a = comparisons.stored_in(comparisons.repeated(), tmp_path / "a")
    b = comparisons.stored_in(comparisons.other_work(faster(comparisons.repeated(), 2.0), data_hash, **fields), tmp_path / "b")
    pair = pair_of(a, b)
    assert dict(pair.findings)["Which is faster?"][0] == (
        f"pytorch serial, 2 cores: no verdict: epochs of A and B are not the same work (other {said}). An image took 6.25 ms "
        "in A and 3.12 ms in B."
    )
    assert "times as fast" not in str(pair.findings) and all(row["ratio"] is None for row in pair.tables[0].rows)


def test_the_same_data_in_another_place_and_another_length_are_compared(tmp_path: Path) -> None:
    a = comparisons.stored_in(comparisons.repeated(), tmp_path / "a")
    elsewhere = {"data": {"source": "/elsewhere/digits"}, "epochs": 9, "paths": {"cache_dir": "/elsewhere"}}
    elsewhere |= {"framework_options": {"pytorch_switch": "on"}}  # which is what one may want to compare
    b = comparisons.stored_in(comparisons.other_work(comparisons.repeated(), "data", **elsewhere), tmp_path / "b")
    said = dict(pair_of(a, b).findings)["Which is faster?"]
    assert len(said) == 6 and "times as fast" in said[0]


def test_rows_on_other_devices_have_no_verdict(tmp_path: Path) -> None:
    theirs = comparisons.repeated()
    for repeats in theirs.runs.values():
        repeats.update({repeat: run.model_copy(update={"device": "cuda"}) for repeat, run in repeats.items()})
    a, b = comparisons.stored_in(comparisons.repeated(), tmp_path / "a"), comparisons.stored_in(theirs, tmp_path / "b")
    said = dict(pair_of(a, b).findings)["Which is faster?"]
    assert len(said) == 4 and all("not the same work (other device)" in sentence for sentence in said)


def test_one_low_p_among_many_rows_names_no_faster_one(tmp_path: Path) -> None:
    """Of twelve rows of equal speed, each judged alone, one is called faster in four reports of ten."""
    theirs = comparisons.repeated()
    row = theirs.comparison.rows[0]
    theirs.runs[row.id] = {
        repeat: comparisons.good(row, 1.03 * epoch_seconds(run), repeat) for repeat, run in theirs.runs[row.id].items()
    }
    a, b = comparisons.stored_in(comparisons.repeated(), tmp_path / "a"), comparisons.stored_in(theirs, tmp_path / "b")
    said = dict(pair_of(a, b).findings)["Which is faster?"]
    assert said[0] == (
        "pytorch serial, 2 cores: no difference shown; B is 0.971 (0.946 to 0.996) times as fast as A (p = 0.118 among 4 "
        "comparisons; 0.029 by itself)."
    )
    assert said[4].startswith("4 comparisons make one family") and "Welch's t-tests" in said[4]


def test_out_says_where_and_never_into_one_of_the_two(tmp_path: Path) -> None:
    a, b = (comparisons.stored_in(comparisons.repeated(2), tmp_path / name) for name in "ab")
    out = tmp_path / "out"
    for _ in range(2):  # its own files may be replaced
        done = convtwins("report", a, b, "--out", out)
        assert done.exit_code == 0 and f"{out}/beside.html" in done.stdout
    names = {
        f"tables/beside_{name}.{form}"
        for name in ("seconds", "scores", "states", "differences")
        for form in ("md", "csv", "tex")
    }
    assert files(out).keys() == {"beside.html", "beside.md", "beside.json"} | names
    assert "too few repeats to tell" in (out / "beside.html").read_text("utf-8")
    refused = convtwins("report", a, b, "--out", b)
    assert refused.exit_code == 2 and "Choose an empty folder" in refused.stderr


def test_what_disturbed_one_of_them_and_another_first_loss_are_said(tmp_path: Path) -> None:
    ours, theirs = comparisons.repeated(), comparisons.repeated()
    row = theirs.comparison.rows[0]
    for repeat, run in theirs.runs[row.id].items():
        busy = {"cores_of_others": 1.5, "machine": {"logical_cores": 2}, "first_step_loss": 2.3000023}
        theirs.runs[row.id][repeat] = run.model_copy(update=busy)
    a, b = comparisons.stored_in(ours, tmp_path / "a"), comparisons.stored_in(theirs, tmp_path / "b")
    said = dict(pair_of(a, b).findings)
    assert said["Which is faster?"][0] == (
        "pytorch serial, 2 cores: no finding. Other work disturbed these runs. Make them again on an idle machine: "
        f"{wording.command('run', '--resume', str(b), '--again', 'disturbed')}."
    )
    assert "no finding" not in said["Which is faster?"][1]
    (times,) = (table for table in pair_of(a, b).tables if table.name == "beside_seconds")
    assert [row["ratio"] == "disturbed" for row in times.rows] == [True, False, False, False]
    assert said["Is it the same training?"] == ["pytorch serial, 2 cores: the first losses differ by 1.0e-06 (relative)."]
    assert [caution[:2] for caution in said["Cautions"]] == ["B:"]


def test_rows_of_one_alone_and_fields_that_differ_are_named(tmp_path: Path) -> None:
    ours, theirs = comparisons.repeated(1), comparisons.repeated(1)
    changed = [
        row.model_copy(update={"spec": row.spec.with_fields(epochs=9)}) for row in theirs.comparison.rows if "serial" in row.id
    ]
    runs = {row.id: {0: comparisons.of_spec(theirs.runs[row.id][0], row.spec)} for row in changed}
    theirs = StoredComparison(comparison=theirs.comparison.model_copy(update={"rows": changed}), runs=runs, set_aside=[])
    a, b = comparisons.stored_in(ours, tmp_path / "a"), comparisons.stored_in(theirs, tmp_path / "b")
    pair = pair_of(a, b)
    assert dict(pair.findings)["Rows without a counterpart"] == [
        "Only in A: pytorch-data_parallel-2, tensorflow-data_parallel-2."
    ]
    assert {"what": "epochs", "a": "2", "b": "9"} in pair.values["differences"]


def test_a_row_that_was_run_in_one_alone_is_said_to_be_so(tmp_path: Path) -> None:
    theirs = comparisons.repeated()
    missing = next(row for row in theirs.comparison.rows if "data_parallel" in row.id)
    theirs.runs[missing.id].clear()
    a, b = comparisons.stored_in(comparisons.repeated(), tmp_path / "a"), comparisons.stored_in(theirs, tmp_path / "b")
    sentences = dict(pair_of(a, b).findings)
    assert sentences["Rows without a counterpart"] == [f"Not run in B: {missing.id}."]
    assert not any("device" in sentence for sentence in sentences["Which is faster?"])


def test_two_without_a_row_in_common_are_refused(tmp_path: Path) -> None:
    a, b = (
        comparisons.stored_in(comparisons.repeated(1), tmp_path / "a"),
        comparisons.stored_in(comparisons.input_only(), tmp_path / "b"),
    )
    done = convtwins("report", a, b)
    assert done.exit_code == 2 and "no row in common" in done.stderr


def test_one_report_can_be_written_elsewhere_but_over_no_other_comparison(tmp_path: Path) -> None:
    a, b = (comparisons.stored_in(comparisons.repeated(1), tmp_path / name) for name in "ab")
    before = files(a)
    assert convtwins("report", a, "--out", tmp_path / "out").exit_code == 0
    assert files(a) == before and (tmp_path / "out" / "report.html").exists()
    assert f"convtwins report {a}" in (tmp_path / "out" / "report.md").read_text("utf-8").replace("\\", "")
    refused = convtwins("report", a, "--out", b)
    assert refused.exit_code == 2 and "holds another comparison" in refused.stderr
    assert not (b / "report.html").exists() and store.PLAN_FILE in files(b)
    assert convtwins("report", a, "--out", tmp_path / "out").exit_code == 0
    assert f"convtwins report {a} --out {tmp_path / 'out'}" in (tmp_path / "out" / "report.md").read_text("utf-8").replace(
        "\\", ""
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    foreign = convtwins("report", a, "--out", tmp_path / "mine")
    assert foreign.exit_code == 2 and "holds files that belong to no report (letter.txt)" in foreign.stderr
    assert files(tmp_path / "mine").keys() == {"letter.txt"}


def test_a_comparison_beside_itself_is_refused(tmp_path: Path) -> None:
    a = comparisons.stored_in(comparisons.repeated(1), tmp_path / "a")
    done = convtwins("report", a, tmp_path / "." / "a")
    assert done.exit_code == 2 and f"needs two folders. Received: {a} twice." in done.stderr


def test_an_unpaired_ratio_has_the_interval_of_welch_at_the_level_of_its_looks() -> None:
    first, second = [4.0, 4.4, 3.8, 4.1, 4.3], [2.0, 2.2, 1.7]
    ratio = unpaired_ratio(first, second)
    welch = stats.ttest_ind(np.log(first), np.log(second), equal_var=False)
    expected = welch.confidence_interval(1.0 - alpha_spending.level(3, 0.05))
    assert ratio is not None and ratio.n == 3 and ratio.p == pytest.approx(alpha_spending.corrected_p(welch.pvalue, 3))
    assert (ratio.low, ratio.high) == pytest.approx((np.exp(expected.low), np.exp(expected.high)))


@pytest.mark.parametrize(("first", "second"), [([], [1.0]), ([float("nan")], [1.0]), ([0.0], [1.0])])
def test_no_values_have_no_ratio(first: list[float], second: list[float]) -> None:
    assert unpaired_ratio(first, second) is None


def test_one_value_has_a_ratio_without_an_interval_and_equal_ones_an_interval_of_no_width() -> None:
    assert unpaired_ratio([4.0], [2.0, 2.0]) == Ratio(value=2.0, low=None, high=None, n=1)
    ratio = unpaired_ratio([4.0] * 3, [2.0] * 3)
    assert ratio is not None and ratio.low == pytest.approx(2.0) == ratio.high


def test_wild_repeats_have_a_wide_interval_and_no_overflow() -> None:
    ratio = unpaired_ratio([1e-200, 1e200, 1.0], [1.0, 1e100, 1.0])
    assert ratio is not None and ratio.high is not None and 1e200 < ratio.high < math.inf

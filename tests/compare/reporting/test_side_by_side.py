import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import stats
from syrupy.assertion import SnapshotAssertion

from common.artifacts.schema import EpochRecord, Slice
from compare.cli import wording
from compare.cli.errors import FolderError
from compare.judgement.run_figures import epoch_seconds
from compare.reporting import side_by_side
from compare.reporting.comparison_report import read
from compare.reporting.document import Report
from compare.results import store
from compare.results.store import StoredComparison
from compare.results.workspace import COMPARISON
from compare.statistics import alpha_spending
from compare.statistics.statistics import Ratio, unpaired_ratio
from tests.support import comparisons, refusals, trees
from tests.support.command_line import convtwins, convtwins_json
from tests.support.comparisons import repeated, stored_in, with_fields, with_plan, with_runs
from tests.support.refusals import refused


def faster(stored: StoredComparison, times: float, **plan: Any) -> StoredComparison:
    """The same comparison, its epochs so many times as fast, with other fields in its plan."""
    runs = {
        row_id: {repeat: comparisons.paced(run, 1 / times) for repeat, run in runs.items()}
        for row_id, runs in stored.runs.items()
    }
    return with_plan(with_fields(stored, runs=runs), **plan)


class Pair(NamedTuple):
    report: Report
    a: Path
    b: Path

    @property
    def verdicts(self) -> list[str]:
        return dict(self.report.findings)["Which is faster?"]


def pair(tmp_path: Path, b: StoredComparison, a: StoredComparison | None = None) -> Pair:
    """Both are stored, and reported side by side. None: `a` is `repeated`."""
    folders = stored_in(repeated() if a is None else a, tmp_path / "a"), stored_in(b, tmp_path / "b")
    return Pair(side_by_side.report(folders, (read(folders[0]), read(folders[1])), None), *folders)


def test_two_folders_of_one_machine_are_matched_row_by_row_and_left_untouched(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    a = stored_in(repeated(), tmp_path / "a")
    b = stored_in(faster(repeated(), 2.0, versions={"pytorch": {"torch": "3.0"}}), tmp_path / "b")
    before = trees.read(tmp_path)
    printed = convtwins_json("report", a, b)
    assert trees.read(tmp_path) == before
    seconds = {row["run"]: row for row in printed["tables"][0]["rows"] if row["contestant"] == "pytorch"}
    assert seconds["serial, 2 cores"]["epoch_seconds_a"]["median"] == 4.0
    assert seconds["serial, 2 cores"]["epoch_seconds_b"]["median"] == 2.0
    assert seconds["serial, 2 cores"]["ratio"]["value"] == pytest.approx(2.0)
    assert {"what": "pytorch", "a": "torch 2.0", "b": "torch 3.0"} in printed["differences"]
    assert [printed["sentences"][name] for name in ("Which is faster?", "Is it the same training?")] == snapshot


@pytest.mark.parametrize("side", ["a", "b"])
def test_a_verdict_on_rows_whose_proof_failed_says_so(tmp_path: Path, side: str) -> None:
    stored = {"a": repeated(), "b": faster(repeated(), 2.0)}
    failed = {row.id: "not proved" for row in stored[side].comparison.rows if row.contestant == "pytorch"}
    proof = store.ProofRecord(verdict="not proved", sentence="rung 5 failed", row_verdicts=failed)
    stored[side] = with_plan(stored[side], proof=proof)
    verdicts = [sentence for sentence in pair(tmp_path, **stored).verdicts if "times as fast" in sentence]
    assert len(verdicts) == 4
    for sentence in verdicts:
        assert ("not proved" in sentence) is sentence.startswith("pytorch")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_doubt_about_times_is_a_sentence_of_its_own(tmp_path: Path, device: str) -> None:
    late = with_runs(repeated(), clock_caution="the last losses came late", device=device)
    for sentence in (sentence for sentence in pair(tmp_path, late).verdicts if sentence.startswith("pytorch")):
        assert ". Its losses came after the clock had stopped" in sentence
        assert ("no verdict" in sentence) is (device == "cuda")


def test_where_machines_differ_nothing_is_said_about_speed(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    found = pair(tmp_path, faster(repeated(), 2.0, machine={"processor": "Another CPU"}))
    assert "times as fast" not in " ".join(found.verdicts) and found.verdicts == snapshot
    done = convtwins("report", found.a, found.b, "--full").succeeded()
    assert "times as fast" not in done.stdout
    assert re.search(r"pytorch +serial, 2 cores +4\.000 \(3\.960 +2\.000 \(1\.980 +- ", done.stdout), done.stdout
    assert re.search(r"processor +Some CPU +Another CPU", done.stdout)


def test_machines_of_one_kind_are_two_machines_and_a_folder_of_one_is_not_gone_on_with_on_the_other(tmp_path: Path) -> None:
    here, there = ({"processor": "Some CPU", "gpus": ["H100"], "host": host} for host in ("first", "second"))
    ours = with_plan(repeated(), machine=here)
    found = pair(tmp_path, faster(repeated(), 2.0, machine=there), ours)
    assert not found.report.values["same_machine"]
    with refused(FolderError, names=("host", "first", "second")):
        COMPARISON.resume(found.a, with_plan(ours, machine=there).comparison)


@pytest.mark.parametrize(
    ("fields", "data_hash", "other"),
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
    tmp_path: Path, fields: dict[str, Any], data_hash: str, other: str
) -> None:
    found = pair(tmp_path, comparisons.other_work(faster(repeated(), 2.0), data_hash, **fields))
    for named in (f"other {other})", "no verdict", "6.25 ms", "3.12 ms"):
        assert named in found.verdicts[0]
    assert "times as fast" not in str(found.report.findings)
    assert all(row["ratio"] is None for row in found.report.tables[0].rows)


def test_the_same_data_in_another_place_and_another_length_are_compared(tmp_path: Path) -> None:
    elsewhere = {"data": {"source": "/elsewhere/digits"}, "epochs": 9, "paths": {"cache_dir": "/elsewhere"}}
    elsewhere |= {"framework_options": {"pytorch_switch": "on"}}  # which is what one may want to compare
    verdicts = pair(tmp_path, comparisons.other_work(repeated(), "data", **elsewhere)).verdicts
    assert len(verdicts) == 6 and "times as fast" in verdicts[0]


def in_one_turn(epoch: EpochRecord) -> EpochRecord:
    """The same epoch, all of its timed steps in one turn."""
    turn = Slice(
        first_step=1 + epoch.steps - epoch.timed_steps,
        steps=epoch.timed_steps,
        seconds=epoch.timed_seconds,
        taken_cpu_seconds=0.0,
        stolen_cpu_seconds=0.0,
    )
    return epoch.model_copy(update={"slices": [turn]})


def test_rows_that_took_turns_in_one_of_the_two_have_no_verdict(tmp_path: Path) -> None:
    runs = {
        row_id: {repeat: with_fields(run, epochs=list(map(in_one_turn, run.epochs))) for repeat, run in by_repeat.items()}
        for row_id, by_repeat in repeated().runs.items()
    }
    verdicts = pair(tmp_path, with_fields(repeated(), runs=runs)).verdicts
    assert len(verdicts) == 4 and all("no verdict" in verdict and "(other turns)" in verdict for verdict in verdicts)


def test_rows_on_other_devices_have_no_verdict(tmp_path: Path) -> None:
    verdicts = pair(tmp_path, with_runs(repeated(), device="cuda")).verdicts
    assert len(verdicts) == 4 and all("no verdict" in verdict and "(other device)" in verdict for verdict in verdicts)


def test_one_low_p_among_many_rows_names_no_faster_one(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """Of twelve rows of equal speed, each judged alone, one is called faster in four reports of ten."""
    theirs = repeated()
    row = theirs.comparison.rows[0]
    theirs.runs[row.id] = {
        repeat: comparisons.good(row, 1.03 * epoch_seconds(run), repeat) for repeat, run in theirs.runs[row.id].items()
    }
    verdicts = pair(tmp_path, theirs).verdicts
    for figure in ("no difference shown", "p = 0.118 among 4", "0.029 by itself"):
        assert figure in verdicts[0]
    assert verdicts == snapshot


def test_out_says_where_and_never_into_one_of_the_two(tmp_path: Path) -> None:
    a, b = (stored_in(repeated(2), tmp_path / name) for name in "ab")
    out = tmp_path / "out"
    for _ in range(2):  # its own files may be replaced
        assert f"{out}/beside.html" in convtwins("report", a, b, "--out", out).succeeded().stdout
    names = {
        f"tables/beside_{name}.{form}"
        for name in ("seconds", "scores", "states", "differences")
        for form in ("md", "csv", "tex")
    }
    assert trees.read(out).keys() == {"beside.html", "beside.md", "beside.json"} | names
    assert "too few repeats to tell" in (out / "beside.html").read_text("utf-8")
    refusals.check_ended(convtwins("report", a, b, "--out", b), field=str(b), fix="empty folder")


def test_what_disturbed_one_of_them_and_another_first_loss_are_said(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    busy = {"cores_of_others": 1.5, "machine": {"logical_cores": 2}, "first_step_loss": 2.3000023}
    found = pair(tmp_path, with_runs(repeated(), "pytorch-serial-2", **busy))
    again = wording.command("run", "--resume", str(found.b), "--again", "disturbed")
    assert ["not known" in verdict for verdict in found.verdicts[:2]] == [True, False] and again in found.verdicts[0]
    (times,) = (table for table in found.report.tables if table.name == "beside_seconds")
    assert [row["ratio"] == "disturbed" for row in times.rows] == [True, False, False, False]
    findings = dict(found.report.findings)
    assert findings["Is it the same training?"] == snapshot
    assert [caution[:2] for caution in findings["Cautions"]] == ["B:"]


def test_rows_of_one_alone_and_fields_that_differ_are_named(tmp_path: Path) -> None:
    theirs = repeated(1)
    serial = [with_fields(row, spec=row.spec.with_fields(epochs=9)) for row in theirs.comparison.rows if "serial" in row.id]
    runs = {row.id: {0: comparisons.of_spec(theirs.runs[row.id][0], row.spec)} for row in serial}
    report = pair(tmp_path, with_fields(with_plan(theirs, rows=serial), runs=runs), repeated(1)).report
    (sentence,) = dict(report.findings)["Rows without a counterpart"]
    assert sentence == "Only in A: pytorch-data_parallel-2, tensorflow-data_parallel-2."
    assert {"what": "epochs", "a": "2", "b": "9"} in report.values["differences"]


def test_a_row_that_was_run_in_one_alone_is_said_to_be_so(tmp_path: Path) -> None:
    theirs = repeated()
    theirs.runs["pytorch-data_parallel-2"].clear()
    found = pair(tmp_path, theirs)
    assert dict(found.report.findings)["Rows without a counterpart"] == ["Not run in B: pytorch-data_parallel-2."]
    assert not any("device" in verdict for verdict in found.verdicts)


@pytest.mark.parametrize("same_ids", [True, False])
def test_two_inputs_are_compared_though_their_rows_have_other_ids(tmp_path: Path, same_ids: bool) -> None:
    a = repeated()
    fed = {
        row.id: with_fields(
            row, id=row.id if same_ids else f"{row.id}-2workers", spec=row.spec.with_fields(input="workers", workers=2)
        )
        for row in a.comparison.rows
    }
    runs = {
        row.id: {repeat: comparisons.of_spec(comparisons.paced(run, 0.5), row.spec) for repeat, run in a.runs[before].items()}
        for before, row in fed.items()
    }
    b = with_plan(with_fields(a, runs=runs), rows=list(fed.values()))
    made = pair(tmp_path, b)
    sentences = [verdict for verdict in made.verdicts if "times as fast" in verdict]
    assert len(sentences) == 4 and all("B is 2.0" in sentence and "2 workers in B" in sentence for sentence in sentences)
    assert "Rows without a counterpart" not in dict(made.report.findings)


def test_two_without_a_row_in_common_and_one_beside_itself_are_refused(tmp_path: Path) -> None:
    a, b = stored_in(repeated(1), tmp_path / "a"), stored_in(comparisons.input_only(), tmp_path / "b")
    refusals.check_ended(convtwins("report", a, b), field="row")
    refusals.check_ended(convtwins("report", a, tmp_path / "." / "a"), received=a)


def test_one_report_can_be_written_elsewhere_but_over_no_other_comparison(tmp_path: Path) -> None:
    a, b = (stored_in(repeated(1), tmp_path / name) for name in "ab")
    out, before = tmp_path / "out", trees.read(a)
    for again in (f"convtwins report {a}", f"convtwins report {a} --out {out}"):
        convtwins("report", a, "--out", out).succeeded()
        assert again in (out / "report.md").read_text("utf-8").replace("\\", "")
    assert trees.read(a) == before and (out / "report.html").exists()
    refusals.check_ended(convtwins("report", a, "--out", b), field=str(b))
    assert not (b / "report.html").exists() and store.PLAN_FILE in trees.read(b)
    mine = trees.write(tmp_path / "mine", {"letter.txt": ""})
    refusals.check_ended(convtwins("report", a, "--out", mine), field="letter.txt")
    assert trees.read(mine).keys() == {"letter.txt"}


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

"""Whole comparisons of fake twins, as a user would start them."""

import json
import os
import re
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from common.artifacts import results
from common.machine.interference import Meter, Usage
from compare.cli import errors
from compare.cli.interrupt import Interrupted
from compare.comparison import comparison_plan, executor, run
from compare.judgement import cautions
from compare.judgement.statement_words import sentences
from compare.proof import certificate, ladder, spot_checks
from compare.reporting import comparison_report, plots
from compare.results import store, workspace
from compare.results.workspace import COMPARISON
from compare.running import launch, run_settings
from compare.running.comparison_settings import ComparisonSettings
from compare.running.twins import Twins
from tests.compare.conftest import behave, write_empty
from tests.compare.twins import fake
from tests.support import comparisons, processes, trees
from tests.support.command_line import Ended, convtwins
from tests.support.refusals import check_ended

PROVED = ("run", "--frameworks", "left,right", "--cores", "2", "--modes", "serial")
QUICK = (*PROVED, "--no-proof")


def compare_quick(out: Path, *arguments: str) -> Ended:
    return convtwins(*QUICK, "--out", out, *arguments)


@pytest.fixture
def finished(fake_twins: pytest.MonkeyPatch, kept: Path, tmp_path: Path) -> Path:
    """What `compare_quick` leaves in a folder: four rows that went well, once each."""
    if not kept.exists():
        compare_quick(kept).succeeded()
    return shutil.copytree(kept, tmp_path / "out")


def rung(number: int = 5, aspect: str = "losses", status: str = "passed", **of: Any) -> certificate.Rung:
    name = f"{number} {aspect}"
    values = {"model": "simple_cnn", "optimizer": "sgd", "precision": "float64", "steps": 50, "judged_steps": 50, "step": 49}
    judged = {"max_relative_difference": 3e-15, "tolerance": 1e-12, "reason": "rounding"}
    return certificate.Rung.model_validate(
        {"name": name, "number": number, "aspect": aspect, "status": status, **values, **judged, **of}
    )


class Ladder:
    """The proof that stands in for the ladder's, which tests/parity climbs: it takes a minute, and other twins."""

    def __init__(self) -> None:
        self.proof = certificate.Proof(rungs=[rung()], seconds=1.0)
        self.error: Exception | None = None

    def becomes(self, **fields: Any) -> None:
        self.proof = comparisons.with_fields(self.proof, **fields)

    def __call__(self, *_: object, progress: Callable[[str], None], **__: object) -> certificate.Proof:
        progress("rung 5")
        if self.error is not None:
            raise self.error
        return self.proof


@pytest.fixture
def proof(fake_twins: pytest.MonkeyPatch) -> Ladder:
    stand_in = Ladder()
    fake_twins.setattr(ladder, "prove", stand_in)
    return stand_in


def stored_proof(out: Path) -> store.ProofRecord:
    proof = store.read_plan(out).proof
    assert proof is not None
    return proof


@pytest.mark.drawn
def test_a_comparison_runs_every_row_and_writes_everything(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convtwins("run", "--frameworks", "left,right", "--cores", "2", "--no-proof", "--live", "--out", out).succeeded()
    rows = [row.id for row in store.read_plan(out).rows]
    names = ("serial-1core", "serial-2cores", "data_parallel-2replicas", "multi_process-2replicas")
    assert rows == [f"{framework}-{name}" for framework in ("left", "right") for name in names]
    for row in rows:
        files = {path.name for path in (out / "runs" / f"{row}-r0").iterdir()}
        assert files == {"spec.json", "events.jsonl", "result.json", "log.txt"}
    names = ("loss", "accuracy", "seconds_per_epoch", "speedup", "efficiency", "phases")
    drawn = {f"{name}.{suffix}" for name in names for suffix in ("png", "svg")}
    drawn |= {f"{name}_log.svg" for name in ("loss", "seconds_per_epoch", "speedup")}
    assert {path.name for path in (out / "plots").iterdir()} == drawn
    assert (out / "report.md").exists() and (out / "report.html").exists()
    assert all((out / "tables" / f"comparison.{suffix}").exists() for suffix in ("csv", "md", "tex"))
    live = (out / "live.html").read_text("utf-8")
    assert 'href="report.html"' in live and 'http-equiv="refresh"' not in live
    assert live.count("<polyline") == 2 * 8 and all(row in live for row in rows)


def test_json_on_stdout_equals_results_json_and_a_line_for_each_run_goes_to_a_pipe(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = compare_quick(tmp_path / "out", "--json").succeeded()
    assert done.json == json.loads((tmp_path / "out" / "results.json").read_text())
    assert [table["name"] for table in done.json["tables"]][:4] == ["comparison", "accuracy", "seconds", "speedup"]
    assert done.json["exit_code"] == 0
    lines = [re.sub(r"\d:\d\d", "M:SS", line) for line in done.progress]
    rows = [f"{name}-serial-{cores}" for cores in ("1core", "2cores") for name in ("left", "right")]
    left = ["; 3 left, about M:SS", "; 2 left, about M:SS", "; 1 left, about M:SS", ""]
    assert lines == [f"{row}: M:SS{more}." for row, more in zip(rows, left, strict=True)]


def test_inputs_are_rows_like_modes_and_get_verdicts(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = (*QUICK[:-1], "--no-one-core", "--input", "inline,workers,dask", "--workers", "1,2", "--repeats", "5", "--no-proof")
    done = convtwins(*words, "--out", tmp_path / "out").succeeded()
    judged = comparison_report.read(tmp_path / "out")
    inputs = {statement.rows: statement for statement in judged.findings.inputs if statement.kind == "input_compared"}
    kinds = ("1workers", "2workers", "1dask", "2dask")
    prefixes = [f"{name}-serial-2cores" for name in ("left", "right")]
    assert set(inputs) == {(f"{prefix}-{kind}", f"{prefix}-inline") for prefix in prefixes for kind in kinds}
    names = {f"{row} against {base}" for row, base in inputs}
    assert names <= {verdict.name for verdict in judged.findings.verdicts}
    assert len(judged.findings.verdicts) == len(names) + 5  # and one for each input of the two frameworks
    assert "  Input " in done.stdout and "inline" in done.stdout
    assert any(title == "Which inputs pay?" for title, _ in comparison_report.sections(judged))


@pytest.mark.parametrize(
    ("fields", "are_taken"),
    [
        ({"part": "input"}, True),
        ({"input": "workers", "workers": 2}, True),
        ({"part": "input", "input": "workers", "workers": 2}, False),
    ],
    ids=["inline alone", "workers and training", "workers alone"],
)
def test_input_workers_alone_take_no_turns(fields: dict[str, Any], *, are_taken: bool) -> None:
    """The batches that they make ahead are ready in a turn, or are made after its last one."""
    rows = [comparisons.row(name) for name in ("pytorch", "tensorflow")]
    rows = [row.model_copy(update={"spec": row.spec.with_fields(**fields)}) for row in rows]
    assert comparisons.comparison(rows).takes_turns is are_taken


def test_turns_of_input_workers_alone_are_refused(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = (*QUICK[:-1], "--no-one-core", "--input-only", "--workers", "2", "--turns", "--no-proof", "--out", tmp_path / "out")
    check_ended(convtwins(*words), received="--turns", names=["--input-only", "batches ahead"])


@pytest.mark.parametrize(("batch", "is_larger"), [pytest.param(64, False, marks=pytest.mark.slow), (5000, True)])
def test_a_batch_that_is_larger_than_the_training_split_is_told_before_anything_is_trained(
    batch: int, is_larger: bool, fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = compare_quick(tmp_path / "out", "--batch-size", str(batch))
    caution = " ".join(comparison_plan.early_cautions(store.read_plan(tmp_path / "out")))
    assert bool(caution) is is_larger and ("5,000" in caution and "1,258" in caution) is is_larger
    rehearsed = compare_quick(tmp_path / "rehearsed", "--batch-size", str(batch), "--dry-run")
    assert done.stderr.startswith(caution) and caution in " ".join(rehearsed.stderr.split())


@pytest.mark.parametrize(
    ("seconds", "own", "others", "cores", "share"),
    [
        (10.0, 20.0, 12.0, 4, "30 %"),
        (10.0, 20.0, 12.0, 2, None),  # two of the four cores are free for it
        (10.0, 20.0, 0.4, 4, None),
        (0.2, 0.0, 0.8, 4, None),  # too short to tell
    ],
)
def test_a_busy_machine_is_named_before_the_first_run(
    seconds: float, own: float, others: float, cores: int, share: str | None
) -> None:
    usage = Usage(wall_seconds=seconds, process_cpu_seconds=own, machine_cpu_seconds=own + others)
    readings = iter([Usage(), usage])
    said = comparison_plan.busy_caution(Meter(read=lambda cpus: next(readings)), cores, {"logical_cores": 4})
    assert [share in sentence and "4 cores" in sentence for sentence in said if share] == [True] * bool(share)
    assert bool(said) == bool(share)


def test_the_live_page_of_a_comparison_that_breaks_off_loads_itself_no_more(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_twins.setattr(executor, "executing", None)  # a defect of the command itself
    assert isinstance(compare_quick(tmp_path / "out", "--live").exception, TypeError)
    page = (tmp_path / "out" / "live.html").read_text("utf-8")
    assert "Stopped by an error." in page and 'http-equiv="refresh"' not in page


DEATHS = {
    "crash": ("failed", "exit code 1: RuntimeError: no more = memory", 1),
    "kill": ("killed", "killed by SIGKILL", 1),
    "silent": ("failed", "ended without a result", 2),
    "torn": ("failed", "is not a whole result", 2),
    "diverge": ("diverged", "loss is nan at epoch 2, step 1", 1),
}
"""Behaviour of a fake twin: the status of its row, words of the reason, and epochs done."""


@pytest.mark.parametrize(("first", "last"), [("crash", "kill"), ("silent", "torn"), ("diverge", None)])
def test_a_run_that_dies_becomes_a_row_and_the_others_finish(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, first: str, last: str | None
) -> None:
    dying = {"left-serial-1core": first} | ({"right-serial-2cores": last} if last else {})
    behave(fake_twins, left__serial__1=first, **({"right__serial__2": last} if last else {}))
    done = compare_quick(tmp_path / "out", "--json")
    assert done.exit_code == 1
    rows = {row["id"]: row for row in done.json["summaries"]}
    assert len(rows) == 4
    for name, row in rows.items():
        status, reason, epochs = DEATHS[dying[name]] if name in dying else ("ok", "", 2)
        assert (row["status"], row["epochs_done"]) == (status, epochs)
        assert reason in (row["reason"] or "")
    assert convtwins("report", tmp_path / "out").exit_code == 1


def test_a_mode_that_the_machine_cannot_do_is_a_row_that_is_not_run(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    behave(fake_twins, left__data_parallel="unavailable")
    done = compare_quick(tmp_path / "out", "--modes", "serial,data_parallel", "--json").succeeded()
    (row,) = [row for row in done.json["summaries"] if row["id"] == "left-data_parallel-2replicas"]
    assert (row["status"], row["reason"]) == ("not available", "needs 2 CUDA devices, found 0")
    assert not (tmp_path / "out" / "runs" / "left-data_parallel-2replicas-r0").exists()


def test_the_same_comparison_again_keeps_good_results_and_makes_the_rest(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each repeat has its own seed."""
    out = tmp_path / "out"
    behave(fake_twins, left__serial__2="kill")
    assert compare_quick(out, "--seeds", "0,1,2").exit_code == 1
    kept = {path: path.stat().st_mtime_ns for path in (out / "runs").glob("right-*/result.json")}
    behave(fake_twins)
    compare_quick(out, "--seeds", "0,1,2").succeeded()
    assert len(kept) == 6 and {path: path.stat().st_mtime_ns for path in kept} == kept
    assert all(sorted(repeats) == [0, 1, 2] for repeats in store.read(out).runs.values())
    assert results.load(out / "runs" / "left-serial-2cores-r0.attempt1" / "result.json").status == "killed"
    check_ended(compare_quick(out, "--seeds", "0,1,3"), field="seeds", names=["0, 1, 2", "0, 1, 3"])
    check_ended(compare_quick(out), field="seeds", names=["0, 1, 2", "none"])


@pytest.mark.parametrize("name", ["runs", "proof", "runs/left-serial-2cores-r0"])
def test_a_comparison_goes_on_in_no_folder_that_a_link_leads_to(name: str, finished: Path, tmp_path: Path) -> None:
    out, elsewhere = finished, trees.write(tmp_path / "elsewhere", {})
    shutil.rmtree(out / name, ignore_errors=True)
    (out / name).symlink_to(elsewhere)
    check_ended(convtwins("run", "--resume", out), names=[out / name, "link"])
    assert not list(elsewhere.iterdir())


def test_more_repeats_are_added_to_the_same_comparison_and_rates_of_the_machine_are_kept(finished: Path) -> None:
    stored = store.read(finished)
    assert {cores: rate.float32_gflops for cores, rate in stored.comparison.rates.items()} == {1: 100.0, 2: 200.0}
    kept = {cores: comparisons.with_fields(rate, float32_gflops=1.0) for cores, rate in stored.comparison.rates.items()}
    store.write_plan(finished, comparisons.with_plan(stored, rates=kept).comparison)
    compare_quick(finished, "--repeats", "2").succeeded()
    stored = store.read(finished)
    assert all(sorted(repeats) == [0, 1] for repeats in stored.runs.values()) and stored.comparison.rates == kept
    assert "Where is the limit?" in (finished / "report.md").read_text()


def test_a_comparison_with_more_repeats_says_so_in_the_command_that_makes_it_again(tmp_path: Path) -> None:
    stored = comparisons.repeated(5).comparison
    more = comparisons.with_fields(stored, argv=["run", "--resume", "out", "--repeats", "10"], settings__repeats=10)
    for argv in (["run", "--repeats", "5", "--data", "x"], ["run", "--repeats=5", "--data", "x"], ["run", "--data", "x"]):
        store.write_plan(tmp_path, comparisons.with_fields(stored, argv=argv))
        assert COMPARISON.resume(tmp_path, more).argv == ["run", "--data", "x", "--repeats", "10"]
        assert COMPARISON.resume(tmp_path, stored).argv == argv


def test_each_repeat_has_the_seed_of_its_place_in_all_rows_and_the_same_split(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = compare_quick(out, "--seed", "7", "--seeds", "3,1", "--repeats", "3", "--json").succeeded()
    stored = store.read(out)
    assert list(stored.comparison.settings.seeds) == done.json["comparison"]["seeds"] == [3, 1]
    for repeats in stored.runs.values():
        seeds = {repeat: (run.spec.seed, run.spec.data.seed) for repeat, run in repeats.items()}
        assert seeds == {0: (3, 7), 1: (1, 7), 2: (3, 7)}
    assert [run["spec"]["seed"] for run in done.json["runs"]["left-serial-1core"]] == [3, 1, 3]
    row = next(row for row in done.json["summaries"] if row["id"] == "left-serial-1core")
    accuracy = {"median": 0.88, "low": 0.875, "high": 0.885, "n": 2}
    assert row["seeds"] == 2 and row["test_accuracy_over_seeds"] == pytest.approx(accuracy)
    sameness = " ".join(done.json["findings"]["sameness"])
    assert "all 12 runs that recorded them, within each of 2 seeds" in sameness and "all 12 runs that recorded it" in sameness
    assert '"seed",' in (out / "tables" / "runs.csv").read_text().splitlines()[0]
    assert "seeds 3, 1" in (out / "report.md").read_text()


def test_the_time_to_an_accuracy_is_counted_from_the_epochs(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def target(accuracy: str) -> Any:
        done = compare_quick(tmp_path / "out", "--target-accuracy", accuracy, "--json").succeeded()
        return next(row["target"] for row in done.json["summaries"] if row["id"] == "left-serial-1core")

    reached = target("0.75")
    assert (reached["reached"], reached["epochs"]["median"]) == (1, 2.0)
    assert reached["seconds"]["median"] == pytest.approx(2.1 - 64 / fake.IMAGES)
    assert target("0.99") == {"accuracy": 0.99, "reached": 0, "repeats": 1, "seconds": None, "epochs": None}


@pytest.mark.parametrize(
    ("change", "differences"),
    [
        (("--seed", "7"), ["left-serial-1core", "seed", "0", "7"]),
        (("--limit", "100"), ["left-serial-1core", "data.limit", "null", "100"]),
        (("--set", "optimizer.momentum=0.5"), ["left-serial-1core", "optimizer.momentum", "0.9", "0.5"]),
        (("--set", "framework_options.left_switch=quick"), ["framework_options.left_switch", "null", '"quick"']),
        (("--modes", "serial,data_parallel"), ["rows"]),
    ],
)
def test_another_comparison_in_the_same_folder_is_refused(
    finished: Path, change: tuple[str, ...], differences: list[str]
) -> None:
    check_ended(compare_quick(finished, *change), fix="--out", names=differences)


def test_a_second_comparison_in_the_same_folder_at_the_same_time_is_refused(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with workspace.locked(tmp_path / "out"):
        code = "from compare.results import workspace; from pathlib import Path; workspace.locked(Path('out')).__enter__()"
        second = processes.python("-c", code, folder=tmp_path, PYTHONPATH=str(launch.PROJECT_ROOT))
    assert "FolderError: Another command works in out." in second.stderr


def test_a_folder_that_cannot_be_used_is_refused_before_anything_is_prepared(
    fake_twins: pytest.MonkeyPatch, finished: Path, tmp_path: Path
) -> None:
    out = finished
    launch.FRAMEWORKS["left"] = "no_such_module"  # would be asked first of all

    def check(*asked: str, folder: Path = out, **parts: Any) -> None:
        for words in (asked, (*asked, "--dry-run")):
            check_ended(compare_quick(folder, *words), **parts)

    with workspace.locked(out):
        check_ended(compare_quick(out), names=[out, "Another command"], fix="--out")
    check("--seed", "7", names=["left-serial-1core", "seed", "0", "7"])
    check(folder=out / store.PLAN_FILE / "in" / "it", names=[out / store.PLAN_FILE, "file"])
    fake_twins.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write everywhere
    check(folder=tmp_path / "new" / "out", names=[tmp_path / "new" / "out", tmp_path])
    (out / store.PLAN_FILE).rename(out / "thesis.json")
    check(names=[out, "belong to no comparison"], fix="--out")
    check(folder=trees.write(tmp_path / "mine", {"thesis.tex": "mine"}), names=["belong to no comparison", "thesis.tex"])
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    assert not (tmp_path / "new").exists()


def test_a_switch_goes_to_the_framework_that_has_it(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compare_quick(tmp_path / "out", "--set", "framework_options.left_switch=quick").succeeded()
    options = {row.contestant: row.spec.framework_options for row in store.read_plan(tmp_path / "out").rows}
    assert options == {"left": {"left_switch": "quick"}, "right": {}}


def test_a_framework_that_cannot_describe_itself_is_named(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    launch.FRAMEWORKS["left"] = "no_such_module"
    check_ended(compare_quick(tmp_path / "out"), exit_code=1, field="left", names=["No module named", "no_such_module"])


def test_a_spec_file_gives_values_that_options_override(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = {"mode": "multi_process", "replicas": 4, "steps": 40, "seed": 3, "optimizer": {"learning_rate": 0.1}, "cores": 2}
    spec_file = trees.write(tmp_path, {"spec.yaml": values}) / "spec.yaml"
    changed = ("--epochs", "1", "--set", "optimizer.momentum=0")
    convtwins("run", "--frameworks", "left", "--no-proof", "--spec", spec_file, *changed, "--out", tmp_path / "out").succeeded()
    rows = store.read_plan(tmp_path / "out").rows
    assert [row.id for row in rows] == ["left-serial-1core", "left-serial-2cores", "left-multi_process-4replicas"]
    planned = rows[-1].spec
    assert (planned.epochs, planned.steps, planned.seed) == (1, None, 3)
    assert (planned.optimizer.learning_rate, planned.optimizer.momentum) == (0.1, 0)


@pytest.mark.parametrize(
    ("text", "word", "replicas"),
    [
        ("{mode: pipeline, pipeline: {schedule: 1f1b}}", "pipeline_1f1b", 2),
        ("{mode: parameter_server, replicas: 4, parameter_server: {updates: asynchronous}}", "parameter_server_async", 4),
        ("{mode: hybrid, replicas: 6, hybrid: {inner: pipeline}, global_batch_size: 63}", "hybrid_pipeline", 3),
        ("{mode: serial, replicas: 1}", "serial", 2),
    ],
)
def test_a_mode_of_a_spec_file_is_the_word_that_its_fields_make(tmp_path: Path, text: str, word: str, replicas: int) -> None:
    found = run_settings.settings(None, trees.write(tmp_path, {"spec.yaml": text}) / "spec.yaml", {}, [])
    assert (found.modes, found.replicas) == (tuple(dict.fromkeys(("serial", word))), replicas)


def test_repeats_are_interleaved_and_unavailable_rows_left_out() -> None:
    rows = [comparisons.row("a"), comparisons.row("b", unavailable="not available: no"), comparisons.row("c")]
    order = [[(row.contestant, repeat) for row, repeat in jobs] for jobs in comparison_plan.order(rows, 3)]
    assert order == [[("a", 0), ("c", 0)], [("c", 1), ("a", 1)], [("a", 2), ("c", 2)]]


def test_rows_that_differ_by_their_framework_alone_are_run_next_to_each_other() -> None:
    """Else all rows of the one come before all of the other: as far apart as a drift of the machine needs to be seen."""
    rows = [comparisons.row(framework, mode) for framework in "ab" for mode in ("serial", "data_parallel", "multi_process")]
    modes = ("serial-2", "data_parallel-2", "multi_process-2")
    there = [f"{framework}-{mode}" for mode in modes for framework in "ab"]
    assert [[row.id for row, _ in jobs] for jobs in comparison_plan.order(rows, 2)] == [there, [*reversed(there)]]


@pytest.mark.parametrize(("status", "verdict", "code"), [("passed", "proved", 0), ("failed", "not proved", 1)])
def test_the_verdict_of_the_proof_stands_with_the_table(
    proof: Ladder, tmp_path: Path, status: str, verdict: str, code: int
) -> None:
    """These runs recorded no steps, so no row is proved as it is timed."""
    others = {"not_claimed": {"data_parallel": "why not"}, "compared_with": {"pipeline": "serial in parts"}}
    proof.becomes(rungs=[rung(status=status)], **others)
    done = convtwins(*PROVED, "--out", tmp_path / "out", "--full")
    assert done.exit_code == code
    assert done.progress[0] == "proof that the training is the same, which may take minutes ..."
    shown = " ".join(done.stdout.split())
    said = "proved in float64" if verdict == "proved" else f"{verdict} (they may be two different trainings)"
    assert f"Identical training: {said}: " in shown
    assert proof.proof.sentence.partition(": ")[2] in shown and all(
        f"{name}: " in shown for name in ("data_parallel", "pipeline")
    )
    assert "why not." in shown and "serial in parts." in shown and "8.7e-08" in shown
    stored = stored_proof(tmp_path / "out")
    assert (stored.verdict, stored.rungs[0]["max_relative_difference"]) == (verdict, 3e-15)


def test_runs_that_are_not_as_planned_refute_the_proof_and_leave_no_verdict(
    fake_twins: pytest.MonkeyPatch, proof: Ladder, tmp_path: Path
) -> None:
    """One run of ten: its row is named, and no row is faster than another. A later look at the folder says so again."""
    behave(fake_twins, left__serial__2="unrecorded in 1")
    for words in ((*PROVED, "--repeats", "5", "--out", tmp_path / "out"), ("run", "--resume", tmp_path / "out")):
        done = convtwins(*words, "--full")
        proof.becomes(remembered=True)
        shown = " ".join(done.stdout.split())
        assert done.exit_code == 1 and "NOT AS PLANNED: left-serial-2cores, repeat 2: " in shown
        assert " times as fast " not in shown and shown.count("The float64 proof alone") == 1
        stored = stored_proof(tmp_path / "out")
        assert stored.verdict == "not proved" and stored.reason in shown
        assert stored.float64_sentence.startswith("proved: ") and "remembered" not in stored.sentence
        assert stored.row_verdicts["left-serial-2cores"] == "not proved"
        assert [check.row for check in stored.spot_checks if check.faults] == ["left-serial-2cores"]


@pytest.mark.parametrize("at_first", [False, True])
def test_a_comparison_that_goes_on_says_remembered_only_of_a_proof_that_another_one_has_made(
    proof: Ladder, tmp_path: Path, at_first: bool
) -> None:
    for is_remembered in (at_first, True):
        proof.becomes(remembered=is_remembered)
        convtwins(*PROVED, "--out", tmp_path / "out").succeeded()
        stored = stored_proof(tmp_path / "out")
        assert ("remembered" in stored.sentence) is stored.remembered is at_first
        assert ("proof of an earlier comparison" in convtwins("report", tmp_path / "out").stdout) is at_first


def test_a_proof_that_breaks_off_proves_nothing_and_the_runs_go_on(proof: Ladder, tmp_path: Path) -> None:
    proof.error = errors.LaunchError("left cannot record")
    done = convtwins(*PROVED, "--out", tmp_path / "out")
    again = convtwins("report", tmp_path / "out")
    assert done.exit_code == again.exit_code == 1
    assert done.stderr.splitlines()[-1] == again.stderr.splitlines()[-1] and "not proved" in again.stderr
    stored = stored_proof(tmp_path / "out")
    assert stored.verdict == "not proved" and "left cannot record" in stored.sentence
    assert all(len(repeats) == 1 for repeats in store.read(tmp_path / "out").runs.values())


def test_recorded_steps_that_would_fill_the_disk_are_judged_between_two_runs_and_stay_known(
    fake_twins: pytest.MonkeyPatch, proof: Ladder, tmp_path: Path
) -> None:
    """At the end of a repeat. Records of repeats that were added one by one count together."""
    size = f"record {spot_checks.MOST_BYTES * 2 // 21}"  # ten are not too many, and eleven are
    behave(fake_twins, **{f"{name}__serial__{cores}": size for name in ("left", "right") for cores in (1, 2)})
    asked = ("--until-decided", "--repeats", "5", "--most-repeats", "7", "--smallest-effect", "0.01%")
    done = convtwins(*PROVED, *asked, "--out", tmp_path / "out").succeeded()
    first, *rest = done.stderr.split("proof: recorded steps of the timed runs ...")
    assert first.count(" of at most 7): ") == 12 and len(rest) == 2
    num_runs = sum(map(len, store.read(tmp_path / "out").runs.values()))
    assert len({(check.row, check.repeat) for check in stored_proof(tmp_path / "out").spot_checks}) == num_runs > 10


@pytest.mark.parametrize(("module", "name"), [(spot_checks, "judge"), (plots, "write_all")])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_after_the_last_run_still_gives_the_report_and_the_way_to_go_on(
    fake_twins: pytest.MonkeyPatch, proof: Ladder, tmp_path: Path, number: signal.Signals, module: Any, name: str
) -> None:
    out, original = tmp_path / "out", getattr(module, name)

    def interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), number)
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, interrupted)  # the moment at which the signal comes
        done = convtwins(*PROVED, "--out", out)
    assert done.exit_code == 128 + number
    assert f"{out}/report.html" in done.stdout and (out / "report.md").exists()
    last = done.stderr.splitlines()[-1]
    assert f"--out {out}" in last and f"--resume {out}" in last
    again = convtwins("run", "--resume", out).succeeded()
    assert f"{out}/report.html" in again.stdout


def test_a_comparison_of_which_no_row_can_run_fails_and_says_first_why_and_what_to_do(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = ("--frameworks", "left,right", "--cores", "2", "--replicas", "8", "--modes", "data_parallel")
    rehearsed = convtwins("run", *arguments, "--dry-run").succeeded()
    done = convtwins("run", *arguments, "--out", out)
    (first,) = sentences(cautions.nothing_can_run(store.read_plan(out)))
    assert done.exit_code == 1 and "not parallel: 8 replicas" in first and "2 cores" in first and "--oversubscribe" in first
    assert " ".join(rehearsed.stdout.split()).startswith(first) and first in " ".join(done.stdout.split())
    assert (out / "report.md").read_text().count(first) == 1
    assert stored_proof(out).verdict == "not claimed" and "no row could run" in done.stderr.splitlines()[-1]
    with_serial = convtwins("run", *arguments, "--modes", "serial,data_parallel", "--out", tmp_path / "with", "--no-proof")
    assert with_serial.exit_code == 0 and not cautions.nothing_can_run(store.read_plan(tmp_path / "with"))


def test_report_makes_everything_again_and_sets_torn_results_aside(finished: Path) -> None:
    out = finished
    before = (out / "tables" / "comparison.md").read_text()
    for name in ("report.md", "results.json"):
        (out / name).unlink()
    convtwins("report", out).succeeded()
    assert (out / "tables" / "comparison.md").read_text() == before
    torn = out / "runs" / "left-serial-1core-r0" / "result.json"
    torn.write_text(torn.read_text()[:100])
    again = convtwins("report", out, "--json").json
    (aside,) = again["set_aside"]
    assert "runs/left-serial-1core-r0/result.json" in aside and torn.exists()
    assert [row["id"] for row in again["summaries"] if row["status"] == "not run"] == ["left-serial-1core"]


def test_report_reads_a_comparison_of_a_machine_with_more_cores(fake_twins: pytest.MonkeyPatch, finished: Path) -> None:
    fake_twins.undo()
    fake_twins.setattr(plots, "write_all", write_empty)
    fake_twins.setattr("common.machine.machine.available_cores", lambda: 1)  # as `fake_twins` says four
    convtwins("report", finished).succeeded()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_children_and_loses_nothing(tmp_path: Path, number: signal.Signals) -> None:
    driver = textwrap.dedent(
        """
        import sys
        from common.machine import machine
        from compare.running import launch
        from compare.__main__ import app
        launch.FRAMEWORKS.clear()
        launch.FRAMEWORKS.update(left="tests.compare.twins.left", right="tests.compare.twins.right")
        machine.available_cores = lambda: 4
        app(sys.argv[1:])
        """
    )
    variables = {"FAKE_TWIN_BEHAVIOUR": json.dumps({"left-serial-2": "hang"})}
    words = [sys.executable, "-c", driver, *QUICK, "--full", "--out", tmp_path / "out"]
    pids = tmp_path / "out" / "runs" / "left-serial-2cores-r0" / "pids"
    with processes.started(words, variables=variables) as process:
        deadline = time.monotonic() + 300
        while not (pids.exists() and len(pids.read_text().split()) == 2):
            assert time.monotonic() < deadline and process.poll() is None, process.communicate()
            time.sleep(0.05)
        children = [int(word) for word in pids.read_text().split()]
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 128 + number, stderr
    assert not [pid for pid in children if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
    runs = {
        row: {repeat: run.status for repeat, run in found.items()} for row, found in store.read(tmp_path / "out").runs.items()
    }
    assert runs["left-serial-1core"] == {0: "ok"} and runs["left-serial-2cores"] == {0: "killed"}
    assert runs["right-serial-2cores"] == {}
    assert "left serial, 2 cores: killed after 1 epoch: interrupted" in stdout and "right serial, 2 cores: not run" in stdout


def test_what_is_interrupted_within_something_larger_leaves_the_words_to_that(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    settings, twins = ComparisonSettings(values={"cores": 2}, modes=("serial",), prove=False), Twins(["left", "right"])
    request = run.ComparisonRequest(settings, settings.build_rows(twins.contestants), twins)
    behave(fake_twins, right__serial__1="stop")
    with pytest.raises(Interrupted) as raised:
        run.run_nested(request, out)
    assert raised.value.exit_code == 143
    printed = capsys.readouterr()
    assert printed.out == "" and re.fullmatch(r"left-serial-1core: \d+:\d\d; 3 left, about \d+:\d\d\.\n", printed.err)
    statuses = {row: [result.status for result in runs.values()] for row, runs in store.read(out).runs.items()}
    assert statuses["left-serial-1core"] == ["ok"] and statuses["right-serial-1core"] == ["killed"]
    behave(fake_twins)
    compared, code = run.run_nested(request, out)
    assert code == 0 and all(compared.stored.runs.values())


def test_the_default_folder_names_time_model_and_data(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = convtwins(*QUICK).succeeded()
    (folder,) = (tmp_path / "results").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}-simple_cnn-digits", folder.name)
    assert f"results/{folder.name}/report.html" in done.stdout


def test_a_mode_of_which_one_update_alone_was_judged_is_not_claimed_with_its_reason(proof: Ladder, tmp_path: Path) -> None:
    mode = {"framework": "left", "mode": "data_parallel"}
    of_mode = rung(6, status="shown", **mode)
    after_one = rung(6, "weights after one step", **mode)
    proof.becomes(rungs=[rung(), of_mode, after_one])
    modes = ("--modes", "serial,data_parallel", "--no-one-core")
    done = convtwins(*PROVED, *modes, "--repeats", "1", "--out", tmp_path / "out", "--full").succeeded()
    stored = stored_proof(tmp_path / "out")
    (row,) = [row for row in stored.row_verdicts if row.startswith("left-data_parallel")]
    why = proof.proof.why_one_update("left", "data_parallel")
    assert stored.verdict == "proved" and stored.row_verdicts[row] == "not claimed" and stored.not_claimed == {row: why}
    assert f"{row}: not claimed: {why}." in " ".join(done.stdout.split())

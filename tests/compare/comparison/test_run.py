"""Whole comparisons of fake twins, as a user would start them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import psutil
import pytest

from common.artifacts import results, schema
from common.spec import Spec
from compare.comparison import comparison_plan, run
from compare.core import errors
from compare.core.interrupt import Interrupted
from compare.core.presets import Preset
from compare.execution import executor, launch, matrix, run_settings, store
from compare.execution.matrix import Row
from compare.proof import certificate, ladder, spot_checks
from compare.reporting import plots
from tests.compare.conftest import behave, write_empty
from tests.compare.twins import fake
from tests.support import comparisons
from tests.support.command_line import convtwins

QUICK = ("--frameworks", "left,right", "--cores", "2", "--no-proof", "--modes", "serial")


def compare_quick(out: Path, *arguments: str) -> Any:
    return convtwins("run", *QUICK, "--out", out, *arguments)


@pytest.fixture
def finished(fake_twins: pytest.MonkeyPatch, kept: Path, tmp_path: Path) -> Path:
    """What `compare_quick` leaves in a folder: four rows that went well, once each."""
    if not kept.exists():
        assert compare_quick(kept).exit_code == 0
    return shutil.copytree(kept, tmp_path / "out")


@pytest.mark.drawn
def test_a_comparison_runs_every_row_and_writes_everything(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = convtwins("run", "--frameworks", "left,right", "--cores", "2", "--no-proof", "--out", out, "--full")
    assert done.exit_code == 0, done.output
    rows = [row.id for row in store.read_plan(out).rows]
    names = ("serial-1core", "serial-2cores", "data_parallel-2replicas", "multi_process-2replicas")
    assert rows == [f"{framework}-{name}" for framework in ("left", "right") for name in names]
    for row in rows:
        assert {path.name for path in (out / "runs" / f"{row}-r0").iterdir()} == {
            "spec.json",
            "events.jsonl",
            "result.json",
            "log.txt",
        }
    names = ("loss", "accuracy", "seconds_per_epoch", "speedup", "efficiency", "phases")
    drawn = {f"{name}.{suffix}" for name in names for suffix in ("png", "svg")}
    drawn |= {f"{name}_log.svg" for name in ("loss", "seconds_per_epoch", "speedup")}
    assert {path.name for path in (out / "plots").iterdir()} == drawn
    assert (out / "report.md").exists() and (out / "report.html").exists()
    assert all((out / "tables" / f"comparison.{suffix}").exists() for suffix in ("csv", "md", "tex"))
    assert "Identical training: not claimed" in done.stdout


@pytest.mark.parametrize(("batch", "larger"), [pytest.param(64, False, marks=pytest.mark.slow), (5000, True)])
def test_a_batch_that_is_larger_than_the_training_split_is_told_before_anything_is_trained(
    batch: int, larger: bool, fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = compare_quick(tmp_path / "out", "--batch-size", str(batch))
    said = "is larger than the training split of 1,258: an epoch is a single step on all its images."
    rehearsed = compare_quick(tmp_path / "rehearsed", "--batch-size", str(batch), "--dry-run")
    assert [said in " ".join(each.stderr.split()) for each in (done, rehearsed)] == [larger, larger]


def test_json_on_stdout_is_one_object_and_equals_results_json(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = compare_quick(tmp_path / "out", "--json")
    printed = json.loads(done.stdout)
    assert printed == json.loads((tmp_path / "out" / "results.json").read_text())
    assert [table["name"] for table in printed["tables"]][:4] == ["comparison", "accuracy", "seconds", "speedup"]
    assert printed["exit_code"] == 0


def test_a_live_page_is_kept_and_points_to_the_report_in_the_end(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert compare_quick(tmp_path / "out", "--live").exit_code == 0
    page = (tmp_path / "out" / "live.html").read_text("utf-8")
    assert "All runs have ended." in page and 'href="report.html"' in page and 'http-equiv="refresh"' not in page
    assert page.count("<polyline") == 2 * 4 and all(row.id in page for row in store.read_plan(tmp_path / "out").rows)


def test_the_live_page_of_a_comparison_that_breaks_off_loads_itself_no_more(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def breaks(*_: object, **options: object) -> None:
        raise ZeroDivisionError

    fake_twins.setattr("compare.execution.executor.execute", breaks)
    assert isinstance(compare_quick(tmp_path / "out", "--live").exception, ZeroDivisionError)
    page = (tmp_path / "out" / "live.html").read_text("utf-8")
    assert "Stopped by an error." in page and 'http-equiv="refresh"' not in page


def test_nothing_but_results_goes_to_stdout_and_a_line_for_each_run_to_a_pipe(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = compare_quick(tmp_path / "out", "--json")
    assert json.loads(done.stdout)["exit_code"] == done.exit_code == 0
    said = [re.sub(r"\d:\d\d", "M:SS", line) for line in done.stderr.splitlines()]
    rows = [f"{name}-serial-{cores}" for cores in ("1core", "2cores") for name in ("left", "right")]
    left = ["3 left, about M:SS", "2 left, about M:SS", "1 left, about M:SS", "none left"]
    assert said == [f"{row}: M:SS; {more}." for row, more in zip(rows, left, strict=True)]


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
    rows = {row["id"]: row for row in json.loads(done.stdout)["summaries"]}
    assert len(rows) == 4
    for name, row in rows.items():
        status, reason, epochs = DEATHS[dying[name]] if name in dying else ("ok", "", 2)
        assert (row["status"], row["epochs_done"]) == (status, epochs)
        assert reason in (row["reason"] or "")
    assert convtwins("report", tmp_path / "out").exit_code == 1


def test_a_mode_that_the_machine_cannot_do_is_a_row_that_is_not_run(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    behave(fake_twins, left__data_parallel="unavailable")
    done = compare_quick(tmp_path / "out", "--modes", "serial,data_parallel", "--full")
    assert done.exit_code == 0
    assert "left data_parallel x2: not available: needs 2 CUDA devices, found 0." in done.stdout
    assert not (tmp_path / "out" / "runs" / "left-data_parallel-2replicas-r0").exists()


def test_the_same_comparison_again_keeps_good_results_and_makes_the_rest(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    behave(fake_twins, left__serial__2="kill")
    assert compare_quick(tmp_path / "out").exit_code == 1
    kept = (tmp_path / "out" / "runs" / "right-serial-1core-r0" / "result.json").stat().st_mtime_ns
    behave(fake_twins)
    assert compare_quick(tmp_path / "out").exit_code == 0
    runs = tmp_path / "out" / "runs"
    assert (runs / "right-serial-1core-r0" / "result.json").stat().st_mtime_ns == kept
    assert results.load(runs / "left-serial-2cores-r0.attempt1" / "result.json").status == "killed"


@pytest.mark.parametrize("name", ["runs", "proof", "runs/left-serial-2cores-r0"])
def test_a_comparison_goes_on_in_no_folder_that_a_link_leads_to(name: str, finished: Path, tmp_path: Path) -> None:
    out, elsewhere = finished, tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.rmtree(out / name, ignore_errors=True)
    (out / name).symlink_to(elsewhere)
    done = convtwins("run", "--resume", out)
    assert done.exit_code == 2 and f"{out / name} is a link" in done.stderr, done.output
    assert not list(elsewhere.iterdir())


def test_more_repeats_are_added_to_the_same_comparison(finished: Path) -> None:
    assert compare_quick(finished, "--repeats", "2").exit_code == 0
    stored = store.read(finished)
    assert all(sorted(repeats) == [0, 1] for repeats in stored.runs.values())


def test_a_comparison_with_more_repeats_says_so_in_the_command_that_makes_it_again(tmp_path: Path) -> None:
    stored = comparisons.repeated(5).comparison
    for argv in (["run", "--repeats", "5", "--data", "x"], ["run", "--repeats=5", "--data", "x"], ["run", "--data", "x"]):
        store.write_plan(tmp_path, stored.model_copy(update={"argv": argv}))
        more = stored.model_copy(update={"argv": ["run", "--resume", "out", "--repeats", "10"], "repeats": 10})
        assert store.merge_with_stored(tmp_path, more).argv == ["run", "--data", "x", "--repeats", "10"]
        assert store.merge_with_stored(tmp_path, stored).argv == argv


def test_each_repeat_has_the_seed_of_its_place_in_all_rows_and_the_same_split(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = compare_quick(out, "--seed", "7", "--seeds", "3,1", "--repeats", "3", "--json")
    assert done.exit_code == 0, done.output
    stored = store.read(out)
    assert stored.comparison.seeds == [3, 1]
    for repeats in stored.runs.values():
        assert {repeat: (run.spec.seed, run.spec.data.seed) for repeat, run in repeats.items()} == {
            0: (3, 7),
            1: (1, 7),
            2: (3, 7),
        }
    printed = json.loads(done.stdout)
    assert printed["comparison"]["seeds"] == [3, 1]
    assert [run["spec"]["seed"] for run in printed["runs"]["left-serial-1core"]] == [3, 1, 3]
    (said,) = [sentence for sentence in printed["findings"]["scores"] if sentence.startswith("left serial, 1 core")]
    assert said == "left serial, 1 core: test accuracy 0.8800 over 2 seeds (quartiles 0.8750 to 0.8850)."
    same = "Same initial weights and order of examples in all 12 runs that recorded them, within each of 2 seeds."
    assert same in printed["findings"]["sameness"]
    assert "Same data in all 12 runs that recorded it." in printed["findings"]["sameness"]
    assert '"seed",' in (out / "tables" / "runs.csv").read_text().splitlines()[0]
    assert "seeds 3, 1" in (out / "report.md").read_text()


def test_seeds_make_a_repeat_each_and_a_cut_comparison_goes_on(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out"
    behave(fake_twins, left__serial__2="kill")
    assert compare_quick(out, "--seeds", "0,1,2").exit_code == 1
    kept = {path: path.stat().st_mtime_ns for path in (out / "runs").glob("right-*/result.json")}
    behave(fake_twins)
    assert compare_quick(out, "--seeds", "0,1,2").exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert all(sorted(repeats) == [0, 1, 2] for repeats in store.read(out).runs.values())
    other = compare_quick(out, "--seeds", "0,1,3")
    assert other.exit_code == 2 and "(its seeds are 0, 1, 2; asked for: 0, 1, 3)" in other.stderr
    without = compare_quick(out)
    assert without.exit_code == 2 and "asked for: none, but one for all repeats" in without.stderr


def test_the_time_to_an_accuracy_is_counted_from_the_epochs(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = compare_quick(tmp_path / "out", "--target-accuracy", "0.75", "--json")
    assert done.exit_code == 0, done.output
    summaries = {summary["id"]: summary["target"] for summary in json.loads(done.stdout)["summaries"]}
    left = summaries["left-serial-1core"]
    assert (left["reached"], left["seconds"]["median"], left["epochs"]["median"]) == (
        1,
        pytest.approx(2.1 - 64 / fake.IMAGES),
        2.0,
    )
    again = compare_quick(tmp_path / "out", "--target-accuracy", "0.99")
    assert re.search(r"Target +validation accuracy 0.99 not reached.*left serial", " ".join(again.stdout.split()))


def test_every_row_is_held_against_what_the_machine_can_do(fake_twins: pytest.MonkeyPatch, finished: Path) -> None:
    stored = store.read(finished)
    assert {cores: rate.float32_gflops for cores, rate in stored.comparison.rates.items()} == {1: 100.0, 2: 200.0}
    fake_twins.setattr("common.machine.rates.measure_in_subprocess", pytest.fail)  # they are kept
    assert compare_quick(finished).exit_code == 0
    assert "Where is the limit?" in (finished / "report.md").read_text()


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (("--seed", "7"), "(of left-serial-1core, seed is 0 there, asked for: 7)"),
        (
            ("--limit", "100", "--set", "optimizer.momentum=0.5", "--set", "framework_options.left_switch=quick"),
            "(of left-serial-1core, data.limit is null there, asked for: 100; optimizer.momentum is 0.9 there, asked for: 0.5; "
            'framework_options.left_switch is null there, asked for: "quick")',
        ),
        (("--modes", "serial,data_parallel"), "its rows are"),
    ],
)
def test_another_comparison_in_the_same_folder_is_refused(finished: Path, change: tuple[str, ...], difference: str) -> None:
    done = compare_quick(finished, *change)
    assert done.exit_code == 2
    assert difference in done.stderr and "Choose another --out" in done.stderr


def test_a_folder_with_other_files_is_refused(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    done = compare_quick(tmp_path)
    assert done.exit_code == 2 and "thesis.tex" in done.stderr
    assert not (tmp_path / "compare.json").exists()


def test_a_second_comparison_in_the_same_folder_at_the_same_time_is_refused(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with store.locked(tmp_path / "out"):
        code = "from compare.execution import store; from pathlib import Path; store.locked(Path('out')).__enter__()"
        environment = {**os.environ, "PYTHONPATH": str(launch.PROJECT_ROOT)}
        second = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
    assert "Another command works in out. Wait for it, or choose another --out." in second.stderr


def test_a_folder_in_use_is_refused_before_anything_is_prepared(
    fake_twins: pytest.MonkeyPatch, finished: Path, tmp_path: Path
) -> None:
    out = finished
    fake_twins.setattr(comparison_plan, "build_plan", pytest.fail)

    def refused(said: str, *asked: str, folder: Path = out) -> None:
        for words in (asked, (*asked, "--dry-run")):
            done = compare_quick(folder, *words)
            assert done.exit_code == 2 and said in done.stderr, done.output

    with store.locked(out):
        done = compare_quick(out)
        assert done.exit_code == 2 and "Another command works in" in done.stderr
    refused("(of left-serial-1core, seed is 0 there, asked for: 7)", "--seed", "7")
    refused(f"{out / store.PLAN_FILE} is a file, not a folder.", folder=out / store.PLAN_FILE / "in" / "it")
    fake_twins.setattr(os, "access", lambda path, mode: path != tmp_path)
    refused(
        f"Results cannot be written to {tmp_path / 'new' / 'out'} ({tmp_path} may not be written).",
        folder=tmp_path / "new" / "out",
    )
    (out / store.PLAN_FILE).rename(out / "thesis.json")
    refused("holds files that belong to no comparison")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--model", "simple_cn"), 2, "did you mean simple_cnn?"),
        (
            ("--preset", "digit"),
            2,
            "preset is unknown. Received: 'digit'. Use one of digits, verdict, cifar10-minixception. Did you mean digits?",
        ),
        (("--preset", "digits", "--spec", "x.yaml"), 2, "--preset and --spec exclude each other"),
        (("--spec", "missing.yaml"), 2, "spec file cannot be read"),
        (("--frameworks", "lefft"), 2, "frameworks names something unknown. Received: 'lefft'."),
        (("--frameworks", "left,left"), 2, "each once"),
        (("--input-only", "--compute-only"), 2, "--input-only and --compute-only exclude each other. Received: both."),
        (("--input", "dask", "--workers", "0"), 2, "workers must be at least 1 with input dask. Received: 0."),
        (("--input", "workers", "--workers", "0,2"), 2, "workers must be at least 1 with input workers. Received: 0."),
        (("--modes", "seriall"), 2, "Did you mean serial?"),
        (("--modes", ""), 2, "--modes is empty"),
        (("--modes", "data_parallel", "--replicas", "3"), 2, "Received: 64 over 3. Use 63 or 66."),
        (("--modes", "data_parallel", "--limit", "65"), 2, "fewer than replicas"),
        (("--seeds", "1,x"), 2, "--seeds must be whole numbers of at least 0. Received: 'x'."),
        (("--seeds", "1,1"), 2, "--seeds names something twice. Received: 1, 1."),
        (("--seeds", ""), 2, "--seeds is empty"),
        (("--seeds", str(2**63)), 2, "seed is refused"),
        (
            ("--seeds", "1,2,3", "--repeats", "2"),
            2,
            "--repeats must be at least one for each of --seeds. Received: 2 for 3 seeds.",
        ),
        (("--target-accuracy", "95"), 2, "--target-accuracy must be above 0 and at most 1. Received: 95."),
        (("--cores", "9"), 2, "cores exceeds what this process may use. Received: 9. Use 1 to 4."),
        (("--set", "optimizer.momentun=0"), 2, "Did you mean momentum?"),
        (("--set", "framework_options.left_switch=quik"), 2, "left does not know"),
        (("--set", "framework_options.speed=1"), 2, "framework_options.speed is unknown to left"),
        (("--data", "no/such/folder"), 4, "no/such/folder"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = compare_quick(tmp_path / "out", *arguments)
    assert done.exit_code == code, done.output
    assert message in re.sub(r"\s+", " ", done.stderr)
    assert "Traceback" not in done.output
    assert not (tmp_path / "out").exists()


def test_a_switch_goes_to_the_framework_that_has_it(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert compare_quick(tmp_path / "out", "--set", "framework_options.left_switch=quick").exit_code == 0
    options = {row.contestant: row.spec.framework_options for row in store.read_plan(tmp_path / "out").rows}
    assert options == {"left": {"left_switch": "quick"}, "right": {}}


def test_a_framework_that_cannot_describe_itself_is_named(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    launch.FRAMEWORKS["left"] = "no_such_module"
    del launch.DESCRIPTIONS["left"]
    done = compare_quick(tmp_path / "out")
    assert done.exit_code == 1 and "left cannot describe itself" in done.stderr and "No module named" in done.stderr


def test_a_spec_file_gives_values_that_options_override(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec_file = tmp_path / "spec.yaml"
    spec_file.write_text("mode: multi_process\nreplicas: 4\nsteps: 40\nseed: 3\noptimizer: {learning_rate: 0.1}\ncores: 2\n")
    arguments = ["--spec", spec_file, "--epochs", "1", "--set", "optimizer.momentum=0", "--out", tmp_path / "out"]
    done = convtwins("run", "--frameworks", "left", "--no-proof", *arguments)
    assert done.exit_code == 0, done.output
    rows = store.read_plan(tmp_path / "out").rows
    assert [row.id for row in rows] == ["left-serial-1core", "left-serial-2cores", "left-multi_process-4replicas"]
    made_spec = rows[-1].spec
    assert (made_spec.epochs, made_spec.steps, made_spec.seed) == (1, None, 3)
    assert (made_spec.optimizer.learning_rate, made_spec.optimizer.momentum) == (0.1, 0)


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
    (tmp_path / "spec.yaml").write_text(text)
    found = run_settings.settings(None, tmp_path / "spec.yaml", {}, [])
    assert (found.modes, found.replicas) == (tuple(dict.fromkeys(("serial", word))), replicas)


def test_repeats_are_interleaved_and_unavailable_rows_left_out() -> None:
    rows = [comparisons.row("a"), comparisons.row("b", unavailable="not available: no"), comparisons.row("c")]
    order = [(row.contestant, repeat) for row, repeat in comparison_plan.order(rows, 3)]
    assert order == [("a", 0), ("c", 0), ("c", 1), ("a", 1), ("a", 2), ("c", 2)]


def test_rows_that_differ_by_their_framework_alone_are_run_next_to_each_other() -> None:
    """Else all rows of the one come before all of the other: as far apart as a drift of the machine needs to be seen."""
    rows = [comparisons.row(framework, mode) for framework in "ab" for mode in ("serial", "data_parallel", "multi_process")]
    modes = ("serial-2", "data_parallel-2", "multi_process-2")
    there = [f"{framework}-{mode}" for mode in modes for framework in "ab"]
    assert [row.id for row, _ in comparison_plan.order(rows, 2)] == [*there, *reversed(there)]


def test_one_core_has_one_serial_row(fake_twins: pytest.MonkeyPatch) -> None:
    assert [row.id for row in matrix.build_rows({"cores": 1}, ["left"], ["serial"], 2)] == ["left-serial-1core"]


def _stand_in(verdict: str, *, remembered: bool = False) -> Any:
    def prove(timed_spec: Spec, frameworks: list[str], modes: list[str], **settings: Any) -> Any:
        settings["progress"]("rung 5")
        rung = certificate.Rung(
            name="5 losses", model=timed_spec.model, optimizer="sgd", precision="float64", steps=50,
            max_relative_difference=3e-15,
            step=49, tolerance=1e-12, reason="rounding", status="passed",
        )  # fmt: skip
        return SimpleNamespace(
            verdict=verdict, sentence=f"losses agree within 3e-15{', remembered' * remembered}", rungs=[rung],
            not_claimed={"data_parallel": "why not"}, compared_with={"pipeline": "serial in parts"},
            mode_verdict=lambda framework, mode: verdict, levels=["usual"], remembered=remembered,
        )  # fmt: skip

    return prove


@pytest.mark.parametrize(("verdict", "headline", "code"), [("proved", "proved in float64", 0), ("not proved", "not proved", 1)])
def test_the_verdict_of_the_proof_stands_with_the_table(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, verdict: str, headline: str, code: int
) -> None:
    """These runs recorded no steps, so no row is proved as it is timed."""
    fake_twins.setattr(ladder, "prove", _stand_in(verdict))
    arguments = [argument for argument in QUICK if argument != "--no-proof"]
    done = convtwins("run", *arguments, "--out", tmp_path / "out", "--full")
    assert done.exit_code == code
    assert done.stderr.startswith("proof that the training is the same, which may take minutes ...\n")
    assert f"Identical training: {headline}: losses agree within 3e-15." in done.stdout
    assert "data_parallel: not claimed: why not." in done.stdout
    assert "pipeline: compared with serial in parts." in done.stdout
    assert "losses differ between the frameworks by at most 8.7e-08" in done.stdout
    assert ("The same training is not proved." in " ".join(done.stdout.split())) is bool(code)
    proof = store.read_plan(tmp_path / "out").proof
    assert proof is not None and proof.rungs[0]["max_relative_difference"] == 3e-15


def test_runs_that_are_not_as_planned_refute_the_proof_and_leave_no_verdict(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One run of two: its row is named, and no row is faster than another. A later look at the folder says so again."""
    fake_twins.setattr(ladder, "prove", _stand_in("proved"))
    wrong = store.SpotCheck(
        row="left-serial-2cores", repeat=1, steps=[3], faults=["step 3: 2 labels are not those of the source"]
    )
    fake_twins.setattr(spot_checks, "judge", lambda runs, *rest: [wrong] if runs else [])
    arguments = [argument for argument in QUICK if argument != "--no-proof"]
    for words in ((*arguments, "--repeats", "5", "--out", tmp_path / "out"), ("--resume", tmp_path / "out")):
        done = convtwins("run", *words, "--full")
        printed = " ".join(done.stdout.split())
        assert done.exit_code == 1, done.output
        assert "Identical training: not proved: timed runs of left-serial-2cores are not as planned." in printed
        assert "NOT AS PLANNED: left-serial-2cores, repeat 2: step 3: 2 labels are not those of the source." in printed
        assert " times as fast " not in printed and printed.count("The float64 proof alone") == 1
    proof = store.read_plan(tmp_path / "out").proof
    assert proof is not None and proof.row_verdicts["left-serial-2cores"] == "not proved"


@pytest.mark.parametrize("at_first", [False, True])
def test_a_comparison_that_goes_on_says_remembered_only_of_a_proof_that_another_one_has_made(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, at_first: bool
) -> None:
    arguments = [argument for argument in QUICK if argument != "--no-proof"]
    said: list[str] = []
    for remembered in (at_first, True):
        fake_twins.setattr(ladder, "prove", _stand_in("proved", remembered=remembered))
        assert convtwins("run", *arguments, "--out", tmp_path / "out").exit_code == 0
        proof = store.read_plan(tmp_path / "out").proof
        assert proof is not None
        said.append(proof.sentence)
    assert said == [f"losses agree within 3e-15{', remembered' * at_first}"] * 2


def test_a_proof_that_breaks_off_proves_nothing_and_the_runs_go_on(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def prove(*arguments: object, **settings: object) -> None:
        raise errors.LaunchError("left cannot record")

    fake_twins.setattr(ladder, "prove", prove)
    arguments = [argument for argument in QUICK if argument != "--no-proof"]
    done = convtwins("run", *arguments, "--out", tmp_path / "out", "--full")
    assert done.exit_code == 1
    assert "Identical training: not proved: the proof broke off: left cannot record." in done.stdout
    assert "The same training is not proved." in " ".join(done.stdout.split())
    why = "Exit code 1: the same training is not proved. The report says more.\n"
    assert done.stderr.endswith(why)
    again = convtwins("report", tmp_path / "out")
    assert again.exit_code == 1 and again.stderr.endswith(why)
    assert all(len(repeats) == 1 for repeats in store.read(tmp_path / "out").runs.values())


def test_recorded_steps_that_would_fill_the_disk_are_judged_between_two_runs_and_stay_known(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At the end of a repeat. Records of repeats that were added one by one count together."""
    calls: list[tuple[int, int]] = []

    def judge(runs: list[spot_checks.TimedRun], known: list[store.SpotCheck], *rest: object) -> list[store.SpotCheck]:
        calls.append((len(runs), len(known)))
        for *_, folder in runs:
            (folder / "spot_check_2_before.safetensors").unlink(missing_ok=True)
        return [
            store.SpotCheck(row=row.id, repeat=repeat, started_at=result.started_at, steps=[3])
            for row, repeat, result, _ in runs
        ]

    execute = executor.execute

    def recording(row: Row, repeat: int, folder: Path, *given: Any, **named: Any) -> Any:
        result = execute(row, repeat, folder, *given, **named)
        (store.run_folder(folder, row.id, repeat) / "spot_check_2_before.safetensors").write_bytes(bytes(10))
        return result

    fake_twins.setattr(executor, "execute", recording)
    fake_twins.setattr(ladder, "prove", _stand_in("proved"))
    fake_twins.setattr(spot_checks, "judge", judge)
    fake_twins.setattr(spot_checks, "MOST_BYTES", 10 * 2 * 5 + 5)  # of five repeats of two rows, and one more run
    arguments = [argument for argument in QUICK if argument != "--no-proof"]
    asked = ("--until-decided", "--repeats", "5", "--most-repeats", "7", "--smallest-effect", "0.01%")
    done = convtwins("run", *arguments, *asked, "--out", tmp_path / "out")
    stored = store.read(tmp_path / "out")
    proof = stored.comparison.proof
    assert proof is not None, done.output
    assert len(proof.spot_checks) == sum(map(len, stored.runs.values())) > 10
    assert calls[0] == (12, 0) and sum(number for number, _ in calls) == len(proof.spot_checks)


@pytest.mark.parametrize("moment", ["recorded steps", "the report"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_after_the_last_run_still_gives_the_report_and_the_way_to_go_on(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals, moment: str
) -> None:
    out = tmp_path / "out"

    def interrupt(at: str) -> None:
        if at == moment:
            os.kill(os.getpid(), number)

    def judge(*arguments: object) -> list[store.SpotCheck]:
        interrupt("recorded steps")
        return []

    def draw(drawings: Any, folder: Path) -> list[Path]:
        interrupt("the report")
        return write_empty(drawings, folder)

    fake_twins.setattr(ladder, "prove", _stand_in("proved"))
    fake_twins.setattr(spot_checks, "judge", judge)
    fake_twins.setattr(plots, "write_all", draw)
    arguments = [argument for argument in QUICK if argument != "--no-proof"]
    done = convtwins("run", *arguments, "--out", out)
    assert done.exit_code == 128 + number
    assert f"{out}/report.html" in done.stdout and (out / "report.md").exists()
    assert f"Interrupted. To continue, run the same command with --out {out}, or " in done.stderr.splitlines()[-1]
    moment = "over"
    again = convtwins("run", "--resume", out)
    assert again.exit_code == 0 and f"{out}/report.html" in again.stdout


def test_a_comparison_of_which_no_row_can_run_fails_and_says_first_why_and_what_to_do(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_twins.setattr(ladder, "prove", None)  # which nothing needs
    arguments = ("--frameworks", "left,right", "--cores", "2", "--replicas", "8", "--modes", "data_parallel")
    rehearsed = convtwins("run", *arguments, "--dry-run")
    done = convtwins("run", *arguments, "--out", tmp_path / "out")
    assert (rehearsed.exit_code, done.exit_code) == (0, 1)
    first = "NO ROW CAN RUN on this machine, so nothing is trained (not parallel: 8 replicas would take turns on 2 "
    first += "cores). Ask for fewer replicas, or add --oversubscribe, which lets replicas share cores."
    said = " ".join(done.stdout.split())
    assert " ".join(rehearsed.stdout.split()).startswith(first)
    assert first in said
    assert (tmp_path / "out" / "report.md").read_text().count(first) == 1
    assert done.stderr.endswith("Exit code 1: no row could run. The report says more.\n")
    with_serial = convtwins("run", *arguments, "--modes", "serial,data_parallel", "--out", tmp_path / "with", "--no-proof")
    assert with_serial.exit_code == 0 and "NO ROW CAN RUN" not in with_serial.stdout


def test_report_makes_everything_again_and_sets_torn_results_aside(finished: Path) -> None:
    out = finished
    before = (out / "tables" / "comparison.md").read_text()
    for name in ("report.md", "results.json"):
        (out / name).unlink()
    assert convtwins("report", out).exit_code == 0
    assert (out / "tables" / "comparison.md").read_text() == before
    torn = out / "runs" / "left-serial-1core-r0" / "result.json"
    torn.write_text(torn.read_text()[:100])
    again = convtwins("report", out, "--full")
    assert "Set aside: runs/left-serial-1core-r0/result.json is not a whole result" in re.sub(r"\s+", " ", again.stdout)
    assert "left serial, 1 core: not run" in again.stdout
    assert torn.exists()


def test_report_refuses_a_folder_without_a_comparison(tmp_path: Path) -> None:
    done = convtwins("report", tmp_path)
    assert done.exit_code == 2 and "holds no comparison" in done.stderr


def test_report_reads_a_comparison_of_a_machine_with_more_cores(fake_twins: pytest.MonkeyPatch, finished: Path) -> None:
    fake_twins.undo()
    fake_twins.setattr(plots, "write_all", write_empty)
    fake_twins.setattr("common.machine.machine.available_cores", lambda: 1)
    done = convtwins("report", finished)
    assert done.exit_code == 0, done.output


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_children_and_loses_nothing(tmp_path: Path, number: signal.Signals) -> None:
    driver = textwrap.dedent(
        """
        import sys
        from common.machine import machine
        from compare.execution import launch
        from compare.__main__ import app
        launch.FRAMEWORKS.clear()
        launch.FRAMEWORKS.update(left="tests.compare.twins.left", right="tests.compare.twins.right")
        machine.available_cores = lambda: 4
        app(sys.argv[1:])
        """
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(launch.PROJECT_ROOT),
        "FAKE_TWIN_BEHAVIOUR": json.dumps({"left-serial-2": "hang"}),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", driver, "run", *QUICK, "--out", str(tmp_path / "out")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    pids = tmp_path / "out" / "runs" / "left-serial-2cores-r0" / "pids"
    deadline = time.monotonic() + 300
    while not (pids.exists() and len(pids.read_text().split()) == 2):
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.05)
    children = [int(word) for word in pids.read_text().split()]
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 128 + number, stderr
    assert not [pid for pid in children if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
    assert re.search(r"left serial, 2 cores: killed after 1 epoch: interrupted", stdout)
    assert "right serial, 2 cores: not run" in stdout
    statuses = {row: [result.status for result in runs.values()] for row, runs in store.read(tmp_path / "out").runs.items()}
    assert statuses["left-serial-1core"] == ["ok"] and statuses["left-serial-2cores"] == ["killed"]


def test_what_is_interrupted_within_something_larger_leaves_the_words_to_that(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = executor.execute, tmp_path / "out"

    def interrupted(row: Row, *rest: Any, **named: Any) -> schema.RunResult:
        if row.id == "right-serial-1core":
            raise Interrupted(signal.SIGTERM)
        return whole(row, *rest, **named)

    request = run.ComparisonRequest(Preset({"cores": 2}, ("serial",)), ["left", "right"], None, prove=False)
    fake_twins.setattr(executor, "execute", interrupted)
    with pytest.raises(Interrupted) as raised:
        run.run_nested(request, out)
    assert raised.value.exit_code == 143
    words = capsys.readouterr()
    progress = r"left-serial-1core: \d+:\d\d; 3 left, about \d+:\d\d\.\n"
    assert words.out == "" and re.fullmatch(progress, words.err)
    kept = store.read(out).runs
    assert [result.status for result in kept["left-serial-1core"].values()] == ["ok"] and not kept["right-serial-1core"]
    fake_twins.setattr(executor, "execute", whole)
    made, code = run.run_nested(request, out)
    assert code == 0 and all(made.stored.runs.values())


def test_the_default_folder_names_time_model_and_data(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = convtwins("run", *QUICK)
    assert done.exit_code == 0, done.output
    (folder,) = (tmp_path / "results").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}-simple_cnn-digits", folder.name)
    assert f"results/{folder.name}/report.html" in done.stdout


def test_rows_survive_the_way_to_json_and_back() -> None:
    row = comparisons.row("pytorch")
    assert Row.model_validate_json(row.model_dump_json()) == row


def test_a_mode_of_which_one_update_alone_was_judged_is_not_claimed_with_its_reason(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def rung(name: str, status: Literal["passed", "shown"], **of: str) -> certificate.Rung:
        values: dict[str, Any] = {"model": "simple_cnn", "optimizer": "sgd", "precision": "float64", "steps": 20, "step": 2}
        return certificate.Rung(
            name=name, status=status, **values, **of, max_relative_difference=1e-9, tolerance=1e-8, reason="rounding"
        )

    def prove_rows(*_: object, **__: object) -> certificate.Proof:
        mode = {"framework": "left", "mode": "data_parallel"}
        others = rung("6 data_parallel against serial: weights after one step", "passed", **mode)
        return certificate.Proof(
            rungs=[rung("5 losses", "passed"), rung("6 data_parallel against serial", "shown", **mode), others], seconds=0
        )

    fake_twins.setattr(ladder, "prove_rows", prove_rows)
    modes = ("--modes", "serial,data_parallel", "--frameworks", "left,right", "--cores", "2", "--no-one-core")
    done = convtwins("run", *modes, "--repeats", "1", "--out", tmp_path / "out", "--full")
    proof = store.read_plan(tmp_path / "out").proof
    assert done.exit_code == 0 and proof is not None and proof.verdict == "proved"
    (row,) = [row for row in proof.row_verdicts if row.startswith("left-data_parallel")]
    why = prove_rows().why_one_update("left", "data_parallel")
    assert why.startswith("later losses are only shown, and single steps were not compared: one update alone was judged")
    assert proof.row_verdicts[row] == "not claimed" and proof.not_claimed == {row: why}
    assert f"{row}: not claimed: {why}." in " ".join(done.stdout.split())

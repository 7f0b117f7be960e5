"""Which runs are restarted, and what results say of it. Made-up twins die here, real ones in `tests.twins.test_restarts`."""

import json
import os
import signal
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import checkpoint, results
from common.artifacts.schema import RunResult
from common.spec import build
from compare.cli.interrupt import Interrupted, interruptible
from compare.comparison import executor
from compare.results import store
from compare.running import launch, matrix
from compare.running.contestants import Contestant
from compare.running.interleaving import Job
from compare.running.twins import Twins
from tests.compare.conftest import behave
from tests.support import comparisons
from tests.support.command_line import convtwins, convtwins_json

LEFT = Contestant.plain("left")
ROW = matrix.build_row("serial", LEFT, build({"cores": 1}))
QUICK = ("run", "--frameworks", "left", "--modes", "serial", "--cores", "1", "--no-proof")


def run(folder: Path, restarts: int) -> RunResult:
    made = executor.execute(LEFT, ROW, 0, folder, lambda events: None, restarts=restarts)
    stored = store.load_result(folder, ROW, 0)
    assert stored == made
    return made


def attempts(folder: Path) -> int:
    return 1 + len(store.earlier_attempts(store.run_folder(folder, ROW.id, 0)))


def test_a_run_that_aborts_is_not_restarted(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It gives itself that signal, and would do so again."""
    behave(fake_twins, left__serial__1="abort, abort")
    made = run(tmp_path, restarts=3)
    assert (made.status, attempts(tmp_path), made.restarts) == ("killed", 1, [])


@pytest.mark.parametrize(("behaviour", "number"), [("kill", "SIGKILL"), ("terminate", "SIGTERM")])
def test_a_run_that_a_signal_ends_is_restarted_and_says_how_often_why_and_where(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], behaviour: str, number: str
) -> None:
    behave(fake_twins, left__serial__1=f"{behaviour}, {behaviour}")
    made = run(tmp_path, restarts=3)
    assert (made.status, made.reason, len(made.epochs), attempts(tmp_path)) == ("ok", None, ROW.spec.epochs, 3)
    assert [(death.reason, death.epochs) for death in made.restarts] == [(f"killed by {number}", 1)] * 2
    assert all(0.0 < death.seconds_lost < 300.0 for death in made.restarts)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all("repeat 1" in line and made.restarts[0].words in line for line in lines)


@pytest.mark.parametrize(("days", "most"), [(0, 1.0), (1, 6.0), (-1, 6.0)])
def test_the_seconds_lost_since_a_checkpoint_are_within_the_attempt_however_the_clock_is_set(
    tmp_path: Path, days: int, most: float
) -> None:
    file, written = tmp_path / checkpoint.FILE, time.time() - 86400 * days
    file.touch()
    os.utime(file, (written, written))
    made = RunResult(framework="left", spec=ROW.spec, status="killed", reason="killed by SIGKILL", repeat=0)
    death = executor._describe_death(made, tmp_path, 5.0, 0)
    assert 0.0 <= death.seconds_lost <= most


def test_when_no_restart_is_left_the_reason_names_all_deaths(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    behave(fake_twins, left__serial__1="kill")
    made = run(tmp_path, restarts=2)
    assert (made.status, len(made.restarts), attempts(tmp_path)) == ("killed", 2, 3)
    assert [(death.reason, death.epochs, death.steps) for death in made.restarts] == [("killed by SIGKILL", 1, 0)] * 2
    reason = made.reason or ""
    assert reason.startswith("killed by SIGKILL. ") and "finished epochs: 1" in reason
    assert reason.endswith("; ".join(f"{number}. {death.words}" for number, death in enumerate(made.restarts, 1)))


@pytest.mark.parametrize(
    ("behaviour", "status"), [("crash", "failed"), ("silent", "failed"), ("diverge", "diverged"), ("interrupt", "killed")]
)
def test_a_run_that_would_end_the_same_way_again_is_not_restarted(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, behaviour: str, status: str
) -> None:
    behave(fake_twins, left__serial__1=behaviour)
    made = run(tmp_path, restarts=2)
    assert (made.status, made.restarts, attempts(tmp_path)) == (status, [], 1)


def test_a_run_that_lacked_memory_is_not_restarted_and_says_so(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    behave(fake_twins, left__serial__1="kill")
    kills = iter(range(10))
    fake_twins.setattr(launch, "memory_kills", lambda: next(kills))  # the kernel's own count
    made = run(tmp_path, restarts=2)
    assert (made.reason, made.restarts, attempts(tmp_path)) == (f"killed by SIGKILL{launch.LACKED_MEMORY}", [], 1)


def test_a_run_that_hangs_is_restarted(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    behave(fake_twins, left__serial__1="stall, ok")
    row = comparisons.with_fields(ROW, spec=ROW.spec.with_fields(hang_seconds=1.0))
    made = executor.execute(LEFT, row, 0, tmp_path, lambda events: None, restarts=1)
    (death,) = made.restarts
    assert made.status == "ok" and death.reason.startswith("the process hangs in misbehave")


ELASTIC = matrix.build_row(
    "ranks", LEFT, build({"mode": "multi_process", "replicas": 4, "least_replicas": 1, "cores": 2, "global_batch_size": 32})
)


def test_an_elastic_run_goes_on_with_fewer_replicas_that_divide_its_batch(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    behave(fake_twins, left__multi_process__2="kill, kill", left__serial__2="ok, ok, kill, ok")
    made = executor.execute(LEFT, ELASTIC, 0, tmp_path, lambda events: None, restarts=1)
    assert store.load_result(tmp_path, ELASTIC, 0) == made and made.spec == ELASTIC.spec
    # 4, then 2, since 3 do not divide 32, then 1, and once more with 1 by --restarts.
    assert (made.status, [death.replicas for death in made.restarts]) == ("not parallel", [2, 1, None])
    assert made.reason == "it went on with 1 of 4 replicas (--elastic)"
    folders = store.earlier_attempts(tmp_path / "runs" / "ranks-r0")[::-1]
    specs = [json.loads((folder / "spec.json").read_text()) for folder in folders]
    attempted = [(run["mode"], run["replicas"]) for run in specs]
    assert attempted == [("multi_process", 4), ("multi_process", 2), ("serial", 1)]


def test_an_elastic_run_that_loses_its_last_replicas_names_all_deaths(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    behave(fake_twins, left__multi_process__2="kill, kill")
    row = comparisons.with_fields(ELASTIC, spec=ELASTIC.spec.with_fields(least_replicas=2))
    made = executor.execute(LEFT, row, 0, tmp_path, lambda events: None)
    assert (made.status, made.spec, [death.replicas for death in made.restarts]) == ("killed", row.spec, [2])
    assert (made.reason or "").endswith(f"1. {made.restarts[0].words}")


def test_ctrl_c_is_no_death_and_the_resumed_comparison_keeps_those_before_it(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    behave(fake_twins, left__serial__1="kill, ctrl-c")
    with pytest.raises(Interrupted) as raised, interruptible():
        run(tmp_path, restarts=3)
    assert raised.value.exit_code == 130
    left = results.load(store.run_folder(tmp_path, ROW.id, 0) / results.RESULT_FILE)
    assert (left.status, left.reason, len(left.restarts)) == ("killed", "interrupted", 1)
    made = run(tmp_path, restarts=0)
    assert (made.status, len(made.restarts), attempts(tmp_path)) == ("ok", 1, 3)


def test_a_signal_while_a_run_is_waited_for_ends_it_before_anything_else_happens() -> None:
    ended: list[str] = []

    class Process:
        def wait(self, seconds: float) -> None:
            raise Interrupted(signal.SIGINT)

    def looks() -> Generator[Any, None, RunResult]:
        try:
            yield Process()
        finally:
            ended.append("stopped and stored")
        raise AssertionError

    with pytest.raises(Interrupted) as raised:  # it holds the frames that wait
        executor.waited_for(looks())
    assert ended and raised.value.exit_code == 130


@pytest.mark.parametrize("restarts", ["0", "1"])
def test_runs_that_know_no_turns_run_one_after_the_other_and_one_that_fails_or_dies_is_its_own_matter(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, restarts: str
) -> None:
    behave(fake_twins, left__serial__1="kill, ok", right__serial__1="crash")
    words = ("run", "--frameworks", "left,right", "--modes", "serial", "--cores", "1", "--no-proof", "--out", tmp_path / "out")
    done = convtwins(*words, "--turns", "--restarts", restarts)
    runs = store.read(tmp_path / "out").runs
    assert {row: [run.status for run in repeats.values()] for row, repeats in runs.items()} == {
        "left-serial-1core": ["ok" if restarts == "1" else "killed"], "right-serial-1core": ["failed"]
    }  # fmt: skip
    assert done.exit_code == 1 and "right-serial-1core, failed" in done.stderr and "in turns" not in done.stderr
    refused = convtwins(*words, "--no-turns")
    assert refused.exit_code == 2 and "in turns (--turns); asked for: one after the other (--no-turns)" in refused.stderr
    convtwins("run", "--resume", tmp_path / "out")
    assert store.read(tmp_path / "out").runs["left-serial-1core"][0].status == "ok"


def test_a_killed_run_that_a_resume_makes_alone_is_in_no_round_and_gets_a_caution(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The finished run of its repeat stays."""
    out = tmp_path / "out"
    behave(fake_twins, left__serial__1="kill, ok")
    words = ("--frameworks", "left,right", "--modes", "serial", "--cores", "1", "--no-proof", "--repeats", "2", "--turns")
    assert convtwins("run", *words, "--out", out).exit_code == 1
    before = store.read(out).runs
    first, second = (before["right-serial-1core"][repeat].round_id for repeat in (0, 1))
    assert first and second and first != second
    shown = " ".join(convtwins("run", "--resume", out, "--full").succeeded().stdout.split())
    runs = store.read(out).runs
    assert [(run.status, run.round_id) for run in runs["left-serial-1core"].values()] == [("ok", None)] * 2
    assert runs["right-serial-1core"] == before["right-serial-1core"]
    assert "left serial, 1 core: not trained in turns" in shown and "repeat 1, 2" in shown


def test_a_comparison_restarts_its_runs_and_its_report_says_so(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    behave(fake_twins, left__serial__1="kill, ok")
    done = convtwins(*QUICK, "--restarts", "1", "--out", tmp_path / "out", "--full").succeeded()
    ((death,),) = [run.restarts for runs in store.read(tmp_path / "out").runs.values() for run in runs.values()]
    assert death.words in " ".join(done.stdout.split()) and "--restarts" in done.stdout
    assert store.read_plan(tmp_path / "out").settings.restarts == 1


@pytest.mark.parametrize("matrix_of", [(), ("--batch-size", "32,64")], ids=["comparison", "matrix"])
def test_resuming_keeps_the_number_of_restarts_or_takes_another(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, matrix_of: tuple[str, ...]
) -> None:
    """A run of each command dies twice."""
    out = tmp_path / "out"
    behave(fake_twins, left__serial__1="kill, kill, ok")
    convtwins(*QUICK, *matrix_of, "--restarts", "2", "--out", out).succeeded()
    convtwins("run", "--resume", out, "--repeats", "2").succeeded()
    assert convtwins("run", "--resume", out, "--repeats", "3", "--restarts", "0").exit_code == 1
    folders = [path.parent for path in out.glob("*/compare.json")] if matrix_of else [out]
    for folder in folders:
        (runs,) = store.read(folder).runs.values()
        assert {repeat: (run.status, len(run.restarts)) for repeat, run in runs.items()} == {
            0: ("ok", 2), 1: ("ok", 2), 2: ("killed", 0)
        }  # fmt: skip
    assert len(folders) == (2 if matrix_of else 1)


def test_a_dry_run_says_what_restarts_cost_and_which_runs_would_start_over(fake_twins: pytest.MonkeyPatch) -> None:
    words = (*QUICK, "--restarts", "2", "--dry-run")
    plain, over = convtwins_json(*words), convtwins_json(*words, "--set", "checkpoint_seconds=null")
    assert plain["restarts"] == 2 and not plain["start_over"]
    ((row, why),) = over["start_over"].items()
    assert row == "left-serial-1core" and "checkpoint_seconds is null" in why
    shown = " ".join(convtwins(*words, "--set", "checkpoint_seconds=null").stdout.split())
    assert "2 times (--restarts)" in shown and f"{row}; {why.partition(':')[0]}" in shown


@pytest.mark.parametrize("hosts", [["127.0.0.1", "127.0.0.2"], []])
def test_a_row_over_several_hosts_overlaps_no_other_one_while_these_import_together(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, hosts: list[str]
) -> None:
    """Planted: rows that lack hosts, and import at the same time as the others."""
    behave(fake_twins, left__serial__3="rest 0.3", right__serial__3="rest 0.3", left__multi_process__3="rest 0.3")
    fields = {"cores": 3, "global_batch_size": 30}
    over_hosts = matrix.build_row("over", LEFT, build({**fields, "mode": "multi_process", "replicas": 2, "hosts": hosts}))
    one, other = (matrix.build_row(name, Contestant.plain(name), build(fields)) for name in ("left", "right"))
    jobs = [Job(row, 0) for row in (one, over_hosts, other)]
    ended = dict(executor.execute_together(jobs, Twins(["left", "right"]), tmp_path, lambda events: None))
    assert [ended[place].status for place in range(3)] == ["ok"] * 3
    together = comparisons.overlaps(tmp_path, one, over_hosts, other)
    assert together == {frozenset(("left", "right"))} if hosts else len(together) == 3

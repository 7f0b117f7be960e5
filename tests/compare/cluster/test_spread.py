"""`run --on`: what is left to run, what comes back, and the report of several machines. Jobs run in this process."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import records, results
from compare.cluster import jobs, slurm
from compare.cluster.jobs import JobEnd, JobStatus
from compare.comparison import cell_process
from compare.execution import cells, store
from compare.reporting import matrix_report
from tests.compare.cluster.test_dask_slots import QUICK, TWO, states
from tests.compare.conftest import behave
from tests.support.command_line import convtwins


@pytest.fixture
def submitted(fake_twins: pytest.MonkeyPatch) -> list[str]:
    """Comparisons that Slurm was given. It runs them in this process, one after the other."""
    given: list[str] = []

    def run(folder: Path, names: list[str], code: str, *, nodes: Any, **rest: Any) -> Any:
        for name in names:
            given.append(f"{name} on {nodes[name]}" if name in nodes else name)
            cell_process.main(folder, name, code, "7")
            yield JobEnd(name, jobs.failure_reason(jobs.read_status(folder, name, "7"), "gone"))

    fake_twins.setattr(slurm, "run", run)
    fake_twins.setattr(slurm, "check_commands", lambda: None)
    return given


def test_only_what_is_missing_is_submitted_where_it_was_begun(
    submitted: list[str], fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    behave(fake_twins, left__serial__1="crash")
    assert convtwins("run", *QUICK, *TWO, "--on", "slurm", "--out", out).exit_code == 1
    assert submitted == ["simple_cnn", "resnet18"]
    behave(fake_twins)
    answer = jobs.read_status(out, "resnet18")
    assert answer is not None
    records.write(jobs.status_file(out, "resnet18"), answer.model_copy(update={"node": "n2"}))
    for changed, expected in (((), ["n2"]), ((), []), (("--repeats", 2), ["n"]), (("--restarts", 1), [])):
        submitted.clear()
        done = convtwins("run", "--resume", out, *changed, "--json")
        assert done.exit_code == 0 and len(submitted) == 2 * len(expected), done.output
    assert [state for state, _ in states(done.stdout).values()] == ["ok", "ok"]
    assert cells.read(out).on == "slurm" and store.read_plan(out / "resnet18").repeats == 2


def test_a_single_comparison_is_a_matrix_of_one_job(submitted: list[str], tmp_path: Path) -> None:
    done = convtwins("run", *QUICK, "--on", "slurm", "--out", tmp_path / "out", "--json")
    assert done.exit_code == 0 and submitted == ["simple_cnn"], done.output
    assert json.loads(done.stdout)["cells"]["simple_cnn"]["labels"] == {"model": "simple_cnn"}


def test_no_time_is_compared_with_a_time_of_another_machine(submitted: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = convtwins("run", *QUICK, *TWO, "--repeats", 5, "--on", "slurm", "--out", out, "--json")
    assert done.exit_code == 0 and "machines" not in json.loads(done.stdout)["findings"]["Who wins where?"][-1]
    plan = store.read_plan(out / "resnet18")
    store.write_plan(out / "resnet18", plan.model_copy(update={"machine": {**plan.machine, "processor": "Another"}}))
    found = matrix_report.read(out)
    for win in matrix_report.cell_verdicts(found):
        assert {win.first.id, win.second.id} <= found.compared[win.cell.name].stored.runs.keys()
        machines = {found.compared[win.cell.name].stored.comparison.machine["processor"]}
        assert len(machines) == 1 and win.winner == "left"
    printed = json.loads(convtwins("report", out, "--json").stdout)
    assert printed["findings"]["Who wins where?"][-1] == (
        "The comparisons were made on 2 machines, each on one. No time is compared with a time of another machine."
    )
    assert [row["machine"].split(",")[0] for row in printed["tables"][1]["rows"]][1] == "M2: Another"


def test_what_comes_back_from_another_machine_is_checked(
    submitted: list[str], fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    main = cell_process.main

    def changing(folder: Path, name: str, *rest: str) -> None:
        main(folder, name, *rest)
        if name == "resnet18":
            plan = store.read_plan(folder / name)
            store.write_plan(folder / name, plan.model_copy(update={"rows": plan.rows[:1]}))

    fake_twins.setattr(cell_process, "main", changing)
    done = convtwins("run", *QUICK, *TWO, "--on", "slurm", "--out", tmp_path / "out", "--json")
    assert (
        done.exit_code == 1
        and "resnet18 has failed: " in done.stderr
        and "its rows are left-serial-1core; asked" in done.stderr
    )
    assert states(done.stdout)["simple_cnn"][0] == "ok"


def test_a_refused_comparison_gives_no_ratio(submitted: list[str], fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    main = cell_process.main

    def changing(folder: Path, name: str, *rest: str) -> None:
        main(folder, name, *rest)
        if name == "resnet18":
            path = folder / name / store.result_path("left-serial-1core", 0)
            run = results.load(path)
            results.save(run.model_copy(update={"machine": {**run.machine, "processor": "Another"}}), path.parent)

    fake_twins.setattr(cell_process, "main", changing)
    done = convtwins("run", *QUICK, *TWO, "--repeats", 5, "--on", "slurm", "--out", tmp_path / "out", "--json")
    assert done.exit_code == 1 and "resnet18 has runs of several machines" in states(done.stdout)["resnet18"][0]
    assert [row["model"] for row in json.loads(done.stdout)["tables"][0]["rows"]] == ["simple_cnn"]


def test_a_job_that_has_made_nothing_or_less_than_is_asked_for_has_failed(
    submitted: list[str], fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    main, out = cell_process.main, tmp_path / "out"

    def doing_nothing(folder: Path, name: str, code: str, job: str) -> None:
        records.write(jobs.status_file(folder, name), JobStatus(job=job, node="n", code=0))

    fake_twins.setattr(cell_process, "main", doing_nothing)
    done = convtwins("run", *QUICK, "--on", "slurm", "--out", out)
    assert done.exit_code == 1 and "simple_cnn has failed: There is no folder" in done.stderr, done.output
    fake_twins.setattr(cell_process, "main", main)
    assert convtwins("run", "--resume", out).exit_code == 0
    fake_twins.setattr(cell_process, "main", doing_nothing)  # as a job that was submitted for one repeat
    done = convtwins("run", "--resume", out, "--repeats", 2)
    assert done.exit_code == 1 and "its job has not made all runs that are asked for now." in done.stderr
    fake_twins.setattr(cell_process, "main", main)
    assert convtwins("run", "--resume", out).exit_code == 0 and len(submitted) == 4


def test_a_job_says_why_it_ran_nothing(fake_twins: pytest.MonkeyPatch, submitted: list[str], tmp_path: Path) -> None:
    codes = iter("ab")
    fake_twins.setattr(jobs, "matrix_code_hash", lambda plan: next(codes) * 64)
    done = convtwins("run", *QUICK, "--on", "slurm", "--out", tmp_path / "out")
    assert done.exit_code == 1 and "Received: bbbbbbbbbbbb, needed: aaaaaaaaaaaa. Install the same version there" in done.stderr
    assert jobs.failure_reason(None, "job 7, node_fail") == "its job was lost: job 7, node_fail"
    assert jobs.failure_reason(JobStatus(job="7", node="n1"), "gone") == "its job was lost on n1: gone"
    assert jobs.failure_reason(JobStatus(job="7", node="n1", code=1), "gone") is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--on", "ssh://host"), "--on must be slurm or the address of a Dask scheduler. Received: 'ssh://host'."),
        (("--on", "slurm", "--live"), "--on goes without --from, --again and --live."),
        (("--on", "slurm", "--hosts", "a,b"), "--on runs each comparison on one machine. Received also: --hosts."),
        (("--on", "tcp://127.0.0.1:1"), "--on: the scheduler cannot be reached. Received: tcp://127.0.0.1:1"),
        (("--on", "tcp://nowhere"), "an address is tcp://host:port"),
    ],
)
def test_what_other_machines_cannot_do_is_refused_in_a_sentence(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = convtwins("run", *QUICK, *words, "--out", tmp_path / "out")
    assert done.exit_code in (1, 2) and said in done.stderr and not (tmp_path / "out").exists(), done.output


def test_the_number_of_cores_must_be_named(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = convtwins("run", "--frameworks", "left,right", "--on", "slurm")
    assert done.exit_code == 2 and "--on needs --cores: other machines may have more or fewer." in done.stderr


def test_a_comparison_that_was_begun_here_does_not_go_on_elsewhere(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert convtwins("run", *QUICK, "--out", tmp_path / "out").exit_code == 0
    done = convtwins("run", "--resume", tmp_path / "out", "--on", "slurm")
    assert done.exit_code == 2 and "was begun on this machine. Received: --on slurm." in done.stderr

"""`run --on`: what is left to run, what comes back, and the report of several machines. Jobs run in this process."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.artifacts import records, results
from compare.reporting import matrix_report
from compare.results import cells, store
from compare.tools.cluster import cell_process, jobs, slurm
from compare.tools.cluster.jobs import JobEnd, JobStatus
from tests.compare.conftest import behave
from tests.compare.tools.cluster.test_dask_slots import QUICK, TWO, states
from tests.support import comparisons, trees
from tests.support.command_line import convtwins, convtwins_json
from tests.support.refusals import check_ended


class Cluster:
    """Slurm, which runs each job that it is given in this process, one after the other."""

    def __init__(self) -> None:
        self.jobs = list[str]()
        """Comparisons that it was given."""
        self.job: Callable[[Path, str, str, str], None] = cell_process.main
        """What a job does."""

    def run(self, folder: Path, names: list[str], code: str, *, nodes: dict[str, str], **_: object) -> Iterator[JobEnd]:
        for name in names:
            self.jobs.append(f"{name} on {nodes[name]}" if name in nodes else name)
            self.job(folder, name, code, "7")
            yield JobEnd(name, jobs.failure_reason(jobs.read_status(folder, name, "7"), "gone"))


@pytest.fixture
def cluster(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    programs = trees.write(tmp_path / "bin", dict.fromkeys(("sbatch", "squeue", "scancel", "srun"), ""))
    for program in programs.iterdir():
        program.chmod(0o755)
    fake_twins.setenv("PATH", str(programs), prepend=":")
    cluster = Cluster()
    fake_twins.setattr(slurm, "run", cluster.run)  # the real one is in test_slurm.py
    return cluster


def test_only_what_is_missing_is_submitted_where_it_was_begun(
    cluster: Cluster, fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    behave(fake_twins, left__serial__1="crash")
    assert convtwins("run", *QUICK, *TWO, "--on", "slurm", "--out", out).exit_code == 1
    assert cluster.jobs == ["simple_cnn", "resnet18"]
    behave(fake_twins)
    answer = jobs.read_status(out, "resnet18")
    assert answer is not None
    records.write(jobs.status_file(out, "resnet18"), comparisons.with_fields(answer, node="n2"))
    for changed, expected in (((), ["n2"]), ((), []), (("--repeats", 2), ["n"]), (("--restarts", 1), [])):
        cluster.jobs.clear()
        done = convtwins("run", "--resume", out, *changed, "--json").succeeded()
        assert len(cluster.jobs) == 2 * len(expected)
    assert [state for state, _ in states(done.stdout).values()] == ["ok", "ok"]
    assert cells.read(out).on == "slurm" and store.read_plan(out / "resnet18").settings.repeats == 2


def test_a_single_comparison_is_a_matrix_of_one_job(cluster: Cluster, tmp_path: Path) -> None:
    printed = convtwins_json("run", *QUICK, "--on", "slurm", "--out", tmp_path / "out")
    assert cluster.jobs == ["simple_cnn"] and printed["cells"]["simple_cnn"]["labels"] == {"model": "simple_cnn"}


def another_processor(folder: Path) -> None:
    """Say that a comparison was made elsewhere."""
    plan = store.read_plan(folder)
    elsewhere = {"processor": "Another", "processor_model": ""}
    store.write_plan(folder, comparisons.with_fields(plan, machine={**plan.machine, **elsewhere}))


def test_no_time_is_compared_with_a_time_of_another_machine(cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "out"
    printed = convtwins_json("run", *QUICK, *TWO, "--repeats", 5, "--on", "slurm", "--out", out)
    assert "machines" not in printed["findings"]["Who wins where?"][-1]
    another_processor(out / "resnet18")
    found = matrix_report.read(out)
    for win in matrix_report.cell_verdicts(found):
        assert {win.first.id, win.second.id} <= found.compared[win.cell.name].stored.runs.keys()
        machines = {found.compared[win.cell.name].stored.comparison.machine["processor"]}
        assert len(machines) == 1 and win.winner == "left"
    printed = convtwins_json("report", out)
    sentence = printed["findings"]["Who wins where?"][-1]
    assert "2 machines" in sentence and "No time is compared with a time of another machine" in sentence
    assert [row["machine"].split(",")[0] for row in printed["tables"][1]["rows"]][1] == "M2: Another"


def test_what_comes_back_from_another_machine_is_checked(cluster: Cluster, tmp_path: Path) -> None:
    def changing(folder: Path, name: str, *rest: str) -> None:
        cell_process.main(folder, name, *rest)
        if name == "resnet18":
            plan = store.read_plan(folder / name)
            store.write_plan(folder / name, comparisons.with_fields(plan, rows=plan.rows[:1]))

    cluster.job = changing
    done = convtwins("run", *QUICK, *TWO, "--on", "slurm", "--out", tmp_path / "out", "--json")
    (reason,) = [line for line in done.stderr.splitlines() if line.startswith("resnet18 has failed: ")]
    assert done.exit_code == 1 and "its rows are left-serial-1core; asked" in reason
    assert states(done.stdout)["simple_cnn"][0] == "ok"


def test_a_refused_comparison_gives_no_ratio(cluster: Cluster, tmp_path: Path) -> None:
    def changing(folder: Path, name: str, *rest: str) -> None:
        cell_process.main(folder, name, *rest)
        if name == "resnet18":
            path = folder / name / store.result_path("left-serial-1core", 0)
            run = results.load(path)
            results.save(comparisons.with_fields(run, machine={**run.machine, "processor": "Another"}), path.parent)

    cluster.job = changing
    done = convtwins("run", *QUICK, *TWO, "--repeats", 5, "--on", "slurm", "--out", tmp_path / "out", "--json")
    state = states(done.stdout)["resnet18"][0]
    assert done.exit_code == 1 and "resnet18" in state and "another processor in left-serial-1core" in state
    assert [row["model"] for row in done.json["tables"][0]["rows"]] == ["simple_cnn"]


def test_a_job_that_has_made_nothing_or_less_than_is_asked_for_has_failed(cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def doing_nothing(folder: Path, name: str, code: str, job: str) -> None:
        records.write(jobs.status_file(folder, name), JobStatus(job=job, node="n", code=0))

    cluster.job = doing_nothing
    done = convtwins("run", *QUICK, "--on", "slurm", "--out", out)
    assert done.exit_code == 1 and f"simple_cnn has failed: There is no folder {out / 'simple_cnn'}" in done.stderr
    cluster.job = cell_process.main
    convtwins("run", "--resume", out).succeeded()
    cluster.job = doing_nothing  # as a job that was submitted for one repeat
    done = convtwins("run", "--resume", out, "--repeats", 2)
    assert done.exit_code == 1 and "simple_cnn has failed: its job has not made all runs" in done.stderr
    cluster.job = cell_process.main
    convtwins("run", "--resume", out).succeeded()
    assert len(cluster.jobs) == 4


def test_a_job_says_why_it_ran_nothing(cluster: Cluster, tmp_path: Path) -> None:
    cluster.job = lambda folder, name, code, job: cell_process.main(folder, name, "a" * 64, job)
    done = convtwins("run", *QUICK, "--on", "slurm", "--out", tmp_path / "out")
    code = jobs.matrix_code_hash(cells.read(tmp_path / "out"))[:12]
    assert done.exit_code == 1 and f"Received: {code}, needed: aaaaaaaaaaaa." in done.stderr
    assert jobs.failure_reason(None, "job 7, node_fail") == "its job was lost: job 7, node_fail"
    assert jobs.failure_reason(JobStatus(job="7", node="n1"), "gone") == "its job was lost on n1: gone"
    assert jobs.failure_reason(JobStatus(job="7", node="n1", code=1), "gone") is None


def test_a_comparison_that_was_begun_here_does_not_go_on_elsewhere(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    convtwins("run", *QUICK, "--out", tmp_path / "out").succeeded()
    done = convtwins("run", "--resume", tmp_path / "out", "--on", "slurm")
    check_ended(done, field=f"{tmp_path / 'out'}", received="--on slurm")

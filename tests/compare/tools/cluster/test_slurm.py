"""`run --on slurm`: the script on any machine, jobs on a real Slurm of one node where Debian's packages are there."""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.artifacts import records
from common.errors import UserError
from common.machine import machine
from common.processes import supervisor
from compare.results import cells, store
from compare.results.cells import JOBS_FOLDER
from compare.tools.cluster import jobs, slurm, spread
from compare.tools.cluster.jobs import JobStatus
from tests.compare.tools.cluster.test_dask_slots import QUICK, REAL, TWO, states
from tests.support import processes, trees
from tests.support.command_line import convtwins, convtwins_json
from tests.support.refusals import check, check_ended, refused

DAEMONS = ("munged", "slurmctld", "slurmd")
CONFIGURATION = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={controller}
SlurmdPort={node}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=10
MpiDefault=none
MailProg=/bin/true
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=20 State=UP
"""


@pytest.fixture
def programs(tmp_path: Path, fake_twins: pytest.MonkeyPatch) -> Path:
    """A folder of PATH with programs that only say that they ran."""
    text = f'#!/bin/sh\necho "$0 $*" >> {tmp_path}/ran\necho "${{0##*/}}: no cluster here" >&2\nexit 1\n'
    folder = trees.write(tmp_path / "bin", dict.fromkeys(("sbatch", "squeue", "scancel", "srun"), text))
    for program in folder.iterdir():
        program.chmod(0o755)
    fake_twins.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def test_a_dry_run_prints_what_sbatch_would_be_given_and_submits_nothing(programs: Path, tmp_path: Path) -> None:
    out = tmp_path / "a b"
    done = convtwins("run", *QUICK, *TWO, "--on", "slurm", "--out", out, "--dry-run").succeeded()
    flags = {line.removeprefix("#SBATCH --") for line in done.stdout.splitlines() if line.startswith("#SBATCH")}
    assert {"exclusive", "mem=0", "nodes=1", "no-requeue", "array=0-1%2", f"job-name={slurm._job_name(out)}"} <= flags
    assert not any(flag.startswith(("time", "partition", "wckey", "nodelist")) for flag in flags)  # those of sbatch's variables
    assert done.stdout.startswith("#!/bin/bash\n") and "srun" not in done.stdout
    assert done.stdout.rstrip().endswith(f"{sys.executable} -u -m submitit.core._submit '{out}/jobs'")
    assert f"export PYTHONPATH={machine.PROJECT_ROOT}" in done.stdout
    assert "2 jobs (simple_cnn, resnet18)" in done.stderr
    assert not out.exists() and not (tmp_path / "ran").exists()
    assert "array" not in convtwins("run", *QUICK, "--on", "slurm", "--dry-run").stdout
    printed = convtwins_json("run", *QUICK, *TWO, "--on", "slurm", "--out", out, "--dry-run")
    assert printed["jobs"] == ["simple_cnn", "resnet18"] and printed["script"] == done.stdout.rstrip("\n") + "\n"


def test_what_sbatch_says_against_a_job_is_said(programs: Path, tmp_path: Path) -> None:
    words = ("run", *QUICK, *TWO, "--on", "slurm", "--out", tmp_path / "out")
    done = convtwins(*words)
    assert done.exit_code == 1
    check(UserError(done.stderr.splitlines()[-1]), names=["squeue: no cluster here"])
    (programs / "squeue").write_text("#!/bin/sh\n")
    done = convtwins(*words)
    assert done.exit_code == 1
    check(UserError(done.stderr.splitlines()[-1]), field="sbatch", received="sbatch: no cluster here", fix="SBATCH_PARTITION")
    ran = [Path(line.split()[0]).name for line in (tmp_path / "ran").read_text().splitlines()]
    assert ran == ["squeue", "sbatch", "scancel"]


def test_a_machine_without_slurm_is_refused_before_anything_is_written(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_twins.setenv("PATH", str(tmp_path))
    done = convtwins("run", *QUICK, "--on", "slurm", "--out", tmp_path / "out")
    check_ended(done, exit_code=1, field="--on", received="a machine without sbatch, squeue, scancel, srun", fix="login")
    assert not (tmp_path / "out").exists()


def test_states_of_the_jobs_of_a_folder_are_read(programs: Path, tmp_path: Path) -> None:
    (programs / "squeue").write_text("#!/bin/sh\necho '7_0|RUNNING|None'\necho '7_1|PENDING|Resources'\n")
    words = {job: state.text for job, state in slurm._states(tmp_path).items()}
    assert words == {"7_0": "running", "7_1": "pending (Resources)"}
    (programs / "squeue").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    with refused(slurm.LaunchError, names=["squeue", "Unable to contact slurm controller"]):
        slurm._states(tmp_path, 2, 0.0)


@pytest.mark.slow
def test_jobs_that_a_killed_command_left_are_cancelled_where_it_did_not_note_them_and_those_that_have_ended_run_again(
    programs: Path, fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = f"{tmp_path}/ran"
    (programs / "squeue").write_text("#!/bin/sh\nprintf '7_0|COMPLETING\\n7_1|RUNNING\\n7_2|PENDING\\n'\n")
    (programs / "scancel").write_text(f'#!/bin/sh\necho "scancel $*" >> {log}\n')
    (programs / "sbatch").write_text(
        f'#!/bin/sh\necho "sbatch $SBATCH_JOB_NAME $SLURM_ARRAY_JOB_ID" >> {log}\necho "Submitted batch job 9"\n'
    )
    fake_twins.setenv("SBATCH_JOB_NAME", "mine")
    fake_twins.setenv("SLURM_ARRAY_JOB_ID", "3")
    (tmp_path / JOBS_FOLDER).mkdir()
    records.write(jobs.status_file(tmp_path, "a"), JobStatus(job="7_0", node="n", code=130, failure="its job was cancelled"))
    records.write(jobs.status_file(tmp_path, "b"), JobStatus(job="7_1", node="n"))
    submitted, rest = dict[str, str](), {"nodes": dict[str, str](), "on_submitted": lambda made: submitted.update(made)}
    ends = slurm.run(tmp_path, ["a", "b"], "c", job_ids={"a": "7_0", "b": "7_1"}, say=lambda line: ends.throw(KeyError), **rest)
    with pytest.raises(ValueError, match="already executing"):
        next(ends)
    first, *others = Path(log).read_text().splitlines()
    assert set(first.split()) == {"scancel", "7_0", "7_2"}
    assert submitted == {"a": "9", "b": "7_1"}
    assert others == ["sbatch  ", f"scancel --name={slurm._job_name(tmp_path)}"]


def test_jobs_that_cannot_be_cancelled_are_named(programs: Path, tmp_path: Path) -> None:
    lines = list[str]()
    slurm._cancel(tmp_path, {"a": "7"}, lines.append)
    (line,) = lines
    assert "scancel: no cluster here" in line and line.endswith(f"scancel --name={slurm._job_name(tmp_path)}")


def test_a_folder_that_slurm_cannot_write_to_is_refused(programs: Path, tmp_path: Path) -> None:
    done = convtwins("run", *QUICK, "--on", "slurm", "--out", tmp_path / "50%", "--dry-run")
    check_ended(done, exit_code=1, field="%", received=f"{tmp_path / '50'}", fix="--out")


@pytest.fixture
def real_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Slurm on this machine, with its files in a temporary folder."""
    places = f"{os.environ['PATH']}{os.pathsep}/usr/sbin"
    if missing := [name for name in (*DAEMONS, "sbatch") if shutil.which(name, path=places) is None]:
        pytest.skip(f"Slurm is not here: {', '.join(missing)} missing (Debian: apt-get install slurm-wlm munge)")
    if os.geteuid() != 0:
        pytest.skip("Slurm of one's own is started as root")
    folder = tmp_path / "slurm"
    trees.write(folder, {"state": None, "spool": None, "key": os.urandom(1024)})
    (folder / "key").chmod(0o400)
    controller, node = supervisor.free_ports(2, "127.0.0.1")
    facts = {"host": os.uname().nodename.split(".")[0], "folder": folder, "controller": controller, "node": node}
    (folder / "slurm.conf").write_text(CONFIGURATION.format(**facts, cpus=os.cpu_count()))
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    monkeypatch.setenv("PATH", places)
    munge = [
        f"--{name}={folder}/munge.{name.removesuffix('-file')}" for name in ("socket", "pid-file", "log-file", "seed-file")
    ]
    commands = (
        ["munged", "--force", "--foreground", f"--key-file={folder}/key", *munge],
        ["slurmctld", "-D"],
        ["slurmd", "-D"],
    )
    with contextlib.ExitStack() as started:
        for command in commands:
            log = started.enter_context((folder / f"{command[0]}.txt").open("wb"))
            daemon = processes.started(command, stdout=log, stderr=log, start_new_session=True)
            process = started.enter_context(daemon)
            started.callback(process.wait, 30)
            started.callback(process.terminate)
            time.sleep(1.0)
        until = time.monotonic() + 30
        while "idle" not in (seen := processes.run(["sinfo", "-h", "-o", "%T"]).stdout):
            assert time.monotonic() < until, f"{seen}\n{(folder / 'slurmctld.txt').read_text()}"
            time.sleep(0.5)
        yield


@pytest.mark.slow
def test_a_real_slurm_runs_comparisons_one_at_a_time_and_an_interrupted_command_goes_on(
    real_slurm: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, lines = tmp_path / "out", list[str]()

    def interrupting(line: str) -> None:
        lines.append(line)
        if ": pytorch-serial-1core (1 of 2): " in line:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(spread, "_say", interrupting)  # at this line somebody presses Ctrl-C
        done = convtwins("run", *REAL, "--repeats", 2, "--on", "slurm", "--out", out)
    assert done.exit_code == 130 and f"run --resume {out}" in done.stderr, "\n".join([*lines, done.output])
    assert any("is pending" in line for line in lines)  # the node is not shared
    begun = {cell.name for cell in cells.read(out).cells if (out / cell.name / store.PLAN_FILE).exists()}
    assert len(begun) == 1
    (name,) = begun
    answer = jobs.read_status(out, name)
    assert answer is not None and "cancelled" in (answer.failure or "") and answer.node == os.uname().nodename
    assert processes.run(["squeue", "-h"]).stdout == ""
    before = (out / name / store.result_path("pytorch-serial-1core", 0)).stat().st_mtime_ns

    done = convtwins("run", "--resume", out, "--json").succeeded()
    assert [state for state, _ in states(done.stdout).values()] == ["ok", "ok"]
    assert (out / name / store.result_path("pytorch-serial-1core", 0)).stat().st_mtime_ns == before
    assert any(f"#SBATCH --nodelist={answer.node}" in path.read_text() for path in (out / "jobs").glob("*.sh"))
    third = convtwins("run", "--resume", out)
    assert third.exit_code == 0 and "0 comparisons to run on slurm, 2 there" in third.stderr


@pytest.mark.slow
def test_a_job_that_is_lost_fails_with_its_reason_and_one_that_still_runs_is_waited_for(
    real_slurm: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, ran = tmp_path / "out", (*REAL[:4], "--batch-size", 32, *REAL[6:], "--on", "slurm", "--out", tmp_path / "out")
    monkeypatch.setattr(slurm, "_ANSWER_SECONDS", 2.0)  # on a disk of one machine

    def killing(line: str) -> None:
        if "is running" in line:
            processes.run(["scancel", "--signal=KILL", "--full", line.split("job ")[1].split()[0]]).succeeded()

    with monkeypatch.context() as patch:
        patch.setattr(spread, "_say", killing)  # at this line the node dies
        done = convtwins("run", *ran, "--json")
    assert done.exit_code == 1 and "its job was lost" in states(done.stdout)["simple_cnn"][0], done.output

    def deserting(line: str) -> None:
        if "is running" in line:
            raise slurm.LaunchError("as if Slurm did not answer")

    with monkeypatch.context() as patch:
        patch.setattr(spread, "_say", deserting)  # at this line Slurm answers no more
        assert convtwins("run", *ran).exit_code == 1
    (job,) = (cell.job for cell in cells.read(out).cells)
    done = convtwins("run", "--resume", out)
    assert done.exit_code == 0, done.output
    assert [cell.job for cell in cells.read(out).cells] == [job]
    assert f"job {job} is running" in done.stderr or "has come back" in done.stderr

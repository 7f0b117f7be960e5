"""Which processes of a job are its ranks."""

import json
import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from common.spec import SpecError
from convtwins_hangs.watching import stacks
from convtwins_hangs.watching.job import ProcessInfo, WatchedJob, group_by_rank, ranks_from_environment
from plugins.hangs.tests.watching.jobs import started
from tests.support import processes
from tests.support.refusals import refused


def found(pid: int, parent: int, **environment: str) -> ProcessInfo:
    return ProcessInfo(pid, parent, environment)


def task(index: int, kind: str = "worker") -> str:
    return json.dumps({"cluster": {}, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize(
    ("processes", "groups"),
    [
        ([found(1, 0)], {"process 1": [1]}),
        ([found(1, 0), found(2, 1), found(3, 2)], {"process 1": [1, 2, 3]}),
        ([found(1, 0), found(5, 0)], {"process 1": [1], "process 5": [5]}),
        (
            # torchrun, two ranks, and a worker of a DataLoader, which has the variable of its rank
            [found(1, 0), found(2, 1, RANK="1"), found(3, 1, RANK="0"), found(4, 3, RANK="0"), found(5, 4, RANK="0")],
            {"rank 0": [3, 4, 5], "rank 1": [2], "process 1": [1]},
        ),
        (
            # a batch system tells all of a node the same, torchrun tells them apart
            [found(1, 0, SLURM_PROCID="3"), found(2, 1, SLURM_PROCID="3", RANK="6"), found(3, 1, SLURM_PROCID="3", RANK="7")],
            {"rank 6": [2], "rank 7": [3], "process 1": [1]},
        ),
        (
            [found(1, 0, OMPI_COMM_WORLD_RANK="10"), found(2, 0, OMPI_COMM_WORLD_RANK="9")],
            {"rank 9": [2], "rank 10": [1]},
        ),
        (
            [found(1, 0, TF_CONFIG=task(1)), found(2, 0, TF_CONFIG=task(0)), found(3, 0, TF_CONFIG=task(0, "ps"))],
            {"ps 0": [3], "worker 0": [2], "worker 1": [1]},
        ),
        ([found(1, 0, RANK="0"), found(2, 0, RANK="0")], {"rank 0 (process 1)": [1], "rank 0 (process 2)": [2]}),
        ([found(1, 0, RANK="zero", TF_CONFIG="{}")], {"process 1": [1]}),
    ],
)
def test_ranks_are_told_by_what_launchers_put_into_the_environment(
    processes: list[ProcessInfo], groups: dict[str, list[int]]
) -> None:
    ranks = ranks_from_environment(processes)
    made = group_by_rank(processes, ranks)
    assert [(each.name, each.pids) for each in made] == list(groups.items())
    assert [each.is_rank for each in made] == [not ranks or not each.name.startswith("process") for each in made]


def test_a_process_that_does_not_exist_is_refused_by_name() -> None:
    for pid in (2**22 + 1, 2**40, -1):
        with refused(SpecError, received=pid):
            WatchedJob([os.getpid(), pid])


def test_ranks_whose_launcher_has_ended_belong_to_the_job_still(tmp_path: Path) -> None:
    code = """
    import os, subprocess, sys, time
    for rank in "01":
        environment = {**os.environ, "RANK": rank, "WORLD_SIZE": "2"}
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], env=environment)
    print("ready")
    time.sleep(120)
    """
    with started(code, tmp_path) as pid:
        launcher = psutil.Process(pid)
        ranks = launcher.children()
        try:
            job, deadline = WatchedJob([pid]), time.monotonic() + 10
            while (before := [group.name for group in job.groups() if group.is_rank]) != ["rank 0", "rank 1"]:
                assert time.monotonic() < deadline, before  # the second may have just started
            launcher.kill()
            while launcher.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)
            assert [group.name for group in job.groups() if group.is_rank] == ["rank 0", "rank 1"]
        finally:
            for each in ranks:
                each.kill()


@pytest.mark.parametrize("rank", ["9" * 5000, "1" * 10])
def test_a_rank_of_no_usual_size_is_none(rank: str) -> None:
    assert ranks_from_environment([ProcessInfo(1, 0, {"RANK": rank}), ProcessInfo(2, 0, {"RANK": "1"})]) == {2: "1"}


def test_a_job_holds_what_its_processes_started_and_each_once() -> None:
    (group,) = WatchedJob([os.getpid(), os.getpid()]).groups()
    assert group.pids[0] == os.getpid() and group.is_rank


def test_what_a_rank_has_started_is_not_asked_for_its_rank(tmp_path: Path) -> None:
    """Input workers start with every epoch. A look that asked them all would take seconds."""
    code = """
    import multiprocessing, subprocess, sys, time
    def work(rank):
        waits = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"]) for _ in range(3)]
        print("ready", flush=True)
        time.sleep(120)
    if __name__ == "__main__":
        rank = 1  # a starter may have such a variable
        started = [multiprocessing.get_context("fork").Process(target=work, args=(each,)) for each in range(2)]
        for each in started:
            each.start()
        for each in started:
            each.join()
    """
    asked: list[int] = []

    def dump(pid: int) -> stacks.StackDump:
        asked.append(pid)
        return stacks.dump(pid)

    with started(code, tmp_path) as pid:
        deadline = time.monotonic() + 30
        # One may be ready before the other one has been started.
        ranks = psutil.Process(pid).children()
        while sum(len(each.children()) for each in ranks) < 6:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            ranks = psutil.Process(pid).children()
        job = WatchedJob([pid], dump)
        names = [group.name for group in job.groups() if group.is_rank]
        job.groups()
    assert names == ["rank 0", "rank 1"]
    assert {*asked} == {pid, *(each.pid for each in ranks)} and len(asked) == 3


def test_a_rank_that_has_ended_and_is_not_waited_for_keeps_its_name() -> None:
    with processes.started(["sleep", 60], variables={"RANK": "3"}) as process:
        job, deadline = WatchedJob([process.pid]), time.monotonic() + 10
        while (before := [group.name for group in job.groups()]) != ["rank 3"] and time.monotonic() < deadline:
            time.sleep(0.02)  # its program has just started
        process.kill()
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.02)
        after = [group.name for group in job.groups()]
    assert before == after == ["rank 3"]


def test_a_program_that_has_no_environment_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # A moment that a test cannot choose.
    environ, asked = psutil.Process.environ, list[int]()

    def late(process: psutil.Process) -> dict[str, str]:
        asked.append(process.pid)
        return {} if len(asked) == 1 else environ(process)

    monkeypatch.setattr(psutil.Process, "environ", late)
    with processes.started(["sleep", 60], variables={"RANK": "3"}) as process:
        job, deadline = WatchedJob([process.pid]), time.monotonic() + 10
        names = [job.groups()[0].name]
        while names[-1] != "rank 3" and time.monotonic() < deadline:
            names.append(job.groups()[0].name)
    assert (names[0], names[-1]) == (f"process {process.pid}", "rank 3")


def test_a_shell_that_becomes_another_program_is_asked_again_for_its_rank() -> None:
    command = ["sh", "-c", "read line; export RANK=3; exec sleep 60"]
    with processes.started(command, stdin=subprocess.PIPE) as process:
        job = WatchedJob([process.pid])
        assert [group.name for group in job.groups()] == [f"process {process.pid}"]
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        deadline = time.monotonic() + 10
        while (name := job.groups()[0].name) != "rank 3" and time.monotonic() < deadline:
            time.sleep(0.02)
    assert name == "rank 3"


def test_who_watches_is_no_part_of_the_job_that_it_runs_in() -> None:
    with processes.started(["sleep", 60]) as process:
        around = {each.pid for each in WatchedJob([os.getppid()]).processes()}
        named = {each.pid for each in WatchedJob([process.pid]).processes()}
    assert os.getppid() in around and not around & {os.getpid(), process.pid}
    assert named == {process.pid}


def access_denied(*_: object, **__: object) -> None:
    raise psutil.AccessDenied(1)


def test_processes_that_the_system_hides_are_said_to_be_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """As psutil and the kernel answer where /proc is mounted with hidepid=1 and hidepid=2."""
    job = WatchedJob([os.getpid()])
    monkeypatch.setattr(psutil.Process, "children", access_denied)
    with refused(SpecError, names=["hidepid"]):
        job.groups()

    def may_not_be_signalled(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", may_not_be_signalled)
    with refused(SpecError, received=4194305, names=["hidepid"]):
        WatchedJob([2**22 + 1])

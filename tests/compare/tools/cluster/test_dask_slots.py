"""`run --on tcp://...`: a Dask cluster whose workers have a slot each."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.config
import distributed
import psutil
import pytest

from common.data.preprocessing import dask_scan
from common.machine import machine
from common.processes import supervisor
from compare.cli.errors import LaunchError
from compare.results import cells, store
from compare.tools.cluster import dask_slots, jobs, spread
from tests.compare.conftest import behave
from tests.support import comparisons
from tests.support.command_line import convtwins, convtwins_json
from tests.support.refusals import check_ended, refused

QUICK = ("--frameworks", "left,right", "--cores", 1, "--no-proof", "--modes", "serial", "--no-one-core")
TWO = ("--model", "simple_cnn,resnet18")
REAL = (
    *("--model", "simple_cnn", "--data", "digits", "--batch-size", "32,64", "--modes", "serial", "--no-one-core"),
    *("--cores", 1, "--no-proof", "--set", "steps=2", "--limit", 200),
)


@contextmanager
def cluster(*hosts: str, slots: int = 1) -> Generator[str]:
    """The address of a scheduler in this process, with a worker at each of these addresses of this machine."""
    options = {"nthreads": 1, "dashboard": False, "resources": {dask_slots.RESOURCE: slots} if slots else {}}
    workers = {number: {"cls": distributed.Worker, "options": {"host": host, **options}} for number, host in enumerate(hosts)}
    there = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    scheduler = {"cls": distributed.Scheduler, "options": there}
    routes = {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}
    with dask.config.set(routes), distributed.SpecCluster(workers=workers, scheduler=scheduler, silence_logs=50) as made:
        yield made.scheduler_address


@pytest.fixture
def fakes(fake_twins: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The fake twins, in the processes of jobs too."""
    fake_twins.setattr(jobs, "PROCESS", "tests.compare.tools.cluster.fake_cell")  # the worker that starts it is Dask's
    return fake_twins


def states(printed: str) -> dict[str, tuple[str, str]]:
    table = next(each for each in json.loads(printed)["tables"] if each["name"] == "cells")
    return {row["cell"]: (row["state"], row["machine"] or "") for row in table["rows"]}


@pytest.mark.slow
def test_two_comparisons_run_on_two_machines_join_one_folder_and_only_what_is_missing_runs_again(
    fakes: pytest.MonkeyPatch, ssh_key: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with cluster("127.0.0.2", "127.0.0.3") as address:
        dry = convtwins_json("run", *QUICK, *TWO, "--on", address, "--out", out, "--dry-run")
        assert dry["jobs"] == ["simple_cnn", "resnet18"] and not out.exists()
        behave(fakes, right__serial__1="crash")
        done = convtwins("run", *QUICK, *TWO, "--on", address, "--out", out, "--json", "--sign", ssh_key)
        assert done.exit_code == 1, done.output
        assert [state for state, _ in states(done.stdout).values()] == ["1 failed"] * 2
        assert "simple_cnn: right-serial-1core, failed" in done.stderr and "resnet18 has come back from" in done.stderr
        assert {"127.0.0.2" in done.stderr, "127.0.0.3" in done.stderr} == {True}
        for name in ("simple_cnn", "resnet18"):
            assert (out / name / "report.html").exists() and store.read(out / name).signature is not None
        behave(fakes)
        left = {
            name: (out / name / store.result_path("left-serial-1core", 0)).stat().st_mtime_ns for name in states(done.stdout)
        }
        again = convtwins("run", "--resume", out, "--json").succeeded()
        assert all(state == "ok" and "M1: " in made_on for state, made_on in states(again.stdout).values())
        for name, before in left.items():
            stored = store.read(out / name)
            assert store.earlier_attempts(store.run_folder(out / name, "right-serial-1core", 0))
            assert stored.runs["left-serial-1core"][0].status == stored.runs["right-serial-1core"][0].status == "ok"
            assert before and not (out / f".{name}.received").exists()
        third = convtwins("run", *QUICK, *TWO, "--on", address, "--out", out)
        assert third.exit_code == 0 and "0 comparisons to run" in third.stderr and "sent to" not in third.stderr
    assert convtwins("run", *QUICK, *TWO, "--out", out).exit_code == 2  # it would mix machines


@pytest.mark.slow
def test_an_interrupted_command_cancels_its_jobs_and_keeps_what_has_come_back(
    fakes: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, lines = tmp_path / "out", list[str]()

    def interrupting(line: str) -> None:
        lines.append(line)
        if sum("sent to" in line for line in lines) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with cluster("127.0.0.2") as address:
        with fakes.context() as patch:
            patch.setattr(spread, "_say", interrupting)  # at this line somebody presses Ctrl-C
            done = convtwins("run", *QUICK, *TWO, "--on", address, "--out", out)
        assert done.exit_code == 130 and f"run --resume {out}" in done.stderr
        assert (out / "simple_cnn" / store.PLAN_FILE).exists() and not (out / "resnet18").exists()
        until = time.monotonic() + 20
        while (others := psutil.Process().children()) and time.monotonic() < until:
            time.sleep(0.1)
        assert not others
        done = convtwins("run", "--resume", out)
        assert done.exit_code == 0 and "1 comparison to run" in done.stderr and "simple_cnn: sent" not in done.stderr


@pytest.mark.slow
def test_a_refused_comparison_fails_alone_and_one_begun_elsewhere_is_not_gone_on_with(
    fakes: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with cluster("127.0.0.2") as address:
        behave(fakes, left__serial__1="crash")
        done = convtwins("run", *QUICK, "--data", f"{tmp_path / 'nowhere'},digits", "--on", address, "--out", out, "--json")
        assert done.exit_code == 1 and "nowhere has failed: " in done.stderr
        assert states(done.stdout)["digits"][0] == "1 failed" and "nowhere" in states(done.stdout)["nowhere"][0]
        plan = store.read_plan(out / "digits")
        other = comparisons.with_fields(plan, machine={**plan.machine, "processor": "Another"})
        store.write_plan(out / "digits", other)
        done = convtwins("run", "--resume", out, "--json")
    assert done.exit_code == 1 and "digits has failed: no machine of the cluster" in done.stderr
    assert "digits: sent" not in done.stderr and (out / "digits" / store.PLAN_FILE).exists()


@pytest.mark.parametrize(
    ("hosts", "slots", "parts"),
    [
        ((), 1, {"names": ["No worker", "tcp://127.0.0.1"]}),
        (("127.0.0.2",), 0, {"field": "slot", "names": ["dask worker ADDRESS --nworkers 1"]}),
        (("127.0.0.2", "127.0.0.2"), 1, {"received": "2 workers with a slot on 127.0.0.2", "fix": "dask worker"}),
    ],
)
def test_a_cluster_without_a_slot_on_each_machine_is_refused_before_anything_is_written(
    fakes: pytest.MonkeyPatch, tmp_path: Path, hosts: Sequence[str], slots: int, parts: dict[str, Any]
) -> None:
    with cluster(*hosts, slots=slots) as address:
        done = convtwins("run", *QUICK, "--on", address, "--out", tmp_path / "out")
    check_ended(done, exit_code=1, **parts)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        ({"failure": None, "code": "0" * 64, "machine": {}}, {"received": "0" * 12, "names": ["1" * 12], "fix": "PYTHONPATH"}),
        ({"failure": "no model"}, {"received": "no model"}),
        (ModuleNotFoundError("No module named 'compare'"), {"received": "No module named 'compare'", "fix": "PYTHONPATH"}),
    ],
)
def test_a_worker_that_cannot_run_this_code_is_refused_by_its_address(answer: Any, parts: dict[str, Any]) -> None:
    good = {"failure": None, "code": "1" * 64, "machine": {}}
    dask_slots.check_answers({"tcp://h:1": good}, "1" * 64)
    with refused(LaunchError, field="tcp://h:2", **parts):
        dask_slots.check_answers({"tcp://h:1": good, "tcp://h:2": answer}, "1" * 64)


async def silent(*given: object, dask_worker: Any) -> None:
    if "127.0.0.2" in dask_worker.address:
        await asyncio.sleep(60)


def test_a_worker_that_does_not_answer_is_named_in_time(fakes: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A worker that is stopped would stop all here: they are threads of one process.
    fakes.setattr(dask_slots, "probe", silent)
    fakes.setattr(dask_slots, "_ANY_TASK", silent)
    fakes.setattr(dask_slots, "_PROBE_SECONDS", 0.5)
    fakes.setattr(dask_slots, "_ANSWER_SECONDS", 0.5)
    with cluster("127.0.0.2", "127.0.0.3") as address:
        done = convtwins("run", *QUICK, *TWO, "--on", address, "--out", tmp_path / "out")
    check_ended(done, exit_code=1, names=["Silent: tcp://127.0.0.2", "0.5 s"])
    assert "127.0.0.3" not in done.stderr and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_job_whose_code_was_changed_after_the_check_is_refused_on_its_machine(
    fakes: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code_of = jobs.matrix_code_hash
    with cluster("127.0.0.2") as address, fakes.context() as patch:
        patch.setattr(jobs, "matrix_code_hash", lambda plan: code_of(plan)[::-1])  # that of before the change
        done = convtwins("run", *QUICK, "--on", address, "--out", tmp_path / "out", "--json")
    code = code_of(cells.read(tmp_path / "out"))
    assert done.exit_code == 1 and f"Received: {code[:12]}, needed: {code[::-1][:12]}." in states(done.stdout)["simple_cnn"][0]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Starts programs of Dask as a user does. Those that still run are ended."""
    running = list[subprocess.Popen[bytes]]()

    def start(*words: object, pythonpath: str = os.environ.get("PYTHONPATH", "")) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PYTHONPATH": pythonpath}
        command = [sys.executable, "-m", "dask", *map(str, words)]
        # Each ends with all that it has started, which `processes.started` does not do.
        running.append(subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True))
        return running[-1]

    yield start
    for each in running:
        kill(each)


def kill(process: subprocess.Popen[bytes]) -> None:
    """A program of Dask with its worker, as when a machine goes. A second call does nothing."""
    if process.poll() is None:
        for each in (*psutil.Process(process.pid).children(recursive=True), process):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()


@pytest.mark.slow
def test_real_workers_run_real_comparisons_one_of_them_dies_and_a_stranger_is_refused(started: Any, tmp_path: Path) -> None:
    (port,) = supervisor.free_ports(1, "127.0.0.1")
    address, out = f"tcp://127.0.0.1:{port}", tmp_path / "out"
    path = os.pathsep.join([str(machine.PROJECT_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    slot = ("--nworkers", 1, "--nthreads", 1, "--resources", "convtwins=1", "--no-dashboard")
    scheduler = started("scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard", pythonpath=path)
    stranger = started("worker", address, "--host", "127.0.0.4", *slot, pythonpath="")
    done = wait_for(1, address, out)
    assert done.exit_code == 1 and "127.0.0.4" in done.stderr and "No module named" in done.stderr
    kill(stranger)
    first = started("worker", address, "--host", "127.0.0.2", *slot, pythonpath=path)
    started("worker", address, "--host", "127.0.0.3", *slot, pythonpath=path)

    def killing(line: str) -> None:
        if "sent to tcp://127.0.0.2" in line:
            kill(first)

    with distributed.Client(address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spread, "_say", killing)  # at this line the machine dies
        done = convtwins("run", *REAL, "--on", address, "--out", out, "--json")
    assert done.exit_code == 1, done.output
    found = sorted(state for state, _ in states(done.stdout).values())
    assert found[1] == "ok" and found[0].startswith("its job was lost: the worker tcp://127.0.0.2:"), found
    done = convtwins("run", "--resume", out, "--json").succeeded()
    assert [state for state, _ in states(done.stdout).values()] == ["ok", "ok"]
    runs = [runs for cell in cells.read(out).cells for runs in store.read(out / cell.name).runs.values()]
    assert {run.framework for repeats in runs for run in repeats.values()} == {"pytorch", "tensorflow"}
    with distributed.Client(address, set_as_default=False) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(dask_scan, "_REPLY_TIMEOUT_SECONDS", 1.0)  # of another scheduler than one that is stopped
        assert dask_slots._workers(client)
        scheduler.send_signal(signal.SIGSTOP)
        assert not dask_slots._workers(client)
        scheduler.send_signal(signal.SIGCONT)


def wait_for(workers: int, address: str, out: Path) -> Any:
    with distributed.Client(address, timeout=60, set_as_default=False) as client:
        client.wait_for_workers(workers, timeout=60)
    return convtwins("run", *REAL, "--on", address, "--out", out)

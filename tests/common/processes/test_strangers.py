"""Processes of other users reach the ports of a run, and no further."""

import asyncio
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import distributed
import pytest

from common.machine import placement
from common.machine.dask_security import RunSecurity
from common.processes import supervisor
from tests.strangers import attack, listening
from tests.support import processes

SECRET = "of the run"


def server(port: int) -> list[str]:
    return ["-m", "common.processes.parameter_server", "--address", placement.LOOPBACK, "--port", str(port)]


CLUSTER = """
    import sys
    from common.data.preprocessing import dask_scan
    if __name__ == "__main__":
        with dask_scan.client(1, "processes"):
            print("ready", flush=True)
            sys.stdin.read()
"""


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Starts a Python process of this project that knows the secret."""
    monkeypatch.setenv(placement.RUN_SECRET_VARIABLE, SECRET)
    with ExitStack() as stack:

        def start_one(words: list[str], **environment: str) -> subprocess.Popen[str]:
            how = {"stdin": subprocess.PIPE, "stderr": None, "variables": environment}
            return stack.enter_context(processes.started([sys.executable, *words], **how))

        yield start_one


def test_the_attack_runs_code_on_a_cluster_that_does_not_know_its_processes(tmp_path: Path) -> None:
    async def victim(security: RunSecurity | None, protocol: str, marker: Path) -> list[bool]:
        there = {"host": placement.LOOPBACK, "protocol": protocol, "security": security, "dashboard_address": "127.0.0.1:0"}
        async with (
            distributed.Scheduler(port=0, **there) as scheduler,
            distributed.Worker(scheduler.address, **there) as worker,
        ):
            answers = await asyncio.to_thread(attack, [scheduler.port, worker.port], marker)
        return [answer.refused for answer in answers]

    assert not all(asyncio.run(victim(None, "tcp", tmp_path / "ran")))
    assert (tmp_path / "ran").is_dir()
    assert all(asyncio.run(victim(RunSecurity(), "convtwins", tmp_path / "did not run")))
    assert not (tmp_path / "did not run").exists()


def test_a_stranger_reaches_nothing_of_a_parameter_server(start: Any, tmp_path: Path) -> None:
    (port,) = supervisor.free_ports(1)
    process = start(server(port))
    ports = wait_for_ports(process.pid, 4)
    answers = attack(ports, tmp_path / "ran")
    assert not (tmp_path / "ran").exists()
    assert process.poll() is None
    served = {answer.port for answer in answers if answer.refused}
    assert port in served and len(served) >= 2, "the scheduler and the worker"
    for pages in ports - served:  # Dask opens them, and nothing is behind them
        for page in ("health", "info/main/workers.html", "metrics", "json/counts.json", "api/v1/retire_workers"):
            with pytest.raises((urllib.error.HTTPError, ConnectionError)) as refused:
                urllib.request.urlopen(f"http://{placement.LOOPBACK}:{pages}/{page}", timeout=300)
            if isinstance(refused.value, urllib.error.HTTPError):
                assert refused.value.code == 404
                refused.value.close()
    with distributed.Client(f"convtwins://127.0.0.1:{port}", security=RunSecurity(SECRET), set_as_default=False) as client:
        assert client.submit(sum, [1, 2]).result() == 3
    with pytest.raises(OSError, match="secret"):
        distributed.Client(f"convtwins://127.0.0.1:{port}", security=RunSecurity("another"), timeout=300)


def test_a_stranger_reaches_nothing_of_a_cluster_of_processes(start: Any, tmp_path: Path) -> None:
    process = start(["-c", textwrap.dedent(CLUSTER)])
    assert process.stdout.readline() == "ready\n"
    answers = attack(listening(process.pid), tmp_path / "ran")
    assert not (tmp_path / "ran").exists()
    assert len({answer.port for answer in answers if answer.refused}) >= 3, "the scheduler, the nanny and the worker"


def test_a_stranger_learns_nothing_at_the_meeting_place_and_does_not_end_it(start: Any, tmp_path: Path) -> None:
    (port,) = supervisor.free_ports(1)
    meet = "from common.processes import rendezvous; print(rendezvous.all_gather('here'))"
    place = {"MASTER_ADDR": placement.LOOPBACK, "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    first = start(["-c", meet], RANK="0", **place)
    wait_for_ports(first.pid, 1)
    assert all(answer.refused for answer in attack([port], tmp_path / "ran"))
    second = start(["-c", meet], RANK="1", **place)
    assert [process.communicate()[0] for process in (first, second)] == ["['here', 'here']\n"] * 2
    assert not (tmp_path / "ran").exists()


def test_a_rank_tells_nothing_to_one_that_listens_in_place_of_rank_0(start: Any) -> None:
    (port,) = supervisor.free_ports(1)
    meet = "from common.processes import rendezvous; rendezvous.all_gather('here')"
    place = {"MASTER_ADDR": placement.LOOPBACK, "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    start(["-c", meet], RANK="0", **place, **{placement.RUN_SECRET_VARIABLE: "another"})
    done = processes.python("-c", meet, RANK="1", **place)
    assert done.exit_code == 1 and "AuthenticationError" in done.stderr


def wait_for_ports(process: int, count: int) -> set[int]:
    deadline = time.monotonic() + 300
    while len(ports := listening(process)) < count:
        assert time.monotonic() < deadline, "it does not listen"
        time.sleep(0.05)
    return ports

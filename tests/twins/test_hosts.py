"""Ranks on two hosts, which are network namespaces of this machine with addresses of their own, and under outer launchers."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from common import spec
from common.artifacts import checkpoint, event_log, results
from common.machine import machine, placement
from common.processes import supervisor
from compare.results import store
from compare.running.twins import Twins
from tests.namespaces import joined_hosts
from tests.strangers import attack, listening
from tests.support import comparisons, processes
from tests.twins.runs import ENDLESS, PROJECT, RANKS, SECONDS, SETTINGS, Run, wait_until_gone

SHELL = "ip netns exec {host}"
MODES = [mode for mode in spec.MODES if mode not in ("serial", "data_parallel")]
"""Those that have several processes in a framework."""


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Two hosts by address, each in a namespace of that name; what runs in one sees nothing of the other but the wire."""
    with joined_hosts(2) as made:
        yield [host.address for host in made]


@pytest.fixture
def start(begin: Any, tmp_path: Path) -> Any:
    def start_one(name: str, fields: dict[str, Any], prefix: tuple[str, ...] = (), **environment: str) -> Run:
        return begin(tmp_path / name, fields, prefix, **environment)

    return start_one


def over(hosts: list[str]) -> tuple[str, ...]:
    return tuple(SHELL.replace("{host}", hosts[0]).split())


@pytest.mark.slow
@pytest.mark.parametrize("mode", spec.MODES.names(lambda mode: mode.runs_across_hosts))
def test_a_run_over_two_hosts_trains_what_a_run_on_one_does(start: Any, hosts: list[str], mode: str) -> None:
    run = start("apart", RANKS | {"mode": mode, "hosts": hosts}, over(hosts), CONVTWINS_RSH=SHELL)
    apart = run.end()
    together = start("together", RANKS | {"mode": mode}).end()
    assert apart.status == together.status == "ok", f"{apart.reason}\n{run.log}"
    assert apart.order_hash == together.order_hash
    assert [each.train for each in apart.epochs] == [each.train for each in together.epochs]
    assert apart.predictions_hash == together.predictions_hash


@pytest.mark.slow
def test_an_asynchronous_server_answers_ranks_on_two_hosts(start: Any, hosts: list[str]) -> None:
    fields = {"mode": "parameter_server", "parameter_server": {"updates": "asynchronous"}, "hosts": hosts}
    run = start("apart", RANKS | fields, over(hosts), CONVTWINS_RSH=SHELL)
    result = run.end()
    assert result.status == "ok", f"{result.reason}\n{run.log}"
    assert sum(result.staleness.counts) == 2 * sum(epoch.steps for epoch in result.epochs)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["multi_process", "parameter_server"])
def test_a_rank_that_dies_on_another_host_ends_the_run_and_is_named(start: Any, hosts: list[str], mode: str) -> None:
    run = start("apart", ENDLESS | {"mode": mode, "hosts": hosts}, over(hosts), CONVTWINS_RSH=SHELL)
    run.wait_for_an_epoch()
    distant = _on(hosts[1])
    (rank,) = [process for process in distant if "_impl" in " ".join(process.cmdline())]
    rank.kill()
    result = run.end()
    assert result.status == "killed"
    assert f"rank 1 of 2 on {hosts[1]} was ended by SIGKILL" in result.reason, result.reason
    wait_until_gone(distant)


@pytest.mark.slow
def test_a_comparison_restarts_a_run_over_two_hosts(framework: str, hosts: list[str], tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(SETTINGS | {"epochs": 200, "checkpoint_seconds": 0}))
    modes = ["--frameworks", framework, "--modes", "multi_process", "--hosts", ",".join(hosts), "--no-proof"]
    words = ["--spec", str(tmp_path / "spec.json"), *modes, "--restarts", "1", "--out", str(tmp_path / "out")]
    with (tmp_path / "log").open("wb") as log:
        command = [*over(hosts), sys.executable, "-m", "convtwins", "run", *words]
        environment = {**os.environ, "CONVTWINS_RSH": SHELL}
        process = subprocess.Popen(command, cwd=PROJECT, stdout=log, stderr=log, env=environment)  # it is told to end below
    try:
        deadline = time.monotonic() + SECONDS
        while not list((tmp_path / "out").glob(f"runs/*/{checkpoint.FILE}")):
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.05)
        (rank,) = [each for each in _on(hosts[1]) if "_impl" in " ".join(each.cmdline())]
        rank.kill()
        assert process.wait(SECONDS) == 0, (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait()
    (path,) = (tmp_path / "out").glob(f"runs/*-r0/{results.RESULT_FILE}")
    result = results.load(path)
    (death,) = result.restarts
    assert f"rank 1 of 2 on {hosts[1]} was ended by SIGKILL" in death.reason
    assert (result.status, result.resumes, len(result.epochs)) == ("ok", 1, 200)


@pytest.mark.slow
@pytest.mark.skipif(machine.available_cores() < 2, reason="two hosts and rows of other cores need two cores")
def test_a_row_over_two_hosts_overlaps_no_row_that_takes_turns_and_turns_change_no_loss(
    framework: str, hosts: list[str], tmp_path: Path
) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(SETTINGS))
    modes = ("--frameworks", framework, "--modes", "serial,multi_process", "--hosts", ",".join(hosts), "--no-proof")
    words = (sys.executable, "-m", "convtwins", "run", "--spec", tmp_path / "spec.json", *modes)
    trained: list[dict[str, Any]] = []
    for turns, takes_turns in (("--turns", True), ("--no-turns", False)):
        out = tmp_path / turns
        processes.run([*over(hosts), *words, turns, "--out", out], CONVTWINS_RSH=SHELL).succeeded()
        stored = store.read(out)
        rows = stored.comparison.rows
        runs = {row.id: stored.runs[row.id][0] for row in rows}
        here = frozenset(row.id for row in rows if not row.spec.hosts)
        assert [row.spec.hosts for row in rows if row.id not in here] == [tuple(hosts)] and len(here) == 2
        assert comparisons.overlaps(out, *rows) == ({here} if takes_turns else set())
        assert {row for row, run in runs.items() if run.round_id} == (here if takes_turns else set())
        trained.append({row: [epoch.train for epoch in run.epochs] for row, run in runs.items()})
    assert trained[0] == trained[1] and all(len(epochs) == SETTINGS["epochs"] for epochs in trained[0].values())


@pytest.mark.slow
def test_a_rank_that_hangs_on_another_host_is_named_and_its_stacks_come_back(start: Any, hosts: list[str]) -> None:
    fields = RANKS | {"hosts": hosts, "hang_seconds": 5.0}
    run = start("apart", fields, over(hosts), CONVTWINS_RSH=SHELL, CONVTWINS_PLANTED="two_locks")
    result = run.end()
    assert result.status == "killed"
    assert f"rank 1 of 2 on {hosts[1]} hangs in take (hanging.py:" in result.reason, result.reason
    assert "hanging.py" in (run.folder / "stacks-rank1.txt").read_text()


@pytest.mark.slow
def test_ranks_on_other_hosts_end_with_a_launcher_that_is_killed(start: Any, hosts: list[str]) -> None:
    run = start("apart", ENDLESS | {"hosts": hosts}, over(hosts), CONVTWINS_RSH=SHELL)
    run.wait_for_an_epoch()
    everything = [*_on(hosts[0]), *_on(hosts[1])]
    assert len(everything) >= 3
    run.kill()
    wait_until_gone(everything)


@pytest.mark.shared
@pytest.mark.parametrize("mode", ["multi_process", "parameter_server"])
def test_hosts_that_do_not_begin_with_this_machine_are_refused(start: Any, mode: str) -> None:
    run = start("elsewhere", RANKS | {"mode": mode, "hosts": ["192.0.2.77", "192.0.2.78"]})
    assert run.process.wait(300) == 2
    assert "hosts must begin with this machine. Received: 192.0.2.77, 192.0.2.78" in run.log


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_listens_on_the_loopback_interface_alone(start: Any, framework: str, mode: str) -> None:
    if Twins([framework]).describe(framework)["modes"][spec.MODES[mode].name]["one_process"]:
        pytest.skip(f"{mode} is one process in {framework}")
    run = start("here", spec.with_variant(ENDLESS, mode, 2))
    run.wait_for_an_epoch()
    family = [psutil.Process(run.process.pid), *psutil.Process(run.process.pid).children(recursive=True)]
    listening = {
        (process.pid, connection.laddr.ip, connection.laddr.port)
        for process in family
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening, "the ranks are connected"
    everywhere = {(pid, port) for pid, address, port in listening if address not in ("127.0.0.1", "::1")}
    if everywhere:  # a socket that is bound to an interface and not to an address
        sockets = processes.run(["ss", "-Hltnp"]).succeeded().stdout.splitlines()
        for pid, port in everywhere:
            assert any(f"%lo:{port} " in line and f"pid={pid}," in line for line in sockets), sockets


@pytest.mark.slow
def test_a_stranger_on_this_machine_reaches_nothing_of_a_parameter_server(start: Any, tmp_path: Path) -> None:
    run = start("here", ENDLESS | {"mode": "parameter_server"})
    run.wait_for_an_epoch()
    (server,) = [
        process
        for process in psutil.Process(run.process.pid).children(recursive=True)
        if "parameter_server" in str(process.cmdline())
    ]
    answers = attack(listening(run.process.pid), tmp_path / "ran")
    assert not (tmp_path / "ran").exists()
    assert {answer.port for answer in answers if answer.refused} & listening(server.pid)
    epochs = len(event_log.read_epochs(run.folder))
    deadline = time.monotonic() + 300
    while len(event_log.read_epochs(run.folder)) <= epochs:
        assert time.monotonic() < deadline and run.process.poll() is None, run.log
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["multi_process", "parameter_server"])
def test_killed_ranks_leave_no_temporary_files(start: Any, tmp_path: Path, mode: str) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    run = start("here", ENDLESS | {"mode": mode}, TMPDIR=str(temporary))
    run.wait_for_an_epoch()
    assert list(temporary.iterdir()), "the folder of the run"
    ranks = [each for each in psutil.Process(run.process.pid).children() if "_impl" in str(each.cmdline())]
    ranks[-1].kill()
    assert run.end().status == "killed"
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_ranks_that_something_else_starts_find_each_other(start: Any, framework: str) -> None:
    (port,) = supervisor.free_ports(1)
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": placement.LOOPBACK, "MASTER_PORT": str(port)}
    first, second = (start("outer", RANKS, RANK=str(rank), **place) for rank in range(2))
    assert first.end().status == "ok", first.log
    assert second.process.wait(300) == 0


@pytest.mark.slow
def test_ranks_under_the_framework_s_own_launcher_find_each_other(start: Any, framework: str) -> None:
    if framework == "pytorch":
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python")
        assert start("outer", RANKS, torchrun).end().status == "ok"
        return
    workers = [f"{placement.LOOPBACK}:{port}" for port in supervisor.free_ports(2)]
    config = {"cluster": {"worker": workers}}
    ranks = [
        start("outer", RANKS, TF_CONFIG=json.dumps(config | {"task": {"type": "worker", "index": rank}})) for rank in (0, 1)
    ]
    assert [rank.process.wait(300) for rank in ranks] == [0, 0], ranks[0].log
    assert ranks[0].end().status == "ok"


@pytest.mark.shared
@pytest.mark.parametrize(
    ("fields", "environment", "words"),
    [
        (
            RANKS,
            {"RANK": "0", "WORLD_SIZE": "3"},
            "replicas must be the number of ranks that were started.",
        ),
        (
            RANKS,
            {"RANK": "2", "WORLD_SIZE": "2"},
            "replicas must be the number of ranks that were started.",
        ),
        (RANKS, {"RANK": "0", "WORLD_SIZE": "2"}, "Missing in the environment: MASTER_ADDR, MASTER_PORT."),
        ({}, {"RANK": "0", "WORLD_SIZE": "2"}, "mode serial is one process here. Received: RANK=0 in the environment."),
    ],
)
def test_a_rank_that_does_not_fit_the_spec_is_refused_in_words(
    start: Any, fields: dict[str, Any], environment: dict[str, str], words: str
) -> None:
    run = start("refused", fields, **environment)
    assert run.process.wait(300) == 2
    assert words in run.log


def _on(host: str) -> list[psutil.Process]:
    """What runs in a namespace."""
    listed = processes.run(["ip", "netns", "pids", host]).succeeded().stdout
    return [psutil.Process(int(pid)) for pid in listed.split()]

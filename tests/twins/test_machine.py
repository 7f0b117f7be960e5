"""Runs on a machine that sleeps, whose network is cut, whose clock is set or whose disk is slow, and a rank that never ends."""

import itertools
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import event_log
from common.processes.hosts import SHELL
from tests import full_disk
from tests.control_groups import freezer, within
from tests.namespaces import Host, joined_hosts
from tests.support import processes
from tests.support.command_line import convtwins_process
from tests.twins.runs import ENDLESS, RANKS, wait_until_gone

pytestmark = pytest.mark.slow

HANG_SECONDS, SHORT_SECONDS = 5.0, 4.0
CLOCKS = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
NO_HANG_SECONDS = 200.0


@pytest.mark.parametrize(("seconds", "version"), [(6.0, 1), (15.0, 1), (6.0, 2)])
def test_a_run_on_a_machine_that_sleeps_for_longer_than_the_limit_is_not_called_hanging(
    begin: Any, framework: str, tmp_path: Path, seconds: float, version: int
) -> None:
    fields = RANKS | {"hang_seconds": SHORT_SECONDS, "epochs": 60}
    with freezer(version) as (group, freeze):
        run = begin(tmp_path / "run", fields, within(group))
        run.wait_for_an_epoch()
        freeze(True)
        epochs = len(event_log.read_epochs(run.folder))
        time.sleep(seconds)
        assert len(event_log.read_epochs(run.folder)) == epochs < 60
        freeze(False)
        result = run.end()
    assert "no progress" not in run.log
    assert (result.status, result.reason, len(result.epochs)) == ("ok", None, 60), run.log
    awake = begin(tmp_path / "awake", fields).end()
    assert awake.final_weights_hash == result.final_weights_hash is not None


@pytest.mark.parametrize("version", [1, 2])
def test_a_rank_that_the_freezer_stops_alone_ends_the_run_and_is_named(begin: Any, tmp_path: Path, version: int) -> None:
    with freezer(version) as (group, freeze):
        run = begin(tmp_path / "run", ENDLESS | {"hang_seconds": HANG_SECONDS})
        rank = run.ranks()[1]
        (group / "cgroup.procs").write_text(str(rank.pid), encoding="ascii")
        frozen = time.monotonic()
        freeze(True)
        result = run.end()
        seconds = time.monotonic() - frozen
        freeze(False)
        wait_until_gone(run.processes())
    assert result.status == "killed"
    assert re.match(r"rank 1 of 2 is stopped after step \d+; rank 0 of 2 waits in ", result.reason), result.reason
    assert seconds <= HANG_SECONDS + 30.0  # ten of them for its end, which does not come while it is frozen


@pytest.mark.parametrize("shell", ["local", "ssh"])
@pytest.mark.parametrize("seconds", [8.0, 60.0])
def test_a_run_over_two_hosts_outlives_a_network_that_is_cut_or_says_so(
    begin: Any, framework: str, tmp_path: Path, ssh_to: Any, seconds: float, shell: str
) -> None:
    """The streams of a local shell are not cut. Those of ssh are, and it gives up after 20 s.

    Eight seconds outlast the pauses of TCP, and become more than ten without a message.
    """
    with joined_hosts(2) as hosts:
        fields = RANKS | {"hosts": [host.address for host in hosts], "epochs": 100, "hang_seconds": NO_HANG_SECONDS}
        command = "ip netns exec {host}" if shell == "local" else ssh_to(hosts[1])
        run = begin(tmp_path / "cut", fields, hosts[0].command(), CONVTWINS_RSH=command)
        run.wait_for_an_epoch()
        hosts[1].plug(False)
        time.sleep(seconds)
        still_runs = run.process.poll() is None
        hosts[1].plug()
        result = run.end()
        wait_until_gone(run.processes())
    if seconds > 10.0 and shell == "ssh":
        assert (result.status, still_runs) == ("killed", False), result.reason
        assert result.reason.startswith(f"rank 1 of 2 on {hosts[1].address} lost its connection"), result.reason
    elif seconds > 10.0 and framework == "tensorflow":  # its gRPC gives up
        assert (result.status, result.reason) == ("failed", "UnavailableError: Graph execution error:")
    else:
        assert (result.status, result.reason, len(result.epochs)) == ("ok", None, 100), run.log
        together = begin(tmp_path / "together", RANKS | {"epochs": 100}).end()
        assert still_runs and result.final_weights_hash == together.final_weights_hash is not None


@pytest.fixture
def ssh_to(tmp_path: Path) -> Iterator[Any]:
    """Starts a server of ssh on a host. Gives the command that reaches it as `hosts.SHELL` would."""
    if shutil.which("sshd") is None:
        pytest.skip("there is no sshd (openssh-server)")
    servers: list[subprocess.Popen[bytes]] = []
    folder = tmp_path / "ssh"
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        processes.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]).succeeded()
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)

    def serve(host: Host) -> str:
        settings = {
            "HostKey": folder / "host", "AuthorizedKeysFile": folder / "user.pub", "StrictModes": "no", "UsePAM": "no",
            "ListenAddress": host.address, "PidFile": "none",
        }  # fmt: skip
        words = [str(shutil.which("sshd")), "-D", "-e", "-f", "/dev/null"]
        words += [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        with (folder / "log").open("wb") as log:
            servers.append(subprocess.Popen(host.command(*words), stderr=log))
        own = f"-i {folder / 'user'} -o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=no"
        return SHELL.replace("{host}", f"{own} {{host}}")

    yield serve
    for server in servers:
        server.terminate()
        server.wait()


def test_a_wall_clock_that_jumps_changes_no_time_and_no_weight(begin: Any, tmp_path: Path) -> None:
    if not CLOCKS:
        pytest.skip("the wall clock is set by libfaketime")
    jumps, fields = tmp_path / "jumps", {"epochs": 60}
    jumps.write_text("+0d")
    variables = {"FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_TIMESTAMP_FILE": str(jumps)}
    (tmp_path / "tomorrow").write_text("+1d")
    of_tomorrow = {"LD_PRELOAD": str(CLOCKS[0]), **variables, "FAKETIME_TIMESTAMP_FILE": str(tmp_path / "tomorrow")}
    tomorrow = float(processes.python("-c", "import time; print(time.time())", **of_tomorrow).succeeded().stdout)
    assert tomorrow > time.time() + 80_000, "the library sets no clock"
    begun = time.monotonic()
    run = begin(tmp_path / "jumps-run", fields, LD_PRELOAD=str(CLOCKS[0]), **variables)
    for days in itertools.cycle((1, -2, 30, 0)):
        (tmp_path / "next").write_text(f"{days:+d}d")
        (tmp_path / "next").replace(jumps)
        if run.process.poll() is not None:
            break
        time.sleep(0.5)  # many epochs
    seconds = time.monotonic() - begun
    result = run.end()
    assert (result.status, result.reason) == ("ok", None), run.log
    assert result.phases is not None
    assert all(0.0 <= value <= seconds for value in result.phases.model_dump().values() if value is not None), result.phases
    assert all(0.0 < each.seconds <= seconds for each in result.epochs)
    alone = begin(tmp_path / "alone", fields).end()
    assert result.final_weights_hash == alone.final_weights_hash is not None


def test_the_time_of_a_slow_disk_is_in_no_epoch(begin: Any, tmp_path: Path) -> None:
    disk, delay = full_disk.FullDisk(full_disk.compiled(tmp_path), tmp_path / "slow", delay_ms=2000), 2.0
    fields = {"epochs": 4, "checkpoint_seconds": 0}
    result = begin(tmp_path / "slow", fields, **disk.environment).end()
    assert (result.status, result.reason, result.phases is None) == ("ok", None, False)
    epochs = [number for number, each in enumerate(disk.writes()) if each.kind[1] == "checkpoint.safetensors"]
    slowed = delay * (epochs[-1] - epochs[0])  # by one process, one after the other
    assert len(epochs) >= 4 and result.phases.other_seconds >= slowed
    assert max(each.seconds for each in result.epochs) < delay
    alone = begin(tmp_path / "alone", fields).end()
    assert result.final_weights_hash == alone.final_weights_hash is not None


def test_a_rank_that_computes_for_ever_is_not_ended_and_watch_names_it(begin: Any, tmp_path: Path) -> None:
    run = begin(tmp_path / "run", RANKS | {"hang_seconds": HANG_SECONDS}, CONVTWINS_PLANTED="spinning")
    said = convtwins_process("watch", run.process.pid, "--json", "--patience", "5", "--seconds", "90").json
    assert (said["verdict"], said["to_blame"]) == ("stuck", ["rank 1"]), said["because"]
    assert "for rank 1, which asks again and again in spinning (hanging.py:" in said["because"]
    time.sleep(2 * HANG_SECONDS)
    assert run.process.poll() is None

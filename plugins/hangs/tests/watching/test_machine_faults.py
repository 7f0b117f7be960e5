"""Jobs that the machine holds up: a quota, too little memory, a network that is cut. They need root."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from common.machine import machine
from convtwins_hangs.watching.verdict import SLOW, STUCK
from plugins.hangs.tests.watching.jobs import started, watched
from plugins.hangs.tests.watching.test_watch import TRAINING
from tests.control_groups import control_group, freezer
from tests.namespaces import joined_hosts
from tests.support import processes


@pytest.mark.slow
def test_a_job_that_its_quota_stops_is_slow_and_the_quota_is_named(tmp_path: Path) -> None:
    settings = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "10000"}, {"cpu.max": "10000 100000"}
    with control_group("cpu", *settings) as group, started(TRAINING, tmp_path) as pid:
        (group / "cgroup.procs").write_text(str(pid))
        found = watched(pid, lambda found: found.state == SLOW and "quota" in found.reason)
    assert found.state == SLOW
    gets = rf"process {pid} gets 0\.[01]\d of the .* cores that it wants"
    assert re.fullmatch(rf"{gets}; the quota of its control group stops it \d+ % of the time", found.reason), found.reason


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2])
def test_a_job_that_the_freezer_of_its_control_group_stops_is_stuck_and_not_slow_by_its_disk(
    tmp_path: Path, version: int
) -> None:
    with freezer(version) as (group, freeze), started(TRAINING, tmp_path) as pid:
        (group / "cgroup.procs").write_text(str(pid))
        freeze(True)
        found = watched(pid)
        freeze(False)
    assert (found.state, found.reason) == (STUCK, f"process {pid} is frozen by the freezer of a control group")


MAPPED = """
    import mmap, os, random, time
    size = 256 * 2**20
    with open("data.bin", "wb") as file:
        for _ in range(256):
            file.write(os.urandom(2**20))
        os.fsync(file.fileno())
    print("ready")
    time.sleep(1)
    with open("data.bin", "rb") as file:
        data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        data.madvise(mmap.MADV_RANDOM)
        while True:
            data[random.randrange(size)]
"""


@pytest.mark.slow
def test_a_job_whose_memory_comes_from_the_disk_again_and_again_is_slow_and_says_so(tmp_path: Path) -> None:
    settings = {"memory.limit_in_bytes": str(64 * 2**20)}, {"memory.max": str(64 * 2**20)}
    with control_group("memory", *settings) as group, started(MAPPED, tmp_path) as pid:
        (group / "cgroup.procs").write_text(str(pid))
        # What it wrote is in the memory of the machine, and is dropped from there.
        with (tmp_path / "data.bin").open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        found = watched(pid, lambda found: found.state == SLOW and "memory" in found.reason)
    assert found.state == SLOW
    words = rf"process {pid} waits for its memory: [\d,]+ pages a second come from the disk"
    assert re.fullmatch(words, found.reason), found.reason


RANK = """
    import os, socket, sys, time
    rank, address = int(os.environ["RANK"]), os.environ["MASTER_ADDR"]
    def all_reduce(peer):
        peer.sendall(b"x" * 1000)
        left = 1000
        while left:
            left -= len(peer.recv(left))
    if rank == 0:
        listener = socket.create_server((address, 29500))
        print("ready")
        peer, _ = listener.accept()
    else:
        peer = socket.create_connection((address, 29500))
        print("ready")
    while True:
        all_reduce(peer)
        time.sleep(0.01)
"""


@pytest.mark.slow
def test_a_network_that_is_cut_is_named_with_the_host_that_gives_no_answer(tmp_path: Path) -> None:
    with joined_hosts(2) as hosts:
        shared = {"MASTER_ADDR": hosts[0].address, "WORLD_SIZE": "2"}

        def wrapped(rank: int) -> list[str]:
            return [*hosts[rank].command("env"), *(f"{name}={value}" for name, value in (shared | {"RANK": str(rank)}).items())]

        with (
            started(RANK, tmp_path, "first.py", wrapped(0)) as pid,
            started(RANK, tmp_path, "second.py", wrapped(1)),
        ):
            # On each host, its own ranks are watched.
            command = hosts[0].command(sys.executable, "-m", "compare", "watch", str(pid), "--json", "--patience", "4")
            variables = {"PYTHONPATH": str(machine.PROJECT_ROOT)}
            healthy = processes.run([*command, "--seconds", 3], **variables)
            assert healthy.json["verdict"] != "stuck", healthy.stdout
            switch = f"{hosts[0].address.rpartition('.')[0]}.switch"
            processes.run(["ip", "-netns", switch, "link", "set", "plug1", "down"]).succeeded()
            done = processes.run([*command, "--seconds", 60], **variables)
    said = done.json
    assert (done.exit_code, said["verdict"], said["to_blame"]) == (6, STUCK, ["rank 0"]), done.stderr
    assert re.fullmatch(
        r"rank 0 waits for a socket or pipe in all_reduce \(first\.py:\d+: left -= len\(peer\.recv\(left\)\)\); "
        rf"rank 0 gets no answer from {re.escape(hosts[1].address)}:\d+: the network is cut, or the other host is gone",
        said["because"],
    ), said["because"]

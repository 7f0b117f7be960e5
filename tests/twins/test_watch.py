"""`watch` on jobs of each framework: our own runs, and plain scripts as anybody writes them."""

import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from common import spec
from common.processes import supervisor
from convtwins_hangs.watching.verdict import HEALTHY, STUCK, Verdict
from plugins.hangs.tests.watching.jobs import watched
from tests.twins.runs import ENDLESS, RANKS, SECONDS, SETTINGS, Run

PATIENCE = 4.0
MARGIN_SECONDS = 10.0
"""Until a hang is found, on a machine that has much else to do."""
SCRIPTS = {
    "pytorch": """
import os, sys, threading
import torch
import torch.distributed as dist
import torch.multiprocessing

lock = threading.Lock()


def fetch(number, rank):
    if STAYS_AWAY and number == 20 and rank == 1:
        lock.acquire()
    with lock:
        return torch.ones(64, 64)


def train(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    number = 0
    while True:
        gradient = fetch(number, rank) @ torch.ones(64, 64)
        dist.all_reduce(gradient)
        number += 1


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, args=(sys.argv[1],), nprocs=2)
""",
    "tensorflow": """
import json, os, sys, threading
import tensorflow as tf

lock = threading.Lock()
tf.config.threading.set_intra_op_parallelism_threads(1)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]


@tf.function
def step(batch):
    def replica_step(images):
        gradient = images @ tf.ones((64, 64))
        return tf.distribute.get_replica_context().all_reduce("sum", gradient)

    return strategy.run(replica_step, args=(batch,))


def fetch(number):
    if STAYS_AWAY and number == 20 and rank == 1:
        lock.acquire()
    with lock:
        return tf.ones((64, 64))


def train():
    number = 0
    while True:
        step(fetch(number)).numpy()
        number += 1


train()
""",
}
"""Two ranks of a user. Rank 1 waits for a lock in its 21st step, where it stays away."""
EXCHANGES = {"pytorch": r"all_reduce", "tensorflow": r"a call of TensorFlow"}
# Twin: torch.multiprocessing.spawn passes the rank as an argument. TensorFlow reads TF_CONFIG.
NAMES = {"pytorch": "rank", "tensorflow": "worker"}


@pytest.fixture
def start(begin: Any, tmp_path: Path) -> Any:
    """Starts a run of this suite that hangs as planted, and that its own watchdog leaves alone."""

    def start_one(planted: str, fields: dict[str, Any]) -> Run:
        at = str(tmp_path / "planted")
        return begin(tmp_path, {"hang_seconds": 600.0} | fields, CONVTWINS_PLANTED=planted, CONVTWINS_PLANTED_AT=at)

    return start_one


@pytest.fixture
def script(framework: str, tmp_path: Path) -> Iterator[Any]:
    """Starts a user's script; the processes to watch."""
    started: list[subprocess.Popen[bytes]] = []

    def start_one(stays_away: bool) -> list[int]:
        path = tmp_path / "train.py"
        path.write_text(f"STAYS_AWAY = {stays_away}\n{SCRIPTS[framework]}")
        environments: list[dict[str, str]] = [{}]
        if framework == "tensorflow":
            workers = [f"127.0.0.1:{port}" for port in supervisor.free_ports(2)]
            configs = [{"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}} for index in range(2)]
            environments = [{"TF_CONFIG": json.dumps(config), "TF_CPP_MIN_LOG_LEVEL": "2"} for config in configs]
        with (tmp_path / "log").open("wb") as log:
            for each in environments:
                command = [sys.executable, str(path), str(tmp_path)]
                started.append(
                    subprocess.Popen(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **each}, stdout=log, stderr=log)
                )
        return [each.pid for each in started]

    yield start_one
    for process in started:
        for each in [*psutil.Process(process.pid).children(recursive=True), process]:
            each.kill()
        process.wait()


def stuck(pids: list[int]) -> Verdict:
    return watched(pids, patience=PATIENCE, longest=SECONDS)


@pytest.mark.slow
def test_the_rank_of_a_users_script_that_stays_away_is_named_with_its_line(script: Any, framework: str) -> None:
    found = stuck(script(stays_away=True))
    rank = NAMES[framework]
    assert found.ranks == (f"{rank} 1",), found
    said = (
        rf"{rank} 0 waits in {EXCHANGES[framework]} for {rank} 1, which waits for a lock in fetch \(train\.py:\d+: with lock:\)"
    )
    assert re.fullmatch(said, found.reason), found


@pytest.mark.slow
def test_a_users_script_at_work_is_healthy(script: Any, framework: str) -> None:
    pids, states = script(stays_away=False), list[Verdict]()
    assert watched(pids, lambda found: found.state == HEALTHY).state == HEALTHY
    end = time.monotonic() + 30.0

    def enough(found: Verdict) -> bool:
        states.append(found)
        return time.monotonic() > end

    watched(pids, enough, PATIENCE)
    assert STUCK not in {each.state for each in states}, states
    assert states[-1].state == HEALTHY or "cores that it wants" in states[-1].reason, states[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "words"),
    [
        ("two_locks", r"which waits for a lock in take \(hanging\.py:\d+: with other:\)"),
        ("full_queue", r"which waits in Queue\.put in full_queue \(hanging\.py:\d+: full\.put\(1\)\)"),
        ("message", r"which waits for a socket or pipe in message \(hanging\.py:\d+: here\.recv\(1\)\)"),
    ],
)
def test_a_run_of_this_suite_is_told_with_its_exchange(start: Any, planted: str, words: str) -> None:
    found = stuck([start(planted, RANKS).process.pid])
    assert found.ranks == ("rank 1",), found
    assert re.search(rf"^rank 0 waits in .* for rank 1, {words}.*\. Collective \d+, begun \d+\.\d s ago: rank 0 ", found.reason)
    assert re.search(r"; rank 1 has not come to it: its last was \d+, ", found.reason), found


@pytest.mark.slow
@pytest.mark.parametrize("mode", [mode for mode in spec.MODES if mode not in ("serial", "data_parallel")])
def test_the_rank_that_hangs_is_named_in_every_mode(start: Any, framework: str, mode: str) -> None:
    fields = spec.with_variant({"pipeline": {"micro_batches": 2}}, mode, 2) | {"cores": SETTINGS["cores"]}
    ranks = len(importlib.import_module(f"{framework}_impl.rendezvous").environments(spec.build(SETTINGS | fields)))
    run = start("two_locks", fields)
    found = stuck([run.process.pid])
    seconds = time.time() - (run.folder / "planted").stat().st_mtime
    print(f"found after {seconds:.1f} s")
    assert PATIENCE - 1.0 < seconds < PATIENCE + MARGIN_SECONDS
    blamed = found.ranks[0]
    assert blamed.startswith("process ") if ranks == 0 else found.ranks == (f"rank {ranks - 1}",), found
    place = r"waits for a lock in take \(hanging\.py:\d+: with other:\)"
    assert re.search(rf"{blamed}(, which)? {place}", found.reason), found


@pytest.mark.slow
def test_a_stopped_rank_of_this_suite_is_named(start: Any) -> None:
    found = stuck([start("stopped", RANKS).process.pid])
    assert found.ranks == ("rank 1",) and found.reason.startswith("rank 1 is stopped by a signal"), found


@pytest.mark.slow
def test_a_run_of_this_suite_at_work_is_healthy_with_its_steps(start: Any) -> None:
    run = start("", ENDLESS)
    found = watched([run.process.pid], lambda found: "steps" in found.reason, PATIENCE, SECONDS)
    # On a busy machine it is slow, and rightly so.
    said = r"rank 0 and rank 1 use \d\.\d cores, and make|rank \d gets .* cores that it wants; the job makes"
    assert re.fullmatch(rf"({said}) steps: \d+ since it is watched( \(.*too few.*\))?", found.reason), found


@pytest.mark.slow
@pytest.mark.parametrize("mode", spec.MODES)
def test_a_run_of_every_mode_raises_no_alarm_from_its_start_to_its_end(start: Any, mode: str) -> None:
    fields = spec.with_variant({"epochs": 40, "pipeline": {"micro_batches": 2}}, mode, 2) | {"cores": SETTINGS["cores"]}
    run = start("", fields)
    alarms: list[Verdict] = []

    def enough(found: Verdict) -> bool:
        alarms.extend([found] if found.state == STUCK else [])
        return run.process.poll() is not None

    begun = time.monotonic()
    watched([run.process.pid], enough, PATIENCE, SECONDS)
    print(f"watched for {time.monotonic() - begun:.0f} s")
    assert run.end().status == "ok", run.log
    assert alarms == []

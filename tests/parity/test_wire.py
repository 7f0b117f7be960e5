"""Bytes that really leave two hosts against the formula of what they send."""

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from common import spec
from common.artifacts import results, schema
from common.machine import placement
from common.processes import parameter_server
from tests.namespaces import INTERFACE, Host, joined_hosts
from tests.support import processes

FEW, MANY = 2, 12
HOSTS = 3
"""Of two, a sum around a ring and messages from everybody to everybody would be the same bytes."""
BATCH = 9
PORTS = (29411, 29412, 29413)
SERVER_PORT = 29414
SECONDS = 600.0
RUNS: dict[str, dict[str, Any]] = {
    "none": {},
    "float16": {"communication": {"compression": "float16"}},
    "int8": {"communication": {"compression": "int8"}},
    "top_k": {"communication": {"compression": "top_k", "top_k": 0.1}},
    # Without its sums the formula would say nearly a third less.
    "synchronised": {
        "model": "tests.parity.wide",
        "data": {"image_size": 8, "limit": BATCH * MANY},
        "batch_norm_statistics": "synchronised",
    },
}


@pytest.fixture
def hosts() -> Generator[list[Host]]:
    with joined_hosts(HOSTS) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_what_leaves_each_host_in_a_step_is_the_formula_within_a_tenth(
    hosts: list[Host], tmp_path: Path, framework: str, run: str
) -> None:
    measured, said = _sent_a_step(hosts, tmp_path, framework, RUNS[run])
    assert measured == pytest.approx([said / HOSTS] * HOSTS, rel=0.1)


@pytest.mark.slow
def test_what_leaves_each_host_of_a_sharded_model_is_what_its_exchanges_say(hosts: list[Host], tmp_path: Path) -> None:
    measured, said = _sent_a_step(hosts, tmp_path, "pytorch", {"mode": "sharded_data_parallel"})
    assert measured == pytest.approx([said / HOSTS] * HOSTS, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_a_worker_sends_the_server_a_gradient_in_a_step_and_is_sent_as_much(
    hosts: list[Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str
) -> None:
    monkeypatch.setenv(placement.RUN_SECRET_VARIABLE, "of the run")
    # The first worker is on the server's host: its part of the bytes goes over no wire.
    module = "common.processes.parameter_server"
    command = [sys.executable, "-m", module, "--address", hosts[0].address, "--port", str(SERVER_PORT)]
    with processes.started(hosts[0].command(*command), stdout=None, stderr=None):
        measured, said = _sent_a_step(hosts, tmp_path, framework, {"mode": "parameter_server"})
    gradient = said / (2 * HOSTS)
    assert measured == pytest.approx([gradient * (HOSTS - 1), *[gradient] * (HOSTS - 1)], rel=0.1)


def _sent_a_step(hosts: list[Host], folder: Path, framework: str, fields: dict[str, Any]) -> tuple[list[float], float]:
    """What each host sent in a step, and what the result says that all replicas sent."""
    # Two runs of one epoch, which meet, agree and score alike: they differ by their steps alone.
    (few, _), (many, result) = (_sent(hosts, folder / str(steps), framework, steps, fields) for steps in (FEW, MANY))
    assert result.bytes_per_step is not None
    return [(after - before) / (MANY - FEW) for before, after in zip(few, many, strict=True)], result.bytes_per_step


def _sent(
    hosts: list[Host], folder: Path, framework: str, steps: int, fields: dict[str, Any]
) -> tuple[list[int], schema.RunResult]:
    """What each host sent in a run over all, of multi_process where the fields name no other mode, and its result."""
    folder.mkdir()
    path = folder / "spec.json"
    values: dict[str, Any] = {
        "model": "simple_cnn",
        "mode": "multi_process",
        "replicas": HOSTS,
        "steps": steps,
        "global_batch_size": BATCH,
        "data": {"limit": BATCH * MANY},
        **fields,
    }
    path.write_text(spec.build(values).to_json(), encoding="utf-8")
    before = [host.sent_bytes() for host in hosts]
    command = [sys.executable, "-m", f"{framework}_impl", "run", str(path), "--out", str(folder)]
    logs = [folder / f"{host.address}.log" for host in hosts]
    with ExitStack() as stack:
        ranks: list[subprocess.Popen[str]] = []
        for rank, (host, log) in enumerate(zip(hosts, logs, strict=True)):
            file = stack.enter_context(log.open("wb"))
            how = {"variables": _environment(hosts, rank), "stdout": file, "stderr": file}
            ranks.append(stack.enter_context(processes.started(host.command(*command), **how)))
        codes = [rank.wait(SECONDS) for rank in ranks]
    assert codes == [0] * HOSTS, "\n".join(log.read_text(errors="replace")[-2000:] for log in logs)
    return [host.sent_bytes() - already for host, already in zip(hosts, before, strict=True)], results.load(
        folder / results.RESULT_FILE
    )


def _environment(hosts: list[Host], rank: int) -> dict[str, str]:
    """Who a rank is, as torchrun and TF_CONFIG say it."""
    workers = [f"{host.address}:{port}" for host, port in zip(hosts, PORTS, strict=True)]
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(len(hosts)),
        "MASTER_ADDR": hosts[0].address,
        "MASTER_PORT": str(PORTS[0]),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        parameter_server.ADDRESS_VARIABLE: f"convtwins://{hosts[0].address}:{SERVER_PORT}",
        "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }

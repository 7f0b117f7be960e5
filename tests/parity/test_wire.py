"""Bytes that really leave two hosts against the formula of what they send."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from common import results, spec
from tests.namespaces import INTERFACE, Host, two_hosts

FEW, MANY = 2, 12
PORTS = (29411, 29412)
SECONDS = 600.0
COMPRESSIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "float16": {"compression": "float16"},
    "int8": {"compression": "int8"},
    "top_k": {"compression": "top_k", "top_k": 0.1},
}


@pytest.fixture
def hosts() -> Generator[tuple[Host, Host]]:
    with two_hosts() as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_what_leaves_each_host_in_a_step_is_the_formula_within_a_tenth(
    hosts: tuple[Host, Host], tmp_path: Path, framework: str, compression: str
) -> None:
    # Two runs of one epoch, which meet, agree and score alike: they differ by their steps alone.
    (few, _), (many, result) = (_sent(hosts, tmp_path / str(steps), framework, steps, compression) for steps in (FEW, MANY))
    assert result.bytes_per_step is not None
    for before, after in zip(few, many, strict=True):
        measured = (after - before) / (MANY - FEW)
        assert measured == pytest.approx(result.bytes_per_step / len(hosts), rel=0.1)


def _sent(
    hosts: tuple[Host, Host], folder: Path, framework: str, steps: int, compression: str
) -> tuple[list[int], results.RunResult]:
    """What each host sent in a run of multi_process over both, and its result."""
    folder.mkdir()
    path = folder / "spec.json"
    values: dict[str, Any] = {
        "model": "simple_cnn",
        "mode": "multi_process",
        "replicas": 2,
        "steps": steps,
        "global_batch_size": 8,
        "data": {"limit": 8 * MANY},
        "communication": COMPRESSIONS[compression],
    }
    path.write_text(spec.build(values).to_json(), encoding="utf-8")
    before = [host.sent_bytes() for host in hosts]
    command = [sys.executable, "-m", f"{framework}_impl", "run", str(path), "--out", str(folder)]
    logs = [folder / f"{host.address}.log" for host in hosts]
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank, (host, log) in enumerate(zip(hosts, logs, strict=True)):
            with log.open("wb") as file:
                environment = os.environ | _environment(hosts, rank)
                ranks.append(subprocess.Popen(host.command(*command), env=environment, stdout=file, stderr=file))
        codes = [rank.wait(SECONDS) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert codes == [0, 0], "\n".join(log.read_text(errors="replace")[-2000:] for log in logs)
    return [host.sent_bytes() - already for host, already in zip(hosts, before, strict=True)], results.load(
        folder / results.RESULT_FILE
    )


def _environment(hosts: tuple[Host, Host], rank: int) -> dict[str, str]:
    """Who a rank is, as torchrun and TF_CONFIG say it."""
    workers = [f"{host.address}:{port}" for host, port in zip(hosts, PORTS, strict=True)]
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(len(hosts)),
        "MASTER_ADDR": hosts[0].address,
        "MASTER_PORT": str(PORTS[0]),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }

"""A model that does not fit the memory of one replica: divided, it trains; whole, it ends with a clear message."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common import spec
from common.artifacts import results
from common.machine import placement
from tests.memory_limits import limited
from tests.ranks import run_ranks
from tests.twins.runs import PROJECT, SECONDS

LIMIT_MIB = 1450
"""Of each process. The weights, their gradients and Adam's state have 1,028 MiB, the process and torch some 350."""
FIELDS: dict[str, Any] = {
    "model": "tests.twins.large_model",
    "data": {"source": "digits", "image_size": 8, "limit": 64},
    "optimizer": {"name": "adam", "learning_rate": 1e-6},
    "precision": "float64",
    "global_batch_size": 16,
    "epochs": 1,
    "cores": 2,
}
DIVIDED: dict[str, dict[str, Any]] = {
    "sharded_data_parallel": {"communication": {"bucket_mib": 8}},
    "pipeline": {},
    "tensor_parallel": {},
}


@pytest.fixture(autouse=True)
def _processes(framework: str) -> None:
    if framework != "pytorch":
        pytest.skip("its replicas are devices of one process, whose memory nobody can limit")


@pytest.mark.slow
@pytest.mark.parametrize("mode", DIVIDED)
def test_a_model_that_one_replica_cannot_hold_trains_where_replicas_divide_it(tmp_path: Path, mode: str) -> None:
    read = spec.build(spec.with_variant({**FIELDS, **DIVIDED[mode]}, mode, 2))
    (tmp_path / "spec.json").write_text(read.to_json(), encoding="utf-8")
    with limited(2, LIMIT_MIB) as prefix:
        command = [*prefix, sys.executable, "-m", "pytorch_impl", "run", str(tmp_path / "spec.json"), "--out", str(tmp_path)]
        failure = run_ranks(command, placement.environments(2, ()))
    assert failure is None, failure
    result = results.load(tmp_path / results.RESULT_FILE)
    assert result.status == "ok", result.reason
    assert len(result.peak_memory_by_process_mib) == 2 and max(result.peak_memory_by_process_mib) < LIMIT_MIB


@pytest.mark.slow
def test_serially_it_ends_for_lack_of_memory_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(json.dumps(FIELDS), encoding="utf-8")
    words = ["run", "--spec", "spec.yaml", "--frameworks", "pytorch", "--modes", "serial", "--repeats", "1", "--out", "out"]
    with limited(1, LIMIT_MIB) as prefix:
        command = [*prefix, sys.executable, "-m", "compare", *words, "--no-proof"]
        environment = {"PYTHONPATH": str(PROJECT)}
        ended = subprocess.run(command, cwd=tmp_path, env=environment, timeout=SECONDS, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "out of memory: the kernel ended a process for lack of it" in ended.stdout + ended.stderr

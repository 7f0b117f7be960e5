"""What the ranks of a machine do to each other, timed in processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from common import spec
from common.processes.exchanges import SIZES, Exchanged


def timed(framework: str, folder: Path, **fields: object) -> tuple[int, str, Path]:
    path, out = folder / "spec.json", folder / "exchanges.json"
    path.write_text(spec.build({"global_batch_size": 4, "cores": 2, "steps": 1, **fields}).to_json(), "utf-8")
    command = [sys.executable, "-m", f"{framework}_impl", "exchanges", str(path), "--out", str(out)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stderr, out


@pytest.mark.slow
def test_larger_messages_take_longer_and_passes_are_timed_alone_and_together(framework: str, tmp_path: Path) -> None:
    code, said, out = timed(framework, tmp_path, mode="multi_process", replicas=2)
    assert code == 0, said
    found = Exchanged.model_validate_json(out.read_bytes())
    assert found.replicas == 2 and found.versions and found.alone_seconds and found.together_seconds
    assert [each.num_bytes for each in found.all_reduce] == list(SIZES)
    assert 0 < found.all_reduce[0].seconds < found.all_reduce[-1].seconds
    # Twin: TensorFlow's stages hand tensors on in one graph.
    assert [each.num_bytes for each in found.send] == (list(SIZES) if framework == "pytorch" else [])
    if found.send:
        assert found.send[0].seconds < found.send[-1].seconds


@pytest.mark.slow
def test_a_server_is_timed_by_all_its_workers(framework: str, tmp_path: Path) -> None:
    code, said, out = timed(framework, tmp_path, mode="parameter_server", replicas=2)
    assert code == 0, said
    found = Exchanged.model_validate_json(out.read_bytes())
    assert [each.num_bytes for each in found.server] == list(SIZES)
    assert 0 < found.server[0].seconds < found.server[-1].seconds


def test_one_replica_sends_nothing(framework: str, tmp_path: Path) -> None:
    # It is refused before the framework is imported.
    code, said, _ = timed(framework, tmp_path, mode="serial", replicas=1)
    assert code == 2 and "exchanges times processes. Received: mode serial." in said

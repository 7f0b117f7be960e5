"""Compressed exchange and accumulation over processes: both frameworks, in the same few steps."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy

from common import spec
from compare.running import launch
from compare.running.contestants import Contestant

BASE: dict[str, Any] = {
    "model": "tests.parity.probe",
    "precision": "float64",
    "steps": 6,
    "global_batch_size": 8,
    "replicas": 2,
    # The last batch of the epoch has 5 examples, which two replicas share unevenly.
    "data": {"limit": 45},
    "optimizer": {"name": "sgd", "weight_decay": 5e-4},
    "communication": {"bucket_mib": 0.01, "top_k": 0.05},
}
TOLERANCE = 1e-9
"""Relative, of losses and weights. The frameworks' gradients differ by rounding alone, 1e-16 or so; only where that carries a
value over the edge between two steps of int8 or float16, or past the k-th largest, would more be seen: with these few
thousand values about once in 10^9 runs."""

Arrays = dict[str, npt.NDArray[Any]]


def record(folder: Path, framework: str, **fields: Any) -> Arrays:
    """What a framework's trace of these settings holds."""
    values = {**BASE, **{name: value for name, value in fields.items() if name != "communication"}}
    values["communication"] = {**BASE["communication"], **fields.get("communication", {})}
    name = f"{framework}-{len(list(folder.iterdir()))}"
    path, out, log = (folder / f"{name}.{ending}" for ending in ("json", "safetensors", "log"))
    path.write_text(spec.build(values).to_json(), encoding="utf-8")
    code = launch.call(Contestant.plain(framework), ["trace", str(path), "--out", str(out)], log=log)
    assert code == 0, log.read_text(encoding="utf-8")[-3000:]
    return safetensors.numpy.load_file(out)


def assert_same(ours: Arrays, theirs: Arrays, tolerance: float) -> None:
    assert np.abs(ours["loss"] - theirs["loss"]).max() <= tolerance * np.abs(ours["loss"]).max()
    assert np.array_equal(ours["num_correct"], theirs["num_correct"])
    for name in ours:
        if name.startswith("stepped/"):
            assert np.abs(ours[name] - theirs[name]).max() <= tolerance * max(np.abs(ours[name]).max(), 1e-3), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compression", "modes"),
    [
        ("float16", ("multi_process", "data_parallel")),
        ("float16", ("parameter_server",)),  # which adds up in full what the ring adds up in float16
        ("int8", ("multi_process", "data_parallel", "parameter_server")),
        ("top_k", ("multi_process", "data_parallel", "parameter_server")),
    ],
)
def test_a_compressed_run_is_the_same_in_both_frameworks_over_processes_and_in_one(
    tmp_path: Path, compression: str, modes: tuple[str, ...]
) -> None:
    fields = {"communication": {"compression": compression}}
    first, *others = (
        record(tmp_path, framework, mode=mode, **fields) for framework in ("pytorch", "tensorflow") for mode in modes
    )
    for other in others:
        assert_same(first, other, TOLERANCE)
    uncompressed = record(tmp_path, "pytorch", mode=modes[0])
    assert np.abs(uncompressed["loss"] - first["loss"]).max() > 1e-6, "compressing changed nothing"


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
@pytest.mark.parametrize("compression", ["none", "int8"])
def test_processes_that_add_gradients_up_over_parts_train_as_with_one_big_batch(
    tmp_path: Path, framework: str, compression: str
) -> None:
    # simple_cnn has no BatchNorm; 20 examples in batches of 8 leave a last one of 4, two for each replica.
    fields = {"model": "simple_cnn", "steps": 5, "data": {"limit": 20}, "communication": {"compression": compression}}
    whole, parts = (record(tmp_path, framework, mode="multi_process", accumulation=number, **fields) for number in (1, 4))
    assert_same(whole, parts, 1e-12)
    if compression == "none":
        assert_same(record(tmp_path, framework, mode="serial", **{**fields, "replicas": 1}), parts, 1e-12)

"""The asynchronous pipeline is no serial mathematics, so there is no rung for it: the frameworks are held to each other."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from common import spec
from compare.proof.differences import Arrays
from compare.running import launch
from compare.running.contestants import Contestant
from tests.parity.settings import setting

STEPS = 8
"""Over an epoch's end and the uneven batch before it."""


def record(framework: str, name: str, word: str, replicas: int, out: Path) -> Arrays:
    values = {**setting(name).model_dump(), "steps": STEPS}
    values["optimizer"]["learning_rate"] /= 10  # late updates let the loss explode, and rounding with it
    path, recording, log = (out / f"{framework}-{word}.{suffix}" for suffix in ("json", "safetensors", "log"))
    path.write_text(spec.build(spec.with_variant(values, word, replicas)).to_json(), encoding="utf-8")
    assert launch.call(Contestant.plain(framework), ["trace", str(path), "--out", str(recording)], log=log) == 0, (
        log.read_text()
    )
    return safetensors.numpy.load_file(recording)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "replicas"), [("sgd", 3), ("adam", 2)])
def test_both_frameworks_are_late_by_the_same_updates(tmp_path: Path, name: str, replicas: int) -> None:
    ours, theirs = (record(framework, name, "pipeline_async", replicas, tmp_path) for framework in ("pytorch", "tensorflow"))
    assert np.array_equal(ours["ids"], theirs["ids"])
    np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-10, atol=0)
    np.testing.assert_allclose(ours["logits/final"], theirs["logits/final"], rtol=0, atol=1e-10)
    for parameter in (name for name in ours if name.startswith("stepped/")):
        np.testing.assert_allclose(ours[parameter], theirs[parameter], rtol=0, atol=1e-10, err_msg=parameter)
    # What is claimed to be another training is one.
    prompt = record("pytorch", name, "pipeline", replicas, tmp_path)
    assert np.abs(prompt["loss"] - ours["loss"]).max() > 1e-3

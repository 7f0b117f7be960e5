"""What a twin says of a machine with GPUs that it does not have here, and what its ranks learn from an outer launcher."""

import importlib
import json
from typing import Any

import pytest

from common import spec


@pytest.mark.parametrize(
    ("gpus", "fields", "here", "answer"),
    [
        (1, {"hosts": ["a", "b"]}, None, None),
        (1, {}, None, "not available: needs 2 CUDA devices, found 1"),
        (1, {}, 1, None),
        (1, {"hosts": ["a", "b"], "replicas": 4}, None, "not available: needs 2 CUDA devices, found 1"),
        (2, {"hosts": ["a", "b"], "replicas": 4}, None, None),
        (2, {"replicas": 4}, 2, None),
    ],
)
@pytest.mark.parametrize("mode", spec.HOST_MODES)
def test_gpus_of_a_machine_are_held_against_its_own_replicas(
    framework: str,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    gpus: int,
    fields: dict[str, Any],
    here: int | None,
    answer: str | None,
) -> None:
    device = importlib.import_module(f"{framework}_impl.device")
    monkeypatch.setattr(device, "gpus", lambda: ["a card"] * gpus)
    asked = spec.build({"mode": mode, "replicas": 2, "cores": 1, **fields})
    assert spec.check_against(asked, device.describe(), here) == answer


def test_one_gpu_is_not_enough_for_a_mode_of_one_machine(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = importlib.import_module(f"{framework}_impl.device")
    monkeypatch.setattr(device, "gpus", lambda: ["a card"])
    asked = spec.build({"mode": "data_parallel", "replicas": 2, "cores": 1})
    assert spec.check_against(asked, device.describe()) == "not available: needs 2 CUDA devices, found 1"


def test_a_rank_learns_its_place_from_tf_config(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if framework != "tensorflow":
        pytest.skip("torchrun's variables are read as they are")
    rendezvous = importlib.import_module("tensorflow_impl.rendezvous")
    workers = ["[fd00::1]:2000", "[fd00::2]:2000", "[fd00::2]:2001"]
    monkeypatch.setattr(
        rendezvous.os,
        "environ",
        {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": 2}})},
    )
    rendezvous.adopt()
    learned = {name: value for name, value in rendezvous.os.environ.items() if name != "TF_CONFIG"}
    assert learned == {
        "RANK": "2",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "fd00::1",
        "MASTER_PORT": "2000",
    }

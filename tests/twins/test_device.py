"""What a twin says of a machine with GPUs that it does not have here, and what its ranks learn from an outer launcher."""

import importlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common import spec
from common.machine import rates
from tests.support import processes
from tests.twins.adapters import Twin


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
@pytest.mark.parametrize("mode", spec.MODES.names(lambda mode: mode.runs_across_hosts))
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


def test_a_mode_without_a_trainer_is_not_available(framework: str) -> None:
    parallel = importlib.import_module(f"{framework}_impl.parallel")
    mode = spec.Mode(
        name="gossip", variant="gossip", divides=frozenset({"batch"}), processes="each", needs="two machines that talk"
    )
    with spec.MODES.extended(mode):
        run = spec.build({"mode": "gossip", "replicas": 2, "cores": 1})
        with pytest.raises(spec.SpecError, match=rf"{framework} has no trainer of mode gossip in {framework}_impl/parallel"):
            parallel.build(run, None, None, None, None)


def test_a_run_for_the_cpu_is_held_against_what_there_is_without_the_gpus(
    framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, switches = (importlib.import_module(f"{framework}_impl.{name}") for name in ("device", "switches"))
    assert "on_cpu" not in device.describe()
    monkeypatch.setattr(device, "gpus", lambda: ["a card"])
    description = device.describe()
    asked = spec.build({"mode": "data_parallel", "replicas": 2, "cores": 1, "device": "cpu"})
    assert spec.check_against(asked, description) is None
    tensor_cores = spec.build({"device": "cpu", "framework_options": {"arithmetic": "tf32"}})
    assert spec.check_against(tensor_cores, description) == (
        "not available: framework_options.arithmetic=tf32 needs a CUDA device"
    )
    found = spec.description_for_device(asked, description)
    assert found["options"] == switches.options("cpu") and found["devices"] == [{"name": "cpu", "kind": "cpu"}]
    assert spec.description_for_device(spec.build({}), description) is description


_HIDDEN = """
import importlib, os, sys
from common.processes import entry

def load_twin():
    sys.exit(os.environ.get("CUDA_VISIBLE_DEVICES", "none set"))

parts = (importlib.import_module(f"{sys.argv[1]}_impl.{name}") for name in ("rendezvous", "switches"))
entry.main(sys.argv[1], load_twin, *parts, sys.argv[2:])
"""


@pytest.mark.parametrize(("device", "visible"), [("auto", "none set"), ("cpu", "-1")])
def test_gpus_are_hidden_before_the_framework_looks_for_them(framework: str, tmp_path: Path, device: str, visible: str) -> None:
    asked = tmp_path / "spec.json"
    asked.write_text(spec.build({"device": device}).to_json(), "utf-8")
    for words in (
        ["models", str(asked), "--out", str(tmp_path / "model")],
        ["serve-trials", "--cores", "1", "--device", device],
    ):
        ended = processes.python("-c", _HIDDEN, framework, *words, CUDA_VISIBLE_DEVICES=None)
        assert ended.stderr.split("\n")[-2] == visible


def test_the_rates_of_a_device_are_those_of_its_products_and_copies(framework: str) -> None:
    device = importlib.import_module(f"{framework}_impl.device")
    asked = spec.build({})
    assert device.rates(asked) is None  # of a CPU, NumPy's are known
    found = device.measured_rates(asked, {"pytorch": "cpu", "tensorflow": "CPU:0"}[framework], 512, 2**24)
    numpy = rates.measure(1)
    # Of a size: no thousandfold, as from one unit to the next.
    assert 1 / 30 < found.matrix_gflops / numpy.float32_gflops < 30
    assert 1 / 30 < found.copy_gb_per_second / numpy.copy_gb_per_second < 30


_ADOPT = "import json, os; from tensorflow_impl import rendezvous; rendezvous.adopt(); print(json.dumps(dict(os.environ)))"


def adopted(cluster: dict[str, list[str]], kind: str, index: int) -> processes.Finished:
    """A process that reads its rank from TF_CONFIG and prints its environment."""
    return processes.python("-c", _ADOPT, TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}}))


def test_a_rank_learns_its_place_from_tf_config(framework: str) -> None:
    if framework != "tensorflow":
        pytest.skip("torchrun's variables are read as they are")
    learned = adopted({"worker": ["[fd00::1]:2000", "[fd00::2]:2000", "[fd00::2]:2001"]}, "worker", 2).succeeded().json
    expected = {
        "RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "fd00::1",
        "MASTER_PORT": "2000",
    }  # fmt: skip
    assert {name: value for name, value in learned.items() if name not in os.environ and name != "TF_CONFIG"} == expected


def test_an_evaluator_of_tf_config_is_no_rank(framework: str) -> None:
    """It stands in no cluster, so its number would be another task's."""
    if framework != "tensorflow":
        pytest.skip("torchrun's variables are read as they are")
    ended = adopted({"chief": ["a:1"], "worker": ["b:1"]}, "evaluator", 0)
    assert ended.exit_code and "SpecError" in ended.stderr and "Received: evaluator" in ended.stderr


def test_the_first_rank_alone_shares_its_statistics(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chief and the first worker of `TF_CONFIG` both have task 0. A sum of both statistics would be doubled."""
    if framework != "tensorflow":
        pytest.skip("torch broadcasts them")
    tensorflow = importlib.import_module("tensorflow")
    group = importlib.import_module("tensorflow_impl.parallel.group")
    members = SimpleNamespace(cluster_resolver=SimpleNamespace(task_id=0), experimental_local_results=lambda values: [values])
    given: dict[str, list[float]] = {}
    for rank in ("0", "1"):
        own, statistic = group.CommunicationGroup(members), tensorflow.Variable([3.0, 4.0])
        monkeypatch.setenv("RANK", rank)

        def total(values: Any, rank: str = rank) -> Any:
            given[rank] = values.tolist()
            return values

        monkeypatch.setattr(own, "sum", total)
        own.broadcast([statistic])
    assert given == {"0": [3.0, 4.0], "1": [0.0, 0.0]}


def test_the_peak_memory_is_of_each_device(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs, made up. No machine here had two."""
    twin = Twin(framework)
    assert twin.device.gpus() or twin.device.peak_memory_mib() == []
    peaks = {0: 3 * 2**20, 1: 2**20}
    if framework == "pytorch":
        monkeypatch.setattr(twin.device.torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(twin.device.torch.cuda, "max_memory_allocated", peaks.__getitem__)
    else:
        config = twin.device.tf.config
        monkeypatch.setattr(twin.device, "gpus", lambda: ["one", "other"])
        devices = [SimpleNamespace(name=f"/device:GPU:{index}") for index in peaks]
        monkeypatch.setattr(config, "list_logical_devices", lambda kind: devices)
        monkeypatch.setattr(config.experimental, "get_memory_info", lambda name: {"peak": peaks[int(name[-1])]})
    assert twin.device.peak_memory_mib() == [3.0, 1.0]

"""Training on a real GPU. Skipped where the twin sees none: a fake device that computes asynchronously is in tests/common."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.artifacts.schema import RunResult
from compare.running.twins import Twins
from tests.conftest import VISIBLE_GPUS
from tests.twins.runs import Run

DRIVER = Path("/proc/driver/nvidia/version")
STEPS = 12
FIELDS: dict[str, Any] = {
    "model": "simple_cnn",
    "data": {},
    "global_batch_size": 64,
    "epochs": None,
    "steps": STEPS,
    "cores": 1,
}
Train = Callable[..., RunResult]


@pytest.fixture(autouse=True)
def _visible(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.environ[VISIBLE_GPUS] == "all":
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ[VISIBLE_GPUS])
    # Whether there is a driver is known at once, what the framework sees only after its import.
    if not DRIVER.exists() or all(device["kind"] == "cpu" for device in Twins([framework]).describe(framework)["devices"]):
        pytest.skip(f"{framework} sees no GPU")


@pytest.fixture
def train(framework: str, tmp_path: Path) -> Train:
    """Trains in a process of its own and returns the sealed result."""

    def trained(name: str, precision: str = "float64", **fields: Any) -> RunResult:
        with Run(framework, tmp_path / name, FIELDS | {"precision": precision} | fields) as run:
            return run.end()

    return trained


def test_float64_training_on_the_gpu_is_that_on_the_cpu(train: Train) -> None:
    """Kernels differ, so sums have another order. Over so few steps that stays at the last bits."""
    on_cpu, on_gpu = train("cpu", device="cpu"), train("gpu")
    assert (on_cpu.status, on_gpu.status) == ("ok", "ok"), (on_cpu.reason, on_gpu.reason)
    assert (on_cpu.devices, len(on_gpu.step_losses)) == (["cpu"], STEPS)
    assert on_gpu.device != "cpu" and on_gpu.order_hash == on_cpu.order_hash
    np.testing.assert_allclose(on_gpu.step_losses, on_cpu.step_losses, rtol=1e-12, atol=0)
    assert on_cpu.device_rates is None and on_cpu.device_peak_memory_mib is None
    assert on_gpu.device_rates is not None and on_gpu.device_peak_memory_mib
    # Else the GPU did not do the work.
    assert on_gpu.device_rates.copy_gb_per_second > 50 and on_gpu.device_peak_memory_mib > 1


@pytest.mark.parametrize(
    "switches",
    [{"data_on": "device"}, {"memory_format": "channels_last"}, {"optimizer_kernel": "loop"}, {"cudnn_autotune": False}],
    ids=lambda chosen: next(iter(chosen)),
)
def test_a_switch_changes_no_float64_training_on_a_gpu(framework: str, train: Train, switches: dict[str, Any]) -> None:
    if framework == "tensorflow" and not switches.keys() & {"data_on", "cudnn_autotune"}:
        pytest.skip("a switch of PyTorch's")
    usual, switched = train("usual"), train("switched", framework_options=switches)
    assert (usual.status, switched.status) == ("ok", "ok"), (usual.reason, switched.reason)
    assert switches.items() <= switched.switches.items() and not switches.items() <= usual.switches.items()
    np.testing.assert_allclose(switched.step_losses, usual.step_losses, rtol=1e-12, atol=0)


@pytest.mark.parametrize("arithmetic", ["full", "tf32", "bfloat16", "float16"])
def test_fewer_digits_are_computed_with_and_named(framework: str, train: Train, arithmetic: str) -> None:
    result, exact = train("fewer", "float32", framework_options={"arithmetic": arithmetic}), train("exact")
    assert result.status == "ok", result.reason
    assert result.reduced == ([] if arithmetic == "full" else [f"arithmetic={arithmetic}"])
    away = abs(result.step_losses[0] / exact.step_losses[0] - 1)
    print(f"{framework}, {arithmetic}: the first loss is {away:.1e} from that of float64")
    assert (away < 1e-6) == (arithmetic == "full")
    assert away < 0.05

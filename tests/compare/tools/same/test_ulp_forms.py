"""What `nudge` keeps: forms of containers, ties, strides, variables, and dtypes without infinities."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest

from common.machine.machine import PROJECT_ROOT
from compare.tools.same import curves
from convtwins import ulp
from convtwins.ulp import nudge


@pytest.fixture(autouse=True)
def moves(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that counts moved values, in a copy."""
    monkeypatch.setenv(ulp.SEED_VARIABLE, "1")
    monkeypatch.setenv(ulp.COUNT_VARIABLE, str(here / "count"))
    return here / "count"


def test_dicts_of_other_classes_and_plain_numbers_are_taken() -> None:
    state = defaultdict(list, {"lr": 0.1, "betas": (0.9, 0.999), "nesterov": True, "mean": np.ones(3)})
    moved = nudge(state)
    assert moved.default_factory is list and {**moved, "mean": 0} == {**state, "mean": 0}
    assert (moved["mean"] != 1).all() and (state["mean"] == 1).all()
    ordered = OrderedDict(weights=np.ones(3))
    ordered._metadata = {"": {"version": 2}}
    assert nudge(ordered)._metadata == {"": {"version": 2}}


def test_the_same_memory_moves_once(moves: Path) -> None:
    weights = np.random.default_rng(0).normal(size=50)
    moved = nudge({"encoder": weights, "decoder": weights[:], "other": weights.copy()})
    assert np.array_equal(moved["encoder"], moved["decoder"]) and not np.array_equal(moved["encoder"], moved["other"])
    assert moves.read_text() == "100\n"


def test_shapes_and_strides_are_kept() -> None:
    values = np.asfortranarray(np.ones((3, 4), np.float32))
    assert nudge(values).flags.f_contiguous
    assert nudge(np.array(1.5)).shape == () and isinstance(nudge(np.float32(1.5)), np.float32)
    assert set(nudge(np.ones((4, 6))[:, ::2]).ravel()) <= {1 + 2.0**-52, 1 - 2.0**-53}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_largest_number_does_not_become_infinite(dtype: str) -> None:
    values = np.full(64, np.finfo(dtype).max, dtype)
    assert np.isfinite(nudge(values)).all()


def test_a_float_of_another_form_is_refused() -> None:
    if np.dtype(np.longdouble).itemsize == 8:
        pytest.skip("no such dtype here")
    with pytest.raises(TypeError, match="float64"):
        nudge(np.ones(3, np.longdouble))


CONTRACTS = {
    "torch": """
import torch
from torch import nn
image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
moved = nudge(image)
assert moved.is_contiguous(memory_format=torch.channels_last) and ((moved - image).abs() > 0).all()
assert nudge(torch.ones(3, requires_grad=True)).requires_grad and not nudge(torch.ones(3)).requires_grad
model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
model[2].weight = model[0].weight
state = nudge(model.state_dict())
assert torch.equal(state["0.weight"], state["2.weight"]) and not torch.equal(state["0.weight"], model[0].weight)
assert state._metadata
model.load_state_dict(state)
assert model[2].weight is model[0].weight
parameters = nudge(list(model.parameters()))
assert all(isinstance(one, nn.Parameter) and one.requires_grad for one in parameters)
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(1, 4)).sum().backward()
optimizer.step()
optimizer.load_state_dict(nudge(optimizer.state_dict()))
optimizer.step()
for dtype, unit in ((torch.bfloat16, 2.0**-7), (torch.float8_e4m3fn, 2.0**-3), (torch.float8_e5m2, 2.0**-2)):
    values = torch.full((20,), 1.5).to(dtype)
    assert set((nudge(values).float() - values.float()).abs().tolist()) == {unit}, dtype
    largest = torch.full((20,), torch.finfo(dtype).max).to(dtype)
    assert not nudge(largest).float().isnan().any() and not nudge(largest).float().isinf().any(), dtype
assert torch.equal(nudge(torch.arange(3)), torch.arange(3)) and nudge(torch.empty(0)).shape == (0,)
""",
    "tensorflow": """
import tensorflow as tf
variable = tf.Variable([1.0, 2.0, 3.0])
assert nudge(variable) is variable and (variable.numpy() != [1, 2, 3]).all()
layer = tf.keras.layers.Dense(3)
layer.build((None, 4))
before = layer.kernel.numpy()
nudge(layer.trainable_variables)
assert (layer.kernel.numpy() != before).all()
tied = tf.Variable([1.0] * 20)
nudge([tied, tied])
assert set(abs(tied.numpy() - 1).tolist()) <= {2.0**-23, 2.0**-24}
assert (nudge(tf.ones(3)).numpy() != 1).all() and (nudge(layer.get_weights())[0] != layer.kernel.numpy()).all()
assert (nudge(tf.ones(3, tf.bfloat16)).numpy() != 1).all()
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("framework", CONTRACTS)
def test_what_a_framework_gives_keeps_its_form(framework: str) -> None:
    program = f"from convtwins.ulp import nudge\n{CONTRACTS[framework]}"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=PROJECT_ROOT, timeout=300
    )
    assert ended.returncode == 0, ended.stderr


WRITERS = {
    "tensorflow": """
import numpy, tensorflow as tf
with tf.summary.create_file_writer("events").as_default():
    for step in (1, 2, 3):
        tf.summary.image("picture", numpy.random.default_rng(0).random((1, 200, 200, 3)), step=step)
        tf.summary.scalar("train/loss", 1 / step, step=step)
        tf.summary.histogram("weights", numpy.arange(1000.0), step=step)
""",
    "torch": """
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter("events")
for step in (1, 2, 3):
    writer.add_scalar("train/loss", 1 / step, step)
writer.close()
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("framework", WRITERS)
def test_event_files_of_the_frameworks_themselves_are_read(here: Path, framework: str) -> None:
    ended = subprocess.run([sys.executable, "-c", WRITERS[framework]], capture_output=True, text=True, check=False, cwd=here)
    if ended.returncode and "No module named 'tensorboard'" in ended.stderr:
        pytest.skip("PyTorch's SummaryWriter needs the package tensorboard")
    assert ended.returncode == 0, ended.stderr
    curve = curves.read(here / "events")
    assert curve.steps.tolist() == [1, 2, 3]
    assert np.array_equal(curve.losses, np.array([1, 1 / 2, 1 / 3], np.float32).astype(np.float64))

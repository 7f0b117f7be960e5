"""The Keras twin on each backend, against that framework's own twin. tests/twins has its contract."""

import os
from pathlib import Path

import pytest

from common import spec
from compare.proof import ladder
from compare.running import launch, options
from compare.running.twins import Twins
from tests.support import jax_environment, keras_environment, processes

NATIVE = {"torch": "pytorch", "tensorflow": "tensorflow", "jax": "jax"}
PLANTED = """
import sys
from common.processes import entry, one_process
from keras_twin import command
from keras_twin.on_torch import switches

def load_twin():
    import os
    os.environ["KERAS_BACKEND"] = "torch"
    twin = command.load_twin()
    exec(os.environ["PLANTED"], {})
    return twin

if __name__ == "__main__":
    sys.exit(entry.main("keras-torch", load_twin, one_process, switches))
"""
"""Package whose twin is Keras's on torch with a planted defect."""
KERAS_ADAM = """
from keras import ops
from keras_twin import optim
def update_step(self, gradient, variable, learning_rate):
    beta_1, beta_2 = self._settings.beta_1, self._settings.beta_2
    mean, square = self._slot("mean", variable), self._slot("square", variable)
    step = ops.cast(self.iterations + 1, variable.dtype)
    self.assign_add(mean, (gradient - mean) * (1 - beta_1))
    self.assign_add(square, (ops.square(gradient) - square) * (1 - beta_2))
    rate = learning_rate * ops.sqrt(1 - beta_2 ** step) / (1 - beta_1 ** step)
    self.assign_sub(variable, rate * mean / (ops.sqrt(square) + self._settings.epsilon))
optim.Adam.update_step = update_step
"""
"""Keras's own Adam, which adds epsilon before the bias correction."""
LAST_BATCH = """
from keras_twin import models
compute_loss = models.TrainedModel.compute_loss
def divided_by_a_whole_batch(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
    return compute_loss(self, x, y, y_pred, sample_weight, training) * (len(y) / 32)
models.TrainedModel.compute_loss = divided_by_a_whole_batch
"""
"""A mean over the size of a whole batch, also for the last, smaller one."""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which every interpreter finds the plug-ins of this checkout."""
    monkeypatch.setenv("PYTHONPATH", keras_environment.install(tmp_path / "installed"))
    return tmp_path / "installed"


def contestants(backend: str) -> Twins:
    """The framework's own twin, and Keras on it."""
    native = [f"jax=jax@{jax_environment.require()}"] if backend == "jax" else []
    words = [*native, f"keras-{backend}=keras-{backend}@{keras_environment.require(backend)}"]
    return Twins.choose([] if native else [NATIVE[backend]], words, (), launch.FRAMEWORKS)


def proof_of(twins: Twins, out: Path, model: str, optimizer: str, steps: int, modes: list[str]) -> ladder.Proof:
    run_spec = spec.build({"model": model, "data": {"limit": 100}, "optimizer": options.OPTIMIZERS[optimizer]})
    request = ladder.ProofRequest(run_spec, twins, modes, replicas=2, steps=steps)
    return ladder.prove(request, out=out, progress=lambda text: None, remember=False)


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("backend", "model", "optimizer", "steps", "modes"),
    [
        ("torch", "simple_cnn", "adam", 3, []),
        ("tensorflow", "simple_cnn", "adam", 3, ["data_parallel"]),
        ("tensorflow", "mini_xception", "sgd", 2, []),
        ("jax", "simple_cnn", "adam", 3, []),
    ],
)
def test_keras_is_proved_to_train_as_its_backend_s_own_twin_does(
    backend: str, model: str, optimizer: str, steps: int, modes: list[str], tmp_path: Path
) -> None:
    proof = proof_of(contestants(backend), tmp_path / "proof", model, optimizer, steps, modes)
    assert proof.verdict == "proved", proof.sentence
    assert all(proof.mode_verdict(f"keras-{backend}", mode) == "proved" for mode in modes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "model", "optimizer", "steps", "rung"),
    [
        (KERAS_ADAM, "simple_cnn", "adam", 2, "weights"),
        (LAST_BATCH, "simple_cnn", "sgd", 4, "losses"),
    ],
    ids=["Keras's own Adam", "the mean of the last batch"],
)
def test_a_planted_defect_is_not_proved(
    planted: str, model: str, optimizer: str, steps: int, rung: str, installed: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    package = installed / "planted"
    package.mkdir()
    (package / "__init__.py").write_text("from keras_twin.on_torch import SUPPORTED\n", encoding="utf-8")
    (package / "__main__.py").write_text(PLANTED, encoding="utf-8")
    (metadata,) = installed.glob("convtwins_keras-*.dist-info")
    entries = (metadata / "entry_points.txt").read_text(encoding="utf-8")
    (metadata / "entry_points.txt").write_text(entries.replace("keras_twin.on_torch", "planted"), encoding="utf-8")
    monkeypatch.setenv("PLANTED", planted)
    proof = proof_of(contestants("torch"), tmp_path / "proof", model, optimizer, steps, [])
    assert proof.verdict != "proved"
    assert any(found.status == "failed" and rung in found.name for found in proof.rungs), [
        found.name for found in proof.rungs if found.status == "failed"
    ]


def printed(backend: str, code: str) -> str:
    """What a program prints in the interpreter of a backend."""
    path = os.pathsep.join([str(processes.PROJECT), os.environ["PYTHONPATH"]])
    program = f"from keras_twin import command; command.load_twin()\n{code}"
    environment = {"PYTHONPATH": path, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
    return processes.run([keras_environment.require(backend), "-c", program], **environment).succeeded().stdout.strip()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("backend", keras_environment.BACKENDS)
def test_a_process_holds_one_framework_and_says_what_it_does_not_have(backend: str) -> None:
    code = """
import json, sys
from common import spec
from keras_twin import device
description = device.describe()
asked = {
    "data_parallel": {"mode": "data_parallel", "replicas": 2}, "accumulation": {"accumulation": 2},
    "pipeline": {"mode": "pipeline", "replicas": 2}, "serial": {},
}
answers = {name: spec.check_against(spec.build({**fields, "cores": 2}), description) for name, fields in asked.items()}
loaded = [name for name in ("torch", "tensorflow", "jax") if sys.modules.get(name)]
print(json.dumps([loaded, answers]))
"""
    import json

    loaded, answers = json.loads(printed(backend, code))
    assert loaded == [backend] and answers["serial"] is None
    assert "whole batches" in answers["accumulation"] and "no mode pipeline" in answers["pipeline"]
    lacking = {"torch": "no distribution", "jax": "not proved"}
    if backend in lacking:
        assert lacking[backend] in answers["data_parallel"]
    else:
        assert answers["data_parallel"] is None

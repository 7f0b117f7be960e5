"""The Keras twin on each backend, against that framework's own twin. tests/twins has its contract."""

import json
import os
import re
from pathlib import Path

import numpy as np
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


def contestants(backend: str, switches: str = "") -> Twins:
    """The framework's own twin, and Keras on it, with switches such as `,graph=eager`."""
    native = [f"jax=jax@{jax_environment.require()}"] if backend == "jax" else []
    words = [*native, f"keras-{backend}=keras-{backend}@{keras_environment.require(backend)}{switches}"]
    return Twins.choose([] if native else [NATIVE[backend]], words, (), launch.FRAMEWORKS)


def proof_of(twins: Twins, out: Path, model: str, optimizer: str, steps: int, modes: list[str]) -> ladder.Proof:
    # JAX has no other statistics of BatchNorm in `data_parallel`.
    fields = {"model": model, "data": {"limit": 100}, "batch_norm_statistics": "synchronised"}
    run_spec = spec.build(fields | {"optimizer": options.OPTIMIZERS[optimizer]})
    request = ladder.ProofRequest(run_spec, twins, modes, replicas=2, steps=steps)
    return ladder.prove(request, out=out, progress=lambda text: None, remember=False)


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("backend", "switches", "model", "optimizer", "steps", "modes"),
    [
        ("torch", "", "simple_cnn", "adam", 3, []),
        ("torch", ",graph=compile", "simple_cnn", "adam", 3, []),
        ("tensorflow", "", "simple_cnn", "adam", 3, ["data_parallel"]),
        ("tensorflow", "", "mini_xception", "sgd", 3, ["data_parallel"]),
        ("tensorflow", ",graph=eager", "simple_cnn", "adam", 3, []),
        ("tensorflow", ",graph=xla", "simple_cnn", "adam", 3, []),
        ("jax", "", "simple_cnn", "adam", 3, ["data_parallel"]),
        ("jax", "", "mini_xception", "sgd", 3, ["data_parallel"]),
        ("jax", ",graph=eager", "simple_cnn", "adam", 3, []),
    ],
)
def test_keras_is_proved_to_train_as_its_backend_s_own_twin_does(
    backend: str, switches: str, model: str, optimizer: str, steps: int, modes: list[str], tmp_path: Path
) -> None:
    proof = proof_of(contestants(backend, switches), tmp_path / "proof", model, optimizer, steps, modes)
    assert proof.verdict == "proved", proof.sentence
    assert {mode: proof.mode_verdict(f"keras-{backend}", mode) for mode in modes} == dict.fromkeys(modes, "proved")


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


def printed(backend: str, code: str, **more: str) -> str:
    """What a program prints in the interpreter of a backend."""
    path = os.pathsep.join([str(processes.PROJECT), os.environ["PYTHONPATH"]])
    program = f"from keras_twin import command; command.load_twin()\n{code}"
    environment = {"PYTHONPATH": path, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2", **more}
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
    "pipeline": {"mode": "pipeline", "replicas": 2}, "serial": {}, "native": {"optimizer": {"native": True}},
}
answers = {name: spec.check_against(spec.build({**fields, "cores": 2}), description) for name, fields in asked.items()}
loaded = [name for name in ("torch", "tensorflow", "jax") if sys.modules.get(name)]
print(json.dumps([loaded, answers]))
"""
    loaded, answers = json.loads(printed(backend, code))
    assert loaded == [backend] and answers["serial"] is answers["native"] is None
    assert "whole batches" in answers["accumulation"] and "no mode pipeline" in answers["pipeline"]
    assert answers["data_parallel"] is None if backend != "torch" else "no distribution" in answers["data_parallel"]


GRADIENTS = [[0.5, -1.0], [-0.25, 2.0], [1.0, 1.0]]
RATES = [0.1, 0.1, 0.01]


def kerass_own(name: str, decay: float, epsilon: float) -> np.ndarray:
    """The weights after three updates by the formulas in Keras's documentation."""
    weights, buffer, square = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)
    for step, (gradient, rate) in enumerate(zip(np.array(GRADIENTS), RATES, strict=True), start=1):
        weights = weights - rate * decay * weights
        if name == "sgd":
            buffer = 0.9 * buffer - rate * gradient
            weights = weights + buffer
        else:
            buffer, square = 0.9 * buffer + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
            rate *= np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            weights = weights - rate * buffer / (np.sqrt(square) + epsilon)
    return weights


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("backend", keras_environment.BACKENDS)
def test_the_native_optimizer_is_keras_s_own_rule_which_parts_from_that_of_all_twins(backend: str) -> None:
    cases = [{"name": "sgd"}, {"name": "sgd", "weight_decay": 0.1}, {"name": "adam", "epsilon": 0.01}]
    code = f"""
import json
import keras
import numpy as np
from common import spec
from keras_twin import optim, weights
keras.config.set_floatx("float64")

def trained(settings):
    variable = keras.Variable(np.array([1.0, -2.0]), dtype="float64")
    optimizer = optim.build(settings, [variable])
    for gradient, optimizer.learning_rate in zip({GRADIENTS}, {RATES}):
        optimizer.apply([keras.ops.convert_to_tensor(np.array(gradient))], [variable])
    return weights.host_array(variable).tolist()

print(json.dumps([[trained(spec.Optimizer(**case, native=native)) for native in (True, False)] for case in {cases}]))
"""
    for case, (native, shared) in zip(cases, json.loads(printed(backend, code)), strict=True):
        expected = kerass_own(case["name"], case.get("weight_decay", 0.0), case.get("epsilon", 1e-8))
        # Keras may round its settings to float32.
        assert np.allclose(native, expected, rtol=0, atol=1e-6) and np.abs(shared - expected).max() > 1e-3, case


CALLS = {
    "torch": """
import torch
def calls(optimizer, gradients, variables, graph):
    apply = functools.partial(optimizer.apply, gradients, variables)
    if graph == "compile":
        torch._inductor.config.cpp.enable_kernel_profile = True
        apply = torch.compile(apply)
        apply()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        apply()
    return [average.key for average in profile.key_averages()]
""",
    "tensorflow": """
import tensorflow as tf
def calls(optimizer, gradients, variables, graph):
    function = tf.function(lambda: optimizer.apply(gradients, variables), jit_compile=graph == "xla")
    if graph == "xla":
        return instructions(function.experimental_get_compiler_ir()(stage="optimized_hlo"))
    return [operation.type for operation in function.get_concrete_function().graph.get_operations()]
""",
    "jax": """
import jax
def calls(optimizer, gradients, variables, graph):
    state = [[variable.value for variable in each] for each in (optimizer.variables, variables)]
    return instructions(jax.jit(optimizer.stateless_apply).lower(state[0], gradients, state[1]).compile().as_text())
""",
}
"""The operations of an update, or the kernels that a compiler made of it."""
WORDS = {
    "torch": {"aten::_fused_|cpp_fused": "fused", "aten::_foreach_": "all variables at once"},
    "tensorflow": {"ResourceApply|fusion": "fused"},
    "jax": {"fusion": "fused"},
}
"""The names of kernels for all variables at once, and of fused ones. The first that occurs counts."""


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("backend", "graph", "own_words", "native_words"),
    [
        ("torch", "eager", "an operation at a time", "all variables at once"),
        pytest.param("torch", "compile", "fused", "fused", marks=pytest.mark.slow),
        ("tensorflow", "function", "an operation at a time", "an operation at a time"),
        ("tensorflow", "xla", "fused", "fused"),
        ("jax", "jit", "fused", "fused"),
    ],
)
def test_keras_updates_by_the_kernels_that_the_report_names(
    backend: str, graph: str, own_words: str, native_words: str
) -> None:
    code = f"""
import functools, itertools, json, re
import keras
import numpy as np
from common import spec
from keras_twin import device, optim
def instructions(compiled):
    return re.findall(r"= \\S+ ([\\w-]+)\\(", compiled.partition("ENTRY")[2])
{CALLS[backend]}
gradients, updates = [keras.ops.ones(3) for _ in range(4)], []
for name, native in itertools.product(["sgd", "adam"], [False, True]):
    fields = {{"optimizer": {{"name": name, "native": native}}, "framework_options": {{"graph": "{graph}"}}}}
    run = spec.build(fields)
    variables = [keras.Variable(np.ones(3, np.float32)) for _ in gradients]
    optimizer = optim.build(run.optimizer, variables)
    reported = spec.conditions(run, device.describe())["update"]
    updates.append([native, calls(optimizer, gradients, variables, "{graph}"), reported])
print(json.dumps(updates))
"""
    updates = json.loads(printed(backend, code).splitlines()[-1])  # torch's profiler may print too
    assert len(updates) == 4
    for native, calls, reported in updates:
        shown = [words for names, words in WORDS[backend].items() if any(re.search(names, call) for call in calls)]
        assert len(calls) > 4
        assert next(iter(shown), "an operation at a time") == reported == (native_words if native else own_words), calls


@pytest.mark.usefixtures("installed")
def test_under_keras_distribution_batch_norm_trains_as_in_serial_also_on_a_batch_that_does_not_divide() -> None:
    code = """
import json
import keras
import numpy as np
from common import spec
from common.models.architectures import Architecture, BatchNorm, Conv, Dense, GlobalAveragePool, no_padding
from common.models.input_scaling import InputScaling
from keras_twin import models, optim, weights
from keras_twin.backends import backend

convolution = Conv("conv", 3, 4, 3, 1, no_padding, bias=False)
small = Architecture("small", 8, 3, (convolution, BatchNorm("norm", 4), GlobalAveragePool("pool"), Dense("logits", 4, 3)))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

def trained(**fields):
    drawn = np.random.default_rng(3)
    run = spec.build(fields)
    replicas = backend.Replicas(run, small)
    with replicas.scope():
        model = models.build(small, "float64", InputScaling())
        model.compile(optim.build(run.optimizer, model.trainable_variables), loss, **backend.compile_options("jit"))
        train = backend.TrainFunction(model)
    weights.load(model, small, {parameter.name: drawn.uniform(0.5, 1.0, parameter.shape) for parameter in small.parameters()})
    shards = []
    for size in (6, 5):
        images = drawn.integers(0, 255, (size, 8, 8, 3), np.uint8)
        data = replicas.place(([images], drawn.integers(0, 3, size), None))
        if fields:
            shards.append([len(shard.data) for shard in data[0][0].addressable_shards])
        train(data)
    train.sync()
    return weights.extract(model, small), shards

serial, _ = trained()
parallel, shards = trained(mode="data_parallel", replicas=2, batch_norm_statistics="synchronised")
try:
    trained(mode="data_parallel", replicas=2)
except spec.SpecError as error:
    difference = max(float(np.abs(parallel[name] - array).max()) for name, array in serial.items())
    print(json.dumps([difference, shards, str(error)]))
"""
    flags = "--xla_force_host_platform_device_count=2"
    difference, shards, refusal = json.loads(printed("jax", code, XLA_FLAGS=flags))
    assert difference < 1e-13 and shards == [[3, 3], [5, 5]]
    assert "per_replica with small. Use synchronised." in refusal

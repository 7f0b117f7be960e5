"""What each switch changes, seen where it must show, and how little it changes of the training."""

import importlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common import spec
from common.artifacts.schema import RunResult
from common.data.batches import all_batches
from common.machine import machine
from compare.judgement import conditions
from tests.support import processes
from tests.twins import made, runs
from tests.twins.adapters import Twin

ARCHITECTURE = made.network()
DATA = made.dataset(ARCHITECTURE)
COUNT = 9
BATCH = DATA.train.images[:COUNT], DATA.train.labels[:COUNT], made.masks(ARCHITECTURE, COUNT)
STEPS = 6

LEVELS = {"plain", "closed"}

CLOSE = {"bfloat16": 3e-2, "float16": 6e-3}
"""Relative, of a loss after some steps: their rounding is 2^-9 and 2^-12, in each of ten layers, and grows with the steps."""


def trainer(twin: Twin, **switches: Any) -> Any:
    return made.trainer(twin, ARCHITECTURE, DATA, precision="float32", framework_options=switches)


def losses(twin: Twin, made_trainer: Any) -> np.ndarray:
    batch = twin.batch(*BATCH)
    found = [made_trainer.train_step(batch, COUNT, 0.05)[0] for _ in range(STEPS)]
    return made_trainer.fetch(found).astype(np.float64)


def test_graphs_of_one_batch_size_are_refused_where_replicas_own_their_images(twin: Twin) -> None:
    """They have several sizes, and would compute most steps without a graph."""
    option = twin.switches.options("cpu")["graph"]
    compiled = [value for value, what in option["sets"]["graph"].items() if what == "compiled" and value in option["values"]]
    fields = {"mode": "parameter_server", "replicas": 2, "input": "dask", "workers": 1}
    owned = spec.build({**fields, "dask": {"order": "owned", "owners": 2}})
    assert compiled
    for value in compiled:
        assert spec.incompatibility(owned, option, value) == "is for dask.order global or chunks, not for owned"
        assert spec.incompatibility(spec.build(fields), option, value) is None


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_compiled_graph_is_for_ranks_that_hold_a_whole_model_and_send_nothing_within_a_pass(twin: Twin, kind: str) -> None:
    only = twin.switches.options(kind)["graph"]["only"]
    modes = [each["mode"] for name, each in only.items() if name.startswith("compile") or name == "xla"]
    assert modes and all(each == ["serial", "parameter_server", "model_averaging"] for each in modes)


@pytest.fixture(scope="module")
def usual(twin: Twin) -> np.ndarray:
    return losses(twin, trainer(twin))


@pytest.mark.parametrize("arithmetic", CLOSE)
def test_layers_compute_in_fewer_digits_between_weights_and_logits_that_have_all(
    twin: Twin, usual: np.ndarray, arithmetic: str
) -> None:
    mixed = trainer(twin, arithmetic=arithmetic)
    assert _activation_dtype(twin, mixed) == arithmetic
    for training in (True, False):
        assert mixed.logits(twin.batch(*BATCH), training=training).dtype == np.float32
    assert all(array.dtype == np.float32 for array in mixed.weights().values())
    found = losses(twin, trainer(twin, arithmetic=arithmetic))
    assert (found != usual).all()
    assert np.abs(found / usual - 1).max() < CLOSE[arithmetic]


@pytest.mark.slow
def test_statistics_over_all_replicas_have_all_digits(twin: Twin) -> None:
    fields = {"precision": "float32", "batch_norm_statistics": "synchronised", "mode": "data_parallel"}
    found = [
        made.trainer(twin, ARCHITECTURE, DATA, **fields, framework_options={"arithmetic": arithmetic})
        for arithmetic in ("full", "bfloat16")
    ]
    plain, mixed = (losses(twin, each) for each in found)
    assert np.abs(mixed / plain - 1).max() < CLOSE["bfloat16"]


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_step_of_infinite_gradients_is_skipped_and_halves_the_loss_scale(twin: Twin, name: str) -> None:
    settings = spec.Optimizer.model_validate({"name": name})
    start, gradient = np.array([1.0, 2.0], np.float32), np.array([0.5, -0.5], np.float32)

    def built(**switches: Any) -> tuple[Any, Any]:
        variable = twin.variable(start)
        return variable, twin.optim.build(settings, [variable], switches)

    (scaled_variable, scaled), (plain_variable, plain) = built(arithmetic="float16"), built()
    scale = float(twin.array(scaled.scale) if twin.framework == "tensorflow" else scaled.scale)
    infinite = np.array([np.inf, 0.0], np.float32)
    rate, numbers = twin.number(0.1), [_whole(twin, number) for number in (1, 2)]
    scaled.apply([twin.tensor(infinite)], rate, numbers[0])
    assert twin.array(scaled_variable).tolist() == start.tolist()
    assert scaled.state()["loss_scale"].tolist() == [scale / 2, 0, 1]
    scaled.apply([twin.tensor(gradient)], rate, numbers[1])
    plain.apply([twin.tensor(gradient)], rate, numbers[0])  # the skipped step is no step of the rule either
    assert twin.array(scaled_variable) == pytest.approx(twin.array(plain_variable), rel=1e-6)
    _, other = built(arithmetic="float16")
    other.load_state(scaled.state())
    assert other.state()["loss_scale"].tolist() == [scale / 2, 1, 1]


@pytest.mark.parametrize(("value", "is_applied"), [(1e30, True), (np.nan, False), (np.inf, False), (-np.inf, False)])
def test_a_step_is_skipped_for_values_that_are_not_finite_alone(twin: Twin, value: float, is_applied: bool) -> None:
    """The sum of squares of large finite values would overflow."""
    settings = spec.Optimizer.model_validate({"name": "sgd", "momentum": 0.0})
    variables = [twin.variable(np.ones(2, np.float32)) for _ in range(2)]
    built = twin.optim.build(settings, variables, {"arithmetic": "float16"})
    gradients = [twin.tensor(np.array(values, np.float32)) for values in ([0.0, 0.5], [value, 1.0])]
    built.apply(gradients, twin.number(0.5), _whole(twin, 1))
    assert twin.array(variables[0]).tolist() == ([1.0, 0.75] if is_applied else [1.0, 1.0])
    assert built.state()["loss_scale"].tolist()[1:] == ([1, 0] if is_applied else [0, 1])


def test_the_loss_scale_leaves_no_trace_in_gradients(twin: Twin) -> None:
    batch = twin.batch(*BATCH)
    plain, scaled = (trainer(twin, arithmetic=each).gradients(batch, COUNT) for each in ("full", "float16"))
    largest = max(np.abs(gradient).max() for gradient in plain.values())
    assert max(np.abs(scaled[name] - gradient).max() for name, gradient in plain.items()) < 0.02 * largest


def test_float16_takes_no_compressed_gradients(twin: Twin) -> None:
    """An overflow must skip the step. A message would hide it, and its error would stay."""
    fields = runs.SETTINGS | {"mode": "data_parallel", "replicas": 2, "precision": "float32"}
    fields["communication"] = {"compression": "int8"}
    refused = spec.incompatibility(spec.build(fields), twin.switches.options("cpu")["arithmetic"], "float16")
    # TensorFlow's float16 is for serial runs alone.
    assert refused is not None and ("compression" if twin.framework == "pytorch" else "mode") in refused


def test_a_model_with_less_arithmetic_runs_as_a_copy_on_another_device(twin: Twin) -> None:
    """nn.DataParallel's copies have tensors in the place of parameters."""
    if twin.framework == "tensorflow":
        pytest.skip("replicas of a strategy are no copies of a model")

    def copied(module: Any) -> Any:
        made = module._replicate_for_data_parallel()
        for name, child in module.named_children():
            made._modules[name] = copied(child)
        for name, parameter in module._parameters.items():
            setattr(made, name, None if parameter is None else parameter.detach())
        return made

    model = twin.models.build(ARCHITECTURE, "float32", arithmetic="bfloat16").eval()
    images = twin.tensor(np.ones((2, 3, ARCHITECTURE.image_size, ARCHITECTURE.image_size), np.float32))
    given, found = model(images), copied(model)(images)
    assert twin.array(found).dtype == np.float32
    assert np.array_equal(twin.array(given.detach()), twin.array(found))


@pytest.mark.parametrize("kernel", ["foreach", "fused"])
@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("native", [False, True])
def test_kernels_of_the_update_follow_the_same_rule(
    twin: Twin, kernel: str, name: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "optimizer_kernel" not in twin.switches.options("cpu"):
        pytest.skip("fused kernels are all that there is")
    settings = spec.Optimizer.model_validate({"name": name, "weight_decay": 0.01, "native": native})
    generator = np.random.default_rng(3)
    starts = [generator.normal(size=shape).astype(np.float32) for shape in ((3, 2), (4,))]
    after: list[list[np.ndarray]] = []
    for switches in ({}, {"optimizer_kernel": kernel}):
        generator = np.random.default_rng(4)
        variables = [twin.variable(start) for start in starts]
        built = twin.optim.build(settings, variables, switches)
        for step in (1, 2, 3):
            gradients = [twin.tensor(generator.normal(size=start.shape).astype(np.float32)) for start in starts]
            built.apply(gradients, 0.1, step)
        after.append([twin.array(variable) for variable in variables])
    for one, other in zip(*after, strict=True):
        assert np.abs(one - other).max() < 1e-6


@pytest.mark.parametrize("kernel", ["loop", "foreach", "fused"])
def test_without_momentum_the_buffer_of_every_kernel_is_the_last_gradient(twin: Twin, kernel: str) -> None:
    """As in the formula, although torch keeps no buffer then."""
    settings = spec.Optimizer.model_validate({"name": "sgd", "momentum": 0.0, "weight_decay": 0.5})
    built = twin.optim.build(settings, [twin.variable(np.array([2.0, 4.0]))], {"optimizer_kernel": kernel})
    built.apply([twin.tensor(np.array([1.0, -1.0]))], twin.number(0.5), _whole(twin, 1))
    assert built.state()["buffer/0"].tolist() == [2.0, 1.0]


@pytest.mark.parametrize("kernel", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
def test_a_buffer_without_momentum_outlives_gradients_in_shared_memory(twin: Twin, kernel: str, weight_decay: float) -> None:
    """DistributedDataParallel writes the next gradients into the memory of the last ones, in a blank batch too."""
    if twin.framework != "pytorch":
        pytest.skip("TensorFlow's tensors never change")
    settings = spec.Optimizer.model_validate({"name": "sgd", "momentum": 0.0, "weight_decay": weight_decay})
    variables = [twin.variable(np.array([2.0, -4.0])), twin.variable(np.array([6.0]))]
    built = twin.optim.build(settings, variables, {"optimizer_kernel": kernel})
    bucket = twin.tensor(np.array([1.0, -0.0, 3.0]))
    built.apply([bucket[:2], bucket[2:]], 0.5, 1)
    bucket.fill_(np.inf)
    stored = built.state()
    assert stored["buffer/0"].tolist() == [1.0 + weight_decay * 2.0, -weight_decay * 4.0]
    assert stored["buffer/1"].tolist() == [3.0 + weight_decay * 6.0]
    own = [twin.tensor(np.array([7.0, 8.0])), twin.tensor(np.array([9.0]))]
    built.apply(own, 0.5, 2)
    built.load_state(stored)
    assert {name: array.tobytes() for name, array in built.state().items()} == {
        name: array.tobytes() for name, array in stored.items()
    }
    assert [twin.array(gradient).tolist() for gradient in own] == [[7.0, 8.0], [9.0]]  # it loads into memory of its own


@pytest.mark.parametrize("kernel", ["foreach", "fused"])
def test_an_update_without_momentum_runs_the_kernel_of_its_switch_alone(twin: Twin, kernel: str) -> None:
    if twin.framework != "pytorch":
        pytest.skip("fused kernels are all that there is")
    import torch

    settings = spec.Optimizer.model_validate({"name": "sgd", "momentum": 0.0})
    variables = [twin.variable(np.ones(3)) for _ in range(4)]
    built = twin.optim.build(settings, variables, {"optimizer_kernel": kernel})
    gradients = [twin.tensor(np.array([1.0, -0.0, 0.0])) for _ in range(4)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        built.apply(gradients, 0.5, 1)
    calls = [average.key for average in profile.key_averages()]
    assert {"foreach": "aten::_foreach_add_", "fused": "aten::_fused_sgd_"}[kernel] in calls
    assert not {"aten::add", "aten::copy_", "aten::clone"} & set(calls), calls
    zeros = np.array([1.0, 0.0, 0.0]).tobytes()  # the formula adds a decay of 0, which makes 0 of -0
    assert all(array.tobytes() == zeros for array in built.state().values())


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize(("native", "words"), [(False, "fused"), (True, "an operation at a time")])
def test_tensorflow_updates_by_the_kernels_that_the_report_names(twin: Twin, name: str, native: bool, words: str) -> None:
    if twin.framework != "tensorflow":
        pytest.skip("the kernel is a switch")
    import tensorflow as tf

    wanted = spec.build({"optimizer": {"name": name, "native": native}})
    built = twin.optim.build(wanted.optimizer, [twin.variable(np.ones(3))])

    def update() -> None:
        built.apply([twin.tensor(np.ones(3))], twin.number(0.5), _whole(twin, 1))

    kinds = {operation.type for operation in tf.function(update).get_concrete_function().graph.get_operations()}
    assert any(kind.startswith("ResourceApply") for kind in kinds) == (words == "fused"), kinds
    options = twin.switches.options("cpu")
    run = RunResult(
        framework=twin.framework,
        spec=wanted,
        status="ok",
        conditions=spec.conditions(wanted, {"modes": {"serial": {}}, "options": options}),
        switches=spec.resolve_switches(wanted, options),
    )
    assert conditions.run_conditions(run)["update"] == words


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_replicas_of_every_level_of_switches_train_as_serial_does(twin: Twin, name: str, native: bool) -> None:
    """Fused kernels of torch update other weights where a sum of gradients lies in another order in memory."""
    if "optimizer_kernel" not in twin.switches.options("cpu"):
        pytest.skip("fused kernels are all that there is")
    fields = {"precision": "float64", "batch_norm_statistics": "synchronised", "optimizer": {"name": name, "native": native}}
    for level in ("usual", "closed"):
        serial, parallel = (
            losses(twin, made.trainer(twin, ARCHITECTURE, DATA, mode=mode, switches=level, **fields))
            for mode in ("serial", "data_parallel")
        )
        assert np.abs(parallel / serial - 1).max() < 1e-9, level


def test_channels_last_is_how_activations_lie_in_memory(twin: Twin, usual: np.ndarray) -> None:
    if "memory_format" not in twin.switches.options("cpu"):
        pytest.skip("kernels on the CPU are NHWC")
    import torch

    for wanted in ("contiguous", "channels_last"):
        formatted, seen = trainer(twin, memory_format=wanted), []
        layer = twin.models.find_layer(formatted._model, "conv")
        layer.register_forward_hook(lambda module, inputs, output, seen=seen: seen.append(output))
        found = losses(twin, formatted)
        assert seen and all(each.is_contiguous(memory_format=torch.channels_last) == (wanted != "contiguous") for each in seen)
        assert np.abs(found / usual - 1).max() < 1e-4


def test_eager_runs_python_at_every_step_and_a_graph_once(
    twin: Twin, usual: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    if twin.framework != "tensorflow":
        pytest.skip("eager is the default")
    calls: list[int] = []
    gradients = twin.train.Objective.gradients
    monkeypatch.setattr(twin.train.Objective, "gradients", lambda *given: calls.append(1) or gradients(*given))
    found = losses(twin, trainer(twin, graph="eager"))
    assert np.abs(found / usual - 1).max() < 1e-4
    assert len(calls) == STEPS
    calls.clear()
    losses(twin, trainer(twin))
    assert len(calls) == 1


@pytest.mark.slow
@pytest.mark.parametrize("arithmetic", ["full", "bfloat16"])
def test_a_compiled_graph_is_used_for_whole_batches_alone(twin: Twin, usual: np.ndarray, arithmetic: str) -> None:
    graphs = {"pytorch": "compile", "tensorflow": "xla"}[twin.framework]
    compiled = trainer(twin, graph=graphs, arithmetic=arithmetic)
    if twin.framework == "pytorch":
        from torch._dynamo.utils import counters

        counters.clear()
    found = losses(twin, compiled)
    if twin.framework == "pytorch":
        graphs_of_a_step = counters["stats"]["unique_graphs"]
        assert graphs_of_a_step >= 1
        own = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])  # what another process left there would be no compiling
        assert own.name.startswith("convtwins-compiled-") and any(own.rglob("*.so"))
    assert np.abs(found / usual - 1).max() < (1e-4 if arithmetic == "full" else CLOSE[arithmetic])
    few = 4
    smaller = twin.batch(*(values[:few] for values in BATCH[:2]), made.masks(ARCHITECTURE, few))
    compiled.train_step(smaller, few, 0.0)
    compiled.score(BATCH[0], BATCH[1])
    if twin.framework == "pytorch":
        assert counters["stats"]["unique_graphs"] == graphs_of_a_step
        return
    whole, rest = compiled._train(1, True), compiled._train(1, False)
    assert compiled._train.cache_info().currsize == 2  # these two: a step of each
    assert (whole._jit_compile, rest._jit_compile) == (True, None)
    text = whole.experimental_get_compiler_ir(*compiled._arguments(twin.batch(*BATCH), COUNT, 0.0))()
    assert text.startswith("HloModule")


AUGMENTATIONS = (
    {},
    {"horizontal_flip": True, "shift_px": 2},
    {"horizontal_flip": True, "shift_px": 2, "rotation_degrees": 20.0, "brightness": 0.2},
)


@pytest.mark.parametrize("augmentation", AUGMENTATIONS, ids=["none", "whole pixels", "affine"])
def test_batches_made_on_the_device_are_those_made_on_the_host(twin: Twin, augmentation: dict[str, Any]) -> None:
    made_trainer = made.trainer(twin, ARCHITECTURE, DATA, augmentation=augmentation, epochs=2)
    plan, where = made_trainer._plan, {"pytorch": "cpu", "tensorflow": "CPU:0"}[twin.framework]
    resident = list(all_batches(plan, twin.input.resident(plan, DATA.train, 1, 0, where)))
    usual = list(twin.batches(plan, DATA.train, 1, 0))
    assert len(resident) == len(usual) == 6
    for one, other in zip(resident, usual, strict=True):
        for name in ("ids", "images", "labels"):
            assert np.array_equal(twin.array(getattr(one, name)), twin.array(getattr(other, name))), name
        assert all(np.array_equal(*map(twin.array, pair)) for pair in zip(one.masks, other.masks, strict=True))


@pytest.mark.parametrize("augmentation", AUGMENTATIONS, ids=["none", "whole pixels", "affine"])
def test_a_gpu_has_a_kernel_for_all_that_is_done_on_it(
    twin: Twin, monkeypatch: pytest.MonkeyPatch, augmentation: dict[str, Any]
) -> None:
    """What it has none for, TensorFlow does on the host, with all that it takes sent there, and says nothing."""
    if twin.framework != "tensorflow":
        pytest.skip("torch refuses what a device cannot do")
    import tensorflow as tf
    from tensorflow.python.framework import kernels

    if not tf.test.is_built_with_cuda():
        pytest.skip("this build has no kernels for a GPU: `make setup LOCK=requirements.lock` installs one that has")
    graphs: list[Any] = []
    function = tf.function

    def recording(body: Any, **given: Any) -> Any:
        traced = function(body, **given)

        def called(*values: Any) -> Any:
            graphs.append(traced.get_concrete_function(*values).graph)
            return traced(*values)

        return called

    made_trainer = made.trainer(twin, ARCHITECTURE, DATA, augmentation=augmentation, global_batch_size=4)
    monkeypatch.setattr(tf, "function", recording)
    next(twin.input.resident(made_trainer._plan, DATA.train, 1, 0, "CPU:0")(1, [0]))
    batch = [values[:8] for values in (*BATCH[:2], *BATCH[2])]
    graphs.append(function(lambda *values: halves(twin, values)).get_concrete_function(*map(tf.constant, batch)).graph)
    assert len(graphs) == 2

    def is_served(operation: Any) -> bool:
        on_gpu = [
            kernel
            for kernel in kernels.get_registered_kernels_for_op(operation.type).kernel
            if kernel.device_type in ("GPU", "DEFAULT")
        ]
        return any(
            all(operation.node_def.attr[each.name].type in each.allowed_values.list.type for each in kernel.constraint)
            for kernel in on_gpu
        )

    operations = [operation for graph in graphs for operation in graph.get_operations()]
    assert {operation.type for operation in operations} >= {"GatherV2", "Bitcast"}
    assert [(operation.type, operation.name) for operation in operations if not is_served(operation)] == []


def halves(twin: Twin, values: Any) -> list[Any]:
    return [half for each in values for half in twin.train.micro_batches(each, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["serial", "data_parallel", "multi_process", "model_averaging"])
def test_runs_in_every_mode_that_a_switch_is_for(framework: str, begin: Any, tmp_path: Path, mode: str) -> None:
    options = importlib.import_module(f"{framework}_impl.switches").options("cpu")
    wanted = {"arithmetic": "float16", "optimizer_kernel": "fused", "memory_format": "channels_last", "allocator": "system"}
    fields = {"mode": mode, "replicas": 1 if mode == "serial" else 2, "precision": "float32"}
    asked = spec.build(runs.SETTINGS | fields)
    chosen = {name: value for name, value in wanted.items() if name in options}
    if spec.incompatibility(asked, options["arithmetic"], "float16") is not None:
        chosen["arithmetic"] = "bfloat16"
    pair: list[Any] = []
    for number, switches in enumerate(({}, chosen)):
        pair.append(begin(tmp_path / str(number), fields | {"framework_options": switches}).end())
    usual, switched = pair
    assert (usual.status, switched.status) == ("ok", "ok"), switched.reason
    assert switched.switches == usual.switches | chosen
    assert switched.reduced == [f"arithmetic={chosen['arithmetic']}"]
    assert switched.machine["allocator"] == "the system's default"
    assert switched.first_step_loss == pytest.approx(usual.first_step_loss, rel=CLOSE["bfloat16"])
    assert switched.test.loss == pytest.approx(usual.test.loss, rel=0.2)


@pytest.mark.slow
def test_replicas_that_average_their_weights_compile_their_own_models(framework: str, begin: Any, tmp_path: Path) -> None:
    graph = {"pytorch": "compile", "tensorflow": "xla"}[framework]
    fields = {"mode": "model_averaging", "replicas": 2, "precision": "float32"}
    usual, compiled = (
        begin(tmp_path / str(number), fields | {"framework_options": switches}).end()
        for number, switches in enumerate(({}, {"graph": graph}))
    )
    assert (usual.status, compiled.status) == ("ok", "ok"), compiled.reason
    assert compiled.switches == usual.switches | {"graph": graph}
    assert compiled.first_step_loss == pytest.approx(usual.first_step_loss, rel=1e-4)
    assert compiled.test.loss == pytest.approx(usual.test.loss, rel=1e-2)


CHOSEN = {"onednn": False, "intra_op_threads": 2, "inter_op_threads": 2}

PROBE = """
import importlib, json, sys
from common import spec
from common.data.batches import all_batches
framework, fields = sys.argv[1], json.loads(sys.argv[2])
read = spec.build(fields)
allocator = importlib.import_module(f"{framework}_impl.switches").prepare(read)
device = importlib.import_module(f"{framework}_impl.device")
device.configure(read)
if framework == "pytorch":
    import torch
    onednn, threads = torch.backends.mkldnn.enabled, (torch.get_num_threads(), torch.get_num_interop_threads())
else:
    import tensorflow as tf
    from tensorflow.python.util import _pywrap_util_port
    threads = tuple(getattr(tf.config.threading, f"get_{kind}_op_parallelism_threads")() for kind in ("intra", "inter"))
    onednn = bool(_pywrap_util_port.IsMklEnabled())
print(json.dumps([allocator, onednn, *threads]))
"""


@pytest.mark.parametrize(
    ("fields", "allocator", "onednn", "threads"),
    [
        ({"switches": "plain", "framework_options": CHOSEN}, "the system's default", False, [2, 2]),
        pytest.param({}, "keeps freed pages", True, [1, 1], marks=pytest.mark.slow),
        pytest.param({"switches": "plain"}, "the system's default", True, None, marks=pytest.mark.slow),
    ],
)
def test_what_a_process_settles_before_its_first_tensor(
    framework: str, fields: dict[str, Any], allocator: str, onednn: bool, threads: list[int] | None
) -> None:
    if "framework_options" in fields and machine.available_cores() < 2:
        pytest.skip("needs two cores")
    found = processes.python("-c", PROBE, framework, json.dumps({"cores": 1} | fields)).succeeded().json
    assert found[:2] == [allocator, onednn]
    if threads is not None:
        assert found[2:] == threads
    elif framework == "tensorflow":
        assert found[2:] == [0, 0]  # its own choice


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_every_switch_says_what_it_may_be(framework: str, kind: str) -> None:
    switches = importlib.import_module(f"{framework}_impl.switches")
    for name, option in switches.options(kind).items():
        required, rest = (
            {"values", "default", "help"},
            {"elsewhere", "only", "reduced", "process", "found_for", *LEVELS, "sets", "sets_native"},
        )
        assert required <= option.keys() <= required | rest, name
        assert {option["default"], *(option[level] for level in LEVELS if level in option)} <= set(option["values"]), name
        for words in (*option.get("sets", {}).values(), *option.get("sets_native", {}).values()):
            assert words.keys() == {*map(str, option["values"]), *option.get("elsewhere", {})}, name
        known = {*map(str, option["values"]), *option.get("elsewhere", {})}
        assert {*option.get("only", {}), *map(str, option.get("process", ()))} <= known, name
        assert not {*map(str, option["values"])} & {*option.get("elsewhere", {})}, name
        assert option["default"] not in (*option.get("process", ()), *option.get("reduced", ())), name
    both = {"allocator", "arithmetic", "graph", "onednn", "intra_op_threads", "inter_op_threads", "cudnn_autotune", "data_on"}
    assert both <= switches.options(kind).keys()


def _activation_dtype(twin: Twin, made_trainer: Any) -> str:
    layer = twin.models.find_layer(made_trainer._model, "block.pointwise")
    if twin.framework == "tensorflow":
        return layer.output.dtype
    seen: list[str] = []
    handle = layer.register_forward_hook(lambda module, inputs, output: seen.append(str(output.dtype).removeprefix("torch.")))
    made_trainer.logits(twin.batch(*BATCH), training=False)
    handle.remove()
    (dtype,) = seen
    return dtype


def _whole(twin: Twin, number: int) -> Any:
    return twin.tensor(np.int64(number)) if twin.framework == "tensorflow" else number


NO_CONDITIONS = {"pinned_memory": "It is how input workers hand over a batch. No kernel computes otherwise."}
"""Switches that decide no condition, each with the reason."""


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_every_switch_decides_a_condition_or_says_why_not(framework: str, kind: str) -> None:
    """A new switch that does neither fails here: a division would not see it."""
    options = importlib.import_module(f"{framework}_impl.switches").options(kind)
    by_words = dict(conditions.SWITCH_CONDITIONS.values())
    itself = {"allocator", "arithmetic", "intra_op_threads", "inter_op_threads"}  # precision, and threads as they were
    for name, option in options.items():
        sets = option.get("sets", {}).keys() & conditions.CONDITIONS.keys()
        assert [bool(sets), name in by_words, name in itself, name in NO_CONDITIONS].count(True) == 1, name
        if name in by_words:
            assert {*map(str, option["values"]), *option.get("elsewhere", {})} <= by_words[name].keys()


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_closed_gives_both_frameworks_one_value_of_each_condition_that_a_switch_decides(kind: str) -> None:
    wanted, found = spec.build({"switches": "closed"}), list[dict[str, str]]()
    for framework in ("pytorch", "tensorflow"):
        options = importlib.import_module(f"{framework}_impl.switches").options(kind)
        run = RunResult(
            framework=framework,
            spec=wanted,
            status="ok",
            device=kind,
            conditions=spec.conditions(wanted, {"modes": {"serial": {}}, "options": options}),
            switches=spec.resolve_switches(wanted, options),
        )
        found.append(conditions.run_conditions(run))
    assert found[0] == found[1]
    assert found[0]["update"] == "fused" and found[0]["layout"] == "NHWC"


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_closed_gives_both_frameworks_one_layout_and_one_graph_class(kind: str) -> None:
    found: list[dict[str, str]] = []
    for framework in ("pytorch", "tensorflow"):
        options = importlib.import_module(f"{framework}_impl.switches").options(kind)
        description = {"modes": {"serial": {}}, "options": options}
        found.append(spec.conditions(spec.build({"switches": "closed"}), description))
    assert found[0] == found[1] == {"precision": "float32", "layout": "NHWC", "graph": "eager"}


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_what_both_frameworks_have_is_alike_in_usual(kind: str) -> None:
    # Neither of these modules imports its framework.
    one, other = (importlib.import_module(f"{name}_impl.switches").options(kind) for name in ("pytorch", "tensorflow"))
    shared = {
        name for name in one.keys() & other.keys() if {*map(str, one[name]["values"])} == {*map(str, other[name]["values"])}
    }
    assert {"allocator", "onednn", "intra_op_threads", "inter_op_threads", "data_on"} <= shared
    assert ("cudnn_autotune" in shared) == (kind == "cuda")
    assert {name: one[name]["default"] for name in shared} == {name: other[name]["default"] for name in shared}
    assert one["arithmetic"]["default"] == other["arithmetic"]["default"] == "full"


def test_on_a_gpu_pytorch_updates_by_kernels_as_tensorflow_does_and_records_graphs_of_whole_batches(twin: Twin) -> None:
    if twin.framework != "pytorch":
        pytest.skip("fused kernels and one graph are all that there is")
    on_cpu, on_cuda = twin.switches.options("cpu"), twin.switches.options("cuda")
    assert (on_cpu["optimizer_kernel"]["default"], on_cuda["optimizer_kernel"]["default"]) == ("loop", "fused")
    only = on_cuda["graph"]["only"]
    assert only["compile_cuda_graphs"]["accumulation"] == [1] and "accumulation" not in only["compile"]
    assert only["compile"]["mode"] == only["compile_cuda_graphs"]["mode"]

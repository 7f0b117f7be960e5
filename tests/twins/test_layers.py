"""Layers by themselves, forward and backward."""

import inspect
from pathlib import Path

import numpy as np
import pytest

from common import spec
from common.spec import SpecError
from common.training import layers
from common.training.layers import LayerTimes
from tests.support import processes
from tests.twins import made
from tests.twins.adapters import Twin

RUN = spec.build({"global_batch_size": 3})


def test_each_layer_gives_the_gradients_of_its_values_and_variables(twin: Twin) -> None:
    architecture = made.network()
    for unit in layers.unique_layers(architecture):
        passed = twin.layers.passes(RUN, unit.architecture, unit.input_shape, unit.input_needs_gradient)
        found = [twin.array(gradient) for gradient in (passed(), passed())[1]]
        trainable = sum(parameter.trainable for parameter in unit.architecture.parameters()) if unit.weights else 0
        assert len(found) == unit.input_needs_gradient + trainable, unit
        assert all(np.isfinite(gradient).all() for gradient in found) and any(gradient.any() for gradient in found), unit
        if unit.input_needs_gradient:
            assert sorted(found[0].shape) == sorted((3, *unit.input_shape)), unit


def test_a_graph_computes_what_a_layer_makes_though_no_gradient_needs_it(twin: Twin) -> None:
    if twin.framework != "tensorflow":
        pytest.skip("no graph: every operation is run")
    for unit in layers.unique_layers(made.network()):
        passed = twin.layers.passes(RUN, unit.architecture, unit.input_shape, unit.input_needs_gradient)
        held = inspect.getclosurevars(passed).nonlocals
        if unit.kind == "Residual":
            graph, given = held["sums"], (held["branches"], held["gradients"])
        elif unit.kind == "Concatenation":
            graph, given = held["concatenation"], (held["branches"], held["gradients"], held["upstream_values"])
        else:
            graph, given = held["graph"], (held["values"], held["masks"], held["upstream"])
        first = graph.get_concrete_function(*given).outputs[0]
        assert tuple(first.shape) == (3, *unit.output_shape), unit


@pytest.mark.parametrize("needs_gradient", [True, False])
def test_a_concatenation_is_timed_without_its_branches(twin: Twin, needs_gradient: bool) -> None:
    unit = next(unit for unit in layers.unique_layers(made.network()) if unit.kind == "Concatenation")
    passed = twin.layers.passes(RUN, unit.architecture, unit.input_shape, needs_gradient)
    held = inspect.getclosurevars(passed).nonlocals
    branches, gradients = ([twin.array(each) for each in held[name]] for name in ("branches", "gradients"))
    assert len({array.tobytes() for array in (*branches, *gradients)}) == 6
    (found,) = passed()
    if needs_gradient:
        np.testing.assert_allclose(twin.array(found), sum(gradients), rtol=1e-6)
    else:
        assert np.array_equal(twin.array(found), np.concatenate(branches, 1 if twin.framework == "pytorch" else -1))


@pytest.mark.parametrize("needs_gradient", [True, False])
def test_a_residual_sum_is_of_two_inputs_and_of_two_gradients(twin: Twin, needs_gradient: bool) -> None:
    unit = next(unit for unit in layers.unique_layers(made.resolve("mini_xception")) if unit.kind == "Residual")
    passed = twin.layers.passes(RUN, unit.architecture, unit.input_shape, needs_gradient)
    held = inspect.getclosurevars(passed).nonlocals
    if twin.framework == "pytorch":
        branches, gradients = [held["first"], held["second"]], [held["first_upstream"], held["second_upstream"]]
    else:
        branches, gradients = held["branches"], held["gradients"]
    arrays = [twin.array(each) for each in (*branches, *gradients)]
    assert len({array.tobytes() for array in arrays}) == 4
    (found,) = passed()
    assert np.array_equal(twin.array(found), arrays[2] + arrays[3] if needs_gradient else arrays[0] + arrays[1])


def test_a_model_is_passed_as_a_whole(twin: Twin) -> None:
    architecture = made.resolve("simple_cnn")
    found = twin.layers.passes(RUN, architecture, (32, 32, 3), False)()
    assert len(found) == len(architecture.parameters())


def test_what_nothing_is_learned_in_is_passed_forward_alone(twin: Twin) -> None:
    unit = next(unit for unit in layers.unique_layers(made.resolve("simple_cnn")) if unit.kind == "MaxPool")
    (values,) = twin.layers.passes(RUN, unit.architecture, unit.input_shape, False)()
    assert sorted(values.shape) == sorted((3, *unit.output_shape))


def test_layers_in_other_arithmetic_are_refused(twin: Twin) -> None:
    run = spec.build({"framework_options": {"arithmetic": "bfloat16"}})
    unit = layers.unique_layers(made.resolve("simple_cnn"))[0]
    with pytest.raises(SpecError, match=r"arithmetic.* Received: bfloat16"):
        twin.layers.passes(run, unit.architecture, unit.input_shape, False)


@pytest.mark.shared
def test_the_command_times_every_unit(framework: str, tmp_path: Path) -> None:
    path, out = tmp_path / "spec.json", tmp_path / "layers.json"
    words = ("layers", path, "--out", out, "--calls", 2)
    path.write_text(spec.build({"global_batch_size": 4, "cores": 1}).to_json(), "utf-8")
    processes.twin(framework, *words).succeeded()
    made_of = LayerTimes.model_validate_json(out.read_bytes())
    assert len(made_of.seconds) == len(layers.unique_layers(made.resolve("simple_cnn"))) and min(made_of.seconds) > 0.0
    # A median of two calls may hold a pause of the machine: it is compared with the shortest alone.
    assert made_of.whole_seconds > min(made_of.seconds) and made_of.device == "cpu" and made_of.versions

    path.write_text(spec.build({"mode": "data_parallel", "replicas": 2}).to_json(), "utf-8")
    refused = processes.twin(framework, *words)
    assert refused.exit_code == 2 and "mode data_parallel. Use serial" in refused.stderr

"""What a model is made of, and how each of it is timed."""

import itertools
from typing import Any

import pytest

from common import spec
from common.machine.rates import DeviceRates
from common.models import work
from common.models.architectures import Architecture, Concatenation, Conv, Residual, resolve
from common.spec import MODELS
from common.training import layers

SIZES = {model: 64 if "resnet" in model else 32 for model in MODELS}


@pytest.mark.parametrize("model", MODELS)
def test_the_units_of_a_model_are_all_of_its_work(model: str) -> None:
    architecture = resolve(model, 10, SIZES[model])
    units, whole = layers.unique_layers(architecture), work.count(architecture)
    names = [name for unit in units for name in unit.names]
    joins = [layer for layer in architecture.layers if isinstance(layer, Residual | Concatenation)]
    sums = [name for each in joins for name in (each.name, *([f"{each.name}.out"] if getattr(each, "relu", False) else []))]
    assert sorted(names) == sorted([*(layer.name for layer in architecture.leaves()), *sums])
    assert sum(unit.flops * len(unit.names) for unit in units) == whole.flops
    assert sum(unit.weights * len(unit.names) for unit in units) == whole.weights
    if "resnet" not in model:  # whose sums stand behind layers that change the shape
        assert sum(unit.values_moved * len(unit.names) for unit in units) == whole.values_moved


def test_layers_that_are_alike_are_one_unit() -> None:
    units = layers.unique_layers(resolve("mini_xception", 10, 32))
    by_width = {unit.input_shape[-1]: unit for unit in units if isinstance(unit.layer, Conv) and unit.layer.is_depthwise}
    assert {each: len(unit.names) for each, unit in by_width.items()} == {64: 9, 128: 1}
    sums = [unit for unit in units if unit.kind == "Residual"]
    assert [(unit.names, unit.input_shape) for unit in sums] == [(("block1", "block2", "block3", "block4"), (32, 32, 64))]
    assert [unit.input_needs_gradient for unit in units].count(False) == 1  # before the first one is the image


def test_bytes_are_those_of_values_and_of_weights() -> None:
    unit = next(unit for unit in layers.unique_layers(resolve("simple_cnn", 10, 32)) if unit.names == ("logits",))
    values = 128 + 10 + (10 + 128 + 128)  # input, output; backward the output's gradient, the input and its gradient
    for precision, size in (("float32", 4), ("float64", 8)):
        run = spec.build({"precision": precision, "global_batch_size": 16})
        assert unit.bytes_moved(run) == size * (16 * values + 3 * (128 * 10 + 10))


def test_each_unit_is_timed_by_the_median_of_its_calls() -> None:
    architecture, waits, asked = resolve("simple_cnn", 10, 32), itertools.count(), list[tuple[Any, ...]]()
    now = 0.0

    def passes(run: Any, alone: Architecture, shape: tuple[int, ...], needs_gradient: bool) -> Any:
        asked.append((len(alone.layers), shape, needs_gradient))
        number, slow = len(asked), iter([9.0, 9.0, 9.0, 1.0, 2.0, 7.0])  # three to warm up, three that count

        def once() -> None:
            nonlocal now
            now += number * next(slow)

        return once

    run, known = spec.build({}), {"device": "cpu", "versions": {"made": "1"}}
    made = layers.measure(run, architecture, passes, lambda: next(waits), 3, **known, clock=lambda: now)
    units = layers.unique_layers(architecture)
    assert asked == [
        *((1, unit.input_shape, unit.input_needs_gradient) for unit in units),
        (len(architecture.layers), (32, 32, 3), False),
    ]
    assert made.seconds == [2.0 * number for number in range(1, len(units) + 1)]
    assert made.whole_seconds == 2.0 * (len(units) + 1)
    assert next(waits) == 2 * 6 * (len(units) + 1)  # the device was waited for before and after each


def test_short_calls_to_an_accelerator_are_timed_in_blocks() -> None:
    now, calls = 0.0, 0

    def once() -> None:
        nonlocal now, calls
        calls += 1
        now += 0.002

    known = DeviceRates(matrix_gflops=1.0, copy_gb_per_second=2.0)
    made = layers.measure(
        spec.build({}),
        resolve("simple_cnn", 10, 32),
        lambda *_: once,
        lambda: None,
        2,
        device="gpu",
        versions={},
        device_rates=lambda: known,
        clock=lambda: now,
    )
    assert made.seconds == pytest.approx([0.002] * len(made.seconds)) and made.device_rates == known
    assert calls == (len(made.seconds) + 1) * (layers.WARM_UP_CALLS + 2 * 5)  # of 10 ms each

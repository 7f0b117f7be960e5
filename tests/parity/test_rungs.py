"""What each rung compares, on which scale and how strictly, with recordings that no framework made."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from common import spec
from common.spec import Spec
from compare.proof import rungs, tolerances
from compare.proof.certificate import Rung
from compare.proof.differences import Arrays
from compare.proof.tolerances import Yardstick
from tests.parity.made_up import architecture_of, recording

SGD = {"name": "sgd"}
ADAM = {"name": "adam", "learning_rate": 1e-3}


def base(precision: str = "float64", steps: int = 10, **fields: Any) -> Spec:
    values = {"model": "tests.parity.probe", "precision": precision, "steps": steps, "global_batch_size": 4, **fields}
    return spec.build(values)


def held(change: Callable[[Arrays], None], yardstick: Yardstick | None = None, **fields: Any) -> dict[str, Rung]:
    """The rungs by name between a recording and a changed copy of it."""
    what = base(**fields)
    ours, theirs = recording(what), recording(what)
    change(theirs)
    return {rung.name: rung for rung in rungs.compare_serials(what, architecture_of(what), ours, theirs, yardstick)}


_SERIALS_ALONE = ("initial/", "gradient/", "logits/train", "logits/eval")
"""What `tracing.trace` does not record of a mode."""


def _parallel(what: Spec, mode: str = "data_parallel", **fields: Any) -> Spec:
    own = {"batch_norm_statistics": "synchronised"} if mode == "data_parallel" else {}
    return what.with_fields(replicas=2, mode=mode, **own, **fields)


def held_mode(
    change: Callable[[Arrays], None], yardstick: Yardstick | None = None, mode: Mapping[str, Any] | None = None, **fields: Any
) -> list[Rung]:
    what = base(**fields)
    parallel = _parallel(what, **(mode or {}))
    serial = recording(what)
    split = {name: array for name, array in recording(what).items() if not name.startswith(_SERIALS_ALONE)}
    change(split)
    return rungs.compare_mode(parallel, architecture_of(what), "pytorch", serial, split, yardstick)


def failed(rungs: dict[str, Rung]) -> list[str]:
    return [name for name, rung in rungs.items() if rung.status == "failed"]


def times(name: str, relative: float, index: Any = ...) -> Callable[[Arrays], None]:
    """Change by a part of the largest value of the array."""

    def change(arrays: Arrays) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][index] += relative * np.abs(arrays[name]).max()

    return change


def put(name: str, value: Any, index: Any = ...) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][index] = value

    return change


def nothing(arrays: Arrays) -> None:
    pass


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("optimizer", [SGD, ADAM])
def test_equal_recordings_pass_every_rung_with_no_difference(precision: str, optimizer: dict[str, Any]) -> None:
    rungs = held(nothing, precision=precision, optimizer=optimizer)
    assert [rung.max_relative_difference for rung in rungs.values()] == [0.0] * len(rungs)
    assert {rung.status for rung in rungs.values()} <= {"passed", "shown"}
    assert [rung.name for rung in rungs.values() if rung.status == "shown"] == (
        ["5 logits after the last step, eval mode"] if precision == "float32" else []
    )


@pytest.mark.parametrize(
    ("name", "rung", "tolerance", "precision"),
    [
        ("logits/train", "2 logits, train mode", 1e-12, "float64"),
        ("logits/eval", "2 logits, eval mode", 1e-12, "float64"),
        ("gradient/dense.kernel", "3 gradients", 1e-12, "float64"),
        ("stepped/conv_bn.variance", "4 BatchNorm statistics after one step", 1e-12, "float64"),
        ("stepped/conv_bn.mean", "4 BatchNorm statistics after one step", 1e-12, "float64"),
        ("logits/final", "5 logits after the last step, eval mode", 1e-9, "float64"),
        ("logits/train", "2 logits, train mode", 1e-4, "float32"),
    ],
)
def test_a_value_of_each_array_is_held_to_its_tolerance(name: str, rung: str, tolerance: float, precision: str) -> None:
    def largest(factor: float) -> Callable[[Arrays], None]:
        return lambda arrays: put(
            name, arrays[name].max() * (1 + factor * tolerance), np.unravel_index(arrays[name].argmax(), arrays[name].shape)
        )(arrays)

    assert failed(held(largest(0.01), precision=precision)) == []
    assert failed(held(largest(100), precision=precision)) == [rung]


@pytest.mark.parametrize(("optimizer", "tolerance"), [(SGD, 1e-11), (ADAM, 1e-8)])
def test_weights_after_one_step_are_held_on_the_scale_of_the_largest_update(
    optimizer: dict[str, Any], tolerance: float
) -> None:
    def apart(factor: float) -> Callable[[Arrays], None]:
        def change(arrays: Arrays) -> None:
            updates = [
                np.abs(arrays[n] - arrays[n.replace("stepped", "initial")]).max()
                for n in arrays
                if n.startswith("stepped/") and n.replace("stepped", "gradient") in arrays
            ]
            arrays["stepped/logits.kernel"][2, 3] += factor * tolerance * max(updates)

        return change

    assert failed(held(apart(0.9), optimizer=optimizer)) == []
    rungs = held(apart(1.1), optimizer=optimizer)
    assert failed(rungs) == ["4 weights after one step"]
    assert rungs["4 weights after one step"].where == "logits.kernel"


def test_only_adam_is_forgiven_where_a_gradient_is_rounding_noise() -> None:
    def moved_bias(what: Spec) -> list[str]:
        ours, theirs = recording(what), recording(what)
        ours["gradient/conv.bias"][:] = 1e-16
        theirs["gradient/conv.bias"][:] = -1e-16
        theirs["stepped/conv.bias"] += 1e-6
        return failed({rung.name: rung for rung in rungs.compare_serials(what, architecture_of(what), ours, theirs, None)})

    assert moved_bias(base(optimizer=ADAM)) == []
    assert moved_bias(base(optimizer=SGD)) == ["4 weights after one step"]


def test_gradients_are_compared_on_the_scale_of_the_models_largest() -> None:
    def small(arrays: Arrays) -> None:
        arrays["gradient/conv.bias"] += 1e-13  # more than 1e-12 of a bias's own gradient would be, were it that small

    rungs = held(small)
    largest = max(np.abs(array).max() for name, array in recording(base()).items() if name.startswith("gradient/"))
    assert rungs["3 gradients"].max_relative_difference == pytest.approx(1e-13 / largest, rel=0.1)
    assert rungs["3 gradients"].where == "conv.bias"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda arrays: arrays.pop("initial/conv.bias"), "conv.bias"),
        (lambda arrays: arrays.pop("gradient/conv.bias"), "conv.bias"),
        (lambda arrays: arrays.update({"gradient/conv_bn.mean": np.zeros(8)}), "conv_bn.mean"),
        (lambda arrays: arrays.update({"initial/extra.bias": np.zeros(8)}), "names"),
        (lambda arrays: arrays.update({"initial/dense.kernel": arrays["initial/dense.kernel"].T}), "dense.kernel"),
        (lambda arrays: arrays.update({"initial/conv.bias": arrays["initial/conv.bias"][:1]}), "conv.bias"),
        (lambda arrays: put("initial/conv.bias", 1e-300, 0)(arrays), "conv.bias"),
    ],
)
def test_names_shapes_and_values_of_parameters_are_exact_and_nothing_is_judged_after_them(
    change: Callable[[Arrays], Any], where: str
) -> None:
    (only,) = held(change).values()
    assert (only.name, only.status, only.where) == ("1 parameters", "failed", where)
    assert math.isinf(only.max_relative_difference)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("name", "rung"),
    [
        ("logits/train", "2 logits, train mode"),
        ("gradient/conv.kernel", "3 gradients"),
        ("stepped/conv.kernel", "4 weights after one step"),
        ("stepped/conv_bn.mean", "4 BatchNorm statistics after one step"),
        ("loss", "5 losses"),
        ("logits/final", "5 logits after the last step, eval mode"),
    ],
)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_a_value_that_is_no_finite_number_is_an_infinite_difference(name: str, rung: str, bad: float, precision: str) -> None:
    if precision == "float32" and name.startswith(("gradient/", "stepped/")):
        return  # rung 8 judges them
    rungs = held(put(name, bad, -1), precision=precision)
    assert rung in failed(rungs)
    assert math.isinf(rungs[rung].max_relative_difference)


@pytest.mark.parametrize("name", ["gradient/conv.kernel", "loss", "logits/final", "logits/eval", "stepped/conv_bn.variance"])
def test_numbers_that_are_missing_on_both_sides_are_no_agreement(name: str) -> None:
    what = base()
    ours, theirs = recording(what), recording(what)
    for arrays in (ours, theirs):
        arrays[name][-1] = np.nan
    yardstick = tolerances.measure_yardstick([(ours, {**theirs, "logits/final": theirs["logits/final"][::-1]})])
    for each in (None, yardstick):
        assert failed({rung.name: rung for rung in rungs.compare_serials(what, architecture_of(what), ours, theirs, each)})


@pytest.mark.parametrize(
    ("name", "rung"),
    [
        ("logits/eval", "2 logits, eval mode"),
        ("gradient/conv.bias", "3 gradients"),
        ("stepped/conv.bias", "4 weights after one step"),
        ("stepped/conv_bn.mean", "4 BatchNorm statistics after one step"),
        ("loss", "5 losses"),
        ("logits/final", "5 logits after the last step, eval mode"),
        ("images/1", "7 pixels and order"),
        ("ids", "7 pixels and order"),
    ],
)
def test_shapes_that_numpy_would_broadcast_are_an_infinite_difference(name: str, rung: str) -> None:
    rungs = held(lambda arrays: arrays.update({name: arrays[name][:1]}))
    assert rung in failed(rungs)
    assert math.isinf(rungs[rung].max_relative_difference)


def test_each_loss_is_held_to_1e_12_and_the_worst_step_is_named() -> None:
    assert failed(held(lambda arrays: put("loss", arrays["loss"][6] * (1 + 9e-13), 6)(arrays))) == []
    rungs = held(lambda arrays: put("loss", arrays["loss"][6] * (1 + 2e-12), 6)(arrays))
    rung = rungs["5 losses"]
    assert (rung.status, rung.step, rung.steps, rung.tolerance) == ("failed", 7, 10, 1e-12)
    assert rung.max_relative_difference == pytest.approx(2e-12, rel=1e-3)


def test_a_wrong_count_of_right_predictions_fails_at_the_first_steps() -> None:
    rung = held(put("num_correct", 99, 2))["5 losses"]
    assert (rung.status, rung.where) == ("failed", "number of right predictions")
    assert failed(held(put("num_correct", 99, 3))) == []


def test_float32_is_judged_by_its_first_step_and_shows_how_the_rest_grows() -> None:
    def grows(arrays: Arrays) -> None:
        arrays["loss"] = arrays["loss"] * (1 + 1e-7 * 3.0 ** np.arange(10))

    rung = held(grows, precision="float32")["5 losses"]
    assert (rung.status, rung.step, rung.tolerance) == ("passed", 1, 1e-5)
    assert rung.where == "differs by 1.0e-07 at step 1, 3.0e-07 at step 2, 8.1e-06 at step 5, 2.0e-03 at step 10"
    rung = held(times("loss", 2e-5, 0), precision="float32")["5 losses"]
    assert (rung.status, rung.step) == ("failed", 1)


def test_a_yardstick_is_the_largest_difference_so_far_of_any_framework_to_itself() -> None:
    what = base(steps=4)
    ours, mirrored = recording(what), recording(what, reverse_batches=True)
    theirs, other = recording(what, seed=1), recording(what, reverse_batches=True, seed=1)
    mirrored["loss"] = mirrored["loss"] * (1 + np.array([0, 3e-13, 1e-13, 5e-13]))
    other["loss"] = other["loss"] * (1 + np.array([0, 0, 4e-13, 0]))
    other["logits/final"] = other["logits/final"] * (1 + 1e-8)
    yardstick = tolerances.measure_yardstick([(ours, mirrored), (theirs, other)])
    np.testing.assert_allclose(yardstick.losses, [0, 3e-13, 4e-13, 5e-13], atol=1e-15)
    assert yardstick.logits == pytest.approx(1e-8, rel=1e-3)


def test_a_yardstick_gives_ten_times_itself_but_never_to_the_first_step_and_little_to_the_next_two() -> None:
    yardstick = Yardstick(losses=np.array([1e-13, 1e-10, *[1e-8] * 8]), logits=1e-7)

    def apart(step: int, relative: float, yardstick: Yardstick = yardstick) -> list[str]:
        return failed(held(lambda arrays: put("loss", arrays["loss"][step] * (1 + relative), step)(arrays), yardstick))

    for step, limit in enumerate((1e-12, 1e-10, 1e-8, 1e-7)):
        assert apart(step, 0.9 * limit) == []
        assert apart(step, 1.1 * limit) == ["5 losses"]
    small = Yardstick(losses=np.full(10, 5e-14), logits=1e-7)
    assert apart(2, 1.1e-12, small) == apart(1, 1.1e-12, small) == ["5 losses"]
    assert failed(held(times("logits/final", 0.9e-6), yardstick)) == []
    assert failed(held(times("logits/final", 1.1e-6), yardstick)) == ["5 logits after the last step, eval mode"]


def test_the_largest_difference_is_told_even_where_its_limit_is_far() -> None:
    growing = Yardstick(losses=1e-12 * 10.0 ** np.arange(10), logits=0.0)

    def amplified(arrays: Arrays) -> None:
        arrays["loss"] = arrays["loss"] * (1 + np.array([0, 0, 0, 9e-10, 0, 0, 0, 0, 0, 2e-6]))

    rung = held(amplified, growing)["5 losses"]
    # From step 7 on the yardstick exceeds the ceiling: the last difference, however large, is shown and judges nothing.
    assert (rung.status, rung.step, rung.tolerance, rung.judged_steps) == ("passed", 4, pytest.approx(1e-8), 6)
    assert rung.max_relative_difference == pytest.approx(9e-10, rel=1e-3)
    assert "from step 7 on, where that exceeds 1e-06, shown" in rung.reason


@pytest.mark.parametrize(
    ("step", "difference", "is_one"),
    [(1, 2e-12, False), (2, 9e-11, True), (2, 2e-10, False), (3, 9e-9, True), (3, 2e-8, False), (4, 1.0, True)],
)
def test_a_yardstick_that_is_large_from_the_start_measures_nothing(step: int, difference: float, is_one: bool) -> None:
    ordered, reordered = recording(base()), recording(base(), reverse_batches=True)
    reordered["loss"][step - 1 :] *= 1 + difference
    reordered["logits/final"] *= 1 + 1e-10
    yardstick = tolerances.measure_yardstick([(ordered, reordered)])
    assert (yardstick.losses.any(), yardstick.logits > 0.0) == (is_one, is_one)


def test_a_small_yardstick_takes_nothing_away() -> None:
    assert (
        failed(held(lambda arrays: put("loss", arrays["loss"][5] * (1 + 9e-13), 5)(arrays), Yardstick(np.zeros(10), 0.0))) == []
    )


def test_the_order_of_the_examples_the_decoded_pixels_and_each_level_of_them_are_exact() -> None:
    for change, where in (
        (lambda arrays: put("ids", arrays["ids"][::-1])(arrays), "order of the examples"),
        (put("decoded", 99, 0), "decoded pixels"),
    ):
        rungs = held(change)
        assert failed(rungs) == ["7 pixels and order"]
        assert rungs["7 pixels and order"].where == where

    def one_level(arrays: Arrays) -> None:
        arrays["images/1"][0, 0, 0, 0] ^= 1

    rung = held(one_level)["7 pixels and order"]
    assert (rung.status, rung.where) == ("failed", "images of step 2")
    assert rung.max_relative_difference == pytest.approx(1 / 255)


def test_a_mode_is_held_by_losses_weights_statistics_and_evaluation() -> None:
    name = "6 data_parallel against serial"
    rungs = held_mode(nothing)
    assert [rung.name for rung in rungs] == [
        name,
        f"{name}: weights after one step",
        f"{name}: BatchNorm statistics after one step",
        f"{name}: logits after the last step",
    ]
    assert {(rung.status, rung.framework, rung.mode) for rung in rungs} == {("passed", "pytorch", "data_parallel")}
    for change, index in (
        (times("loss", 1e-9, 5), 0),
        (put("num_correct", 99, 0), 0),
        (lambda arrays: put("ids", arrays["ids"][::-1])(arrays), 0),
        (times("stepped/conv.kernel", 1e-9), 1),
        (times("stepped/conv_bn.variance", 1e-9), 2),
        (times("logits/final", 1e-8), 3),
    ):
        assert [rung.status == "failed" for rung in held_mode(change)] == [at == index for at in range(4)]


def test_a_mode_is_as_strict_as_the_twins_at_first_and_rounding_may_grow_later() -> None:
    assert held_mode(times("loss", 5e-12, 0))[0].status == "failed"
    assert held_mode(times("loss", 2e-11, 9))[0].status == "passed"
    assert held_mode(times("loss", 4e-10, 9))[0].status == "failed"
    assert held_mode(times("loss", 4e-10, 9), Yardstick(np.full(10, 1e-9), 0.0))[0].status == "passed"


@pytest.mark.parametrize(
    ("model", "micro_batches", "step"),
    [("tests.parity.probe", 4, 3), ("tests.parity.probe", 1, 4), ("simple_cnn", 4, 4)],
)
def test_rounding_may_grow_a_step_earlier_where_batch_norm_sees_micro_batches(
    model: str, micro_batches: int, step: int
) -> None:
    mode = {"mode": "pipeline", "pipeline": {"micro_batches": micro_batches}}

    def grown(step: int) -> str:
        return held_mode(times("loss", 5e-11, step - 1), mode=mode, model=model)[0].status

    assert [grown(each) for each in (1, 2, 3, 4)] == ["passed" if each >= step else "failed" for each in (1, 2, 3, 4)]


def test_a_rank_answers_for_its_own_part_of_the_batch() -> None:
    def first_rows(arrays: Arrays) -> None:
        arrays["logits/final"] = arrays["logits/final"][:2]

    assert {rung.status for rung in held_mode(first_rows)} == {"passed"}


def test_a_mode_in_float32_is_judged_by_its_first_step_too() -> None:
    assert held_mode(times("loss", 1e-4, 0), precision="float32")[0].status == "failed"
    assert held_mode(times("loss", 1e-4, 5), precision="float32")[0].status == "passed"
    assert held_mode(put("loss", np.nan, 5), precision="float32")[0].status == "failed"


def test_growth_of_adams_noise_is_allowed_for_in_front_of_batch_norm_only() -> None:
    def limit(model: str, optimizer: dict[str, Any]) -> float:
        return held(nothing, model=model, optimizer=optimizer)["5 logits after the last step, eval mode"].tolerance

    assert limit("simple_cnn", ADAM) == limit("tests.parity.probe", SGD) == 1e-9
    assert limit("tests.parity.probe", ADAM) == pytest.approx(10 * 1e-3 * 1e-13 / 1e-8)
    # With weight decay nobody can say beforehand by how much; a yardstick must.
    assert limit("tests.parity.probe", {**ADAM, "weight_decay": 1e-4}) == 1e-9


def test_a_kernel_whose_gradient_is_all_noise_to_adam_is_not_passed_over() -> None:
    what = base(optimizer=ADAM)
    ours, theirs = recording(what), recording(what)
    ours["gradient/dense.kernel"] *= 1e-14
    theirs["gradient/dense.kernel"] *= -1e-14
    found = {rung.name: rung for rung in rungs.compare_serials(what, architecture_of(what), ours, theirs, None)}
    assert failed(found) == ["4 weights after one step"]
    assert found["4 weights after one step"].where == "dense.kernel"


@pytest.mark.parametrize(("precision", "too_small"), [("float64", 1e-7)])
def test_adams_first_step_in_a_mode_is_compared_where_rounding_cannot_have_turned_serials_gradient(
    precision: str, too_small: float
) -> None:
    what = base(optimizer=ADAM, precision=precision)
    serial = recording(what)
    serial["gradient/dense.kernel"][:2, 0] = np.abs(serial["gradient/dense.kernel"]).max() * np.array([too_small, 0.5])

    def moved(row: int) -> str:
        split = {name: array.copy() for name, array in serial.items() if not name.startswith(_SERIALS_ALONE)}
        split["stepped/dense.kernel"][row, 0] += 0.1
        return rungs.compare_mode(_parallel(what), architecture_of(what), "pytorch", serial, split, None)[1].status

    assert [moved(0), moved(1)] == ["passed", "failed"]


def test_a_parameter_whose_first_gradient_is_zero_must_stay_where_it_is() -> None:
    """As all do that lie before a kernel of zeros."""
    what = base(optimizer=ADAM)
    serial = recording(what)
    serial["gradient/dense.kernel"] *= 0.0
    serial["stepped/dense.kernel"] = serial["initial/dense.kernel"].copy()
    split = {name: array.copy() for name, array in serial.items() if not name.startswith(_SERIALS_ALONE)}

    def status() -> str:
        return rungs.compare_mode(_parallel(what), architecture_of(what), "pytorch", serial, split, None)[1].status

    assert status() == "passed"
    split["stepped/dense.kernel"][3, 5] += 1e-3
    assert status() == "failed"


def test_adams_direction_is_that_of_the_gradient_with_its_weight_decay() -> None:
    """Where the two cancel each other out, the direction is rounding, however large they are."""
    what = base(optimizer={**ADAM, "weight_decay": 0.1})
    ours = recording(what)
    ours["gradient/dense.kernel"][7, 7] = -0.1 * ours["initial/dense.kernel"][7, 7]
    theirs = {name: array.copy() for name, array in ours.items()}
    theirs["gradient/dense.kernel"][0, 0] *= 1 + 1e-13
    theirs["stepped/dense.kernel"][7, 7] += 0.1
    found = {rung.name: rung for rung in rungs.compare_serials(what, architecture_of(what), ours, theirs, None)}
    assert failed(found) == []


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-8)])
def test_adams_first_step_is_compared_wherever_the_gradient_stands_out_of_the_rounding(
    precision: str, tolerance: float
) -> None:
    """However small it is beside the model's largest: deep layers' gradients often are."""
    what = base(optimizer=ADAM, precision=precision)

    def moved(by: float, noise: float) -> list[str]:
        ours, theirs = recording(what), recording(what)
        ours["gradient/dense.kernel"] *= 1e-6
        theirs["gradient/dense.kernel"] = ours["gradient/dense.kernel"].copy()
        gradient = theirs["gradient/dense.kernel"]
        gradient[0, 0] += noise * tolerance * np.abs(gradient).max()
        farthest = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
        theirs["stepped/dense.kernel"][farthest] += by
        return failed({rung.name: rung for rung in rungs.compare_serials(what, architecture_of(what), ours, theirs, None)})

    assert moved(by=0.0, noise=0.5) == []
    assert moved(by=0.1, noise=0.5) == ["4 weights after one step"]
    assert moved(by=0.1, noise=0.0) == ["4 weights after one step"]

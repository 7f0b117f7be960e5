import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from common.models import architectures, stages
from common.models.architectures import Architecture, Concatenation, Conv, Layer, ReLU, Residual, StageFragment
from common.models.stages import PipelineOperation, Schedule
from common.spec import MODELS, SpecError
from tests.support.refusals import refused

SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b", "asynchronous")


@st.composite
def chains(draw: st.DrawFn) -> Architecture:
    """Convolutions of many widths, with layers between them that have no weights."""
    layers: list[Layer] = []
    channels = 3
    for index, width in enumerate(draw(st.lists(st.integers(1, 40), min_size=1, max_size=7))):
        layers.append(Conv(f"conv{index}", channels, width, 1, 1, architectures.no_padding, bias=False))
        channels = width
        layers += [ReLU(f"relu{index}.{number}") for number in range(draw(st.integers(0, 2)))]
    return Architecture("chain", 2, 10, tuple(layers))


@given(chains(), st.integers(1, 5))
def test_every_layer_is_in_one_stage_in_order_and_no_cut_is_better_balanced(architecture: Architecture, number: int) -> None:
    heavy = [index for index, layer in enumerate(architecture.layers) if isinstance(layer, Conv)]
    assume(len(heavy) >= number)
    cut = stages.cut(architecture, number)
    assert [layer for stage in cut for layer in stage.architecture.layers] == list(architecture.layers)
    assert [(stage.index, stage.num_stages) for stage in cut] == [(index, number) for index in range(number)]
    assert all(stage.architecture.parameters() for stage in cut)
    assert all(before.output_shape == behind.input_shape for before, behind in itertools.pairwise(cut))
    assert cut[0].is_first and cut[-1].is_last

    costs = [8 * layer.in_channels * layer.out_channels for layer in architecture.layers if isinstance(layer, Conv)]
    best = min(
        max(sum(costs[start:stop]) for start, stop in itertools.pairwise((0, *inner, len(costs))))
        for inner in itertools.combinations(range(1, len(costs)), number - 1)
    )
    assert max(stage.forward_flops for stage in cut) == best
    assert stages.cut(architecture, number) == cut


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_each_parameter_has_one_owner_and_each_mask_goes_with_its_dropout(model: str, number: int) -> None:
    architecture = architectures.resolve(model, 10, 32)
    cut = stages.cut(architecture, number)
    owned = [parameter for stage in cut for parameter in stage.architecture.parameters()]
    assert owned == list(architecture.parameters())
    masks = range(len(architecture.dropouts))
    assert [mask for stage in cut for mask in masks[stage.masks]] == list(masks)
    assert all(len(masks[stage.masks]) == len(stage.architecture.dropouts) for stage in cut)


def test_a_cut_of_equals_hands_on_the_fewest_values() -> None:
    cut = stages.cut(architectures.resolve("simple_cnn", 10, 32), 2)
    # Behind the pooling, not in front of it.
    assert cut[0].architecture.layers[-1].name == "pool2"
    assert cut[0].output_shape == (8, 8, 64)
    assert stages.boundary_values(cut) == 2 * 8 * 8 * 64


@pytest.mark.parametrize(("model", "number"), [("resnet18", 2), ("resnet18", 20), ("mini_xception", 4), ("two_path_cnn", 7)])
def test_a_layer_is_divided_where_it_is_worth_it_or_too_few_are_left(model: str, number: int) -> None:
    architecture = architectures.resolve(model, 10, 32)
    cut = stages.cut(architecture, number)
    owned = [parameter for stage in cut for parameter in stage.architecture.parameters()]
    assert owned == list(architecture.parameters()) and all(stage.architecture.parameters() for stage in cut)
    assert all(before.output_shape == behind.input_shape for before, behind in itertools.pairwise(cut))
    for stage in cut:
        assert architectures.output_shape(stage.architecture.layers, stage.input_shape, model) == stage.output_shape
    assert any(isinstance(layer, StageFragment) for stage in cut for layer in stage.architecture.layers) == (number > 2)


def test_the_tensors_of_a_divided_layer_are_what_its_branches_have_and_its_input_if_others_need_it() -> None:
    one, two, three = (Conv(name, 4, 4, 1, 1, architectures.no_padding, bias=False) for name in ("one", "two", "three"))
    stem = Conv("stem", 3, 4, 1, 1, architectures.no_padding, bias=False)
    residual = Architecture("made", 2, 4, (stem, Residual("block", (one, two), (three,), relu=True)))
    assert [stage.output_shape for stage in stages.cut(residual, 4)] == [(2, 2, 4), (32,), (32,), (2, 2, 4)]
    parts = [stage.architecture.layers for stage in stages.cut(residual, 4)]
    empty = Residual("block", (), (), relu=True)
    shape = (2, 2, 4)
    assert parts[1:] == [
        (StageFragment("block", (), (0, 0), ((one,), ()), None),),
        (StageFragment("block", (shape, shape), (0, 1), ((two,), ()), None),),
        (StageFragment("block", (shape, shape), (0, 1), ((), (three,)), empty),),
    ]
    paths = Architecture("made", 2, 12, (stem, Concatenation("paths", ((one,), (), (two, three)))))
    assert [stage.output_shape for stage in stages.cut(paths, 4)] == [(2, 2, 4), (32,), (48,), (2, 2, 12)]
    assert stages.cut(paths, 4)[3].architecture.layers == (
        StageFragment("paths", (shape, shape, shape), (0, 1, 2), ((), (), (three,)), Concatenation("paths", ())),
    )


def test_fewer_layers_than_stages_are_refused_with_both_numbers() -> None:
    architecture = architectures.resolve("simple_cnn", 10, 32)
    assert len(stages.cut(architecture, 6)) == 6
    with refused(SpecError, received="7 stages", fix="replicas", names=["simple_cnn", 6]):
        stages.cut(architecture, 7)


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        ("simple_cnn", {2: [6, 11], 3: [6, 3, 8], 4: [3, 3, 3, 8]}),
        ("mini_xception", {2: [8, 15], 3: [7, 3, 13], 4: [7, 3, 4, 11]}),
        ("resnet18", {2: [8, 6], 3: [6, 3, 5], 4: [6, 2, 2, 4]}),
    ],
)
def test_the_built_in_models_are_cut_where_they_always_were(model: str, layers: dict[int, list[int]]) -> None:
    architecture = architectures.resolve(model, 10, 32)
    cuts = {number: stages.cut(architecture, number) for number in layers}
    assert {number: [len(stage.architecture.layers) for stage in cut] for number, cut in cuts.items()} == layers


def lines(schedule: Schedule, number: int, micro_batches: int) -> list[str]:
    """One line a stage, one word a tick."""
    rows = stages.ticks(schedule, number, micro_batches)
    return [
        " ".join(f"{row[stage].kind[0]}{row[stage].micro_batch}" if row[stage] else "--" for row in rows)
        for stage in range(number)
    ]


def test_the_ticks_of_gpipe_and_of_1f1b_are_those_of_their_papers() -> None:
    assert lines("gpipe", 3, 4) == [
        "f0 f1 f2 f3 -- -- -- -- b0 b1 b2 b3",
        "-- f0 f1 f2 f3 -- -- b0 b1 b2 b3 --",
        "-- -- f0 f1 f2 f3 b0 b1 b2 b3 -- --",
    ]
    assert lines("1f1b", 3, 4) == [
        "f0 f1 f2 -- -- b0 f3 b1 -- b2 -- b3",
        "-- f0 f1 -- b0 f2 b1 f3 b2 -- b3 --",
        "-- -- f0 b0 f1 b1 f2 b2 f3 b3 -- --",
    ]


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(number=st.integers(1, 6), micro_batches=st.integers(1, 12))
def test_every_stage_does_every_micro_batch_once_each_way_and_waits_for_what_it_needs(
    schedule: Schedule, number: int, micro_batches: int
) -> None:
    done: set[tuple[int, PipelineOperation]] = set()
    for row in stages.ticks(schedule, number, micro_batches):
        for stage, operation in enumerate(row):
            if operation is None:
                continue
            kind, micro_batch = operation
            if kind == "forward" and stage:
                assert (stage - 1, operation) in done
            if kind == "backward":
                assert (stage, PipelineOperation("forward", micro_batch)) in done
                assert stage == number - 1 or (stage + 1, operation) in done
        done |= {(stage, operation) for stage, operation in enumerate(row) if operation}
    assert len(done) == 2 * number * micro_batches
    for stage in range(number):
        order = list(stages.order(schedule, stage, number, micro_batches))
        assert len(order) == len(set(order)) == 2 * micro_batches
        out = list(itertools.accumulate(1 if operation.kind == "forward" else -1 for operation in order))
        assert max(out) == stages.in_flight(schedule, stage, number, micro_batches)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(number=st.integers(1, 6), micro_batches=st.integers(1, 12))
def test_the_ticks_of_a_pipeline_of_equals_are_idle_as_the_formula_says(
    schedule: Schedule, number: int, micro_batches: int
) -> None:
    rows = stages.ticks(schedule, number, micro_batches)
    idle = sum(operation is None for row in rows for operation in row)
    assert math.isclose(idle / (len(rows) * number), stages.idle_fraction(number, micro_batches))


@given(number=st.integers(1, 6), micro_batches=st.integers(1, 12))
def test_an_asynchronous_stage_lacks_the_updates_that_are_not_back_yet(number: int, micro_batches: int) -> None:
    for stage in range(number):
        order = list(stages.order("asynchronous", stage, number, micro_batches))
        for micro_batch in range(micro_batches):
            before = order[: order.index(PipelineOperation("forward", micro_batch))]
            updates = sum(operation.kind == "backward" for operation in before)
            assert stages.updates_missing(stage, number, micro_batch) == micro_batch - updates


@given(number=st.integers(1, 5), total=st.integers(1, 20))
def test_going_back_when_enough_is_in_flight_gives_the_order_of_a_whole_epoch(number: int, total: int) -> None:
    for stage in range(number):
        running: list[PipelineOperation] = []
        in_flight: list[int] = []
        most = stages.in_flight("asynchronous", stage, number, number)
        for micro_batch in range(total):
            running.append(PipelineOperation("forward", micro_batch))
            in_flight.append(micro_batch)
            if len(in_flight) == most:
                running.append(PipelineOperation("backward", in_flight.pop(0)))
        running += [PipelineOperation("backward", micro_batch) for micro_batch in in_flight]
        assert running == list(stages.order("asynchronous", stage, number, total))

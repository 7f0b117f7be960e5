"""The best cut for unequal devices, against all cuts and against the simulator."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.models import stages
from compare.tools.planning import placement, schedules
from tests.compare.tools.planning import made


def brute(seconds: list[list[float]], messages: list[float], counts: list[int], micro_batches: int) -> float:
    last, kinds = len(messages) - 1, [kind for kind, count in enumerate(counts) for _ in range(count)]
    found: list[float] = []
    for inner in itertools.combinations(range(1, last), len(kinds) - 1):
        bounds = (0, *inner, last)
        for order in set(itertools.permutations(kinds)):
            own = [
                seconds[kind][stop] - seconds[kind][start]
                for kind, (start, stop) in zip(order, itertools.pairwise(bounds), strict=True)
            ]
            sent = [messages[bound] for bound in inner]
            found.append(sum(own) + sum(sent) + (micro_batches - 1) * max(own + sent))
    return min(found)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=4, max_size=7),
    st.sampled_from([[2], [1, 1], [1, 2], [2, 2], [1, 1, 1]]),
    st.sampled_from([1, 2, 8]),
)
@settings(max_examples=40, deadline=None)
def test_no_cut_and_no_order_of_devices_is_better(layers: list[tuple[int, int]], counts: list[int], micro_batches: int) -> None:
    before = list(itertools.accumulate((float(seconds) for seconds, _ in layers), initial=0.0))
    seconds = [[each * (1 + kind) for each in before] for kind in range(len(counts))]
    messages = [0.0, *(float(sent) for _, sent in layers)]
    cuttable = [[stop > start for stop in range(len(messages))] for start in range(len(messages))]
    found = placement.best_cut(seconds, messages, cuttable, counts, micro_batches)
    assert found is not None and found[0] == pytest.approx(brute(seconds, messages, counts, micro_batches))


def test_a_search_that_forgets_what_is_not_largest_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: only the cut with the smallest largest stage is kept, as for a pipeline of very many micro-batches."""

    def shortsighted(front: list[tuple[float, float, object, object]], new: tuple[float, float, object, object]) -> None:
        front[:] = [min([*front, new], key=lambda each: each[1])]

    seconds, messages = [[0.0, 5.0, 8.0, 10.0]], [0.0, 6.0, 1.0, 0.0]
    cuttable = [[stop > start for stop in range(4)] for start in range(4)]
    right = placement.best_cut(seconds, messages, cuttable, [2], 1)
    monkeypatch.setattr(placement, "_add_if_efficient", shortsighted)
    planted = placement.best_cut(seconds, messages, cuttable, [2], 1)
    assert right and planted and right[0] == brute(seconds, messages, [2], 1) == 11.0 < planted[0]


@pytest.mark.parametrize("model", ["mini_xception", "resnet18", "two_path_cnn"])
def test_a_slow_device_gets_less_to_do_and_the_formula_is_the_simulated_time(model: str) -> None:
    run = made.run("pipeline", 2, model=model, **{"pipeline.micro_batches": 8})
    case = made.case(run, speeds=(1.0, 0.25))
    placed = placement.place_stages(case)
    assert placed is not None and placed.stages is not None
    even, better = schedules.step(case)[0].total, schedules.step(placed)[0].total
    assert better < even
    parameters = [parameter for stage in placed.stages for parameter in stage.architecture.parameters()]
    assert parameters == list(case.architecture.parameters())
    names = [tuple(placement.layer_names(stage.architecture.layers)) for stage in placed.stages]
    own = [sum(case.passes(device, each, 8)) for device, each in zip(placed.devices, names, strict=True)]
    assert better == pytest.approx(sum(own) + 7 * max(own))
    slow = next(index for index, device in enumerate(placed.devices) if device.speed < 1)
    assert len(names[slow]) < len(names[1 - slow])


def test_equal_devices_get_a_cut_that_is_no_worse_than_the_even_one() -> None:
    run = made.run("pipeline", 3, **{"pipeline.micro_batches": 4})
    case = made.case(run, stages_of_costs=3)
    placed = placement.place_stages(case)
    assert placed is not None and schedules.step(placed)[0].total <= schedules.step(case)[0].total + 1e-9
    assert stages.cut(case.architecture, 3)  # the even cut is one of those that were searched
    assert placement.place_stages(replace(case, run=made.run("hybrid_pipeline", 3, global_batch_size=66))) is None

"""Simulated steps against closed forms, each with a defect that it catches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.models import stages
from common.spec import MODES
from compare.tools.planning import events, schedules
from compare.tools.planning.case import PredictionError, TaskGraph
from compare.tools.planning.events import Parts
from tests.compare.tools.planning import made
from tests.support.comparisons import with_fields

ALPHA, BETA = 0.01, 1e-8


def total(*arguments: object, **options: object) -> float:
    return schedules.step(made.case(*arguments, **options))[0].total  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("schedule", ["pipeline", "pipeline_1f1b"])
@pytest.mark.parametrize(("number", "micro_batches"), [(2, 2), (2, 8), (3, 4), (4, 16)])
def test_equal_stages_of_a_pipeline_idle_as_huang_says(schedule: str, number: int, micro_batches: int) -> None:
    check_bubble(schedule, number, micro_batches)


def check_bubble(schedule: str, number: int, micro_batches: int) -> None:
    run = made.run(schedule, number, **{"pipeline.micro_batches": micro_batches})
    parts, _ = schedules.step(made.case(run, stages_of_costs=number))
    assert parts.bubble / parts.total == pytest.approx(stages.idle_fraction(number, micro_batches))
    assert parts.compute == pytest.approx(1.0) and parts.exposed == pytest.approx(0.0)


def test_stages_that_take_turns_take_as_long_as_serial_and_the_messages() -> None:
    run = made.run("model_parallel", 3)
    # They are not crowded: one computes at a time.
    parts, _ = schedules.step(made.case(run, stages_of_costs=3, crowding=1.5))
    assert parts.total == pytest.approx(3.0) and parts.bubble == pytest.approx(2.0)
    sent = made.link(ALPHA, BETA)
    cut = stages.cut(made.architecture(), 3)
    messages = 4 * ALPHA + BETA * 4 * made.BATCH * stages.boundary_values(cut)
    assert total(run, stages_of_costs=3, network=sent) == pytest.approx(3.0 + messages)


@given(st.integers(2, 64))
@settings(max_examples=10, deadline=None)
def test_one_bucket_is_exposed_for_the_time_of_a_ring(replicas: int) -> None:
    check_ring(replicas)


def check_ring(replicas: int) -> None:
    run = made.run("multi_process", replicas, global_batch_size=made.BATCH * replicas)
    case = made.case(run, network=made.link(ALPHA, BETA))
    parts, _ = schedules.step(case)
    ring = 2 * (replicas - 1) * ALPHA + 2 * (replicas - 1) / replicas * BETA * case.weight_bytes()
    assert parts == pytest.approx((1.0, 0.0, ring, 0.0))


def test_buckets_hide_behind_the_backward_pass_but_for_the_last() -> None:
    check_overlap()


def check_overlap() -> None:
    run = made.run("multi_process", 2, global_batch_size=2 * made.BATCH, **{"communication.bucket_mib": 0.05})
    case = made.case(run, network=made.link(1e-4, 0.0))
    parts, _ = schedules.step(case)
    assert parts.exposed == pytest.approx(2e-4)  # of many buckets
    slow = made.case(run, network=made.link(10.0, 0.0))
    count = round((schedules.step(slow)[0].total - 1.0) / 20.0)
    assert count > 3  # the link is never idle from the first bucket on
    assert schedules.step(slow)[0].total == pytest.approx(20.0 * count + 1.0, abs=2 / 3)


@pytest.mark.parametrize(("replicas", "bucket_mib", "one_process"), [(2, 25.0, False), (4, 0.05, False), (3, 25.0, True)])
def test_divided_parameters_are_gathered_twice_and_their_gradients_scattered(
    replicas: int, bucket_mib: float, *, one_process: bool
) -> None:
    check_gathers(replicas, bucket_mib, one_process=one_process)


def check_gathers(replicas: int, bucket_mib: float, *, one_process: bool) -> None:
    # A run of another mode that divides the batch: its schedule alone is of this one.
    run = made.run(
        "multi_process", replicas, global_batch_size=made.BATCH * replicas, **{"communication.bucket_mib": bucket_mib}
    )
    case = made.case(run, one_process=one_process, network=made.link(ALPHA, BETA), of_costs={"update_seconds": 0.3})
    steps = schedules.SCHEDULES["sharded_data_parallel"](case)
    parts = events.parts(steps.tasks, events.run(steps.tasks), steps.devices)
    assert (parts.compute, parts.bubble) == pytest.approx((1.0 + 0.3 / replicas, 0.0))
    # Each group of layers has three exchanges of R - 1 messages. Together they send (R - 1) / R of all parameters three times.
    volume = 3 * (replicas - 1) / replicas * BETA * case.weight_bytes()
    groups = (parts.exposed - volume) / (3 * (replicas - 1) * ALPHA)
    assert groups == pytest.approx(round(groups))
    layers = len({each.name.rpartition(".")[0] for each in case.architecture.parameters() if each.trainable})
    least, most = (layers, layers) if one_process else (1, 1) if bucket_mib > 1 else (2, layers - 1)
    assert least <= round(groups) <= most
    # A share of weights, gradients and momentum, and what is whole while it computes: all, or the largest group.
    whole = steps.peak_bytes["0"] - 3 * case.weight_bytes() / replicas - made.BATCH * case.activation_bytes(case.names)
    assert case.weight_bytes() / layers < whole / 2 <= case.weight_bytes() * (1 + 1e-9)
    assert (whole / 2 == pytest.approx(case.weight_bytes())) == (most == 1)


def test_all_wait_for_the_slowest_replica() -> None:
    run = made.run("multi_process", 4, global_batch_size=4 * made.BATCH)
    parts, _ = schedules.step(made.case(run, speeds=(1.0, 1.0, 1.0, 0.5)))
    # Equal replicas are simulated once: the means are over the two kinds.
    assert parts.total == pytest.approx(2.0) and parts.bubble == pytest.approx(0.5)


def test_all_gradients_and_weights_pass_through_the_one_link_of_a_server() -> None:
    check_server()


def check_server() -> None:
    run = made.run("parameter_server", 4, global_batch_size=4 * made.BATCH)
    case = made.case(run, network=made.link(ALPHA, BETA))
    message = ALPHA + BETA * case.weight_bytes()
    assert schedules.step(case)[0].total == pytest.approx(1.0 + 8 * message)
    slow = schedules.step(replace(case, devices=made.case(run, speeds=(1, 1, 1, 0.1)).devices))[0].total
    assert slow == pytest.approx(10.0 + 5 * message)  # three pushes are over long before


def test_an_asynchronous_worker_waits_for_the_link_alone() -> None:
    run = made.run("parameter_server_async", 2, global_batch_size=2 * made.BATCH)
    case = made.case(run, network=made.link(1e-3, 0.0))
    assert schedules.step(case)[0].total == pytest.approx(1.0 + 2e-3, abs=5e-4)


def test_slices_share_convolutions_and_repeat_the_rest() -> None:
    check_slices()


def check_slices() -> None:
    case = made.case(made.run("tensor_parallel", 2))
    split = [name for name in case.names if case.units[name].kind in ("Conv", "Dense")]
    shared = sum(case.costs.seconds(split, made.BATCH, 1))
    assert schedules.step(case)[0].total == pytest.approx(1.0 - shared / 2)


def test_an_average_costs_its_share_of_each_step() -> None:
    run = made.run("model_averaging", 2, global_batch_size=2 * made.BATCH, **{"averaging.every_steps": 10})
    every = made.run("model_averaging", 2, global_batch_size=2 * made.BATCH, **{"averaging.every_steps": 1})
    sent, of_scores = made.link(ALPHA, BETA), 1 / made.case(run).steps_per_epoch
    expected = (total(every, network=sent) - 1) * (1 / 10 + of_scores) / (1 + of_scores)
    assert total(run, network=sent) - 1 == pytest.approx(expected)


def test_an_asynchronous_pipeline_fills_once_in_processes_and_at_every_batch_in_a_graph() -> None:
    run = made.run("pipeline_async", 2, **{"pipeline.micro_batches": 4})
    assert total(run, stages_of_costs=2, one_process=True) == pytest.approx(1.25)  # as GPipe: (4 + 1) / 4
    ticks = 4 * schedules.MAX_BATCHES + 1
    assert total(run, stages_of_costs=2) == pytest.approx(ticks / 4 / schedules.MAX_BATCHES)


def test_hybrids_are_their_parts() -> None:
    run = made.run("hybrid_pipeline", 2, global_batch_size=2 * made.BATCH, **{"pipeline.micro_batches": 4})
    sent = made.link(ALPHA, 0.0)
    assert run.replicas == 4 and total(run, stages_of_costs=2) == pytest.approx(1.25)
    # Each of the 5 steps of the pipeline waits for a message but the first, and once more backward; then the copies sum.
    assert total(run, stages_of_costs=2, network=sent) > 1.25 + 2 * ALPHA
    sliced = made.run("hybrid_tensor", 2, global_batch_size=2 * made.BATCH)
    alone = made.run("tensor_parallel", 2)
    assert total(sliced) == pytest.approx(total(alone))


def test_memory_of_each_device_follows_weights_and_micro_batches_in_flight() -> None:
    check_memory()


def check_memory() -> None:
    piped = {name: made.run(name, 2, **{"pipeline.micro_batches": 8}) for name in ("pipeline", "pipeline_1f1b")}
    held = {name: schedules.step(made.case(run))[1] for name, run in piped.items()}
    weights = [made.case(piped["pipeline"]).weight_bytes(stage.architecture) for stage in stages.cut(made.architecture(), 2)]
    # Weights, gradient and momentum stay. GPipe holds 8 micro-batches, 1F1B 2 in the first stage and 1 in the last.
    for device, shares in (("0", (8, 2)), ("1", (8, 1))):
        own = 3 * weights[int(device)]
        gpipe, other = (held[name][device] - own for name in piped)
        assert gpipe / other == pytest.approx(shares[0] / shares[1])
    assert schedules.step(made.case(made.run("multi_process", 2)))[1]["0"] > 3 * sum(weights)


@pytest.mark.parametrize("variant", MODES)
def test_every_mode_is_predicted_and_never_faster_on_a_slower_link_or_device(variant: str) -> None:
    replicas = 1 if variant == "serial" else 2
    run = made.run(variant, replicas, global_batch_size=64)
    case = made.case(run, network=made.link(ALPHA, BETA), of_costs={"update_seconds": 0.1, "overhead_seconds": 0.05})
    parts, held = schedules.step(case)
    assert all(share >= -1e-12 for share in parts) and {device.name for device in case.devices} <= held.keys()
    slower_link = replace(case, links=made.links(made.link(2 * ALPHA, 2 * BETA)))
    slower = replace(case, devices=tuple(with_fields(each, speed=0.5) for each in case.devices))
    assert schedules.step(slower_link)[0].total >= parts.total - 1e-12
    assert schedules.step(slower)[0].total > parts.total


def test_what_is_not_modelled_is_said() -> None:
    links = with_fields(made.links(made.FREE), send=None)
    for case, word in (
        (replace(made.case(made.run("pipeline", 2)), links=links), "send"),
        (made.case(made.run("multi_process", 2, **{"communication.compression": "int8"})), "compression"),
    ):
        with pytest.raises(PredictionError, match=word):
            schedules.step(case)


# The planted defects below take the place of a part of the very thing under test.


def planted_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(link: object, replicas: int, payload: float, *, one_process: bool) -> float:
        return (replicas - 1) * ALPHA + (replicas - 1) / replicas * BETA * payload

    monkeypatch.setattr(schedules, "all_reduce_seconds", halved)


def planted_order(monkeypatch: pytest.MonkeyPatch) -> None:
    right = stages.sequence

    def one_less(schedule: stages.Schedule, number: int, pieces: int) -> Iterator[tuple[int, stages.PipelineOperation]]:
        return right(schedule, number, pieces - 1)

    monkeypatch.setattr(stages, "sequence", one_less)


def planted_whole_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    right = schedules.exchange_seconds

    def doubled(*arguments: Any) -> float:
        return 2 * right(*arguments)

    monkeypatch.setattr(schedules, "exchange_seconds", doubled)


def planted_buckets_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(sizes: Sequence[int], itemsize: int, bucket_mib: float) -> list[list[int]]:
        return [[place] for place in range(len(sizes))]

    monkeypatch.setattr(schedules, "buckets", alone)


def planted_late_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    right = schedules._gradient_buckets  # pyright: ignore[reportPrivateUsage]

    def after_all(case: object) -> list[tuple[list[str], float]]:
        found = right(case)  # pyright: ignore[reportArgumentType]
        return [([name for names, _ in found for name in names], found[0][1]), *(([], size) for _, size in found[1:])]

    monkeypatch.setattr(schedules, "_gradient_buckets", after_all)


def planted_wide_link(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TaskGraph.send

    def on_its_own(made: TaskGraph, link: str, seconds: float, needs: Sequence[int]) -> int:
        return right(made, f"{link} {len(made.tasks)}", seconds, needs)

    monkeypatch.setattr(TaskGraph, "send", on_its_own)


def planted_whole_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLayer:
        pass

    monkeypatch.setattr(schedules, "Conv", NoLayer)  # so that no convolution is divided


def planted_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_of_them(schedule: stages.Schedule, stage: int, number: int, pieces: int) -> int:
        return pieces

    monkeypatch.setattr(stages, "in_flight", all_of_them)


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (planted_ring, lambda: check_ring(4)),
        (planted_whole_exchanges, lambda: check_gathers(2, 25.0, one_process=False)),
        (planted_buckets_of_a_layer, lambda: check_gathers(4, 0.05, one_process=False)),
        (planted_order, lambda: check_bubble("pipeline", 2, 8)),
        (planted_late_buckets, check_overlap),
        (planted_wide_link, check_server),
        (planted_whole_layers, check_slices),
        (planted_flight, check_memory),
    ],
)
def test_a_planted_defect_is_caught(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], check: Callable[[], None]
) -> None:
    check()
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check()


def test_the_parts_are_those_of_a_step() -> None:
    assert Parts._fields == ("compute", "input", "exposed", "bubble")

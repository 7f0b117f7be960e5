"""Links fitted to times of messages, and how good predictions were."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from common import spec
from common.processes.exchanges import MessageTiming
from common.spec import SpecError
from compare.cli.progress import display
from compare.running.twins import Twins
from compare.statistics.scaling_laws import exchange_terms
from compare.tools.planning import accuracy, measuring
from compare.tools.planning.accuracy import PredictionPair
from compare.tools.planning.case import Costs, ModelTimes
from compare.tools.planning.planned_machine import FrameworkTimings, LinkModel, Links
from tests.compare.tools.planning import made
from tests.support.comparisons import with_fields
from tests.support.refusals import refused


def test_alpha_and_beta_of_a_ring_are_found_again() -> None:
    timed = [MessageTiming(num_bytes=size, seconds=6 * 1e-4 + 1.5 * size * 2e-9) for size in (2**10, 2**16, 2**20, 2**24)]
    found = measuring.fit_link("ring", timed, lambda size: exchange_terms("ring", 4, size))
    assert found is not None
    assert found.alpha_seconds == pytest.approx(1e-4) and found.beta_seconds_per_byte == pytest.approx(2e-9)
    assert measuring.fit_link("ring", [], lambda size: (1.0, size)) is None


def test_seconds_of_layers_follow_the_batch_between_measured_ones_and_beyond() -> None:
    of: dict[str, Any] = {"process_mib": 0.0, "update_seconds": 0.0, "overhead_seconds": 0.0, "input_image_seconds": 0.0}
    # The layers one by one take twice as long as the whole model.
    times = [
        ModelTimes(cores=1, batch_size=size, seconds={"a": 1.5 * whole, "b": 0.5 * whole}, whole_seconds=whole)
        for size, whole in ((8, 1.0), (16, 2.0), (32, 3.0))
    ]
    costs = Costs(times=times, forward_fraction=0.25, **of)
    assert sum(costs.seconds(["a", "b"], 12, 1)) == pytest.approx(1.5)
    assert costs.seconds(["a"], 16, 1) == pytest.approx((0.375, 1.125))
    assert sum(costs.seconds(["a", "b"], 64, 1)) == pytest.approx(5.0)
    assert sum(costs.seconds(["a", "b"], 4, 1)) == pytest.approx(0.5)
    with pytest.raises(ValueError, match=r"\[1\].* 2"):
        costs.seconds(["a"], 8, 2)


ORDERS = ((1.0, 3.0), (2.0, 4.0), (3.0, 1.0), (4.0, 2.0))
"""(predicted, measured). Ranks differ by 2 four times: the correlation is 1 - 6 x 16 / (4 x 15) = -0.6."""


def pair(words: str, predicted: float, measured: float, name: str = "left") -> PredictionPair:
    return PredictionPair(
        contestant=name, words=words, predicted_seconds=predicted, measured_seconds=measured,
        low_seconds=measured, high_seconds=measured, n=1,
    )  # fmt: skip


def test_errors_ranks_and_the_best_among_the_first_two() -> None:
    good = [pair(str(index), index + 1.0, 1.1 * (index + 1)) for index in range(6)]
    found = accuracy.judge(good)
    assert found is not None and found.rank_correlation == pytest.approx(1.0) and found.best_found == {"left": True}
    assert found.median_error == pytest.approx(1 - 1 / 1.1) and found.low is None
    nearly = accuracy.judge([*good[:4], pair("4", 6.0, 5.5), pair("5", 5.0, 6.6)])
    assert nearly is not None and nearly.rank_correlation is not None and nearly.low is not None
    assert nearly.low < nearly.rank_correlation < 1
    # The fastest one is predicted third. Another one within 5 % of it counts.
    late = [pair("a", 1.0, 3.0), pair("b", 2.0, 2.0), pair("c", 3.0, 1.0)]
    judged = accuracy.judge(late)
    assert judged is not None and judged.best_found == {"left": False} and judged.rank_correlation == pytest.approx(-1.0)
    assert judged.low is None
    assert accuracy.finds_best([pair("a", 1.0, 1.04), *late[1:]])
    assert accuracy.judge([]) is None
    assert judged.median_memory_error is None
    of_memory = [with_fields(late[0], predicted_mib=100.0, measured_mib=80.0), late[1]]
    remembered = accuracy.judge(of_memory)
    assert remembered is not None and remembered.median_memory_error == remembered.worst_memory_error == pytest.approx(0.25)
    # Of two layouts, both are the first two predicted: nothing is said of that.
    two = accuracy.judge(late[:2])
    assert two is not None and (two.best_found, two.rank_correlation, two.layouts) == ({}, None, {"left": 2})


def test_the_difference_between_frameworks_is_no_skill() -> None:
    check_within_frameworks()


def check_within_frameworks() -> None:
    fast = [pair(str(index), predicted, measured) for index, (predicted, measured) in enumerate(ORDERS)]
    slow = [pair(str(index), 100 * predicted, 100 * measured, "right") for index, (predicted, measured) in enumerate(ORDERS)]
    for pairs in (fast, [*fast, *slow]):
        found = accuracy.judge(pairs)
        assert found is not None and found.rank_correlation == pytest.approx(-0.6)
    assert found is not None and found.low is not None and found.high is not None
    half = 1.96 * ((1 + 0.6**2 / 2) / (8 - 1 - 3)) ** 0.5
    assert math.atanh(found.high) - math.atanh(found.low) == pytest.approx(2 * half)


def test_a_correlation_over_all_frameworks_at_once_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = accuracy.rank_correlation

    def all_at_once(groups: Sequence[Sequence[PredictionPair]]) -> Any:
        return right([[each for group in groups for each in group]])

    monkeypatch.setattr(accuracy, "rank_correlation", all_at_once)
    with pytest.raises(AssertionError):
        check_within_frameworks()


def test_names_of_times_are_those_of_the_layers_of_every_stage() -> None:
    from common.models import stages
    from compare.tools.planning.case import layer_names

    for model in ("mini_xception", "resnet18", "two_path_cnn"):
        case = made.case(made.run("serial", 1, model=model))
        assert sorted(case.names) == sorted(case.units)
        for number in (2, 3, 5):
            cut = stages.cut(case.architecture, number)
            assert sorted(name for stage in cut for name in layer_names(stage.architecture.layers)) == sorted(case.names)


@pytest.mark.parametrize(("disturbed", "measured"), [(False, 1), (True, 2)])
@pytest.mark.usefixtures("fake_twins")
def test_a_measurement_is_kept_unless_other_work_disturbed_it(tmp_path: Path, disturbed: bool, measured: int) -> None:
    asked: list[tuple[int, int]] = []

    def one(
        contestant: Any, versions: Any, wanted: Any, replicas: int, hosts: Any, cores: int, shown: Any, *, server: bool
    ) -> FrameworkTimings:
        asked.append((replicas, cores))
        links = Links(server=LinkModel(name="server", alpha_seconds=0.0, beta_seconds_per_byte=0.0) if server else None)
        return FrameworkTimings(versions=versions, links=links, disturbed=disturbed)

    wanted = spec.build({"paths": {"cache_dir": str(tmp_path)}})
    with display() as shown:
        found = [measuring.this_machine(Twins(["left"]), wanted, 2, [], shown, measure=one) for _ in range(2)]
        with refused(SpecError, received="5 replicas for 4 cores", fix="--machine"):
            measuring.this_machine(Twins(["left"]), wanted, 5, [], shown, measure=one)
    assert asked == [(2, 2)] * measured and found[0].frameworks == found[1].frameworks
    with display() as shown:
        for server in (False, True, False):  # what lacks the messages of a server serves a plan without one, and no other
            wanted = spec.build({"paths": {"cache_dir": str(tmp_path / "other")}})
            measuring.this_machine(Twins(["left"]), wanted, 2, [], shown, server=server, measure=one)
    assert len(asked) == measured + (3 if disturbed else 2)

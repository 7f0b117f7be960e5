"""A parallel mode that is registered is listed, refused, described and judged, and nothing else was changed for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from common import spec
from common.models import architectures
from common.spec import MODES, Mode
from compare.cli.option_parsing import parse_modes
from compare.judgement.findings import findings
from compare.judgement.summary import summarize
from compare.proof import claims
from compare.running import matrix
from compare.running.twins import Twins
from compare.tools.planning import prediction, schedules
from compare.tools.planning.case import PredictionError
from tests.compare.conftest import describe_as
from tests.compare.tools.planning import made
from tests.compare.twins import fake
from tests.support.command_line import convtwins_json
from tests.support.comparisons import of_rows, row


@pytest.fixture
def gossip() -> Iterator[Mode]:
    """A registered mode."""
    mode = Mode(
        name="gossip",
        variant="gossip",
        divides=frozenset({"batch"}),
        processes="each",
        needs="two machines that talk",
        not_serial_because="each replica averages with one neighbour",
    )
    with MODES.extended(mode):
        yield mode


def lacks_it(fake_twins: pytest.MonkeyPatch) -> None:
    """Let the twin `left` describe itself without the mode."""
    modes: dict[str, Any] = fake.describe("left", {})["modes"]
    describe_as(fake_twins, "left", modes={name: answer for name, answer in modes.items() if name != "gossip"})


def test_it_is_listed(gossip: Mode) -> None:
    assert parse_modes("all")[-1] == parse_modes("gossip")[0] == "gossip"


def test_it_is_refused_where_a_framework_lacks_it(fake_twins: pytest.MonkeyPatch, gossip: Mode) -> None:
    lacks_it(fake_twins)
    twins = Twins(["left"])
    rows = matrix.build_rows({"cores": 2}, twins.contestants, ["serial", "gossip"], 2)
    checked = matrix.check_rows(rows, {"left": twins.describe("left")}, twins.contestants)
    refusals = {each.spec.variant: each.unavailable and str(each.unavailable) for each in checked}
    assert refusals == {"serial": None, "gossip": "not available: left has no mode gossip"}


def test_it_is_described(fake_twins: pytest.MonkeyPatch, gossip: Mode) -> None:
    lacks_it(fake_twins)
    described = convtwins_json("doctor")["frameworks"][0]["modes"][-1]
    assert (described["mode"], described["needs"]) == ("gossip", "two machines that talk")
    assert (described["here"], described["cut_short"]) == ("not available: left has no mode gossip", "starts over")


def test_it_is_judged(gossip: Mode) -> None:
    stored = of_rows([row("pytorch"), row("pytorch", "gossip")], (8.0, 4.0))
    parallel = summarize(stored)[1]
    assert parallel.name == "pytorch gossip x2"
    assert parallel.speedup_same_cores is not None and parallel.speedup_same_cores.value == pytest.approx(2.0)
    (statement,) = findings(stored, summarize(stored)).inexact_modes
    assert "each replica averages with one neighbour" in statement.values.values()
    timed = spec.build({"cores": 2})
    reasons = claims.reasons_not_claimed(timed, architectures.resolve(timed.model, 10, 32), ["gossip"], 2, [])
    assert reasons == {"gossip": "each replica averages with one neighbour"}


def test_a_plan_lays_it_out_and_names_the_file_that_lacks_its_schedule(gossip: Mode) -> None:
    planned, refusals = prediction.enumerate_layouts({"cores": 2}, ["gossip"], 2)
    assert [*planned] == ["serial", "gossip x2"] and not refusals
    with pytest.raises(PredictionError, match=r"mode gossip .*compare/tools/planning/schedules\.py"):
        schedules.step(made.case(made.run("gossip", 2)))

"""A parallel mode that is registered is listed, refused, described and judged, and nothing else was changed for it."""

from __future__ import annotations

import pytest

from common import spec
from common.models import architectures
from common.spec import Mode
from compare.cli.option_parsing import parse_modes
from compare.judgement.findings import findings
from compare.judgement.summary import summarize
from compare.proof import claims
from compare.running import matrix
from compare.running.twins import Twins
from tests.compare.conftest import lacks_gossip
from tests.support.comparisons import of_rows, row


def test_it_is_listed(gossip: Mode) -> None:
    assert parse_modes("all")[-1] == parse_modes("gossip")[0] == "gossip"


def test_it_is_refused_where_a_framework_lacks_it(fake_twins: pytest.MonkeyPatch, gossip: Mode) -> None:
    lacks_gossip(fake_twins)
    twins = Twins(["left"])
    rows = matrix.build_rows({"cores": 2}, twins.contestants, ["serial", "gossip"], 2)
    checked = matrix.check_rows(rows, {"left": twins.describe("left")}, twins.contestants)
    refusals = {each.spec.variant: each.unavailable and str(each.unavailable) for each in checked}
    assert refusals == {"serial": None, "gossip": "not available: left has no mode gossip"}


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

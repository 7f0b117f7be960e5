"""What the replicas of a machine do to each other, timed on a device that computes while the caller goes on."""

import pytest

from common import spec
from common.processes import exchanges
from common.processes.exchanges import Collectives


def test_a_call_ends_when_its_device_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call asks the device for some work, and returns at once."""
    clock, asked = [0.0], [0.0]

    def asks(seconds: float) -> None:
        asked[0] += seconds

    def synchronize() -> None:
        clock[0] += asked[0]
        asked[0] = 0.0

    monkeypatch.setenv("RANK", "0")
    ways = Collectives(lambda values: lambda: asks(values / 1e6), lambda values: lambda: asks(values / 1e5))
    measured = exchanges.measure(spec.build({}), ways, lambda: asks(3.0), synchronize, lambda: clock[0])
    assert measured.alone_seconds == measured.together_seconds == pytest.approx(3.0)
    for found, rate in ((measured.all_reduce, 4e6), (measured.send, 4e5)):
        assert [each.num_bytes / each.seconds for each in found] == pytest.approx([rate] * len(exchanges.SIZES))

"""NVTX ranges, seen by a module in place of `nvtx`. None of this was run under Nsight Systems."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from common.machine import flight, ranges


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What `nvtx` is told, in order."""
    told, numbers, names = list[str](), count(1), dict[int, str]()

    @contextmanager
    def annotate(name: str) -> Iterator[None]:
        told.append(f"< {name}")
        yield
        told.append(f"{name} >")

    def start_range(name: str) -> int:
        names[number := next(numbers)] = name
        told.append(f"< {name}")
        return number

    def end_range(number: int) -> None:
        told.append(f"{names.pop(number)} >")

    fake: Any = SimpleNamespace(annotate=annotate, start_range=start_range, end_range=end_range)
    monkeypatch.setitem(sys.modules, "nvtx", fake)
    yield told
    monkeypatch.delenv(ranges.PROFILER_VARIABLE, raising=False)
    ranges.attach()


def exchange_in_a_step() -> None:
    with ranges.annotate("step 1"):
        number = flight.Channel(flight.RankRange(0, 1, 2)).begin("all_reduce")
        other = flight.Channel(flight.RankRange(0, 1, 2)).begin("send")
        flight.end(number)
        flight.end(other)


def test_under_a_profiler_steps_and_exchanges_are_ranges(seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ranges.PROFILER_VARIABLE, "/opt/nsight/libToolsInjection64.so")
    ranges.attach()
    exchange_in_a_step()
    assert seen == ["< step 1", "< all_reduce", "< send", "all_reduce >", "send >", "step 1 >"]


def test_without_a_profiler_nothing_is_told(seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ranges.PROFILER_VARIABLE, raising=False)
    ranges.attach()
    exchange_in_a_step()
    assert seen == []


def test_without_the_package_a_profiled_run_goes_on(seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ranges.PROFILER_VARIABLE, "/opt/nsight/libToolsInjection64.so")
    monkeypatch.setitem(sys.modules, "nvtx", None)  # as if it were not installed
    ranges.attach()
    exchange_in_a_step()
    assert seen == []

"""pytest plug-in: what other work took while a benchmark ran, limits, and two callables in turn.

It changes no test. It imports nothing but the standard library and pytest until it is needed, and so also serves environments
that lack the other packages: `convtwins regress --pytest` brings this file along.

Each benchmark of pytest-benchmark gets facts under `extra_info["convtwins"]`:

| fact | meaning |
|---|---|
| `order` | its place among the benchmarks of this session, from 0 |
| `cores_taken` | cores that other work took from those that the benchmark used. None: the system does not say |
| `cores_stolen` | cores that the hypervisor took |
| `side`, `pair`, `place` | in a run of `regress` or `bisect`: `base` or `head`, its pair, 0 if it came first, else 1 |
| `limit`, `metric`, `fail_when_faster` | those of its marker |
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

KEY = "convtwins"
RUN_VARIABLE = "CONVTWINS_RUN"
METRICS = ("median", "mean", "min", "max", "q1", "q3")

_MARKER = (
    "convtwins(limit=0.05, metric='median', fail_when_faster=False): growth of a benchmark that counts, as a fraction or as "
    "'5%'; the statistic that is judged; whether a gain beyond the limit fails too, because the baseline is out of date."
)
_LEAST_SECONDS = 0.5
"""The kernel counts CPU time in hundredths of a second. A shorter benchmark gets the figures of the whole session."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and the recorder if pytest-benchmark is there."""
    config.addinivalue_line("markers", _MARKER)
    if config.pluginmanager.hasplugin("benchmark"):
        config.pluginmanager.register(Recorder(), "convtwins-recorder")


class Usage(NamedTuple):
    """Seconds until now: of a clock, and CPU time of this process and its descendants, of the machine, and stolen."""

    wall: float
    own: float
    busy: float
    stolen: float

    def taken(self, before: Usage) -> tuple[float, float] | None:
        """Return the cores (that other work took, that the hypervisor took) since `before`. None: no time has passed."""
        seconds = self.wall - before.wall
        if seconds <= 0.0:
            return None
        own, busy, stolen = ((now - then) / seconds for now, then in zip(self[1:], before[1:], strict=True))
        used = max(math.ceil(own - 0.25), 1)  # other work uses the cores first that the benchmark leaves
        return max(busy - own - ((os.cpu_count() or 1) - used), 0.0), max(stolen, 0.0)


def usage_until_now(proc: Path = Path("/proc")) -> Usage | None:
    """Return the usage until now, as Linux tells it. None elsewhere."""
    try:
        ticks = os.sysconf("SC_CLK_TCK")
        times = [int(word) / ticks for word in (proc / "stat").read_text().splitlines()[0].split()[1:]]
        processes = dict(filter(None, map(_process, proc.glob("[0-9]*"))))
    except (OSError, ValueError, IndexError):
        return None
    own, family = 0.0, {os.getpid()}
    for pid, (parent, seconds) in sorted(processes.items()):
        if pid in family or parent in family:
            family.add(pid)
            own += seconds / ticks
    # user, nice, system, idle, iowait, irq, softirq, stolen. Guests, behind them, are counted in user and nice already.
    busy = sum(times[:3]) + sum(times[5:8])
    return Usage(time.monotonic(), own, busy, times[7] if len(times) > 7 else 0.0)


def _process(folder: Path) -> tuple[int, tuple[int, int]] | None:
    """Return (process, (its parent, ticks of its CPU time and of its children that have ended)). None: it has ended."""
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return int(folder.name), (int(fields[1]), sum(map(int, fields[11:15])))


class Recorder:
    """Writes facts into the records of pytest-benchmark."""

    def __init__(self) -> None:
        self.run: dict[str, Any] = json.loads(os.environ.get(RUN_VARIABLE, "{}"))
        self._begin = usage_until_now()
        self._order = 0
        self._short: list[dict[str, Any]] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Refuse a marker that cannot be read, before a benchmark runs."""
        for item in items:
            limits(item)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Watch a benchmark."""
        is_benchmark = "benchmark" in getattr(item, "fixturenames", ())
        before = usage_until_now() if is_benchmark else None
        yield
        fixture = getattr(item, "funcargs", {}).get("benchmark")
        if fixture is None or getattr(fixture, "stats", None) is None:
            return
        after = usage_until_now()
        notes: dict[str, Any] = {"order": self._order, "cores_taken": None, "cores_stolen": None, **limits(item)}
        notes |= {name: self.run[name] for name in ("side", "pair", "place") if name in self.run}
        self._order += 1
        if before is not None and after is not None:
            if after.wall - before.wall < _LEAST_SECONDS:
                self._short.append(notes)
            else:
                _set_taken(notes, after.taken(before))
        fixture.extra_info[KEY] = {**notes, **fixture.extra_info.get(KEY, {})}
        if self._short and self._short[-1] is notes:
            self._short[-1] = fixture.extra_info[KEY]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_sessionfinish(self) -> Iterator[None]:
        """Give the figures of the session to short benchmarks. pytest-benchmark saves its records afterwards."""
        now = usage_until_now()
        if self._begin is not None and now is not None:
            for notes in self._short:
                _set_taken(notes, now.taken(self._begin))
        yield

    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        """Say which modules of a checkout were imported from elsewhere: then both sides of a measurement are the same code."""
        if root := self.run.get("root"):
            facts = output_json["machine_info"].setdefault(KEY, {})
            facts["imported_from_elsewhere"] = imported_from_elsewhere(Path(root))


def _set_taken(notes: dict[str, Any], taken: tuple[float, float] | None) -> None:
    if taken is not None and notes["cores_taken"] is None:
        notes["cores_taken"], notes["cores_stolen"] = taken


def limits(item: pytest.Item) -> dict[str, Any]:
    """Return the limit, the metric and `fail_when_faster` of a test's marker."""
    marker = item.get_closest_marker("convtwins")
    if marker is None:
        return {}
    values: dict[str, Any] = {"limit": 0.05, "metric": "median", "fail_when_faster": False, **marker.kwargs}
    where = f"{item.nodeid}: the marker convtwins takes limit, metric and fail_when_faster."
    if marker.args or len(values) > 3:
        raise pytest.UsageError(f"{where} Received: {(*marker.args, *marker.kwargs)}. Use e.g. convtwins(limit='5%').")
    if values["metric"] not in METRICS:
        raise pytest.UsageError(f"{where} Received: metric={values['metric']!r}. Use one of {', '.join(METRICS)}.")
    try:
        limit = fraction(values["limit"])
    except (TypeError, ValueError):
        raise pytest.UsageError(f"{where} Received: limit={values['limit']!r}. Use a fraction, 0.05, or '5%'.") from None
    return {**values, "limit": limit, "fail_when_faster": bool(values["fail_when_faster"])}


def fraction(value: float | str) -> float:
    """Return a limit as a fraction. `5%` is 0.05.

    Raises:
        ValueError: it is no finite number, or below 0.
        TypeError: it is no number.
    """
    text = str(value).strip()
    number = float(text[:-1]) / 100.0 if text.endswith("%") else float(value)
    if not (math.isfinite(number) and number >= 0.0):
        raise ValueError(text)
    return number


def imported_from_elsewhere(root: Path) -> dict[str, str]:
    """Return packages and modules that a checkout has and that were imported from another place, with this place."""
    root = root.resolve()
    found: dict[str, str] = {}
    for folder in (root, root / "src"):
        names = {path.parent.name for path in folder.glob("*/__init__.py")} | {path.stem for path in folder.glob("*.py")}
        for name in sorted(names):
            file = getattr(sys.modules.get(name), "__file__", None)
            if file and not Path(file).resolve().is_relative_to(root):
                found[name] = file
    return found

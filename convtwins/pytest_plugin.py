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
| `limit`, `metric`, `fail_when_faster` | what its markers say, and nothing else |
| `marked` | true if it has a marker |

Below the table of pytest-benchmark each benchmark has one line, if there is a stored baseline: how many times as long it took.
The stored baseline is what pytest-benchmark has saved of another commit (`--benchmark-autosave`), see `judge`.

The fixture `paired` lets two callables take turns, see `Paired`.
"""

from __future__ import annotations

import fnmatch
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import pytest

KEY = "convtwins"
RUN_VARIABLE = "CONVTWINS_RUN"
PAIRED_VARIABLE = "CONVTWINS_PAIRED"
"""Names the file to which a fresh process writes the times of its two callables."""
METRICS = ("median", "mean", "min", "max", "q1", "q3")

_MARKER = (
    "convtwins(limit=0.05, metric='median', fail_when_faster=False): growth of a benchmark that counts, as a fraction or as "
    "'5%'; the statistic that is judged; whether a gain beyond the limit fails too, because the stored "
    "baseline is out of date."
)
_LEAST_SECONDS = 0.5
"""The kernel counts CPU time in hundredths of a second. A shorter benchmark gets the figures of the whole session."""
DISTURBED_FROM = 0.15
"""Cores that other work took, above which a time does not count, as in `common.machine.interference`."""
_LEAST_FILES = 5
"""Fewest stored files for a verdict."""
_MOST_FILES = 100
"""Newest stored files that are read. A storage grows with each session, and each file is read when a session ends."""
_TURN_SECONDS = 0.005
"""Least time of a callable's turn. The clock and the loop around the calls then hardly count."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and the recorder if pytest-benchmark is there."""
    config.addinivalue_line("markers", _MARKER)
    # Its name, and that of `-p pytest_benchmark.plugin`, which is how it is loaded if plug-ins are not loaded by themselves.
    if any(map(config.pluginmanager.hasplugin, ("benchmark", "pytest_benchmark.plugin"))):
        config.pluginmanager.register(BenchmarkRecorder(), "convtwins-recorder")


class CpuUsage(NamedTuple):
    """Seconds until now: of a clock, and CPU time of this process and its descendants, of the machine, and stolen."""

    wall: float
    process_seconds: float
    busy: float
    stolen: float

    def taken(self, before: CpuUsage) -> tuple[float, float] | None:
        """Return the cores (that other work took, that the hypervisor took) since `before`. None: no time has passed."""
        seconds = self.wall - before.wall
        if seconds <= 0.0:
            return None
        process_seconds, busy, stolen = ((now - then) / seconds for now, then in zip(self[1:], before[1:], strict=True))
        used = max(math.ceil(process_seconds - 0.25), 1)  # other work uses the cores first that the benchmark leaves
        return max(busy - process_seconds - ((os.cpu_count() or 1) - used), 0.0), max(stolen, 0.0)


def usage_until_now(proc: Path = Path("/proc")) -> CpuUsage | None:
    """Return the usage until now, as Linux tells it. None elsewhere."""
    try:
        ticks = os.sysconf("SC_CLK_TCK")
        times = [int(word) / ticks for word in (proc / "stat").read_text().splitlines()[0].split()[1:]]
        processes = dict(filter(None, map(_process, proc.glob("[0-9]*"))))
    except (OSError, ValueError, IndexError):
        return None
    process_seconds, family = 0.0, {os.getpid()}
    for pid, (parent, seconds) in sorted(processes.items()):
        if pid in family or parent in family:
            family.add(pid)
            process_seconds += seconds / ticks
    # user, nice, system, idle, iowait, irq, softirq, stolen. Guests, behind them, are counted in user and nice already.
    busy = sum(times[:3]) + sum(times[5:8])
    return CpuUsage(time.monotonic(), process_seconds, busy, times[7] if len(times) > 7 else 0.0)


def _process(folder: Path) -> tuple[int, tuple[int, int]] | None:
    """Return (process, (its parent, ticks of its CPU time and of its children that have ended)). None: it has ended."""
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return int(folder.name), (int(fields[1]), sum(map(int, fields[11:15])))


class BenchmarkRecorder:
    """Writes facts into the records of pytest-benchmark."""

    def __init__(self) -> None:
        self.run: dict[str, Any] = json.loads(os.environ.get(RUN_VARIABLE, "{}"))
        self._begin = usage_until_now()
        self._order = 0
        self._short: list[dict[str, Any]] = []
        self._lines: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Refuse a marker that cannot be read, and an `--only` that names no test, before a benchmark runs.

        Leave out the tests that `bisect --only` does not name.
        """
        for item in items:
            limits(item)
        if (only := self.run.get("only")) is None or not items:
            return
        names = [item.nodeid for item in items]
        # One that runs twice in a session is `NAME (2)` the second time.
        named = {name for name in names if fnmatch.fnmatchcase(name, only) or only in (name, f"{name} (2)")}
        if not named:
            names = [item.nodeid for item in items if _is_benchmark(item)] or names
            more = f" and {len(names) - 10} more" if len(names) > 10 else ""
            raise pytest.UsageError(
                f"--only matches no benchmark. Received: {only}. Choose among {', '.join(names[:10])}{more}."
            )
        others = [item for item in items if item.nodeid not in named]
        if others and self.run.get("is_search"):
            config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if item.nodeid in named]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Watch a benchmark."""
        before = usage_until_now() if _is_benchmark(item) else None
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
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        """Give the figures of the session to short benchmarks, and judge all. pytest-benchmark saves its records afterwards."""
        now = usage_until_now()
        if self._begin is not None and now is not None:
            for notes in self._short:
                _set_taken(notes, now.taken(self._begin))
        if not self.run and PAIRED_VARIABLE not in os.environ:
            judged = judge(session.config)
            self._lines = [line.words for line in judged]
            if session.exitstatus == pytest.ExitCode.OK and any(line.fails for line in judged):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        yield

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Show the verdicts below the table of pytest-benchmark. Without a stored baseline there are none."""
        if self._lines:
            terminalreporter.section("convtwins: beside the stored baseline", sep="-")
            for line in self._lines:
                terminalreporter.write_line(line)

    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        """Say which modules of a checkout were imported from elsewhere: then both sides of a measurement are the same code."""
        if root := self.run.get("root"):
            facts = output_json["machine_info"].setdefault(KEY, {})
            facts["imported_from_elsewhere"] = imported_from_elsewhere(Path(root))
            facts["of_caller"] = imported_from(Path(self.run["callers_root"])) if self.run.get("callers_root") else {}


def _is_benchmark(item: pytest.Item) -> bool:
    return "benchmark" in getattr(item, "fixturenames", ())


def _cores_words(cores: float) -> str:
    """A number of cores, with a third digit where two would not show that it exceeds the limit."""
    return f"{cores:.2f}" if round(cores, 2) > DISTURBED_FROM else f"{cores:.3f}"


def _set_taken(notes: dict[str, Any], taken: tuple[float, float] | None) -> None:
    if taken is not None and notes["cores_taken"] is None:
        notes["cores_taken"], notes["cores_stolen"] = taken


def limits(item: pytest.Item) -> dict[str, Any]:
    """Return what the markers of a test say: the limit, the metric and `fail_when_faster`, and that it is `marked`.

    A marker of the test comes before those of its class and its module. What none of them says is left out.
    """
    values: dict[str, Any] = {}
    where = f"{item.nodeid}: the marker convtwins takes limit, metric and fail_when_faster."
    for marker in reversed([*item.iter_markers("convtwins")]):
        if marker.args or not marker.kwargs.keys() <= {"limit", "metric", "fail_when_faster"}:
            raise pytest.UsageError(f"{where} Received: {(*marker.args, *marker.kwargs)}. Use e.g. convtwins(limit='5%').")
        values |= {"marked": True, **marker.kwargs}
    if values.get("metric", "median") not in METRICS:
        raise pytest.UsageError(f"{where} Received: metric={values['metric']!r}. Use one of {', '.join(METRICS)}.")
    try:
        limit = {"limit": fraction(values["limit"])} if "limit" in values else {}
    except (TypeError, ValueError):
        raise pytest.UsageError(f"{where} Received: limit={values['limit']!r}. Use a fraction, 0.05, or '5%'.") from None
    faster = {"fail_when_faster": bool(values["fail_when_faster"])} if "fail_when_faster" in values else {}
    return {**values, **limit, **faster}


def fraction(value: float | str) -> float:
    """Return a limit as a fraction. `5%` is 0.05.

    Raises:
        ValueError: it is no finite number, below 0, or 1 or more without a percent sign.
        TypeError: it is no number.
    """
    text = str(value).strip()
    number = float(text[:-1]) / 100.0 if text.endswith("%") else float(value)
    if not (math.isfinite(number) and number >= 0.0 and (number < 1.0 or text.endswith("%"))):
        raise ValueError(f"A limit is a fraction below 1, such as 0.05, or has a percent sign, such as '5%'. Received: {text}.")
    return number


def imported_from_elsewhere(root: Path) -> dict[str, str]:
    """Return packages and modules that a checkout has and that were imported from another place, with this place."""
    root = root.resolve()
    elsewhere: dict[str, str] = {}
    for folder in (root, root / "src"):
        names = {path.parent.name for path in folder.glob("*/__init__.py")} | {path.stem for path in folder.glob("*.py")}
        for name in sorted(names):
            file = getattr(sys.modules.get(name), "__file__", None)
            if file and not Path(file).resolve().is_relative_to(root):
                elsewhere[name] = file
    return elsewhere


def imported_from(folder: Path) -> dict[str, str]:
    """Return the modules that were imported from a folder, with their files."""
    folder = folder.resolve()
    files = {name: getattr(module, "__file__", None) for name, module in [*sys.modules.items()]}
    files.pop(__name__, None)  # this plug-in: the same file on both sides
    return {name: file for name, file in files.items() if file and Path(file).resolve().is_relative_to(folder)}


class BaselineVerdict(NamedTuple):
    """A benchmark beside its stored baseline."""

    words: str
    fails: bool


class _Candidate(NamedTuple):
    """A benchmark of this session, its notes, the logarithms of its stored figures, and how many others are no measure."""

    name: str
    notes: dict[str, Any]
    seconds: float
    stored: list[float]
    num_disturbed: int

    @property
    def taken(self) -> float:
        return max(self.notes.get("cores_taken") or 0.0, self.notes.get("cores_stolen") or 0.0)


def judge(config: pytest.Config) -> list[BaselineVerdict]:
    """Compare the benchmarks of this session with the stored baseline: the files of the other commit that was stored last.

    One process is one sample. So the interval is that of one more process of the stored baseline (a prediction interval). It
    holds at 95 % for each benchmark, and the verdicts for all together (Holm). It cannot know how the machine changed since.

    Returns:
        A verdict for each benchmark, and a line for each file that cannot be read. No verdicts without a stored baseline.
    """
    session: Any = getattr(config, "_benchmarksession", None)
    benchmarks = [entry for entry in getattr(session, "benchmarks", []) if entry and not entry.has_error]
    if not benchmarks or not hasattr(session.storage, "path"):  # another storage is a server
        return []
    commit: dict[str, Any] = config.hook.pytest_benchmark_generate_commit_info(config=config)
    files, odd_files = stored_files(session.storage)
    odd = [
        BaselineVerdict(f"{file} is no whole file of pytest-benchmark, and does not count. Remove it.", fails=False)
        for file in odd_files
    ]
    baseline = _baseline(files, commit)
    if baseline is None:
        return odd
    commit_id, files = baseline
    candidates: list[_Candidate] = []
    for entry in benchmarks:
        notes = entry.extra_info.get(KEY, {})
        metric = notes.get("metric", "median")
        figures = [figure for file in files for figure in _figures(file, entry.fullname, metric)]
        stored = [math.log(figure) for figure in figures if figure is not None]
        seconds = float(getattr(entry.stats, metric))
        candidates.append(_Candidate(entry.name, notes, seconds, stored, len(figures) - len(stored)))
    estimates = [_estimate(candidate) for candidate in candidates]
    tested = sorted((p, place) for place, (*_, p) in enumerate(estimates) if not math.isnan(p))
    adjusted, largest = dict[int, float](), 0.0
    for rank, (p, place) in enumerate(tested):
        adjusted[place] = largest = max(largest, min((len(tested) - rank) * p, 1.0))
    return odd + [
        _verdict(candidate, estimate, adjusted.get(place), commit_id)
        for place, (candidate, estimate) in enumerate(zip(candidates, estimates, strict=True))
    ]


def stored_files(storage: Any) -> tuple[list[dict[str, Any]], list[Path]]:
    """Return the newest stored files, at most `_MOST_FILES`, and the paths of those that are no whole files."""
    # pytest-benchmark numbers its files from 0001 and orders them by their names.
    paths = [path for path in storage.query("*") if path.name[:4].isdigit()][-_MOST_FILES:]
    files: list[dict[str, Any]] = []
    odd: list[Path] = []
    for path in paths:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            values = None
        if _is_whole(values):
            files.append(values)
        else:
            odd.append(path)
    return files, odd


def _is_whole(values: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether a stored file has all that the stored baseline needs, in its types."""
    if not isinstance(values, dict) or not isinstance(values.get("datetime"), str):
        return False
    if not all(isinstance(values.get(name) or {}, dict) for name in ("machine_info", "commit_info")):
        return False
    commit, benchmarks = (values.get("commit_info") or {}).get("id"), values.get("benchmarks")
    return isinstance(commit, str | None) and isinstance(benchmarks, list) and all(map(_is_whole_benchmark, benchmarks))


def _is_whole_benchmark(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("fullname"), str) or not isinstance(entry.get("stats"), dict):
        return False
    extra = entry.get("extra_info") or {}
    notes = (extra.get(KEY) or {}) if isinstance(extra, dict) else None
    if not isinstance(notes, dict):
        return False
    taken = [notes.get(name) or 0.0 for name in ("cores_taken", "cores_stolen")]
    return all(map(_is_number, [*taken, *(entry["stats"].get(metric) for metric in METRICS)]))


def _is_number(value: Any) -> bool:
    """Return whether a value of a JSON file is a finite float or integer. A Boolean is none."""
    try:
        return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False


def _baseline(files: Sequence[dict[str, Any]], commit: dict[str, Any]) -> tuple[str, list[dict[str, Any]]] | None:
    """Return the stored baseline: the other commit that was stored last, and its files. None: there is none.

    With uncommitted changes, this commit itself is another one. Files of another host or version of Python are left out, and
    so are those without a commit or with uncommitted changes.
    """
    by_commit: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(files, key=lambda values: str(values["datetime"])):
        info, machine = file.get("commit_info") or {}, file.get("machine_info") or {}
        if (machine.get("node"), machine.get("python_version")) != (platform.node(), platform.python_version()):
            continue
        name = info.get("id")
        if name and not info.get("dirty") and (name != commit.get("id") or commit.get("dirty")):
            by_commit.setdefault(name, []).append(file)
    if not by_commit:
        return None
    newest = max(by_commit, key=lambda name: str(by_commit[name][-1]["datetime"]))
    return newest, by_commit[newest]


def _figures(file: dict[str, Any], fullname: str, metric: str) -> Iterator[float | None]:
    """Yield the figure of a benchmark in a stored file. None: other work disturbed it. A figure of 0 has no ratio."""
    for entry in file["benchmarks"]:
        if entry["fullname"] != fullname or not entry["stats"][metric] > 0:
            continue
        notes = (entry.get("extra_info") or {}).get(KEY) or {}
        taken = max(notes.get("cores_taken") or 0.0, notes.get("cores_stolen") or 0.0)
        yield float(entry["stats"][metric]) if taken <= DISTURBED_FROM else None


def _estimate(candidate: _Candidate) -> tuple[float, float, float, float]:
    """Return (ratio, its bounds, p). NaN: not known."""
    if not candidate.stored or not candidate.seconds > 0:
        return math.nan, math.nan, math.nan, math.nan
    logs = candidate.stored
    mean = math.fsum(logs) / len(logs)
    difference = math.log(candidate.seconds) - mean
    if len(logs) < _LEAST_FILES or candidate.taken > DISTURBED_FROM:
        return math.exp(difference), math.nan, math.nan, math.nan
    variance = math.fsum((log - mean) ** 2 for log in logs) / (len(logs) - 1)
    low, high, p = _interval(difference, math.sqrt(variance * (1.0 + 1.0 / len(logs))), len(logs) - 1)
    return math.exp(difference), low, high, p


def _interval(mean: float, error: float, freedom: int) -> tuple[float, float, float]:
    """Return the 95 % interval of a mean of logarithms, as ratios, and its two-sided p (Student)."""
    half = student_quantile(freedom) * error
    p = 1.0 - student_within(abs(mean) / error, freedom) if error else float(mean == 0.0)
    return math.exp(mean - half), math.exp(mean + half), p


def student_within(t: float, freedom: int) -> float:
    """Return the probability that Student's t lies within -t and t. The environment of a suite need not have SciPy.

    The finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4, for whole degrees of freedom.

    Args:
        t: at least 0.
        freedom: degrees of freedom, at least 1.
    """
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = freedom % 2 == 1
    term, terms = cosine if is_odd else 1.0, list[float]()
    for power in range(2 if is_odd else 1, freedom, 2):
        terms.append(term)
        term *= cosine**2 * power / (power + 1)
    series = sine * math.fsum(terms)
    return 2.0 / math.pi * (angle + series) if is_odd else series


def student_quantile(freedom: int) -> float:
    """Return the t that Student's t exceeds in 2.5 % of cases, by bisection. `freedom` is at least 1."""
    low, high = 1.9, 12.8  # of infinitely many degrees of freedom, and of one
    while high - low > 1e-13 * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if student_within(middle, freedom) < 0.95 else (low, middle)
    return high


def _verdict(
    candidate: _Candidate, estimate: tuple[float, float, float, float], p: float | None, commit: str
) -> BaselineVerdict:
    ratio, low, high, _ = estimate
    limit = candidate.notes.get("limit", 0.05)
    is_marked = bool(candidate.notes.get("marked"))
    beside = f"times {commit[:8]}"
    if math.isnan(ratio):
        why = f"{commit[:8]} has no such benchmark"
        if candidate.num_disturbed:
            why = f"other work disturbed all {candidate.num_disturbed} times of {commit[:8]}"
        elif candidate.stored:
            why = "its time is 0"
        return BaselineVerdict(f"{candidate.name}: cannot tell, {why}", fails=False)
    if candidate.taken > DISTURBED_FROM:
        return BaselineVerdict(
            f"{candidate.name}: {ratio:.3f} {beside}, cannot tell: other work took {_cores_words(candidate.taken)} cores",
            fails=False,
        )
    if p is None:
        files = f"{len(candidate.stored)} of {_LEAST_FILES} stored files"
        others = f", other work disturbed {candidate.num_disturbed} more" if candidate.num_disturbed else ""
        return BaselineVerdict(f"{candidate.name}: {ratio:.3f} {beside}, cannot tell: {files}{others}", fails=False)
    is_sure = p < 0.05
    word = "ok" if high <= 1.0 + limit else "cannot tell"
    if is_sure and ratio > 1.0 + limit:
        word = "slower"
    elif is_sure and ratio < 1.0:
        word = "faster"
    is_too_fast = word == "faster" and ratio < 1.0 - limit and bool(candidate.notes.get("fail_when_faster"))
    fails = is_marked and (word == "slower" or is_too_fast)
    words = f"{candidate.name}: {ratio:.3f} ({low:.3f} to {high:.3f}) {beside}, limit {100 * limit:g} %: {word}"
    return BaselineVerdict(f"{words}{', FAILED' if fails else ''}", fails)


class Paired:
    """Times of two callables that took turns, and their ratio.

    `ratio` is new over old: the geometric mean over turns in one process, or over that of each process.
    Below 1 is faster. It means the same in both cases; its `interval` does not. One process cannot see what differs from
    process to process: where its memory lies, its hash seed, what was compiled or cached first. There the interval says how
    sure the ratio is for this process. With `processes=5` it says how sure the mean over processes is. The ratio of a single
    process varies more.

    Attributes:
        ratio: new over old.
        interval: its 95 % interval, (low, high).
        old_seconds, new_seconds: seconds of a call, of each turn or each process.
        first_calls: seconds of the first call of old and new, which count in nothing else. Of processes, the geometric means.
        processes: number of fresh processes. 0: this one.
    """

    def __init__(
        self, old_seconds: Sequence[float], new_seconds: Sequence[float], first_calls: tuple[float, float], processes: int = 0
    ) -> None:
        self.old_seconds, self.new_seconds = list(old_seconds), list(new_seconds)
        self.first_calls, self.processes = first_calls, processes
        logs = [math.log(new / old) for old, new in zip(old_seconds, new_seconds, strict=True)]
        self.ratio, self.interval = math.nan, (math.nan, math.nan)
        mean = math.fsum(logs) / max(len(logs), 1)
        if logs:
            self.ratio = math.exp(mean)
        if len(logs) > 1:
            variance = math.fsum((log - mean) ** 2 for log in logs) / (len(logs) - 1)
            self.interval = _interval(mean, math.sqrt(variance / len(logs)), len(logs) - 1)[:2]

    def __repr__(self) -> str:
        low, high = self.interval
        unit = f"{self.processes} processes" if self.processes else f"{len(self.new_seconds)} turns in one process"
        return f"new takes {self.ratio:.3f} ({low:.3f} to {high:.3f}) times as long as old, in {unit}"

    def assert_not_slower(self, limit: float | str = "5%") -> None:
        """Assert that the whole interval ends below the limit. With --benchmark-disable nothing is measured or asserted.

        In a run of `regress` or `bisect` nothing is asserted either: these judge revisions, and a failed test would end them.

        Raises:
            AssertionError: it is slower, or the times do not tell.
        """
        __tracebackhide__ = True  # a user wants to see their own line
        most = 1.0 + fraction(limit)
        low, high = self.interval
        if not self.new_seconds or high <= most or RUN_VARIABLE in os.environ:
            return
        what = "slower" if low > 1.0 and self.ratio > most else "cannot tell: more turns or processes would"
        raise AssertionError(f"{self!r}, limit {100 * (most - 1.0):g} %: {what}")


@pytest.fixture
def paired(request: pytest.FixtureRequest, benchmark: Any) -> Callable[..., Paired]:
    """Let two callables take turns, here or in fresh processes: `paired(old, new, processes=5).assert_not_slower("5%")`.

    Devices of PyTorch, TensorFlow and JAX are synchronised where they are imported. JAX can only be waited for by a
    callable's result, so the callable must return it. The times of `new` are the record that pytest-benchmark shows and
    saves. A test uses it once.

    Args of the callable:
        old, new: called without arguments.
        processes: fresh processes, each of which runs this test up to here. 0: this process alone, see `Paired`.
        turns: turns of each callable in a process, at least 2.
    """

    def measure(old: Callable[[], Any], new: Callable[[], Any], *, processes: int = 0, turns: int = 20) -> Paired:
        if processes < 0 or processes == 1 or turns < 2:
            raise ValueError(f"processes must be 0 or at least 2, and turns at least 2. Received: {processes} and {turns}.")
        if not benchmark.enabled:
            old()
            new()
            return Paired([], [], (math.nan, math.nan))
        if file := os.environ.get(PAIRED_VARIABLE):
            Path(file).write_text(json.dumps(take_turns(old, new, turns)))
            pytest.skip("its callables were timed for another process")
        times = [_in_fresh_process(request) for _ in range(processes)] if processes else [take_turns(old, new, turns)]
        first = _geometric_mean([entry[2][0] for entry in times]), _geometric_mean([entry[2][1] for entry in times])
        if processes:
            olds, news = ([_geometric_mean(entry[side]) for entry in times] for side in (0, 1))
        else:
            olds, news, _ = times[0]
        result = Paired(olds, news, first, processes)
        _save(benchmark, result)
        return result

    return measure


def take_turns(
    old: Callable[[], Any], new: Callable[[], Any], turns: int
) -> tuple[list[float], list[float], tuple[float, float]]:
    """Return (seconds of a call of old in each turn, those of new, seconds of both first calls)."""
    first = timed(old, 1), timed(new, 1)
    olds: list[float] = []
    news: list[float] = []
    both = ((old, _calls_of_a_turn(old), olds), (new, _calls_of_a_turn(new), news))
    for turn in range(turns):
        for function, calls, seconds in both if turn % 2 == 0 else both[::-1]:
            seconds.append(timed(function, calls))
    return olds, news, first


def _calls_of_a_turn(function: Callable[[], Any]) -> int:
    """Return a number of calls that takes as long as a turn must at least, whatever the other callable takes."""
    calls = 1
    while timed(function, calls) * calls < _TURN_SECONDS:
        calls *= 2
    return calls


def timed(function: Callable[[], Any], calls: int, modules: Mapping[str, Any] = sys.modules) -> float:
    """Return the seconds of a call, as a mean, with the work that it left to a device.

    Args:
        modules: imported modules by name.
    """
    jax = modules.get("jax")
    synchronise(modules)
    begin = time.perf_counter()
    for _ in range(calls):
        result = function()
        if jax is not None:  # it has no other way to wait, and all results of many calls may not fit in memory
            jax.block_until_ready(result)
    synchronise(modules)
    return max(time.perf_counter() - begin, 1e-9) / calls


def synchronise(modules: Mapping[str, Any]) -> None:
    """Wait for the devices of PyTorch and TensorFlow, if they are imported."""
    if (torch := modules.get("torch")) is not None:
        if torch.cuda.is_initialized():
            current = torch.cuda.current_device()
            for device in range(torch.cuda.device_count()):
                # To ask an unused device would start it, and take its memory.
                if device == current or torch.cuda.memory_reserved(device):
                    torch.cuda.synchronize(device)
        # Any other kind of device, since PyTorch 2.6; Apple's GPUs before that.
        accelerator = getattr(torch, "accelerator", None)
        if accelerator is not None:
            if accelerator.is_available() and accelerator.current_accelerator().type != "cuda":
                accelerator.synchronize()
        elif torch.backends.mps.is_available():
            torch.mps.synchronize()
    if (tensorflow := modules.get("tensorflow")) is not None:
        tensorflow.test.experimental.sync_devices()


def _in_fresh_process(request: pytest.FixtureRequest) -> tuple[list[float], list[float], tuple[float, float]]:
    """Run this test in a new process, up to its callables, and return what `take_turns` measured there."""
    config: Any = request.config
    words = [
        f"{request.node.path}::{request.node.nodeid.partition('::')[2]}",
        *_options(config),
        f"--rootdir={config.rootpath}",
    ]
    words += [f"-c{config.inipath}"] if config.inipath else []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "times.json")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
        answer = subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            cwd=config.invocation_params.dir,
            env={**environment, PAIRED_VARIABLE: str(file)},
            capture_output=True,
            text=True,
            check=False,
        )
        if not file.exists():
            lines = [line for line in f"{answer.stdout}\n{answer.stderr}".splitlines() if line.strip()]
            first = next((line for line in lines if line.startswith(("E ", "ERROR"))), lines[-1] if lines else "no output")
            raise RuntimeError(
                f"{request.node.nodeid} measured nothing in a fresh process (exit code {answer.returncode}).\n{first}"
            )
        olds, news, first = json.loads(file.read_text())
    return olds, news, (first[0], first[1])


def _options(config: Any) -> list[str]:
    """Return the options of this session, without what it collects, chooses and saves: the fresh process runs one test."""
    collected = {*config.option.file_or_dir}
    words = [word for word in config.invocation_params.args if word not in collected]
    left_out = ("-k", "-m", "-n", "--numprocesses", "--benchmark-", "--junit", "--cov", "--lf", "--last-failed", "--ff", "--sw")
    options: list[str] = []
    is_value = False  # of an option that is left out, `-k parse`
    for word in words:
        if is_value and not word.startswith("-"):
            is_value = False
            continue
        is_value = word.startswith(left_out) and "=" not in word
        if not word.startswith(left_out):
            options.append(word)
    return options


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _save(benchmark: Any, times: Paired) -> None:
    """Make the times of `new` the record of this test. pytest-benchmark has no public way to record others' times."""
    stats = benchmark._make_stats(1)
    for seconds in times.new_seconds:
        stats.update(seconds)
    benchmark._mode = "paired"
    low, high = times.interval
    benchmark.extra_info.setdefault(KEY, {})["paired"] = {
        "ratio": times.ratio,
        "low": low,
        "high": high,
        "old_seconds": times.old_seconds,
        "first_calls": list(times.first_calls),
        "processes": times.processes,
    }

"""Stored measurements in one form: results folders of `convtwins run` and files of pytest-benchmark."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from common.artifacts import atomic_files, records
from common.artifacts.schema import Environment, Metrics, RunResult
from common.frozen import Frozen
from common.machine import machine, plain_file
from common.machine.plain_file import PlainFileError
from common.spec import Spec
from compare.core.errors import FolderError
from compare.core.statistics import Spread, spread
from compare.core.wording import count, joined, visible
from compare.execution import store
from compare.execution.matrix import Row
from compare.execution.store import Stored
from compare.judgement import cautions, environments, sameness
from compare.judgement.row_figures import Summary
from compare.judgement.run_figures import disturbed, doubt, epoch_seconds, images_per_second, steps_needed, timed_steps
from compare.judgement.summary import first_undisturbed, summarize

Kind = Literal["comparison", "benchmarks"]

MACHINE_KEY = "convtwins"
"""Key of a benchmark file's `machine_info` for what this suite adds, see `tests/benchmarks/conftest.py`."""

SECONDS = "seconds"
"""The one metric of a benchmark: seconds a round."""

OF_THE_PLACE = ("data.source", "paths.cache_dir", "hang_seconds", "least_replicas", "profile_steps", "device")
"""Fields of a spec that do not change its work. Data are compared by content, devices by name."""


OF_THE_CONTENT = ("source", "image_size", "limit", "on_bad", "duplicates", "drawn_part", "seed")
"""Fields of `data` that the hash of its content covers."""


def is_of_the_content(name: str) -> bool:
    """Whether data of equal content make a dotted field of a spec irrelevant."""
    group, _, field = name.partition(".")
    return group == "data" and field in OF_THE_CONTENT


@dataclass(frozen=True)
class Metric:
    """One figure of a run."""

    heading: str
    digits: int
    pick: Callable[[RunResult], float | None]


def _phase(name: str) -> Callable[[RunResult], float | None]:
    """Seconds of a phase. None for a run that continued from a checkpoint: several processes share its phases."""
    return lambda run: getattr(run.phases, name) if run.phases and not run.resumes else None


METRICS: dict[str, Metric] = {
    "epoch_seconds": Metric("seconds per epoch", 3, lambda run: _paced(run, epoch_seconds)),
    "images_per_second": Metric("images/s", 1, lambda run: _paced(run, images_per_second)),
    "first_step_seconds": Metric("first step seconds", 3, _phase("first_step_seconds")),
    "import_seconds": Metric("import seconds", 2, _phase("import_seconds")),
    "build_seconds": Metric("build seconds", 2, _phase("build_seconds")),
    "evaluation_seconds": Metric("evaluation seconds", 3, _phase("evaluation_seconds")),
    "wall_seconds": Metric("wall seconds", 2, _phase("wall_seconds")),
    "peak_memory_pss_mib": Metric("peak memory PSS MiB", 0, lambda run: None if run.resumes else run.peak_memory_pss_mib),
    "peak_memory_mib": Metric("peak memory RSS MiB", 0, lambda run: None if run.resumes else run.peak_memory_mib),
    "device_peak_memory_mib": Metric("device memory MiB", 0, lambda run: None if run.resumes else run.device_peak_memory_mib),
    "test_accuracy": Metric("test accuracy", 4, lambda run: run.test and run.test.accuracy),
    "test_loss": Metric("test loss", 4, lambda run: run.test and run.test.loss),
}
"""Of the runs of a comparison, by name."""

TIMES = tuple(name for name in METRICS if name == "images_per_second" or name.endswith("_seconds"))
"""Metrics that other work on the machine makes worse."""

MORE_IS_BETTER = ("images_per_second", "test_accuracy")


class Subject(Frozen):
    """A row of a comparison, or a benchmark."""

    id: str
    name: str
    """For a reader."""
    samples: dict[str, dict[int, float]]
    """metric: {repeat or file: finite value}. A benchmark has the median of each file, whose rounds share a process."""
    spreads: dict[str, Spread]
    """Of each metric that was measured. For a single benchmark file: over its rounds."""
    tests: dict[int, Metrics] = {}
    """Scores on the test split, by repeat."""
    seeds: dict[int, int] = {}
    """Of each repeat."""
    predictions: dict[int, str] = {}
    """Hash of the predictions on the test split, by repeat, if known."""
    spec: Spec | None = None
    status: str = "ok"
    """As in `Summary`."""
    reason: str | None = None
    parity: str | None = None
    """As in `Summary`; None of a benchmark."""
    first_step_agrees: bool | None = None
    """Whether the first losses of the frameworks are the same up to rounding. None if unknown."""
    device: str | None = None
    hashes: dict[str, dict[int, str]] = {}
    """Hashes of the initial weights and of the order of examples, by repeat."""
    found: dict[str, list[str]] = {}
    """Content and amount of the data that its runs recorded, over the repeats."""
    operations: dict[str, Spread] = {}
    """Milliseconds of a step in its longest operations, over the profiled repeats. Most of these list the operation."""
    begun: list[str] = []
    """When its runs began, if recorded. Runs with the same start are the same runs."""
    saved: dict[int, datetime] = {}
    """Of a benchmark: when its files were saved, by their numbers."""
    in_doubt: dict[int, str] = {}
    """Repeats whose times are not reliable: why not, see `doubt`."""
    cores_taken: dict[int, float] = {}
    """Of the disturbed repeats."""

    @property
    def work(self) -> dict[str, Any]:
        """The fields of its spec that decide its work, by dotted name. Empty for a benchmark."""
        fields = store.flat(self.spec.model_dump(mode="json")) if self.spec else {}
        return {name: value for name, value in fields.items() if name not in OF_THE_PLACE}


class Measured(Frozen):
    """One results folder, benchmark file, or folder of such files."""

    source: Path
    kind: Kind
    measured_at: datetime
    commit: str | None
    committed_at: datetime | None
    """None if it is not stored."""
    dirty: bool
    """Whether it had uncommitted changes."""
    machine: dict[str, Any]
    """The facts of `machine.IDENTITY` that are known."""
    repository: str | None = None
    """That the commit is of. None: the suite's."""
    suite_commit: str | None = None
    """Of the suite that trained the models of another repository."""
    versions: dict[str, str]
    """Of Python, the system and the frameworks."""
    data_name: str | None
    data_hash: str | None
    proof: str | None
    """Verdict of the proof, in words. None if none was asked for."""
    subjects: dict[str, Subject]
    set_aside: list[str] = []
    """Of a comparison: why each unreliable stored file does not count."""
    is_damaged: bool = False
    """Whether one of them was torn or changed, and not only left unsigned."""
    environments: dict[str, Environment] = {}
    """Of the contestants of a comparison, as far as they are recorded."""
    elsewhere: list[str] = []
    """Of a comparison: its runs that met another environment."""

    @property
    def machine_name(self) -> str:
        return f"{machine.processors(self.machine)}, {self.machine['logical_cores'] or '?'} logical cores"

    @property
    def names_its_code(self) -> bool:
        """Whether its commit says which code was measured: it is one, without changes."""
        return not self.dirty and re.fullmatch("[0-9a-f]{7,64}", self.commit or "") is not None

    @property
    def commit_name(self) -> str:
        """The commit for a reader: `1a2b3c4d`, `1a2b3c4d+changes`, or `no commit`."""
        return f"{self.commit[:8]}{'+changes' if self.dirty else ''}" if self.commit else "no commit"


def read(path: Path) -> Measured:
    """Read a results folder, a JSON file of pytest-benchmark, or a folder of such files, of one commit.

    Raises:
        FolderError: it is none of them, cannot be read, or has files of several commits.
    """
    if not path.is_dir():
        return _benchmarks(path)
    by_commit = commits(path)
    if len(by_commit) > 1:
        raise FolderError(
            f"{path} holds benchmarks of more than one commit. Received: {commit_words(by_commit)}. Name one without "
            f"changes, {path}@REV."
        )
    return together(path, *by_commit.values()) if by_commit else _comparison(path)


def commits(folder: Path) -> dict[str, list[Measured]]:
    """The benchmark files of a folder by their commit, as `Measured.commit_name`. The earliest commit is first.

    Empty for a results folder.

    Raises:
        FolderError: a file cannot be read.
    """
    files = [] if (folder / store.PLAN_FILE).exists() else [_benchmarks(file) for file in _benchmark_files(folder)]
    found: dict[str, list[Measured]] = {}
    for file in sorted(files, key=lambda each: (each.committed_at or each.measured_at, each.measured_at)):
        found.setdefault(file.commit_name, []).append(file)
    return found


def commit_words(by_commit: Mapping[str, Sequence[Measured]]) -> str:
    """`1a2b3c4d (5 files) and 5e6f7a8b+changes (1 file)`."""
    return joined([f"{visible(name)} ({count(len(files), 'file')})" for name, files in by_commit.items()])


def read_all(folder: Path) -> Iterator[Measured | FolderError]:
    """All results folders and benchmark files in a folder and its subfolders, or why one cannot be read.

    Other JSON files are ignored.
    """
    plans = sorted(folder.rglob(store.PLAN_FILE))
    inside = {path.parent for path in plans}
    for path in plans:
        yield _tried(path.parent)
    for path in sorted(folder.rglob("*.json")):
        if inside.isdisjoint(path.parents) and _is_benchmarks(path):
            yield _tried(path)


def newest_beside(baseline: Measured) -> Measured:
    """The newest measurement in the baseline's folder that came after it and has a row or benchmark of it.

    Raises:
        FolderError: there is none, or one cannot be read and may be the newest.
    """
    folder = baseline.source.resolve().parent
    others = [_tried(path) for path in sorted(folder.iterdir()) if _is_kind(path, baseline.kind)]
    for each in others:
        if isinstance(each, FolderError):
            raise FolderError(
                f"{each} It may be the newest measurement beside {baseline.source}: move it away, or name the candidate."
            )
    later = [each for each in others if isinstance(each, Measured) and each.measured_at > baseline.measured_at]
    matching = [each for each in later if each.subjects.keys() & baseline.subjects.keys()]
    if not matching:
        raise FolderError(
            f"There is nothing to compare with {baseline.source}: {folder} holds nothing newer that shares a row or benchmark "
            "with it. Name the candidate."
        )
    return max(matching, key=lambda each: each.measured_at)


def _is_kind(path: Path, kind: Kind) -> bool:
    if kind == "comparison" or (path / store.PLAN_FILE).exists():
        return kind == "comparison" and (path / store.PLAN_FILE).exists()
    return bool(_benchmark_files(path)) if path.is_dir() else path.suffix == ".json" and _is_benchmarks(path)


def _benchmark_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.json")) if _is_benchmarks(path)]


def _is_benchmarks(path: Path) -> bool:
    try:
        read = plain_file.read(path, records.MOST_BYTES)
    except PlainFileError:
        return not path.is_dir()  # a file is named, and not passed over
    except OSError:
        return False
    try:
        values = atomic_files.parsed(read)
    except ValueError:
        return b'"machine_info"' in read[:4096]  # where pytest-benchmark begins: a torn file is named, and not passed over
    return isinstance(values, dict) and {"benchmarks", "machine_info", "datetime"} <= values.keys()


def _tried(path: Path) -> Measured | FolderError:
    try:
        return read(path)
    except FolderError as error:
        return error


def _comparison(folder: Path) -> Measured:
    stored = store.read(folder)
    comparison = stored.comparison
    own = comparison.machine
    packages = {name: version for versions in comparison.versions.values() for name, version in versions.items()}
    system = {name: str(own[name]) for name in ("python", "system") if own.get(name)}
    return Measured(
        source=folder,
        kind="comparison",
        measured_at=_time(comparison.created_at),
        commit=own.get("commit"),
        committed_at=_claimed_time(own.get("committed_at")),
        dirty=bool(own.get("dirty")),
        repository=own.get("repository"),
        suite_commit=own.get("suite_commit"),
        machine={fact: own.get(fact) for fact in machine.IDENTITY},
        versions=system | packages,
        data_name=comparison.data_name,
        data_hash=comparison.data_hash,
        proof=f"{comparison.headline}: {comparison.proof.sentence}" if comparison.proof else None,
        set_aside=[*cautions.signature(stored), *stored.set_aside],
        is_damaged=bool(stored.set_aside),
        environments=environments.counted(comparison.environments, own),
        elsewhere=environments.cautions(stored),
        subjects={
            row.id: _row(stored, row, summary)
            for row, summary in zip(comparison.rows, summarize(stored), strict=True)
        },
    )  # fmt: skip


def _row(stored: Stored, row: Row, summary: Summary) -> Subject:
    good = first_undisturbed(stored, row)
    found = {
        name: {
            repeat: float(value)
            for repeat, run in sorted(good.items())
            if (value := metric.pick(run)) is not None and math.isfinite(value)
        }
        for name, metric in METRICS.items()
    }
    samples = {name: values for name, values in found.items() if values}
    runs = good.values()
    return Subject(
        id=row.id,
        name=summary.name,
        samples=samples,
        spreads={name: _spread(values) for name, values in samples.items()},
        tests={repeat: run.test for repeat, run in sorted(good.items()) if run.test},
        seeds={repeat: run.spec.seed for repeat, run in sorted(good.items())},
        predictions={repeat: run.predictions_hash for repeat, run in sorted(good.items()) if run.predictions_hash},
        spec=row.spec,
        status=summary.status,
        reason=summary.reason,
        parity=summary.parity,
        first_step_agrees=sameness.agrees(stored, summary),
        device=summary.device,
        hashes={
            "initial weights": {repeat: run.weights_hash for repeat, run in good.items() if run.weights_hash},
            "order of examples": {repeat: run.order_hash for repeat, run in good.items() if run.order_hash},
        },
        found={
            "content of the data": sorted({run.data_hash for run in runs if run.data_hash}),
            "images of an epoch": sorted({str(epoch.epoch_images) for run in runs for epoch in run.epochs}),
            "test images": sorted({str(run.test.num_examples) for run in runs if run.test}),
        },
        operations=_operations(list(runs)),
        begun=sorted(run.started_at for run in runs if run.started_at),
        in_doubt={repeat: why for repeat, run in sorted(good.items()) if (why := doubt(run))},
        cores_taken={repeat: taken for repeat, run in sorted(good.items()) if (taken := disturbed(run))},
    )


def _operations(runs: Sequence[RunResult]) -> dict[str, Spread]:
    found: dict[str, dict[int, float]] = {}
    for repeat, run in enumerate(runs):
        for operation in run.top_operations.operations if run.top_operations else []:
            found.setdefault(operation.name, {})[repeat] = 1e3 * operation.self_seconds
    profiled = sum(run.top_operations is not None for run in runs)
    # Others are among the longest by chance: in a disturbed run, for example.
    return {name: _spread(values) for name, values in found.items() if 2 * len(values) > profiled}


def _benchmarks(path: Path) -> Measured:
    try:
        values = atomic_files.parsed(plain_file.read(path, records.MOST_BYTES))
        return _from_benchmarks(path, values)
    except PlainFileError as error:
        raise FolderError(f"{error}. Name a results folder, or a benchmark's file.") from None
    except OSError as error:
        raise FolderError(f"{path} cannot be read ({error.strerror}). Name a results folder, or a benchmark's file.") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise FolderError(
            f"{path} is no whole file of pytest-benchmark ({type(error).__name__}: {error}). Name a results folder, or a file "
            "that --benchmark-autosave or --benchmark-json has written."
        ) from None


def _from_benchmarks(path: Path, values: dict[str, Any]) -> Measured:
    info, commit = values["machine_info"], values.get("commit_info") or {}
    own, cpu = info.get(MACHINE_KEY) or {}, info.get("cpu") or {}
    known = commit.get("id") not in (None, "unversioned", "unknown")
    return Measured(
        source=path,
        kind="benchmarks",
        measured_at=_time(values["datetime"]),
        commit=commit["id"] if known else None,
        committed_at=_time(commit["time"]) if known and commit.get("time") else None,
        dirty=bool(commit.get("dirty")),
        machine={fact: own.get(fact) for fact in machine.IDENTITY}
        | {
            "processor": own.get("processor") or cpu.get("brand_raw"),
            "logical_cores": own.get("logical_cores") or cpu.get("count"),
        },
        versions={"python": str(info["python_version"]), "system": own.get("system") or str(info.get("release"))}
        | own.get("versions", {}),
        data_name=None,
        data_hash=None,
        proof=None,
        subjects={each.id: each for each in _numbered(values["benchmarks"])},
    )


def _numbered(benchmarks: Sequence[dict[str, Any]]) -> Iterator[Subject]:
    """The benchmarks of a file. One that was run again in the same process (--keep-duplicates) is another one, `(2)`."""
    seen = Counter[str]()
    for each in benchmarks:
        seen[each["fullname"]] += 1
        number = seen[each["fullname"]]
        yield _benchmark(each, f" ({number})" if number > 1 else "")


def _benchmark(values: dict[str, Any], ending: str) -> Subject:
    stats = values["stats"]
    overall = Spread(median=stats["median"], low=stats["q1"], high=stats["q3"], n=stats["rounds"])
    return Subject(
        id=values["fullname"] + ending,
        name=values["name"] + ending,
        samples={SECONDS: {0: overall.median}},
        spreads={SECONDS: overall},
    )


def together(source: Path, files: Sequence[Measured]) -> Measured:
    """Benchmark files of one commit, a sample each, in the order of their times.

    Args:
        source: what names them: a folder, or `FOLDER@COMMIT`.
        files: at least one.

    Raises:
        FolderError: they are of several machines or versions.
    """
    first, *others = files = sorted(files, key=lambda each: each.measured_at)
    for other in others:
        differing = ["machine"] * bool(machine.differences(first.machine, other.machine))
        differing += ["set of versions"] * (other.versions != first.versions)
        if differing:
            raise FolderError(
                f"{source} holds benchmarks of more than one {differing[0]}. Received: {first.source} and {other.source}. Name "
                "a subfolder that has one alone, or keep the files of each in a folder of its own (--benchmark-storage)."
            )
    samples: dict[str, dict[int, float]] = {}
    times: dict[str, dict[int, datetime]] = {}
    for number, file in enumerate(files):
        for name, subject in file.subjects.items():
            samples.setdefault(name, {})[number] = subject.samples[SECONDS][0]
            times.setdefault(name, {})[number] = file.measured_at
    names = {name: subject.name for file in files for name, subject in file.subjects.items()}
    subjects = {
        name: Subject(
            id=name, name=names[name], samples={SECONDS: values}, spreads={SECONDS: _spread(values)}, saved=times[name]
        )
        for name, values in samples.items()
    }
    newest = max(file.measured_at for file in files)
    return first.model_copy(update={"source": source, "measured_at": newest, "subjects": subjects})


def _claimed_time(value: Any) -> datetime | None:
    """A time among facts of a machine, which no schema checks. None: it is not there, or no time."""
    try:
        return _time(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _spread(values: dict[int, float]) -> Spread:
    found = spread(list(values.values()))
    assert found is not None  # the values are finite, and not none
    return found


def _paced(run: RunResult, pick: Callable[[RunResult], float]) -> float | None:
    """A figure of the timed batches. None if they are too few to show a steady pace."""
    return pick(run) if timed_steps(run) >= max(steps_needed(run.spec), 1) else None

"""Stored measurements in one form: results folders of `convtwins run` and files of pytest-benchmark."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from common.artifacts import atomic_files, records
from common.artifacts.schema import Environment, Metrics, RunResult
from common.frozen import Frozen
from common.machine import machine, plain_file
from common.machine.plain_file import PlainFileError
from common.spec import EFFECTS, Spec
from compare.cli.errors import FolderError
from compare.cli.wording import count, joined, visible
from compare.judgement import cautions, environments, sameness, sides, statement_words
from compare.judgement.figures import metrics
from compare.judgement.row_figures import Doubt, Summary
from compare.judgement.run_figures import disturbing_cores, doubt
from compare.judgement.run_pairs import undisturbed_runs
from compare.judgement.sides import BASE, HEAD
from compare.judgement.statement import Statement
from compare.judgement.summary import summarize
from compare.results import store
from compare.results.store import StoredComparison
from compare.running.matrix import Row
from compare.statistics.statistics import Spread, spread

Kind = Literal["comparison", "benchmarks"]

MACHINE_KEY = "convtwins"
"""Key in a benchmark file's `machine_info` under which this suite adds facts, see `tests/benchmarks/conftest.py`."""

MARK_FILE = "interleaved.json"
"""Marks a folder with the results folders `base` and `head`, which earlier versions measured in turn."""

SECONDS = "seconds"
"""Name of a benchmark's only metric: seconds per round."""


class MeasuredSubject(Frozen):
    """A row of a comparison, or a benchmark."""

    id: str
    name: str
    """Name for a reader."""
    samples: dict[str, dict[int, float]]
    """Finite values: metric: {repeat or file: value}. A benchmark has the median of each file, whose rounds share a process."""
    spreads: dict[str, Spread]
    """Spread of each metric that was measured. For a single benchmark file it is taken over the rounds."""
    tests: dict[int, Metrics] = {}
    """Scores on the test split, by repeat."""
    seeds: dict[int, int] = {}
    """Seed of each repeat."""
    predictions: dict[int, str] = {}
    """Hash of the predictions on the test split, by repeat, if known."""
    spec: Spec | None = None
    status: str = "ok"
    """Status, see `Summary.status`."""
    reason: str | None = None
    parity: str | None = None
    """Parity, see `Summary.parity`. None for a benchmark."""
    first_step_agrees: bool | None = None
    """Whether the first losses of the frameworks are the same up to rounding. None if unknown."""
    device: str | None = None
    hashes: dict[str, dict[int, str]] = {}
    """Hashes of the initial weights and of the order of examples, by repeat."""
    recorded_data: dict[str, list[str]] = {}
    """Content and amount of the data that the runs recorded, over the repeats."""
    operations: dict[str, Spread] = {}
    """Milliseconds of a step in its longest operations, over the profiled repeats. Most of these list the operation."""
    start_times: list[str] = []
    """Start times of the runs, if recorded. Runs with the same start are the same runs."""
    saved_at: dict[int, datetime] = {}
    """Times when the files of a benchmark were saved, by file number. Empty for a row."""
    unreliable_repeats: dict[int, Doubt] = {}
    """Reasons why times are not reliable, by repeat."""
    clock_cautions: dict[int, str] = {}
    """Cautions of the clock, by repeat with late losses."""
    cores_taken: dict[int, float] = {}
    """Cores that other work took, by disturbed repeat."""

    @property
    def work(self) -> dict[str, Any]:
        """Fields of the spec that decide the work, by dotted name. Empty for a benchmark.

        Data is compared by content, devices by name.
        """
        fields = store.flatten(self.spec.model_dump(mode="json")) if self.spec else {}
        return EFFECTS.relevant(fields, "work")


class Measurement(Frozen):
    """One results folder, benchmark file, or folder of such files."""

    source: Path
    kind: Kind
    measured_at: datetime
    commit: str | None
    committed_at: datetime | None
    """Time of the commit. None if it is not stored."""
    dirty: bool
    """Whether the working tree had uncommitted changes."""
    machine: dict[str, Any]
    """Facts of `machine.IDENTITY`. None for a fact that is not known."""
    repository: str | None = None
    """Repository of the commit. None: the suite's own."""
    suite_commit: str | None = None
    """Commit of the suite, if it trained the models of another repository."""
    versions: dict[str, str]
    """Versions of Python, the system and the frameworks."""
    data_name: str | None
    data_hash: str | None
    proof: str | None
    """Verdict of the proof, in words. None if none was asked for."""
    subjects: dict[str, MeasuredSubject]
    set_aside: list[str] = []
    """Reasons why unreliable stored files of a comparison do not count."""
    is_damaged: bool = False
    """Whether a stored file was torn or changed, and not only left unsigned."""
    environments: dict[str, Environment] = {}
    """Environments of the contestants of a comparison, if they are recorded."""
    environment_changes: list[Statement] = []
    """Cautions on runs of a comparison that were made in another environment than planned."""
    side: Literal["base", "head"] | None = None
    """Side of a measurement in turn, whose repeats have a partner on the other side. None: it is no such side."""
    measured_in: Path | None = None
    """Folder of that measurement."""

    @property
    def machine_name(self) -> str:
        return f"{machine.processors(self.machine)}, {self.machine['logical_cores'] or '?'} logical cores"

    @property
    def names_its_code(self) -> bool:
        """Whether the commit says which code was measured: it is a commit hash, without changes."""
        return not self.dirty and re.fullmatch("[0-9a-f]{7,64}", self.commit or "") is not None

    @property
    def commit_name(self) -> str:
        """The commit for a reader: `1a2b3c4d`, `1a2b3c4d+changes`, or `no commit`."""
        return f"{self.commit[:8]}{'+changes' if self.dirty else ''}" if self.commit else "no commit"


def read(path: Path) -> Measurement:
    """Read a results folder, a JSON file of pytest-benchmark, or a folder of such files, of one commit."""
    if not path.is_dir():
        return _benchmarks(path)
    by_commit = measurements_by_commit(path)
    if len(by_commit) > 1:
        raise FolderError(
            f"{path} holds benchmarks of more than one commit. Received: {commit_words(by_commit)}. Name one without "
            f"changes, {path}@REV."
        )
    if by_commit:
        return merge_benchmarks(path, *by_commit.values())
    measured, *others = _comparisons(path)
    if others:
        names = " or ".join(str(side.source) for side in (measured, *others))
        raise FolderError(f"{path} holds two sides, measured in turn. Name one of them: {names}.")
    return measured


def read_sides(folder: Path) -> list[Measurement]:
    """Read the base and the head of a measurement in turn. Empty: the folder holds none."""
    if not any((folder / file).exists() for file in (MARK_FILE, store.PLAN_FILE)):
        return []
    measured = _comparisons(folder)
    return measured if len(measured) > 1 else []


def measurements_by_commit(folder: Path) -> dict[str, list[Measurement]]:
    """The benchmark files of a folder by their commit, as `Measurement.commit_name`. The earliest commit is first.

    Empty for a results folder.
    """
    files = [] if (folder / store.PLAN_FILE).exists() else [_benchmarks(file) for file in _benchmark_files(folder)]
    by_commit: dict[str, list[Measurement]] = {}
    for file in sorted(files, key=lambda file: (file.committed_at or file.measured_at, file.measured_at)):
        by_commit.setdefault(file.commit_name, []).append(file)
    return by_commit


def commit_words(by_commit: Mapping[str, Sequence[Measurement]]) -> str:
    """Commits with their numbers of files: `1a2b3c4d (5 files) and 5e6f7a8b+changes (1 file)`."""
    return joined([f"{visible(name)} ({count(len(files), 'file')})" for name, files in by_commit.items()])


def read_all_in(folder: Path) -> Iterator[Measurement | FolderError]:
    """All results folders and benchmark files in a folder and its subfolders, or why one cannot be read.

    Other JSON files are ignored.
    """
    plans = sorted(folder.rglob(store.PLAN_FILE))
    comparison_folders = {path.parent for path in plans}
    for path in plans:
        try:
            yield from _comparisons(path.parent)
        except FolderError as error:
            yield error
    for path in sorted(folder.rglob("*.json")):
        if comparison_folders.isdisjoint(path.parents) and _is_benchmarks(path):
            yield _read_or_error(path)


def newest_sibling(baseline: Measurement) -> Measurement:
    """The newest measurement in the baseline's folder that came after it and has a row or benchmark of it."""
    folder = baseline.source.resolve().parent
    paths = [path for path in sorted(folder.iterdir()) if _is_kind(path, baseline.kind)]
    others = [_read_or_error(path) for path in paths if not _holds_sides(path)]
    for other in others:
        if isinstance(other, FolderError):
            raise FolderError(
                f"{other} It may be the newest measurement beside {baseline.source}: move it away, or name the candidate."
            )
    later = [other for other in others if isinstance(other, Measurement) and other.measured_at > baseline.measured_at]
    matching = [other for other in later if other.subjects.keys() & baseline.subjects.keys()]
    if not matching:
        raise FolderError(
            f"There is nothing to compare with {baseline.source}: {folder} holds nothing newer that shares a row or benchmark "
            "with it. Name the candidate."
        )
    return max(matching, key=lambda other: other.measured_at)


def _holds_sides(path: Path) -> bool:
    try:
        return any(contestant.base_of for contestant in store.read_plan(path).settings.contestants)
    except FolderError:  # reading it says why
        return False


def _is_kind(path: Path, kind: Kind) -> bool:
    if kind == "comparison" or (path / store.PLAN_FILE).exists():
        return kind == "comparison" and (path / store.PLAN_FILE).exists()
    return bool(_benchmark_files(path)) if path.is_dir() else path.suffix == ".json" and _is_benchmarks(path)


def _benchmark_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.json")) if _is_benchmarks(path)]


def _is_benchmarks(path: Path) -> bool:
    try:
        content = plain_file.read(path, records.MOST_BYTES)
    except PlainFileError:
        return not path.is_dir()  # a file is named, and not passed over
    except OSError:
        return False
    try:
        values = atomic_files.parse_json(content)
    except ValueError:
        return b'"machine_info"' in content[:4096]  # where pytest-benchmark begins: a torn file is named, and not passed over
    return isinstance(values, dict) and {"benchmarks", "machine_info", "datetime"} <= values.keys()


def _read_or_error(path: Path) -> Measurement | FolderError:
    try:
        return read(path)
    except FolderError as error:
        return error


def _comparisons(folder: Path) -> list[Measurement]:
    """Read a results folder: one measurement, or the base and the head of a measurement in turn."""
    if (folder / MARK_FILE).exists():
        return [read(folder / side) for side in (BASE, HEAD)]
    stored, whole = store.read(folder), folder.resolve()
    if parts := sides.split(stored):
        return [
            _comparison(part, Path(f"{folder}@{side}"), {"side": side, "measured_in": whole}) for side, part in parts.items()
        ]
    is_side = whole.name in (BASE, HEAD) and (whole.parent / MARK_FILE).exists()
    return [_comparison(stored, folder, {"side": whole.name, "measured_in": whole.parent} if is_side else {})]


def _comparison(stored: StoredComparison, source: Path, side: Mapping[str, Any]) -> Measurement:
    comparison = stored.comparison
    facts = comparison.machine
    packages = {name: version for versions in comparison.versions.values() for name, version in versions.items()}
    system = {name: str(facts[name]) for name in ("python", "system") if facts.get(name)}
    return Measurement(
        **side,
        source=source,
        kind="comparison",
        measured_at=_parse_time(comparison.created_at),
        commit=facts.get("commit"),
        committed_at=_optional_time(facts.get("committed_at")),
        dirty=bool(facts.get("dirty")),
        repository=facts.get("repository"),
        suite_commit=facts.get("suite_commit"),
        machine={fact: facts.get(fact) for fact in machine.IDENTITY},
        versions=system | packages,
        data_name=comparison.data_name,
        data_hash=comparison.data_hash,
        proof=f"{comparison.headline}: {comparison.proof.sentence}" if comparison.proof else None,
        set_aside=[*statement_words.sentences(cautions.signature(stored)), *(fault.reason for fault in stored.set_aside)],
        is_damaged=bool(stored.set_aside),
        environments=environments.relevant_environments(comparison.environments, facts),
        environment_changes=environments.cautions(stored),
        subjects={
            row.id: _row_subject(stored, row, summary)
            for row, summary in zip(comparison.rows, summarize(stored), strict=True)
        },
    )  # fmt: skip


def _row_subject(stored: StoredComparison, row: Row, summary: Summary) -> MeasuredSubject:
    good = undisturbed_runs(stored, row)
    all_samples = {
        name: {
            repeat: float(value)
            for repeat, run in sorted(good.items())
            if metric.counts(run) and (value := figure.of_run(run, stored.comparison)) is not None and math.isfinite(value)
        }
        for name, figure in metrics().items()
        if (metric := figure.metric) is not None
    }
    samples = {name: values for name, values in all_samples.items() if values}
    runs = good.values()
    return MeasuredSubject(
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
        first_step_agrees=sameness.first_losses_agree(stored, summary),
        device=summary.device,
        hashes={
            "initial weights": {repeat: run.weights_hash for repeat, run in good.items() if run.weights_hash},
            "order of examples": {repeat: run.order_hash for repeat, run in good.items() if run.order_hash},
        },
        recorded_data={
            "content of the data": sorted({run.data_hash for run in runs if run.data_hash}),
            "images of an epoch": sorted({str(epoch.epoch_images) for run in runs for epoch in run.epochs}),
            "test images": sorted({str(run.test.num_examples) for run in runs if run.test}),
        },
        operations=_operations(list(runs)),
        start_times=sorted(run.started_at for run in runs if run.started_at),
        unreliable_repeats={repeat: why for repeat, run in sorted(good.items()) if (why := doubt(run))},
        clock_cautions={repeat: run.clock_caution for repeat, run in sorted(good.items()) if run.clock_caution},
        cores_taken={repeat: taken for repeat, run in sorted(good.items()) if (taken := disturbing_cores(run))},
    )


def _operations(runs: Sequence[RunResult]) -> dict[str, Spread]:
    milliseconds: dict[str, dict[int, float]] = {}
    for repeat, run in enumerate(runs):
        for operation in run.top_operations.operations if run.top_operations else []:
            milliseconds.setdefault(operation.name, {})[repeat] = 1e3 * operation.self_seconds
    profiled = sum(run.top_operations is not None for run in runs)
    # Others are among the longest by chance: in a disturbed run, for example.
    return {name: _spread(values) for name, values in milliseconds.items() if 2 * len(values) > profiled}


def _benchmarks(path: Path) -> Measurement:
    try:
        values = atomic_files.parse_json(plain_file.read(path, records.MOST_BYTES))
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


def _from_benchmarks(path: Path, values: dict[str, Any]) -> Measurement:
    info, commit = values["machine_info"], values.get("commit_info") or {}
    facts, cpu = info.get(MACHINE_KEY) or {}, info.get("cpu") or {}
    is_versioned = commit.get("id") not in (None, "unversioned", "unknown")
    return Measurement(
        source=path,
        kind="benchmarks",
        measured_at=_parse_time(values["datetime"]),
        commit=commit["id"] if is_versioned else None,
        committed_at=_parse_time(commit["time"]) if is_versioned and commit.get("time") else None,
        dirty=bool(commit.get("dirty")),
        machine={fact: facts.get(fact) for fact in machine.IDENTITY}
        | {
            "processor": facts.get("processor") or cpu.get("brand_raw"),
            "logical_cores": facts.get("logical_cores") or cpu.get("count"),
        },
        versions={"python": str(info["python_version"]), "system": facts.get("system") or str(info.get("release"))}
        | facts.get("versions", {}),
        data_name=None,
        data_hash=None,
        proof=None,
        subjects={subject.id: subject for subject in _benchmark_subjects(values["benchmarks"])},
    )


def _benchmark_subjects(benchmarks: Sequence[dict[str, Any]]) -> Iterator[MeasuredSubject]:
    """The benchmarks of a file. A benchmark that was repeated in the same process (--keep-duplicates) gets the suffix `(2)`."""
    counts = Counter[str]()
    for benchmark in benchmarks:
        counts[benchmark["fullname"]] += 1
        number = counts[benchmark["fullname"]]
        yield _benchmark_subject(benchmark, f" ({number})" if number > 1 else "")


def _benchmark_subject(values: dict[str, Any], suffix: str) -> MeasuredSubject:
    stats = values["stats"]
    overall = Spread(median=stats["median"], low=stats["q1"], high=stats["q3"], n=stats["rounds"])
    return MeasuredSubject(
        id=values["fullname"] + suffix,
        name=values["name"] + suffix,
        samples={SECONDS: {0: overall.median}},
        spreads={SECONDS: overall},
    )


def merge_benchmarks(source: Path, files: Sequence[Measurement]) -> Measurement:
    """Merge benchmark files of one commit. Each file is one sample, in the order of their times.

    Args:
        source: name of the group: a folder, or `FOLDER@COMMIT`.
        files: measurements of single files, at least one.
    """
    first, *others = files = sorted(files, key=lambda file: file.measured_at)
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
        name: MeasuredSubject(
            id=name, name=names[name], samples={SECONDS: values}, spreads={SECONDS: _spread(values)}, saved_at=times[name]
        )
        for name, values in samples.items()
    }
    newest = max(file.measured_at for file in files)
    return first.model_copy(update={"source": source, "measured_at": newest, "subjects": subjects})


def _optional_time(value: Any) -> datetime | None:
    """Parse a time among facts of a machine, which no schema checks. None if it is missing or not a time."""
    try:
        return _parse_time(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _parse_time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _spread(values: dict[int, float]) -> Spread:
    result = spread(list(values.values()))
    assert result is not None  # the values are finite, and not none
    return result

"""Files of pytest-benchmark, as measurements. Commands of your own are stored in the same form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from common.artifacts import atomic_files, records
from common.artifacts.schema import Environment
from common.frozen import Frozen
from common.machine import machine, plain_file
from common.machine.interference import DISTURBED_FROM
from common.machine.plain_file import PlainFileError
from compare.cli.errors import FolderError
from compare.results.workspace import FolderKind, PlannedWork
from compare.statistics.statistics import Spread
from compare.tools.regression.measured import (
    COMMAND_SECONDS,
    FIGURE,
    SECONDS,
    MeasuredSubject,
    Measurement,
    parse_time,
    spread_of,
)

MACHINE_KEY = "convtwins"
"""Key of this suite's facts: in `machine_info` of a file, and in `extra_info` of a benchmark, see `convtwins.pytest_plugin`."""
STATISTICS = ("median", "mean", "min", "max", "q1", "q3")
"""Statistics of the rounds that a marker may name, see `convtwins.pytest_plugin`."""
PLAN_FILE, RUNS_FOLDER = "benchmarks.json", "runs"


def files_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.json")) if is_benchmarks(path)]


def is_benchmarks(path: Path) -> bool:
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


def read(path: Path) -> Measurement:
    """Read one file of pytest-benchmark."""
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
            "that pytest --benchmark-autosave or --benchmark-json has written."
        ) from None


def _from_benchmarks(path: Path, values: dict[str, Any]) -> Measurement:
    info, commit = values["machine_info"], values.get("commit_info") or {}
    facts, cpu = info.get(MACHINE_KEY) or {}, info.get("cpu") or {}
    is_versioned = commit.get("id") not in (None, "unversioned", "unknown")
    return Measurement(
        source=path,
        kind="benchmarks",
        measured_at=parse_time(values["datetime"]),
        commit=commit["id"] if is_versioned else None,
        committed_at=parse_time(commit["time"]) if is_versioned and commit.get("time") else None,
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
    stats, notes = values["stats"], (values.get("extra_info") or {}).get(MACHINE_KEY) or {}
    statistic = notes.get("metric") or "median"
    overall = Spread(median=stats[statistic], low=stats["q1"], high=stats["q3"], n=stats["rounds"])
    taken = max(notes.get("cores_taken") or 0.0, notes.get("cores_stolen") or 0.0)
    is_disturbed = taken > DISTURBED_FROM
    quantity = notes.get("quantity")  # of a command: see `BenchmarkCommand.metric`
    metric = quantity if quantity in (COMMAND_SECONDS, FIGURE) else SECONDS
    return MeasuredSubject(
        id=values["fullname"] + suffix,
        name=values["name"] + suffix,
        samples={metric: {0: overall.median}},
        statistic=statistic,
        statistics={name: {0: stats[name]} for name in STATISTICS if name in stats},
        spreads={metric: overall},
        unreliable_repeats={0: "disturbed"} if is_disturbed else {},
        cores_taken={0: taken} if is_disturbed else {},
        is_watched=notes.get("cores_taken") is not None,
        limit=notes.get("limit"),
        fails_when_faster=bool(notes.get("fail_when_faster")),
    )


def merge(source: Path, files: Sequence[Measurement]) -> Measurement:
    """Merge benchmark files of one commit. Each file is one sample, in the order of their times.

    Args:
        source: name of the group: a folder, or `FOLDER@COMMIT`.
        files: measurements of single files, at least one.
    """
    ordered = dict(enumerate(sorted(files, key=lambda file: file.measured_at)))
    merged = merge_repeats(source, ordered)
    saved_at = {
        name: {number: file.measured_at for number, file in ordered.items() if name in file.subjects}
        for name in merged.subjects
    }
    subjects = {name: subject.model_copy(update={"saved_at": saved_at[name]}) for name, subject in merged.subjects.items()}
    return merged.model_copy(update={"subjects": subjects})


def merge_repeats(source: Path, files: Mapping[int, Measurement]) -> Measurement:
    """Merge benchmark files by their repeats, see `merge`."""
    first, *others = files.values()
    for other in others:
        differing = ["machine"] * bool(machine.differences(first.machine, other.machine))
        differing += ["set of versions"] * (other.versions != first.versions)
        if differing:
            raise FolderError(
                f"{source} holds benchmarks of more than one {differing[0]}. Received: {first.source} and {other.source}. Name "
                "a subfolder that has one alone, or keep the files of each in a folder of its own (--benchmark-storage)."
            )
    by_name: dict[str, dict[int, MeasuredSubject]] = {}
    for repeat, file in files.items():
        for name, subject in file.subjects.items():
            by_name.setdefault(name, {})[repeat] = subject
    newest = max(file.measured_at for file in files.values())
    subjects = {name: _merged(subjects) for name, subjects in by_name.items()}
    return first.model_copy(update={"source": source, "measured_at": newest, "subjects": subjects})


def _merged(subjects: Mapping[int, MeasuredSubject]) -> MeasuredSubject:
    """One benchmark of several files. The newest file says its limit and its statistic."""
    newest = subjects[max(subjects)]
    (metric,) = newest.samples
    subjects = {
        repeat: subject.with_statistic(newest.statistic) for repeat, subject in subjects.items() if metric in subject.samples
    }
    samples = {repeat: subject.samples[metric][0] for repeat, subject in subjects.items()}
    return newest.model_copy(
        update={
            "samples": {metric: samples},
            "statistics": {
                name: {
                    repeat: subject.statistics[name][0] for repeat, subject in subjects.items() if name in subject.statistics
                }
                for name in newest.statistics
            },
            "spreads": {metric: spread_of(samples)},
            "unreliable_repeats": {
                repeat: why for repeat, subject in subjects.items() for why in subject.unreliable_repeats.values()
            },
            "cores_taken": {repeat: cores for repeat, subject in subjects.items() for cores in subject.cores_taken.values()},
            "is_watched": all(subject.is_watched for subject in subjects.values()),
        }
    )


def run_file(folder: Path, side: str, repeat: int) -> Path:
    """Return the file of one run of a side."""
    return folder / RUNS_FOLDER / f"{side}-{repeat}.json"


def holds_sides(folder: Path) -> bool:
    """Return whether a folder holds benchmarks or commands of your own that a command has measured in turn."""
    return (folder / PLAN_FILE).exists()


def read_sides(folder: Path) -> list[Measurement]:
    """Read the base and the head of benchmarks that were measured in turn. Empty before both have a run."""
    plan = read_plan(folder)
    sides: list[Measurement] = []
    for name, side in plan.sides.items():
        files = {repeat: run_file(folder, name, repeat) for repeat in range(plan.repeats)}
        runs = {repeat: read(file) for repeat, file in files.items() if file.exists()}
        if not runs:
            return []
        merged = merge_repeats(Path(f"{folder}@{name}"), runs)
        sides.append(
            merged.model_copy(
                update={
                    "side": name,
                    "measured_in": folder.resolve(),
                    "planned_repeats": plan.repeats,
                    "commit": side.commit,
                    "dirty": side.dirty,
                    "repository": side.repository,
                    "environments": {"environment": side.environment},
                }
            )
        )
    return sides


class PlannedSide(Frozen):
    """One side of benchmarks in turn: a revision, or an environment."""

    name: str
    """Revision or environment, as the user names it."""
    commit: str | None
    committed_at: str | None = None
    dirty: bool = False
    changes_hash: str | None = None
    """SHA-256 of the uncommitted changes, if it has some. The same folder is continued only with the same code."""
    repository: str | None = None
    environment: Environment


class BenchmarkPlan(PlannedWork):
    """benchmarks.json: whose benchmarks are measured in turn."""

    kind: str = "benchmarks in turn"
    command: list[str]
    """Option and its value: `--pytest ARGS` or `--command CMD`."""
    sides: dict[Literal["base", "head"], PlannedSide]
    repeats: int

    def identity(self) -> dict[str, Any]:
        sides = {
            name: [side.commit, side.changes_hash, side.environment.interpreter, side.environment.distributions_hash]
            for name, side in self.sides.items()
        }
        return {"command": self.command, "sides": sides}

    def continued_by(self, new: Any) -> Self:
        """A test of `bisect` may get more pairs."""
        return self.model_copy(update={"repeats": max(self.repeats, new.repeats)})


def read_plan(folder: Path) -> BenchmarkPlan:
    """Read what a folder of benchmarks in turn is for."""
    return IN_TURN.read(folder)


def _has_runs(folder: Path) -> bool:
    return any((folder / RUNS_FOLDER).glob("*.json"))


def _settled_fields(plan: BenchmarkPlan) -> dict[str, Any]:
    return {"repeats": plan.repeats}


IN_TURN = FolderKind(
    noun="measurement",
    file=PLAN_FILE,
    kind="benchmarks in turn",
    record=BenchmarkPlan,
    has_started=_has_runs,
    subfolders=(RUNS_FOLDER,),
)
"""Folder of benchmarks in turn. The number of pairs may grow, as in a test of `bisect`."""
SETTLED = replace(IN_TURN, settled=_settled_fields)
"""Folder of benchmarks whose number of pairs is settled before the first one."""

"""Stored measurements in one form: results folders of `convtwins run` and files of pytest-benchmark."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from common.artifacts.schema import RunResult
from common.machine import machine
from compare.cli.errors import FolderError
from compare.cli.wording import count, joined, visible
from compare.judgement import cautions, environments, sameness, sides, slices, statement_words
from compare.judgement.figures import metrics
from compare.judgement.row_figures import Summary
from compare.judgement.run_figures import disturbing_cores, doubt
from compare.judgement.run_pairs import undisturbed_runs
from compare.judgement.sides import BASE, HEAD
from compare.judgement.summary import summarize
from compare.results import store
from compare.results.store import StoredComparison
from compare.running.matrix import Row
from compare.statistics.statistics import Spread
from compare.tools.regression import benchmark_files
from compare.tools.regression.measured import Kind, MeasuredSubject, Measurement, parse_time, spread_of

MARK_FILE = "interleaved.json"
"""Marks a folder with the results folders `base` and `head`, which earlier versions measured in turn."""


def read(path: Path) -> Measurement:
    """Read a results folder, a JSON file of pytest-benchmark, or a folder of such files, of one commit."""
    if not path.is_dir():
        return benchmark_files.read(path)
    if benchmark_files.holds_sides(path):
        names = " or ".join(f"{path}@{side}" for side in (BASE, HEAD))
        raise FolderError(f"{path} holds two sides, measured in turn. Name one of them: {names}.")
    by_commit = measurements_by_commit(path)
    if len(by_commit) > 1:
        raise FolderError(
            f"{path} holds benchmarks of more than one commit. Received: {commit_words(by_commit)}. Name one without "
            f"changes, {path}@REV."
        )
    if by_commit:
        return benchmark_files.merge(path, *by_commit.values())
    measured, *others = _comparisons(path)
    if others:
        names = " or ".join(str(side.source) for side in (measured, *others))
        raise FolderError(f"{path} holds two sides, measured in turn. Name one of them: {names}.")
    return measured


def read_sides(folder: Path) -> list[Measurement]:
    """Read the base and the head of a measurement in turn. Empty: the folder holds none."""
    if benchmark_files.holds_sides(folder):
        return benchmark_files.read_sides(folder)
    if not any((folder / file).exists() for file in (MARK_FILE, store.PLAN_FILE)):
        return []
    measured = _comparisons(folder)
    return measured if len(measured) > 1 else []


def measurements_by_commit(folder: Path) -> dict[str, list[Measurement]]:
    """The benchmark files of a folder by their commit, as `Measurement.commit_name`. The earliest commit is first.

    Empty for a results folder.
    """
    files = (
        [] if (folder / store.PLAN_FILE).exists() else [benchmark_files.read(file) for file in benchmark_files.files_in(folder)]
    )
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
        if comparison_folders.isdisjoint(path.parents) and benchmark_files.is_benchmarks(path):
            yield _read_or_error(path)


def newest_sibling(baseline: Measurement) -> Measurement:
    """The newest measurement in the baseline's folder that came after it and has a row or benchmark of it."""
    folder = baseline.source.resolve().parent
    paths = [path for path in sorted(folder.iterdir()) if _is_kind(path, baseline.kind)]
    others = [_read_or_error(path) for path in paths if not _holds_sides(path)]
    for other in others:
        if isinstance(other, FolderError):
            raise FolderError(
                f"{other} It may be the newest measurement beside {baseline.source}: move it away, or name the head."
            )
    later = [other for other in others if isinstance(other, Measurement) and other.measured_at > baseline.measured_at]
    matching = [other for other in later if other.subjects.keys() & baseline.subjects.keys()]
    if not matching:
        raise FolderError(
            f"There is nothing to compare with {baseline.source}: {folder} holds nothing newer that shares a row or benchmark "
            "with it. Name the head."
        )
    return max(matching, key=lambda other: other.measured_at)


def _holds_sides(path: Path) -> bool:
    if benchmark_files.holds_sides(path):
        return True
    try:
        return any(contestant.base_of for contestant in store.read_plan(path).settings.contestants)
    except FolderError:  # reading it says why
        return False


def _is_kind(path: Path, kind: Kind) -> bool:
    if kind == "comparison" or (path / store.PLAN_FILE).exists():
        return kind == "comparison" and (path / store.PLAN_FILE).exists()
    return (
        bool(benchmark_files.files_in(path))
        if path.is_dir()
        else path.suffix == ".json" and benchmark_files.is_benchmarks(path)
    )


def _read_or_error(path: Path) -> Measurement | FolderError:
    try:
        return read(path)
    except FolderError as error:
        return error


def _comparisons(folder: Path) -> list[Measurement]:
    """Read a results folder: one measurement, or the base and the head of a measurement in turn."""
    if (folder / MARK_FILE).exists():
        return [read(folder / side) for side in (BASE, HEAD)]
    if not (folder / store.PLAN_FILE).exists():
        raise FolderError(
            f"{folder} holds no benchmark of pytest-benchmark and no comparison ({store.PLAN_FILE}). Save benchmarks there "
            "(pytest --benchmark-autosave), or name a folder that `run` printed."
        )
    stored, whole = store.read(folder), folder.resolve()
    if parts := sides.split(stored):
        base, head = (
            _comparison(part, Path(f"{folder}@{side}"), {"side": side, "measured_in": whole}) for side, part in parts.items()
        )
        return [base, _with_slice_ratios(head, parts[HEAD], parts[BASE])]
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
        planned_repeats=comparison.settings.repeats,
        measured_at=parse_time(comparison.created_at),
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


def _with_slice_ratios(measured: Measurement, head: StoredComparison, base: StoredComparison) -> Measurement:
    """Return the measurement of a head with the ratios of its slices to those of the base."""
    subjects = dict(measured.subjects)
    for row_id, runs in head.runs.items():
        pairs = {repeat: (run, other) for repeat, run in runs.items() if (other := base.runs[row_id].get(repeat)) is not None}
        ratios = {repeat: ratio for repeat, pair in pairs.items() if (ratio := slices.ratio(*pair)) is not None}
        subjects[row_id] = subjects[row_id].model_copy(update={"slice_ratios": ratios})
    return measured.model_copy(update={"subjects": subjects})


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
        spreads={name: spread_of(values) for name, values in samples.items()},
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
    return {name: spread_of(values) for name, values in milliseconds.items() if 2 * len(values) > profiled}


def _optional_time(value: Any) -> datetime | None:
    """Parse a time among facts of a machine, which no schema checks. None if it is missing or not a time."""
    try:
        return parse_time(value) if isinstance(value, str) else None
    except ValueError:
        return None

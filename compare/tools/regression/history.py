"""`convtwins history`: one figure over the measured commits, as table and plot."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.machine import machine
from compare.cli import commands, exits, wording
from compare.cli.commands import Outcome
from compare.cli.errors import FolderError
from compare.cli.option_parsing import parse_choices, split_names
from compare.cli.option_types import Parsed
from compare.cli.wording import one_line, visible
from compare.judgement import figures
from compare.judgement.statement_words import FILES_UNWATCHED
from compare.reporting import document
from compare.reporting.document import Report
from compare.reporting.plots import COLOURS, MARKERS, Drawing
from compare.reporting.screen import Paragraph, Screen
from compare.reporting.tables import Cell, Column, Table
from compare.results.workspace import FolderKind
from compare.running import options
from compare.statistics.statistics import Spread, spread
from compare.tools.regression import benchmark_files, measurements, revisions
from compare.tools.regression.measured import SECONDS, MeasuredSubject, Measurement
from compare.tools.regression.records import OF_BENCHMARKS, HistoryPoint, heading
from compare.tools.regression.revisions import RevisionError
from compare.tools.regression.samples import is_named, is_time

NAME = "history"
_DEFAULT = ("epoch_seconds", *OF_BENCHMARKS)
_LOG_RATIO = 10.0
"""Ratio of a plot's largest value to its smallest, above that its axis is logarithmic."""
_MAX_LEGEND_ENTRIES = 24
_NAME_WIDTH, _NARROW_NAME_WIDTH = 40, 26
"""Characters of a run's name on the first screen: alone, and beside its figure or machine."""


@dataclass(frozen=True, kw_only=True)
class HistoryReport(Report):
    """The report of a history. Its JSON is the list of its points."""

    points: Sequence[HistoryPoint]

    def to_json(self) -> str:
        return json.dumps([point.model_dump(mode="json") for point in self.points], indent=1, allow_nan=False)

    def write(self, folder: Path) -> str | None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a benchmark's name
            return super().write(folder)


def metrics_of(text: str) -> tuple[str, ...]:
    """Return the figures that `--metric` names."""
    return tuple(parse_choices("--metric", split_names(text), (*figures.metrics(), *OF_BENCHMARKS)))


@commands.command()
def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Holds results folders, or pytest-benchmark's files, or both.")],
    metric: Annotated[
        tuple[str, ...],
        Parsed(metrics_of),
        typer.Option(help=f"{options.METRIC} Of {', '.join(figures.metrics())}; of benchmarks: {', '.join(OF_BENCHMARKS)}."),
    ] = _DEFAULT,
    only: Annotated[str | None, typer.Option(help=options.ONLY)] = None,
    separate_files: Annotated[
        bool, typer.Option("--each", help="Each of pytest-benchmark's files, instead of one row a commit.")
    ] = False,
    out: options.OutOrNone = None,
) -> Outcome:
    """Show a figure over the measured commits, separately for each machine."""
    if out is not None and out.resolve() != folder.resolve():
        FolderKind[None](noun="history", allowed=document.report_files(NAME)).check(out)
    history_points, left_out, is_damaged = points(folder, metric, only, separate_files=separate_files)
    for line in left_out_lines(left_out):
        typer.echo(line, err=True)
    arguments = [] if metric == _DEFAULT else ["--metric", ",".join(metric)]
    for option, value in (("--only", only), ("--out", out)):
        arguments += [] if value is None else [option, str(value)]
    arguments += ["--each"] * separate_files
    return Outcome(report(history_points, folder, arguments, left_out, is_damaged=is_damaged), out)


def left_out_lines(reasons: Sequence[str]) -> list[str]:
    """Say why results were left out, each reason once."""
    return [f"Left out{f' ({times} times)' if times > 1 else ''}: {reason}" for reason, times in Counter(reasons).items()]


_DISTURBED = ": other work disturbed all of its runs, or may have"
_SIDE_COMMAND = "for base and head and for benchmarks, the command that made them"


def points(
    folder: Path,
    metrics: Sequence[str],
    only: str | None = None,
    *,
    separate_files: bool = False,
    repository: Path = machine.PROJECT_ROOT,
) -> tuple[list[HistoryPoint], list[str], bool]:
    """Every figure in a folder and its subfolders.

    Args:
        folder: holds results folders and benchmark files.
        metrics: names of `figures.metrics`, or those of benchmarks.
        only: a pattern of the ids of rows or benchmarks. None: all.
        separate_files: whether each benchmark file is a point, and not all of one commit together.
        repository: knows the times of commits, if it is a git checkout.

    Returns:
        The points, by machine, metric and name, then in the order of their commits; the reasons why measurements were left
        out; whether one of these is damaged.
    """
    if folder.is_file():
        raise FolderError(f"{folder} is a file. Name a folder that holds results folders or pytest-benchmark's files.")
    if not folder.is_dir():
        raise FolderError(f"There is no folder {folder}. Name one that holds results folders or pytest-benchmark's files.")
    results = list(measurements.read_all_in(folder))
    if not results:
        raise FolderError(
            f"{folder} holds no results folder and no file of pytest-benchmark. Name a folder that holds some, e.g. results."
        )
    complete = [result for result in results if isinstance(result, Measurement)]
    measured = complete if separate_files else _by_commit(complete)
    unique_points = {
        (point.machine, point.name, point.metric, point.commit, *point.when, point.value): point
        for point in _all_points(measured, metrics, only, repository)
    }
    disturbed = list(_disturbed(measured, metrics, only))
    left_out = [*_set_aside(results), *(f"{what}{_DISTURBED}" for what, _ in disturbed)]
    if not unique_points:
        received = "; ".join(dict.fromkeys(left_out)) or f"{len(measured)} measurements were read"
        raise FolderError(_nothing_measured(folder, metrics, received, sorted({rerun for _, rerun in disturbed})))
    ordered = sorted(
        unique_points.values(), key=lambda point: (point.machine, metrics.index(point.metric), point.name, point.when)
    )
    return ordered, left_out, any(isinstance(result, FolderError) or result.is_damaged for result in results)


def _subjects(measurement: Measurement, only: str | None) -> list[MeasuredSubject]:
    """Return the rows or benchmarks whose id matches the pattern, if there is one."""
    return [subject for subject in measurement.subjects.values() if is_named(subject.id, only)]


def _all_points(
    measured: Sequence[Measurement], metrics: Sequence[str], only: str | None, repository: Path
) -> Iterator[HistoryPoint]:
    """Yield a point of each figure that is reliable."""
    commit_times = _commit_times({measurement.commit for measurement in measured if measurement.commit}, repository)
    names = _names(measured)
    for measurement, machine_name in zip(measured, _machines(measured), strict=True):
        for subject, metric in itertools.product(_subjects(measurement, only), metrics):
            if (value := _reliable(subject, metric)) is not None:
                yield HistoryPoint(
                    machine=machine_name if subject.device in (None, "cpu") else f"{machine_name}, {subject.device}",
                    name=names[_key(measurement, subject)],
                    metric=metric,
                    commit=measurement.commit,
                    dirty=measurement.dirty,
                    committed_at=measurement.committed_at or commit_times.get(measurement.commit or ""),
                    measured_at=measurement.measured_at,
                    value=value,
                    of="repeats" if measurement.kind == "comparison" else "files" if subject.saved_at else "rounds",
                    source=str(measurement.source),
                )


def _disturbed(measured: Sequence[Measurement], metrics: Sequence[str], only: str | None) -> Iterator[tuple[str, str]]:
    """Yield (figure, command that measures it again) of each figure without a reliable value."""
    for measurement in measured:
        source = measurement.source
        again = wording.command("run", "--resume", str(source), "--again", "disturbed")
        for subject, metric in itertools.product(_subjects(measurement, only), metrics):
            if metric in subject.spreads and _reliable(subject, metric) is None:
                what = f"{subject.name} of {source}: {heading(metric)}"
                yield what, _SIDE_COMMAND if measurement.side or measurement.kind == "benchmarks" else again


def _set_aside(results: Sequence[Measurement | FolderError]) -> Iterator[str]:
    """Yield the reasons why results could not be used."""
    for result in results:
        if isinstance(result, Measurement):
            yield from (f"{result.source}: {reason}" for reason in result.set_aside)
        else:
            yield str(result)


def _nothing_measured(folder: Path, metrics: Sequence[str], received: str, reruns: Sequence[str]) -> str:
    """Return the message of a folder without a point."""
    subject = f"{folder} holds no measurement of {', '.join(metrics)}"
    if not reruns:
        return f"{subject} that matches ({received}). Measure one, or ask for another."
    return (
        f"{subject} that is surely undisturbed. Received: {received}. "
        f"Make the runs again on an idle machine: {'; '.join(reruns)}. "
        "Or ask for another figure, such as --metric test_accuracy."
    )


def _by_commit(measured: Sequence[Measurement]) -> list[Measurement]:
    """Merge the benchmark files of one commit, machine and versions, each copy once. Leave other measurements as they are.

    Files without such a commit stay too, because they may have measured any code.
    """
    groups: dict[str, list[Measurement]] = {}
    for measurement, machine_name in zip(measured, _machines(measured), strict=True):
        is_mergeable = measurement.kind == "benchmarks" and measurement.names_its_code
        key = json.dumps(
            [measurement.commit, machine_name, measurement.versions] if is_mergeable else str(measurement.source),
            sort_keys=True,
        )
        group = groups.setdefault(key, [])
        if not any((measurement.measured_at, measurement.subjects) == (other.measured_at, other.subjects) for other in group):
            group.append(measurement)
    return [
        group[0]
        if len(group) == 1
        else benchmark_files.merge(
            Path(f"{os.path.commonpath([measurement.source.parent for measurement in group])}@{commit[:8]}"), group
        )
        for group in groups.values()
        for commit in [group[0].commit or ""]
    ]


def _reliable(subject: MeasuredSubject, metric: str) -> Spread | None:
    """A figure without the times of runs that other work disturbed, see `regress`."""
    if not is_time(metric) or not subject.unreliable_repeats:
        return subject.spreads.get(metric)
    return spread(
        [value for repeat, value in subject.samples.get(metric, {}).items() if repeat not in subject.unreliable_repeats]
    )


def _machines(measured: Sequence[Measurement]) -> list[str]:
    """The name of each machine. Several machines of one name are distinguished as in `regress`."""
    by_name: dict[str, list[Measurement]] = {}
    places: list[int] = []
    for measurement in measured:
        known = by_name.setdefault(measurement.machine_name, [])
        same = [place for place, other in enumerate(known) if not machine.differences(other.machine, measurement.machine)]
        places.append(same[0] if same else len(known))
        known += [] if same else [measurement]

    def name_of(measurement: Measurement, place: int) -> str:
        if len(same_name := by_name[measurement.machine_name]) == 1:
            return measurement.machine_name
        host = same_name[place].machine.get("host")
        return f"{measurement.machine_name}, machine {place + 1}{f' (host {host[:8]})' if host else ''}"

    return list(map(name_of, measured, places))


def _key(measured: Measurement, subject: MeasuredSubject) -> tuple[str, str]:
    """Return the identity of a row or benchmark over time: its name and its settings."""
    return subject.id, json.dumps([subject.work, measured.data_hash], sort_keys=True)


def _names(measured: Sequence[Measurement]) -> dict[tuple[str, str], str]:
    """Return a name for each row or benchmark. A digest is added where only finer settings differ."""
    names: dict[tuple[str, str], str] = {}
    for measurement in measured:
        for subject in measurement.subjects.values():
            spec = subject.spec
            description = f": {spec.model} on {measurement.data_name}, batch {spec.global_batch_size}" if spec else ""
            names[_key(measurement, subject)] = f"{subject.name}{description}"
    all_names = list(names.values())
    return {key: name if all_names.count(name) == 1 else f"{name} [{_digest(repr(key), 4)}]" for key, name in names.items()}


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _commit_times(commits: set[str], repository: Path) -> dict[str, datetime]:
    """Return the times of the commits that git knows there."""
    ids = sorted(commit for commit in commits if re.fullmatch("[0-9a-f]{40,64}", commit))  # a file may say anything
    if not ids or not (repository / ".git").exists():
        return {}
    try:
        answer = revisions.git("log", "--no-walk", "--ignore-missing", "--format=%H %cI", *ids, at=repository)
    except RevisionError:
        return {}
    return {commit: datetime.fromisoformat(time) for commit, time in map(str.split, answer.stdout.splitlines())}


def report(
    points: Sequence[HistoryPoint],
    folder: Path,
    arguments: Sequence[str] = (),
    left_out: Sequence[str] = (),
    *,
    is_damaged: bool = False,
) -> HistoryReport:
    """A table and a plot for each machine and metric.

    Args:
        points: at least one.
        folder: the folder that holds the points.
        arguments: the other words of the command.
        left_out: reasons why measurements were left out.
        is_damaged: whether one of these is damaged. Then the exit code is 1.
    """
    tables: list[Table] = []
    drawings: dict[str, Drawing] = {}
    for machine_name, metric in dict.fromkeys((point.machine, point.metric) for point in points):
        series = [point for point in points if (point.machine, point.metric) == (machine_name, metric)]
        name = f"history-{metric}-{_digest(machine_name, 8)}"
        tables.append(history_table(series, name))
        drawings[name] = partial(_draw, series)
    return HistoryReport(
        points=points,
        exit_code=exits.RUN_FAILED if is_damaged else 0,
        title="Figures over commits",
        name=NAME,
        facts=[f"{len(points)} measurements in {folder}"],
        tables=tables,
        drawings=drawings,
        commands=[("This report:", f"{document.COMPARE} {wording.shell(['history', str(folder), *arguments])}")],
        screen=_screen(points, folder, [*["Exit code 1: something is damaged."] * is_damaged, *dict.fromkeys(left_out)]),
    )


def _screen(points: Sequence[HistoryPoint], folder: Path, trouble: Sequence[str]) -> Screen:
    """The first and the latest measurement of each figure. What lies between stands in the tables."""
    lines: dict[tuple[str, str, str], list[HistoryPoint]] = {}
    for point in points:
        lines.setdefault((point.machine, point.metric, point.name), []).append(point)
    machines, metrics = (list(dict.fromkeys(key[place] for key in lines)) for place in (0, 1))
    commits = {point.commit_name for point in points}
    width = _NAME_WIDTH if len(metrics) == len(machines) == 1 else _NARROW_NAME_WIDTH
    columns = [
        *([Column("metric", "figure")] if len(metrics) > 1 else []),
        *(Column(key, key) for key in ("run", "latest", "first", "n")),
        *([Column("machine", "machine")] if len(machines) > 1 else []),
    ]
    rows: list[dict[str, Cell]] = [
        {
            "metric": heading(metric),
            "run": wording.shortened(name, width),
            "latest": _measured(series[-1]),
            "first": _measured(series[0]) if len(series) > 1 else None,
            "n": len(series),
            "machine": wording.shortened(machine_name, 14),
        }
        for (machine_name, metric, name), series in lines.items()
    ]
    return Screen(
        subject=[
            f"How did {wording.joined(list(map(heading, metrics)))} change?",
            f"{wording.count(len(points), 'measurement')} in {folder}",
            *(machines if len(machines) == 1 else []),
        ],
        answers=[
            Paragraph("Span", [f"{wording.count(len(commits), 'commit')}, in their order. *: with uncommitted changes."]),
            Paragraph(
                "How sure",
                [
                    "Medians of runs that other work did not disturb. Nothing is judged: regress compares two measurements.",
                    *[FILES_UNWATCHED] * (SECONDS in metrics),
                ],
            ),
            *([Paragraph("Trouble", trouble, "bad")] if trouble else []),
        ],
        table=Table("latest", "Latest and first of n measurements", tuple(columns), rows),
        next=_next(lines.values()),
    )


def _measured(point: HistoryPoint) -> str:
    """`2.01 at 1a2b3c4d`."""
    median = point.value.median
    return f"{f'{median:.0f}' if abs(median) >= 1000 else f'{median:.4g}'} at {point.commit_name}"


def _next(lines: Iterable[Sequence[HistoryPoint]]) -> list[tuple[str, str]]:
    """The command that judges the latest change of the first run that has one."""
    for series in lines:
        if len(series) > 1 and series[-1].of != "rounds" != series[-2].of and series[-1].source != series[-2].source:
            return [("latest change", wording.command("regress", series[-2].source, series[-1].source))]
    return []


def history_table(points: Sequence[HistoryPoint], name: str) -> Table:
    """The points of one machine and metric, row by row in the order of the commits."""
    smallest = min((point.value.median for point in points if point.value.median > 0), default=1.0)
    three_digits = min(max(2 - math.floor(math.log10(smallest)), 0), 9)
    title = heading(points[0].metric)
    columns = (
        Column("run", "run"),
        Column("commit", "commit"),
        Column("value", title, three_digits, interval=True),
        Column("n", "n"),
        Column("measured", "measured"),
        *([Column("committed", "committed", wide=True)] if any(point.committed_at for point in points) else []),
    )
    rows: list[dict[str, Cell]] = [
        {
            "run": point.name,
            "commit": point.commit_name,
            "value": point.value,
            "n": point.value.n if point.of == "repeats" else wording.count(point.value.n, point.of.removesuffix("s")),
            "measured": f"{point.measured_at:%Y-%m-%d}",
            "committed": None if point.committed_at is None else f"{point.committed_at:%Y-%m-%d}",
        }
        for point in points
    ]
    is_of_files = points[0].metric in OF_BENCHMARKS
    counted = "n files of the same versions, each its median, or of the rounds of one file" if is_of_files else "n repeats"
    note = f"Median (25 % to 75 % quantile) of {counted}, in the order of the commits. *: with uncommitted changes."
    if is_of_files:
        note += (
            f" {FILES_UNWATCHED} --each shows each file. Those without a commit, or with changes, always stand alone: nothing "
            "says that they measured the same code."
        )
    return Table(name, one_line(f"{title} on {points[0].machine}"), columns, rows, note=note)


def _draw(points: Sequence[HistoryPoint], figure: Figure) -> bool:
    """Points of one commit are above each other. A point without a commit is alone."""
    names = list(dict.fromkeys(point.name for point in points))
    figure.set_size_inches(9, 4.5 + 0.2 * min(len(names), _MAX_LEGEND_ENTRIES))
    axis: Axes = figure.subplots()
    ordered = sorted(points, key=lambda point: point.when)
    commits = list(dict.fromkeys((point.commit_name, point.when[0]) for point in ordered))
    for index, name in enumerate(names):
        series = [point for point in ordered if point.name == name]
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index // len(COLOURS) % len(MARKERS)]
        xs = [commits.index((point.commit_name, point.when[0])) for point in series]
        values = [point.value for point in series]
        medians = [value.median for value in values]
        whiskers = [[value.median - value.low for value in values], [value.high - value.median for value in values]]
        axis.errorbar(xs, medians, yerr=whiskers, color=colour, capsize=3, linewidth=1.5)
        axis.plot([], [], color=colour, marker=marker, label=visible(name) if index < _MAX_LEGEND_ENTRIES else None)
        faces = ["white" if point.dirty else colour for point in series]
        axis.scatter(xs, medians, marker=marker, edgecolors=colour, c=faces, zorder=3)
    medians = [point.value.median for point in ordered]
    if min(medians) > 0 and max(medians) / min(medians) > _LOG_RATIO:
        axis.set_yscale("log")
    elif min(medians) >= 0:
        axis.set_ylim(0, None)
    axis.set_xticks(range(len(commits)), [visible(commit) for commit, _ in commits], rotation=45, ha="right", fontsize=8)
    axis.set_title(f"{heading(points[0].metric)} (median, quartiles)\n{visible(points[0].machine)}")
    axis.set_xlabel("commit (hollow, *: with uncommitted changes)")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return True

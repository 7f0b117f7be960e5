"""`python -m compare history`: one figure over the commits that it was measured at, as table and plot."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
import re
import warnings
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import typer
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.text import Text

from common.frozen import Frozen
from common.machine import machine
from compare.core import exits, terminal, wording
from compare.core.errors import FolderError
from compare.core.option_parsing import chosen, names
from compare.core.statistics import Spread, spread
from compare.core.wording import visible
from compare.judgement import measurements
from compare.judgement.measurements import METRICS, SECONDS, TIMES, Measured, Subject
from compare.regression import revisions
from compare.regression.revisions import RevisionError
from compare.reporting import plots, tables
from compare.reporting.plots import COLOURS, MARKERS
from compare.reporting.tables import Column, Table

_DEFAULT = ("epoch_seconds", SECONDS)
_LOG_FROM = 10.0
"""A plot's axis is logarithmic if its largest value is this many times the smallest."""
_LEGEND_AT_MOST = 24


class Point(Frozen):
    """One figure of one row or benchmark at one commit."""

    machine: str
    name: str
    """What the row or benchmark did."""
    metric: str
    commit: str | None
    dirty: bool
    committed_at: datetime | None
    """None if neither the file nor git knows."""
    measured_at: datetime
    value: Spread
    source: str

    @property
    def when(self) -> tuple[datetime, datetime]:
        """Its place in time: the commit's time, then its own among those of one commit."""
        return self.committed_at or self.measured_at, self.measured_at

    @property
    def commit_name(self) -> str:
        return f"{self.commit[:8]}{'*' if self.dirty else ''}" if self.commit else "no commit"


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Holds results folders, or pytest-benchmark's files, or both.")],
    metric: Annotated[
        str, typer.Option(help=f"Which, with commas, of {', '.join(METRICS)}; {SECONDS} of benchmarks.")
    ] = ",".join(_DEFAULT),
    only: Annotated[str | None, typer.Option(help="Rows or benchmarks whose id matches, e.g. 'pytorch-*'.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the plots. Default: DIR.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the points as JSON.")] = False,
) -> None:
    """Show a figure over the commits at which it was measured, separately for each machine."""
    with exits.told():
        wanted = chosen("--metric", names(metric), (*METRICS, SECONDS))
        found, left_out = points(folder, wanted, only)
    for reason in left_out:
        typer.echo(f"Left out: {reason}", err=True)
    drawn = draw(found, out or folder)
    if as_json:
        typer.echo(json.dumps([point.model_dump(mode="json") for point in found], indent=1, allow_nan=False))
        return
    console = terminal.stdout()
    for table in history_tables(found):
        console.print(tables.to_rich(table, console.width))
        console.print(Text(tables.note_on_terminal(table, console.width, "--json"), style="dim"))
        console.print()
    console.print(Text(f"Plots: {', '.join(map(str, drawn))}"), soft_wrap=True)


def points(folder: Path, metrics: Sequence[str], only: str | None = None) -> tuple[list[Point], list[str]]:
    """Every figure in a folder and its subfolders.

    Args:
        folder: of results folders and benchmark files.
        metrics: of METRICS, or SECONDS.
        only: a pattern of the ids of rows or benchmarks; None: all.

    Returns:
        The points, by machine, metric and name, then in the order of their commits; and why something cannot be read.

    Raises:
        FolderError: there is no figure.
    """
    if not folder.is_dir():
        raise FolderError(f"There is no folder {folder}. Name one that holds results folders or pytest-benchmark's files.")
    measured: list[Measured] = []
    left_out: list[str] = []
    for each in measurements.read_all(folder):
        if isinstance(each, Measured):
            measured.append(each)
            left_out += [f"{each.source}: {reason}" for reason in each.set_aside]
        else:
            left_out.append(str(each))
    known = _commit_times(sorted({each.commit for each in measured if each.commit}))
    names, machines = _names(measured), _machines(measured)
    made = [
        Point(
            machine=on if subject.device in (None, "cpu") else f"{on}, {subject.device}",
            name=names[_key(each, subject)],
            metric=metric,
            commit=each.commit,
            dirty=each.dirty,
            committed_at=each.committed_at or known.get(each.commit or ""),
            measured_at=each.measured_at,
            value=value,
            source=str(each.source),
        )
        for each, on in zip(measured, machines, strict=True)
        for subject in each.subjects.values()
        if only is None or fnmatch.fnmatchcase(subject.id, only)
        for metric in metrics
        if (value := _reliable(subject, metric)) is not None
    ]
    left_out += [
        f"{subject.name} of {each.source}: {_heading(metric)}: other work disturbed all of its runs, or may have"
        for each in measured
        for subject in each.subjects.values()
        if only is None or fnmatch.fnmatchcase(subject.id, only)
        for metric in metrics
        if metric in subject.spreads and _reliable(subject, metric) is None
    ]
    made = list({(point.machine, point.name, point.metric, *point.when, point.value): point for point in made}.values())
    if not made:
        read = "; ".join(left_out) or f"{len(measured)} measurements were read"
        raise FolderError(
            f"{folder} holds no measurement of {', '.join(metrics)} that matches ({read}). Measure one, or ask for another."
        )
    return sorted(made, key=lambda point: (point.machine, metrics.index(point.metric), point.name, point.when)), left_out


def _reliable(subject: Subject, metric: str) -> Spread | None:
    """The reliable values of a figure. Times of runs that other work disturbed are left out, see `regress`."""
    if metric not in TIMES or not subject.in_doubt:
        return subject.spreads.get(metric)
    return spread([value for repeat, value in subject.samples.get(metric, {}).items() if repeat not in subject.in_doubt])


def _machines(measured: Sequence[Measured]) -> list[str]:
    """The name of each machine. Several machines of one name are distinguished as in `regress`."""
    alike: dict[str, list[Measured]] = {}
    number: list[int] = []
    for each in measured:
        seen = alike.setdefault(each.machine_name, [])
        same = [place for place, other in enumerate(seen) if not machine.differences(other.machine, each.machine)]
        if not same:
            seen.append(each)
        number.append(same[0] if same else len(seen) - 1)

    def named(each: Measured, place: int) -> str:
        if len(alike[each.machine_name]) == 1:
            return each.machine_name
        host = alike[each.machine_name][place].machine.get("host")
        return f"{each.machine_name}, machine {place + 1}{f' (host {host[:8]})' if host else ''}"

    return [named(each, place) for each, place in zip(measured, number, strict=True)]


def history_tables(points: Sequence[Point]) -> list[Table]:
    """One table for each machine and metric, with the points of a row below each other."""
    made: list[Table] = []
    for machine_name, metric, own in _groups(points):
        heading = _heading(metric)
        columns = (
            Column("run", "run"),
            Column("commit", "commit"),
            Column("value", heading, _digits(own), interval=True),
            Column("n", "n"),
            Column("measured", "measured"),
            *([Column("committed", "committed", wide=True)] if any(point.committed_at for point in own) else []),
        )
        rows: list[dict[str, tables.Cell]] = [
            {
                "run": point.name,
                "commit": point.commit_name,
                "value": point.value,
                "n": point.value.n,
                "measured": f"{point.measured_at:%Y-%m-%d}",
                "committed": None if point.committed_at is None else f"{point.committed_at:%Y-%m-%d}",
            }
            for point in own
        ]
        note = (
            "Median (25 % to 75 % quantile) of n repeats or rounds; in the order of the commits. *: with changes in no commit."
        )
        made.append(Table(f"history_{metric}", wording.one_line(f"{heading} on {machine_name}"), columns, rows, note=note))
    return made


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    """A plot for each machine and metric, as `history-<metric>-<machine>` in every format."""
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    with mpl.rc_context(plots.SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a benchmark's name
        for machine_name, metric, own in _groups(points):
            names = list(dict.fromkeys(point.name for point in own))
            figure = Figure(figsize=(9, 4.5 + 0.2 * min(len(names), _LEGEND_AT_MOST)), layout="constrained")
            FigureCanvasAgg(figure)
            _draw(figure, own, names, f"{_heading(metric)} (median, quartiles)\n{visible(machine_name)}")
            digest = hashlib.sha256(machine_name.encode()).hexdigest()[:8]
            files += plots.save(figure, folder, f"history-{metric}-{digest}")
    return files


def _draw(figure: Figure, points: Sequence[Point], names: Sequence[str], title: str) -> None:
    axis: Axes = figure.subplots()
    ordered = sorted(points, key=lambda point: point.when)
    places = {place: index for index, place in enumerate(dict.fromkeys(map(_place, ordered)))}
    for index, name in enumerate(names):
        own = [point for point in ordered if point.name == name]
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index // len(COLOURS) % len(MARKERS)]
        xs = [places[_place(point)] for point in own]
        medians = [point.value.median for point in own]
        whiskers = [
            [point.value.median - point.value.low for point in own],
            [point.value.high - point.value.median for point in own],
        ]
        axis.errorbar(xs, medians, yerr=whiskers, color=colour, capsize=3, linewidth=1.5)
        faces = ["white" if point.dirty else colour for point in own]
        label = visible(name) if index < _LEGEND_AT_MOST else None
        axis.plot([], [], color=colour, marker=marker, label=label)
        axis.scatter(xs, medians, marker=marker, edgecolors=colour, c=faces, zorder=3)
    values = [point.value.median for point in ordered]
    if min(values) > 0 and max(values) / min(values) > _LOG_FROM:
        axis.set_yscale("log")
    elif min(values) >= 0:
        axis.set_ylim(0, None)
    axis.set_xticks(range(len(places)), [visible(commit) for commit, _ in places], rotation=45, ha="right", fontsize=8)
    axis.set_title(title)
    axis.set_xlabel("commit (hollow, *: with changes in no commit)")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)


def _place(point: Point) -> tuple[str, datetime]:
    """Where a point stands: points of one commit stand above one another. A point without a commit stands alone."""
    return point.commit_name, point.when[0]


def _groups(points: Sequence[Point]) -> list[tuple[str, str, list[Point]]]:
    keys = dict.fromkeys((point.machine, point.metric) for point in points)
    return [(*key, [point for point in points if (point.machine, point.metric) == key]) for key in keys]


def _key(measured: Measured, subject: Subject) -> tuple[str, str]:
    """Identifies one thing over time: its name and its settings."""
    return subject.id, json.dumps([subject.work, measured.data_hash], sort_keys=True)


def _names(measured: Sequence[Measured]) -> dict[tuple[str, str], str]:
    """A name for each. A digest is added where only finer settings differ."""
    wanted: dict[tuple[str, str], str] = {}
    for each in measured:
        for subject in each.subjects.values():
            spec = subject.spec
            did = f": {spec.model} on {each.data_name}, batch {spec.global_batch_size}" if spec else ""
            wanted[_key(each, subject)] = f"{subject.name}{did}"
    said = list(wanted.values())
    return {
        key: name if said.count(name) == 1 else f"{name} [{hashlib.sha256(repr(key).encode()).hexdigest()[:4]}]"
        for key, name in wanted.items()
    }


def _commit_times(commits: Sequence[str]) -> dict[str, datetime]:
    """When the commits that git knows here were made."""
    commits = [commit for commit in commits if re.fullmatch("[0-9a-f]{40,64}", commit)]  # a file may say anything
    if not commits or not (machine.PROJECT_ROOT / ".git").exists():
        return {}
    try:
        said = revisions.git("log", "--no-walk", "--ignore-missing", "--format=%H %cI", *commits)
    except RevisionError:
        return {}
    pairs = [line.split() for line in said.stdout.splitlines()]
    return {commit: datetime.fromisoformat(time) for commit, time in pairs}


def _heading(metric: str) -> str:
    return "seconds a round" if metric == SECONDS else METRICS[metric].heading


def _digits(points: Sequence[Point]) -> int:
    """Decimals that show three digits of the smallest median."""
    smallest = min((point.value.median for point in points if point.value.median > 0), default=1.0)
    return min(max(2 - math.floor(math.log10(smallest)), 0), 9)

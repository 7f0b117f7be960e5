"""What every published report has here: its runs as they were made and as they should be, its tables and its claims."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from common import spec
from common.artifacts.schema import EpochRecord, RunResult
from common.frozen import Frozen
from common.spec import Spec
from compare.data import preprocess
from compare.evaluation.final_training import Evaluated, Evaluation
from compare.execution import matrix
from compare.execution.matrix import Row
from compare.execution.store import flat
from compare.judgement.summary import Summary
from compare.reporting.content import COMPARE, Report
from compare.reporting.tables import Cell, Column, Table
from compare.tuning.records import Tuned, Tuning

FOLDER = Path(__file__).parent

SMOKE = "smoke"
SCALES = (SMOKE, "quick", "full")

CORRECTED = "corrected"
"""Name of the training with the corrected runs."""

Verdict = Literal["reproduced", "not reproduced", "contradicted by the paper's own table", "cannot be told here"]

FAILED = "the run failed here: see the cautions"
"""Why cells of an unfinished run are open."""

_File = TypeVar("_File", bound="Published")


class Published(Frozen):
    """What every report's file holds."""

    title: str
    dataset: str
    classes: int
    """Number of classes of the data set."""
    model: str
    claims: dict[str, str]
    """Its sentences, by the name of the judgement."""
    caveats: list[str]
    """Errors found in it."""


def read(name: str, kind: type[_File]) -> _File:
    """The figures of a report, from `<name>.yaml` beside this file."""
    return kind.model_validate(yaml.safe_load((FOLDER / f"{name}.yaml").read_text("utf-8")))


@dataclass(frozen=True)
class Wanted:
    """The data of a report, as everybody can download them."""

    names: tuple[str, ...]
    """Names of folders, or of archives without their suffix, to look for in the cache folder."""
    what: str
    """What to download, its size and its layout."""


@dataclass(frozen=True)
class Claim:
    """One sentence of a report, judged."""

    name: str
    said: str
    verdict: Verdict
    evidence: list[str]


@dataclass(frozen=True)
class Training:
    """Rows that share their data: one comparison, in a folder of its own."""

    name: str
    title: str
    rows: list[Row]
    repeats: int = 1
    seeds: tuple[int, ...] = ()
    prove: bool = False
    replicas: int = 2
    oversubscribe: bool = False


@dataclass(frozen=True)
class Plan:
    """Everything that is run for a report at one scale."""

    faithful: list[Training]
    """The published runs as they were really made."""
    corrected: Training
    """The same question, with corrected runs."""
    chosen: list[str]
    """Settings that the report does not state, and that were chosen here."""
    departs: list[str]
    """How even the faithful runs differ from the report's, at this scale, on this machine."""
    scans: preprocess.Request | None = None
    tuning: Tuning | None = None
    final: Callable[[dict[str, dict[str, Any]]], Evaluation] | None = None
    """The final training, of the best fields by framework."""

    @property
    def base(self) -> Spec:
        """The spec of the first of the published runs."""
        return self.faithful[0].rows[0].spec


@dataclass(frozen=True)
class Setting:
    """The inputs of a plan."""

    scale: str
    source: str
    """Of the data."""
    gpus: int
    """GPUs that every framework of the report sees here."""
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Spec fields for all runs. They override the report's."""
    made_up: bool = False
    """Whether the data are the report's embedded ones, by default."""

    def row(self, name: str, framework: str, fields: Mapping[str, Any]) -> Row:
        """One run, from dotted fields of the spec."""
        return Row(id=name, framework=framework, spec=spec.build(self.overlaid(fields)))

    def overlaid(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Nested values of dotted fields, with the data's source and the caller's settings."""
        return spec.overlay(spec.overlay({}, {**fields, "data.source": self.source}), flat(dict(self.values)))

    def corrected(
        self, fields: Mapping[str, Any], *, frameworks: Sequence[str], seeds: int, replicas: int = 2, prove: bool = True
    ) -> Training:
        """Serial and data-parallel runs of one spec, a seed for each repeat, on one division of the data."""
        values = self.overlaid({"data.seed": 0, **fields})
        rows = matrix.rows(values, frameworks, ("serial", "data_parallel"), replicas)
        if self.scale != "full":  # the reports do not use one core
            most = max(row.spec.cores for row in rows if row.spec.mode != "serial")
            rows = [row for row in rows if row.spec.cores == most]
        return Training(
            CORRECTED,
            "The same question, asked of identical models",
            rows,
            repeats=seeds,
            seeds=tuple(range(seeds)),
            prove=prove,
            replicas=replicas,
        )


@dataclass(frozen=True)
class Here:
    """What was found here."""

    setting: Setting
    plan: Plan
    trainings: dict[str, Report]
    """By name, with the corrected one."""
    folders: dict[str, Path]
    """Of the trainings."""
    scans: list[dict[str, Any]] | None = None
    """Rows of the preprocessing, as `preprocess.to_rows` has them."""
    tuned: Tuned | None = None
    evaluated: Evaluated | None = None
    final_epoch: EpochRecord | None = None
    """Whose weights the final training kept."""

    def summary(self, training: str, row: str) -> Summary | None:
        """A row of a training. None if it is missing, or no run finished."""
        report = self.trainings.get(training)
        found = [each for each in report.summaries if each.id == row] if report else []
        return found[0] if found and found[0].repeats_done else None

    def runs(self, training: str, row: str) -> dict[int, RunResult]:
        """The good runs of a row, by repeat."""
        report = self.trainings.get(training)
        kept = report.stored.runs.get(row, {}) if report else {}
        return {repeat: run for repeat, run in sorted(kept.items()) if run.status in ("ok", "not parallel")}

    def epoch_seconds(self, training: str, row: str, images: int) -> float | None:
        """Seconds of an epoch of so many images, at the measured pace."""
        found = self.summary(training, row)
        pace = found.images_per_second if found else None
        return images / pace.median if pace else None


class Paper(Protocol):
    """A report; a module of this package each."""

    @property
    def NAME(self) -> str: ...  # noqa: N802  # a module's constant, as are the three below

    @property
    def FRAMEWORKS(self) -> tuple[str, ...]:  # noqa: N802
        """Frameworks of its runs."""
        ...

    @property
    def EMBEDDED(self) -> str:  # noqa: N802
        """Data that are made here, for the smallest scale."""
        ...

    @property
    def WANTED(self) -> Wanted: ...  # noqa: N802

    def published(self) -> Published:
        """Its figures."""
        ...

    def images(self) -> int:
        """Images that most of its runs trained on."""
        ...

    def hardware(self) -> str:
        """Hardware of its runs."""
        ...

    def knows(self, class_name: str) -> bool:
        """Whether its data have a class of this name."""
        ...

    def plan(self, setting: Setting) -> Plan:
        """The runs at a scale."""
        ...

    def tables(self, here: Here) -> list[Table]:
        """Its tables, each cell with the paper's figure and the one found here."""
        ...

    def claims(self, here: Here) -> list[Claim]:
        """A verdict for each of its claims."""
        ...

    def draw(self, figure: Figure, here: Here) -> None:
        """Its curves, with those found here over them."""
        ...


@dataclass(frozen=True)
class Compared:
    """One figure of a table, as published and as found here."""

    paper: float | None
    here: float | None
    alike: bool = True
    """Whether both are of the same thing, so that their ratio has a meaning."""


@dataclass(frozen=True)
class Kind:
    """A column of a published table."""

    key: str
    heading: str
    digits: int


def epoch_axes(figure: Figure) -> tuple[Axes, Axes]:
    """Two axes side by side, over epochs."""
    left, right = figure.subplots(1, 2)
    for axis in (left, right):
        axis.set_xlabel("epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    return left, right


def beside(
    name: str,
    title: str,
    labels: Sequence[Column],
    kinds: Sequence[Kind],
    rows: Sequence[tuple[Mapping[str, Cell], Mapping[str, Compared], str | None]],
    note: str = "",
) -> Table:
    """A published table. Each cell has the paper's figure, the one found here, and their ratio (found / paper).

    Args:
        name: of its files.
        title: of the table.
        labels: columns that tell the rows apart.
        kinds: of the figures.
        rows: labels, figures by key, and why one that is missing here is open.
        note: below the table.
    """
    columns = [*labels]
    for kind in kinds:
        columns += [
            Column(f"{kind.key}_paper", f"{kind.heading}, paper", kind.digits),
            Column(f"{kind.key}_here", f"{kind.heading}, here", kind.digits),
            Column(f"{kind.key}_ratio", f"{kind.heading}, here / paper", 3),
        ]
    made: list[dict[str, Cell]] = []
    for label, figures, reason in rows:
        cells: dict[str, Cell] = dict(label)
        for key, each in figures.items():
            cells[f"{key}_paper"], cells[f"{key}_here"] = each.paper, each.here
            cells[f"{key}_ratio"] = each.here / each.paper if each.alike and each.here is not None and each.paper else None
        is_open = any(each.here is None and each.paper is not None for each in figures.values())
        made.append(cells | {"open": reason if is_open else None})
    if any(row["open"] for row in made):
        columns.append(Column("open", "open because", fold=40))
    return Table(name, title, tuple(columns), made, note=note)


def arithmetic(name: str, checks: Sequence[tuple[str, float, float, int]]) -> Table:
    """Figures that a report states beside what its own tables give.

    Args:
        name: of the report.
        checks: what, as stated, as worked out, digits behind the point in which it is stated.
    """
    columns = (
        Column("what", "figure"),
        Column("stated", "as stated"),
        Column("worked_out", "from its own tables"),
        Column("agrees", "agrees"),
    )

    def shown(figure: float, digits: int) -> float:
        return round(figure, digits) if digits else round(figure)

    rows: list[dict[str, Cell]] = [
        {
            "what": what,
            "stated": shown(stated, digits),
            "worked_out": shown(found, digits),
            "agrees": "yes" if agrees(stated, found, digits) else "NO",
        }
        for what, stated, found, digits in checks
    ]
    note = "Agrees: up to one in the last digit shown, for reports round, and cut off."
    return Table(f"arithmetic_{name}", "The paper's own arithmetic", columns, rows, note=note)


def agrees(stated: float, found: float, digits: int) -> bool:
    """Whether a figure is stated as it is found, up to one in its last digit: reports round or truncate."""
    return abs(stated - found) < 10.0**-digits


def there(name: str, setting: Setting, gpus: int, *, scale: str | None = None) -> str:
    """What a cell needs that is open for want of GPUs, and the command that fills it there, at this scale or another."""
    return f"needs {gpus} GPUs; there: {command(name, setting, scale or setting.scale)}"


def beyond(name: str, setting: Setting, epochs: int) -> str:
    """Why cells after the last epoch that was run are open, and the command that fills them."""
    return not_at(name, setting, f"behind epoch {epochs} of scale {setting.scale}") if epochs else FAILED


def not_at(name: str, setting: Setting, why: str, *, filled_at: str = SCALES[-1]) -> str:
    """Why a cell is open that a larger scale fills, and the command for that."""
    if SCALES.index(setting.scale) >= SCALES.index(filled_at):
        return why
    return f"{why}; all: {command(name, setting, filled_at)}"


def command(name: str, setting: Setting, scale: str) -> str:
    """The command that reproduces a report at that scale, with the settings used here."""
    words = ["reproduce", name, "--scale", scale]
    if not setting.made_up:
        words += ["--data", setting.source]
    for field_name, value in flat(dict(setting.values)).items():
        plain = isinstance(value, str) and yaml.safe_load(value) == value
        words += ["--set", f"{field_name}={value if plain else json.dumps(value)}"]
    return f"{COMPARE} {shlex.join(words)}"


def sentence(words: str) -> str:
    """Words as a sentence."""
    return f"{words[:1].upper()}{words[1:]}."

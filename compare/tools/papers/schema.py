"""The YAML file of a published report: its figures, the runs that fill them, and its claims with the kind of their judgement.

`compare/tools/papers/` holds three. Dotted names are fields of the spec (`common/spec/schema.py`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from common import spec
from common.frozen import Frozen
from common.machine import plain_file
from common.spec import MODES, SpecError, plain_values
from common.spec.errors import format_value
from compare.cli.option_parsing import parse_choices
from compare.cli.wording import shortened
from compare.running.launch import FRAMEWORKS
from compare.running.matrix import FileName

FOLDER = Path(__file__).parent
_MAX_CSV_BYTES = 2**24
"""Largest size of a file of figures, in bytes. A paper prints no more than a thousandth of it."""

Scale = Literal["smoke", "quick", "full"]
SMOKE: Scale = "smoke"
SCALES: tuple[Scale, ...] = (SMOKE, "quick", "full")

Fields = dict[str, Any]
"""{dotted field of the spec: value}."""
AtLeast1 = Annotated[int, Field(ge=1, le=10**9)]
_Digits = Annotated[int, Field(ge=-1, le=20)]
_Gpus = Annotated[int, Field(ge=0, le=10**6)]


class PaperData(Frozen):
    """The data set of the paper."""

    name: str
    classes: AtLeast1
    images: AtLeast1
    """Number of training images of most runs."""
    image_size: AtLeast1
    images_scanned: AtLeast1 | None = None
    """Number of images that the scans of the paper read. Default: the training images."""
    class_pattern: str = ""
    """Regular expression of the class names. Default: they start as the rows of a table of classes do."""
    smoke: str
    """Synthetic data for the smallest scale."""
    cache_names: tuple[str, ...] = ()
    """Names in the cache folder, of a folder or of an archive without its suffix."""
    fetch: str = "its data"
    """Name, size and layout of the data to download."""


class PublishedRun(Frozen):
    """A published run."""

    title: str
    framework: str
    epochs: AtLeast1
    images: AtLeast1 | None = None
    """Number of training images. Default: those of the data."""
    gpus: _Gpus = 0
    """Number of GPUs that the run needs. It is left out where there are fewer."""
    replicas_on_cores: bool = False
    """Whether the run uses replicas on CPU cores where there is no GPU."""
    first_scale: Scale = SMOKE
    """Smallest scale that includes the run."""
    fields: Fields = {}
    at: dict[Scale, Fields] = {}
    """Further fields at a scale."""

    @property
    def parallel(self) -> bool:
        return self.fields.get("mode") in MODES.names(lambda mode: mode.is_parallel)


class PublishedRuns(Frozen):
    """The published runs."""

    title: str = ""
    """Title of the comparison, where all runs are one."""
    together: bool = True
    """Whether all runs are one comparison. Runs that differ in their data cannot be."""
    each_repeat_a_seed: bool = False
    fields: Fields = {}
    runs: dict[FileName, PublishedRun] = Field(min_length=1)


class PaperSearch(Frozen):
    """Search for better fields."""

    frameworks: tuple[str, ...] = Field(min_length=1)
    space: dict[str, Any]


class ScanScale(Frozen):
    workers: tuple[AtLeast1, ...]
    repeats: AtLeast1
    fields: Fields = {}


class SearchScale(Frozen):
    trials: AtLeast1
    jobs: tuple[AtLeast1, ...]
    epochs: AtLeast1
    repeats: AtLeast1 = 1


class ScaleSettings(Frozen):
    """Amount of work at a scale."""

    fields: Fields = {}
    """Fields of all runs."""
    epochs: AtLeast1 | None = None
    """Epochs of the published runs, which is at most as many as published. None: as many as published."""
    repeats: AtLeast1 = 1
    """Repeats of the published runs."""
    corrected: Fields = {}
    seeds: AtLeast1
    """Number of seeds of the corrected runs."""
    scans: ScanScale | None = None
    search: SearchScale | None = None
    final_epochs: AtLeast1 | None = None


class PublishedColumn(Frozen):
    heading: str
    digits: _Digits
    measure: str = ""
    """Measure that fills the column, one of MEASURES. Default: the column's name."""
    ratio: bool = True
    """Whether here / paper has a meaning."""
    csv_field: str = ""
    """Field of the column in the CSV file of the table. Default: the column's name."""


LABELS = {
    "epochs": ("epoch",),
    "runs": ("run",),
    "scans": ("engine", "workers"),
    "searches": ("jobs",),
    "splits": ("split",),
    "classes": ("class",),
}
"""Kinds of rows, and the columns that tell them apart."""

MEASURES = {
    "epochs": ("train_loss", "train_accuracy", "valid_loss", "valid_accuracy", "seconds"),
    "runs": ("accuracy", "loss", "seconds", "speedup", "best_accuracy", "memory"),
    "scans": ("seconds", "speedup"),
    "searches": ("seconds", "speedup"),
    "splits": ("accuracy",),
    "classes": ("images", "precision", "recall", "f1", "support"),
}
"""Measures that can fill a cell of each kind of row. Scores of runs are of the validation split, after the last epoch."""

Key = tuple[int | str, ...]
"""Labels of a row."""


def run_name(key: Key) -> str:
    """Return the name of the run in a row of a table of runs."""
    return "-".join(map(str, key))


class PublishedTable(Frozen):
    """A table of figures. Each row has its labels first, then a figure or null for each column."""

    title: str
    rows_are: Literal["epochs", "runs", "scans", "searches", "splits", "classes"]
    run: str = ""
    """Run whose epochs the rows are."""
    base: str = ""
    """Run that the speed-ups are relative to."""
    labels: tuple[str, ...] = ()
    """Labels that, joined by hyphens, name the run, in a table of runs. Default: the run's name."""
    columns: dict[str, PublishedColumn]
    figures: list[list[int | float | str | None]] = []
    csv: str = ""
    """File of the figures, in the same folder. Its first column is the label."""
    note: str = ""

    @property
    def label_names(self) -> tuple[str, ...]:
        return self.labels or LABELS[self.rows_are]

    @cached_property
    def rows(self) -> dict[Key, dict[str, float | None]]:
        """Figures by row and column: {labels: {column: figure}}."""
        rows: dict[Key, dict[str, float | None]] = {}
        for row in self.figures:
            if len(row) != len(self.label_names) + len(self.columns):
                names = ", ".join((*self.label_names, *self.columns))
                raise SpecError(f"A row of {self.title!r} must have one value for each of {names}. Received: {row}.")
            key = tuple(label for label in row[: len(self.label_names)] if isinstance(label, int | str))
            figures = [None if figure is None else float(figure) for figure in row[len(key) :]]
            rows[key] = dict(zip(self.columns, figures, strict=True))
        return rows

    def column(self, name: str) -> list[float]:
        """Return the figures of a column that the paper states, from top to bottom."""
        return [figure for row in self.rows.values() if (figure := row[name]) is not None]

    def figure(self, column: str, *key: int | str) -> float:
        figure = self.rows[key][column]
        assert figure is not None
        return figure


class SideBySide(Frozen):
    """One column of several tables of epochs, side by side."""

    title: str
    tables: tuple[str, ...]
    column: str


class StatedFigure(Frozen):
    """A figure that the paper states beside its tables, and its value from them. One of the last three fields says how."""

    what: str
    stated: float
    digits: _Digits = 0
    rows_of: str = ""
    """Table whose rows are counted."""
    sum_of: tuple[str, str] | None = None
    """Table and column to sum."""
    points_between: tuple[str, str, str, str] | None = None
    """Table, column and two runs: the first minus the second, times 100."""


class Curves(Frozen):
    """One of the drawn axes: a column of tables of epochs, or of one table of runs, over epochs."""

    tables: tuple[str, ...]
    column: str
    label: str
    scale: Literal["linear", "log"] = "linear"
    limits: tuple[float, float] | None = None


class PublishedClaim(Frozen):
    said: str
    """Sentence of the paper."""
    remarks: tuple[str, ...] = ()
    """Further evidence, whatever is measured."""


class NotJudged(PublishedClaim):
    """Claim: one run's epochs take a number of times as long as others', on machines that are not known."""

    kind: Literal["not_judged"]
    slow: str
    fast: tuple[str, ...]


class Ordering(PublishedClaim):
    """Claim: these runs are the best ones, in this order, by the paper's own tables of epochs."""

    kind: Literal["ordering"]
    column: str
    first: tuple[str, ...]
    by: Literal["highest_at_the_end", "least_on_average"]


class NoAccuracyLoss(PublishedClaim):
    """Claim: replicas are no less accurate than serial, corrected, in every framework."""

    kind: Literal["no_accuracy_loss"]


class AccuracyDifference(PublishedClaim):
    """Claim: a run is more accurate than another, as it was and corrected; or less accurate by so many points, as it was."""

    kind: Literal["more_accurate", "accuracy_loss"]
    run: str
    than: str
    points: float
    """Published lead or loss, in points."""


class FasterThan(PublishedClaim):
    """Claim: a run is faster than another, corrected."""

    kind: Literal["faster_than"]
    run: str
    than: str
    gpus: _Gpus = 0


class GainsMore(PublishedClaim):
    """Claim: the best of these runs gains more over serial than another run does."""

    kind: Literal["gains_more"]
    runs: tuple[str, ...]
    than: str
    corrected: bool
    """Whether the corrected runs are judged, or the published ones."""
    gpus: _Gpus = 0
    table: tuple[str, str] | None = None
    """Table and column of the seconds that the paper states."""


class ScansScaleMore(PublishedClaim):
    """Claim: an engine gains more by workers than another."""

    kind: Literal["scans_scale_more"]
    engine: str
    than_engine: str
    cores: int
    """Number of cores of the paper's machine."""


class NoGainBeyondCores(PublishedClaim):
    """Claim: more loader workers than cores give nothing more."""

    kind: Literal["no_gain_beyond_cores"]
    base: str
    gain: float
    """The smallest speed-up that counts as a gain of more workers."""
    warning: str
    """Text of the framework's warning in the log."""


class SearchGain(PublishedClaim):
    """Claim: parallel trials make a search as many times as fast as a table says."""

    kind: Literal["search_gain"]
    table: str
    jobs: int


class SameLosses(PublishedClaim):
    """Claim: runs with loader workers have the losses of another run to the last digit."""

    kind: Literal["same_losses"]
    base: str


class OtherLosses(PublishedClaim):
    """Claim: a run has another loss curve than a serial one."""

    kind: Literal["other_losses"]
    run: str
    base: str
    remark_on_cores: str
    """Further evidence if the run is not made here and replicas on CPU cores stand for it."""


AnyClaim = Annotated[
    NotJudged
    | Ordering
    | NoAccuracyLoss
    | AccuracyDifference
    | FasterThan
    | GainsMore
    | ScansScaleMore
    | NoGainBeyondCores
    | SearchGain
    | SameLosses
    | OtherLosses,
    Field(discriminator="kind"),
]


class Paper(Frozen):
    """A published report."""

    name: FileName
    """Name of the paper's file, without the suffix."""
    argument: str
    """Name of the paper in the command: its name, or the path of its file."""
    title: str
    data: PaperData
    model: str
    hardware: str
    """Hardware of the paper's runs."""
    gpu_frameworks: tuple[str, ...] = tuple(FRAMEWORKS)
    """Frameworks that must see a GPU before it counts."""
    fields: Fields = {}
    """Fields of all runs."""
    as_it_was: PublishedRuns
    corrected: Fields = {}
    """Further fields of the corrected runs."""
    scans: Fields | None = None
    """Further fields of the scans for mean and standard deviation, which Dask and PyTorch make."""
    search: PaperSearch | None = None
    """The search, and the final training of the fields that it finds."""
    scales: dict[Scale, ScaleSettings]
    chosen: list[str] = []
    """Settings that the paper does not state, and that were chosen here."""
    departs: list[str] = []
    """Differences between even the published runs here and the paper's."""
    departs_by_gpus: tuple[str, ...] = ()
    """Differences where no GPU is here, one, and so on. The last is for all more. {devices}: the cores and GPUs here."""
    caveats: list[str] = []
    """Errors found in the paper."""
    tables: dict[FileName, PublishedTable | SideBySide]
    arithmetic: list[StatedFigure] = []
    curves: tuple[Curves, ...] = ()
    claims: dict[str, AnyClaim]

    @cached_property
    def _class_pattern(self) -> pydantic.TypeAdapter[str]:
        # Pydantic's engine takes linear time, whatever the pattern of a stranger's paper is.
        return pydantic.TypeAdapter(Annotated[str, Field(pattern=rf"\A(?:{self.data.class_pattern})\z")])

    @property
    def runs(self) -> dict[str, PublishedRun]:
        return self.as_it_was.runs

    @property
    def published_tables(self) -> dict[str, PublishedTable]:
        return {name: table for name, table in self.tables.items() if isinstance(table, PublishedTable)}

    def table(self, name: str) -> PublishedTable:
        return self.published_tables[name]

    def epochs_of(self, run: str) -> PublishedTable:
        """Return the table of a run's epochs."""
        return next(table for table in self.published_tables.values() if table.run == run)

    def images_of(self, run: str) -> int:
        return self.runs[run].images or self.data.images

    def matches_classes(self, class_names: Sequence[str]) -> bool:
        """Tell whether data with these classes are the paper's own, as far as names tell."""
        return len(class_names) == self.data.classes and all(map(self.has_class, class_names))

    def has_class(self, class_name: str) -> bool:
        """Tell whether the paper's data have a class of this name."""
        if self.data.class_pattern:
            try:
                self._class_pattern.validate_python(class_name)
                return True
            except pydantic.ValidationError:
                return False
        tables = [table for table in self.published_tables.values() if table.rows_are == "classes"]
        return any(class_name.startswith(str(name)) for table in tables for (name,) in table.rows)


def paper_names() -> list[str]:
    """Return the names of the papers in this folder."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find_paper(argument: str) -> Paper:
    """Read a paper of this folder, or one of the user's.

    Args:
        argument: a name of `names()`, or the path of a YAML file.
    """
    if Path(argument).suffix in (".yaml", ".yml"):
        return read_paper(Path(argument), argument)
    try:
        parse_choices("PAPER", [argument], paper_names())
    except SpecError as error:
        raise SpecError(f"{error} The path of a paper's YAML file works too.") from None
    return read_paper(FOLDER / f"{argument}.yaml", argument)


def read_paper(path: Path, argument: str) -> Paper:
    """Read a paper's file."""
    values = spec.read_values(path, "paper")
    try:
        paper = Paper.model_validate({**values, "name": path.stem, "argument": argument})
        complete = paper.model_copy(update={"tables": dict(_with_csv(paper, path.parent))})
        _check(complete)
    except pydantic.ValidationError as error:
        raise SpecError(f"{path}: {_explained(error)}") from None
    except (OSError, KeyError, ValueError, csv.Error) as error:
        raise SpecError(f"{path}: {error}") from None
    return complete


def _explained(error: pydantic.ValidationError) -> str:
    """Explain the first unknown field if there is one, else the first error. An unknown field may be a misspelt one."""
    first = min(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    field = ".".join(map(str, first["loc"]))
    received = shortened(f"{first['input']!r}", 100)
    if first["type"] == "missing":
        return f"{field} is missing. Add it."
    if first["type"] == "extra_forbidden":
        return f"{field} is not a field. Received: {received}. Leave it out."
    return f"{field} is refused: {first['msg']}. Received: {received}. Change {field}."


_RUNS = ("run", "than", "base", "slow", "runs", "fast", "first")
"""Fields of claims that name runs."""


def _check(paper: Paper) -> None:
    """Refuse names of runs, tables and columns that the file does not have."""
    try:
        if paper.data.class_pattern:
            paper.has_class("")
    except Exception:  # pydantic does not export the class of this error
        raise SpecError(
            f"data.class_pattern is no regular expression. Received: {format_value(paper.data.class_pattern)}."
        ) from None
    if set(paper.scales) != set(SCALES):
        raise SpecError(f"scales must be {', '.join(SCALES)}. Received: {', '.join(paper.scales)}.")
    runs, tables = tuple(paper.runs), paper.published_tables
    for name, run in paper.runs.items():
        parse_choices(f"as_it_was.runs.{name}.framework", [run.framework], tuple(FRAMEWORKS))
    for name, table in tables.items():
        if table.rows_are == "epochs":
            parse_choices(f"tables.{name}.run", [table.run], runs)
        if table.rows_are == "runs":
            parse_choices(f"tables.{name}", [run_name(key) for key in table.rows], runs)
        for column, kind in table.columns.items():
            parse_choices(f"tables.{name}.columns.{column}.measure", [kind.measure or column], MEASURES[table.rows_are])
        assert table.rows is not None  # refuses rows of another length
    references = [(f"curves.{number}", curve.tables, curve.column) for number, curve in enumerate(paper.curves)]
    references += [
        (f"tables.{name}", table.tables, table.column) for name, table in paper.tables.items() if isinstance(table, SideBySide)
    ]
    for field, table_names, column in references:
        for table in parse_choices(field, table_names, tuple(tables)):
            parse_choices(f"{field}.column", [column], tuple(tables[table].columns))
    for name, claim in paper.claims.items():
        for field, value in claim.model_dump().items():
            if field in _RUNS:
                parse_choices(f"claims.{name}.{field}", value if isinstance(value, tuple) else [value], runs)


def _with_csv(paper: Paper, folder: Path) -> Iterator[tuple[str, PublishedTable | SideBySide]]:
    for name, table in paper.tables.items():
        if isinstance(table, SideBySide) or not table.csv:
            yield name, table
            continue
        if Path(table.csv).name != table.csv:
            raise SpecError(
                f"tables.{name}.csv must lie beside the paper. Received: {format_value(table.csv)}. Use its name alone."
            )
        text = plain_file.read(folder / table.csv, _MAX_CSV_BYTES).decode()
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        if not rows:
            raise SpecError(f"{table.csv} has no rows. Received: an empty file. Write a heading and a row for each label.")
        label, *_ = rows[0]
        fields = [column.csv_field or key for key, column in table.columns.items()]
        figures = [[row[label], *(plain_values.from_yaml(row[field] or "") for field in fields)] for row in rows]
        yield name, PublishedTable.model_validate({**table.model_dump(), "figures": figures})

"""The YAML file of a published report: its figures, the runs that fill them, and its claims with the kind of their judgement.

`compare/papers/` holds three. Dotted names are fields of the spec (`common/spec/schema.py`).
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
from common.spec import SpecError, plain_values
from common.spec.errors import format_value
from compare.core.option_parsing import parse_choices
from compare.core.wording import shortened
from compare.execution.launch import FRAMEWORKS
from compare.execution.matrix import FileName

FOLDER = Path(__file__).parent
_MOST_CSV_BYTES = 2**24
"""Of a file of figures. A paper prints no more than a thousandth of it."""

Scale = Literal["smoke", "quick", "full"]
SMOKE: Scale = "smoke"
SCALES: tuple[Scale, ...] = (SMOKE, "quick", "full")

Fields = dict[str, Any]
"""{dotted field of the spec: value}."""
AtLeast1 = Annotated[int, Field(ge=1, le=10**9)]
_Digits = Annotated[int, Field(ge=-1, le=20)]
_Gpus = Annotated[int, Field(ge=0, le=10**6)]


class Data(Frozen):
    """The data set of the paper."""

    name: str
    classes: AtLeast1
    images: AtLeast1
    """Training images of most runs."""
    image_size: AtLeast1
    images_scanned: AtLeast1 | None = None
    """Images that the scans of the paper read. Default: the training images."""
    class_pattern: str = ""
    """Regular expression of the class names. Default: they start as the rows of a table of classes do."""
    smoke: str
    """Synthetic data for the smallest scale."""
    cache_names: tuple[str, ...] = ()
    """Names in the cache folder, of a folder or of an archive without its suffix."""
    fetch: str = "its data"
    """What to download, its size and its layout."""


class Run(Frozen):
    """A published run."""

    title: str
    framework: str
    epochs: AtLeast1
    images: AtLeast1 | None = None
    """Training images. Default: those of the data."""
    gpus: _Gpus = 0
    """GPUs that it needs. The run is left out where there are fewer."""
    replicas_on_cores: bool = False
    """Whether it runs as replicas on CPU cores where there is no GPU."""
    first_scale: Scale = SMOKE
    """The smallest scale that runs it."""
    fields: Fields = {}
    at: dict[Scale, Fields] = {}
    """Further fields at a scale."""

    @property
    def parallel(self) -> bool:
        return self.fields.get("mode", "serial") != "serial"


class AsItWas(Frozen):
    """The published runs."""

    title: str = ""
    """Of the comparison, where all runs are one."""
    together: bool = True
    """Whether all runs are one comparison. Runs that differ in their data cannot be."""
    each_repeat_a_seed: bool = False
    fields: Fields = {}
    runs: dict[FileName, Run] = Field(min_length=1)


class Search(Frozen):
    """The search for better fields."""

    frameworks: tuple[str, ...] = Field(min_length=1)
    space: dict[str, Any]


class SizeOfScans(Frozen):
    workers: tuple[AtLeast1, ...]
    repeats: AtLeast1
    fields: Fields = {}


class SizeOfSearch(Frozen):
    trials: AtLeast1
    jobs: tuple[AtLeast1, ...]
    epochs: AtLeast1
    repeats: AtLeast1 = 1


class Size(Frozen):
    """How much is run at a scale."""

    fields: Fields = {}
    """Of all runs."""
    epochs: AtLeast1 | None = None
    """Of the published runs. None: as many as published, which is also the most."""
    repeats: AtLeast1 = 1
    """Of the published runs."""
    corrected: Fields = {}
    seeds: AtLeast1
    """Of the corrected runs."""
    scans: SizeOfScans | None = None
    search: SizeOfSearch | None = None
    final_epochs: AtLeast1 | None = None


class PublishedColumn(Frozen):
    heading: str
    digits: _Digits
    measure: str = ""
    """What fills it, one of MEASURES. Default: its own name."""
    ratio: bool = True
    """Whether here / paper has a meaning."""
    csv_field: str = ""
    """Its name in the CSV file of the table. Default: its own name."""


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
"""What can fill a cell of each kind of row. Scores of runs are of the validation split, after the last epoch."""

Key = tuple[int | str, ...]
"""Labels of a row."""


def run_name(key: Key) -> str:
    """The run of a row in a table of runs."""
    return "-".join(map(str, key))


class PublishedTable(Frozen):
    """A table of figures. Each row has its labels first, then a figure or null for each column."""

    title: str
    rows_are: Literal["epochs", "runs", "scans", "searches", "splits", "classes"]
    run: str = ""
    """Whose epochs the rows are."""
    base: str = ""
    """Run over which speed-ups are."""
    labels: tuple[str, ...] = ()
    """Of runs: labels that, joined by hyphens, name the run. Default: its name."""
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
        """Labels: {column: figure}."""
        found: dict[Key, dict[str, float | None]] = {}
        for row in self.figures:
            if len(row) != len(self.label_names) + len(self.columns):
                names = ", ".join((*self.label_names, *self.columns))
                raise SpecError(f"A row of {self.title!r} must have one value for each of {names}. Received: {row}.")
            key = tuple(label for label in row[: len(self.label_names)] if isinstance(label, int | str))
            figures = [None if figure is None else float(figure) for figure in row[len(key) :]]
            found[key] = dict(zip(self.columns, figures, strict=True))
        return found

    def column(self, name: str) -> list[float]:
        """The figures of a column that the paper states, from top to bottom."""
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


class Sum(Frozen):
    """A figure that the paper states beside its tables, and what they give. One of the last three fields says how."""

    what: str
    stated: float
    digits: _Digits = 0
    rows_of: str = ""
    """A table, whose rows are counted."""
    sum_of: tuple[str, str] | None = None
    """Table and column."""
    points_between: tuple[str, str, str, str] | None = None
    """Table, column and two runs: the first minus the second, times 100."""


class Curves(Frozen):
    """One of the drawn axes: a column of tables of epochs, or of one table of runs, over epochs."""

    tables: tuple[str, ...]
    column: str
    label: str
    scale: Literal["linear", "log"] = "linear"
    limits: tuple[float, float] | None = None


class Claim(Frozen):
    said: str
    """The paper's sentence."""
    remarks: tuple[str, ...] = ()
    """Further evidence, whatever is measured."""


class NotJudged(Claim):
    """How many times one run's epochs take as long as others', on machines that are not known."""

    kind: Literal["not_judged"]
    slow: str
    fast: tuple[str, ...]


class Ordering(Claim):
    """These runs are the best ones, in this order, by the paper's own tables of epochs."""

    kind: Literal["ordering"]
    column: str
    first: tuple[str, ...]
    by: Literal["highest_at_the_end", "least_on_average"]


class NoAccuracyLoss(Claim):
    """Replicas are no less accurate than serial, corrected, in every framework."""

    kind: Literal["no_accuracy_loss"]


class AccuracyDifference(Claim):
    """A run is more accurate than another, as it was and corrected; or less accurate by so many points, as it was."""

    kind: Literal["more_accurate", "accuracy_loss"]
    run: str
    than: str
    points: float
    """Published lead or loss."""


class FasterThan(Claim):
    """A run is faster than another, corrected."""

    kind: Literal["faster_than"]
    run: str
    than: str
    gpus: _Gpus = 0


class GainsMore(Claim):
    """The best of these runs gains more over serial than another run does."""

    kind: Literal["gains_more"]
    runs: tuple[str, ...]
    than: str
    corrected: bool
    """Whether the corrected runs are judged, or the published ones."""
    gpus: _Gpus = 0
    table: tuple[str, str] | None = None
    """Table and column of the seconds that the paper states."""


class ScansScaleMore(Claim):
    """An engine gains more by workers than another."""

    kind: Literal["scans_scale_more"]
    engine: str
    than_engine: str
    cores: int
    """Of the paper's machine."""


class NoGainBeyondCores(Claim):
    """More loader workers than cores give nothing more."""

    kind: Literal["no_gain_beyond_cores"]
    base: str
    gain: float
    """The smallest speed-up that counts as a gain of more workers."""
    warning: str
    """What the framework then says in the log."""


class SearchGain(Claim):
    """Parallel trials make a search as many times as fast as a table says."""

    kind: Literal["search_gain"]
    table: str
    jobs: int


class SameLosses(Claim):
    """Runs with loader workers have the losses of another run to the last digit."""

    kind: Literal["same_losses"]
    base: str


class OtherLosses(Claim):
    """A run has another loss curve than a serial one."""

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
    """Of its file, without the suffix."""
    argument: str
    """How the command names it: its name, or the path of its file."""
    title: str
    data: Data
    model: str
    hardware: str
    """Of the paper's runs."""
    gpu_frameworks: tuple[str, ...] = tuple(FRAMEWORKS)
    """Frameworks that must see a GPU before it counts."""
    fields: Fields = {}
    """Of all runs."""
    as_it_was: AsItWas
    corrected: Fields = {}
    """What the corrected runs have besides."""
    scans: Fields | None = None
    """What the scans for mean and standard deviation have besides. They are made by Dask and PyTorch."""
    search: Search | None = None
    """The search, and the final training of the fields that it finds."""
    scales: dict[Scale, Size]
    chosen: list[str] = []
    """Settings that the paper does not state, and that were chosen here."""
    departs: list[str] = []
    """How even the published runs differ here from the paper's."""
    departs_by_gpus: tuple[str, ...] = ()
    """The same where no GPU is here, one, and so on. The last is for all more. {devices}: the cores and GPUs here."""
    caveats: list[str] = []
    """Errors found in the paper."""
    tables: dict[FileName, PublishedTable | SideBySide]
    arithmetic: list[Sum] = []
    curves: tuple[Curves, ...] = ()
    claims: dict[str, AnyClaim]

    @cached_property
    def _class_pattern(self) -> pydantic.TypeAdapter[str]:
        # Pydantic's engine takes linear time, whatever the pattern of a stranger's paper is.
        return pydantic.TypeAdapter(Annotated[str, Field(pattern=rf"\A(?:{self.data.class_pattern})\z")])

    @property
    def runs(self) -> dict[str, Run]:
        return self.as_it_was.runs

    @property
    def published_tables(self) -> dict[str, PublishedTable]:
        return {name: table for name, table in self.tables.items() if isinstance(table, PublishedTable)}

    def table(self, name: str) -> PublishedTable:
        return self.published_tables[name]

    def epochs_of(self, run: str) -> PublishedTable:
        """The table of a run's epochs."""
        return next(table for table in self.published_tables.values() if table.run == run)

    def images_of(self, run: str) -> int:
        return self.runs[run].images or self.data.images

    def is_of(self, class_names: Sequence[str]) -> bool:
        """Whether data with these classes are its own, as far as names tell."""
        return len(class_names) == self.data.classes and all(map(self.knows, class_names))

    def knows(self, class_name: str) -> bool:
        """Whether its data have a class of this name."""
        if self.data.class_pattern:
            try:
                self._class_pattern.validate_python(class_name)
                return True
            except pydantic.ValidationError:
                return False
        tables = [table for table in self.published_tables.values() if table.rows_are == "classes"]
        return any(class_name.startswith(str(name)) for table in tables for (name,) in table.rows)


def names() -> list[str]:
    """Of the papers that are here."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find(argument: str) -> Paper:
    """A paper that is here, or one of the user's.

    Args:
        argument: a name of `names()`, or the path of a YAML file.

    Raises:
        SpecError: there is none, or its file is refused.
    """
    if Path(argument).suffix in (".yaml", ".yml"):
        return read(Path(argument), argument)
    try:
        parse_choices("PAPER", [argument], names())
    except SpecError as error:
        raise SpecError(f"{error} The path of a paper's YAML file works too.") from None
    return read(FOLDER / f"{argument}.yaml", argument)


def read(path: Path, argument: str) -> Paper:
    """A paper's file.

    Raises:
        SpecError: it cannot be read, or a field is refused.
    """
    values = spec.read_values(path, "paper")
    try:
        paper = Paper.model_validate({**values, "name": path.stem, "argument": argument})
        made = paper.model_copy(update={"tables": dict(_with_csv(paper, path.parent))})
        _check(made)
    except pydantic.ValidationError as error:
        raise SpecError(f"{path}: {_explained(error)}") from None
    except (OSError, KeyError, ValueError, csv.Error) as error:
        raise SpecError(f"{path}: {error}") from None
    return made


def _explained(error: pydantic.ValidationError) -> str:
    """The first unknown field if there is one, else the first error. An unknown field may be a missing one, misspelt."""
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
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
            paper.knows("")
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
    drawn = [(f"curves.{number}", each.tables, each.column) for number, each in enumerate(paper.curves)]
    drawn += [
        (f"tables.{name}", each.tables, each.column) for name, each in paper.tables.items() if isinstance(each, SideBySide)
    ]
    for field, named, column in drawn:
        for table in parse_choices(field, named, tuple(tables)):
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
        text = plain_file.read(folder / table.csv, _MOST_CSV_BYTES).decode()
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        if not rows:
            raise SpecError(f"{table.csv} has no rows. Received: an empty file. Write a heading and a row for each label.")
        label, *_ = rows[0]
        fields = [column.csv_field or key for key, column in table.columns.items()]
        figures = [[row[label], *(plain_values.from_yaml(row[field] or "") for field in fields)] for row in rows]
        yield name, PublishedTable.model_validate({**table.model_dump(), "figures": figures})

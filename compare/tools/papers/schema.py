"""The fields of a published report's YAML file: its figures, the runs that fill them, and its claims.

`paper_file.py` reads the file. Dotted names are fields of the spec (`common/spec/schema.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import Field

from common.frozen import Frozen
from common.spec import MODES, SpecError
from compare.running.launch import FRAMEWORKS
from compare.running.matrix import FileName

if TYPE_CHECKING:  # they know the paper
    from compare.tools.papers.judging import Judgement
    from compare.tools.papers.local_results import LocalResults

Scale = Literal["smoke", "quick", "full"]
SMOKE: Scale = "smoke"
SCALES: tuple[Scale, ...] = (SMOKE, "quick", "full")

Fields = dict[str, Any]
"""{dotted field of the spec: value}."""
AtLeast1 = Annotated[int, Field(ge=1, le=10**9)]
_Digits = Annotated[int, Field(ge=-1, le=20)]
Gpus = Annotated[int, Field(ge=0, le=10**6)]


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
    gpus: Gpus = 0
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
    """A claim of the paper. A class of its own for each kind has the kind's fields, and judges it."""

    said: str
    """Sentence of the paper."""
    remarks: tuple[str, ...] = ()
    """Further evidence, whatever is measured."""
    gpus: Gpus = 0
    """Number of GPUs without which it cannot be told."""

    def judge(self, results: LocalResults) -> Judgement:
        """Judge the claim, without its remarks."""
        raise NotImplementedError


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
    claims: Mapping[str, PublishedClaim]

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

"""Reading of a published report from its YAML file. `compare/tools/papers/` holds three."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pydantic
from pydantic import Field

from common import spec
from common.machine import plain_file
from common.spec import SpecError, plain_values
from common.spec.errors import format_value
from compare.cli.option_parsing import parse_choices
from compare.cli.wording import shortened
from compare.running.launch import FRAMEWORKS
from compare.tools.papers import accuracy_claims, loss_claims, table_claims, time_claims
from compare.tools.papers.schema import MEASURES, SCALES, Paper, PublishedTable, SideBySide, run_name

FOLDER = Path(__file__).parent
_MAX_CSV_BYTES = 2**24
"""Largest size of a file of figures, in bytes. A paper prints no more than a thousandth of it."""

AnyClaim = Annotated[
    table_claims.NotJudged
    | table_claims.Ordering
    | accuracy_claims.NoAccuracyLoss
    | accuracy_claims.AccuracyLoss
    | accuracy_claims.MoreAccurate
    | time_claims.FasterThan
    | time_claims.GainsMore
    | time_claims.ScansScaleMore
    | time_claims.NoGainBeyondCores
    | time_claims.SearchGain
    | loss_claims.SameLosses
    | loss_claims.OtherLosses,
    Field(discriminator="kind"),
]


class PaperFile(Paper):
    """A published report, with each claim of the class of its kind."""

    claims: dict[str, AnyClaim]  # pyright: ignore[reportIncompatibleVariableOverride]  # the record is frozen


def paper_names() -> list[str]:
    """Return the names of the papers in this folder."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find_paper(argument: str) -> Paper:
    """Read a paper of this folder, or one of the user's.

    Args:
        argument: a name of `paper_names()`, or the path of a YAML file.
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
        paper = PaperFile.model_validate({**values, "name": path.stem, "argument": argument})
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
    received = shortened(format_value(first["input"], first["loc"]), 100)
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

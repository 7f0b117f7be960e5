"""`convtwins schema`: JSON Schemas of the files that the suite reads and writes, for editors and other programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import typer
from pydantic import BaseModel, Field

from common import spec
from common.artifacts import atomic_files
from common.artifacts.schema import RunResult
from common.spec import Spec
from compare.cli import commands
from compare.cli.option_types import Choice
from compare.reporting.document import to_json
from compare.results import workspace
from compare.results.store import Comparison
from compare.running import options
from compare.running.axes import AXES
from compare.statistics.until_decided import UntilDecided
from compare.tools.regression.bisection import BisectionReport
from compare.tools.regression.records import HistoryPoint, Judgement

_UNTIL_DEFAULTS = {name: field.default for name, field in UntilDecided.model_fields.items()}
_MODE: Any = Literal[tuple(spec.MODES)]

_RUN_FIELDS: dict[str, Any] = {
    "modes": (list[_MODE] | None, Field(None, description="Rows of `run`: the modes.")),
    "one_core": (bool | None, Field(None, description="Whether serial also runs on one core. Default: true.")),
    "repeats": (int | None, Field(None, ge=1, description="Runs of each row. Verdicts need 5.")),
    "contestants": (dict[str, dict[str, Any]], Field({}, description="Contestants by name, as --contestant says them.")),
    "until_decided": (bool | None, Field(None, description="Add repeats until every question is decided.")),
    "most_repeats": (int | None, Field(None, description=f"With until_decided. Default: {_UNTIL_DEFAULTS['most_repeats']}.")),
    "smallest_effect": (
        float | str | None, Field(None, description=f"With until_decided. Default: {_UNTIL_DEFAULTS['smallest_effect']}.")
    ),
}  # fmt: skip

SPEC_FILE: type[BaseModel] = pydantic.create_model("SpecFile", __base__=Spec, **_RUN_FIELDS)
"""Model of a spec file: a spec, and the other fields that `run` reads."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_CHECKSUM = {"type": "string", "description": "SHA-256 of all other values, as JSON with sorted names."}

_REPORT_PROPERTIES = {
    "headline": {"type": "string", "description": "The verdict in a sentence."},
    "exit_code": {"type": "integer"},
    "findings": {"type": "object", "description": "Sentences by heading."},
    "tables": {"type": "array", "description": "The tables of the report."},
}


def _with_lists(schema: dict[str, Any]) -> dict[str, Any]:
    """Extend the schema of a spec file: the fields of a matrix may be lists."""
    for field in AXES:
        group, _, leaf = field.rpartition(".")
        fields = schema["$defs"][schema["properties"][group]["$ref"].rpartition("/")[2]] if group else schema
        field_schema = fields["properties"][leaf]
        moved = {name: field_schema.pop(name) for name in ("default", "description", "title") if name in field_schema}
        fields["properties"][leaf] = {"anyOf": [field_schema, {"type": "array", "items": field_schema, "minItems": 1}], **moved}
    return schema


def _record(record: type[BaseModel], **extra: Any) -> Callable[[], dict[str, Any]]:
    """Return a function that gives the schema of a record with extra properties."""

    def schema() -> dict[str, Any]:
        json_schema = record.model_json_schema(mode="serialization")
        return {**json_schema, "properties": json_schema["properties"] | extra}

    return schema


_SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "spec": lambda: _with_lists(SPEC_FILE.model_json_schema()),
    "result": _record(RunResult, sha256=_CHECKSUM),
    "comparison": _record(Comparison, sha256=_CHECKSUM),
    "regress": _record(Judgement, **_REPORT_PROPERTIES),
    "bisect": _record(BisectionReport, **_REPORT_PROPERTIES),
    "history": lambda: pydantic.TypeAdapter(list[HistoryPoint]).json_schema(mode="serialization"),
}
"""Functions that give the schemas: of a spec file, the stored records, and the JSON of `regress`, `bisect` and `history`."""
_WHICH = f"{', '.join([*_SCHEMAS][:-1])} or {[*_SCHEMAS][-1]}."


def schemas() -> dict[str, dict[str, Any]]:
    """Return all schemas by name."""
    return {name: {"$schema": _DIALECT, **schema()} for name, schema in _SCHEMAS.items()}


@commands.command()
def command(
    which: Annotated[str, Choice(tuple(_SCHEMAS)), typer.Argument(metavar="WHICH", help=_WHICH)] = "spec",
    out: Annotated[Path | None, typer.Option(help=f"{options.OUT} Gets all of them, as WHICH.schema.json.")] = None,
) -> None:
    """Print the JSON Schema of a spec file, of a stored record, or of what a command prints with --json."""
    all_schemas = schemas()
    if out is None:
        typer.echo(to_json(all_schemas[which]))
        return
    workspace.refuse_unwritable(out)
    for name, schema in all_schemas.items():
        atomic_files.write_atomically(out / f"{name}.schema.json", to_json(schema) + "\n")

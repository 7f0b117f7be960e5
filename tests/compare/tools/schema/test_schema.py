"""The JSON Schemas fit what is written, and are not looser than the suite itself."""

import json
from pathlib import Path

import pytest

from common.spec import Spec
from compare.comparison import run_process
from compare.running import axes
from compare.tools.schema.schema import SPEC_FILE, schemas
from tests.support import comparisons
from tests.support.command_line import convtwins
from tests.support.schemas import unknown


def test_a_spec_file_has_the_fields_of_a_run_and_of_the_matrix() -> None:
    schema = schemas()["spec"]
    matrix = {"modes", "one_core", "repeats", "contestants", "until_decided", "most_repeats", "smallest_effect"}
    assert schema["properties"].keys() == Spec.model_fields.keys() | matrix and schema["additionalProperties"] is False
    written = json.loads(Spec.model_validate({}).to_json()) | {"modes": ["serial"], "repeats": 5}
    assert unknown(written, schema, schema) == []
    assert unknown({"optimizer": {"lr": 0.1}, "batch": 3}, schema, schema) == [".batch", ".optimizer.lr"]


@pytest.mark.parametrize("field", axes.AXES)
def test_a_field_of_a_matrix_may_be_a_list_of_what_it_may_be(field: str) -> None:
    *group, leaf = field.split(".")
    schema = schemas()["spec"]
    fields = schema["$defs"]["Data"] if group else schema
    one, several = fields["properties"][leaf]["anyOf"]
    assert several == {"type": "array", "items": one, "minItems": 1} and {"type", "$ref", "enum", "anyOf"} & one.keys()


def test_a_spec_file_stands_for_the_fields_that_were_set() -> None:
    values = {"model": "resnet18", "steps": 4, "data": {"source": "leaves"}, "repeats": 5}
    assert run_process.spec_values(SPEC_FILE.model_validate(values)) == values


@pytest.mark.parametrize(("which", "path"), [("comparison", "compare.json"), ("result", "runs/*/result.json")])
def test_a_stored_record_has_no_field_that_its_schema_lacks(which: str, path: str, tmp_path: Path) -> None:
    schema = schemas()[which]
    files = sorted(comparisons.stored_in(comparisons.observed(), tmp_path).glob(path))
    assert files
    for file in files:
        values = json.loads(file.read_text())
        assert unknown(values, schema, schema) == [] and values.keys() >= set(schema["required"])
        assert unknown(values | {"more": 1}, schema, schema) == [".more"]


def test_schemas_are_printed_and_written_as_files(tmp_path: Path) -> None:
    printed = convtwins("schema")
    assert printed.exit_code == 0 and json.loads(printed.stdout) == json.loads(json.dumps(schemas()["spec"]))
    assert convtwins("schema", "--out", tmp_path).stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{name}.schema.json" for name in sorted(schemas())]
    wrong = convtwins("schema", "results")
    assert wrong.exit_code == 2 and "Did you mean result?" in wrong.stderr

"""Options that several commands share, as groups."""

import inspect
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from common.spec import SpecError
from compare.execution import options


def test_a_group_stands_for_its_options_where_the_command_has_it() -> None:
    seen: list[Any] = []

    @options.grouped
    def command(first: int = 0, *, of_spec: options.TrainingOptions, last: int = 0) -> None:
        """What it does."""
        seen.append((first, of_spec, last))

    names = list(inspect.signature(command).parameters)
    assert names[:4] == ["first", "preset", "spec_file", "data"] and names[-2:] == ["seed", "last"]
    app = typer.Typer(add_completion=False)
    app.command()(command)
    done = CliRunner().invoke(app, ["--model", "resnet18", "--set", "cores=1", "--seed", "3", "--last", "2"])
    assert done.exit_code == 0, done.output
    assert seen == [(0, options.TrainingOptions(model="resnet18", assignments=["cores=1"], seed=3), 2)]


def test_a_group_gives_the_fields_of_the_spec_with_those_of_the_command() -> None:
    preset, file, fields, assignments = options.SpecOptions(data="digits", batch_size=8, optimizer="adam").asked(cores=2)
    assert (preset, file, assignments) == (None, None, [])
    assert {name: value for name, value in fields.items() if value is not None} == {
        "data.source": "digits", "global_batch_size": 8, "cores": 2, "optimizer.name": "adam", "optimizer.learning_rate": 1e-3,
    }  # fmt: skip
    with pytest.raises(SpecError, match="--optimizer names something unknown"):
        options.SpecOptions(optimizer="lion").asked()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("leaves:classes=3,images=60", "leaves:classes=3,images=60"),
        ("digits,tfds:mnist,root=/d,download=yes", ["digits", "tfds:mnist,root=/d,download=yes"]),
        ("images=3", "images=3"),
    ],
)
def test_a_setting_belongs_to_the_source_before_it(text: str, expected: Any) -> None:
    _, _, fields, _ = options.MatrixOptions(data=text).asked()
    assert fields["data.source"] == expected

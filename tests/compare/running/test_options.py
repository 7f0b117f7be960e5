"""Options that several commands share, as groups."""

import re
from typing import Any

import pytest
from typer.main import get_command

from common.spec import SpecError
from compare.__main__ import app, modules
from compare.running import options
from tests.support.refusals import refused

OTHERS = {
    ("run", "--batch-size"): "several values make a matrix",
    ("run", "--image-size"): "several values make a matrix",
    ("infer", "--cores"): "several numbers make rows",
    ("scaling", "--replicas"): "several numbers make rows",
    ("plan", "--kinds"): "of a projection, which is weak if nothing is said",
    ("optimize", "--repeats"): "one run has no spread, by which a configuration is dropped",
    ("regress", "--repeats"): "a verdict needs five pairs",
    ("infer", "--calls"): "a quantile needs several",
    ("bisect", "--environments"): "typer has no option with any number of values: the others are arguments",
    ("preprocess", "--workers"): "workers of an engine, which has at least one",
    ("optimize", "--only"): "its rows are switches",
    ("selftest", "--trials"): "simulated comparisons, not trainings of a search",
    ("match", "--data"): "a choice, where others have data always",
    ("match", "--input"): "the input of a module of the user's",
    ("same", "--loss"): "a column of a file, where `match` takes a function",
    ("same", "--steps"): "steps to compare, not to train",
    ("selftest", "--cores"): "of real pairs alone",
    ("selftest", "--epochs"): "of real pairs alone, whose epochs are short",
    ("match", "--optimizer"): "two functions of the user's",
    ("match", "--write"): "a module, where `data` writes images",
    **{
        (command, "--model"): "a checkpoint names its model, this allows its import"
        for command in ("convert", "infer", "predict")
    },
    ("doctor", "--jitter"): "how much the machine varies, not how slow a rank is",
    ("env", "--python"): "makes an environment, where others run in it",
    ("study", "--set"): "fields of a study file",
    ("watch", "--seconds"): "how long to look at a job, not how long to call a model",
    ("watch", "--patience"): "seconds of a job, not epochs",
}
"""Options that differ from those of the same name in other commands, each with the reason."""


def facts(option: Any) -> tuple[Any, ...]:
    """The first sentence of its help, its type, its range and its number of values."""
    (first, *_) = re.split(r"(?<=\.) (?=[A-Z0-9])", option.help)
    info = option.type_descriptor.parameter_info
    return (first, option.type_descriptor.annotation, info.min, info.max, option.multiple, option.nargs)


def test_an_option_has_the_same_help_type_and_range_in_every_command() -> None:
    found: dict[str, dict[str, tuple[Any, ...]]] = {}
    for name in modules():
        for each in get_command(app).get_command(None, name).params:  # pyright: ignore[reportAttributeAccessIssue]
            # A hidden option says where another command has it.
            if each.param_type_name == "option" and each.name not in ("help", "version") and not each.hidden:
                found.setdefault(each.opts[0], {})[name] = facts(each)
    unlike = {
        option: of_command
        for option, of_command in found.items()
        if len({seen for command, seen in of_command.items() if (command, option) not in OTHERS}) > 1
    }
    assert not unlike
    needless = [
        (command, option)
        for command, option in OTHERS
        if command in modules()
        and {found[option][command]} == {seen for other, seen in found[option].items() if (other, option) not in OTHERS}
    ]
    assert not needless


def test_a_group_gives_the_fields_of_the_spec_with_those_of_the_command() -> None:
    preset, file, fields, assignments = options.SpecOptions(data="digits", batch_size=8, optimizer="adam").to_request(cores=2)
    assert (preset, file, assignments) == (None, None, [])
    assert {name: value for name, value in fields.items() if value is not None} == {
        "data.source": "digits", "global_batch_size": 8, "cores": 2, "optimizer.name": "adam", "optimizer.learning_rate": 1e-3,
    }  # fmt: skip
    with refused(SpecError, field="--optimizer", received="lion", fix="adam"):
        options.SpecOptions(optimizer="lion").to_request()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("leaves:classes=3,images=60", "leaves:classes=3,images=60"),
        ("digits,tfds:mnist,root=/d,download=yes", ["digits", "tfds:mnist,root=/d,download=yes"]),
        ("images=3", "images=3"),
    ],
)
def test_a_setting_belongs_to_the_source_before_it(text: str, expected: Any) -> None:
    _, _, fields, _ = options.MatrixOptions(data=text).to_request()
    assert fields["data.source"] == expected

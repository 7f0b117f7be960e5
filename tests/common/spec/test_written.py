"""Errors show a value as it stands in the file or in the word that it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest

from common import spec
from common.spec import Spec, SpecError, written
from common.spec.errors import format_value
from tests.support.refusals import refused


@pytest.mark.parametrize(
    ("text", "path", "shown"),
    [
        ("epochs: yes", "epochs", "yes"),
        ("epochs: Off", "epochs", "Off"),
        ("epochs: true", "epochs", "true"),
        ("seed: ~", "seed", "~"),
        ("seed:", "seed", "nothing"),
        ("seed: 0x10", "seed", "0x10"),
        ("seed: 1_000", "seed", "1_000"),
        ("seed: 1:30", "seed", "1:30"),
        ("rate: .inf", "rate", ".inf"),
        ("rate: .nan", "rate", ".nan"),
        ("rate: 1.50", "rate", "1.50"),
        ("name: two", "name", "'two'"),
        ("name: 'yes'", "name", "'yes'"),
        ("data: {limit: no}", "data/limit", "no"),
        ("data:\n  limit: no\n  kinds: [on, 'on', 2]\n", "data", "{limit: no, kinds: [on, 'on', 2]}"),
        ("speeds: [on, 2]", "speeds/0", "on"),
        ("optimizer.momentum: {low: no}", "optimizer.momentum", "{low: no}"),
        ("optimizer.momentum: {low: no}", "optimizer.momentum/low", "no"),
    ],
)
def test_a_value_is_shown_as_it_was_written(text: str, path: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    with written.remembered():
        value: Any = spec.read_values(tmp_path / "a.yaml")
        for part in path.split("/"):
            value = value[int(part) if isinstance(value, list) else part]
        field = path.replace("/", ".")
        assert format_value(value, field) == shown
        assert format_value(object, field) == repr(object)  # another value than that of the text
    assert format_value(value, field) == repr(value)  # nothing is remembered


def test_the_last_text_counts_and_an_item_stands_for_its_list(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("global_batch_size: [yes, 32]\nepochs: true\nseed: off\n", encoding="utf-8")
    (tmp_path / "a.json").write_text('{\t"workers": true}', encoding="utf-8")
    with written.remembered():
        for name in ("a.yaml", "a.json"):
            spec.read_values(tmp_path / name)
        spec.parse_assignments(["epochs=on", "optimizer.momentum=on", "seed=on"])
        assert format_value(True, "epochs") == format_value(True, ("optimizer", "momentum")) == "on"
        assert format_value(False, "seed") == "off"
        assert format_value(True, "global_batch_size") == "yes"
        assert format_value(True, "workers") == "true"


@pytest.mark.parametrize("field", ["optimizer.momentum.low", "optimizer.momentum.low.high"])
def test_a_value_that_holds_no_fields_is_shown_as_it_was_written_at_any_depth(field: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("optimizer: {momentum: yes}\n", encoding="utf-8")
    with written.remembered(), refused(SpecError, field=field, received="yes"):
        spec.overlay(spec.read_values(tmp_path / "a.yaml"), {field: 1})


def leaves(model: type[pydantic.BaseModel], group: str = "") -> Iterator[str]:
    """The dotted names of all fields that hold no fields."""
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
            yield from leaves(annotation, f"{group}{name}.")
        else:
            yield f"{group}{name}"


@pytest.mark.parametrize("field", [field for field in leaves(Spec) if field != "framework_options"])
def test_every_field_shows_the_wrong_value_of_a_file(field: str, tmp_path: Path) -> None:
    *groups, leaf = field.split(".")
    text = "".join(f"{name}: {{" for name in groups) + f"{leaf}: {{neither: yes}}" + "}" * len(groups)
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    with written.remembered(), refused(SpecError, field=leaf, received="yes"):
        spec.check_fields(spec.read_values(tmp_path / "a.yaml"), "spec file a.yaml")

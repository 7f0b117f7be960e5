from __future__ import annotations

from typing import Annotated, Any

import pytest

from common import spec
from common.frozen import Frozen
from common.spec import EFFECTS
from common.spec.effects import Aspect, Effects, Keeps

OF_THE_PLACE = {"paths.cache_dir", "hang_seconds", "profile_steps"}
WITHOUT_WORK = {*OF_THE_PLACE, "data.source", "least_replicas", "device"}
OF_THE_LENGTH = {"epochs", "steps", "seed", "checkpoint_seconds"}


def leaves(values: dict[str, Any], group: str = "") -> list[str]:
    """The dotted names of all fields."""
    return [
        leaf
        for name, value in values.items()
        for leaf in (leaves(value, f"{group}{name}.") if isinstance(value, dict) else [group + name])
    ]


NAMES = [*leaves(spec.build({}).model_dump()), "framework_options.graph"]


@pytest.mark.parametrize(
    ("aspect", "kept"),
    [
        ("work", WITHOUT_WORK),
        ("epoch", WITHOUT_WORK | OF_THE_LENGTH),
        ("epoch_elsewhere", WITHOUT_WORK | OF_THE_LENGTH | {"cores", "hosts"}),
        ("step", OF_THE_PLACE | OF_THE_LENGTH | {"data.limit", "data.seed"}),
        (
            "examples",
            {
                *("mode", "replicas", "least_replicas", "hosts", "cores", "switches", "framework_options.graph"),
                *(name for name in NAMES if name.startswith("communication.")),
            },
        ),
        (
            "serial_run",
            {
                *("mode", "replicas", "least_replicas", "cores", "hosts"),
                *(name for name in NAMES if name.startswith(("parameter_server.", "pipeline.", "hybrid."))),
            },
        ),
    ],
)
def test_each_aspect_is_kept_by_these_fields_alone(aspect: Aspect, kept: set[str]) -> None:
    assert {name for name in NAMES if not EFFECTS.changes(name, aspect)} == kept


def test_data_of_the_same_content_may_be_described_otherwise() -> None:
    covered = {name for name in NAMES if name.startswith("data.") and not EFFECTS.changes(name, "epoch", same_data=True)}
    names = ("source", "image_size", "limit", "on_bad", "duplicates", "drawn_part", "seed")
    assert covered == {f"data.{name}" for name in names}


@pytest.mark.parametrize(
    ("fields", "changed"),
    [
        ({"hang_seconds": 5.0}, {"examples", "serial_run"}),
        ({"epochs": 7}, {"work", "examples", "serial_run"}),
        ({"seed": 7}, {"work", "examples", "serial_run"}),
        ({"cores": 2}, {"work", "epoch", "step"}),
        ({"framework_options": {"graph": "eager"}}, {"work", "epoch", "epoch_elsewhere", "step", "serial_run"}),
        ({"data": {"limit": 100}}, {"work", "epoch", "epoch_elsewhere", "examples", "serial_run"}),
        ({"optimizer": {"momentum": 0.5}}, {"work", "epoch", "epoch_elsewhere", "step", "examples", "serial_run"}),
        ({}, set()),
    ],
)
def test_two_runs_differ_as_their_fields_say(fields: dict[str, Any], changed: set[str]) -> None:
    one, other = spec.build({"cores": 1}), spec.build({"cores": 1, **fields})
    aspects: tuple[Aspect, ...] = ("work", "epoch", "epoch_elsewhere", "step", "examples", "serial_run")
    assert {aspect for aspect in aspects if one.differs(other, in_=aspect)} == changed


def test_an_excluded_field_may_differ() -> None:
    one, other = spec.build({"global_batch_size": 32}), spec.build({"global_batch_size": 64})
    assert one.differs(other, in_="serial_run")
    assert not one.differs(other, in_="serial_run", excluded=("global_batch_size",))


def test_a_field_without_its_statement_is_an_error() -> None:
    class Group(Frozen):
        rate: float = 0.1

    class Stated(Frozen):
        group: Annotated[Group, Keeps("work")] = Group()

    class Unstated(Frozen):
        group: Group = Group()

    assert not Effects(Stated).changes("group.rate", "work")
    with pytest.raises(TypeError, match=r"group\.rate of the spec does not say what it keeps"):
        Effects(Unstated)

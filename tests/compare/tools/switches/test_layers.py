"""The layers of a model against the machine's limits, of frameworks whose times are made up."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from common.machine import machine
from common.models.architectures import resolve
from common.training import layers
from common.training.layers import LayerTimes
from compare.running import launch
from compare.running.launch import Call, StartedProcess
from tests.compare.conftest import describe_as
from tests.support.command_line import convtwins, convtwins_json
from tests.support.refusals import check_ended

UNITS = layers.unique_layers(resolve("mini_xception", 10, 32))
BATCH = 16


class FakeTwins:
    """What the frameworks would have measured: every layer takes a millisecond, in `right` two, BatchNorm ten times that."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.options: dict[str, Any] = {}
        self.failing: str | None = None
        self.cores_of_others = 0.0

    def calling(self, call: Call) -> Generator[StartedProcess, None, int]:
        framework, arguments, log = call.contestant.name, call.arguments, call.log
        yield from ()
        self.asked.append(framework)
        self.options[framework] = json.loads(Path(arguments[1]).read_text("utf-8"))["framework_options"]
        if self.failing is not None:
            log.write_text(f"Traceback\n{self.failing}\n", "utf-8")
            return 2 if "Leave it out" in self.failing else 1
        drift = 1.0 + 0.01 * len(self.asked)
        seconds = [drift * self.slower(framework) * 1e-3 * (10 if unit.kind == "BatchNorm" else 1) for unit in UNITS]
        made = LayerTimes(
            seconds=seconds,
            whole_seconds=0.25,
            device="cpu",
            versions={framework: "1.0"},
            cores_of_others=self.cores_of_others,
        )
        layers.save(made, Path(arguments[3]))
        return 0

    def slower(self, framework: str) -> float:
        return 2.0 if framework == "right" else 1.0


@pytest.fixture
def twins(fake_twins: pytest.MonkeyPatch) -> FakeTwins:
    made = FakeTwins()
    # Whoever starts a command hands no times in. Measured ones take seconds each, and are not known.
    fake_twins.setattr(launch, "calling", made.calling)
    return made


def words(*more: object) -> tuple[object, ...]:
    size = ("--set", "data.image_size=32", "--batch-size", BATCH, "--cores", 2)
    return "layers", "--model", "mini_xception", *size, *more


def test_a_switch_of_one_framework_is_left_out_for_the_other(twins: FakeTwins, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = {"values": ["contiguous", "channels_last"], "default": "contiguous", "help": "layout"}
    for framework, options in (("left", {"memory_format": switch}), ("right", {})):
        describe_as(monkeypatch, framework, options=options)
    printed = convtwins_json(*words("--repeats", 1, "--set", "framework_options.memory_format=channels_last"))
    assert twins.asked == ["left", "right"]
    assert printed["framework_options"] == twins.options == {"left": {"memory_format": "channels_last"}, "right": {}}
    assert any("right has no memory_format" in json.dumps(each) for each in printed.values())
    ended = convtwins(*words("--set", "framework_options.memory_formt=channels_last"))
    check_ended(ended, names=["memory_formt", "memory_format"])


def table(name: str, *more: object) -> dict[str, dict[str, Any]]:
    (found,) = [each for each in convtwins_json(*words(*more))["tables"] if each["name"] == name]
    return {row["layers"]: row for row in found["rows"]}


def test_contestants_are_timed_like_frameworks(twins: FakeTwins) -> None:
    rows = table("layer-kinds", "--frameworks", "left", "--contestant", "slow=right")
    assert twins.asked == ["left", "slow", "slow", "left", "left", "slow"]
    assert "slow_ms" in next(iter(rows.values()))


def test_kinds_of_layers_stand_beside_what_the_machine_allows(twins: FakeTwins) -> None:
    rows = table("layer-kinds", "--frameworks", "left,right")
    assert twins.asked == ["left", "right", "right", "left", "left", "right"]
    assert next(iter(rows)) == "BatchNorm" and list(rows)[-1] == "all of them"
    norms = rows["BatchNorm"]
    assert norms["number"] == 12 and norms["bound"] == "memory"
    assert norms["left_ms"]["median"] == pytest.approx(12 * 10 * 1.04)  # of 1.01, 1.04 and 1.05
    assert norms["right_ms"]["median"] == pytest.approx(12 * 10 * 2 * 1.03)
    # Five are moved of each value: in and out, backward the output's gradient, the input and its gradient; 20 GB/s.
    values = 32 * 32 * (32 + 64 + 8 * 64 + 2 * 128)
    moved = 4 * (5 * values * BATCH + 3 * 2 * (32 + 64 + 8 * 64 + 2 * 128))
    assert norms["limit_ms"] == pytest.approx(1e3 * moved / 20e9)
    assert norms["left_times"] == pytest.approx(norms["left_ms"]["median"] / norms["limit_ms"])
    whole = sum(row["left_ms"]["median"] for name, row in rows.items() if name != "all of them")
    assert rows["all of them"]["left_ms"]["median"] == pytest.approx(whole)
    assert norms["left_share"] == pytest.approx(100 * norms["left_ms"]["median"] / whole)
    convolutions = rows["convolutions"]  # 3x3, of which the first needs no gradient of the image; 200 GFLOP/s
    flops = 2 * 9 * 32 * 32 * (2 * 3 * 32 + 3 * 32 * 64) * BATCH
    moved = 4 * BATCH * 32 * 32 * ((3 + 32 + 32 + 3) + (32 + 64 + 64 + 32 + 32)) + 4 * 3 * (9 * 3 * 32 + 32 + 9 * 32 * 64 + 64)
    assert convolutions["bound"] in ("operations", "memory and operations")
    assert convolutions["limit_ms"] >= max(1e3 * flops / 200e9, 1e3 * moved / 20e9) * 0.999


def test_layers_that_are_alike_are_one_row(twins: FakeTwins) -> None:
    rows = table("layers", "--frameworks", "left", "--repeats", "1")
    assert len(rows) == len(UNITS) + 1
    assert rows["Conv 3x3 in 64 groups, 32x32x64"]["number"] == 9
    assert rows["MaxPool 3x3/2, 32x32x128 to 16x16x128"]["number"] == 1
    assert rows["Conv 3x3, 32x32x3 to 32x32x32, first"]["number"] == 1


def test_what_disturbed_it_is_said_and_tables_are_written(twins: FakeTwins, tmp_path: Path) -> None:
    cores = machine.describe()["logical_cores"] or 2
    assert isinstance(cores, int)
    twins.cores_of_others = cores - 2 + 0.5  # of all cores, of which two are the budget
    done = convtwins(*words("--frameworks", "left", "--out", tmp_path)).succeeded()
    said = " ".join(done.stdout.split())
    assert "left: other work took up to 0.50 cores" in said and "do not rely on this" in said
    assert " 250.0 ms" in said and "times that" not in said
    rows = table("layers", "--frameworks", "left")
    assert {row["left_times"] for row in rows.values() if row["limit_ms"]} == {"disturbed"}
    assert {path.name for path in (tmp_path / "tables").iterdir()} >= {"layers.csv", "layer-kinds.md"}


def test_what_cannot_be_timed_is_refused_in_a_line(twins: FakeTwins) -> None:
    twins.failing = "Layers are timed with the switch digits at all. Received: few. Leave it out."
    done = convtwins(*words("--frameworks", "left"))
    assert (done.exit_code, done.stderr.strip().splitlines()[-1]) == (2, f"left: {twins.failing}")
    twins.failing = "MemoryError"
    done = convtwins(*words("--frameworks", "left"))
    assert (done.exit_code, done.stderr.strip().splitlines()[-1]) == (1, "left: MemoryError")

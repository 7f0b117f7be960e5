"""`same` on scripts of PyTorch and Keras, each in processes of its own: five right pairs, and planted causes."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from common.machine.machine import PROJECT_ROOT
from tests.support.command_line import convtwins

pytestmark = pytest.mark.slow

FOLDER = PROJECT_ROOT / "tests" / "planted" / "trainings"
ONE_PROCESS = f"{sys.executable} {FOLDER / 'one_process.py'} {{losses}}"
DATA_PARALLEL = (
    f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node=2 {FOLDER / 'data_parallel.py'} {{losses}}"
)
KERAS = f"{sys.executable} {FOLDER / 'losses_of_keras.py'} {{losses}}"
MOVED = ("--copies", "3", "--ulp")


def answered(*words: str) -> dict[str, Any]:
    ended = convtwins("same", *words, "--json")
    assert ended.stdout.startswith("{"), ended.output
    return json.loads(ended.stdout)


RIGHT = {
    "workers that load": (ONE_PROCESS, f"{ONE_PROCESS} --workers 2", "same"),
    "two processes": (ONE_PROCESS, DATA_PARALLEL, "rounding"),
    "two processes with a short batch": (f"{ONE_PROCESS} --examples 185", f"{DATA_PARALLEL} --examples 185", "rounding"),
    "accumulated gradients": (ONE_PROCESS, f"{ONE_PROCESS} --parts 4", "rounding"),
    "float64": (ONE_PROCESS, f"{ONE_PROCESS} --dtype float64", "rounding"),
    "losses of Keras in CSV": (KERAS, KERAS, "same"),
}


@pytest.mark.parametrize(("a", "b", "verdict"), RIGHT.values(), ids=RIGHT)
def test_a_right_pair_holds(a: str, b: str, verdict: str) -> None:
    values = answered(a, b, *MOVED)
    assert (values["verdict"], values["exit_code"]) == (verdict, 0), values["statements"]


SHORT = "--examples 185"  # 11 batches of 16, and one of 9
PLANTED = {
    "gradients are added up over processes": (ONE_PROCESS, f"{DATA_PARALLEL} --plant sum", 2, "learning-rate"),
    "a mean of means": (f"{ONE_PROCESS} {SHORT}", f"{DATA_PARALLEL} {SHORT} --plant 'mean of means'", 13, "last-batch"),
    "one order in all epochs": (ONE_PROCESS, f"{DATA_PARALLEL} --plant 'one order'", 13, "order"),
    "accumulated gradients that are not divided": (ONE_PROCESS, f"{ONE_PROCESS} --parts 4 --undivided", 2, "learning-rate"),
    "Keras with another learning rate": (KERAS, f"{KERAS} 0.3", 1, "learning-rate"),
}


@pytest.mark.parametrize(("a", "b", "step", "cause"), PLANTED.values(), ids=PLANTED)
def test_a_planted_cause_is_named_with_its_step(a: str, b: str, step: int, cause: str) -> None:
    values = answered(a, b, *MOVED)
    assert (values["verdict"], values["exit_code"]) == ("another training", 1)
    assert (values["first_beyond_rounding"]["step"], values["causes"][0]["name"]) == (step, cause), values["causes"]


def test_bfloat16_rounds_too_much_to_tell() -> None:
    values = answered(ONE_PROCESS, f"{ONE_PROCESS} --dtype bfloat16", *MOVED)
    assert values["verdict"] == "cannot tell" and "coarse" in [statement["kind"] for statement in values["statements"]]

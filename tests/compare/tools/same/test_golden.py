"""Stored curves: what storing ends with, and how many copies a small excess gets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from compare.cli.progress import display
from compare.tools.same import same
from compare.tools.same.runs import Runner
from compare.tools.same.same import Request
from compare.tools.same.subjects import Columns, Subject
from tests.support.command_line import convtwins

TRAINING = """import os, sys
seed = os.environ.get("CONVTWINS_ULP")
if seed is not None:
    open(os.environ["CONVTWINS_ULP_COUNT"], "a").write("5")
moved = 0.0 if seed is None else 1e-6 if int(seed) <= 3 else 4e-6
print('{"step": 1, "loss": %r}' % (1.1234567890123457 + moved + float(sys.argv[1])))
"""


@pytest.mark.parametrize(
    ("apart", "verdict", "copies"), [("0", "same", 0), ("1e-5", "rounding", 12), ("1e-3", "another training", 3)]
)
def test_a_small_excess_over_a_stored_curve_gets_all_copies(apart: str, verdict: str, copies: int) -> None:
    Path("train.py").write_text(TRAINING)

    def side(letter: str, *options: str) -> Subject:
        words = (sys.executable, "train.py", *options)
        return Subject(letter, " ".join(words), words)

    request, file = Request(Columns(), 3, ulp=True), Path("golden.json")
    with display() as progress:
        runner = Runner(Path("runs"), progress)
        assert same._store(file, side("A", "0"), request, runner, []).exit_code == 1
        new_side = same._read(side("B", apart), request, runner)
        comparison = same.compare(same.read_golden(file), new_side, request, runner)
    new = comparison.copies[1]
    assert (comparison.verdict, 0 if new is None else new.number) == (verdict, copies)


def test_a_stored_curve_that_is_not_there_is_no_passed_check() -> None:
    Path("a.csv").write_text("step,loss\n1,0.5\n2,0.25\n")
    first, second = (convtwins("same", "a.csv", "--golden", "golden.json") for _ in range(2))
    assert (first.exit_code, second.exit_code) == (1, 0)
    assert Path("golden.json").exists() and "Nothing was compared" in " ".join(first.stdout.split())

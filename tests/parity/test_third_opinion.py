"""What `parity --referee` says of differences to the referee."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from common import spec
from compare.__main__ import app
from compare.proof import parity, third_opinion
from compare.proof.third_opinion import Line


def line(framework: str = "pytorch", difference: float = 1e-15, tolerance: float | None = 1e-12, **fields: Any) -> Line:
    precision = "float32" if tolerance is None else "float64"
    values = {"precision": precision, "referee": "float64", "what": "loss of the first step", "where": None, **fields}
    return Line(model="simple_cnn", optimizer="sgd", framework=framework, difference=difference, tolerance=tolerance, **values)


def said(*lines: Line) -> str:
    return " ".join(sentence for _, sentences in parity.referee_report(lines).findings for sentence in sentences)


def test_a_difference_beyond_its_tolerance_names_the_framework_and_is_exit_code_1() -> None:
    both = line("pytorch", 1e-3), line("tensorflow", 1e-3)
    assert "1 of 2 comparisons passed. tensorflow differs from the referee" in said(line(), both[1])
    assert "0 of 2 comparisons passed. All frameworks differ from the referee" in said(*both)
    assert [parity.referee_report(lines).exit_code for lines in ([line()], both, [])] == [0, 1, 1]


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_difference_that_is_no_number_fails(bad: float) -> None:
    assert line(difference=bad).status == "failed"


def test_in_float32_the_closer_framework_is_named_by_how_much_and_for_which_machine() -> None:
    text = said(line(), line("pytorch", 4e-7, None), line("tensorflow", 1e-7, None))
    assert "tensorflow is 4.0 times as close (1.0e-07 against 4.0e-07)." in text
    assert "This is one step on one machine." in text and "a tie that rounding" not in text
    assert "both are as close" in said(line(), line("pytorch", 1e-7, None), line("tensorflow", 1e-7, None))
    gradients = {"what": "gradients of the first step"}
    flipped = said(line("pytorch", 1e-7, None, **gradients), line("tensorflow", 2e-2, None, **gradients))
    assert "a tie that rounding has flipped" in flipped


@pytest.mark.parametrize(("digits", "words"), [(52, "longdouble is float64"), (63, "a mantissa of 63 bits here")])
def test_the_output_says_what_longdouble_is_here(monkeypatch: pytest.MonkeyPatch, digits: int, words: str) -> None:
    class Float:
        def __init__(self, kind: Any) -> None:
            self.nmant = digits if kind is np.longdouble else 52

    monkeypatch.setattr(third_opinion.np, "finfo", Float)
    assert words in said(line(referee=np.dtype(np.longdouble).name))


def test_the_referee_trains_ten_float64_steps_of_what_is_timed() -> None:
    adam = {"optimizer": {"name": "adam", "learning_rate": 1e-3}, "accumulation": 4, "mode": "data_parallel", "replicas": 2}
    what = third_opinion.spec_of(spec.build({**adam, "schedule": {"name": "cosine"}, "cores": 2}))
    assert (what.steps, what.precision, what.mode, what.accumulation) == (10, "float64", "serial", 1)
    assert (what.optimizer.epsilon, what.schedule.name) == (third_opinion.EPSILON, "cosine")
    own = third_opinion.spec_of(spec.build({"optimizer": {"name": "adam", "epsilon": 1e-4}}))
    assert own.optimizer.epsilon == 1e-4


def test_the_command_asks_the_referee_instead_of_the_ladder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []

    def judge(specs: Any, frameworks: Any, out: Path, progress: Any) -> list[Line]:
        asked.extend(specs)
        return [line(), line("tensorflow", 1e-3)]

    monkeypatch.setattr(third_opinion, "judge", judge)
    done = CliRunner().invoke(app, ["parity", "--referee", "--model", "simple_cnn,resnet18", "--optimizer", "sgd", "--json"])
    assert done.exit_code == 1 and [each.model for each in asked] == ["simple_cnn", "resnet18"]
    assert [each["status"] for each in json.loads(done.stdout)["lines"]] == ["passed", "failed"]

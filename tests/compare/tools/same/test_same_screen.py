"""The first screens of `same`: the same, rounding, another training, not to be told, and stored."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from compare.tools.same import judging, same_report
from compare.tools.same.curves import Curve
from compare.tools.same.judging import Copies
from compare.tools.same.subjects import Subject
from tests.support.snapshots import Screens

STEPS = np.arange(1, 41)
A = (0.3 + 0.5 * np.exp(-STEPS / 15.0) + np.random.default_rng(3).normal(0, 0.03, 40)).astype(np.float32).astype(np.float64)
SIDES = (
    Subject("A", "python train.py", ("python", "train.py")),
    Subject("B", "torchrun --nproc_per_node=2 train.py", ("torchrun", "--nproc_per_node=2", "train.py")),
)
COPIES = Copies(np.linspace(1e-8, 1e-5, 40), 3, is_moved=True)


def shown(screens: Screens, b: object, copies: tuple[Copies | None, Copies | None] = (COPIES, COPIES)) -> str:
    losses = np.asarray(b, np.float64)
    curves = Curve("a", STEPS, A), Curve("b", STEPS[: len(losses)], losses)
    comparison = judging.judge(*curves, judging.align(*curves), copies)
    report = same_report.report(comparison, SIDES, [])
    assert report.exit_code == (0 if comparison.verdict in ("same", "rounding") else 1)
    return " ".join(screens(report).split())


def test_the_same_losses_are_said(screens: Screens) -> None:
    assert "bit for bit" in shown(screens, A)


def test_rounding_is_said_with_where_its_limit_comes_from(screens: Screens) -> None:
    text = shown(screens, A * (1 + 1e-7))
    assert "smallest change of inputs" in text and "by 1.0e-07 of the larger loss" in text


def test_another_training_is_said_with_its_step_cause_and_experiment(screens: Screens) -> None:
    faster = A + 0.5 * (np.exp(-2 * (STEPS - 1) / 15.0) - np.exp(-(STEPS - 1) / 15.0))
    text = shown(screens, faster)
    assert "B starts 2 processes" in text and "Divide B's learning rate by 2" in text


def test_what_is_not_to_be_told_names_the_command_that_tells(screens: Screens) -> None:
    assert "--copies 3 --ulp" in shown(screens, A * (1 + 1e-7), (None, None))


def test_equal_copies_say_what_the_measure_was(screens: Screens) -> None:
    equal = Copies(np.zeros(40), 3, is_moved=False)
    text = shown(screens, A * (1 + 1e-7), (equal, equal))
    assert "8 roundings of float32" in text and "equal" in text and "rounding at most" in text


def test_a_side_that_ends_early_is_no_yes(screens: Screens) -> None:
    assert "--steps 30" in shown(screens, A[:30] * (1 + 1e-8), (COPIES._replace(rounding=COPIES.rounding[:30]), None))


def test_a_stored_curve_says_what_to_do_with_it(screens: Screens) -> None:
    report = same_report.stored_report(Path("golden.json"), SIDES[0], Curve("a", STEPS, A.round(4)), [])
    assert report.exit_code == 1
    assert "golden.json" in screens(report)


def test_the_plot_shows_the_differences_of_the_table() -> None:
    curves = Curve("a", STEPS, A), Curve("b", STEPS, A * (1 + 1e-3))
    comparison = judging.judge(*curves, judging.align(*curves), (COPIES, COPIES))
    figure = Figure()
    assert same_report.report(comparison, SIDES, []).drawings["losses"](figure)
    differences, limit = figure.axes[1].get_lines()
    assert figure.axes[1].get_ylabel() == "difference / larger loss"
    assert np.array_equal(np.asarray(differences.get_ydata()), comparison.relative)
    assert np.allclose(np.asarray(limit.get_ydata()), comparison.limit / curves[1].losses)

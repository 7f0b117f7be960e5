import io
import re

import pytest
from rich.console import Console

from compare.cli import progress
from tests.support import comparisons


@pytest.mark.parametrize(
    ("jobs", "seconds", "left"),
    [
        ([], {"a": [1.0]}, 0.0),
        (["a", "b"], {}, 0.0),
        (["a", "a"], {"a": [2.0, 4.0]}, 6.0),
        (["b"], {"a": [2.0, 4.0]}, 3.0),  # never run: the mean of what has run
    ],
)
def test_the_time_left_is_by_row(jobs: list[str], seconds: dict[str, list[float]], left: float) -> None:
    assert progress.time_left(jobs, seconds) == left


def test_a_terminal_shows_epoch_loss_accuracy_and_time_left() -> None:
    output = io.StringIO()
    with progress.display(Console(file=output, force_terminal=True, width=120)) as shown:
        shown.plan(["a", "b"])
        shown.begin("a", "a")
        shown.watch(
            [{"event": "start", "total_epochs": 3}, {"event": "epoch", "epoch": 2, "train": {"loss": 0.5, "accuracy": 0.75}}]
        )
        shown._progress.refresh()
        assert re.search(r"about 0:0\d left", output.getvalue())  # known before the first run has ended
        shown.end()
        shown._progress.refresh()
    assert "epoch 2/3  loss 0.5000  accuracy 0.7500" in output.getvalue()
    assert re.search(r"about 0:0\d left", output.getvalue())


def test_the_time_left_of_runs_that_work_together_is_that_of_their_round() -> None:
    """Two rounds of three runs, 30 s each. All seconds are shared, whoever ends first."""
    now, output = [0.0], io.StringIO()
    events = [{"event": "start", "total_epochs": 3}, {"event": "epoch", "epoch": 1, "train": None}]
    with progress.display(Console(file=output, force_terminal=True, width=120), lambda: now[0]) as shown:

        def left() -> str:
            return str(shown._progress.tasks[0].fields["facts"])

        shown.plan([*"abc"] * 2)
        shown.begin("a", "a and 2 more in turns", 0.0, 3, 3)
        now[0] = 10.0
        shown.watch(events)
        assert left() == "about 0:50 left", "20 s of this round, and the other one"
        now[0] = 29.0
        for number, name in enumerate("cab"):
            shown.begin(name, name, now[0], 3, 3 - number)
            shown.end()
            assert left() == f"about 0:{(29, 29, 30)[number]} left", "the others of the round end too"
            now[0] += 0.5
        shown.begin("c", "c and 2 more in turns", 0.0, 3, 3)
        now[0] = 40.0
        shown.watch(events)
        assert left() in ("about 0:19 left", "about 0:20 left")


def test_a_pipe_has_a_line_for_each_run_that_ends_with_how_many_are_left_and_how_long() -> None:
    clock, row = iter((0.0, 0.0, 62.0, 70.0, 80.0)), comparisons.row("pytorch")
    good, bad = comparisons.good(row, 1.0), comparisons.bad(row, "killed", "killed by SIGKILL", 0)
    output = io.StringIO()
    with progress.display(Console(file=output, width=20), clock.__next__) as shown:
        shown.say("anything")
        shown.plan(["a", "a"])
        assert output.getvalue() == ""
        shown.stage("layers")
        for label, result in (("a (1 of 2)", good), ("a (2 of 2)", bad)):
            shown.begin("a", label)
            shown.watch([])
            shown.end(result, "disturbed: 0.97 cores taken" if result is good else "")
    assert output.getvalue() == (
        "layers ...\na (1 of 2): 1:02; 1 left, about 1:02; disturbed: 0.97 cores taken.\n"
        "a (2 of 2), killed (killed by SIGKILL): 0:10.\n"
    )


def test_an_open_plan_says_nothing_of_what_is_left() -> None:
    output = io.StringIO()
    with progress.display(Console(file=output, width=20), lambda: 0.0) as shown:
        shown.plan([])
        shown.begin("a", "a, pair 1 of at most 30")
        shown.end(None, "disturbed")
    assert output.getvalue() == "a, pair 1 of at most 30: 0:00; disturbed.\n"

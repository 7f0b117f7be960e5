"""`run --until-decided` with fake twins whose times are drawn."""

import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from common.artifacts import results
from common.artifacts.schema import Noise, RunResult
from common.spec import SpecError
from compare.cli.interrupt import Interrupted
from compare.comparison import executor
from compare.results import store
from compare.running.matrix import Row
from compare.statistics import until_decided
from compare.statistics.until_decided import UntilDecided
from tests.support import comparisons, trees
from tests.support.command_line import convtwins, convtwins_json
from tests.support.statements import in_words

ASKED = ("--modes", "serial", "--cores", "1", "--frameworks", "left,right", "--no-proof", "--no-turns")


class Runs:
    """Runs whose seconds are drawn. Those of `right` take so many times as long, and may fail from a repeat on.

    Those of another mode than serial take a fifth of that, and of `right` a third."""

    def __init__(self, patch: pytest.MonkeyPatch, noise: float, slower: float = 1.0) -> None:
        self.made, self.noise, self.slower = list[tuple[str, int]](), noise, slower
        self.interrupt_at = self.fail_from = math.inf
        self.disturbed = list[tuple[str, int]]()
        """(contestant, repeat) of runs that other work disturbs, once for each entry."""
        self._draw = np.random.default_rng(2)
        patch.setattr(executor, "execute", self._execute)  # a process each would take minutes

    def _execute(
        self, contestant: object, row: Row, repeat: int, folder: Path, watch: object, restarts: int = 0, **_: object
    ) -> RunResult:
        if len(self.made) == self.interrupt_at:
            self.interrupt_at = math.inf
            raise Interrupted(signal.SIGINT)
        self.made.append((row.id, repeat))
        seconds = math.exp(self._draw.normal(0.0, self.noise)) * (self.slower if row.contestant == "right" else 1.0)
        if row.spec.mode != "serial":
            seconds /= 3.0 if row.contestant == "right" else 5.0
        result = comparisons.good(row, seconds, repeat)
        if row.contestant == "right" and repeat >= self.fail_from:
            result = comparisons.with_fields(comparisons.bad(row, "failed", "no more memory", 0), repeat=repeat)
        if (row.contestant, repeat) in self.disturbed:
            self.disturbed.remove((row.contestant, repeat))
            result = comparisons.with_fields(result, noise=Noise(cores_taken=0.4))
        results.save(result, store.run_folder(folder, row.id, repeat))
        return result


def decided(*words: object, exit_code: int = 0) -> tuple[int, str, list[str]]:
    """(repeats, the sentence on the decision, verdicts) of a comparison."""
    printed = convtwins_json("run", *words, exit_code=exit_code)
    findings = printed["findings"]
    return printed["comparison"]["repeats"], findings["surety"][0], [judged["verdict"] for judged in findings["verdicts"]]


@pytest.mark.parametrize(
    ("noise", "slower", "least", "verdict"),
    [
        (0.01, 1.3, 5, "above"),
        (0.01, 1.0, 5, "no difference that matters"),
        (0.04, 1.0, 8, "no difference that matters"),
        (0.04, 1.08, 7, "above"),
    ],
)
def test_repeats_are_added_until_every_question_is_decided(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, snapshot: SnapshotAssertion,
    noise: float, slower: float, least: int, verdict: str,
) -> None:  # fmt: skip
    runs = Runs(fake_twins, noise, slower)
    repeats, sentence, verdicts = decided(*ASKED, "--until-decided", "--out", tmp_path / "out")
    assert repeats == least and len(runs.made) == 2 * repeats and len(set(runs.made)) == len(runs.made)
    assert verdicts == [verdict]
    assert sentence == snapshot
    (contestants, *_) = in_words(store.read(tmp_path / "out"))["contestants"]
    assert ("no difference of 5 % or more between left and right" in contestants) == (verdict != "above")


def test_a_repeat_runs_the_rows_of_open_questions_alone(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All questions about the parallel rows are decided after 5 repeats, that of the serial rows later."""
    runs = Runs(fake_twins, 0.04)
    asked = ("--modes", "serial,data_parallel", "--cores", "2", "--frameworks", "left,right", "--no-proof", "--no-turns")
    repeats, sentence, verdicts = decided(*asked, "--until-decided", "--out", tmp_path / "out")
    assert repeats > 6 and set(verdicts) == {"above", "no difference that matters"}
    made_of = {row: [repeat for each, repeat in runs.made if each == row] for row, _ in runs.made}
    serial = [row for row in made_of if "serial-2cores" in row]
    parallel = [row for row in made_of if "data_parallel" in row]
    assert len(serial) == len(parallel) == 2
    assert all(made_of[row] == list(range(repeats)) for row in serial)
    assert all(made_of[row] == list(range(5)) for row in parallel)
    assert "ran fewer times" in sentence
    plan = store.read_plan(tmp_path / "out")
    assert all(plan.repeats_of(row) == made_of[row] for row in made_of)
    rehearsed = convtwins_json(
        "run", "--resume", tmp_path / "out", "--again", "disturbed", "--dry-run", "--from", tmp_path / "out"
    )
    assert rehearsed["runs"] == []
    assert f"5 to {repeats} repeats" in convtwins("report", tmp_path / "out").stdout
    decided("--resume", tmp_path / "out")
    assert len(runs.made) == len(set(runs.made)) == sum(map(len, made_of.values()))
    decided("--resume", tmp_path / "out", "--repeats", repeats + 1)
    assert {row for row, repeat in runs.made if repeat == repeats} == set(made_of)


def test_the_most_repeats_end_what_is_not_decided(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    runs = Runs(fake_twins, 0.2)
    wanted = ("--until-decided", "--most-repeats", "6", "--smallest-effect", "2%", "--out", tmp_path / "out")
    repeats, sentence, verdicts = decided(*ASKED, *wanted)
    assert (repeats, verdicts, len(runs.made)) == (6, ["no difference shown"], 12)
    more, next_sentence, _ = decided("--resume", tmp_path / "out", "--most-repeats", "7")
    assert more == 7 and len(runs.made) == 14 and [sentence, next_sentence] == snapshot


@pytest.mark.parametrize(
    ("disturbed", "made_again", "is_decided"),
    [
        ([("left", 1)], [1], True),
        ([("left", 1), ("right", 1)], [1], True),
        ([("left", 1), ("left", 1)], [1, 1], True),
        ([("left", 1), ("right", 3)], [1, 3], True),
        ([("left", 1)] * 3, [1, 1], False),
        ([("left", 1), ("left", 2), ("right", 3)], [], False),
    ],
)
def test_disturbed_repeats_are_made_again_within_the_most_rounds(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path,
    disturbed: list[tuple[str, int]], made_again: list[int], is_decided: bool,
) -> None:  # fmt: skip
    runs = Runs(fake_twins, 0.01, 1.3)
    runs.disturbed = [*disturbed]
    printed = convtwins_json("run", *ASKED, "--until-decided", "--most-repeats", "7", "--out", tmp_path / "out")
    (judged,) = printed["findings"]["verdicts"]
    assert (judged["disturbed"], judged["verdict"]) == (not is_decided, "above")
    assert printed["comparison"]["repeats"] == 5
    made = sorted(repeat for row, repeat in runs.made if row.startswith("left"))
    assert made == sorted([*range(5), *made_again]) and len(runs.made) == 2 * len(made)
    again = len(runs.made)
    convtwins("run", "--resume", tmp_path / "out").succeeded()
    assert len(runs.made) == again


def test_repeats_that_were_made_again_are_among_the_most(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = Runs(fake_twins, 0.2)
    runs.disturbed = [("left", 1)]
    repeats, sentence, verdicts = decided(*ASKED, "--until-decided", "--most-repeats", "7", "--out", tmp_path / "out")
    assert (repeats, verdicts, len(runs.made)) == (6, ["no difference shown"], 2 * 7)
    assert "The most is 7 (--most-repeats), those made again included." in sentence and "--resume" not in sentence


def test_where_every_run_is_disturbed_it_is_said_at_once_and_no_repeats_are_added(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = Runs(fake_twins, 0.2)
    runs.disturbed = [(side, repeat) for side in ("left", "right") for repeat in range(7)]
    done = convtwins("run", *ASKED, "--until-decided", "--most-repeats", "7", "--out", tmp_path / "out").succeeded()
    assert len(runs.made) == 2 * 5
    assert done.stderr.count("--again disturbed") == 1
    assert done.stderr.index("--again disturbed") < done.stderr.index("(2 of at most 7)")


@pytest.mark.parametrize("interrupt_at", [1, 5, 11])
def test_an_interrupted_decision_blames_no_run_and_is_continued_and_no_run_is_made_twice(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, snapshot: SnapshotAssertion, interrupt_at: int
) -> None:
    runs = Runs(fake_twins, 0.04)
    runs.interrupt_at = interrupt_at
    _, sentence, _ = decided(*ASKED, "--until-decided", "--out", tmp_path / "out", exit_code=130)
    repeats, later, _ = decided("--resume", tmp_path / "out")
    assert [sentence, later] == snapshot
    assert len(runs.made) == len(set(runs.made)) == 2 * repeats


def test_a_finished_comparison_may_be_decided_later(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Runs(fake_twins, 0.01)
    convtwins("run", *ASKED, "--repeats", "2", "--out", tmp_path / "out").succeeded()
    assert decided("--resume", tmp_path / "out", "--until-decided")[0] == 5
    plan = store.read_plan(tmp_path / "out")
    assert plan.settings.until == UntilDecided()
    assert plan.argv[-5:] == ["--until-decided", "--most-repeats", "30", "--smallest-effect", "0.05"]


@pytest.mark.parametrize(("fail_from", "words"), [(0, "no two runs can be compared"), (2, "Fewer than half of these repeats")])
def test_a_row_that_fails_adds_no_repeats_for_ever(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, fail_from: int, words: str
) -> None:
    Runs(fake_twins, 0.01).fail_from = fail_from
    repeats, sentence, _ = decided(*ASKED, "--until-decided", "--out", tmp_path / "out", exit_code=1)
    assert repeats == 5 and words in sentence


def test_a_spec_file_names_the_same_fields_and_options_come_before_it(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Runs(fake_twins, 0.01)
    values = {"until_decided": True, "most_repeats": 12, "smallest_effect": "3%", "cores": 1}
    file = trees.write(tmp_path, {"run.yaml": values}) / "run.yaml"
    decided("--spec", file, *ASKED, "--most-repeats", "9", "--out", tmp_path / "out")
    assert store.read_plan(tmp_path / "out").settings.until == UntilDecided(most_repeats=9, smallest_effect=0.03)


def test_a_dry_run_says_how_many_repeats_there_may_be(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Runs(fake_twins, 0.0)
    words = ("run", *ASKED, "--until-decided", "--dry-run")
    plain = convtwins_json(*words, "--most-repeats", "8")
    assert len(plain["runs"]) == 10 and plain["most_repeats"] == 8
    assert plain["most_seconds"] == pytest.approx(1.6 * plain["seconds"])
    assert "(--until-decided): at most 30 of each row" in " ".join(convtwins(*words).stdout.split())


@pytest.mark.parametrize(("text", "effect"), [("5%", 0.05), ("5 %", 0.05), ("0.05", 0.05), (".5%", 0.005), ("2.5%", 0.025)])
def test_an_effect_is_a_percentage_or_a_fraction(text: str, effect: float) -> None:
    asked = until_decided.stopping_rule_from_options(True, None, text, None)
    assert asked is not None and asked.smallest_effect == pytest.approx(effect)


@pytest.mark.parametrize(
    "values", [{"until_decided": "yes"}, {"until_decided": True, "most_repeats": 9.5}, {"most_repeats": 9}]
)
def test_wrong_fields_of_a_spec_file_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        until_decided.split_stopping_rule(values)

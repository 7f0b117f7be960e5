"""Repeats that other work disturbed, made again."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from common.artifacts import results
from common.artifacts.schema import Noise
from compare.cli import wording
from compare.comparison import reruns
from compare.comparison import run as comparison_run
from compare.judgement.run_figures import disturbing_cores, epoch_seconds
from compare.judgement.run_pairs import comparable_runs, pairs_of_seconds, ratio_of_seconds
from compare.proof import ladder
from compare.results import store
from compare.results.store import StoredComparison
from compare.running.matrix import Row
from compare.statistics.statistics import SIGNIFICANCE, Ratio
from tests.compare.conftest import behave
from tests.support import comparisons
from tests.support.command_line import convtwins, convtwins_json
from tests.support.statements import in_words

QUICK = ("--frameworks", "left,right", "--cores", "2", "--no-proof", "--modes", "serial", "--no-one-core", "--repeats", "3")
DISTURBED = "right-serial-2cores"


@pytest.fixture
def folder(fake_twins: pytest.MonkeyPatch, kept: Path, tmp_path: Path) -> Path:
    """Results of two rows with three repeats each. Other work took cores from one run of the second repeat."""
    if not kept.exists():
        behave(fake_twins, right__serial__2="disturbed in 1")
        convtwins("run", *QUICK, "--out", kept).succeeded()
        behave(fake_twins)
    return shutil.copytree(kept, tmp_path / "out")


def made_at(folder: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in (folder / "runs").glob("*/result.json")}


def test_all_runs_of_a_disturbed_repeat_are_made_again_and_no_others(folder: Path) -> None:
    before = made_at(folder)
    report = convtwins_json("run", "--resume", folder, "--again", "disturbed")
    after = made_at(folder)
    again = {f"{row}-serial-2cores-r1" for row in ("left", "right")}
    assert {name for name in before if after[name] != before[name]} == again
    assert {name: after[f"{name}.replaced1"] for name in again} == {name: before[name] for name in again}
    (caution,) = [sentence for sentence in report["findings"]["troubles"] if "--again disturbed" in sentence]
    assert "Repeat 2 was made again" in caution and "2 runs in all" in caution and f"{DISTURBED}, repeat 2: 0.40" in caution
    assert not any(disturbing_cores(run) for runs in store.read(folder).runs.values() for run in runs.values())


def test_a_framework_does_not_decide_what_is_made_again(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for side in ("left", "right"):
        behave(fake_twins, **{f"{side}__serial__2": "disturbed in 2"})
        convtwins("run", *QUICK, "--out", tmp_path / side)
        behave(fake_twins)
        convtwins("run", "--resume", tmp_path / side, "--again", "disturbed")
        replaced = [(run.row, run.repeat) for run in store.read_plan(tmp_path / side).replaced]
        assert replaced == [("left-serial-2cores", 2), ("right-serial-2cores", 2)]


def test_a_second_time_both_old_runs_are_kept_and_without_a_disturbance_nothing_happens(
    fake_twins: pytest.MonkeyPatch, folder: Path
) -> None:
    behave(fake_twins, right__serial__2="disturbed in 1")
    convtwins("run", "--resume", folder, "--again", "disturbed")
    behave(fake_twins)
    convtwins("run", "--resume", folder, "--again", "disturbed")
    for number in (1, 2):
        assert disturbing_cores(results.load(folder / "runs" / f"{DISTURBED}-r1.replaced{number}" / "result.json")) == 0.4
    before = made_at(folder)
    convtwins("run", "--resume", folder, "--again", "disturbed").succeeded()
    assert made_at(folder) == before
    assert len(store.read_plan(folder).replaced) == 4


def test_a_kill_between_the_record_and_the_move_loses_no_run(
    fake_twins: pytest.MonkeyPatch, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        real, calls = store.archive_replaced_runs, list[int]()

        def killed(*arguments: object) -> None:
            calls.append(1)
            if len(calls) > 1:
                raise KeyboardInterrupt
            real(*arguments)  # type: ignore[arg-type]

        patch.setattr(store, "archive_replaced_runs", killed)  # the kill
        assert convtwins("run", "--resume", folder, "--again", "disturbed").exit_code != 0
    assert not store.read(folder).set_aside
    before = made_at(folder)
    convtwins("run", "--resume", folder).succeeded()
    assert made_at(folder)[f"{DISTURBED}-r1.replaced1"] == before[f"{DISTURBED}-r1"]
    assert not any(disturbing_cores(run) for runs in store.read(folder).runs.values() for run in runs.values())


@pytest.mark.parametrize("change", ["removed", "changed"])
def test_a_replaced_run_that_is_not_as_it_was_is_said(folder: Path, change: str) -> None:
    convtwins("run", "--resume", folder, "--again", "disturbed")
    path = folder / "runs" / f"{DISTURBED}-r1.replaced1" / "result.json"
    if change == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes().replace(b"0.4", b"0.9"))
    done = convtwins("report", folder)
    assert done.exit_code == 1
    assert f"{DISTURBED}-r1.replaced1/result.json" in " ".join(done.stdout.split())


def test_a_dry_run_lists_what_would_be_made_again(folder: Path) -> None:
    before = made_at(folder)
    done = convtwins("run", "--resume", folder, "--again", "disturbed", "--dry-run", "--from", folder)
    assert "2 runs: about" in done.stdout
    assert made_at(folder) == before


def test_a_matrix_makes_the_disturbed_repeats_of_its_comparisons_again(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    behave(fake_twins, left__serial__2="disturbed in 0")
    convtwins("run", *QUICK, "--batch-size", "32,64", "--out", tmp_path / "out")
    behave(fake_twins)
    convtwins("run", "--resume", tmp_path / "out", "--again", "disturbed").succeeded()
    cells = sorted((tmp_path / "out").glob("*/compare.json"))
    assert [len(store.read_plan(path.parent).replaced) for path in cells] == [2, 2]


ROWS = [comparisons.row("pytorch"), comparisons.row("tensorflow"), comparisons.row("jax")]
QUIET, OTHER, LOUD = ROWS


def run(row: Row, repeat: int, seconds: float, taken: float) -> store.RunResult:
    return comparisons.with_fields(comparisons.good(row, seconds, repeat), noise=Noise(cores_taken=taken))


def of_three(seconds: np.ndarray, loud: int) -> StoredComparison:
    """Three rows. Other work took cores from the last one in one repeat. `seconds` are [row, repeat]."""
    repeats = seconds.shape[1]
    return StoredComparison(
        comparison=comparisons.comparison(ROWS, repeats),
        runs={
            row.id: {
                repeat: run(row, repeat, float(own[repeat]), 0.4 if (row, repeat) == (LOUD, loud) else 0.0)
                for repeat in range(repeats)
            }
            for row, own in zip(ROWS, seconds, strict=True)
        },
        set_aside=[],
        made_from={store.result_path(row.id, repeat): "0" * 64 for row in ROWS for repeat in range(repeats)},
    )


def again(stored: StoredComparison, seconds: np.ndarray, loud: int | None = None) -> StoredComparison:
    """As `--again disturbed` leaves it: the disturbed repeat has new runs of all rows, and another one may be disturbed then.

    Args:
        seconds: [row], of the new runs.
        loud: the repeat in which the last row's run is disturbed now.
    """
    chosen = reruns.select_disturbed(stored)
    comparison = comparisons.with_fields(stored.comparison, replaced=[*stored.comparison.replaced, *chosen])
    replaced = {repeat: dict(numbers) for repeat, numbers in stored.replaced.items()}
    runs = {row: dict(own) for row, own in stored.runs.items()}
    for each in chosen:
        old = runs[each.row][each.repeat]
        own = replaced.setdefault(each.repeat, {})
        own[each.number] = {**own.get(each.number, {}), each.row: old}
        number = [row.id for row in ROWS].index(each.row)
        runs[each.row][each.repeat] = run(ROWS[number], each.repeat, float(seconds[number]), 0.0)
    made_from = {path: f"{len(comparison.replaced):064d}" for path in stored.made_from}
    stored = comparisons.with_fields(stored, comparison=comparison, replaced=replaced, runs=runs, made_from=made_from)
    return stored if loud is None else disturbed(stored, LOUD, loud)


def disturbed(stored: StoredComparison, row: Row, repeat: int) -> StoredComparison:
    return comparisons.with_runs(stored, row.id, [repeat], noise=Noise(cores_taken=0.4))


def test_two_undisturbed_runs_stay_a_pair_and_the_disturbed_one_gets_new_partners() -> None:
    before = of_three(np.array([[2.0] * 5, [3.0] * 5, [4.0] * 5]), loud=1)
    after = again(before, np.array([7.0, 7.0, 8.0]))
    assert {each.row for each in after.comparison.replaced} == {row.id for row in ROWS}
    assert pairs_of_seconds(after, OTHER, QUIET) == pairs_of_seconds(before, OTHER, QUIET)
    assert pairs_of_seconds(after, LOUD, QUIET)[1] == (8.0, 7.0)
    # The one that was disturbed at first is quiet now, and another one is not: the new pair stays too.
    last = again(disturbed(after, QUIET, 1), np.array([9.0, 9.0, 9.0]))
    assert pairs_of_seconds(last, OTHER, QUIET) == pairs_of_seconds(before, OTHER, QUIET)
    assert pairs_of_seconds(last, LOUD, OTHER)[1] == (8.0, 7.0)
    assert pairs_of_seconds(last, LOUD, QUIET)[1] == (9.0, 9.0)


def test_against_other_results_an_undisturbed_run_stays_too() -> None:
    before = of_three(np.array([[2.0] * 5, [3.0] * 5, [4.0] * 5]), loud=1)
    after = again(before, np.array([7.0, 7.0, 8.0]))
    seconds = {row.id: [epoch_seconds(each) for each in comparable_runs(after, row).values()] for row in ROWS}
    assert seconds == {QUIET.id: [2.0] * 5, OTHER.id: [3.0] * 5, LOUD.id: [4.0, 8.0, 4.0, 4.0, 4.0]}


@pytest.mark.slow
def test_whoever_makes_repeats_again_until_equal_runs_differ_has_no_more_false_alarms() -> None:
    """Planted: all runs of a repeat counted anew, whoever was disturbed. A verdict was then given as often as one liked."""
    draw, tries, rounds = np.random.default_rng(7), 400, 6

    def is_alarm(stored: StoredComparison, *, newest: bool = False) -> bool:
        stored = comparisons.with_fields(stored, replaced={}) if newest else stored
        ratio = ratio_of_seconds(stored, OTHER, QUIET)
        assert isinstance(ratio, Ratio) and ratio.p is not None and ratio.has_enough_pairs
        return ratio.p < SIGNIFICANCE

    alarms, of_newest = 0, 0
    for _ in range(tries):
        seconds = np.exp(draw.normal(0.0, 0.03, (rounds, 3, 5)))
        stored = of_three(seconds[0], loud=0)
        found, found_newest = is_alarm(stored), is_alarm(stored)
        for number in range(1, rounds):
            stored = again(stored, seconds[number, :, 0], loud=number % 5)
            found |= is_alarm(stored)
            found_newest |= is_alarm(stored, newest=True)
        alarms, of_newest = alarms + found, of_newest + found_newest
    assert alarms <= SIGNIFICANCE * tries
    assert of_newest > 2 * SIGNIFICANCE * tries  # what the rule prevents


def test_the_caution_shows_whether_replaced_repeats_favoured_a_side() -> None:
    stored = again(of_three(np.array([[2.0] * 5, [3.0] * 5, [4.0] * 5]), loud=1), np.array([7.0, 7.0, 8.0]))
    (sentence,) = [sentence for sentence in in_words(stored)["troubles"] if "--again disturbed" in sentence]
    assert "Repeat 2 " in sentence and "3 runs in all" in sentence
    assert "jax-serial-2 over pytorch-serial-2: 2.000 in the 1 old pair, 1.143 now" in sentence
    assert "jax-serial-2 over tensorflow-serial-2: 1.333 in the 1 old pair, 1.143 now" in sentence


def test_runs_are_set_apart_after_the_proof_and_not_called_made_again_before_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = made_at(folder)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ladder, "prove_rows", killed)  # here Ctrl-C comes
        plan = store.read_plan(folder)
        argv = [word for word in plan.argv if word != "--no-proof"]
        store.write_plan(folder, comparisons.with_fields(plan, settings__prove=True, argv=argv))
        assert convtwins("run", "--resume", folder, "--again", "disturbed").exit_code == 130
    assert made_at(folder) == before and not store.read_plan(folder).replaced
    store.write_plan(folder, plan)
    with monkeypatch.context() as patch:
        patch.setattr(comparison_run, "run_all", killed)  # and here
        assert convtwins("run", "--resume", folder, "--again", "disturbed").exit_code != 0
    troubles = convtwins_json("report", folder, exit_code=1)["findings"]["troubles"]
    (caution,) = [sentence for sentence in troubles if "--again disturbed" in sentence]
    assert "Repeat 2 was set apart" in caution
    assert wording.command("run", "--resume", str(folder)) in (folder / "report.md").read_text().replace("\\", "")

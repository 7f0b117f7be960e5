import math
import threading
from pathlib import Path
from typing import Any

import filelock
import pytest
from syrupy.assertion import SnapshotAssertion

from common.artifacts.schema import Noise
from compare.results import store, workspace
from compare.results.store import StoredComparison
from compare.tools.machines import merge_report, questions
from tests.support import comparisons, trees
from tests.support.command_line import convtwins, convtwins_json
from tests.support.refusals import check_ended
from tests.support.snapshots import Screens


def of_machine(number: int, times: float = 1.0, host: int | None = None, **plan: Any) -> StoredComparison:
    """`comparisons.repeated` on a machine of its own, or on that of `host`. TensorFlow is so many times as fast there."""
    stored = comparisons.repeated()
    for row_id, runs in stored.runs.items():
        for repeat, run in runs.items():
            factor = (1.0 / times if row_id.startswith("tensorflow") else 1.0) * (1.0 + 1e-6 * number)  # no run is another's
            runs[repeat] = comparisons.paced(run, factor)
    host = host or number
    return comparisons.with_plan(stored, **{"machine": {"processor": f"CPU {host}", "cores": 2, "host": f"host{host}"}, **plan})


def folders(at: Path, *stored: StoredComparison) -> list[Path]:
    return [comparisons.stored_in(each, at / str(place)) for place, each in enumerate(stored)]


def merged(at: Path, *stored: StoredComparison) -> questions.MergedComparisons:
    return questions.merge(questions.read_machines(folders(at, *stored)))


def question(found: questions.MergedComparisons, where: str = "serial on all cores") -> questions.Question:
    (one,) = (each for each in found.questions if each.subject.where == where)
    return one


def test_four_machines_are_told_one_by_one_and_given_no_average(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    stored = [of_machine(number, times) for number, times in enumerate((1.2, 1.4, 1.3, 0.8))]
    printed = convtwins_json("merge", *folders(tmp_path, *stored))
    assert printed["work"] == "simple_cnn on digits, batch 64, float32"
    assert {title: printed["findings"][title] for title in ("Who is faster?", "How sure is that?")} == snapshot
    assert question(merged(tmp_path, *stored)).overall is None


def test_five_machines_have_an_average_with_an_interval(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    times = (1.2, 1.4, 1.3, 1.1, 1.25)
    found = merged(tmp_path, *(of_machine(number, each) for number, each in enumerate(times)))
    asked = question(found)
    assert asked.overall is not None and asked.judged is not None
    expected = math.exp(-sum(map(math.log, times)) / 5) * 4.01 / 4.0
    assert asked.overall.ratio.value == pytest.approx(expected, rel=0.01)
    assert asked.judged.verdict == "below" and asked.overall.ratio.n == 5
    sentences = dict(merge_report.report(found, None).findings)
    assert {title: sentences[title] for title in ("Who is faster?", "How sure is that?")} == snapshot


def test_two_folders_of_one_machine_are_one_machine(tmp_path: Path) -> None:
    asked = question(merged(tmp_path, of_machine(1, 1.2), of_machine(3, 1.3, host=1), of_machine(2, 1.2)))
    assert [(each.machine.name, each.seconds.ratio.n) for each in asked.answers] == [("M1", 10), ("M2", 5)]


def test_modes_are_asked_too_and_frameworks_in_another_order_are_the_same_question(tmp_path: Path) -> None:
    rows = comparisons.repeated().comparison.rows
    found = merged(tmp_path, of_machine(1, 1.2), of_machine(2, 1.2, rows=rows[2:] + rows[:2]))
    assert {(each.subject.above, each.subject.below, each.subject.where) for each in found.questions} == {
        ("pytorch", "tensorflow", "serial on all cores"),
        ("pytorch", "tensorflow", "data_parallel x2"),
        ("pytorch data_parallel x2", "serial on as many cores", ""),
        ("tensorflow data_parallel x2", "serial on as many cores", ""),
    }
    for each in found.questions:
        first, second = (answer.seconds.ratio.value for answer in each.answers)
        assert first == pytest.approx(second, rel=1e-5)


@pytest.mark.parametrize("data", [None, {"loading": "streaming"}, {"normalization": "half"}], ids=["content", "fed", "scaled"])
def test_other_work_or_the_same_data_fed_in_another_way_is_another_question(
    tmp_path: Path, data: dict[str, Any] | None
) -> None:
    other = comparisons.other_work(of_machine(2), data=data) if data else of_machine(2, data_hash="other")
    check_ended(convtwins("merge", *folders(tmp_path, of_machine(1), other)), names=["two machines"])


def test_disturbed_rows_and_untrained_sameness_do_not_count(tmp_path: Path) -> None:
    disturbed = comparisons.with_runs(of_machine(2), "pytorch-serial-2", noise=Noise(cores_stolen=1.0))
    unlike = comparisons.with_runs(of_machine(3), "pytorch-serial-2", weights_hash="others")
    found = merged(tmp_path, of_machine(1), disturbed, unlike, of_machine(4))
    assert [each.machine.name for each in question(found).answers] == ["M1", "M4"]
    assert any("M2" in each and "pytorch-serial-2" in each for each in found.left_out)
    assert any("M3" in each and "trained the same" in each for each in found.left_out)


def test_a_comparison_that_is_not_proved_does_not_count(tmp_path: Path) -> None:
    refuted = store.ProofRecord(verdict="not proved", sentence="not proved: 1 of 9 rungs failed")
    found = merged(tmp_path, of_machine(1), of_machine(2, proof=refuted), of_machine(3))
    assert {answer.machine.name for each in found.questions for answer in each.answers} == {"M1", "M3"}


def test_questions_of_one_name_keep_their_own_verdicts_and_are_told_apart(tmp_path: Path) -> None:
    """Two learning rates on five machines. With one TensorFlow is faster, with the other PyTorch."""
    slow = [of_machine(number, 1.0 / (1.5 + 0.1 * number)) for number in range(1, 6)]
    fast = [
        comparisons.other_work(of_machine(number + 10, 1.5 + 0.1 * number, host=number), optimizer={"learning_rate": 0.5})
        for number in range(1, 6)
    ]
    found = merged(tmp_path, *slow, *fast)
    serial = [each for each in found.questions if each.subject.where == "serial on all cores"]
    assert len(serial) == 2 and len({each.subject.name for each in found.questions}) == len(found.questions)
    for each in serial:
        assert each.overall is not None and each.judged is not None
        assert each.judged.ratio == each.overall.ratio
        assert each.judged.verdict == ("above" if each.overall.ratio.value > 1 else "below")
    assert {"optimizer.learning_rate 0.05" in each.subject.name for each in serial} == {True, False}


def test_a_machine_whose_host_is_unknown_is_no_other_machine(tmp_path: Path) -> None:
    machines = questions.read_machines(folders(tmp_path, of_machine(7, machine={}), of_machine(1), of_machine(2)))
    assert [len(each.folders) for each in machines] == [1, 1, 1]


def test_a_run_that_was_sent_twice_is_refused_and_so_is_one_folder(tmp_path: Path) -> None:
    first, again = folders(tmp_path, of_machine(1), of_machine(1))
    check_ended(convtwins("merge", first, again), names=[first, again, "same run"])
    check_ended(convtwins("merge", first, first.parent / "." / first.name, first), names=["twice"])


@pytest.mark.drawn
def test_the_report_is_written_and_never_over_something_else(tmp_path: Path) -> None:
    there = folders(tmp_path / "in", of_machine(1, 1.2, versions={"pytorch": {"torch": "3.0"}}), of_machine(2, 1.3))
    before = trees.read(tmp_path / "in")
    for _ in range(2):
        convtwins("merge", *there, "--out", tmp_path / "out").succeeded()
    assert trees.read(tmp_path / "in") == before
    page = (tmp_path / "out" / "merged.md").read_text()
    assert "torch 3.0 (M1), 2.0 (M2)" in page and "plots/machines.png" in page
    check_ended(convtwins("merge", *there, "--out", there[0]), names=[there[0]])
    assert {path: content for path, content in trees.read(tmp_path / "in").items() if path in before} == before


def test_a_folder_that_is_still_written_to_is_refused(tmp_path: Path) -> None:
    one, other = folders(tmp_path, of_machine(0), of_machine(1))
    with workspace.locked(other):
        done = convtwins("merge", one, other)
        shown = convtwins("gallery", one, other, "--out", tmp_path / "site")
    for each in (done, shown):
        check_ended(each, names=["Another command", other])
    convtwins("merge", one, other).succeeded()


def test_a_run_that_begins_while_a_folder_is_looked_at_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the look itself holds the lock for a moment, so that the run failed as if another one were at work."""
    with workspace.locked(tmp_path):
        pass
    seen, release = list[str](), filelock.FileLock.release

    def late(lock: filelock.FileLock, force: bool = False) -> None:
        if not seen:  # the look's own
            seen.append("looks")
            beside = threading.Thread(target=begin)
            beside.start()
            beside.join(0.2)
            release(lock, force)
            beside.join()
        else:
            release(lock, force)

    def begin() -> None:
        with workspace.locked(tmp_path):
            seen.append("runs")

    monkeypatch.setattr(filelock.FileLock, "release", late)  # the moment in which the defect showed
    workspace.refuse_growing(tmp_path)
    assert seen == ["looks", "runs"]


def test_a_p_below_all_digits_is_not_zero_in_the_table(tmp_path: Path) -> None:
    times = (3.0, 3.01, 3.02, 2.99, 3.0)
    text = merge_report.report(merged(tmp_path, *(of_machine(*each) for each in enumerate(times))), None).to_markdown()
    assert "< 0.0001" in text.replace("\\<", "<") and "| 0.0000 |" not in text


@pytest.mark.parametrize("machines", [4, 5])
def test_the_first_screen_answers_each_question(screens: Screens, machines: int, tmp_path: Path) -> None:
    stored = [of_machine(number, times) for number, times in enumerate((1.2, 1.4, 1.3, 0.8, 1.25)[:machines])]
    shown = screens(merge_report.report(merged(tmp_path, *stored), None), None)
    assert f"{machines} comparisons of {machines} machines" in shown
    assert ("on average" in shown) == (machines == 5) != ("No average: it needs 5 machines" in shown)

import json
import math
import threading
from pathlib import Path
from typing import Any

import filelock
import pytest

from common.artifacts.schema import Noise
from compare.execution import store
from compare.execution.store import StoredComparison
from compare.machines import merge_report, questions
from tests.support import comparisons
from tests.support.command_line import convtwins
from tests.support.snapshots import Screens


def of_machine(number: int, times: float = 1.0, host: int | None = None, **plan: Any) -> StoredComparison:
    """`comparisons.repeated` on a machine of its own, or on that of `host`. TensorFlow is so many times as fast there."""
    stored = comparisons.repeated()
    for row_id, runs in stored.runs.items():
        for repeat, run in runs.items():
            factor = (1.0 / times if row_id.startswith("tensorflow") else 1.0) * (1.0 + 1e-6 * number)  # no run is another's
            runs[repeat] = comparisons.paced(run, factor)
    host = host or number
    machine = {"processor": f"CPU {host}", "cores": 2, "host": f"host{host}"}
    return stored.model_copy(update={"comparison": stored.comparison.model_copy(update={"machine": machine, **plan})})


def folders(at: Path, *stored: StoredComparison) -> list[Path]:
    return [comparisons.stored_in(each, at / str(place)) for place, each in enumerate(stored)]


def question(at: Path, *stored: StoredComparison, where: str = "serial on all cores") -> questions.Question:
    found = questions.merge(questions.read_machines(folders(at, *stored)))
    (one,) = (each for each in found.questions if each.subject.where == where)
    return one


def test_four_machines_are_told_one_by_one_and_given_no_average(tmp_path: Path) -> None:
    stored = [of_machine(number, times) for number, times in enumerate((1.2, 1.4, 1.3, 0.8))]
    done = convtwins("merge", *folders(tmp_path, *stored), "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)["findings"]["Who is faster?"]
    assert (
        "pytorch against tensorflow, serial on all cores: pytorch is 1.25 times as fast on 1 of 4 machines (M4); tensorflow is "
        "1.20 to 1.40 times as fast on 3 of 4 machines (M1, M2, M3)."
    ) in said
    assert json.loads(done.stdout)["work"] == "simple_cnn on digits, batch 64, float32"
    assert not any("On average" in each for each in said)
    assert "An average over machines needs 5" in json.dumps(json.loads(done.stdout)["findings"]["How sure is that?"])


def test_five_machines_have_an_average_with_an_interval(tmp_path: Path) -> None:
    times = (1.2, 1.4, 1.3, 1.1, 1.25)
    asked = question(tmp_path, *(of_machine(number, each) for number, each in enumerate(times)))
    assert asked.overall is not None and asked.judged is not None
    expected = math.exp(-sum(map(math.log, times)) / 5) * 4.01 / 4.0
    assert asked.overall.ratio.value == pytest.approx(expected, rel=0.01)
    assert asked.judged.verdict == "below" and asked.overall.ratio.n == 5
    page = merge_report.report(questions.merge(questions.read_machines([tmp_path / str(each) for each in range(5)])), None)
    said = dict(page.findings)["Who is faster?"]
    assert any(each.startswith("On average over 5 machines: tensorflow is faster. pytorch is 0.8") for each in said), said
    assert "Nobody drew these machines at random" in " ".join(dict(page.findings)["How sure is that?"])


def test_two_folders_of_one_machine_are_one_machine(tmp_path: Path) -> None:
    one, again, other = of_machine(1, 1.2), of_machine(3, 1.3, host=1), of_machine(2, 1.2)
    asked = question(tmp_path, one, again, other)
    assert [(each.machine.name, each.seconds.ratio.n) for each in asked.answers] == [("M1", 10), ("M2", 5)]


def test_modes_are_asked_too_and_frameworks_in_another_order_are_the_same_question(tmp_path: Path) -> None:
    turned = of_machine(2, 1.2)
    rows = turned.comparison.rows[2:] + turned.comparison.rows[:2]
    turned = turned.model_copy(update={"comparison": turned.comparison.model_copy(update={"rows": rows})})
    found = questions.merge(questions.read_machines(folders(tmp_path, of_machine(1, 1.2), turned)))
    assert {(each.subject.above, each.subject.below, each.subject.where) for each in found.questions} == {
        ("pytorch", "tensorflow", "serial on all cores"),
        ("pytorch", "tensorflow", "data_parallel x2"),
        ("pytorch data_parallel x2", "serial on as many cores", ""),
        ("tensorflow data_parallel x2", "serial on as many cores", ""),
    }
    for each in found.questions:
        first, second = (answer.seconds.ratio.value for answer in each.answers)
        assert first == pytest.approx(second, rel=1e-5)


def test_other_work_is_another_question(tmp_path: Path) -> None:
    there = folders(tmp_path, of_machine(1), of_machine(2, data_hash="other"))
    done = convtwins("merge", *there)
    assert done.exit_code == 2 and "No question has answers of two machines" in done.stderr


def test_disturbed_rows_and_untrained_sameness_do_not_count(tmp_path: Path) -> None:
    disturbed, unlike, busy = of_machine(2), of_machine(3), Noise(cores_stolen=1.0)
    for repeat, run in disturbed.runs["pytorch-serial-2"].items():
        disturbed.runs["pytorch-serial-2"][repeat] = run.model_copy(update={"noise": busy})
    for repeat, run in unlike.runs["pytorch-serial-2"].items():
        unlike.runs["pytorch-serial-2"][repeat] = run.model_copy(update={"weights_hash": "others"})
    found = questions.merge(questions.read_machines(folders(tmp_path, of_machine(1), disturbed, unlike, of_machine(4))))
    (serial,) = (each for each in found.questions if each.subject.where == "serial on all cores")
    assert [each.machine.name for each in serial.answers] == ["M1", "M4"]
    assert any("M2" in each and "times in doubt of pytorch-serial-2" in each for each in found.left_out)
    assert any("M3" in each and "not shown that its runs trained the same" in each for each in found.left_out)


def test_a_comparison_that_is_not_proved_does_not_count(tmp_path: Path) -> None:
    refuted = store.ProofRecord(verdict="not proved", sentence="not proved: 1 of 9 rungs failed")
    found = questions.merge(
        questions.read_machines(folders(tmp_path, of_machine(1), of_machine(2, proof=refuted), of_machine(3)))
    )
    assert {answer.machine.name for each in found.questions for answer in each.answers} == {"M1", "M3"}


def test_questions_of_one_name_keep_their_own_verdicts_and_are_told_apart(tmp_path: Path) -> None:
    """Two learning rates on five machines. With one TensorFlow is faster, with the other PyTorch."""
    slow = [of_machine(number, 1.0 / (1.5 + 0.1 * number)) for number in range(1, 6)]
    fast = [
        comparisons.other_work(of_machine(number + 10, 1.5 + 0.1 * number, host=number), optimizer={"learning_rate": 0.5})
        for number in range(1, 6)
    ]
    found = questions.merge(questions.read_machines(folders(tmp_path, *slow, *fast)))
    serial = [each for each in found.questions if each.subject.where == "serial on all cores"]
    assert len(serial) == 2 and len({each.subject.name for each in found.questions}) == len(found.questions)
    for each in serial:
        assert each.overall is not None and each.judged is not None
        assert each.judged.ratio == each.overall.ratio
        assert each.judged.verdict == ("above" if each.overall.ratio.value > 1 else "below")
    assert {"optimizer.learning_rate 0.05" in each.subject.name for each in serial} == {True, False}


@pytest.mark.parametrize("data", [{"loading": "streaming"}, {"normalization": "half"}])
def test_the_same_data_fed_in_another_way_is_other_work(tmp_path: Path, data: dict[str, Any]) -> None:
    done = convtwins("merge", *folders(tmp_path, of_machine(1), comparisons.other_work(of_machine(2), data=data)))
    assert done.exit_code == 2 and "No question has answers of two machines" in done.stderr


def test_a_machine_whose_host_is_unknown_is_no_other_machine(tmp_path: Path) -> None:
    nameless = of_machine(7)
    nameless = nameless.model_copy(update={"comparison": nameless.comparison.model_copy(update={"machine": {}})})
    machines = questions.read_machines(folders(tmp_path, nameless, of_machine(1), of_machine(2)))
    assert [len(each.folders) for each in machines] == [1, 1, 1]


def test_a_run_that_was_sent_twice_is_refused_and_so_is_one_folder(tmp_path: Path) -> None:
    first, again = folders(tmp_path, of_machine(1), of_machine(1))
    done = convtwins("merge", first, again)
    assert done.exit_code == 2 and f"{first} and {again} hold the same run" in done.stderr
    assert convtwins("merge", first).exit_code == 2
    done = convtwins("merge", first, first.parent / "." / first.name, first)
    assert done.exit_code == 2 and "named twice" in done.stderr


@pytest.mark.drawn
def test_the_report_is_written_and_never_over_something_else(tmp_path: Path) -> None:
    there = folders(tmp_path / "in", of_machine(1, 1.2, versions={"pytorch": {"torch": "3.0"}}), of_machine(2, 1.3))
    before = {path: path.read_bytes() for path in (tmp_path / "in").rglob("*") if path.is_file()}
    for _ in range(2):
        assert convtwins("merge", *there, "--out", tmp_path / "out").exit_code == 0
    assert {path: path.read_bytes() for path in (tmp_path / "in").rglob("*") if path.is_file()} == before
    page = (tmp_path / "out" / "merged.md").read_text()
    assert "Versions differ" in page and "torch 3.0 (M1), 2.0 (M2)" in page and "plots/machines.png" in page
    done = convtwins("merge", *there, "--out", there[0])
    assert done.exit_code == 2 and (there[0] / store.PLAN_FILE).exists()


def test_a_folder_that_is_still_written_to_is_refused(tmp_path: Path) -> None:
    one, other = folders(tmp_path, of_machine(0), of_machine(1))
    with store.locked(other):
        done = convtwins("merge", one, other)
        shown = convtwins("gallery", one, other, "--out", tmp_path / "site")
    for each in (done, shown):
        assert each.exit_code == 2 and f"Another command still writes to {other}." in " ".join(each.stderr.split())
    assert convtwins("merge", one, other).exit_code == 0


def test_a_run_that_begins_while_a_folder_is_looked_at_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the look itself holds the lock for a moment, so that the run failed as if another one were at work."""
    with store.locked(tmp_path):
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
        with store.locked(tmp_path):
            seen.append("runs")

    monkeypatch.setattr(filelock.FileLock, "release", late)
    store.refuse_growing(tmp_path)
    assert seen == ["looks", "runs"]


def test_a_p_below_all_digits_is_not_zero_in_the_table(tmp_path: Path) -> None:
    times = (3.0, 3.01, 3.02, 2.99, 3.0)
    stored = [of_machine(number, each) for number, each in enumerate(times)]
    assert convtwins("merge", *folders(tmp_path, *stored), "--out", tmp_path / "out").exit_code == 0
    text = (tmp_path / "out" / "merged.md").read_text()
    assert "< 0.0001" in text.replace("\\<", "<") and "| 0.0000 |" not in text


@pytest.mark.parametrize("machines", [4, 5])
def test_the_first_screen_answers_each_question(screens: Screens, machines: int, tmp_path: Path) -> None:
    stored = [of_machine(number, times) for number, times in enumerate((1.2, 1.4, 1.3, 0.8, 1.25)[:machines])]
    found = questions.merge(questions.read_machines(folders(tmp_path, *stored)))
    shown = screens(merge_report.report(found, None), None)
    assert f"{machines} comparisons of {machines} machines" in shown
    assert ("on average" in shown) == (machines == 5) != ("No average: it needs 5 machines" in shown)

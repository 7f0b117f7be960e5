import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from compare.cli.errors import FolderError
from compare.judgement import statement_words
from compare.tools.regression import history
from tests import hostile_files
from tests.compare.tools.regression.repository import initialised
from tests.support import comparisons, processes, schemas, trees
from tests.support.command_line import convtwins, convtwins_json
from tests.support.refusals import check_ended, refused

FIRST, SECOND = "1" * 40, "2" * 40
DISTURBED = {"cores_of_others": 1.5, "machine": {"logical_cores": 2}}


def on_day(number: int) -> str:
    return f"2026-01-{number:02}T00:00:00+00:00"


def stored(folder: Path, day: int, seconds: float = 4.0, **fields: Any) -> Path:
    """Results of a day, in a folder of their own."""
    number = len(list(folder.glob("results*")))
    return comparisons.results_folder(folder / f"results{number}", {"pytorch": seconds}, created_at=on_day(day), **fields)


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Two commits of a comparison and of a benchmark, the later commit measured first."""
    for commit, day, seconds in ((SECOND, 1, 2.0), (FIRST, 2, 4.0)):
        stored(tmp_path, day, seconds, machine={"commit": commit, "dirty": day == 2})
    for number, commit in ((1, FIRST), (2, SECOND)):
        rounds = {"test_step[pytorch]": [0.01 * number] * 5}
        file = tmp_path / ".benchmarks" / f"000{number}_x.json"
        comparisons.benchmark_file(file, rounds, commit=commit, measured_at=on_day(number), keep=False)
    return tmp_path


@pytest.mark.drawn
def test_a_metric_is_shown_over_commits_as_table_and_plot(measured: Path, tmp_path: Path) -> None:
    done = convtwins("history", measured, "--out", tmp_path / "out", "--full").succeeded()
    lines = [line.split() for line in done.stdout.splitlines()]
    rows = [line for line in lines if "11111111*" in line or "22222222" in line or "11111111" in line]
    name = ["pytorch", "serial,", "2", "cores:", "simple_cnn", "on", "digits,", "batch", "64"]
    assert [row[: len(name) + 2] for row in rows[:2]] == [[*name, "22222222", "2.00"], [*name, "11111111*", "4.00"]]
    assert [row[:3] for row in rows[2:]] == [
        ["test_step[pytorch]", "11111111", "0.0100"],
        ["test_step[pytorch]", "22222222", "0.0200"],
    ]
    assert (tmp_path / "out" / "history.html").exists()
    files = sorted((tmp_path / "out" / "plots").iterdir())
    assert len(files) == 4 and {path.suffix for path in files} == {".png", ".svg"}
    with Image.open(files[0]) as plot:
        assert len(np.unique(np.asarray(plot.convert("L")))) > 10
    text = next(path for path in files if path.name.startswith("history-epoch_seconds") and path.suffix == ".svg").read_text()
    assert "11111111*" in text and "Some CPU, 2 logical cores" in text


def test_points_stand_in_the_order_of_commits_where_git_knows_it(tmp_path: Path) -> None:
    repository = initialised(tmp_path / "repository")
    name = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for day in (3, 4):
        at = dict.fromkeys(("GIT_COMMITTER_DATE", "GIT_AUTHOR_DATE"), f"2025-01-0{day}T00:00:00+00:00")
        commit = ["git", *name, "commit", "-q", "--allow-empty", "-m", "x"]
        processes.run(commit, folder=repository, **at).succeeded()
    later, earlier = (processes.git(repository, "rev-parse", revision) for revision in ("HEAD", "HEAD~1"))
    for day, commit_id in ((1, later), (2, earlier)):
        stored(tmp_path, day, machine={"commit": commit_id})
    found, *_ = history.points(tmp_path, ["epoch_seconds"], repository=repository)
    assert [point.commit for point in found] == [earlier, later]
    assert [str(point.committed_at)[:10] for point in found] == ["2025-01-03", "2025-01-04"]


@pytest.mark.parametrize(
    ("told", "first"), [("2025-01-01T00:00:00+00:00", "22222222"), ("no time", "11111111"), (7, "11111111")]
)
def test_a_commit_of_another_repository_has_the_time_that_was_stored_with_it(tmp_path: Path, told: Any, first: str) -> None:
    for commit, day, own in ((FIRST, 1, {}), (SECOND, 2, {"repository": "/of/a/team", "committed_at": told})):
        stored(tmp_path, day, machine={"commit": commit, **own})
    points, *_ = history.points(tmp_path, ["epoch_seconds"])
    assert points[0].commit_name.rstrip("*") == first


def test_other_machines_devices_and_work_are_other_lines(tmp_path: Path) -> None:
    larger = comparisons.with_fields(comparisons.row("pytorch"), spec__global_batch_size=128)
    stored(tmp_path, 1)
    stored(tmp_path, 1, machine={"processor": "Another CPU"})
    stored(tmp_path, 1, changed={"device": "cuda"})
    stored(tmp_path, 1, data_hash="other")
    stored(tmp_path, 1, rows=[larger])
    found, left_out, _ = history.points(tmp_path, ["epoch_seconds"])
    assert left_out == []
    assert [table.title.partition(" on ")[2] for table in history.report(found, tmp_path).tables] == [
        "Another CPU, 2 logical cores",
        "Some CPU, 2 logical cores",
        "Some CPU, 2 logical cores, cuda",
    ]
    names = {point.name for point in found if point.machine == "Some CPU, 2 logical cores"}
    assert len(names) == 3 and "pytorch serial, 2 cores: simple_cnn on digits, batch 128" in names


def test_times_of_disturbed_runs_are_left_out_and_a_copy_is_no_second_point(tmp_path: Path) -> None:
    shutil.copytree(stored(tmp_path, 1, 2.0), tmp_path / "copy")
    disturbed = stored(tmp_path, 2, 9.0, changed=DISTURBED)
    found, left_out, _ = history.points(tmp_path, ["epoch_seconds", "test_accuracy"])
    assert [point.value.median for point in found if point.metric == "epoch_seconds"] == [2.0]
    assert len([point for point in found if point.metric == "test_accuracy"]) == 2
    (reason,) = left_out
    assert str(disturbed) in reason and "other work" in reason


def test_two_commits_of_equal_accuracy_are_two_points(tmp_path: Path) -> None:
    for commit in ("a" * 40, "b" * 40):
        stored(tmp_path, 1, machine={"commit": commit})
    found, left_out, _ = history.points(tmp_path, ["test_accuracy"])
    assert [point.commit for point in found] == ["a" * 40, "b" * 40] and not left_out


def test_two_hosts_of_one_kind_are_two_lines(tmp_path: Path) -> None:
    for day, host in enumerate(("a" * 32, "b" * 32, "a" * 32), 1):
        stored(tmp_path, day, machine={"host": host})
    found, *_ = history.points(tmp_path, ["epoch_seconds"])
    assert [point.machine for point in found] == [
        "Some CPU, 2 logical cores, machine 1 (host aaaaaaaa)",
        "Some CPU, 2 logical cores, machine 1 (host aaaaaaaa)",
        "Some CPU, 2 logical cores, machine 2 (host bbbbbbbb)",
    ]
    assert len({table.name for table in history.report(found, tmp_path).tables}) == 2


@pytest.mark.parametrize("hostile", ["--output=owned", "$(touch owned)", "x\x1b[31m"])
def test_a_commit_is_whatever_a_file_says_and_git_is_asked_for_ids_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: str
) -> None:
    monkeypatch.chdir(tmp_path)
    comparisons.benchmark_file(tmp_path / "a.json", {"test_step": [1.0] * 5}, commit=hostile)
    done = convtwins("history", tmp_path, "--out", tmp_path)
    assert done.exit_code == 0 and "\x1b" not in done.stdout
    written = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert {(str(path.parent), path.suffix) for path in written} == {
        (".", ".json"), (".", ".html"), (".", ".md"), ("plots", ".png"), ("plots", ".svg"),
        ("tables", ".csv"), ("tables", ".md"), ("tables", ".tex"),
    }  # fmt: skip


def test_nothing_is_written_into_the_folder_that_is_read_unless_asked(measured: Path) -> None:
    before = trees.read(measured)
    assert "Report:" not in convtwins("history", measured).succeeded().stdout
    assert convtwins_json("history", measured) and trees.read(measured) == before
    convtwins("history", measured, "--out", measured).succeeded()
    assert (measured / "history.html").exists()


def test_a_report_that_cannot_be_written_is_one_line_after_the_points(measured: Path, tmp_path: Path) -> None:
    out = trees.write(tmp_path / "out", {"tables": "where its folder would be"})
    done = convtwins("history", measured, "--json", "--out", out)
    assert done.exit_code == 1 and done.json
    (line,) = done.stderr.splitlines()
    assert str(out) in line and "--out" in line


def test_what_cannot_be_read_is_told_and_nothing_at_all_is_an_error(tmp_path: Path) -> None:
    comparisons.results_folder(tmp_path / "good", {"pytorch": 4.0})
    trees.write(comparisons.results_folder(tmp_path / "bad", {"pytorch": 4.0}), {"compare.json": "{"})
    trees.write(tmp_path, {"other.json": {"benchmarks": 1}})  # not of pytest-benchmark
    done = convtwins("history", tmp_path, "--json")
    assert done.exit_code == 1  # something is damaged
    assert done.stderr.startswith(f"Left out: {tmp_path / 'bad' / 'compare.json'} ")
    (point,) = done.json
    assert schemas.faults("history", [point]) == [] != schemas.faults("history", [{**point, "more": 1}])
    assert point["source"] == str(tmp_path / "good") and point["value"]["n"] == 5
    for words, metrics in ((("--metric", "seconds"), "seconds"), (("--only", "tensorflow*"), "epoch_seconds, seconds")):
        check_ended(convtwins("history", tmp_path, *words), names=[tmp_path, metrics])


def test_where_all_runs_were_disturbed_the_refusal_says_so_and_what_helps(tmp_path: Path) -> None:
    one = comparisons.results_folder(tmp_path / "a", {"pytorch": 9.0}, changed=DISTURBED)
    with refused(FolderError, field="undisturbed", received=one, fix=["--again disturbed", "--metric test_accuracy"]):
        history.points(tmp_path, ["epoch_seconds"])
    one.rename(tmp_path / "base")
    trees.write(tmp_path, {"interleaved.json": {}})
    with refused(FolderError, fix="base and head") as caught:
        history.points(tmp_path, ["epoch_seconds"])
    assert "--again" not in str(caught.error)  # the runs of the other side are their partners


def test_a_table_of_benchmarks_says_that_nobody_knows_of_other_work(tmp_path: Path) -> None:
    comparisons.benchmark_file(tmp_path / "a.json", {"test_step": [1.0] * 5})
    comparisons.results_folder(tmp_path / "b", {"pytorch": 2.0})
    done = " ".join(convtwins("history", tmp_path).stdout.split())
    assert done.count(statement_words.FILES_UNWATCHED) == 1


def test_a_reason_that_several_results_share_is_told_once_with_its_number() -> None:
    lines = history.left_out_lines(["too old", "too old", "torn"])
    assert lines == ["Left out (2 times): too old", "Left out: torn"]


@pytest.mark.parametrize("name", hostile_files.IN_PLACE)
def test_a_pipe_or_an_endless_file_among_benchmarks_is_named(name: str, measured: Path) -> None:
    fault = hostile_files.put(name, measured / "more.json")
    with hostile_files.soon():
        done = convtwins("history", measured, "--json")
    is_damaged = name != "folder"  # which holds no file of pytest-benchmark
    assert done.exit_code == is_damaged
    assert (f"Left out: {measured / 'more.json'} {fault}" in done.stderr) == is_damaged
    assert len(done.json) == 4


def test_benchmark_files_of_a_commit_are_one_row_and_each_shows_them_alone(tmp_path: Path) -> None:
    """Of files with uncommitted changes, or without a commit, nothing says that they measured the same code."""
    seconds = (0.010, 0.012, 0.011, 0.030, 0.013)
    number = 0
    for commit, dirty, factor in ((FIRST, False, 1.0), (SECOND, False, 2.0), (SECOND, True, 3.0), ("unversioned", False, 4.0)):
        for each in seconds:
            number += 1
            comparisons.benchmark_file(
                tmp_path / "Linux" / f"{number:04}.json",
                {"test_step": [each * factor] * 7},
                commit=commit,
                dirty=dirty,
                measured_at=f"2026-01-01T00:{number:02}:00+00:00",
            )
    (tmp_path / "again").mkdir()
    shutil.copy(tmp_path / "Linux" / "0001.json", tmp_path / "again")
    found, left_out, _ = history.points(tmp_path, ["seconds"])
    assert not left_out and len(found) == 2 + 5 + 5
    of_commits = {point.commit: (point.of, point.value.n, point.value.median) for point in found if point.of == "files"}
    assert of_commits == {FIRST: ("files", 5, pytest.approx(0.012)), SECOND: ("files", 5, pytest.approx(0.024))}
    assert {point.value.n for point in found if point.of == "rounds"} == {7}
    alone, *_ = history.points(tmp_path, ["seconds"], separate_files=True)
    assert len(alone) == 20 and {point.of for point in alone} == {"rounds"}
    shown = convtwins("history", tmp_path, "--full")
    assert shown.stdout.count("5 files") == 2 and shown.stdout.count("7 rounds") == 10
    assert "--each shows each file" in " ".join(shown.stdout.split())
    assert convtwins("history", tmp_path, "--each", "--full").stdout.count("7 rounds") == 20


def test_files_of_other_versions_are_other_rows_of_a_commit(tmp_path: Path) -> None:
    for number, python in enumerate(("3.11.2", "3.12.0", "3.11.2", "3.12.0")):
        at = f"2026-01-01T00:{number:02}:00+00:00"
        file = comparisons.benchmark_file(tmp_path / f"{number}.json", {"test_step": [1.0 + number] * 5}, measured_at=at)
        file.write_text(file.read_text().replace("3.11.2", python))
    found, *_ = history.points(tmp_path, ["seconds"])
    assert [(point.value.median, point.value.n) for point in found] == [(2.0, 2), (3.0, 2)]

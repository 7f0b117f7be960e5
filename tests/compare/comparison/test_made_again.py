"""Repeats that other work disturbed, made again."""

from pathlib import Path

import pytest

from common.artifacts import results
from compare.execution import store
from compare.judgement.run_figures import disturbed
from tests.compare.command_line import compare
from tests.compare.conftest import behave

QUICK = ("--frameworks", "left,right", "--cores", "2", "--no-proof", "--modes", "serial", "--no-one-core", "--repeats", "3")
DISTURBED = "right-serial-2cores"


@pytest.fixture
def folder(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Results of two rows with three repeats each. Other work took cores from one run of the second repeat."""
    behave(fake_twins, right__serial__2="disturbed in 1")
    assert compare("run", *QUICK, "--out", tmp_path / "out").exit_code == 0
    behave(fake_twins)
    return tmp_path / "out"


def made_at(folder: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in (folder / "runs").glob("*/result.json")}


def test_all_runs_of_a_disturbed_repeat_are_made_again_and_no_others(folder: Path) -> None:
    before = made_at(folder)
    done = compare("run", "--resume", folder, "--again", "disturbed")
    assert done.exit_code == 0
    after = made_at(folder)
    again = {f"{row}-serial-2cores-r1" for row in ("left", "right")}
    assert {name for name in before if after[name] != before[name]} == again
    assert {name: after[f"{name}.replaced1"] for name in again} == {name: before[name] for name in again}
    assert "Repeat 2 was made again with all rows (--again disturbed), 2 runs in all." in done.stdout
    assert "Other work had taken cores of 1 of them (right-serial-2cores, repeat 2: 0.40)." in " ".join(done.stdout.split())
    assert not any(disturbed(run) for runs in store.read(folder).runs.values() for run in runs.values())


def test_a_framework_does_not_decide_what_is_made_again(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[list[tuple[str, int]]] = []
    for side in ("left", "right"):
        behave(fake_twins, **{f"{side}__serial__2": "disturbed in 2"})
        compare("run", *QUICK, "--out", tmp_path / side)
        behave(fake_twins)
        compare("run", "--resume", tmp_path / side, "--again", "disturbed")
        made.append([(each.row, each.repeat) for each in store.read_plan(tmp_path / side).replaced])
    assert made[0] == made[1] == [("left-serial-2cores", 2), ("right-serial-2cores", 2)]


def test_a_second_time_both_old_runs_are_kept_and_without_a_disturbance_nothing_happens(
    fake_twins: pytest.MonkeyPatch, folder: Path
) -> None:
    behave(fake_twins, right__serial__2="disturbed in 1")
    compare("run", "--resume", folder, "--again", "disturbed")
    behave(fake_twins)
    compare("run", "--resume", folder, "--again", "disturbed")
    for number in (1, 2):
        assert disturbed(results.load(folder / "runs" / f"{DISTURBED}-r1.replaced{number}" / "result.json")) == 0.4
    before = made_at(folder)
    assert compare("run", "--resume", folder, "--again", "disturbed").exit_code == 0
    assert made_at(folder) == before
    assert len(store.read_plan(folder).replaced) == 4


def test_a_kill_between_the_record_and_the_move_loses_no_run(
    fake_twins: pytest.MonkeyPatch, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        real, calls = store.set_apart, list[int]()

        def killed(*arguments: object) -> None:
            calls.append(1)
            if len(calls) > 1:
                raise KeyboardInterrupt
            real(*arguments)  # type: ignore[arg-type]

        patch.setattr(store, "set_apart", killed)
        assert compare("run", "--resume", folder, "--again", "disturbed").exit_code != 0
    assert not store.read(folder).set_aside
    before = made_at(folder)
    assert compare("run", "--resume", folder).exit_code == 0
    assert made_at(folder)[f"{DISTURBED}-r1.replaced1"] == before[f"{DISTURBED}-r1"]
    assert not any(disturbed(run) for runs in store.read(folder).runs.values() for run in runs.values())


@pytest.mark.parametrize("change", ["removed", "changed"])
def test_a_replaced_run_that_is_not_as_it_was_is_said(folder: Path, change: str) -> None:
    compare("run", "--resume", folder, "--again", "disturbed")
    path = folder / "runs" / f"{DISTURBED}-r1.replaced1" / "result.json"
    if change == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes().replace(b"0.4", b"0.9"))
    done = compare("report", folder)
    assert done.exit_code == 1
    assert f"{DISTURBED}-r1.replaced1/result.json" in " ".join(done.stdout.split())


def test_a_dry_run_lists_what_would_be_made_again(folder: Path) -> None:
    before = made_at(folder)
    done = compare("run", "--resume", folder, "--again", "disturbed", "--dry-run", "--from", folder)
    assert "2 runs: about" in done.stdout
    assert made_at(folder) == before


def test_a_matrix_makes_the_disturbed_repeats_of_its_comparisons_again(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    behave(fake_twins, left__serial__2="disturbed in 0")
    compare("run", *QUICK, "--batch-size", "32,64", "--out", tmp_path / "out")
    behave(fake_twins)
    done = compare("run", "--resume", tmp_path / "out", "--again", "disturbed")
    assert done.exit_code == 0
    cells = sorted((tmp_path / "out").glob("*/compare.json"))
    assert [len(store.read_plan(path.parent).replaced) for path in cells] == [2, 2]


def test_again_needs_a_folder(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = compare("run", *QUICK, "--out", tmp_path / "out", "--again", "disturbed")
    assert done.exit_code == 2
    assert "--again goes with --resume. Received: disturbed without it." in done.stderr

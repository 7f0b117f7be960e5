"""Base and head in one folder: they are judged as two folders are, and each side can be named alone."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import results
from common.artifacts.schema import EpochRecord, Slice
from common.spec import SpecError
from compare.judgement import run_pairs, sides
from compare.judgement.sides import BASE, HEAD
from compare.results import store
from compare.results.store import ProofRecord
from compare.running import contestants, launch
from compare.running.contestants import Checkout, Contestant
from compare.tools.regression import history, measurements, regress
from compare.tools.regression.records import Criteria, Judgement
from tests.compare.tools.regression.stand_in import with_base_rows
from tests.support import comparisons, trees
from tests.support.command_line import convtwins
from tests.support.refusals import check_ended, refused

COMMITS = {BASE: "a" * 40, HEAD: "b" * 40}
SECONDS: dict[str, dict[str, Any]] = {
    BASE: {"seconds": {"pytorch": 4.0, "tensorflow": 5.0}},
    HEAD: {"seconds": {"pytorch": 4.8, "tensorflow": 5.0}, "noise": (1.0, 1.02, 0.99, 1.01, 0.98), "accuracy": 0.6},
}


def two_folders(folder: Path, **head: Any) -> list[Path]:
    """A measurement in turn as earlier versions stored it."""
    trees.write(folder, {"interleaved.json": {}})
    return [
        comparisons.results_folder(
            folder / side, **SECONDS[side] | (head if side == HEAD else {}), machine={"commit": COMMITS[side], "dirty": False}
        )
        for side in (BASE, HEAD)
    ]


def one_folder(old: Path, new: Path) -> Path:
    """The runs of such a measurement in one folder, as they are stored today."""
    plan = store.read_plan(old / HEAD)
    heads = contestants.resolve(dict.fromkeys(row.contestant for row in plan.rows))
    revision = {"commit": COMMITS[BASE]}
    compared = [each for head in heads for each in (head.at(revision, Checkout()).as_base(), head)]
    fields = {"versions": {each.name: plan.versions[each.twin] for each in compared}}
    plan = plan.with_settings(contestants=tuple(compared))
    store.write_plan(new, comparisons.with_fields(plan, rows=with_base_rows(plan.rows, compared), argv=["regress"], **fields))
    for side in (BASE, HEAD):
        for row in plan.rows:
            name = row.id if side == HEAD else f"{row.contestant}-base{row.id.removeprefix(row.contestant)}"
            for repeat in range(plan.settings.repeats):
                shutil.copytree(store.run_folder(old / side, row.id, repeat), store.run_folder(new, name, repeat))
    return new


def judge(before: Path, now: Path | None = None) -> Judgement:
    return regress.judge_stored(before, now, Criteria())


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    two_folders(tmp_path / "old")
    return tmp_path / "old", one_folder(tmp_path / "old", tmp_path / "new")


def test_pairs_in_one_folder_are_judged_as_those_of_the_two_folders_of_earlier_versions(both: tuple[Path, Path]) -> None:
    old, new = (judge(folder) for folder in both)
    sources = {"baseline": {"source"}, "candidate": {"source"}}
    assert old.paired and old.exit_code == 3 and {change.verdict for change in old.changes} >= {"regression"}
    assert new.model_dump(exclude=sources) == old.model_dump(exclude=sources)
    assert [new.baseline.source, new.candidate.source] == [f"{both[1]}@base", f"{both[1]}@head"]
    assert [new.baseline.commit, new.candidate.commit] == ["aaaaaaaa", "bbbbbbbb"]


def test_runs_that_took_turns_are_judged_by_their_slices_as_report_does(both: tuple[Path, Path]) -> None:
    """What the head takes longer, it takes in the last slices of each epoch, where other work disturbed it."""
    _, new = both
    stored, (base, head) = store.read(new), ("pytorch-base-serial-2", "pytorch-serial-2")
    for repeat in stored.runs[head]:
        for row_id in (base, head):
            run, usual = stored.runs[row_id][repeat], stored.runs[base][repeat]
            epochs = [
                epoch.model_copy(update={"slices": one_step_each(epoch, of_base, num_disturbed=4 if row_id == head else 0)})
                for epoch, of_base in zip(run.epochs, usual.epochs, strict=True)
            ]
            results.save(run.model_copy(update={"epochs": epochs}), store.run_folder(new, row_id, repeat))
    rows = {row.id: row for row in store.read_plan(new).rows}
    ratio = run_pairs.ratio_of_seconds(store.read(new), rows[head], rows[base])
    (change,) = (each for each in judge(new).changes if (each.id, each.metric) == (head, "epoch_seconds"))
    assert ratio is not None and change.change.value == pytest.approx(ratio.value) == pytest.approx(1.0)
    assert change.verdict == "no change shown" and change.change.n == 5 and change.candidate.median > change.baseline.median


def one_step_each(epoch: EpochRecord, of_base: EpochRecord, num_disturbed: int) -> list[Slice]:
    """Slices of an epoch, all as long as those of the base but for the last ones, which other work disturbed."""
    steps = epoch.timed_steps
    usual = of_base.timed_seconds / steps
    disturbed = (epoch.timed_seconds - (steps - num_disturbed) * usual) / max(num_disturbed, 1)
    return [
        Slice(
            first_step=epoch.steps - steps + 1 + place,
            steps=1,
            seconds=usual if place < steps - num_disturbed else disturbed,
            taken_cpu_seconds=0.0 if place < steps - num_disturbed else disturbed,
            stolen_cpu_seconds=0.0,
        )
        for place in range(steps)
    ]


def test_a_side_is_named_behind_the_folder_and_judged_with_any_other_measurement(
    both: tuple[Path, Path], tmp_path: Path
) -> None:
    old, new = both
    other = comparisons.results_folder(tmp_path / "other", **SECONDS[BASE])
    apart = judge(other, Path(f"{new}@head"))
    assert not apart.paired and apart.changes == judge(other, old / HEAD).changes
    assert judge(Path(f"{new}@base"), Path(f"{new}@head")).paired
    assert not judge(Path(f"{new}@head"), Path(f"{new}@base")).paired
    for command in (("regress", other, new), ("regress", new, other)):
        check_ended(convtwins(*command), names=["two sides", f"{new}@base", f"{new}@head"])


def test_a_folder_of_pairs_is_no_newest_measurement_beside_a_baseline(both: tuple[Path, Path], tmp_path: Path) -> None:
    baseline = comparisons.results_folder(tmp_path / "baseline", **SECONDS[BASE], created_at="2025-01-01T00:00:00+00:00")
    check_ended(convtwins("regress", baseline), names=["nothing newer"])


def test_a_history_has_a_point_of_each_side(both: tuple[Path, Path]) -> None:
    old, new = (history.points(folder, ["epoch_seconds"])[0] for folder in both)
    assert [(point.commit, point.name, point.value) for point in new] == [(at.commit, at.name, at.value) for at in old]
    assert {point.source for point in new} == {f"{both[1]}@base", f"{both[1]}@head"}


def test_the_proof_is_the_heads_and_a_torn_result_that_of_its_side(both: tuple[Path, Path]) -> None:
    _, new = both
    plan = store.read_plan(new)
    verdicts = {row.id: "proved" if row.contestant.startswith("pytorch") else "not proved" for row in plan.rows}
    modes = {name: {"serial": "proved"} for name in ("pytorch", "pytorch-base")}
    proof = ProofRecord(verdict="proved", sentence="Losses agree.", mode_verdicts=modes, row_verdicts=verdicts)
    store.write_plan(new, comparisons.with_fields(plan, proof=proof))
    trees.write(new, {"runs/pytorch-base-serial-2-r1/result.json": "torn"})
    base, head = sides.split(store.read(new)).values()
    assert base.comparison.proof is None and head.comparison.proof is not None
    assert head.comparison.proof.mode_verdicts == {"pytorch": {"serial": "proved"}}
    assert head.comparison.proof.row_verdicts == {"pytorch-serial-2": "proved", "tensorflow-serial-2": "not proved"}
    assert len(base.set_aside) == 1 and not head.set_aside
    assert base.torn == {"pytorch-serial-2": 1} and not head.torn
    assert [measured.is_damaged for measured in measurements.read_sides(new)] == [True, False]


def test_the_process_of_a_contestant_imports_the_code_of_its_checkout(tmp_path: Path) -> None:
    """Every process of a contestant is started by `launch.start`."""
    root = trees.write(
        tmp_path / "there", {"pytorch_impl/__init__.py": "", "pytorch_impl/__main__.py": "import os; print(os.getcwd())"}
    )
    contestant = Contestant.plain("pytorch").at({"commit": "a" * 40}, Checkout(root))
    process = launch.start(contestant, ["run"], log=tmp_path / "log.txt")
    assert process.wait(60) == 0
    launch.stop(process)
    assert (tmp_path / "log.txt").read_text().strip() == str(root)


def test_a_base_has_its_heads_code_and_a_name_of_its_own() -> None:
    head = Contestant(name="it", twin="pytorch", switches={"onednn": False}).at({"commit": "a" * 40}, Checkout(Path("/x")))
    base = head.as_base()
    assert (base.name, base.base_of, base.switches, base.revision, base.checkout) == (
        "it-base", "it", head.switches, head.revision, head.checkout,
    )  # fmt: skip
    assert base.head_row("it-base-serial-2") == head.head_row("it-serial-2") == "it-serial-2"
    stored = Contestant.model_validate(json.loads(base.model_dump_json()))
    assert stored.revision == base.revision and stored.checkout is None  # a worktree is there for one command
    with refused(SpecError, names=["name"]):
        Contestant(name="x" * 60, twin="pytorch").as_base()


@pytest.mark.parametrize("field", ["base_of", "revision"])
def test_a_spec_file_sets_neither_base_nor_revision(field: str) -> None:
    with refused(SpecError, field="contestants.x", received=field):
        Contestant.from_fields("x", {"twin": "pytorch", field: "pytorch"})


def test_an_older_folder_is_read_and_not_continued(both: tuple[Path, Path]) -> None:
    done = convtwins("regress", "--interleaved", "HEAD", "--out", both[0])
    check_ended(done, names=[both[0], "belong to no measurement", "--out"])

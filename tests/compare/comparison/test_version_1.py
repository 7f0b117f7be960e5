"""Folders whose plan is of version 1: each setting was a field of the plan, and a matrix had no version."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import atomic_files
from compare.cli.errors import FolderError
from compare.results import cells, store
from compare.running.comparison_settings import ComparisonSettings
from compare.running.contestants import Contestant
from tests.support.command_line import convtwins
from tests.support.refusals import refused

RUN = (
    "run", "--frameworks", "left,right", "--cores", "1", "--modes", "serial", "--repeats", "2", "--no-proof", "--no-turns",
)  # fmt: skip
STORED = {
    "repeats": 3, "seeds": [4, 5], "contestants": [{"name": "a", "twin": "left"}], "prove": False, "oversubscribe": True,
    "restarts": 2, "target_accuracy": 0.5, "until": {"most_repeats": 7, "smallest_effect": 0.1},
}  # fmt: skip


def as_version_1(path: Path, **fields: Any) -> None:
    """Rewrite a plan as version 1 had it."""
    plan = json.loads(path.read_text())
    del plan["sha256"], plan["schema_version"]
    version = {"schema_version": 1} if path.name == store.PLAN_FILE else {}
    settings = plan.pop("settings")
    del settings["turns"]  # no run took any
    path.write_text(atomic_files.with_checksum(json.dumps(plan | settings | version | fields)))


@pytest.mark.parametrize(
    ("more", "file"), [((), store.PLAN_FILE), (("--batch-size", "32,64"), cells.PLAN_FILE)], ids=["comparison", "matrix"]
)
def test_a_folder_of_version_1_is_read_and_continued_as_one_of_version_2(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, more: tuple[str, ...], file: str
) -> None:
    out = tmp_path / "out"
    convtwins(*RUN, *more, "--out", out).succeeded()
    report = convtwins("report", out).succeeded().stdout
    plans = [*out.glob(file), *out.glob(f"*/{store.PLAN_FILE}")]
    written = {path: path.read_bytes() for path in plans}
    for path in plans:
        as_version_1(path)
    assert convtwins("report", out).succeeded().stdout == report
    convtwins("run", "--resume", out).succeeded()
    assert {path: path.read_bytes() for path in plans} == written
    for path in plans:
        as_version_1(path)
    assert convtwins(*RUN, *more, "--turns", "--out", out).exit_code == 2  # of both, the last one counts
    convtwins(*RUN[:-1], *more, "--repeats", "3", "--out", out).succeeded()
    assert {json.loads(path.read_text())["settings"]["repeats"] for path in plans} == {3}


def test_every_setting_of_version_1_is_kept(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    convtwins(*RUN, "--out", tmp_path / "out").succeeded()
    as_version_1(tmp_path / "out" / store.PLAN_FILE, **STORED)
    settings = store.read_plan(tmp_path / "out").settings
    since = {"turns": False, "contestants": [Contestant(name="a", twin="left").model_dump()]}
    assert settings == ComparisonSettings.model_validate(STORED | {"turns": False})
    assert json.loads(settings.model_dump_json()) == STORED | since


@pytest.mark.parametrize("fields", [{"repeats": 0}, {"repeats": 10_001}, {"colour": 1}])
def test_what_is_wrong_in_a_plan_of_version_1_is_named(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, fields: dict[str, Any]
) -> None:
    convtwins(*RUN, "--out", tmp_path / "out").succeeded()
    as_version_1(tmp_path / "out" / store.PLAN_FILE, **fields)
    with refused(FolderError, names=["compare.json", *fields]):
        store.read_plan(tmp_path / "out")

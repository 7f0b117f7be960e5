"""A results folder: opened early, claimed under its lock, resumed with the same work, refused with other work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compare.cli.errors import FolderError
from compare.results import workspace
from compare.results.workspace import FolderKind, PlannedWork, Workspace
from tests.support import trees
from tests.support.refusals import refused

MACHINE = {"processor": "one", "python": "3"}


class Errand(PlannedWork):
    """Planned work of these tests."""

    kind: str = "errand"
    place: str = "shop"
    items: list[str] = []
    times: int = 1
    code_hash: str = "code"
    machine: dict[str, Any] = MACHINE

    def identity(self) -> dict[str, Any]:
        return {"place": self.place, "items": self.items}

    def continued_by(self, new: Any) -> Errand:
        return self.model_copy(update={"times": max(self.times, new.times)})


ERRAND = FolderKind(
    noun="errand",
    file="errand.json",
    kind="errand",
    record=Errand,
    has_started=lambda folder: (folder / "bag").exists(),
    allowed=("log.txt",),
    subfolders=("bag",),
)
LIST = FolderKind[None](noun="list", file="list.json")


def started(folder: Path, **fields: Any) -> Path:
    """A folder with an errand that has results."""
    with Workspace.open(folder, ERRAND) as opened:
        opened.claim(Errand(**fields))
    return trees.write(folder, {"bag": {"bread": ""}})


def test_work_that_is_the_same_goes_on_with_the_merged_record(tmp_path: Path) -> None:
    with Workspace.open(started(tmp_path, times=3), ERRAND, early={"place": "shop"}) as opened:
        assert opened.claim(Errand(times=2)).times == 3
        assert ERRAND.read(tmp_path).times == 3
    with Workspace.open(tmp_path, ERRAND) as opened:
        assert opened.claim(Errand(times=5)).times == 5
    assert ERRAND.read(tmp_path).times == 5


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"place": "market"}, ["place", "market", "shop"]),
        ({"items": ["milk"]}, ["items", "milk"]),
        ({"code_hash": "other"}, ["code"]),
        ({"machine": {**MACHINE, "python": "4"}}, ["python", "3", "4"]),
    ],
)
def test_other_work_is_refused_when_it_is_claimed_and_the_folder_stays(
    tmp_path: Path, fields: dict[str, Any], names: list[str]
) -> None:
    before = trees.read(started(tmp_path))
    with (
        Workspace.open(tmp_path, ERRAND) as opened,
        refused(FolderError, names=[tmp_path, "another errand", *names], fix="--out"),
    ):
        opened.claim(Errand(**fields))
    assert trees.read(tmp_path) == before


def test_what_is_known_early_is_refused_with_the_same_words_before_the_folder_is_touched(tmp_path: Path) -> None:
    started(tmp_path)
    messages: list[str] = []
    for early in ({"place": "market"}, None):
        try:
            with Workspace.open(tmp_path, ERRAND, early=early) as opened:
                assert early is None, "the early check let it pass"
                opened.claim(Errand(place="market"))
        except FolderError as error:
            messages.append(str(error))
    assert len(messages) == 2 and messages[0] == messages[1]


def test_an_open_folder_is_not_made_before_it_is_claimed(tmp_path: Path) -> None:
    with Workspace.open(tmp_path / "new", ERRAND, early={"place": "shop"}) as opened:
        assert not (tmp_path / "new").exists()
        opened.claim(Errand())
    assert ERRAND.read(tmp_path / "new") == Errand()


def test_work_without_results_gives_way_to_other_work(tmp_path: Path) -> None:
    for place in ("shop", "market"):
        with Workspace.open(tmp_path, ERRAND, early={"place": place}) as opened:
            opened.claim(Errand(place=place))
    assert ERRAND.read(tmp_path).place == "market"


def test_a_folder_is_locked_from_claim_to_the_end_of_the_block(tmp_path: Path) -> None:
    with Workspace.open(tmp_path, ERRAND) as opened:
        with workspace.locked(tmp_path):
            pass
        opened.claim(Errand())
        with refused(FolderError, names=[tmp_path, "Another command"], fix="--out"), workspace.locked(tmp_path):
            pass
    with workspace.locked(tmp_path):
        pass


def test_a_busy_folder_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    with workspace.locked(tmp_path):
        for kind in (ERRAND, LIST):
            with refused(FolderError, names=[tmp_path, "Another command"], fix="--out"), Workspace.open(tmp_path, kind):
                pass


@pytest.mark.parametrize("kind", [ERRAND, LIST])
def test_a_command_that_came_between_opening_and_claiming_is_noticed(kind: FolderKind[Any], tmp_path: Path) -> None:
    with Workspace.open(tmp_path, kind) as opened:
        trees.write(tmp_path, {"thesis.tex": "mine"})
        with refused(FolderError, names=[f"belong to no {kind.noun}", "thesis.tex"], fix="--out"):
            opened.claim(Errand()) if kind is ERRAND else opened.lock()


def test_half_written_files_of_a_killed_command_go_when_the_folder_is_claimed(tmp_path: Path) -> None:
    started(tmp_path)
    (tmp_path / ".errand.json.abc.partial").write_text("{")
    with Workspace.open(tmp_path, ERRAND) as opened:
        assert (tmp_path / ".errand.json.abc.partial").exists()
        opened.claim(Errand())
    assert not (tmp_path / ".errand.json.abc.partial").exists()


def test_files_that_an_interrupted_command_leaves_are_no_reason_to_refuse(tmp_path: Path) -> None:
    ERRAND.check(trees.write(tmp_path, {"log.txt": ""}))
    with refused(FolderError, names=["belong to no errand", "errand.json"]):
        ERRAND.check(trees.write(tmp_path, {"errand.json": '{"kind": "holiday"}'}))


def test_a_kind_without_a_file_takes_an_empty_folder_alone(tmp_path: Path) -> None:
    kind = FolderKind[None](noun="export", option="--to")
    kind.check(None)
    kind.check(tmp_path / "new")
    with refused(FolderError, names=["is not empty"], fix="--to"):
        kind.check(trees.write(tmp_path, {"run": ""}))


def test_a_subfolder_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with Workspace.open(folder, ERRAND) as opened:
        opened.claim(Errand())
    (folder / "bag").symlink_to(tmp_path)
    with refused(FolderError, names=[folder / "bag", "link"]), Workspace.open(folder, ERRAND):
        pass


def test_a_torn_record_names_itself(tmp_path: Path) -> None:
    path = started(tmp_path) / "errand.json"
    path.write_text(path.read_text().replace("shop", "market"))
    with refused(FolderError, names=["errand.json", "checksum"]), Workspace.open(tmp_path, ERRAND, early={}):
        pass

"""A comparison that a worker sends: what of it is kept, and what is refused."""

import gzip
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import results
from common.data.sources import DataRefused
from compare.cli.errors import FolderError
from compare.results import store
from compare.results.cells import MatrixPlan
from compare.running import code_digest, contestants
from compare.tools.cluster import archive
from tests.support import comparisons, trees
from tests.support.refusals import refused


@pytest.fixture
def plan(tmp_path: Path) -> MatrixPlan:
    return matrix(comparisons.repeated().comparison.rows)


def matrix(rows: Any) -> MatrixPlan:
    own = {
        "created_at": "2026-01-01T00:00:00+00:00",
        "argv": ["run"],
        "code_hash": "0",
        "machine": {},
        "settings": {"repeats": 5},
    }
    return MatrixPlan.model_validate({**own, "on": "tcp://h:1", "cells": [{"name": "one", "labels": {}, "rows": rows}]})


def sent(at: Path, **plan: Any) -> Path:
    """The folder of a comparison on a worker, with a report and a lock."""
    stored = comparisons.repeated()
    own = {
        "code_hash": code_digest.compute(contestants.resolve(["pytorch", "tensorflow"]), "simple_cnn"),
        "machine": {"processor": "CPU", "cores": 2},
    }
    folder = comparisons.stored_in(comparisons.with_plan(stored, **own | plan), at)
    trees.write(folder, {"report.html": "<script>", ".lock": ""})
    (folder / "runs" / "link").symlink_to("/etc/passwd")
    return folder


def test_a_comparison_travels_whole_without_its_reports_and_replaces_what_it_was_begun_with(
    plan: MatrixPlan, tmp_path: Path
) -> None:
    there, here = sent(tmp_path / "there"), tmp_path / "here"
    trees.write(here, {"one/runs/old": None})
    archive.install(archive.pack(there), plan, plan.cells[0], here)
    assert store.read(here / "one") == store.read(there)
    assert sorted(path.name for path in here.iterdir()) == ["one"]
    assert sorted(path.name for path in (here / "one").iterdir()) == ["compare.json", "runs"]
    assert not (here / "one" / "runs" / "old").exists() and not (here / "one" / "runs" / "link").exists()


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, len(content), link
    return info, content


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([member("../runs/x")], ["../runs/x"]),
        ([member("/etc/x")], ["/etc/x"]),
        ([member("runs/x", kind=tarfile.SYMTYPE, link="/etc/passwd")], ["runs/x", "link"]),
        ([member("runs/x", kind=tarfile.LNKTYPE, link="compare.json")], ["runs/x", "link"]),
        ([member("runs/x", kind=tarfile.CHRTYPE)], ["runs/x", "no plain file"]),
        ([member("runs/x", b"1"), member("runs/x", b"2")], ["runs/x", "two files"]),
        ([member("report.html", b"<script>")], ["report.html"]),
        ([member("runs", b"1")], ["runs"]),
        ([member("runs/x", b"1")], ["no comparison"]),
        ([], ["no folder"]),
    ],
)
def test_a_hostile_archive_is_refused_and_nothing_of_it_stays(
    plan: MatrixPlan, tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]], words: list[str]
) -> None:
    kept = trees.write(tmp_path, {"here/one/kept": None}) / "here" / "one" / "kept"
    with refused(names=words):
        archive.install(packed(members), plan, plan.cells[0], tmp_path / "here")
    assert kept.exists() and os.listdir(tmp_path / "here") == ["one"] and os.listdir(tmp_path) == ["here"]  # noqa: PTH208


def packed(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return content.getvalue()


@pytest.mark.parametrize(
    "members",
    [
        [member("runs/x", bytes(2**20)), member("runs/y", bytes(2**20))],
        [member(f"runs/{number}") for number in range(400)],
    ],
    ids=["bytes", "files"],
)
def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    limit = 2**20 + 2**19
    with refused(FolderError, names=[f"{limit:,}"]):
        archive.unpack(packed(members), tmp_path / "new", limit)


def test_bytes_that_are_no_archive_or_too_many_are_refused(plan: MatrixPlan, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    for content in (b"", b"x" * 1000, gzip.compress(b"x" * 1000)):
        with pytest.raises((DataRefused, FolderError)):
            archive.install(content, plan, plan.cells[0], tmp_path / "here")
    with refused(FolderError, received="11 bytes", names=["10"]):
        archive.unpack(bytes(11), tmp_path / "here" / "new", 10)


def test_another_comparison_other_code_and_runs_of_two_machines_are_refused(plan: MatrixPlan, tmp_path: Path) -> None:
    def join(folder: Path, of: MatrixPlan = plan) -> None:
        archive.install(archive.pack(folder), of, of.cells[0], tmp_path)

    rows = comparisons.repeated().comparison.rows
    with refused(FolderError, names=["rows", rows[1].id]):
        join(sent(tmp_path / "a"), matrix(rows[:1]))
    with refused(FolderError, field="one", received="0" * 12):
        join(sent(tmp_path / "b", code_hash="0" * 64))
    folder = sent(tmp_path / "c")
    path = folder / store.result_path(rows[0].id, 0)
    other = comparisons.with_fields(results.load(path), machine={"processor": "Another", "cores": 2})
    results.save(other, path.parent)
    with refused(FolderError, field="one", received=f"another processor in {rows[0].id}"):
        join(folder)
    assert not (tmp_path / "one").exists()


def test_a_comparison_whose_replacement_was_killed_is_put_back(plan: MatrixPlan, tmp_path: Path) -> None:
    trees.write(tmp_path, {".one.before/runs": None})
    archive.restore(tmp_path, plan.cells[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one"] and (tmp_path / "one" / "runs").exists()
    (tmp_path / ".one.before").mkdir()
    archive.restore(tmp_path, plan.cells[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one"] and (tmp_path / "one" / "runs").exists()


def test_a_comparison_that_cannot_be_replaced_stays(plan: MatrixPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = archive.pack(sent(tmp_path / "there"))
    kept = trees.write(tmp_path, {"one/kept": None}) / "one" / "kept"
    assert content is not None
    rename = Path.rename

    def refusing(path: Path, to: Path) -> Path:
        if path.name == ".one.received":
            raise OSError("no space")
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", refusing)  # a disk that is full at that moment
    with pytest.raises(OSError, match="no space"):
        archive.install(content, plan, plan.cells[0], tmp_path)
    assert kept.exists() and sorted(path.name for path in tmp_path.iterdir()) == ["one", "there"]

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
from compare.cluster import archive
from compare.core.errors import FolderError
from compare.execution import code_digest, store
from compare.execution.cells import MatrixPlan
from tests.support import comparisons


@pytest.fixture
def plan(tmp_path: Path) -> MatrixPlan:
    return matrix(comparisons.repeated().comparison.rows)


def matrix(rows: Any) -> MatrixPlan:
    own = {"created_at": "2026-01-01T00:00:00+00:00", "argv": ["run"], "code_hash": "0", "machine": {}, "repeats": 5}
    return MatrixPlan.model_validate({**own, "on": "tcp://h:1", "cells": [{"name": "one", "labels": {}, "rows": rows}]})


def sent(at: Path, **plan: Any) -> Path:
    """The folder of a comparison on a worker, with a report and a lock."""
    stored = comparisons.repeated()
    own = {
        "code_hash": code_digest.compute(["pytorch", "tensorflow"], "simple_cnn"),
        "machine": {"processor": "CPU", "cores": 2},
    }
    folder = comparisons.stored_in(
        stored.model_copy(update={"comparison": stored.comparison.model_copy(update=own | plan)}), at
    )
    (folder / "report.html").write_text("<script>")
    (folder / ".lock").touch()
    (folder / "runs" / "link").symlink_to("/etc/passwd")
    return folder


def test_a_comparison_travels_whole_without_its_reports_and_replaces_what_it_was_begun_with(
    plan: MatrixPlan, tmp_path: Path
) -> None:
    there, here = sent(tmp_path / "there"), tmp_path / "here"
    (here / "one" / "runs" / "old").mkdir(parents=True)
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
    ("members", "said"),
    [
        ([member("../runs/x")], "leads out of it"),
        ([member("/etc/x")], "leads out of it"),
        ([member("runs/x", kind=tarfile.SYMTYPE, link="/etc/passwd")], "a link"),
        ([member("runs/x", kind=tarfile.LNKTYPE, link="compare.json")], "a link"),
        ([member("runs/x", kind=tarfile.CHRTYPE)], "no plain file"),
        ([member("runs/x", b"1"), member("runs/x", b"2")], "two files with one path"),
        ([member("report.html", b"<script>")], "no part of a comparison. Received: 'report.html'"),
        ([member("runs", b"1")], "no part of a comparison"),
        ([member("runs/x", bytes(2**20)), member("runs/y", bytes(2**20))], "too large to be sent"),
        ([member(f"runs/{number}") for number in range(400)], "too large to be sent"),
        ([member("runs/x", b"1")], "holds no comparison"),
        ([], "There is no folder"),
    ],
)
def test_a_hostile_archive_is_refused_and_nothing_of_it_stays(
    plan: MatrixPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: list[tuple[tarfile.TarInfo, bytes]], said: str
) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for info, each in members:
            tar.addfile(info, io.BytesIO(each))
    monkeypatch.setattr(archive, "MOST_BYTES", 2**20 + 2**19)
    kept = tmp_path / "here" / "one" / "kept"
    kept.mkdir(parents=True)
    with pytest.raises((DataRefused, FolderError), match=said):
        archive.install(content.getvalue(), plan, plan.cells[0], tmp_path / "here")
    assert kept.exists() and os.listdir(tmp_path / "here") == ["one"] and os.listdir(tmp_path) == ["here"]  # noqa: PTH208


def test_bytes_that_are_no_archive_or_too_many_are_refused(
    plan: MatrixPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    for content in (b"", b"x" * 1000, gzip.compress(b"x" * 1000)):
        with pytest.raises((DataRefused, FolderError)):
            archive.install(content, plan, plan.cells[0], tmp_path / "here")
    monkeypatch.setattr(archive, "MOST_BYTES", 10)
    with pytest.raises(FolderError, match=r"too large to be sent\. Received: 11 bytes"):
        archive.install(bytes(11), plan, plan.cells[0], tmp_path / "here")


def test_another_comparison_other_code_and_runs_of_two_machines_are_refused(plan: MatrixPlan, tmp_path: Path) -> None:
    def join(folder: Path, of: MatrixPlan = plan) -> None:
        archive.install(archive.pack(folder), of, of.cells[0], tmp_path)

    with pytest.raises(FolderError, match="its rows are"):
        join(sent(tmp_path / "a"), matrix(comparisons.repeated().comparison.rows[:1]))
    with pytest.raises(FolderError, match=r"was made by other code\. Received: 000000000000"):
        join(sent(tmp_path / "b", code_hash="0" * 64))
    folder = sent(tmp_path / "c")
    path = folder / store.result_path(plan.cells[0].rows[0].id, 0)
    results.save(results.load(path).model_copy(update={"machine": {"processor": "Another", "cores": 2}}), path.parent)
    with pytest.raises(FolderError, match=r"runs of several machines, which cannot be compared\. Received: another processor"):
        join(folder)
    assert not (tmp_path / "one").exists()


def test_a_comparison_whose_replacement_was_killed_is_put_back(plan: MatrixPlan, tmp_path: Path) -> None:
    (tmp_path / ".one.before" / "runs").mkdir(parents=True)
    archive.restore(tmp_path, plan.cells[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one"] and (tmp_path / "one" / "runs").exists()
    (tmp_path / ".one.before").mkdir()
    archive.restore(tmp_path, plan.cells[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one"] and (tmp_path / "one" / "runs").exists()


def test_a_comparison_that_cannot_be_replaced_stays(plan: MatrixPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, content = tmp_path / "one" / "kept", archive.pack(sent(tmp_path / "there"))
    kept.mkdir(parents=True)
    assert content is not None
    rename = Path.rename

    def refusing(path: Path, to: Path) -> Path:
        if path.name == ".one.received":
            raise OSError("no space")
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", refusing)
    with pytest.raises(OSError, match="no space"):
        archive.install(content, plan, plan.cells[0], tmp_path)
    assert kept.exists() and sorted(path.name for path in tmp_path.iterdir()) == ["one", "there"]

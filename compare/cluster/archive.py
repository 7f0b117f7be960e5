"""A comparison's folder as bytes. Those of a worker are checked before they stand among the results."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

from common.artifacts import atomic_files
from common.data.sources import archives
from common.machine import machine
from common.processes import signals
from compare.core.errors import FolderError
from compare.execution import code_digest, store
from compare.execution.cells import Cell, MatrixPlan

_FOLDERS = (store.RUNS_FOLDER, store.PROOF_FOLDER)
MOST_BYTES = 2**30
"""Of an archive as it comes, and of all its files on disk."""
_BLOCK_BYTES = 4096
"""That a file takes on disk besides its content, at most. Else many empty ones would fill it."""
_RECEIVED, _BEFORE = ".{}.received", ".{}.before"
"""Names beside a comparison's folder: what is not checked yet, and what is replaced."""


def pack(folder: Path) -> bytes | None:
    """The plan, the runs and the proof of a comparison. None: it has not begun. Reports are made again where they are read."""
    if not (folder / store.PLAN_FILE).exists():
        return None
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as tar:
        for name in (store.PLAN_FILE, *_FOLDERS):
            if (folder / name).exists():
                tar.add(folder / name, name, filter=lambda member: member if member.isreg() or member.isdir() else None)
    return content.getvalue()


def unpack(content: bytes, folder: Path) -> None:
    """Write the files of an archive to a new folder.

    Raises:
        DataRefused: it holds anything but plain files below that folder, or unpacks to too much.
        FolderError: it is too large, or holds a file that is no part of a comparison.
    """
    packed = folder.with_name(f"{folder.name}.tar.gz")
    total = len(content)
    if total > MOST_BYTES:
        raise _too_large(total)
    try:
        atomic_files.write_atomically(packed, content)
        tar = archives.Tar(packed)
        for name, file in tar.read(tar.listing().files):
            top, _, rest = name.partition("/")
            if name != store.PLAN_FILE and (top not in _FOLDERS or not rest):
                raise FolderError(f"A worker sent a file that is no part of a comparison. Received: {name!r}. Nothing is kept.")
            if (total := total + file.num_bytes + _BLOCK_BYTES) > MOST_BYTES:
                raise _too_large(total)
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.read())
    finally:
        packed.unlink(missing_ok=True)


def join(content: bytes, plan: MatrixPlan, cell: Cell, folder: Path) -> None:
    """Put a comparison that a worker sent into the folder of its matrix, in place of what it was begun with.

    Raises:
        DataRefused, FolderError: it is refused, see `unpack`, or is not the comparison that was asked for. Nothing is changed.
    """
    place, received, before = (folder / name.format(cell.name) for name in ("{}", _RECEIVED, _BEFORE))
    shutil.rmtree(received, ignore_errors=True)
    try:
        unpack(content, received)
        refuse_other(received, plan, cell)
        with signals.deferred():
            if place.exists():
                store.refuse_busy(place)
                place.rename(before)
            received.rename(place)
    finally:
        shutil.rmtree(received, ignore_errors=True)
        restore(folder, cell)


def restore(folder: Path, cell: Cell) -> None:
    """Put back what a comparison was begun with, if `join` was killed while it replaced it."""
    place, before = folder / cell.name, folder / _BEFORE.format(cell.name)
    if before.exists() and not place.exists():
        before.rename(place)
    shutil.rmtree(before, ignore_errors=True)


def refuse_other(folder: Path, plan: MatrixPlan, cell: Cell) -> None:
    """Check that a folder holds the comparison that was asked for, made by this code on one machine. It is not changed.

    Raises:
        FolderError: it does not.
    """
    stored = store.read(folder)
    store.refuse_used(folder, cell.rows, plan.seeds)
    wanted = code_digest.of(list(dict.fromkeys(row.contestant for row in cell.rows)), cell.rows[0].spec.model)
    if stored.comparison.code_hash != wanted:
        raise FolderError(
            f"{cell.name} was made by other code. Received: {stored.comparison.code_hash[:12]}. Install this one."
        )
    for row_id, runs in stored.runs.items():
        for run in runs.values():
            if others := machine.differences(stored.comparison.machine, run.machine or {}):
                raise FolderError(
                    f"{cell.name} has runs of several machines, which cannot be compared. Received: another "
                    f"{', '.join(others)} in {row_id}. Remove its folder, and run it again."
                )


def _too_large(num_bytes: int) -> FolderError:
    return FolderError(
        f"A comparison is too large to be sent. Received: {num_bytes:,} bytes or more, at most: {MOST_BYTES:,}. Run it with "
        "--on slurm, or without --on."
    )

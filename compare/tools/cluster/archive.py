"""A comparison's folder as an archive. A worker's archive is checked before it is installed among the results."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

from common.artifacts import atomic_files
from common.data.sources import archives
from common.machine import machine
from common.processes import signals
from compare.cli.errors import FolderError
from compare.results import store
from compare.results.cells import Cell, MatrixPlan
from compare.results.workspace import COMPARISON, locked
from compare.running import code_digest, contestants

_FOLDERS = (store.RUNS_FOLDER, store.PROOF_FOLDER)
MOST_BYTES = 2**30
"""Largest size in bytes of an archive, and of all its files on disk."""
_BLOCK_BYTES = 4096
"""Bytes that a file takes on disk besides its content, at most. Without it, many empty files could fill the disk."""
_RECEIVED_NAME, _PREVIOUS_NAME = ".{}.received", ".{}.before"
"""Names of folders beside a comparison's: a received one, not checked yet, and the previous one while it is replaced."""


def pack(folder: Path) -> bytes | None:
    """Pack the plan, the runs and the proof of a comparison. None: it has not started. Reports are made again from these."""
    if not (folder / store.PLAN_FILE).exists():
        return None
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as tar:
        for name in (store.PLAN_FILE, *_FOLDERS):
            if (folder / name).exists():
                tar.add(folder / name, name, filter=lambda member: member if member.isreg() or member.isdir() else None)
    return content.getvalue()


def unpack(content: bytes, folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """Write the files of an archive to a new folder.

    Args:
        most_bytes: limit of its size, and of the size of what it unpacks to.
    """
    archive_file = folder.with_name(f"{folder.name}.tar.gz")
    total = len(content)
    if total > most_bytes:
        raise _too_large(total, most_bytes)
    try:
        atomic_files.write_atomically(archive_file, content)
        tar = archives.Tar(archive_file)
        for name, file in tar.read(tar.listing().files):
            top, _, rest = name.partition("/")
            if name != store.PLAN_FILE and (top not in _FOLDERS or not rest):
                raise FolderError(f"A worker sent a file that is no part of a comparison. Received: {name!r}. Nothing is kept.")
            if (total := total + file.num_bytes + _BLOCK_BYTES) > most_bytes:
                raise _too_large(total, most_bytes)
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.read())
    finally:
        archive_file.unlink(missing_ok=True)


def install(content: bytes, plan: MatrixPlan, cell: Cell, folder: Path) -> None:
    """Install a comparison that a worker sent in the folder of its matrix, in place of the previous state."""
    cell_folder, received, previous = (folder / name.format(cell.name) for name in ("{}", _RECEIVED_NAME, _PREVIOUS_NAME))
    shutil.rmtree(received, ignore_errors=True)
    try:
        unpack(content, received)
        refuse_other_comparison(received, plan, cell)
        with signals.defer_signals():
            if cell_folder.exists():
                with locked(cell_folder):
                    cell_folder.rename(previous)
            received.rename(cell_folder)
    finally:
        shutil.rmtree(received, ignore_errors=True)
        restore(folder, cell)


def restore(folder: Path, cell: Cell) -> None:
    """Restore the previous state of a comparison, if `install` was killed while it replaced it."""
    cell_folder, previous = folder / cell.name, folder / _PREVIOUS_NAME.format(cell.name)
    if previous.exists() and not cell_folder.exists():
        previous.rename(cell_folder)
    shutil.rmtree(previous, ignore_errors=True)


def refuse_other_comparison(folder: Path, plan: MatrixPlan, cell: Cell) -> None:
    """Check that a folder holds the requested comparison, made by this code on one machine. It is not changed."""
    stored = store.read(folder)
    COMPARISON.check(folder, {"rows": cell.rows, "seeds": plan.settings.seeds})
    names = dict.fromkeys(row.contestant for row in cell.rows)
    code_hash = code_digest.compute(contestants.resolve(names, plan.settings.contestants), cell.rows[0].spec.model)
    if stored.comparison.code_hash != code_hash:
        raise FolderError(
            f"{cell.name} was made by other code. Received: {stored.comparison.code_hash[:12]}. Install this one."
        )
    for row_id, runs in stored.runs.items():
        for run in runs.values():
            if differences := machine.differences(stored.comparison.machine, run.machine or {}):
                raise FolderError(
                    f"{cell.name} has runs of several machines, which cannot be compared. Received: another "
                    f"{', '.join(differences)} in {row_id}. Remove its folder, and run it again."
                )


def _too_large(num_bytes: int, most_bytes: int) -> FolderError:
    return FolderError(
        f"A comparison is too large to be sent. Received: {num_bytes:,} bytes or more, at most: {most_bytes:,}. Run it with "
        "--on slurm, or without --on."
    )

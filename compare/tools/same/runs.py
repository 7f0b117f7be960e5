"""Runs the commands of `same`. It shows their progress, and keeps what they measured where the comparison fails."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import typer

from common.artifacts import atomic_files
from common.errors import UserError
from compare.cli import wording
from compare.cli.errors import FolderError
from compare.cli.progress import Display
from compare.results import store, workspace
from compare.tools.same import curves
from compare.tools.same.subjects import Columns, CommandError, Run, Subject

KEPT_FOLDERS = "*-same-*"
"""Pattern of the folders that a comparison keeps in the folder of its report."""
_MOST_NAMES = 8
"""Largest number of kept files that an error names."""


class Runner(NamedTuple):
    """Runs commands one after the other."""

    folder: Path
    """Folder of `keeping`, where commands run."""
    progress: Display

    def run(self, subject: Subject, columns: Columns, copy: int = 0, copies: int = 0, *, is_moved: bool = False) -> Run:
        """Run a command once, and keep its losses.

        Args:
            copy: number of the copy. 0: the usual run.
            copies: number of copies that are made.
            is_moved: whether the inputs of the copy are moved.
        """
        label, name = subject.name, subject.letter
        if copy:
            label, name = f"{label}, copy {copy} of {copies}", f"{name}-copy-{copy}"
        self.progress.stage(label)
        self.progress.begin(subject.letter, label)
        run = subject.run(columns, self.folder / name, copy if is_moved else None)
        curves.write(self.folder / f"{name}.jsonl", run.curve)
        self.progress.end()
        return run


def new_folder(out: Path | None) -> Path:
    """Return a new folder in that of the report, or else among the results, or else in the temporary folder."""
    folder = store.new_folder("same", secrets.token_hex(8))  # several may begin in one second
    if out is not None:
        return out / folder.name
    try:
        workspace.refuse_unwritable(folder)
    except FolderError:  # no folder was asked for, and the answer needs none
        return Path(tempfile.gettempdir(), folder.name)
    return folder


@contextmanager
def keeping(folder: Path) -> Generator[None]:
    """Hold a folder for what commands measure in this block. It stays if the block fails, and the error names its files."""
    new_parents, names = [parent for parent in folder.parents if not parent.exists()], list[str]()
    with workspace.locked(folder):
        try:
            yield
        except BaseException as error:
            names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("[!.]*")) if path.is_file()]
            words = f"What was measured is in {folder}: {wording.listed(names, _MOST_NAMES)}."
            if any(folder.glob("*.jsonl")):
                words += (
                    " A.jsonl or B.jsonl there can stand in the place of its command. With --copies it needs all its copies."
                )
            if isinstance(error, OSError) and error.filename is not None:  # a closed stdout has none
                error = CommandError(f"{error}. {atomic_files.remedy(error, 'name another file or folder')}")
            if names and isinstance(error, UserError):
                raise type(error)(f"{error} {words}") from None
            if names:
                typer.echo(words, err=True)
            raise error
        finally:
            if not names:
                shutil.rmtree(folder, ignore_errors=True)
            for parent in new_parents:
                with contextlib.suppress(OSError):  # it is not empty
                    parent.rmdir()

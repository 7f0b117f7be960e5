"""Runs the commands of `same`. It shows their progress, and keeps what they measured where the comparison fails."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import typer

from common.errors import UserError
from compare.cli import wording
from compare.cli.errors import FolderError
from compare.cli.progress import Display
from compare.results import store, workspace
from compare.tools.same import curves
from compare.tools.same.subjects import Columns, Run, Subject

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
    """Return a new folder beside that of the report, or else among the results, or else in the temporary folder."""
    folder = store.new_folder("same", str(os.getpid()))  # several may begin in one second
    if out is not None:
        return out.parent / folder.name
    try:
        workspace.refuse_unwritable(folder)
    except FolderError:  # no folder was asked for, and the answer needs none
        return Path(tempfile.gettempdir(), f"{folder.name}-{secrets.token_hex(8)}")
    return folder


@contextmanager
def keeping(folder: Path) -> Generator[None]:
    """Hold a folder for what commands measure in this block. It stays if the block fails, and the error names its files."""
    is_first, names = not folder.parent.exists(), list[str]()
    with workspace.locked(folder):
        try:
            yield
        except BaseException as error:
            names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("[!.]*")) if path.is_file()]
            words = f"What was measured is in {folder}: {wording.listed(names, _MOST_NAMES)}."
            if names and isinstance(error, UserError):
                raise type(error)(f"{error} {words}") from None
            if names:
                typer.echo(words, err=True)
            raise
        finally:
            if not names:
                shutil.rmtree(folder, ignore_errors=True)
            if is_first:
                with contextlib.suppress(OSError):  # it is not empty
                    folder.parent.rmdir()

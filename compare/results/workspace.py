"""The folder that a command writes to: opened early, then claimed under a lock. It is new, holds the same work, or is refused.

A command opens its folder before it prepares anything, and claims it when its work is planned:

    with Workspace.open(folder, TUNING, early=identity) as workspace:
        plan = workspace.claim(prepare())
        ...
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, cast

import filelock
from pydantic import BaseModel

from common.artifacts import atomic_files, records
from common.frozen import Exact
from common.machine import plain_file
from common.machine.machine import Facts
from compare.cli.errors import FolderError
from compare.results import store
from compare.results.store import Comparison

_LOCK_FILE = ".lock"
_GITIGNORE = "# Written by convtwins. Remove this file to keep these results in git.\n*\n"
_LOCK_SECONDS = 1.0
"""Timeout of locking a folder. A command that only checks whether a folder is busy locks it for a moment."""


class PlannedWork(Exact):
    """Base of the records of planned work, which say what a results folder is for."""

    code_hash: str
    """Digest of the code, see `compare.running.code_digest`."""
    machine: Facts

    def identity(self) -> dict[str, Any]:
        """Return the fields that must be equal to resume, besides code and machine. JSON-ready."""
        return {}

    def continued_by(self, new: Any) -> Self:
        """Return the record to continue with in a folder that holds this one, if `new` is the same work."""
        return self

    def difference(self, new: Any) -> str | None:
        """Describe what makes other work different. None: it can continue this one."""
        return store.describe_differences(
            store.flatten(self.identity()), store.flatten(new.identity())
        ) or store.code_or_machine_change((self.code_hash, new.code_hash), (self.machine, new.machine))

    def early_difference(self, early: Mapping[str, Any]) -> str | None:
        """Describe how fields of the identity that are known already differ. None: they do not."""
        identity = self.identity()
        return store.describe_differences(
            store.flatten({name: identity.get(name) for name in early}), store.flatten(dict(early))
        )


_Work = TypeVar("_Work", bound=PlannedWork | Comparison | None)
"""Type of a record of planned work. None: the folder holds a report, which names no work."""


@dataclass(frozen=True, kw_only=True)
class FolderKind(Generic[_Work]):
    """A kind of results folder: how it is recognised, and what it records."""

    noun: str
    """Name of such results in messages, e.g. `tuning`."""
    file: str | None = None
    """Name of the JSON file that shows the kind. None: the folder may hold nothing but `allowed`."""
    kind: str | None = None
    """Value of the file's field `kind`, if it has one."""
    record: type[_Work] | None = None
    """Model of the file, if it is the record of planned work."""
    settled: Callable[[_Work], Mapping[str, Any]] = lambda work: {}
    """Function that returns fields that may not change in folders of this kind, besides those of the record's identity."""
    has_started: Callable[[Path], bool] = lambda folder: True
    """Function that returns whether stored work has results. Other work may replace work that has none."""
    allowed: Collection[str] = ()
    """Names of files, or patterns, that may be there without the file of the kind. An interrupted command leaves them."""
    subfolders: Collection[str] = ()
    """Names of subfolders that may not be links."""
    option: str = "--out"
    """Option that names the folder."""

    def check(self, folder: Path | None, early: Mapping[str, Any] | None = None) -> None:
        """Refuse a folder that cannot be written, or holds other files or other work. It is not touched.

        Args:
            folder: the folder. It may be missing. None: there is nothing to refuse.
            early: fields of the identity that are known already.
        """
        if folder is None:
            return
        refuse_unwritable(folder, self.option)
        others = sorted(path.name for path in folder.glob("[!.]*") if not any(map(path.match, self.allowed)))
        if others and not self._is_in(folder):
            content = f"holds files that belong to no {self.noun}" if self.file or self.allowed else "is not empty"
            raise FolderError(f"{folder} {content} ({others[0]}). Choose an empty folder with {self.option}.")
        store.refuse_links(folder, self.subfolders)
        if early is not None and (stored := self._stored(folder)) is not None:
            self.refuse_difference(folder, stored.early_difference(early))

    def resume(self, folder: Path, new: _Work) -> _Work:
        """Return the record to continue with in a locked folder: `new`, or the stored one if it is the same work.

        Half-written files that a killed process left are removed.
        """
        self.check(folder)
        record = new
        if (stored := cast(Any, self._stored(folder))) is not None:
            settled = (store.flatten(dict(self.settled(work))) for work in (stored, new))
            self.refuse_difference(folder, stored.difference(new) or store.describe_differences(*settled))
            record = stored.continued_by(new)
        atomic_files.remove_partial_files(folder)
        return record

    def read(self, folder: Path) -> _Work:
        """Read the record of a folder."""
        assert self.file is not None and self.record is not None
        return cast(_Work, store.read_record(folder / self.file, cast(type[BaseModel], self.record), f"a {self.noun}"))

    def refuse_difference(self, folder: Path, difference: str | None) -> None:
        """Refuse a folder because of a difference between what it holds and what is asked for, if there is one."""
        if difference:
            raise FolderError(f"{folder} holds another {self.noun} ({difference}). Choose another --out, or remove it.")

    def _stored(self, folder: Path) -> _Work | None:
        if self.file is None or self.record is None or not (folder / self.file).exists() or not self.has_started(folder):
            return None
        return self.read(folder)

    def _is_in(self, folder: Path) -> bool:
        """Return whether a folder holds the file of this kind."""
        if self.file is None:
            return False
        try:
            content = plain_file.read(folder / self.file, records.MOST_BYTES)
            return atomic_files.parse_json(content).get("kind") == self.kind
        except (OSError, ValueError, AttributeError):
            return False


class _ComparisonKind(FolderKind[Comparison]):
    """The kind of a comparison's folder."""

    def read(self, folder: Path) -> Comparison:
        return store.read_plan(folder)

    def _is_in(self, folder: Path) -> bool:
        return (folder / store.PLAN_FILE).exists()  # reading it says what is wrong with it


COMPARISON = _ComparisonKind(
    noun="comparison",
    file=store.PLAN_FILE,
    record=Comparison,
    subfolders=(store.RUNS_FOLDER, store.PROOF_FOLDER),
)


class Workspace(Generic[_Work]):
    """A results folder that a command works in, see `open`."""

    def __init__(self, folder: Path | None, kind: FolderKind[_Work], locks: ExitStack) -> None:
        self._folder, self._kind, self._locks = folder, kind, locks

    @classmethod
    @contextmanager
    def open(
        cls, folder: Path | None, kind: FolderKind[_Work], *, early: Mapping[str, Any] | None = None
    ) -> Generator[Workspace[_Work]]:
        """Open a results folder for the block. A folder that cannot serve is refused at once. It is not touched before `claim`.

        Args:
            folder: the folder. It may be missing. None: there is none, or `claim` names it.
            early: fields of the work's identity that are known already.
        """
        kind.check(folder, early)
        if folder is not None and (folder / _LOCK_FILE).exists():
            with locked(folder):
                pass
        with ExitStack() as locks:
            yield cls(folder, kind, locks)

    @property
    def folder(self) -> Path:
        """The folder. There is one."""
        assert self._folder is not None
        return self._folder

    def lock(self) -> None:
        """Lock the folder until the block of `open` ends, if there is one. It is made if it is missing."""
        if self._folder is not None:
            self._locks.enter_context(locked(self._folder))
            self._kind.check(self._folder)  # another command may have worked there since

    def claim(self, work: _Work, folder: Path | None = None) -> _Work:
        """Lock the folder for this work: a new folder, or one with the same work, which is resumed.

        The record is written before the work begins.

        Args:
            work: the record of the work.
            folder: the folder, if `open` was given none.

        Returns:
            The record to continue with.
        """
        self._folder = self._folder or folder
        self._locks.enter_context(locked(self.folder))
        record = self._kind.resume(self.folder, work)
        if isinstance(record, BaseModel) and self._kind.file is not None:
            records.write(self.folder / self._kind.file, record)
        return record


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Lock a results folder. It is made if it is missing."""
    refuse_unwritable(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / _LOCK_FILE, timeout=_LOCK_SECONDS)
        is_new = not any(folder.iterdir())
        lock.acquire(poll_interval=0.02)
        if is_new:
            (folder / ".gitignore").write_text(_GITIGNORE, encoding="utf-8")
    except filelock.Timeout:
        raise FolderError(f"Another command works in {folder}. Wait for it, or choose another --out.") from None
    except OSError as error:
        raise FolderError(f"Results cannot be written to {folder} ({error}). Choose another --out.") from None
    try:
        yield
    finally:
        lock.release()


def refuse_unwritable(folder: Path, option: str = "--out") -> None:
    """Refuse a folder that nothing can be written to. It is not touched, and may be missing.

    Args:
        option: option that named the folder.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not existing.is_dir():
        raise FolderError(f"{existing} is a file, not a folder. Choose a folder with {option}.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise FolderError(f"Results cannot be written to {folder} ({existing} may not be written). Choose another {option}.")


def refuse_growing(folder: Path) -> None:
    """Refuse to read a folder that another command still writes to, in a command that needs whole comparisons."""
    if not (folder / _LOCK_FILE).exists():
        return
    lock = filelock.FileLock(folder / _LOCK_FILE, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise FolderError(f"Another command still writes to {folder}. Wait until it has ended, or leave it out.") from None
    except OSError:
        return  # a folder that may only be read: nobody here writes to it
    lock.release()

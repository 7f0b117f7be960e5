"""The results folder of a command: claimed, locked, resumed, or refused because it holds other work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from common.artifacts import atomic_files
from compare.core.errors import FolderError
from compare.execution import store


class _Plan(Protocol):
    """What every record of planned work holds."""

    @property
    def code_hash(self) -> str: ...
    @property
    def machine(self) -> Mapping[str, Any]: ...
    def model_dump_json(self) -> str: ...


_Work = TypeVar("_Work", bound=_Plan)


@contextmanager
def claimed(
    folder: Path,
    file: str,
    wanted: _Work,
    what: str,
    *,
    identity: Callable[[_Work], Mapping[str, Any]],
    merge: Callable[[_Work, _Work], _Work] | None = None,
    own: Collection[str] = (),
) -> Generator[_Work]:
    """Hold a folder for a command's work: a new folder, or one with the same work, which is resumed.

    The record is written before the work begins. Files that a kill left half written are removed.

    Args:
        folder: made if it is missing.
        file: name of the record in it.
        wanted: the record, as if the work began now.
        what: names the work in messages, e.g. `tuning`.
        identity: fields that must be equal to resume, besides code and machine.
        merge: makes the record to go on with from (stored, wanted). None: the stored one.
        own: names that may be there without a record.

    Yields:
        The record to go on with.

    Raises:
        FolderError: another process holds the folder, or it holds other work or other files.
    """
    path = folder / file
    with store.locked(folder):
        record = wanted
        store.refuse_others(folder, file, getattr(wanted, "kind", None), what, own=own)
        if path.exists():
            stored = _read(path, wanted, what)
            ground = store.other_ground((stored.code_hash, wanted.code_hash), (stored.machine, wanted.machine))
            there, asked = (store.flat(dict(identity(each))) for each in (stored, wanted))
            if difference := store.differing(there, asked) or ground:
                raise FolderError(f"{folder} holds another {what} ({difference}). Choose another --out, or remove it.")
            record = merge(stored, wanted) if merge else stored
        atomic_files.write_atomically(path, atomic_files.with_checksum(record.model_dump_json()))
        atomic_files.sweep(folder)
        yield record


def _read(path: Path, like: _Work, what: str) -> _Work:
    assert isinstance(like, BaseModel)
    return store.read_record(path, type(like), f"a {what}")

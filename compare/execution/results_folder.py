"""The results folder of a command: claimed, locked, resumed, or refused because it holds other work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from common.artifacts import atomic_files, records
from compare.core.errors import FolderError
from compare.execution import store

_Work = TypeVar("_Work", bound=BaseModel)
"""A record of planned work, with `code_hash` and `machine`."""


def held(
    folder: Path | None, file: str, kind: str | None, what: str, *, own: Collection[str] = ()
) -> AbstractContextManager[None]:
    """Hold the folder of a report, if there is one. See `store.refuse_others`.

    Raises:
        FolderError: it holds something else.
    """
    if folder is None:
        return nullcontext()
    store.refuse_others(folder, file, kind, what, own=own)
    return store.locked(folder)


def refuse_other_request(
    folder: Path,
    file: str,
    record: type[_Work],
    what: str,
    asked: Mapping[str, Any],
    *,
    identity: Callable[[_Work], Mapping[str, Any]],
    kind: str | None = None,
    is_begun: Callable[[], bool] = lambda: True,
    own: Collection[str] = (),
) -> None:
    """Refuse a folder at once for what shows before anything is prepared; `claimed` judges the rest. It is not touched.

    Args:
        asked: those fields of the identity that are known already.

    Raises:
        FolderError: it cannot be written, or holds work of other fields, or other files.
    """
    store.refuse_others(folder, file, kind, what, own=own)
    if (folder / file).exists() and is_begun():
        stored = identity(store.read_record(folder / file, record, f"a {what}"))
        there = {name: stored.get(name) for name in asked}
        refuse_other(folder, what, store.differing(store.flat(there), store.flat(dict(asked))))


def refuse_other(folder: Path, what: str, difference: str | None) -> None:
    """Refuse a folder because of a difference between what it holds and what is asked for, if there is one.

    Raises:
        FolderError: there is.
    """
    if difference:
        raise FolderError(f"{folder} holds another {what} ({difference}). Choose another --out, or remove it.")


@contextmanager
def claimed(
    folder: Path,
    file: str,
    wanted: _Work,
    what: str,
    *,
    identity: Callable[[_Work], Mapping[str, Any]],
    merge: Callable[[_Work, _Work], _Work] | None = None,
    is_begun: Callable[[], bool] = lambda: True,
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
        is_begun: whether the stored work has done anything. Other work may replace work that has not.
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
        if path.exists() and is_begun():
            stored = store.read_record(path, type(wanted), f"a {what}")
            then, now = cast(Any, stored), cast(Any, wanted)
            ground = store.other_ground((then.code_hash, now.code_hash), (then.machine, now.machine))
            there, asked = (store.flat(dict(identity(each))) for each in (stored, wanted))
            refuse_other(folder, what, store.differing(there, asked) or ground)
            record = merge(stored, wanted) if merge else stored
        records.write(path, record)
        atomic_files.sweep(folder)
        yield record

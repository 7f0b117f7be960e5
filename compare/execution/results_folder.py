"""The results folder of a command: opened or resumed under a lock, or refused because it holds other work."""

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
"""Type of a record of planned work, with `code_hash` and `machine`."""


def lock_folder(
    folder: Path | None, file: str, kind: str | None, noun: str, *, allowed: Collection[str] = ()
) -> AbstractContextManager[None]:
    """Lock the folder of a report, if there is one. See `store.refuse_others`."""
    if folder is None:
        return nullcontext()
    store.refuse_others(folder, file, kind, noun, allowed=allowed)
    return store.locked(folder)


def refuse_other_request(
    folder: Path,
    file: str,
    record: type[_Work],
    noun: str,
    requested_fields: Mapping[str, Any],
    *,
    identity: Callable[[_Work], Mapping[str, Any]],
    kind: str | None = None,
    has_started: Callable[[], bool] = lambda: True,
    allowed: Collection[str] = (),
) -> None:
    """Refuse a folder at once for what shows before anything is prepared. `open_or_resume` checks the rest. It is not touched.

    Args:
        requested_fields: the fields of the identity that are known already.
    """
    store.refuse_others(folder, file, kind, noun, allowed=allowed)
    if (folder / file).exists() and has_started():
        stored = identity(store.read_record(folder / file, record, f"a {noun}"))
        stored_fields = {name: stored.get(name) for name in requested_fields}
        refuse_other(
            folder, noun, store.describe_differences(store.flatten(stored_fields), store.flatten(dict(requested_fields)))
        )


def refuse_other(folder: Path, noun: str, difference: str | None) -> None:
    """Refuse a folder because of a difference between what it holds and what is asked for, if there is one."""
    if difference:
        raise FolderError(f"{folder} holds another {noun} ({difference}). Choose another --out, or remove it.")


@contextmanager
def open_or_resume(
    folder: Path,
    file: str,
    new_record: _Work,
    noun: str,
    *,
    identity: Callable[[_Work], Mapping[str, Any]],
    merge: Callable[[_Work, _Work], _Work] | None = None,
    has_started: Callable[[], bool] = lambda: True,
    allowed: Collection[str] = (),
) -> Generator[_Work]:
    """Lock a folder for a command's work: a new folder, or one with the same work, which is resumed.

    The record is written before the work begins. Half-written files that a killed process left are removed.

    Args:
        folder: the results folder. It is made if it is missing.
        file: name of the record in it.
        new_record: the record of the work that is requested now.
        noun: name of the work in messages, e.g. `tuning`.
        identity: returns the fields that must be equal to resume, besides code and machine.
        merge: makes the record to continue with from (stored, new). None: the stored one.
        has_started: returns whether the stored work has results. Other work may replace work that has none.
        allowed: names of files that may be there without a record.

    Yields:
        The record to continue with.
    """
    path = folder / file
    with store.locked(folder):
        record = new_record
        store.refuse_others(folder, file, getattr(new_record, "kind", None), noun, allowed=allowed)
        if path.exists() and has_started():
            stored = store.read_record(path, type(new_record), f"a {noun}")
            then, now = cast(Any, stored), cast(Any, new_record)
            change = store.code_or_machine_change((then.code_hash, now.code_hash), (then.machine, now.machine))
            stored_fields, new_fields = (store.flatten(dict(identity(work))) for work in (stored, new_record))
            refuse_other(folder, noun, store.describe_differences(stored_fields, new_fields) or change)
            record = merge(stored, new_record) if merge else stored
        records.write(path, record)
        atomic_files.remove_partial_files(folder)
        yield record

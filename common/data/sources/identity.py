"""The cached hash of a tree's content, so that not all files are read at each start."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from common.data import cache
from common.data.sources.file_source import FileSource

_VERSION = 2
MIN_AGE_SECONDS = 2.0
"""Least seconds since a tree's last change where its hash is cached. On a file system with a coarse clock, a later change
could have the same time stamp."""


def content_hash(tree: FileSource, cache_folder: Path, *, min_age_seconds: float = MIN_AGE_SECONDS) -> str:
    """Return the SHA-256 of the content of a tree. The cache keeps it until a file is written or replaced.

    Raises:
        OSError: the tree cannot be read or the cache not be written.
    """
    record_path = cache_folder / "hashes" / f"{hashlib.sha256(os.fsencode(tree.path.resolve())).hexdigest()}.json"
    fingerprint, newest_ns = tree.fingerprint()
    try:
        record = cache.read_record(record_path, _VERSION)
        if record["fingerprint"] == fingerprint:
            return record["content_hash"]
    except cache.CORRUPT_ENTRY_ERRORS:
        pass  # it is computed again
    started_ns = time.time_ns()
    content_hash = tree.content_hash()
    if newest_ns < started_ns - min_age_seconds * 1e9 and tree.fingerprint()[0] == fingerprint:
        cache.write_record(record_path, {"version": _VERSION, "fingerprint": fingerprint, "content_hash": content_hash})
    return content_hash

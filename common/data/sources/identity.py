"""The hash of a tree's content, remembered so that not all files are read at each start."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from common.artifacts import atomic_files
from common.data.sources.file_source import FileSource

SETTLED_SECONDS = 2.0
"""A tree that changed this shortly before it was read is read again at the next start. On a file system with a coarse clock, a
later change could have the same time stamp."""


def content_hash(tree: FileSource, cache_folder: Path) -> str:
    """SHA-256 of the content of a tree. The cache keeps it until a file is written or replaced.

    Raises:
        DataRefused: the tree holds something that is no plain file, or is too large.
        OSError: the tree cannot be read or the cache not be written.
    """
    place = cache_folder / "hashes" / f"{hashlib.sha256(os.fsencode(tree.path.resolve())).hexdigest()}.json"
    fingerprint, newest_ns = tree.fingerprint()
    known = _read(place)
    if known.get("fingerprint") == fingerprint:
        return known["content_hash"]
    started_ns = time.time_ns()
    content_hash = tree.content_hash()
    if newest_ns < started_ns - SETTLED_SECONDS * 1e9 and tree.fingerprint()[0] == fingerprint:
        atomic_files.write_atomically(place, json.dumps({"fingerprint": fingerprint, "content_hash": content_hash}))
    return content_hash


def _read(place: Path) -> dict[str, Any]:
    try:
        known = json.loads(place.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) and isinstance(known.get("content_hash"), str) else {}

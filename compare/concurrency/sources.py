"""The Python files of a path or module, parsed and never run."""

from __future__ import annotations

import ast
import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.spec import SpecError
from compare.concurrency.findings import Suppression, suppressions
from compare.core.wording import shortened

MOST_BYTES = 2_000_000
"""Of one file. Longer ones hold data, not code."""
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist"}


@dataclass(frozen=True)
class Source:
    name: str
    """Dotted, as imports of the other files name it."""
    file: str
    """As findings show it."""
    tree: ast.Module
    comments: Mapping[int, Suppression]
    is_package: bool = False


def read(word: str, unread: list[str] | None = None) -> list[Source]:
    """Parse a file, every file of a folder, or a module by its dotted name.

    Args:
        unread: gets the reasons of a folder's files that cannot be read, if others can.

    Raises:
        SpecError: there is no such path or module, or no file can be read as Python. The message names file and line.
    """
    path = _located(word)
    if path.is_dir():
        files = sorted(_files(path))
        if not files:
            raise SpecError(f"PATH has no Python files. Received: {word!r}. Name a .py file, or a folder that has some.")
    elif path.suffix != ".py":
        raise SpecError(f"PATH is not a Python file. Received: {word!r}. Name a .py file, a folder or a module.")
    else:
        files = [path]
    top = path if path.is_dir() else path.parent
    while (top / "__init__.py").exists() and top.parent != top:  # names begin where the outermost package lies
        top = top.parent
    found: list[Source] = []
    for each in files:
        try:
            found.append(_parsed(each, top))
        except SpecError as error:
            if unread is None or not path.is_dir():
                raise
            unread.append(str(error).rstrip("."))
    if not found:
        raise SpecError(f"{(unread or [''])[0]}.")
    return found


def _located(word: str) -> Path:
    path, parts = Path(word), word.split(".")
    try:
        if path.exists():
            return path
        for root in [Path.cwd(), *map(Path, filter(None, sys.path))] if all(map(str.isidentifier, parts)) else []:
            place = root.joinpath(*parts)
            if (place / "__init__.py").exists():
                return place
            if place.with_suffix(".py").exists():
                return place.with_suffix(".py")
    except (OSError, ValueError):  # too long, or a null byte
        pass
    raise SpecError(
        f"There is no such path or module. Received: {shortened(word, 200)!r}. Name a .py file, a folder or a module."
    )


def _files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if each not in _SKIPPED and not each.startswith("."))
        found += [Path(place, name) for name in names if name.endswith(".py")]
    return found


def _parsed(path: Path, top: Path) -> Source:
    name = shown(path)
    if not path.is_file():
        raise SpecError(f"{name} is not a file. Leave it out.")
    if (size := path.stat().st_size) > MOST_BYTES:
        limit = f"At most {MOST_BYTES:,} bytes of a file are read. Leave it out."
        raise SpecError(f"{name}:1: this file is too large. Received: {size:,} bytes. {limit}")
    try:
        with path.open("rb") as opened:
            raw = opened.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in other people's text
            tree = ast.parse(raw, str(path))
        encoding = "utf-8-sig"
        for line in raw.splitlines()[:2]:
            if b"coding" in line and b"latin-1" in line:
                encoding = "latin-1"
        comments = suppressions(raw.decode(encoding, errors="replace"))
    except SyntaxError as error:
        raise SpecError(
            f"{name}:{error.lineno or 1}: this is not valid Python ({error.msg}). Mend it, or leave it out."
        ) from None
    except (RecursionError, MemoryError):
        raise SpecError(f"{name}:1: the code is nested too deeply to be read. Leave it out.") from None
    except ValueError as error:  # a null byte, or an unknown encoding
        raise SpecError(f"{name}:1: this is not valid Python ({error}). Mend it, or leave it out.") from None
    except OSError as error:
        raise SpecError(f"{name} cannot be read ({error.strerror}).") from None
    parts = path.relative_to(top).with_suffix("").parts if path.is_relative_to(top) else (path.stem,)
    is_package = parts[-1] == "__init__"
    return Source(".".join(parts[:-1] if is_package else parts), name, tree, comments, is_package)


def shown(path: Path) -> str:
    """A path as findings show it: below this folder if it lies there."""
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except (ValueError, OSError):
        return path.as_posix()

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
from compare.cli.wording import shortened
from convtwins_hangs.concurrency.findings import Suppression, parse_suppressions

MAX_BYTES = 2_000_000
"""Maximum size of a source file. Larger files hold data, not code."""
_SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "build", "dist"}


@dataclass(frozen=True)
class SourceFile:
    name: str
    """Dotted module name, as other files import it."""
    file: str
    """Path of the file as findings show it."""
    tree: ast.Module
    comments: Mapping[int, Suppression]
    is_package: bool = False


def read(target: str, skipped: list[str] | None = None) -> list[SourceFile]:
    """Parse a file, every file of a folder, or a module by its dotted name.

    Args:
        skipped: receives the messages about a folder's unreadable files. None: the first one is raised.
    """
    path = _locate(target)
    if path.is_dir():
        files = sorted(_python_files(path))
        if not files:
            raise SpecError(f"PATH has no Python files. Received: {target!r}. Name a .py file, or a folder that has some.")
    elif path.suffix != ".py":
        raise SpecError(f"PATH is not a Python file. Received: {target!r}. Name a .py file, a folder or a module.")
    else:
        files = [path]
    top = path if path.is_dir() else path.parent
    while (top / "__init__.py").exists() and top.parent != top:  # names begin where the outermost package lies
        top = top.parent
    sources: list[SourceFile] = []
    for file in files:
        try:
            sources.append(_parse(file, top))
        except SpecError as error:
            if skipped is None or not path.is_dir():
                raise
            skipped.append(str(error).rstrip("."))
    if not sources:
        raise SpecError(f"{(skipped or [''])[0]}.")
    return sources


def _locate(target: str) -> Path:
    path, parts = Path(target), target.split(".")
    try:
        if path.exists():
            return path
        for root in [Path.cwd(), *map(Path, filter(None, sys.path))] if all(map(str.isidentifier, parts)) else []:
            candidate = root.joinpath(*parts)
            if (candidate / "__init__.py").exists():
                return candidate
            if candidate.with_suffix(".py").exists():
                return candidate.with_suffix(".py")
    except (OSError, ValueError):  # too long, or a null byte
        pass
    raise SpecError(
        f"There is no such path or module. Received: {shortened(target, 200)!r}. Name a .py file, a folder or a module."
    )


def _python_files(folder: Path) -> list[Path]:
    files: list[Path] = []
    for directory, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS and not name.startswith("."))
        files += [Path(directory, name) for name in names if name.endswith(".py")]
    return files


def _parse(path: Path, top: Path) -> SourceFile:
    name = display_path(path)
    if not path.is_file():
        raise SpecError(f"{name} is not a file. Leave it out.")
    if (size := path.stat().st_size) > MAX_BYTES:
        limit = f"At most {MAX_BYTES:,} bytes of a file are read. Leave it out."
        raise SpecError(f"{name}:1: this file is too large. Received: {size:,} bytes. {limit}")
    try:
        with path.open("rb") as file:
            raw = file.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in other people's text
            tree = ast.parse(raw, str(path))
        encoding = "utf-8-sig"
        for line in raw.splitlines()[:2]:
            if b"coding" in line and b"latin-1" in line:
                encoding = "latin-1"
        comments = parse_suppressions(raw.decode(encoding, errors="replace"))
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
    return SourceFile(".".join(parts[:-1] if is_package else parts), name, tree, comments, is_package)


def display_path(path: Path) -> str:
    """Return a path as findings show it: relative to the current folder if it lies below it."""
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except (ValueError, OSError):
        return path.as_posix()

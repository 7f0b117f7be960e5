"""Detects a package of a user's model that is named like one of the suite's. The model would import the suite's."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from common.machine import machine

SUITE_PACKAGES = ("common", "compare", "pytorch_impl", "tensorflow_impl")


def describe_clash(model: str, error: ImportError | None) -> str | None:
    """Return why a user's model cannot get the modules that it imports, or None.

    Args:
        model: module of the model.
        error: the error of its import. None: it was imported.
    """
    roots = [Path(entry) for entry in sys.path if Path(entry).resolve() != machine.PROJECT_ROOT]
    shadowing = {name: root for root in reversed(roots) for name in SUITE_PACKAGES if (root / name).is_dir()}
    if not shadowing:
        return None
    names = [
        name for name in _imported_modules(model) if "." in name and _contains_module(shadowing.get(_top_level(name)), name)
    ]
    if error is not None and _top_level(error.name or "") in shadowing:
        names.append(str(error.name))
    if not names:
        return None
    package = _top_level(names[0])
    return (
        f"model {model} imports {names[0]} from {shadowing[package] / package}. In a comparison {package} is a package of "
        "Convtwins. Rename yours, or move it into the model's own package and import it relatively."
    )


def _imported_modules(model: str) -> Iterator[str]:
    """Yield the modules that the loaded modules of the model's package import by absolute name."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)  # none of a folder without __init__.py
        if _top_level(name) != _top_level(model) or file is None:
            continue
        yield from (imported for _, imported in imports_of(Path(file)))


def imports_of(file: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each module, or name of a module, that a file of source imports by absolute name.

    A compiled module has no source to read, so it yields nothing.
    """
    if file.suffix != ".py":
        return
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _top_level(name: str) -> str:
    return name.partition(".")[0]


def _contains_module(root: Path | None, name: str) -> bool:
    if root is None:
        return False
    path = root.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()

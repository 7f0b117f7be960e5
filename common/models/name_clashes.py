"""A user's model may need a package of its own that is named like one of the suite's. It would get the suite's."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from common.machine import machine

SUITE = ("common", "compare", "pytorch_impl", "tensorflow_impl")


def clash(model: str, failed: ImportError | None) -> str | None:
    """Why a user's model cannot have what it imports, or None.

    Args:
        failed: what importing it raised.
    """
    roots = [Path(entry) for entry in sys.path if Path(entry).resolve() != machine.PROJECT_ROOT]
    like_suite = {name: root for root in reversed(roots) for name in SUITE if (root / name).is_dir()}
    if not like_suite:
        return None
    names = [name for name in _imported(model) if "." in name and _has(like_suite.get(_top(name)), name)]
    if failed is not None and _top(failed.name or "") in like_suite:
        names.append(str(failed.name))
    if not names:
        return None
    package = _top(names[0])
    return (
        f"model {model} imports {names[0]} from {like_suite[package] / package}. In a comparison {package} is a package of "
        "Convtwins. Rename yours, or move it into the model's own package and import it relatively."
    )


def _imported(model: str) -> Iterator[str]:
    """Modules that the loaded modules of the model's package import by absolute name."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)  # none of a folder without __init__.py
        if _top(name) != _top(model) or file is None or not file.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(Path(file).read_bytes())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _top(name: str) -> str:
    return name.partition(".")[0]


def _has(root: Path | None, name: str) -> bool:
    if root is None:
        return False
    path = root.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()

"""The tools beside this core: their commands, and what they do for it. No tool is imported before it is used."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

_FOLDER = Path(__file__).parents[1] / "tools"


def commands() -> dict[str, str]:
    """Return the module of each tool's commands, by their name. `COMMANDS` of a tool's package names them."""
    return {name: f"{tool.__name__}.{name}" for tool in _tools() for name in tool.COMMANDS}


def provider(hook: str) -> ModuleType | None:
    """Return the module that a tool's package names in this constant. None: no tool has it."""
    for tool in _tools():
        if (name := getattr(tool, hook, None)) is not None:
            return importlib.import_module(f"{tool.__name__}.{name}")
    return None


def _tools() -> list[Any]:
    """Import the package of each tool, which holds no more than its subject and its commands."""
    folders = sorted(path.parent.name for path in _FOLDER.glob("*/__init__.py"))
    return [importlib.import_module(f"compare.tools.{name}") for name in folders]

"""A tool's folder can go: the core, the other tools and their commands work without it."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
TOOLS = sorted(path.parent.name for path in (PROJECT / "compare" / "tools").glob("*/__init__.py"))

IMPORT_THE_CORE = """
import importlib, pkgutil, sys
import compare
for module in pkgutil.walk_packages(compare.__path__, "compare."):
    if not module.name.startswith("compare.tools.") and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assert not [name for name in sys.modules if name.startswith("compare.tools.")]
"""
LIST_THE_COMMANDS = "from compare.__main__ import MODULES; print(*MODULES)"


def ran(checkout: Path, program: str) -> str:
    ended = subprocess.run([sys.executable, "-c", program], cwd=checkout, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def without(folder: Path, *tools: str) -> Path:
    """A checkout whose folders are links, without these tools."""
    (folder / "compare" / "tools").mkdir(parents=True)
    for path in [PROJECT / "common", *(PROJECT / "compare").iterdir(), *(PROJECT / "compare" / "tools").iterdir()]:
        if path.name not in ("tools", "__pycache__", *tools):
            (folder / path.relative_to(PROJECT)).symlink_to(path)
    return folder


def test_the_core_can_be_imported_without_any_tool(tmp_path: Path) -> None:
    ran(without(tmp_path, *TOOLS), IMPORT_THE_CORE)


@pytest.mark.parametrize("tool", TOOLS)
def test_only_the_commands_of_a_removed_tool_are_gone(tool: str, tmp_path: Path) -> None:
    everything, rest = (ran(checkout, LIST_THE_COMMANDS).split() for checkout in (PROJECT, without(tmp_path, tool)))
    gone = ran(PROJECT, f"import compare.tools.{tool} as tool; print(*tool.COMMANDS)").split()
    assert [name for name in everything if name not in gone] == rest
    assert len(everything) == len(rest) + len(gone)

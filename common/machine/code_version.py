"""Which version of the suite this is. `setup.py` uses this file too, so it imports the standard library only."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

BUILT_FILE = "built.json"
"""File with the result of `describe` for the checkout that a package was built from."""


def describe(root: Path) -> dict[str, Any]:
    """Return `version`, `commit` and `dirty` (the code differs from the commit) of the code in a folder. None: not known."""
    if (root / BUILT_FILE).exists():
        return json.loads((root / BUILT_FILE).read_text(encoding="utf-8"))
    project = root / "pyproject.toml"
    version = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"] if project.exists() else None
    return {"version": version, **_commit(root)}


def in_words(code: dict[str, Any]) -> str:
    """Return the version as a message names it, e.g. `0.1.0, commit 0123abcd with changes`."""
    commit = f"commit {code['commit']}{' with changes' if code['dirty'] else ''}" if code["commit"] else "commit unknown"
    return f"{code['version'] or 'unknown version'}, {commit}"


def git_environment() -> dict[str, str]:
    """Return this process's environment without the variables of git that name the repository of a hook."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith("GIT_CONFIG")}


def _commit(root: Path) -> dict[str, Any]:
    if not (root / ".git").exists():  # unpacked inside of another repository, perhaps
        return {"commit": None, "dirty": None}

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        result = subprocess.run(command, env=git_environment(), capture_output=True, text=True, check=True, timeout=10)
        return result.stdout.strip()

    try:
        modified = git("status", "--porcelain", "--untracked-files=no")
        untracked = git("ls-files", "--others", "--exclude-standard", "--", "*.py")  # untracked code counts as well
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(modified or untracked)}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}

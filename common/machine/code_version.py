"""Which version of the suite this is. `setup.py` uses this file too, so it imports the standard library only."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

BUILT_FILE = "built.json"
"""What `of` said of the checkout that a package was built from."""


def of(root: Path) -> dict[str, Any]:
    """The code in a folder: `version`, `commit`, and `dirty` if code differs from the commit. None: not known."""
    if (root / BUILT_FILE).exists():
        return json.loads((root / BUILT_FILE).read_text(encoding="utf-8"))
    project = root / "pyproject.toml"
    version = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"] if project.exists() else None
    return {"version": version, **_commit(root)}


def in_words(found: dict[str, Any]) -> str:
    """`0.1.0, commit 0123abcd with changes`."""
    commit = f"commit {found['commit']}{' with changes' if found['dirty'] else ''}" if found["commit"] else "commit unknown"
    return f"{found['version'] or 'unknown version'}, {commit}"


def git_environment() -> dict[str, str]:
    """This process's environment without what git sets for its hooks, and would take for its own place."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith("GIT_CONFIG")}


def _commit(root: Path) -> dict[str, Any]:
    if not (root / ".git").exists():  # unpacked inside of another repository, perhaps
        return {"commit": None, "dirty": None}

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        done = subprocess.run(command, env=git_environment(), capture_output=True, text=True, check=True, timeout=10)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        new = git("ls-files", "--others", "--exclude-standard", "--", "*.py")  # code as well, which no checkout brings back
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(changed or new)}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}

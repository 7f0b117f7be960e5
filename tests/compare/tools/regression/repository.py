"""Git repositories that a test makes."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from common import spec
from compare.running import launch
from tests.support import trees
from tests.support.processes import git

__all__ = ["commit", "copied", "git", "initialised", "spec_module", "worktrees"]


def initialised(folder: Path) -> Path:
    """A folder as a repository without a commit, made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    return folder


def commit(folder: Path, what: str, files: Mapping[str, str], tag: str | None = None) -> None:
    trees.write(folder, files)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", what)
    if tag:
        git(folder, "tag", "-f", tag)


def worktrees(repository: Path) -> int:
    return len(git(repository, "worktree", "list").splitlines())


def spec_module(*without: str) -> str:
    """A base's `common/spec.py`: this one's fields, without some."""
    values = json.loads(spec.Spec().to_json())
    for dotted in without:
        group, _, leaf = dotted.rpartition(".")
        del (values[group] if group else values)[leaf]
    return f"class Spec:\n    def to_json(self):\n        return {json.dumps(values)!r}\n"


def copied(folder: Path) -> Path:
    """The working tree in a folder, which is a repository without a commit."""
    for part in ("common", "compare", "pytorch_impl", "tensorflow_impl"):
        shutil.copytree(launch.PROJECT_ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(launch.PROJECT_ROOT / "requirements.lock", folder)
    (folder / ".gitignore").write_text("__pycache__/\nresults/\n")
    return initialised(folder)

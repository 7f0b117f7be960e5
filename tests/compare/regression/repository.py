"""Git repositories that a test makes."""

import shutil
import subprocess
from pathlib import Path

from compare.execution import launch


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, as nobody in particular, and return what it prints."""
    settings = ("-c", "user.name=Somebody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *settings, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def copied(folder: Path) -> Path:
    """The working tree in a folder, which is a repository without a commit."""
    for part in ("common", "compare", "pytorch_impl", "tensorflow_impl"):
        shutil.copytree(launch.PROJECT_ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(launch.PROJECT_ROOT / "requirements.lock", folder)
    (folder / ".gitignore").write_text("__pycache__/\nresults/\n")
    git(folder, "init", "-q", "-b", "main")
    return folder

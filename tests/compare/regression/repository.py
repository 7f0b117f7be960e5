"""Git repositories that a test makes."""

import subprocess
from pathlib import Path


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, as nobody in particular, and return what it prints."""
    settings = ("-c", "user.name=Somebody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *settings, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()

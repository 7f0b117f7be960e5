"""Builds the package: the launcher, and the suite as `convtwins/_app`. All else stands in pyproject.toml."""

import json
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
SUITE = ("common", "compare", "convtwins", "pytorch_impl", "tensorflow_impl", "locks")

code_version = runpy.run_path(str(ROOT / "common" / "machine" / "code_version.py"))
VERSION = code_version["describe"](ROOT)  # before files are made, which would count as changes


def record_version(folder: Path) -> None:
    """Write down which commit this is: what is built has no git repository beside it."""
    (folder / code_version["BUILT_FILE"]).write_text(json.dumps(VERSION, indent=1) + "\n", encoding="utf-8")


def shipped() -> set[str]:
    """Files of the suite: those of the commit, and new code, which counts as a change. In a source distribution, all."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        names: list[str] = []
        for words in (
            ["--cached", "--", *SUITE],
            ["--others", "--exclude-standard", "--", *(f"{each}/*.py" for each in SUITE)],
        ):
            command = ["git", "-C", str(ROOT), "ls-files", "-z", *words]
            done = subprocess.run(command, env=code_version["git_environment"](), capture_output=True, text=True, check=True)
            names += done.stdout.split("\0")
    else:
        names = [path.relative_to(ROOT).as_posix() for each in SUITE for path in (ROOT / each).rglob("*")]
    kept = (name for name in names if "__pycache__" not in name and not name.endswith((".pyc", ".pyo")))
    return {name for name in kept if (ROOT / name).is_file()}


class BuildPy(build_py):
    """Also copies the suite. An editable installation uses that of the checkout."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        app = Path(self.build_lib) / "convtwins" / "_app"
        shutil.rmtree(app, ignore_errors=True)  # of an earlier build, whose files may be gone
        for name in shipped():
            (app / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, app / name)
        record_version(app)


class Sdist(sdist):
    """Also records the version, for a wheel that is built from it."""

    def make_release_tree(self, base_dir: str, files: Any) -> None:
        kept = shipped()
        super().make_release_tree(base_dir, [each for each in files if Path(each).parts[0] not in SUITE or each in kept])
        record_version(Path(base_dir))


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})

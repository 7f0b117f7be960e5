"""Builds the package: the launcher, and the suite as `convtwins/_app`. All else stands in pyproject.toml."""

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
SUITE = ("common", "compare", "pytorch_impl", "tensorflow_impl")

code_version = runpy.run_path(str(ROOT / "common" / "machine" / "code_version.py"))
VERSION = code_version["of"](ROOT)  # before files are made, which would count as changes


def record_version(folder: Path) -> None:
    """Write down which commit this is: what is built has no git repository beside it."""
    (folder / code_version["BUILT_FILE"]).write_text(json.dumps(VERSION, indent=1) + "\n", encoding="utf-8")


class BuildPy(build_py):
    """Also copies the suite. An editable installation uses that of the checkout."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        app = Path(self.build_lib) / "convtwins" / "_app"
        shutil.rmtree(app, ignore_errors=True)  # of an earlier build, whose files may be gone
        for package in SUITE:
            shutil.copytree(ROOT / package, app / package, ignore=shutil.ignore_patterns("__pycache__", "*.py[cod]"))
        record_version(app)


class Sdist(sdist):
    """Also records the version, for a wheel that is built from it."""

    def make_release_tree(self, base_dir: str, files: Any) -> None:
        super().make_release_tree(base_dir, files)
        record_version(Path(base_dir))


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})

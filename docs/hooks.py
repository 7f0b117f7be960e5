"""What the site has besides the pages: the reference of commands and of Python, and the sample report. See mkdocs.yml."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
PROJECT = DOCS.parent
PYTHON = PROJECT / ".venv" / "bin" / "python"
"""Of the suite itself. The site is built by another environment, which has no need of it."""

_API = """# Python

## A comparison in a notebook

::: compare.api

## What to run

::: common.spec.schema

## What a run has recorded

::: common.artifacts.schema
"""
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add what is generated."""
    words = [PYTHON, "-m", "typer", "compare.__main__", "utils", "docs", "--name", "convtwins", "--title", "Commands"]
    commands = subprocess.run(words, cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=True).stdout
    files.append(File.generated(config, "reference/commands.md", content=commands))
    files.append(File.generated(config, "reference/python.md", content=_API))
    for readme in (PROJECT / "plugins" / "hangs").rglob("README.md"):
        # Pages lie one folder higher on the site: `docs` is its root.
        page = readme.read_text(encoding="utf-8").replace("../docs/", "../")
        files.append(File.generated(config, readme.relative_to(PROJECT).as_posix(), content=page))
    with tempfile.TemporaryDirectory() as folder:
        example = Path(shutil.copytree(DOCS / "example", Path(folder) / "example"))
        subprocess.run([PYTHON, "-m", "compare", "report", example], cwd=PROJECT, stdout=subprocess.DEVNULL, check=True)
        page = (example / "report.html").read_bytes()  # with its plots
        files.append(File.generated(config, "example/report.html", content=page))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links to folders and to files of the repository become their names: the site does not have them."""

    def kept(link: re.Match[str]) -> str:
        target = (DOCS / page.file.src_uri).parent / link[2]
        outside = not target.resolve().is_relative_to(DOCS)
        return f"`{link[1].strip('`')}`" if outside or target.is_dir() or target.suffix == ".py" else link[0]

    return _LINK.sub(kept, markdown.replace("](../plugins/hangs/", "](plugins/hangs/"))

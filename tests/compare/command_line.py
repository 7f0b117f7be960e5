"""The command line, in this process."""

from typing import Any

from typer.testing import CliRunner

from compare.__main__ import app


def compare(*words: object) -> Any:
    """Run `convtwins WORDS`."""
    return CliRunner().invoke(app, list(map(str, words)))

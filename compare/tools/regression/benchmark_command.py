"""Commands that are measured in the place of trainings: a suite of pytest-benchmark, or any command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common.spec import SpecError
from compare.cli.option_parsing import split_command
from compare.tools.regression.measured import COMMAND_SECONDS, FIGURE, SECONDS

JSON_WORD = "{json}"
"""Stands in a command for the file that it writes its figures to."""


@dataclass(frozen=True)
class BenchmarkCommand:
    """A command that is measured: the value of `--pytest` or `--command`."""

    option: Literal["--pytest", "--command"]
    text: str

    @property
    def words(self) -> list[str]:
        return split_command(self.option, self.text, "Quote it, or leave it out." if self.option == "--pytest" else "")

    @property
    def packages(self) -> list[str]:
        """Packages that both sides need."""
        return ["pytest", "pytest-benchmark"] if self.option == "--pytest" else []

    @property
    def name(self) -> str:
        return f"pytest {self.text}".strip() if self.option == "--pytest" else self.text

    @property
    def metric(self) -> str:
        """Metric of its figures."""
        if self.option == "--pytest":
            return SECONDS
        return FIGURE if JSON_WORD in self.text else COMMAND_SECONDS

    def check(self) -> None:
        """Refuse a command that cannot be measured, before anything is checked out."""
        words = self.words
        if self.option == "--command" and not words:
            raise SpecError("--command needs a command. Received: nothing. Use e.g. --command 'python train.py'.")
        if self.option == "--command":
            return  # another program may have options of these names
        names = {word.partition("=")[0] for word in words if word.startswith("--benchmark-")}
        if refused := names & {"--benchmark-json", "--benchmark-skip", "--benchmark-disable"}:
            raise SpecError(f"--pytest writes the JSON file itself. Received: {', '.join(sorted(refused))}. Leave it out.")

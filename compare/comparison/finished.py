"""Runs that have ended or were interrupted, with their report: what a command prints of them, and its exit code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import typer

from compare.cli import exits, wording
from compare.cli.commands import Outcome
from compare.cli.interrupt import SIGNAL_EXIT_BASE, Interrupted
from compare.reporting.document import Report, WrittenReport


@dataclass(frozen=True, kw_only=True)
class FinishedWork:
    """A comparison or a matrix that was run. Its report is written."""

    report: Report
    folder: Path
    code: int
    """Exit code: 0, or 130 or 143 if it was interrupted."""
    unwritten: str | None
    """Sentences on files that could not be written. None: all were written."""

    def outcome(self, worst: int = 0) -> Outcome:
        """Return what a command returns.

        Args:
            worst: the worst exit code of its parts.
        """
        report = self.report
        if self.unwritten or self.code:  # the reason of the exit code then
            report = replace(report, failures=())
        if self.unwritten and report.screen:
            report = replace(report, screen=report.screen.with_trouble(self.unwritten))

        def finish(code: int) -> int:
            if self.unwritten:
                typer.echo(self.unwritten, err=True)
            elif self.code:
                typer.echo(f"Interrupted. {resume_hint(self.folder)}", err=True)
            return self.code or (exits.RUN_FAILED if self.unwritten else code or worst)

        return Outcome(WrittenReport(report), None if self.unwritten else self.folder, finish)

    def completed_folder(self) -> Path:
        """Return the folder, if the work was not interrupted and all files are written.

        Raises:
            OSError: a result or the report could not be written.
        """
        if self.code:
            interruption = Interrupted(self.code - SIGNAL_EXIT_BASE)
            interruption.message = f"Interrupted. {resume_hint(self.folder)}"
            raise interruption
        if self.unwritten:
            raise OSError(self.unwritten)
        return self.folder


def resume_hint(folder: Path) -> str:
    """Say how to continue what is in a folder."""
    resume_command = wording.command("run", "--resume", str(folder))
    return f"To continue, run the same command with {wording.shell(['--out', str(folder)])}, or {resume_command}"

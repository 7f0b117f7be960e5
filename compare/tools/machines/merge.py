"""`convtwins merge`: one answer from the comparisons of several machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compare.cli import commands
from compare.cli.commands import Outcome
from compare.reporting import document
from compare.results.workspace import FolderKind
from compare.running import options
from compare.tools.machines import merge_report, questions


@commands.command()
def command(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Results folders of comparisons, made anywhere.")],
    out: options.OutOrNone = None,
    signers: options.Signers = None,
) -> Outcome:
    """Join comparisons of several machines: who is faster on how many of them, and by how much on average."""
    FolderKind[None](
        noun="report of several machines",
        file=merge_report.RESULTS_FILE,
        kind=merge_report.KIND,
        allowed=document.report_files(merge_report.NAME),
    ).check(out)
    merged = questions.merge(questions.read_machines(folders, signers))
    return Outcome(merge_report.report(merged, out), out)

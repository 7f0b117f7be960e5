"""`convtwins merge`: one answer from the comparisons of several machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compare.core import commands
from compare.core.commands import Outcome
from compare.execution import options
from compare.execution.workspace import FolderKind
from compare.machines import merge_report, questions
from compare.reporting import document


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

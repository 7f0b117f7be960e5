"""`convtwins report`: the report of a stored comparison, made again; or two of them side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compare.cli import commands
from compare.cli.commands import Outcome
from compare.cli.errors import FolderError
from compare.reporting import comparison_report, document, matrix_report, side_by_side
from compare.results import cells, store
from compare.results.workspace import FolderKind
from compare.running import options


@commands.command()
def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The results folder of a comparison or a matrix.")],
    other: Annotated[Path | None, typer.Argument(metavar="[OTHER]", help="A second one, shown beside it.")] = None,
    out: Annotated[Path | None, typer.Option(help=f"{options.OUT} Default: DIR. Of two folders, nothing is kept.")] = None,
    signers: options.Signers = None,
) -> Outcome:
    """Make the page, tables and plots of a comparison again from its stored results; or put two side by side."""
    if cells.is_matrix(folder):
        return _report_matrix(folder, other, out, signers)
    if other is not None:
        side_by_side.check((folder, other), out)
        compared_pair = (comparison_report.read(folder, signers=signers), comparison_report.read(other, signers=signers))
        return Outcome(side_by_side.report((folder, other), compared_pair, out), out)
    if out is not None and out.resolve() != folder.resolve():
        if (out / store.PLAN_FILE).exists():
            raise FolderError(f"{out} holds another comparison. Choose another --out.")
        FolderKind[None](noun="report", file=comparison_report.RESULTS_FILE, allowed=document.report_files()).check(out)
    compared = comparison_report.read(folder, signers=signers)
    return Outcome(comparison_report.report(compared, folder, out), out or folder)


def _report_matrix(folder: Path, other: Path | None, out: Path | None, signers: Path | None) -> Outcome:
    if other is not None:
        raise FolderError(
            f"A matrix has no report beside another. Received: {folder} and {other}. Name two of their subfolders."
        )
    if out is not None and out.resolve() == folder.resolve():
        out = None
    FolderKind[None](
        noun="report of a matrix", file=matrix_report.RESULTS_FILE, kind=cells.KIND, allowed=document.report_files()
    ).check(out)
    return Outcome(matrix_report.report(matrix_report.read(folder, signers), folder, out), out or folder)

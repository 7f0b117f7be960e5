"""A command as somebody adds it: a function, and a line in `MODULES`."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from common.errors import Setting
from common.spec import SpecError
from compare.cli import commands
from compare.cli.commands import Invocation, Outcome
from compare.cli.option_rules import Needs
from compare.cli.option_types import Integers
from compare.reporting.document import Report


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A group of options."""

    height: int = 1
    widths: Annotated[tuple[int, ...], Integers(least=1), typer.Option(help="Widths, with commas.")] = (1, 2)


@commands.command(Needs("--out", "--ending"))
def command(
    invocation: Invocation,
    *,
    ending: Annotated[
        Literal["well", "badly", "refused", "too-low", "too-deep", "interrupted", "unfinished"] | None, typer.Option()
    ] = None,
    sizes: Sizes,
    out: Annotated[Path | None, typer.Option()] = None,
) -> Outcome:
    """Compute areas."""
    invocation.interrupt_message = "Interrupted. Start again."
    invocation.progress.tell("computing")
    if ending == "refused":
        raise SpecError("--ending is refused. Received: refused. Use well.")
    if ending == "too-low":
        raise SpecError("The height is refused.", setting=Setting("Or use", "made_up.height", 3))
    if ending == "too-deep":
        raise SpecError("The depth is refused.", setting=Setting("Or use", "made_up.depth", 3))
    if ending == "interrupted":
        os.kill(os.getpid(), signal.SIGINT)
    areas = [sizes.height * width for width in sizes.widths]
    report = Report(
        title="Areas",
        facts=[f"areas {areas}"],
        values={"areas": areas},
        json_file="areas.json",
        exit_code=3 * (ending == "badly"),
    )
    return Outcome(report, out, lambda code: 1 if ending == "unfinished" else code)

"""`convtwins watch`: is a training job healthy, slow or stuck? Anybody's, without a change in its code."""

from __future__ import annotations

import time
from contextlib import closing, nullcontext
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from compare.cli import commands, wording
from compare.cli.commands import Invocation
from compare.reporting import tables
from compare.reporting.document import Report
from convtwins_hangs.watching import report
from convtwins_hangs.watching.verdict import ENDED, STUCK, Verdict
from convtwins_hangs.watching.watcher import Watcher


@commands.command()
def command(
    invocation: Invocation,
    pids: Annotated[
        list[int], typer.Argument(metavar="PID...", help="Processes of the job, or the one that started them, e.g. torchrun.")
    ],
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="Watch for so long. Default: until the job is stuck or has ended.")
    ] = None,
    interval: Annotated[float, typer.Option(min=0.1, max=86_400, help="Seconds between two looks.")] = 1.0,
    patience: Annotated[
        float, typer.Option(min=1.0, help="Seconds without work after which a job is called slow or stuck.")
    ] = 10.0,
) -> Report:
    """Say whether a running job is healthy, slow or stuck, and which rank is to blame; exit code 6 where it is stuck."""
    watcher = invocation.hold(closing(Watcher(pids, patience)))
    return report.report(watcher, last_verdict(watcher, seconds, interval))


def last_verdict(watcher: Watcher, seconds: float | None, interval: float) -> Verdict:
    """Watch a job and return the last verdict. A terminal shows each verdict; stderr gets a line where it changes."""
    console = Console(stderr=True, highlight=False)
    live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
    started, last_state = time.monotonic(), ""
    with live or nullcontext():
        while True:
            watcher.look()
            verdict = watcher.verdict()
            if live is not None:
                live.update(
                    Group(Text(wording.one_line(verdict.text)), tables.to_rich(report.table(watcher.members), console.width)),
                    refresh=True,
                )
            elif verdict.state != last_state:
                console.print(wording.one_line(verdict.text), markup=False, soft_wrap=True)
            last_state = verdict.state
            elapsed = time.monotonic() - started
            if verdict.state in (STUCK, ENDED) or (seconds is not None and elapsed >= seconds):
                return verdict
            time.sleep(interval if seconds is None else max(min(interval, seconds - elapsed), 0.0))

"""`python -m compare COMMAND`: the command line, one function a command."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from typing import NoReturn

from compare.interrupt import SIGNALLED, Interrupted, ended_at_once, interruptible

with ended_at_once():  # the commands take a second to import
    import typer

    from compare import (
        cache,
        certificate,
        completion,
        convert,
        data,
        doctor,
        evaluate,
        export,
        history,
        infer,
        layers,
        models,
        optimize,
        predict,
        preprocess,
        regress,
        report,
        reproduce,
        run,
        scaling,
        selftest,
        study,
        tune,
    )

EXIT_UNWRITTEN = 1
EXIT_UNREAD = SIGNALLED + signal.SIGPIPE
"""The reader of the output has gone, as `head` does: no failure, and no verdict either that 0 would be."""

app = typer.Typer(
    help="Train the same CNN in two frameworks, serially and in parallel; prove it is the same training; compare honestly.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("run")(run.command)
app.command("report")(report.command)
app.command("parity")(certificate.command)
app.command("models")(models.command)
app.command("data")(data.command)
app.command("preprocess")(preprocess.command)
app.command("scaling")(scaling.command)
app.command("evaluate")(evaluate.command)
app.command("convert")(convert.command)
app.command("predict")(predict.command)
app.command("infer")(infer.command)
app.command("tune")(tune.command)
app.command("optimize")(optimize.command)
app.command("layers")(layers.command)
app.command("regress")(regress.command)
app.command("history")(history.command)
app.command("cache")(cache.command)
app.command("selftest")(selftest.command)
app.command("doctor")(doctor.command)
app.command("study")(study.command)
app.command("reproduce")(reproduce.command)
app.command("completion")(completion.command)
app.command("export")(export.command)


class _Output(io.TextIOWrapper):
    """stdout that ends the command, in one line, where it cannot be written; no command takes that for its own failure."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> NoReturn:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # what still waits to be written goes nowhere
        if isinstance(error, BrokenPipeError):
            raise SystemExit(EXIT_UNREAD) from None
        print(f"The output cannot be written ({error.strerror}). Free space, or send it elsewhere.", file=sys.stderr)
        raise SystemExit(EXIT_UNWRITTEN) from None


# Tens of thousands of results are millions of objects, none of them garbage: to look for some doubles the time to read them.
COLLECT_AFTER = (100_000, 50, 1000)

if __name__ == "__main__":
    gc.set_threshold(*COLLECT_AFTER)
    sys.stdout = _Output(sys.stdout.buffer, sys.stdout.encoding, sys.stdout.errors, line_buffering=sys.stdout.isatty())
    completion.prepare()
    try:
        with interruptible():
            try:
                app(prog_name="python -m compare", complete_var=completion.VARIABLE)
            finally:
                sys.stdout.flush()
                gc.freeze()  # nor does anybody look for it at the end
    except Interrupted as interruption:  # outside of what the command itself tidies up
        print(interruption.words, file=sys.stderr)
        sys.exit(interruption.exit_code)

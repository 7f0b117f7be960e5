"""`python -m compare COMMAND`: the command line, one function a command."""

from __future__ import annotations

from compare.interrupt import ended_at_once

with ended_at_once():  # the commands take a second to import
    import typer

    from compare import cache, certificate, data, models, preprocess, report, run, scaling

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
app.command("cache")(cache.command)

if __name__ == "__main__":
    app(prog_name="python -m compare")

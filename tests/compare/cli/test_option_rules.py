"""Rules between options, each with what keeps it and what breaks it."""

from __future__ import annotations

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from common.errors import UserError
from common.spec import SpecError
from compare.cli.option_rules import AllExcept, Excludes, GivenOptions, Needs, OneOf, OptionRule
from tests.support import refusals

app = typer.Typer(add_completion=False)


@app.command("measure")
def measure(
    context: typer.Context,
    *,
    baseline: Annotated[str | None, typer.Argument()] = None,
    out: str | None = None,
    sizes: Annotated[tuple[int, int] | None, typer.Option(metavar="A B")] = None,
    places: Annotated[str | None, typer.Option(metavar="A ...")] = None,
    proof: bool = True,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
    full: Annotated[bool, typer.Option("--full")] = False,
) -> None:
    """A command with an argument and with options of every kind."""
    for rule in context.obj:
        rule.check(GivenOptions(context))


def refusal(rule: OptionRule, *words: str) -> UserError | None:
    """The refusal of these words by a rule, or None."""
    done = CliRunner().invoke(app, words, obj=[rule])
    if done.exception is None:
        return None
    if isinstance(done.exception, UserError):
        return done.exception
    raise done.exception


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Needs("--out", "--dry-run"), []),
        (Needs("--out", "--dry-run"), ["--dry-run"]),
        (Needs("--out", "--dry-run"), ["--out", "x", "--dry-run"]),
        (Needs("--out", ["--dry-run", "BASELINE"]), ["a", "--out", "x"]),
        (Needs(AllExcept("--dry-run"), "--dry-run"), ["--full"]),
        (Excludes("--out", "--dry-run"), ["--out", "x"]),
        (Excludes("--dry-run", AllExcept("--dry-run", "--out")), ["--dry-run", "--out", "x", "--full"]),
        (OneOf(["BASELINE", "--dry-run"]), ["a"]),
        (OneOf(["BASELINE", "--dry-run"]), ["--dry-run"]),
    ],
)
def test_options_that_keep_a_rule_are_accepted(rule: OptionRule, words: list[str]) -> None:
    assert refusal(rule, *words) is None


@pytest.mark.parametrize(
    ("rule", "words", "parts"),
    [
        (Needs("--out", "--dry-run"), ["--out", "x"], {"field": "--out", "received": "--out x", "fix": "--dry-run"}),
        (Needs("--out", "--sizes"), ["--out", "x"], {"field": "--out", "fix": "--sizes A B"}),
        (
            Needs(AllExcept("BASELINE"), "BASELINE"),
            ["--no-proof", "--sizes", "1", "2"],
            {"field": "--sizes, --proof/--no-proof", "received": "--sizes 1 2, --no-proof", "fix": "BASELINE"},
        ),
        (Needs("--out", "--places"), ["--out", "x"], {"field": "--out goes with --places A", "fix": "Add --places A, or"}),
        (Needs("BASELINE", "--out"), ["a"], {"field": "a", "received": "a", "fix": "--out"}),
        (Needs("--out", "--dry-run", "Do it."), ["--out", "x"], {"fix": "Do it"}),
        (Excludes("--out", "--dry-run"), ["--dry-run", "--out", "x"], {"field": "--out", "received": "both"}),
        (
            Excludes("--dry-run", ["BASELINE", "--out"], "reads nothing"),
            ["--dry-run", "a", "--out", "x"],
            {"field": "--dry-run", "received": "a, --out", "fix": "Leave them out"},
        ),
        (Excludes("--out", AllExcept("--out")), ["--out", "x", "--no-proof"], {"field": "--proof", "received": "both"}),
        (OneOf(["BASELINE", "--dry-run"]), [], {"field": "measure", "received": "neither", "fix": "--dry-run"}),
        (OneOf(["BASELINE", "--dry-run", "--out"]), [], {"received": "none of them", "fix": "--out"}),
        (OneOf(["BASELINE", "--dry-run"]), ["a", "--dry-run"], {"field": "BASELINE", "received": "both"}),
    ],
)
def test_options_that_break_a_rule_are_refused_in_three_parts(
    rule: OptionRule, words: list[str], parts: dict[str, str]
) -> None:
    error = refusal(rule, *words)
    assert isinstance(error, SpecError) and error.fix
    refusals.check(error, **parts)  # pyright: ignore[reportArgumentType]


def test_a_default_is_not_typed() -> None:
    assert refusal(Excludes("--proof", "--out"), "--out", "x") is None
    assert refusal(Excludes("--proof", "--out"), "--out", "x", "--proof") is not None


def test_a_rule_that_names_no_option_of_the_command_is_a_defect() -> None:
    with pytest.raises(KeyError, match="measure has no option --ouf"):
        refusal(Needs("--ouf", "--dry-run"))

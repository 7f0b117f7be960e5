"""The report of `same`: verdict, first difference, cause and experiment on one screen, all steps behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from compare.cli import exits, wording
from compare.judgement.statement import Level, Statement
from compare.proof.step_truth import ROUNDING_FACTOR
from compare.reporting import document, tables
from compare.reporting.document import Mark, Report
from compare.reporting.plots import COLOURS
from compare.reporting.screen import Paragraph, Screen
from compare.reporting.tables import Column, Table
from compare.tools.same import causes as pattern_causes
from compare.tools.same import same_words
from compare.tools.same.causes import CurveCause
from compare.tools.same.curves import UNITS, Curve
from compare.tools.same.judging import CurveComparison, Floats, scale_of, start_tolerance
from compare.tools.same.subjects import Subject

NAME, RESULTS_FILE, STEPS_FILE = "same", "same.json", "steps.csv"
TITLE = "Are these the same training?"
MAX_NAMED = 3
"""Number of causes that the first screen names. It counts the others."""
_MOST_POINTS = 2000
"""Most points of a plotted curve. Of more steps it shows means, and the largest differences."""
_TONES = {"same": "good", "rounding": "good", "another training": "bad", "cannot tell": "warn"}
_LABELS = {"same": "Same", "rounding": "Rounding", "another training": "Not the same", "cannot tell": "Cannot tell"}
_SCREEN_STEPS, _REPORT_STEPS = (1, 3), (2, 8)
"""(steps before the first difference, steps in all) that the first screen and the report show."""
_STEP_COLUMNS = (
    Column("step", "step"),
    Column("a", "A", 6),
    Column("b", "B", 6),
    Column("relative", "difference", -1),
    Column("relative_limit", "rounding at most", -1),
    Column("explained", "explained"),
)
_FILE_COLUMNS = (*_STEP_COLUMNS, Column("difference", "absolute difference"), Column("limit", "absolute limit"))
_STEPS_TITLE = "Losses by step, differences relative to the larger loss"
_CAUSE_COLUMNS = (
    Column("cause", "cause", pick="name"),
    Column("sentence", "what", pick=same_words.cause_sentence),
    Column("experiment", "experiment", pick=same_words.experiment),
)


def report(comparison: CurveComparison, sides: tuple[Subject, Subject], words: Sequence[str]) -> Report:
    """Build the report of a comparison."""
    causes = pattern_causes.explain(comparison, (sides[0].processes, sides[1].processes))
    statements = [_answer(comparison), *_first_difference(comparison)]
    cautions = [*_limit(comparison), *_cautions(comparison)]
    verdict = comparison.verdict
    holds = verdict in ("same", "rounding")
    cause_sentences = [f"{cause.name}: {same_words.cause_sentence(cause)}" for cause in causes]
    experiments = [f"{cause.name}: {same_words.experiment(cause)}" for cause in causes]
    if comparison.first_beyond is not None and not causes:
        cause_sentences = same_words.sentences([_statement("no_cause", "info")])
    steps = _rows(comparison)
    table, screen_table = (
        Table("steps", _STEPS_TITLE, _STEP_COLUMNS, _around(comparison, steps, *extent))
        for extent in (_REPORT_STEPS, _SCREEN_STEPS)
    )
    return Report(
        title=TITLE,
        name=NAME,
        json_file=RESULTS_FILE,
        facts=[f"{side.letter}: {side.text}" for side in sides],
        marks=[Mark("Same training", verdict, _TONES[verdict])],
        findings=[
            (TITLE, same_words.sentences(statements)),
            ("Why might they differ?", cause_sentences),
            ("Which experiment confirms it?", experiments),
            ("How was it judged?", same_words.sentences(cautions)),
        ],
        tables=[
            Table.from_items("causes", "Possible causes", _CAUSE_COLUMNS, causes),
            table,
        ],
        files={STEPS_FILE: tables.to_csv(Table("all_steps", "All steps", _FILE_COLUMNS, steps))},
        drawings={"losses": _drawing(comparison)},
        commands=[("This report:", f"{document.COMPARE} {wording.shell(words)}")] if words else [],
        values={
            "verdict": verdict,
            "holds": holds,
            "steps": len(comparison.aligned.steps),
            "first_difference": _row_at(steps, comparison.first),
            "first_beyond_rounding": _row_at(steps, comparison.first_beyond),
            "causes": [_plain(cause) for cause in causes],
            "statements": [*statements, *cautions],
        },
        exit_code=0 if holds else exits.RUN_FAILED,
        screen=Screen(
            subject=[TITLE, *(f"{side.letter}: {wording.shortened(side.text, 60)}" for side in sides),
                     wording.count(len(comparison.aligned.steps), "common step")],
            answers=(
                Paragraph(_LABELS[verdict], same_words.sentences(statements[:1]), _TONES[verdict]),
                Paragraph("First", same_words.sentences(statements[1:])),
                Paragraph("Cause", cause_sentences, most=MAX_NAMED),
                Paragraph("Experiment", experiments, most=MAX_NAMED),
                Paragraph("Judged", same_words.sentences(cautions)),
            ),
            table=None if comparison.first is None else screen_table,
            next=_next(comparison),
        ),
    )  # fmt: skip


def stored_report(path: Path, side: Subject, curve: Curve, words: Sequence[str]) -> Report:
    """Build the report of a curve that was stored."""
    values = {"steps": len(curve.steps), "file": str(path)}
    statements = [_statement("curves_stored", "info", values), *_curve_cautions(curve, "A")]
    return Report(
        title=TITLE,
        name=NAME,
        json_file=RESULTS_FILE,
        facts=[f"A: {side.text}"],
        marks=[Mark("Same training", "stored")],
        findings=[("What was stored?", same_words.sentences(statements))],
        commands=[("This report:", f"{document.COMPARE} {wording.shell(words)}")] if words else [],
        values={"verdict": "stored", "holds": False, "statements": statements},
        exit_code=exits.RUN_FAILED,  # nothing was compared: in CI a mistyped name must not pass
        screen=Screen(
            subject=[TITLE, f"A: {wording.shortened(side.text, 60)}"],
            answers=(Paragraph("Stored", same_words.sentences(statements), "warn"),),
            next=[("next", "keep the file in your repository; the same command compares with it, and then ends with 0")],
        ),
    )


def _statement(kind: str, level: Level, values: Mapping[str, Any] | None = None) -> Statement:
    return Statement(kind=kind, level=level, values=dict(values or {}))


def _answer(comparison: CurveComparison) -> Statement:
    """Return the answer as a statement."""
    number, largest = len(comparison.aligned.steps), float(comparison.relative.max())
    values: dict[str, Any] = {"steps": number}
    beyond = comparison.first_beyond
    match comparison.verdict:
        case "same":
            digits = [curve.digits for curve in comparison.curves if curve.digits is not None]
            values["how"] = f"to the {min(digits).words} that are written" if digits else "bit for bit"
            if (end := comparison.aligned.both_end) is not None:
                return _statement("curves_same_until", "finding", {**values, "end": end})
            return _statement("curves_same", "finding", values)
        case "rounding":
            kind = "curves_rounding" if comparison.is_moved else "curves_unit" if comparison.is_by_unit else "curves_repeat"
            most = float(np.max(_relative_limit(comparison)))
            return _statement(kind, "finding", {**values, "largest": largest, "most": most, **_unit(comparison)})
        case "another training":
            number_beyond = int(np.sum(comparison.difference > comparison.limit))
            step = int(comparison.aligned.steps[beyond or 0])
            values |= {"step": step, "others": number_beyond - 1, "moved": comparison.is_moved}
            return _statement("curves_another", "finding", values)
        case "cannot tell":
            if comparison.is_partial:
                values["agree"] = "agree within rounding" if comparison.difference.any() else "agree"
                return _statement("curves_ended", "trouble", values)
            if (blunt := comparison.first_blunt) is not None:
                values |= {"moved": comparison.is_moved, "place": blunt, "step": int(comparison.aligned.steps[blunt])}
                return _statement("curves_blunt", "trouble", values)
            return _statement("curves_undecided", "trouble", {**values, "largest": largest})


def _first_difference(comparison: CurveComparison) -> list[Statement]:
    """Return the first difference that counts, and the first of all."""
    first = comparison.first
    if first is None:
        return []
    place = first if comparison.first_beyond is None else comparison.first_beyond
    aligned = comparison.aligned
    values = {
        "step": int(aligned.steps[place]), "a": float(aligned.a[place]), "b": float(aligned.b[place]),
        "relative": float(comparison.relative[place]), "limit": float(_relative_limit(comparison)[place]),
        "moved": comparison.is_moved,
    }  # fmt: skip
    statements = [_statement("first_difference", "finding", values)]
    if first < place:
        earlier = {"step": int(aligned.steps[first]), "relative": float(comparison.relative[first])}
        statements.append(_statement("first_rounding", "info", earlier))
    return statements


def _limit(comparison: CurveComparison) -> list[Statement]:
    if comparison.first is None:
        return []
    statements: list[Statement] = []
    if known := comparison.known_copies:
        values = {
            "moved": comparison.is_moved, "copies": {letter: copies.number for letter, copies in known.items()},
            "equal": not any(copies.rounding.any() for copies in known.values()), **_unit(comparison),
        }  # fmt: skip
        statements.append(_statement("limit_copies", "info", values))
    if not comparison.is_moved:
        values = {"start": start_tolerance(*comparison.curves), "repeated": bool(known)}
        statements.append(_statement("limit_without", "info", values))
    elif len(known) == 1:
        (letter,) = known
        statements.append(_statement("not_nudged", "caution", {"letter": "AB".replace(letter, ""), "other": letter}))
    return statements


def _unit(comparison: CurveComparison) -> dict[str, Any]:
    """Return what counts where all copies are equal: some roundings of the coarser dtype, and the digits that are written."""
    has_digits = any(curve.digits is not None for curve in comparison.curves)
    return {"dtype": comparison.dtype, "unit": ROUNDING_FACTOR * UNITS[comparison.dtype], "digits": has_digits}


def _cautions(comparison: CurveComparison) -> list[Statement]:
    """Return what limits the comparison."""
    statements: list[Statement] = []
    aligned, curves = comparison.aligned, comparison.curves
    for letter, other, missing, gaps in zip("AB", "BA", comparison.missing, comparison.gaps, strict=True):
        if missing:
            values = {
                "letter": letter, "other": other, "steps": missing, "last": int(aligned.steps[-1]), "common": len(aligned.steps)
            }  # fmt: skip
            statements.append(_statement("missing", "caution", values))
        if len(gaps):
            values = {
                "letter": letter, "other": other, "steps": len(gaps), "first": int(gaps[0]), "last": int(gaps[-1]),
                "common": len(aligned.steps), "partial": comparison.is_partial,
            }  # fmt: skip
            statements.append(_statement("gaps", "caution", values))
    if aligned.in_order:
        ranges = {letter.lower(): f"{curve.steps[0]} to {curve.steps[-1]}" for letter, curve in zip("AB", curves, strict=True)}
        statements.append(_statement("in_order", "caution", ranges))
    if aligned.both_end is not None:
        statements.append(_statement("both_end", "caution", {"step": aligned.both_end}))
    for letter, curve in zip("AB", curves, strict=True):
        statements += _curve_cautions(curve, letter)
    return statements


def _curve_cautions(curve: Curve, letter: str) -> list[Statement]:
    statements: list[Statement] = []
    if curve.is_counted:
        statements.append(_statement("counted", "caution", {"letter": letter}))
    if UNITS[curve.dtype] > UNITS["float32"]:
        statements.append(_statement("coarse", "caution", {"letter": letter, "dtype": curve.dtype}))
    if (digits := curve.digits) is not None:
        values = {"letter": letter, "decimals": digits.number, "digits": digits.words}
        statements.append(_statement("digits", "caution", values))
    return statements


def _rows(comparison: CurveComparison) -> list[dict[str, Any]]:
    aligned = comparison.aligned
    columns = {
        "step": aligned.steps, "a": aligned.a, "b": aligned.b, "difference": comparison.difference, "limit": comparison.limit,
        "relative": comparison.relative, "relative_limit": _relative_limit(comparison),
        "explained": np.where(comparison.difference <= comparison.limit, "yes", "no"),
    }  # fmt: skip
    return [dict(zip(columns, row, strict=True)) for row in zip(*(values.tolist() for values in columns.values()), strict=True)]


def _relative_limit(comparison: CurveComparison) -> Floats:
    """Return the largest differences that rounding explains, relative to the larger loss of each step."""
    scale = scale_of(comparison.aligned)
    return comparison.limit / np.where(scale > 0, scale, 1.0)


def _around(comparison: CurveComparison, rows: list[dict[str, Any]], before: int, number: int) -> list[dict[str, Any]]:
    """Return some rows around the first difference that counts."""
    places = [place for place in (comparison.first_beyond, comparison.first) if place is not None]
    start = max((places or [0])[0] - before, 0)
    return rows[start : start + number]


def _row_at(rows: list[dict[str, Any]], place: int | None) -> dict[str, Any] | None:
    return None if place is None else rows[place]


def _plain(cause: CurveCause) -> dict[str, Any]:
    return {**cause._asdict(), "sentence": same_words.cause_sentence(cause), "experiment": same_words.experiment(cause)}


def _next(comparison: CurveComparison) -> list[tuple[str, str]]:
    if comparison.verdict == "cannot tell" and not comparison.is_moved and not comparison.is_partial:
        return [("tell rounding apart", "the same commands with --copies 3 --ulp, and nudge() in the scripts")]
    return []


def _drawing(comparison: CurveComparison) -> document.Drawing:
    def draw(figure: Figure) -> bool:
        losses, differences = figure.subplots(2, 1, sharex=True)
        aligned = comparison.aligned
        starts = np.arange(0, len(aligned.steps), math.ceil(len(aligned.steps) / _MOST_POINTS))
        steps, sizes = aligned.steps[starts], np.diff(starts, append=len(aligned.steps))
        losses.plot(steps, np.add.reduceat(aligned.a, starts) / sizes, color=COLOURS[0], label="A")
        losses.plot(steps, np.add.reduceat(aligned.b, starts) / sizes, color=COLOURS[1], linestyle="--", label="B")
        losses.set_ylabel("loss")
        losses.legend(loc="upper right")
        relative = np.where(np.isfinite(comparison.relative), comparison.relative, 0.0)  # as zero, it is not drawn
        largest, limit = (np.maximum.reduceat(values, starts) for values in (relative, _relative_limit(comparison)))
        differences.plot(steps, np.where(largest > 0, largest, np.nan), color=COLOURS[3], marker=".", label="difference")
        differences.plot(steps, np.where(limit > 0, limit, np.nan), color=COLOURS[6], label="rounding at most")
        differences.set_yscale("log")
        differences.set_xlabel("step")
        differences.set_ylabel("difference / larger loss")
        differences.legend(loc="lower right")
        return True

    return draw

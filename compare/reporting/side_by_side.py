"""Two stored comparisons side by side: rows matched by id, their values and ratios, and what else differs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from common.machine import machine
from common.spec import EFFECTS
from compare.cli import exits, wording
from compare.cli.differences import relative_difference
from compare.cli.errors import FolderError
from compare.cli.terminal import FULL
from compare.judgement import cautions, conditions, slices
from compare.judgement.findings import undisturbed_pairs
from compare.judgement.row_figures import DISTURBED, Summary
from compare.judgement.run_figures import epoch_seconds
from compare.judgement.run_pairs import comparable_runs
from compare.judgement.statement_words import NOT_PROVED, advice_words, doubt_words, sentences
from compare.judgement.summary import family
from compare.judgement.verdict_statements import AGAIN, is_proof_missing
from compare.reporting import comparison_report, document, tables
from compare.reporting.comparison_report import JudgedComparison
from compare.reporting.document import Mark, Report
from compare.reporting.screen import Paragraph, Screen, caution_count
from compare.reporting.tables import RUN_COLUMNS, Cell, Column, Table
from compare.results import store
from compare.results.workspace import FolderKind
from compare.running import matrix
from compare.statistics.statistics import VERDICT_PAIRS, JudgedRatio, Ratio, unpaired_ratio, verdicts
from compare.statistics.verdict_words import (
    bounded_words,
    family_words,
    faster_side,
    interval_words,
    p_value_text,
    verdict_text,
)

KIND = "side by side"
NAME, RESULTS_FILE = "beside", "beside.json"

_SPEED, _SAME, _MISSING, _CAUTIONS = (
    "Which is faster?",
    "Is it the same training?",
    "Rows without a counterpart",
    "Cautions",
)
_ALWAYS_DIFFERENT = ("made at",)

_ComparedPair = tuple[JudgedComparison, JudgedComparison]


class _MatchedRow(NamedTuple):
    """A row that both comparisons have."""

    a: Summary
    b: Summary

    @property
    def contestant(self) -> str:
        return self.a.contestant

    @property
    def configuration(self) -> str:
        return self.name.removeprefix(self.contestant).lstrip(" -")

    @property
    def name(self) -> str:
        """The row for a reader, with both inputs if they differ."""
        return self.a.name if self.a.name == self.b.name else f"{self.a.name} in A, {self.b.input_words} in B"


def check(folders: tuple[Path, Path], out: Path | None) -> None:
    """Check the folders before anything is read.

    Args:
        out: folder that the report is written to. None: it is not written.
    """
    if folders[0].resolve() == folders[1].resolve():
        raise FolderError(f"`report A B` needs two folders. Received: {folders[0]} twice. Name another, or leave one out.")
    allowed = document.report_files(NAME)
    FolderKind[None](noun="report of two folders", file=RESULTS_FILE, kind=KIND, allowed=allowed).check(out)


def report(folders: tuple[Path, Path], compared: _ComparedPair, out: Path | None) -> Report:
    """Match the rows of two comparisons, called A and B, by their id, or else by all but their input.

    Args:
        out: folder that the report is written to. None: it is not written.
    """
    ours, theirs = ({summary.id: summary for summary in comparison.summaries} for comparison in compared)
    matches = _matches(compared)
    if not matches:
        raise FolderError(
            f"{folders[0]} and {folders[1]} have no row in common. Received: {', '.join(ours)}; and {', '.join(theirs)}. "
            "Name two comparisons of the same frameworks and modes."
        )
    same_machine = not machine.differences(*(comparison.stored.comparison.machine for comparison in compared))
    matched = [_MatchedRow(ours[row_id], theirs[other_id]) for row_id, other_id in matches.items()]
    reasons = {row.a.id: _reasons_not_comparable(compared, *row) for row in matched}
    comparable_rows = [row for row in matched if same_machine and not reasons[row.a.id]]
    ratios = {row.a.id: ratio for row in comparable_rows if (ratio := _ratio(compared, row)) is not None}
    sentences = _sentences(folders, compared, matched, ratios, reasons, same_machine)
    differences = [*_environments(compared), *_specs(compared, matches)]
    row_tables = [_seconds(matched, ratios), _scores(matched), _states(matched)]
    again = ["report", *map(str, folders), *(["--out", str(out)] if out else [])]
    failures = cautions.unconfirmed_signatures(
        (name, comparison.stored) for name, comparison in zip("AB", compared, strict=True)
    )
    return Report(
        name=NAME,
        json_file=RESULTS_FILE,
        title="Two comparisons side by side",
        overline="Comparison of frameworks",
        facts=[
            f"{name}: {folder}, {comparison.stored.comparison.created_at}: {comparison_report.facts(comparison)[0]}"
            for name, folder, comparison in zip("AB", folders, compared, strict=True)
        ],
        first_sentences=_disagreements(compared),
        marks=[
            Mark("Machine", *(("the same", "good") if same_machine else ("another: no verdict about speed", "warn"))),
            Mark("Rows in both", str(len(matched))),
            Mark("Differences around them", str(len(differences))),
        ],
        findings=sentences,
        tables=[*row_tables, _differences(differences)],
        commands=[("The two side by side:", f"{document.COMPARE} {wording.shell(again)}")],
        values={
            "kind": KIND,
            "folders": list(map(str, folders)),
            "same_machine": same_machine,
            "sentences": dict(sentences),
            "differences": [{"what": what, "a": ours, "b": theirs} for what, ours, theirs in differences],
        },
        exit_code=exits.RUN_FAILED if failures else 0,
        failures=failures,
        screen=_screen(folders, compared, _faster(matched, ratios, reasons, same_machine), sentences, row_tables[0], failures),
        again=f"{document.COMPARE} {wording.shell([*again, FULL])}",
    )


def _matches(compared: _ComparedPair) -> dict[str, str]:
    """Return {row id of A: row id of B} of the rows in both: with the same id, or else with a difference in their input alone.

    A row of A whose input B lacks has a match if B has a single row that is like it otherwise, and that has no match yet.
    """
    ours, theirs = (comparison.stored.comparison.rows for comparison in compared)
    same_ids = {row.id for row in theirs}
    matches = {row.id: row.id for row in ours if row.id in same_ids}
    for row in ours:
        alike = [other for other in theirs if other.id not in matches and matrix.same_except_input(row, other)]
        if row.id not in matches and len(alike) == 1 and alike[0].id not in matches.values():
            matches[row.id] = alike[0].id
    return {row.id: matches[row.id] for row in ours if row.id in matches}


def _screen(
    folders: tuple[Path, Path],
    compared: _ComparedPair,
    faster: Sequence[str],
    sentences: Sequence[tuple[str, list[str]]],
    seconds: Table,
    failures: Sequence[str],
) -> Screen:
    by_title = dict(sentences)
    keys = (*(column.key for column in RUN_COLUMNS), "epoch_seconds_a", "epoch_seconds_b", "ratio")
    return Screen(
        subject=[f"{name}: {folder}" for name, folder in zip("AB", folders, strict=True)],
        answers=[
            Paragraph("Divisions", _disagreements(compared), "warn"),
            Paragraph("Faster", faster),
            Paragraph("Fair?", by_title.get(_SAME, [])),
            Paragraph("Trouble", [*failures, *by_title.get(_MISSING, [])], "bad"),
        ],
        table=replace(seconds, columns=tuple(column for column in seconds.columns if column.key in keys)),
        remarks=caution_count(len(by_title.get(_CAUTIONS, []))),
    )


def _faster(
    matched: Sequence[_MatchedRow], ratios: dict[str, Ratio], reasons: dict[str, list[str]], same_machine: bool
) -> list[str]:
    """Short sentences on speed, one for each kind of verdict."""
    if not same_machine:
        return ["no verdict: the machines differ"]
    judged_by_row = {judged.name: judged for judged in verdicts(list(ratios.items()))}
    kinds: dict[str, list[str]] = {}
    for row in (row for row in matched if all(summary.repeats_done for summary in row)):
        ours, theirs = row
        if reasons[ours.id]:
            kinds.setdefault("no verdict, an epoch is not the same work", []).append(row.name)
        elif ours.id in judged_by_row and (ours.disturbed or theirs.disturbed):
            kinds.setdefault("not known, because other programs took cores from them", []).append(row.name)
        elif ours.id in judged_by_row:
            judged = judged_by_row[ours.id]
            kind = verdict_text(
                judged, when_above="B is faster than A", when_below="A is faster than B", when_neither=judged.verdict
            )
            is_decided = judged.verdict in ("above", "below")
            times = faster_side(judged.ratio, "B", "A")[2] if is_decided else judged.ratio
            kind += " (times as fast)" if is_decided else " (speed of B over that of A)"
            kinds.setdefault(kind, []).append(f"{row.name} {bounded_words(times)}")
    return [f"{kind}: {wording.listed(names, 4)}" for kind, names in kinds.items()]


def _disagreements(compared: _ComparedPair) -> list[str]:
    """Sentences on divisions of A and B that name different frameworks as the faster one."""
    winners = [
        winner
        for name, comparison in zip("AB", compared, strict=True)
        if comparison.findings.comparable
        for winner in conditions.faster_frameworks(
            comparison.stored,
            undisturbed_pairs(comparison.stored, family(comparison.stored, comparison.summaries)),
            f"{name}, ",
        )
    ]
    return sentences(conditions.disagreements(winners))


def _reasons_not_comparable(compared: _ComparedPair, ours: Summary, theirs: Summary) -> list[str]:
    """Reasons why a row's epoch is not the same work, timed alike, in A and B: fields of its spec, data, device, turns."""
    before, now = (_spec_fields(comparison)[summary.id] for comparison, summary in zip(compared, (ours, theirs), strict=True))
    same_data = len({comparison.stored.comparison.data_hash for comparison in compared}) == 1
    differing = [
        name
        for name in {**before, **now}
        if before.get(name) != now.get(name)
        and EFFECTS.changes(name, "epoch", same_data=same_data)
        and not name.startswith("framework_options.")  # a framework's own switches do not change the work either
        and name not in matrix.INPUT_FIELDS  # nor does how its images are fed
    ]
    if not same_data and not any(name.startswith("data.") for name in differing):
        differing.append("content of the data")
    took_turns = [
        slices.took_turns(comparison.stored.runs[summary.id].values())
        for comparison, summary in zip(compared, (ours, theirs), strict=True)
    ]
    return differing + ["device"] * (ours.device != theirs.device) + ["turns"] * (took_turns[0] != took_turns[1])


def _spec_fields(comparison: JudgedComparison) -> dict[str, dict[str, Any]]:
    """Fields of each row's spec by dotted name, by row id."""
    return {row.id: store.flatten(row.spec.model_dump(mode="json")) for row in comparison.stored.comparison.rows}


def _ratio(compared: _ComparedPair, matched: _MatchedRow) -> Ratio | None:
    """Ratio of the seconds of an epoch in A to those in B: how many times as fast B is."""
    seconds: list[list[float]] = []
    for comparison, summary in zip(compared, matched, strict=True):
        (row,) = (row for row in comparison.stored.comparison.rows if row.id == summary.id)
        seconds.append([epoch_seconds(run) for run in comparable_runs(comparison.stored, row).values()])
    return unpaired_ratio(*seconds)


def _sentences(
    folders: tuple[Path, Path],
    compared: _ComparedPair,
    matched: Sequence[_MatchedRow],
    ratios: dict[str, Ratio],
    reasons: dict[str, list[str]],
    same_machine: bool,
) -> list[tuple[str, list[str]]]:
    run_in_both = [row_pair for row_pair in matched if all(summary.repeats_done for summary in row_pair)]
    speed = ["The machines differ. A ratio of the times would compare the machines too, so nothing is said about speed."]
    if same_machine:
        speed = [_no_verdict(row_pair, reasons[row_pair.a.id]) for row_pair in run_in_both if reasons[row_pair.a.id]]
        judged_by_row = {judged.name: judged for judged in verdicts(list(ratios.items()))}
        speed += [
            _speed(row_pair, judged_by_row[row_pair.a.id], folders)
            for row_pair in run_in_both
            if row_pair.a.id in judged_by_row
        ]
        if judged_by_row:
            speed += filter(
                None, [family_words(list(judged_by_row.values()), "Welch's t-tests on the logarithms of the seconds")]
            )
            speed.append(
                "A and B were run apart, and are not paired: what changed on the machine between them is in these ratios. "
                "Only runs in turn tell that apart."
            )
    missing = [
        f"Not run in {name}: {', '.join(ids)}."
        for name, here, there in (("A", 0, 1), ("B", 1, 0))
        if (
            ids := [
                row_pair[here].id for row_pair in matched if row_pair[there].repeats_done and not row_pair[here].repeats_done
            ]
        )
    ]
    missing += [
        f"Only in {name}: {', '.join(ids)}."
        for name, place, comparison in (("A", 0, compared[0]), ("B", 1, compared[1]))
        if (
            ids := [
                summary.id for summary in comparison.summaries if summary.id not in {row_pair[place].id for row_pair in matched}
            ]
        )
    ]
    cautions = [
        f"{name}: {trouble}"
        for name, folder, comparison in zip("AB", folders, compared, strict=True)
        for trouble in comparison.in_words(comparison.findings.troubles, folder)
    ]
    parts = (
        (_SPEED, speed),
        (_SAME, _first_losses(run_in_both)),
        (_MISSING, missing),
        (_CAUTIONS, cautions),
    )
    return [(title, sentences) for title, sentences in parts if sentences]


def _speed(matched: _MatchedRow, judged: JudgedRatio, folders: tuple[Path, Path]) -> str:
    """A sentence on a row's speed. Its ratio is that of the seconds in A to those in B."""
    ours, theirs = matched
    quick, slow, ratio = faster_side(judged.ratio, "B", "A")
    times = f"{quick} is {interval_words(ratio)} times as fast as {slow}"
    if ours.disturbed or theirs.disturbed:
        disturbed = [folder for folder, summary in zip(folders, (ours, theirs), strict=True) if summary.disturbed]
        return " ".join([f"{matched.name}: not known.", *(advice_words(AGAIN, folder) for folder in disturbed)])
    unclear = f"{judged.verdict}; " if judged.verdict == "no difference shown" else ""
    text = f"{matched.name}: {unclear}{times}{p_value_text(judged)}."
    if judged.verdict == "too few repeats to tell":
        text = f"{matched.name}: {judged.verdict} ({judged.ratio.n} of {VERDICT_PAIRS}); {times} here."
    not_proved = NOT_PROVED if is_proof_missing(ours, theirs) else ""
    return " ".join(filter(None, [text, not_proved, doubt_words(ours, theirs)]))


def _no_verdict(matched: _MatchedRow, reasons: Sequence[str]) -> str:
    milliseconds = [1e3 / summary.images_per_second.median for summary in matched if summary.images_per_second]
    by_image = (
        f" An image took {milliseconds[0]:.3g} ms in A and {milliseconds[1]:.3g} ms in B." if len(milliseconds) == 2 else ""
    )
    other = f"other {', '.join(reasons)}"
    text = f"{matched.name}: no verdict: epochs of A and B are not the same work ({other}).{by_image}"
    return " ".join(filter(None, [text, doubt_words(*matched)]))


def _first_losses(matched: Sequence[_MatchedRow]) -> list[str]:
    """Sentences on the losses before any update. With equal data, weights and order, they differ by rounding at most."""
    losses = {row.name: (row.a.first_step_loss, row.b.first_step_loss) for row in matched}
    known_losses = {name: (a, b) for name, (a, b) in losses.items() if a is not None and b is not None}
    differing = [
        f"{name}: the first losses differ by {relative_difference(a, b):.1e} (relative)."
        for name, (a, b) in known_losses.items()
        if a != b
    ]
    return differing or [f"The first losses of A and B are the same numbers in all {len(known_losses)} rows."] * bool(
        known_losses
    )


def _side_columns(key: str, heading: str, digits: int | None = None, *, path: str = "", interval: bool = False) -> list[Column]:
    return [
        Column(f"{key}_{side}", f"{heading}, {side.upper()}", digits, interval=interval, pick=f"{side}.{path or key}")
        for side in "ab"
    ]


def _seconds(matched: Sequence[_MatchedRow], ratios: dict[str, Ratio]) -> Table:
    def ratio(row: _MatchedRow) -> Cell:
        value = ratios.get(row.a.id)
        return DISTURBED if value and (row.a.disturbed or row.b.disturbed) else value

    columns = (
        *RUN_COLUMNS,
        *_side_columns("epoch_seconds", "s per epoch", 3, interval=True),
        Column("ratio", "A over B", 2, interval=True, pick=ratio),
        *_side_columns("wall_seconds", "wall s", 1, interval=True),
        *_side_columns("peak_memory_mib", "peak RSS MiB", 0),
    )
    note = (
        "Median over repeats (25 % to 75 % quantile). A over B: geometric means of the seconds per epoch, unpaired (95 % Welch "
        "interval); none where the machines differ, or an epoch of A is other work than one of B."
    )
    return Table.from_items("beside_seconds", "Times", columns, matched, note)


def _scores(matched: Sequence[_MatchedRow]) -> Table:
    def difference(row: _MatchedRow) -> float | None:
        a, b = row.a.test.accuracy, row.b.test.accuracy
        return b.median - a.median if a and b else None

    columns = (
        *RUN_COLUMNS,
        *_side_columns("accuracy", "test accuracy", 4, path="test.accuracy", interval=True),
        Column("difference", "B - A", 4, pick=difference),
        *_side_columns("loss", "test loss", 4, path="test.loss", interval=True),
        *_side_columns("first_step_loss", "first loss", 6),
    )
    return Table.from_items(
        "beside_scores", "Scores", columns, matched, "Test split, after the last epoch. Median over repeats."
    )


def _states(matched: Sequence[_MatchedRow]) -> Table:
    columns = (
        *RUN_COLUMNS,
        *_side_columns("status", "status"),
        *_side_columns("repeats", "repeats", path="repeats_done"),
        *_side_columns("parity", "same training"),
    )
    return Table.from_items("beside_states", "How they ended", columns, matched)


def _environments(compared: _ComparedPair) -> list[tuple[str, str, str]]:
    ours, theirs = (dict(comparison_report.environment(comparison)) for comparison in compared)
    return [
        (name, ours.get(name, tables.MISSING), theirs.get(name, tables.MISSING))
        for name in {**ours, **theirs}
        if name not in _ALWAYS_DIFFERENT and ours.get(name) != theirs.get(name)
    ]


def _specs(compared: _ComparedPair, matches: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(field, ours, theirs) of differences between specs. A field that differs equally in all rows is listed once."""
    specs = [_spec_fields(comparison) for comparison in compared]
    rows_by_difference: dict[tuple[str, str, str], list[str]] = {}
    for row_id, other_id in matches.items():
        ours, theirs = specs[0][row_id], specs[1][other_id]
        for field in {**ours, **theirs}:
            a, b = ours.get(field), theirs.get(field)
            if a != b:
                rows_by_difference.setdefault((field, json.dumps(a), json.dumps(b)), []).append(row_id)
    return [
        (field if len(rows) == len(matches) else f"{field} of {', '.join(rows)}", ours, theirs)
        for (field, ours, theirs), rows in rows_by_difference.items()
    ]


def _differences(differences: Sequence[tuple[str, str, str]]) -> Table:
    headings = (("what", "what"), ("a", "A"), ("b", "B"))
    columns = [Column(key, heading, fold=36, pick=str(place)) for place, (key, heading) in enumerate(headings)]
    return Table.from_items("beside_differences", "What differs around them", columns, differences)

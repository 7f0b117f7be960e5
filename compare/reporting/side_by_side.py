"""Two stored comparisons side by side: rows matched by id, both values, their ratio, and what differs around them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.machine import machine
from common.training.loop import relative_difference
from compare.core import wording
from compare.core.errors import FolderError
from compare.core.statistics import VERDICT_PAIRS, Judged, Ratio, family_words, interval_words, surety, unpaired_ratio, verdicts
from compare.execution import store
from compare.judgement.measurements import OF_THE_PLACE
from compare.judgement.summary import Summary, comparable, epoch_seconds
from compare.judgement.verdict_sentences import doubt_of
from compare.reporting import comparison_report, document, tables
from compare.reporting.comparison_report import Compared
from compare.reporting.comparison_tables import RUN, run_cells
from compare.reporting.document import Mark, Report
from compare.reporting.tables import Cell, Column, Table

KIND = "side by side"
NAME, RESULTS_FILE = "beside", "beside.json"

_OF_ITS_OWN = ("made at",)
_OF_NO_EPOCH = (*OF_THE_PLACE, "epochs", "steps", "seed", "checkpoint_seconds")
"""Fields of a spec that leave the work of an epoch the same. A framework's own switches do too."""

_Two = tuple[Compared, Compared]


def report(folders: tuple[Path, Path], compared: _Two, out: Path | None) -> Report:
    """Match the rows of two comparisons, called A and B, by their id.

    Args:
        folders: of A and B.
        compared: A and B.
        out: where the report is to be written; None: nowhere.

    Raises:
        FolderError: no row is in both, or `out` holds something else.
    """
    if out is not None:
        own = (f"{NAME}.html", f"{NAME}.md", document.TABLES_FOLDER)
        store.refuse_others(out, RESULTS_FILE, KIND, "report of two folders", own=own)
    ours, theirs = ({summary.id: summary for summary in each.summaries} for each in compared)
    both = [row_id for row_id in ours if row_id in theirs]
    if not both:
        raise FolderError(
            f"{folders[0]} and {folders[1]} have no row in common. Received: {', '.join(ours)}; and {', '.join(theirs)}. "
            "Name two comparisons of the same frameworks and modes."
        )
    same_machine = not machine.differences(*(each.stored.comparison.machine for each in compared))
    matched = [(ours[row_id], theirs[row_id]) for row_id in both]
    unlike = {row_id: _unlike(compared, ours[row_id], theirs[row_id]) for row_id in both}
    ratios = {row_id: ratio for row_id in both if not unlike[row_id] and (ratio := _ratio(compared, row_id)) is not None}
    sentences = _sentences(compared, matched, ratios, unlike, same_machine)
    differences = [*_environments(compared), *_specs(compared, both)]
    made = [_seconds(matched, ratios), _scores(matched), _states(matched)]
    again = ["report", *map(str, folders), *(["--out", str(out)] if out else [])]
    return Report(
        name=NAME,
        json_file=RESULTS_FILE,
        title="Two comparisons side by side",
        overline="Comparison of frameworks",
        facts=_heading(folders, compared),
        marks=[
            Mark("Machine", *(("the same", "good") if same_machine else ("another: no verdict about speed", "warn"))),
            Mark("Rows in both", str(len(both))),
            Mark("Differences around them", str(len(differences))),
        ],
        findings=sentences,
        tables=[*made, _differences(differences)],
        commands=[("The two side by side:", f"{document.COMPARE} {document.shell(again)}")],
        values={
            "kind": KIND,
            "folders": list(map(str, folders)),
            "same_machine": same_machine,
            "sentences": dict(sentences),
            "differences": [{"what": what, "a": ours, "b": theirs} for what, ours, theirs in differences],
        },
    )


def _unlike(compared: _Two, ours: Summary, theirs: Summary) -> list[str]:
    """What makes a row's epoch other work in A than in B: fields of its spec, its data, its device."""
    before, now = (_fields(each)[ours.id] for each in compared)
    same_data = len({each.stored.comparison.data_hash for each in compared}) == 1
    differing = [
        name
        for name in {**before, **now}
        if before.get(name) != now.get(name)
        and name not in _OF_NO_EPOCH
        and not name.startswith(("framework_options.", "data.") if same_data else "framework_options.")
    ]
    if not same_data and not any(name.startswith("data.") for name in differing):
        differing.append("content of the data")
    return differing + ["device"] * (ours.device != theirs.device)


def _fields(each: Compared) -> dict[str, dict[str, Any]]:
    """Row id: the fields of its spec."""
    return {row.id: store.flat(row.spec.model_dump(mode="json")) for row in each.stored.comparison.rows}


def _ratio(compared: _Two, row_id: str) -> Ratio | None:
    """Seconds of an epoch in A over those in B: how many times as fast B is."""
    seconds: list[list[float]] = []
    for each in compared:
        (row,) = (row for row in each.stored.comparison.rows if row.id == row_id)
        seconds.append([epoch_seconds(run) for run in comparable(each.stored, row).values()])
    return unpaired_ratio(*seconds)


def _sentences(
    compared: _Two,
    matched: Sequence[tuple[Summary, Summary]],
    ratios: dict[str, Ratio],
    unlike: dict[str, list[str]],
    same_machine: bool,
) -> list[tuple[str, list[str]]]:
    run_in_both = [each for each in matched if all(summary.repeats_done for summary in each)]
    speed = ["The machines differ: a ratio of their times is one of the machines, too, and nothing is said about speed."]
    if same_machine:
        speed = [_no_verdict(*each, unlike[each[0].id]) for each in run_in_both if unlike[each[0].id]]
        judged = {each.name: each for each in verdicts(list(ratios.items()))}
        speed += [_speed(*each, judged[each[0].id]) for each in run_in_both if each[0].id in judged]
        if judged:
            speed += filter(None, [family_words(list(judged.values()), "Welch's t-tests on the logarithms of the seconds")])
            speed.append(
                "A and B were run apart, and are not paired: what changed on the machine between them is in these ratios. "
                "Only runs that are interleaved tell that apart."
            )
    ours, theirs = ([summary.id for summary in each.summaries] for each in compared)
    alone = (("A", ours, theirs), ("B", theirs, ours))
    missing = [
        f"Not run in {name}: {', '.join(ids)}."
        for name, here, there in (("A", 0, 1), ("B", 1, 0))
        if (ids := [each[here].id for each in matched if each[there].repeats_done and not each[here].repeats_done])
    ]
    missing += [
        f"Only in {name}: {', '.join(ids)}."
        for name, here, there in alone
        if (ids := [row_id for row_id in here if row_id not in there])
    ]
    cautions = [f"{name}: {trouble}" for name, each in zip("AB", compared, strict=True) for trouble in each.findings.troubles]
    parts = (
        ("Which is faster?", speed),
        ("Is it the same training?", _first_losses(run_in_both)),
        ("Rows without a counterpart", missing),
        ("Cautions", cautions),
    )
    return [(title, sentences) for title, sentences in parts if sentences]


def _speed(ours: Summary, theirs: Summary, judged: Judged) -> str:
    """Of seconds in A over those in B."""
    times = f"B is {interval_words(judged.ratio)} times as fast as A"
    doubt = doubt_of(ours, theirs)
    if judged.verdict == "too few repeats to tell":
        return f"{ours.name}: {judged.verdict} ({judged.ratio.n} of {VERDICT_PAIRS}); {times} here.{doubt}"
    unclear = f"{judged.verdict}; " if judged.verdict == "no difference shown" else ""
    return f"{ours.name}: {unclear}{times}{surety(judged)}.{doubt}"


def _no_verdict(ours: Summary, theirs: Summary, unlike: Sequence[str]) -> str:
    paces = [1e3 / each.images_per_second.median for each in (ours, theirs) if each.images_per_second]
    by_image = f" An image took {paces[0]:.3g} ms in A and {paces[1]:.3g} ms in B." if len(paces) == 2 else ""
    other = f"other {', '.join(unlike)}"
    return f"{ours.name}: no verdict: epochs of A and B are not the same work ({other}).{by_image}{doubt_of(ours, theirs)}"


def _first_losses(matched: Sequence[tuple[Summary, Summary]]) -> list[str]:
    """Before any update: equal where data, weights and order are the same, but for rounding."""
    losses = {ours.name: (ours.first_step_loss, theirs.first_step_loss) for ours, theirs in matched}
    known = {name: (a, b) for name, (a, b) in losses.items() if a is not None and b is not None}
    differing = [
        f"{name}: the first losses differ by {relative_difference(a, b):.1e} (relative)."
        for name, (a, b) in known.items()
        if a != b
    ]
    return differing or [f"The first losses of A and B are the same numbers in all {len(known)} rows."] * bool(known)


def _of_both(key: str, heading: str, digits: int | None = None, *, interval: bool = False) -> tuple[Column, Column]:
    return (
        Column(f"{key}_a", f"{heading}, A", digits, interval=interval),
        Column(f"{key}_b", f"{heading}, B", digits, interval=interval),
    )


def _seconds(matched: Sequence[tuple[Summary, Summary]], ratios: dict[str, Ratio]) -> Table:
    columns = (
        *RUN,
        *_of_both("epoch_seconds", "s per epoch", 3, interval=True),
        Column("ratio", "A over B", 2, interval=True),
        *_of_both("wall_seconds", "wall s", 1, interval=True),
        *_of_both("peak_memory_mib", "peak MiB", 0),
    )
    rows = [
        run_cells(ours)
        | {"epoch_seconds_a": ours.epoch_seconds, "epoch_seconds_b": theirs.epoch_seconds, "ratio": ratios.get(ours.id)}
        | {"wall_seconds_a": ours.wall_seconds, "wall_seconds_b": theirs.wall_seconds}
        | {"peak_memory_mib_a": ours.peak_memory_mib, "peak_memory_mib_b": theirs.peak_memory_mib}
        for ours, theirs in matched
    ]
    note = (
        "Median over repeats (25 % to 75 % quantile). A over B: geometric means of the seconds per epoch, unpaired (95 % Welch "
        "interval); none where an epoch of A is other work than one of B."
    )
    return Table("beside_seconds", "Times", columns, rows, note=note)


def _scores(matched: Sequence[tuple[Summary, Summary]]) -> Table:
    columns = (
        *RUN,
        *_of_both("accuracy", "test accuracy", 4, interval=True),
        Column("difference", "B - A", 4),
        *_of_both("loss", "test loss", 4, interval=True),
        *_of_both("first_step_loss", "first loss", 6),
    )
    rows: list[dict[str, Cell]] = []
    for ours, theirs in matched:
        a, b = ours.test.accuracy, theirs.test.accuracy
        rows.append(
            run_cells(ours)
            | {"accuracy_a": a, "accuracy_b": b, "difference": b.median - a.median if a and b else None}
            | {"loss_a": ours.test.loss, "loss_b": theirs.test.loss}
            | {"first_step_loss_a": ours.first_step_loss, "first_step_loss_b": theirs.first_step_loss}
        )
    return Table("beside_scores", "Scores", columns, rows, note="Test split, after the last epoch. Median over repeats.")


def _states(matched: Sequence[tuple[Summary, Summary]]) -> Table:
    columns = (*RUN, *_of_both("status", "status"), *_of_both("repeats", "repeats"), *_of_both("parity", "same training"))
    rows: list[dict[str, Cell]] = [
        run_cells(ours)
        | {"status_a": ours.status, "status_b": theirs.status}
        | {"repeats_a": ours.repeats_done, "repeats_b": theirs.repeats_done}
        | {"parity_a": ours.parity, "parity_b": theirs.parity}
        for ours, theirs in matched
    ]
    return Table("beside_states", "How they ended", columns, rows)


def _environments(compared: _Two) -> list[tuple[str, str, str]]:
    ours, theirs = (dict(comparison_report.environment(each)) for each in compared)
    return [
        (name, ours.get(name, tables.MISSING), theirs.get(name, tables.MISSING))
        for name in {**ours, **theirs}
        if name not in _OF_ITS_OWN and ours.get(name) != theirs.get(name)
    ]


def _specs(compared: _Two, both: Sequence[str]) -> list[tuple[str, str, str]]:
    """Fields of the matched rows' specs; of all rows alike once, else row by row."""
    specs = [_fields(each) for each in compared]
    found: dict[tuple[str, str, str], list[str]] = {}
    for row_id in both:
        ours, theirs = (each[row_id] for each in specs)
        for field in {**ours, **theirs}:
            a, b = ours.get(field), theirs.get(field)
            if a != b:
                found.setdefault((field, json.dumps(a), json.dumps(b)), []).append(row_id)
    return [
        (field if len(rows) == len(both) else f"{field} of {', '.join(rows)}", ours, theirs)
        for (field, ours, theirs), rows in found.items()
    ]


def _heading(folders: tuple[Path, Path], compared: _Two) -> list[str]:
    lines: list[str] = []
    for name, folder, each in zip("AB", folders, compared, strict=True):
        first, *_ = comparison_report.heading(each).splitlines()
        lines.append(f"{name}: {folder}, {each.stored.comparison.created_at}: {first}")
    return [wording.one_line(line) for line in lines]


def _differences(found: Sequence[tuple[str, str, str]]) -> Table:
    columns = (Column("what", "what", fold=36), Column("a", "A", fold=36), Column("b", "B", fold=36))
    rows: list[dict[str, Cell]] = [{"what": what, "a": ours, "b": theirs} for what, ours, theirs in found]
    return Table("beside_differences", "What differs around them", columns, rows, note="" if rows else "Nothing recorded.")

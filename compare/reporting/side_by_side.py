"""Two stored comparisons side by side: rows matched by id, their values and ratios, and what else differs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from common.machine import machine
from compare.core import exits, wording
from compare.core.differences import relative_difference
from compare.core.errors import FolderError
from compare.core.statistics import VERDICT_PAIRS, Judged, Ratio, unpaired_ratio, verdicts
from compare.core.terminal import FULL
from compare.core.verdict_words import bounded_words, family_words, interval_words, surety, word
from compare.execution import store
from compare.judgement import cautions, conditions
from compare.judgement.findings import pairs
from compare.judgement.measurements import OF_THE_PLACE, is_of_the_content
from compare.judgement.row_figures import DISTURBED, Summary
from compare.judgement.run_figures import epoch_seconds
from compare.judgement.summary import comparable, family
from compare.judgement.verdict_sentences import MAKE_AGAIN, doubt_of, unproved
from compare.reporting import comparison_report, document, tables
from compare.reporting.comparison_report import Compared
from compare.reporting.document import Mark, Report
from compare.reporting.screen import Paragraph, Screen, counted_cautions
from compare.reporting.tables import RUN, Cell, Column, Table

KIND = "side by side"
NAME, RESULTS_FILE = "beside", "beside.json"

_SPEED, _SAME, _MISSING, _CAUTIONS = (
    "Which is faster?",
    "Is it the same training?",
    "Rows without a counterpart",
    "Cautions",
)
_OF_ITS_OWN = ("made at",)
_OF_NO_EPOCH = (*OF_THE_PLACE, "epochs", "steps", "seed", "checkpoint_seconds")
"""Fields of a spec that do not change the work of an epoch. Neither do a framework's own switches."""

_Two = tuple[Compared, Compared]


class _Matched(NamedTuple):
    """A row that both comparisons have."""

    a: Summary
    b: Summary

    @property
    def contestant(self) -> str:
        return self.a.contestant

    @property
    def configuration(self) -> str:
        return self.a.configuration


def check(folders: tuple[Path, Path], out: Path | None) -> None:
    """Check what shows before anything is read.

    Args:
        out: where the report is to be written; None: nowhere.

    Raises:
        FolderError: both are one folder, or `out` holds something else.
    """
    if folders[0].resolve() == folders[1].resolve():
        raise FolderError(f"`report A B` needs two folders. Received: {folders[0]} twice. Name another, or leave one out.")
    if out is not None:
        store.refuse_others(out, RESULTS_FILE, KIND, "report of two folders", own=document.files_of(NAME))


def report(folders: tuple[Path, Path], compared: _Two, out: Path | None) -> Report:
    """Match the rows of two comparisons, called A and B, by their id.

    Args:
        out: as `check` takes it.

    Raises:
        FolderError: no row is in both.
    """
    ours, theirs = ({summary.id: summary for summary in each.summaries} for each in compared)
    both = [row_id for row_id in ours if row_id in theirs]
    if not both:
        raise FolderError(
            f"{folders[0]} and {folders[1]} have no row in common. Received: {', '.join(ours)}; and {', '.join(theirs)}. "
            "Name two comparisons of the same frameworks and modes."
        )
    same_machine = not machine.differences(*(each.stored.comparison.machine for each in compared))
    matched = [_Matched(ours[row_id], theirs[row_id]) for row_id in both]
    unlike = {row_id: _unlike(compared, ours[row_id], theirs[row_id]) for row_id in both}
    alike = [row_id for row_id in both if same_machine and not unlike[row_id]]
    ratios = {row_id: ratio for row_id in alike if (ratio := _ratio(compared, row_id)) is not None}
    sentences = _sentences(folders, compared, matched, ratios, unlike, same_machine)
    differences = [*_environments(compared), *_specs(compared, both)]
    made = [_seconds(matched, ratios), _scores(matched), _states(matched)]
    again = ["report", *map(str, folders), *(["--out", str(out)] if out else [])]
    unsigned = cautions.unsigned((name, each.stored) for name, each in zip("AB", compared, strict=True))
    return Report(
        name=NAME,
        json_file=RESULTS_FILE,
        title="Two comparisons side by side",
        overline="Comparison of frameworks",
        facts=[
            f"{name}: {folder}, {each.stored.comparison.created_at}: {comparison_report.facts(each)[0]}"
            for name, folder, each in zip("AB", folders, compared, strict=True)
        ],
        first_sentences=_disagreements(compared),
        marks=[
            Mark("Machine", *(("the same", "good") if same_machine else ("another: no verdict about speed", "warn"))),
            Mark("Rows in both", str(len(both))),
            Mark("Differences around them", str(len(differences))),
        ],
        findings=sentences,
        tables=[*made, _differences(differences)],
        commands=[("The two side by side:", f"{document.COMPARE} {wording.shell(again)}")],
        values={
            "kind": KIND,
            "folders": list(map(str, folders)),
            "same_machine": same_machine,
            "sentences": dict(sentences),
            "differences": [{"what": what, "a": ours, "b": theirs} for what, ours, theirs in differences],
        },
        exit_code=exits.RUN_FAILED if unsigned else 0,
        failures=unsigned,
        screen=_screen(folders, compared, _faster(matched, ratios, unlike, same_machine), sentences, made[0], unsigned),
        again=f"{document.COMPARE} {wording.shell([*again, FULL])}",
    )


def _screen(
    folders: tuple[Path, Path],
    compared: _Two,
    faster: Sequence[str],
    sentences: Sequence[tuple[str, list[str]]],
    seconds: Table,
    unsigned: Sequence[str],
) -> Screen:
    by_title = dict(sentences)
    kept = (*(each.key for each in RUN), "epoch_seconds_a", "epoch_seconds_b", "ratio")
    return Screen(
        asked=[f"{name}: {folder}" for name, folder in zip("AB", folders, strict=True)],
        answers=[
            Paragraph("Divisions", _disagreements(compared), "warn"),
            Paragraph("Faster", faster),
            Paragraph("Fair?", by_title.get(_SAME, [])),
            Paragraph("Trouble", [*unsigned, *by_title.get(_MISSING, [])], "bad"),
        ],
        table=replace(seconds, columns=tuple(each for each in seconds.columns if each.key in kept)),
        remarks=counted_cautions(len(by_title.get(_CAUTIONS, []))),
    )


def _faster(
    matched: Sequence[_Matched], ratios: dict[str, Ratio], unlike: dict[str, list[str]], same_machine: bool
) -> list[str]:
    """The verdicts on speed in short, rows with one verdict together."""
    if not same_machine:
        return ["no verdict: the machines differ"]
    judged = {each.name: each for each in verdicts(list(ratios.items()))}
    kinds: dict[str, list[str]] = {}
    for ours, theirs in (each for each in matched if all(summary.repeats_done for summary in each)):
        if unlike[ours.id]:
            kinds.setdefault("no verdict, an epoch is not the same work", []).append(ours.name)
        elif ours.id in judged and (ours.disturbed or theirs.disturbed):
            kinds.setdefault("no finding, other work disturbed them", []).append(ours.name)
        elif ours.id in judged:
            each = judged[ours.id]
            kind = word(each, above="B is faster than A", below="B is slower than A", neither=each.verdict)
            kinds.setdefault(f"{kind} (times as fast as A)", []).append(f"{ours.name} {bounded_words(each.ratio)}")
    return [f"{kind}: {wording.listed(names, 4)}" for kind, names in kinds.items()]


def _disagreements(compared: _Two) -> list[str]:
    """Divisions of A and B that name different frameworks as the faster one."""
    found = [
        each
        for name, of in zip("AB", compared, strict=True)
        if of.findings.comparable
        for each in conditions.winners(of.stored, pairs(of.stored, family(of.stored, of.summaries)), f"{name}, ")
    ]
    return conditions.disagreements(found)


def _unlike(compared: _Two, ours: Summary, theirs: Summary) -> list[str]:
    """Why a row's epoch is not the same work in A and B: fields of its spec, its data, its device."""
    before, now = (_fields(each)[ours.id] for each in compared)
    same_data = len({each.stored.comparison.data_hash for each in compared}) == 1
    differing = [
        name
        for name in {**before, **now}
        if before.get(name) != now.get(name)
        and name not in _OF_NO_EPOCH
        and not name.startswith("framework_options.")
        and not (same_data and is_of_the_content(name))
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
    folders: tuple[Path, Path],
    compared: _Two,
    matched: Sequence[_Matched],
    ratios: dict[str, Ratio],
    unlike: dict[str, list[str]],
    same_machine: bool,
) -> list[tuple[str, list[str]]]:
    run_in_both = [each for each in matched if all(summary.repeats_done for summary in each)]
    speed = ["The machines differ: a ratio of their times is one of the machines, too, and nothing is said about speed."]
    if same_machine:
        speed = [_no_verdict(*each, unlike[each[0].id]) for each in run_in_both if unlike[each[0].id]]
        judged = {each.name: each for each in verdicts(list(ratios.items()))}
        speed += [_speed(*each, judged[each[0].id], folders) for each in run_in_both if each[0].id in judged]
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
    cautions = [
        f"{name}: {trouble}"
        for name, folder, each in zip("AB", folders, compared, strict=True)
        for trouble in comparison_report.in_folder(each.findings.troubles, folder)
    ]
    parts = (
        (_SPEED, speed),
        (_SAME, _first_losses(run_in_both)),
        (_MISSING, missing),
        (_CAUTIONS, cautions),
    )
    return [(title, sentences) for title, sentences in parts if sentences]


def _speed(ours: Summary, theirs: Summary, judged: Judged, folders: tuple[Path, Path]) -> str:
    """The verdict on a row's speed. Its ratio is the seconds in A over those in B."""
    times = f"B is {interval_words(judged.ratio)} times as fast as A"
    if ours.disturbed or theirs.disturbed:
        disturbed = [folder for folder, each in zip(folders, (ours, theirs), strict=True) if each.disturbed]
        return f"{ours.name}: no finding.{' '.join(comparison_report.in_folder([MAKE_AGAIN], each)[0] for each in disturbed)}"
    doubt = unproved(ours, theirs) + doubt_of(ours, theirs)
    if judged.verdict == "too few repeats to tell":
        return f"{ours.name}: {judged.verdict} ({judged.ratio.n} of {VERDICT_PAIRS}); {times} here.{doubt}"
    unclear = f"{judged.verdict}; " if judged.verdict == "no difference shown" else ""
    return f"{ours.name}: {unclear}{times}{surety(judged)}.{doubt}"


def _no_verdict(ours: Summary, theirs: Summary, unlike: Sequence[str]) -> str:
    paces = [1e3 / each.images_per_second.median for each in (ours, theirs) if each.images_per_second]
    by_image = f" An image took {paces[0]:.3g} ms in A and {paces[1]:.3g} ms in B." if len(paces) == 2 else ""
    other = f"other {', '.join(unlike)}"
    return f"{ours.name}: no verdict: epochs of A and B are not the same work ({other}).{by_image}{doubt_of(ours, theirs)}"


def _first_losses(matched: Sequence[_Matched]) -> list[str]:
    """The losses before any update. With the same data, weights and order, they differ by rounding at most."""
    losses = {ours.name: (ours.first_step_loss, theirs.first_step_loss) for ours, theirs in matched}
    known = {name: (a, b) for name, (a, b) in losses.items() if a is not None and b is not None}
    differing = [
        f"{name}: the first losses differ by {relative_difference(a, b):.1e} (relative)."
        for name, (a, b) in known.items()
        if a != b
    ]
    return differing or [f"The first losses of A and B are the same numbers in all {len(known)} rows."] * bool(known)


def _of_both(key: str, heading: str, digits: int | None = None, *, path: str = "", interval: bool = False) -> list[Column]:
    return [
        Column(f"{key}_{side}", f"{heading}, {side.upper()}", digits, interval=interval, pick=f"{side}.{path or key}")
        for side in "ab"
    ]


def _seconds(matched: Sequence[_Matched], ratios: dict[str, Ratio]) -> Table:
    def ratio(row: _Matched) -> Cell:
        found = ratios.get(row.a.id)
        return DISTURBED if found and (row.a.disturbed or row.b.disturbed) else found

    columns = (
        *RUN,
        *_of_both("epoch_seconds", "s per epoch", 3, interval=True),
        Column("ratio", "A over B", 2, interval=True, pick=ratio),
        *_of_both("wall_seconds", "wall s", 1, interval=True),
        *_of_both("peak_memory_mib", "peak RSS MiB", 0),
    )
    note = (
        "Median over repeats (25 % to 75 % quantile). A over B: geometric means of the seconds per epoch, unpaired (95 % Welch "
        "interval); none where the machines differ, or an epoch of A is other work than one of B."
    )
    return Table.of("beside_seconds", "Times", columns, matched, note)


def _scores(matched: Sequence[_Matched]) -> Table:
    def difference(row: _Matched) -> float | None:
        a, b = row.a.test.accuracy, row.b.test.accuracy
        return b.median - a.median if a and b else None

    columns = (
        *RUN,
        *_of_both("accuracy", "test accuracy", 4, path="test.accuracy", interval=True),
        Column("difference", "B - A", 4, pick=difference),
        *_of_both("loss", "test loss", 4, path="test.loss", interval=True),
        *_of_both("first_step_loss", "first loss", 6),
    )
    return Table.of("beside_scores", "Scores", columns, matched, "Test split, after the last epoch. Median over repeats.")


def _states(matched: Sequence[_Matched]) -> Table:
    columns = (
        *RUN,
        *_of_both("status", "status"),
        *_of_both("repeats", "repeats", path="repeats_done"),
        *_of_both("parity", "same training"),
    )
    return Table.of("beside_states", "How they ended", columns, matched)


def _environments(compared: _Two) -> list[tuple[str, str, str]]:
    ours, theirs = (dict(comparison_report.environment(each)) for each in compared)
    return [
        (name, ours.get(name, tables.MISSING), theirs.get(name, tables.MISSING))
        for name in {**ours, **theirs}
        if name not in _OF_ITS_OWN and ours.get(name) != theirs.get(name)
    ]


def _specs(compared: _Two, both: Sequence[str]) -> list[tuple[str, str, str]]:
    """Differences between the specs of matched rows. A field that differs alike in all rows is named once."""
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


def _differences(found: Sequence[tuple[str, str, str]]) -> Table:
    headings = (("what", "what"), ("a", "A"), ("b", "B"))
    columns = [Column(key, heading, fold=36, pick=str(place)) for place, (key, heading) in enumerate(headings)]
    return Table.of("beside_differences", "What differs around them", columns, found)

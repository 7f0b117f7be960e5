"""The first screen of a comparison: who is faster, whether going parallel pays, and whether it is fair.

It is made of the judged facts that results.json holds. A row without a verdict gets none here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from common.machine.machine import processors
from compare.core import verdict_words, wording
from compare.core.statistics import POWER, VERDICT_PAIRS, Judged, Ratio, inverse, resolution
from compare.core.terminal import FULL
from compare.core.wording import percent
from compare.execution import matrix, store
from compare.execution.matrix import Row
from compare.execution.store import IN_FLOAT64, Stored
from compare.judgement import cautions, conditions
from compare.judgement.conditions import DISAGREE
from compare.judgement.findings import Findings
from compare.judgement.row_figures import Summary
from compare.judgement.summary import FAILURES, UNFINISHED, accelerated, rows_of, was_interrupted
from compare.reporting.screen import LEGEND, MOST_SENTENCES, Bar, Chart, Paragraph, Screen

NAMED = 2
"""Rows or configurations that a sentence names. It counts the others."""
_PART = {"training": "", "input": ", the input path alone", "compute": ", the model alone on one batch"}
_DECIDED, _DOUBTFUL, _FEW = "decided", "do not rely on this", "too few repeats to tell"
_TELLING = ("layout", "precision", "graph")
"""Conditions whose values say what they are."""


class RowRatio(NamedTuple):
    """A judged ratio of two rows."""

    slow: Summary
    """The row whose seconds are above the line."""
    fast: Summary
    judged: Judged

    @property
    def is_of_contestants(self) -> bool:
        return " against " in self.judged.name

    @property
    def is_decided(self) -> bool:
        return self.judged.verdict in ("above", "below") and not self.judged.disturbed and not self.is_in_doubt

    @property
    def is_in_doubt(self) -> bool:
        return self.slow.in_doubt or self.fast.in_doubt

    @property
    def times(self) -> tuple[Summary, Summary, Ratio]:
        """(the faster row, the slower one, how many times as fast). Without a verdict: `fast` over `slow`."""
        ratio = self.judged.ratio
        if ratio.value < 1.0 and (self.is_decided or self.judged.verdict == _FEW):
            return self.slow, self.fast, inverse(ratio)
        return self.fast, self.slow, ratio


def screen(stored: Stored, summaries: Sequence[Summary], found: Findings, folder: Path) -> Screen:
    """The first screen of a comparison in a folder. The report adds where its files are."""
    short, proof = _short_names(summaries), _refuted(stored, summaries)
    ratios = [] if proof else _ratios(stored, summaries, found)
    answers = [
        *(
            [Paragraph("Not proved", proof, "bad")]
            if proof
            else [Paragraph("Faster", _faster(found, summaries, ratios, short))]
        ),
        Paragraph("Divisions", [] if proof else [each for each in found.divisions if each.startswith(DISAGREE)], "warn"),
        Paragraph("Parallel", _parallel(ratios, short)),
        Paragraph("Target", _target(summaries, short)),
        Paragraph("Fair?", _fair(stored, summaries, short, found)),
        Paragraph("Trouble", _trouble(stored, summaries, found), "bad"),
    ]
    return Screen(
        asked=asked(stored),
        # Nothing of an answer is cut: what is left out could be its contrary.
        answers=[each._replace(least=MOST_SENTENCES) for each in answers if each.sentences],
        chart=_chart(summaries, ratios, short, found),
        remarks=_remarks(stored, summaries, ratios, found),
        next=_next(stored, summaries, ratios, folder),
    )


def asked(stored: Stored) -> list[str]:
    """`simple_cnn on digits: 3 epochs, batch 64, 7 repeats`, `2 cores of AMD EPYC`, `28 runs took 2 min 19 s`."""
    comparison = stored.comparison
    spec = comparison.rows[0].spec
    length = wording.count(spec.epochs, "epoch") if spec.epochs is not None else wording.count(spec.steps or 0, "step")
    seeds = f", {wording.count(len(comparison.seeds), 'seed')}" if comparison.seeds else ""
    repeats = wording.count(comparison.repeats, "repeat")
    cores = max(row.spec.cores for row in comparison.rows)
    runs = [run for each in stored.runs.values() for run in each.values()]
    wall = [run.phases.wall_seconds for run in runs if run.phases]
    planned = sum(len(comparison.repeats_of(row.id)) for row in comparison.rows if row.unavailable is None)
    made = wording.count(len(wall), "run") if len(wall) >= planned else f"{len(wall)} of {wording.count(planned, 'run')}"
    gpus = comparison.machine.get("gpus") if any(accelerated(run.device) for run in runs) else None
    where = ", ".join(gpus) if gpus else processors(comparison.machine).replace("(R)", "").removesuffix(" Processor")
    digits = sorted({run.conditions.get("precision", "float32") for run in runs} | {spec.precision})
    return [
        f"{spec.model_words} on {comparison.data_name}: {length}, batch {spec.global_batch_size}, {repeats}{seeds}"
        f"{f', {wording.joined(digits)}' if digits != ['float32'] else ''}{_PART[spec.part]}",
        where if gpus else f"{wording.count(cores, 'core')} of {where}",
        *([f"{made} took {_time_words(sum(wall))}"] if wall else []),
    ]


def _time_words(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _ratios(stored: Stored, summaries: Sequence[Summary], found: Findings) -> list[RowRatio]:
    by_id = {summary.id: summary for summary in summaries}
    made: list[RowRatio] = []
    for judged in found.verdicts:
        first, second = rows_of(stored.comparison, judged)
        # A pair's ratio is seconds of the second over those of the first, a mode's those of serial over its own.
        made.append(RowRatio(by_id[second], by_id[first], judged))
    return made


def _short_names(summaries: Sequence[Summary]) -> dict[str, str]:
    """Row id: its configuration. Cores are left out where all serial rows have as many."""
    cores = {summary.cores for summary in summaries if summary.mode == "serial"}
    alike = f"serial, {wording.count(cores.pop(), 'core')}" if len(cores) == 1 else ""
    return {each.id: each.configuration.replace(alike, "serial") if alike else each.configuration for each in summaries}


def _refuted(stored: Stored, summaries: Sequence[Summary]) -> list[str]:
    """Say why the proof failed. Empty: it did not."""
    proof = stored.comparison.proof
    if proof is None or proof.verdict != "not proved":
        return []
    names = {summary.id: summary.name for summary in summaries}
    at_fault = list(dict.fromkeys(names[each.row] for each in proof.spot_checks if each.faults and each.row in names))
    said = [f"the timed runs of {wording.joined(at_fault)} did not train as planned (below)"] if at_fault else []
    if failed := [each for each in proof.rungs if each.get("status") == "failed"]:
        what = str(failed[0].get("name")).lstrip("0123456789 ")
        who = ", ".join(
            str(each) for each in (failed[0].get("framework"), failed[0].get("mode"), failed[0].get("where")) if each
        )
        said.append(f"{len(failed)} of {len(proof.rungs)} rungs failed, first: {what}{f' ({who})' if who else ''}")
    # A proof may fail in other ways: it may have broken off.
    said = said or [proof.sentence.removeprefix(f"{proof.verdict}: ").removesuffix(".")]
    return [*said, "the times may be those of two different trainings"]


def _faster(found: Findings, summaries: Sequence[Summary], ratios: Sequence[RowRatio], short: Mapping[str, str]) -> list[str]:
    if not found.comparable:
        return ["No verdict: the timed runs did not train the same."]
    of_contestants = [each for each in ratios if each.is_of_contestants]
    if not of_contestants:
        return [] if ratios else [f"No verdict: {_nothing_compared(summaries)}"]
    said: list[str] = []
    for pair in dict.fromkeys(frozenset((each.slow.contestant, each.fast.contestant)) for each in of_contestants):
        own = [each for each in of_contestants if {each.slow.contestant, each.fast.contestant} == pair]
        kinds: dict[tuple[str, str], list[RowRatio]] = {}
        for each in own:
            kinds.setdefault((_kind(each), each.times[0].contestant if each.is_decided else ""), []).append(each)
        is_alone = len(set(short.values())) == 1
        for (kind, _), alike in sorted(kinds.items(), key=lambda each: each[0][0] != _DECIDED):
            said.append(_of_pair(kind, alike, ["" if is_alone else f" in {short[each.fast.id]}" for each in alike]))
    return said


def _nothing_compared(summaries: Sequence[Summary]) -> str:
    """Say why no two rows have a ratio."""
    ran = [each for each in summaries if each.repeats_done]
    if ran and all(each.epoch_seconds is None for each in ran):
        return "no epoch could be timed. Train for longer (--epochs), or in smaller batches."
    if len({each.contestant for each in summaries}) == 1:
        return "one framework alone has nothing to be compared with."
    return "no two rows can be compared."


def _of_pair(kind: str, alike: Sequence[RowRatio], places: Sequence[str]) -> str:
    """Say what holds between two contestants in some configurations."""
    first = alike[0]
    one, other, _ = first.times
    if kind == "disturbed":
        where = wording.listed([place.removeprefix(" in ") for place in places], NAMED)
        return (
            f"no finding between {one.contestant} and {other.contestant}{f' in {where}' * bool(where)}: other work disturbed it"
        )
    named = [
        f"{f'{each.times[0].contestant} ' if kind.startswith(_FEW) else ''}{_times(each)}{place}"
        for each, place in zip(alike, places, strict=True)
    ][1:NAMED]
    left = len(alike) - 1 - len(named)
    more = [f"and {wording.count(left, 'configuration')} more"] if left else []
    said = f"{_times(first)} times as fast as {other.contestant}{places[0]}{verdict_words.hardly(first.judged)}"
    said = f"{one.contestant}: {said}" if kind == _DECIDED else f"{kind}: {one.contestant} is {said}"
    return "; ".join([said, *named, *more])


def _kind(row_ratio: RowRatio) -> str:
    """The verdict in words. Only what is alike is said together."""
    if row_ratio.judged.disturbed:
        return "disturbed"
    if row_ratio.is_in_doubt:
        return _DOUBTFUL
    if row_ratio.is_decided:
        return _DECIDED
    if row_ratio.judged.verdict == _FEW:
        return f"{_FEW} ({row_ratio.judged.ratio.n} of {VERDICT_PAIRS})"
    return verdict_words.word(row_ratio.judged, above="", below="", neither=row_ratio.judged.verdict)


def _times(row_ratio: RowRatio) -> str:
    return verdict_words.bounded_words(row_ratio.times[2])


def _parallel(ratios: Sequence[RowRatio], short: Mapping[str, str]) -> list[str]:
    """Say which modes pay, those with one verdict together."""
    of_modes = [each for each in ratios if not each.is_of_contestants]
    cores = {each.fast.cores for each in of_modes}
    serial = f"serial on {wording.count(cores.pop(), 'core')}" if len(cores) == 1 else "serial on as many cores"
    order = {"above": f"faster than {serial}", "below": f"slower than {serial}", "no difference shown": "no gain shown"}
    kinds: dict[str, list[RowRatio]] = {}
    for each in of_modes:
        kind = order.get(each.judged.verdict, _kind(each)) if _kind(each) not in ("disturbed", _DOUBTFUL) else _kind(each)
        kinds.setdefault(kind, []).append(each)
    said: list[str] = []
    for kind, own in sorted(kinds.items(), key=lambda each: [*order.values(), each[0]].index(each[0])):  # decided ones first
        own.sort(key=lambda each: -each.judged.ratio.value)
        names = [f"{each.fast.contestant} {short[each.fast.id]}" for each in own]
        if kind == "disturbed":
            said.append(f"no finding: other work disturbed {wording.listed(names, NAMED)}")
            continue
        listed = [f"{name} {verdict_words.bounded_words(each.judged.ratio)}" for name, each in zip(names, own, strict=True)]
        hardly = verdict_words.hardly(own[0].judged) if len(own) == 1 else ""
        said.append(f"{kind}: {wording.listed(listed, NAMED)}{' times as fast' if len(own) == 1 else ''}{hardly}")
    return said


def _target(summaries: Sequence[Summary], short: Mapping[str, str]) -> list[str]:
    """Say how soon a validation accuracy was reached, where one was asked for."""
    asked = [(each, each.target) for each in summaries if each.target is not None and each.target.repeats]
    reached = sorted(
        (target.seconds.median, f"{row.contestant} {short[row.id]}") for row, target in asked if target.seconds is not None
    )
    missed = [f"{row.contestant} {short[row.id]}" for row, target in asked if target.seconds is None]
    said = [f"{name} {seconds:.2f} s" for seconds, name in reached]
    if not asked:
        return []
    what = f"validation accuracy {asked[0][1].accuracy:g}"
    in_time = [f"{what} (median of training time): {wording.listed(said, NAMED)}"]
    not_in_time = [f"{what} not reached, or in too few repeats for a median: {wording.listed(missed, NAMED)}"]
    return in_time * bool(said) + not_in_time * bool(missed)


def _fair(stored: Stored, summaries: Sequence[Summary], short: Mapping[str, str], found: Findings) -> list[str]:
    """Say whether it is the same training, and under which conditions."""
    said = _training(stored, summaries) if found.comparable and not _refuted(stored, summaries) else []
    rows = [row for row in stored.comparison.rows if row.unavailable is None and stored.runs[row.id]]
    kinds: dict[str, list[tuple[Row, Row, conditions.Division]]] = {}
    for one, other in combinations(rows, 2):
        if matrix.differ_by_contestant(one, other):
            division = conditions.division(stored, one, other)
            kinds.setdefault(division.kind, []).append((one, other, division))
    named = {each.name: each.switches for each in stored.comparison.contestants}
    for kind, own in kinds.items():
        one, other, division = min(own, key=lambda each: len(each[2].differing))
        where = wording.listed(dict.fromkeys(short[each.id] for each, _, _ in own), NAMED)
        place = f" ({where})" if len(kinds) > 1 else ""
        if kind != "neither" or not division.differing:
            said.append(f"{division.words}{place}")
            continue
        # Switches that the user has set apart are what is compared.
        on_purpose = named.get(one.contestant, {}) != named.get(other.contestant, {})
        levels = {row.spec.switches for row in rows}
        even_out = " (--switches closed evens them out)" if levels <= {"plain", "usual"} and not on_purpose else ""
        first = _differing(stored, one, other)
        others = [
            name
            for name in conditions.CONDITIONS
            if name not in first and any(name in _differing(stored, *each[:2]) for each in own)
        ]
        also = f"; in other rows also {wording.joined([conditions.CONDITIONS[name] for name in others])}" if others else ""
        said.append(f"other conditions{place}: {_conditions(stored, one, other)}{also}{even_out}")
    return said


def _differing(stored: Stored, one: Row, other: Row) -> list[str]:
    ours, theirs = (conditions.of_row(stored, row) for row in (one, other))
    return [name for name in ours if ours[name] != theirs.get(name)]


def _conditions(stored: Stored, one: Row, other: Row) -> str:
    """The conditions that differ: `pytorch NCHW, eager; tensorflow NHWC, graph`."""
    ours, theirs = (conditions.of_row(stored, row) for row in (one, other))
    differing = _differing(stored, one, other)
    said = [
        ", ".join(each[name] if name in _TELLING else f"{name.replace('_', ' ')} {each[name]}" for name in differing)
        for each in (ours, theirs)
    ]
    return f"{one.contestant} {said[0]}; {other.contestant} {said[1]}"


def _training(stored: Stored, summaries: Sequence[Summary]) -> list[str]:
    """Say whether it is proved to be the same training, in a few words, and which rows are not."""
    comparison, proof = stored.comparison, stored.comparison.proof
    if comparison.rows[0].spec.part != "training":
        return ["a part of the training alone: nothing is learned, so nothing is proved"]
    if proof is None:
        return ["the same training? not examined (--proof full)"]
    if comparison.headline not in ("proved", IN_FLOAT64):
        return [f"the same training? {proof.verdict}: {proof.sentence.removeprefix(f'{proof.verdict}: ').removesuffix('.')}"]
    lengths = [each["steps"] for each in proof.rungs if each.get("status") == "passed" and each.get("precision") == "float64"]
    over = f" over {wording.count(max(lengths), 'step')}" if lengths else ""
    good = [each for each in proof.spot_checks if each.steps and not each.faults]
    steps = sum(len(each.steps) for each in good)
    computed = sum(len(each.computed) for each in good if not each.shown)
    again = f", {computed} of them computed again" if computed else ""
    of_runs = f"; {wording.count(steps, 'step')} of the timed runs follow the plan{again}" if steps else ""
    said = [f"the same training: proved in float64{over}{of_runs}"]
    less: dict[str, list[str]] = {}
    for summary in summaries:
        if summary.repeats_done and summary.parity != "proved":
            less.setdefault(summary.parity, []).append(summary.name)
    for verdict, rows in less.items():
        which = "all rows" if len(rows) == len(summaries) else wording.listed(rows, NAMED)
        said.append(f"as they are timed, {which} {'is' if len(rows) == 1 else 'are'} {verdict}")
    return said


def _trouble(stored: Stored, summaries: Sequence[Summary], found: Findings) -> list[str]:
    """Say what changes the answer, a line each: first what holds for all, then by rows."""
    said = [*cautions.nothing_can_run(stored.comparison), *cautions.signature(stored)]
    if not found.comparable:
        proof = stored.comparison.proof
        faults: dict[str, list[str]] = {}
        for each in proof.spot_checks if proof else []:
            faults.setdefault(each.row, []).extend(each.faults)
        names = {summary.id: summary.name for summary in summaries}
        by_row = [
            f"{names.get(row, row)}: {own[0]}{f'; {len(own) - 1} more' if len(own) > 1 else ''}"
            for row, own in faults.items()
            if own
        ]
        wrong = [each for each in found.sameness if "NOT" in each]
        said += by_row or wrong[:1] or ["the timed runs did not train the same"]
    kinds: dict[str, list[Summary]] = {}
    for summary in summaries:
        if summary.doubt:
            kinds.setdefault(f"do not rely on these times, {summary.doubt}", []).append(summary)
        if summary.guesses:
            kinds.setdefault("accuracy no better than guessing", []).append(summary)
    for what, rows in kinds.items():
        which = f"all {wording.count(len(rows), 'row')}" if len(rows) == len(summaries) else _named(rows)
        said.append(f"{what}: {which}")
    said += [
        f"{summary.name} {summary.status}: {summary.reason or 'no reason given'}"
        for summary in summaries
        if summary.status in (*FAILURES, *UNFINISHED)
    ]
    return [*said, *(f"Set aside: {reason}" for reason in stored.set_aside)]


def _named(rows: Sequence[Summary]) -> str:
    return wording.listed([each.name for each in rows], NAMED)


def _chart(summaries: Sequence[Summary], ratios: Sequence[RowRatio], short: Mapping[str, str], found: Findings) -> Chart | None:
    """Sort the rows by their pace, the fastest first. Each has its verdict, and the accuracy."""
    timed = [each for each in summaries if each.epoch_seconds is not None]
    if not timed:
        return None
    timed.sort(key=lambda each: each.epoch_seconds.median if each.epoch_seconds else 0.0)
    others = [each for each in summaries if each.epoch_seconds is None]
    scored = any(each.test.accuracy is not None for each in summaries)
    bars: list[Bar] = []
    for summary in (*timed, *others):
        pace = summary.epoch_seconds.median if summary.epoch_seconds is not None else None
        against, mark = _against(summary, ratios, found)
        accuracy = summary.test.accuracy
        cells = [against, mark, *([percent(accuracy.median, 1) if accuracy else ""] if scored else [])]
        written = _seconds(pace) if pace is not None else summary.status
        bars.append(Bar((summary.contestant, short[summary.id]), pace, written, cells))
    headings = ("seconds per epoch (median, shorter is faster)", "seconds per epoch (median)", "seconds per epoch", "s/epoch")
    is_judged = any(bar.cells[0] for bar in bars)
    columns = ["against" if is_judged else "", "", *(["test acc."] if scored else [])]
    return Chart(headings, columns, bars, LEGEND if any(bar.cells[1] for bar in bars) else "")


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 0.095 else f"{value:.2g}"


def _against(summary: Summary, ratios: Sequence[RowRatio], found: Findings) -> tuple[str, str]:
    """Return whom a row is compared with and how many times as fast it is, and the mark of the verdict."""
    if not found.comparable:
        return "", ""
    own = [each for each in ratios if not each.is_of_contestants and each.fast.id == summary.id]
    # A row of several pairs shows the nearest rival that it beats.
    pairs = [each for each in ratios if each.is_of_contestants and each.times[0].id == summary.id]
    own += sorted(pairs, key=lambda each: (not each.is_decided, each.times[2].value))
    if not own:
        return "", ""
    row_ratio, judged = own[0], own[0].judged
    is_mode = not row_ratio.is_of_contestants
    rival = "serial" if is_mode else row_ratio.times[1].contestant
    if judged.disturbed:
        return f"{rival} disturbed", "?"
    ratio = judged.ratio if is_mode else row_ratio.times[2]
    mark = "~" if judged.verdict == "no difference that matters" and not row_ratio.is_in_doubt else "?"
    if row_ratio.is_decided:
        mark = "+" if ratio.value >= 1.0 else "-"
    return f"{rival} {verdict_words.bounded_words(ratio)}", mark


def _next(stored: Stored, summaries: Sequence[Summary], ratios: Sequence[RowRatio], folder: Path) -> list[tuple[str, str]]:
    """Name what to do where something is missing, wrong or not decided."""
    comparison, proof = stored.comparison, stored.comparison.proof
    wrong = [each for each in (proof.spot_checks if proof else []) if each.faults]
    if wrong:
        return [("what was recorded", str(store.run_folder(folder, wrong[0].row, wrong[0].repeat)))]
    if comparison.argv[:1] != ["run"]:
        return []
    resume = ("run", "--resume", str(folder))
    if any(summary.status in UNFINISHED for summary in summaries) or any(
        was_interrupted(run) for runs in stored.runs.values() for run in runs.values()
    ):
        return [("continue", wording.command(*resume))]
    if any(each.judged.disturbed for each in ratios):
        return [("again", wording.command(*resume, "--again", "disturbed"))]
    if any(not each.is_decided and each.judged.verdict != "no difference that matters" for each in ratios):
        repeats = max(VERDICT_PAIRS, 2 * comparison.repeats if comparison.repeats >= VERDICT_PAIRS else 0)
        return [("more repeats", wording.command(*resume, "--repeats", str(repeats)))]
    return []


def _remarks(stored: Stored, summaries: Sequence[Summary], ratios: Sequence[RowRatio], found: Findings) -> list[str]:
    """Say what a reader would wonder about, and how many cautions there are."""
    said: list[str] = []
    tested = [each.judged for each in ratios if each.judged.p is not None]
    is_open = any(each.verdict == "no difference shown" and not each.disturbed for each in tested)
    if is_open and (least := resolution([each.ratio for each in tested], tested[0].family)) is not None:
        difference = verdict_words.difference_words(least)
        said.append(
            f"Not decided is not equal: at this noise, a difference of {difference} is found in {percent(POWER)} of cases."
        )
    spec = stored.comparison.rows[0].spec
    alike = [each for each in summaries if each.parity in ("proved", IN_FLOAT64) and each.test.accuracy is not None]
    accuracies = {each.test.accuracy.median for each in alike if each.test.accuracy is not None}
    images = {each.test_examples for each in alike if each.test_examples}
    is_one_training = found.comparable and not stored.comparison.seeds and not spec.optimizer.native
    if len(accuracies) > 1 and len(images) == 1 and is_one_training and not _refuted(stored, summaries):
        said.append(
            "Accuracies of the same training may differ by rounding alone: "
            f"one of {wording.count(number := images.pop(), 'test image')} is {percent(1 / number, 1)}."
        )
    departing = [row for row in stored.comparison.rows if row.spec.departs is not None and stored.runs[row.id]]
    if departing:
        named = wording.listed(dict.fromkeys(row.spec.variant for row in departing), NAMED)
        said.append(f"Not serial's mathematics, by design: {named}.")
    if stored.signature is not None and stored.signature.confirmed:
        said.append(stored.signature.sentence)
    if number := len(found.troubles) + len(found.environments):
        said.append(f"{wording.count(number, 'caution')} in all: {FULL}.")
    return said

"""The first screen of a comparison: who is faster, whether going parallel pays, and whether it is fair.

It is made of the judged facts that results.json holds. A row without a verdict gets none here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from common.machine.machine import processors
from compare.core import verdict_words, wording
from compare.core.statistics import POWER, VERDICT_PAIRS, Judged, Ratio, inverse, resolution
from compare.core.terminal import FULL
from compare.core.wording import percent
from compare.execution import matrix
from compare.execution.matrix import Row
from compare.execution.store import IN_FLOAT64, Stored
from compare.judgement import cautions, conditions
from compare.judgement.findings import Findings
from compare.judgement.row_figures import Summary
from compare.judgement.summary import FAILURES, UNFINISHED, rows_of
from compare.reporting.screen import LEGEND, Answer, Bar, Chart, Screen

NAMED = 3
"""Rows or configurations that a sentence names. It counts the others."""
_PART = {"training": "", "input": ", the input path alone", "compute": ", the model alone on one batch"}
_DECIDED, _FEW = "decided", "too few repeats to tell"
_TELLING = ("layout", "precision", "graph")
"""Conditions whose values say what they are."""


class Question(NamedTuple):
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
        return self.judged.verdict in ("above", "below") and not self.judged.disturbed

    @property
    def times(self) -> tuple[Summary, Summary, Ratio]:
        """(the faster row, the slower one, how many times as fast). Without a verdict: `fast` over `slow`."""
        ratio = self.judged.ratio
        if ratio.value < 1.0 and (self.is_decided or self.judged.verdict == _FEW):
            return self.slow, self.fast, inverse(ratio)
        return self.fast, self.slow, ratio


def screen(stored: Stored, summaries: Sequence[Summary], found: Findings, folder: Path) -> Screen:
    """The first screen of a comparison in a folder. The report adds where its files are."""
    short, proof = _short_names(summaries), _refuted(stored)
    questions = [] if proof else _questions(stored, summaries, found)
    answers = [
        *([Answer("Not proved", proof, "bad")] if proof else [Answer("Faster", _faster(found, questions, short))]),
        Answer("Parallel", _parallel(questions, short)),
        Answer("Target", _target(summaries, short)),
        Answer("Fair?", _fair(stored, found)),
        Answer("Trouble", _trouble(stored, summaries, found), "bad"),
    ]
    return Screen(
        asked=asked(stored),
        answers=[each for each in answers if each.sentences],
        chart=_chart(summaries, questions, short, found),
        remarks=_remarks(stored, summaries, questions, found),
        next=_next(stored, questions, folder),
    )


def asked(stored: Stored) -> list[str]:
    """`simple_cnn on digits: 3 epochs, batch 64, 7 repeats`, `2 cores of AMD EPYC`, `28 runs in 2 min 19 s`."""
    comparison = stored.comparison
    spec = comparison.rows[0].spec
    length = wording.count(spec.epochs, "epoch") if spec.epochs is not None else wording.count(spec.steps or 0, "step")
    seeds = f", {wording.count(len(comparison.seeds), 'seed')}" if comparison.seeds else ""
    repeats = wording.count(comparison.repeats, "repeat")
    cores = wording.count(max(row.spec.cores for row in comparison.rows), "core")
    runs = [run.phases.wall_seconds for each in stored.runs.values() for run in each.values() if run.phases]
    return [
        f"{spec.model_words} on {comparison.data_name}: {length}, batch {spec.global_batch_size}, {repeats}{seeds}"
        f"{_PART[spec.part]}",
        f"{cores} of {processors(comparison.machine).replace('(R)', '').removesuffix(' Processor')}",
        *([f"{wording.count(len(runs), 'run')} in {_time_words(sum(runs))}"] if runs else []),
    ]


def _time_words(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _questions(stored: Stored, summaries: Sequence[Summary], found: Findings) -> list[Question]:
    by_id = {summary.id: summary for summary in summaries}
    made: list[Question] = []
    for judged in found.verdicts:
        first, second = rows_of(stored.comparison, judged)
        # A pair's ratio is seconds of the second over those of the first, a mode's those of serial over its own.
        made.append(Question(by_id[second], by_id[first], judged))
    return made


def _short_names(summaries: Sequence[Summary]) -> dict[str, str]:
    """Row id: its configuration. Cores are left out where all serial rows have as many."""
    cores = {summary.cores for summary in summaries if summary.mode == "serial"}
    alike = f"serial, {wording.count(cores.pop(), 'core')}" if len(cores) == 1 else ""
    return {each.id: each.configuration.replace(alike, "serial") if alike else each.configuration for each in summaries}


def _refuted(stored: Stored) -> list[str]:
    """Why the proof failed. Empty: it did not."""
    proof = stored.comparison.proof
    if proof is None or proof.verdict != "not proved":
        return []
    rows = sorted(row for row, verdict in proof.row_verdicts.items() if verdict == "not proved")
    which = f" These rows: {wording.listed(rows)}." if rows else ""
    return [f"{proof.sentence[0].upper()}{proof.sentence[1:].removesuffix('.')}.{which}", "So no row is called faster."]


def _faster(found: Findings, questions: Sequence[Question], short: Mapping[str, str]) -> list[str]:
    if not found.comparable:
        return ["No verdict: the timed runs did not train the same."]
    of_contestants = [each for each in questions if each.is_of_contestants]
    if not of_contestants:
        return [] if questions else ["No verdict: no two rows can be compared."]
    said: list[str] = []
    for pair in dict.fromkeys(frozenset((each.slow.contestant, each.fast.contestant)) for each in of_contestants):
        own = [each for each in of_contestants if {each.slow.contestant, each.fast.contestant} == pair]
        kinds: dict[tuple[str, str], list[Question]] = {}
        for each in own:
            kinds.setdefault((_kind(each), each.times[0].contestant if each.is_decided else ""), []).append(each)
        is_alone = len(own) == 1 and own[0].fast.mode == "serial"
        for (kind, _), alike in sorted(kinds.items(), key=lambda each: each[0][0] != _DECIDED):
            said.append(_of_pair(kind, alike, ["" if is_alone else f" in {short[each.fast.id]}" for each in alike]))
    return said


def _of_pair(kind: str, alike: Sequence[Question], places: Sequence[str]) -> str:
    """What holds between two contestants in some configurations."""
    first = alike[0]
    one, other, _ = first.times
    if kind == "disturbed":
        where = wording.listed([place.removeprefix(" in ") for place in places], NAMED)
        return (
            f"no finding between {one.contestant} and {other.contestant}{f' in {where}' * bool(where)}: other work disturbed it"
        )
    more = f", and in {wording.count(len(alike) - NAMED, 'configuration')} more" if len(alike) > NAMED else ""
    rest = "".join(f", {_times(each)}{place}" for each, place in list(zip(alike, places, strict=True))[1:NAMED])
    if kind == _DECIDED:
        return f"{one.contestant}: {_times(first)} times as fast as {other.contestant}{places[0]}{rest}{more}"
    if kind.startswith(_FEW):
        rest = "".join(
            f", {each.times[0].contestant} {_times(each)}{place}"
            for each, place in list(zip(alike, places, strict=True))[1:NAMED]
        )
    return f"{kind}: {one.contestant} is {_times(first)} times as fast as {other.contestant}{places[0]}{rest}{more}"


def _kind(question: Question) -> str:
    """The verdict in words. Only what is alike is said together."""
    if question.judged.disturbed:
        return "disturbed"
    if question.is_decided:
        return _DECIDED
    if question.judged.verdict == _FEW:
        return f"{_FEW} ({question.judged.ratio.n} of {VERDICT_PAIRS})"
    return verdict_words.word(question.judged, above="", below="", neither=question.judged.verdict)


def _times(question: Question) -> str:
    return _range(question.times[2])


def _range(ratio: Ratio) -> str:
    """`1.19 to 1.25`, or the value alone where there is no interval that says anything."""
    return verdict_words.range_words(ratio) if ratio.is_bounded else f"{ratio.value:.2f}"


def _parallel(questions: Sequence[Question], short: Mapping[str, str]) -> list[str]:
    """Which modes pay, those with one verdict together."""
    of_modes = [each for each in questions if not each.is_of_contestants]
    cores = {each.fast.cores for each in of_modes}
    serial = f"serial on {wording.count(cores.pop(), 'core')}" if len(cores) == 1 else "serial on as many cores"
    order = {"above": f"faster than {serial}", "below": f"slower than {serial}", "no difference shown": "no gain shown"}
    kinds: dict[str, list[Question]] = {}
    for each in of_modes:
        kind = _kind(each) if each.judged.disturbed else order.get(each.judged.verdict, _kind(each))
        kinds.setdefault(kind, []).append(each)
    said: list[str] = []
    for kind, own in sorted(kinds.items(), key=lambda each: [*order.values(), each[0]].index(each[0])):
        own.sort(key=lambda each: -each.judged.ratio.value)
        names = [f"{each.fast.contestant} {short[each.fast.id]}" for each in own]
        if kind == "disturbed":
            said.append(f"no finding: other work disturbed {wording.listed(names, NAMED)}")
            continue
        listed = wording.listed([f"{name} {_range(each.judged.ratio)}" for name, each in zip(names, own, strict=True)], NAMED)
        said.append(f"{kind}: {listed} times as fast" if len(own) <= NAMED else f"{kind} (times as fast): {listed}")
    return said


def _target(summaries: Sequence[Summary], short: Mapping[str, str]) -> list[str]:
    """How soon a validation accuracy was reached, where one was asked for."""
    asked = [(each, each.target) for each in summaries if each.target is not None and each.target.repeats]
    reached = sorted(
        (target.seconds.median, f"{row.contestant} {short[row.id]}", target)
        for row, target in asked
        if target.seconds is not None
    )
    missed = [f"{row.contestant} {short[row.id]}" for row, target in asked if target.seconds is None]
    said = [f"{name} {seconds:.2f} s" for seconds, name, _ in reached]
    accuracies = {target.accuracy for _, target in asked}
    return [
        *(
            [f"validation accuracy {max(accuracies):g} (median of training time): {wording.listed(said, NAMED)}"]
            if said
            else []
        ),
        *(
            [
                f"validation accuracy {max(accuracies):g} not reached, or in too few repeats for a median: {wording.listed(missed, NAMED)}"
            ]
            if missed
            else []
        ),
    ]


def _fair(stored: Stored, found: Findings) -> list[str]:
    """Whether it is the same training, and under which conditions."""
    said = [_training(stored)] if found.comparable and not _refuted(stored) else []
    rows = [row for row in stored.comparison.rows if row.unavailable is None and stored.runs[row.id]]
    pairs = [pair for pair in combinations(rows, 2) if matrix.differ_by_contestant(*pair)]
    kinds: dict[str, list[tuple[Row, Row, conditions.Division]]] = {}
    for one, other in pairs:
        division = conditions.division(stored, one, other)
        kinds.setdefault(division.kind, []).append((one, other, division))
    for kind, own in kinds.items():
        one, other, division = min(own, key=lambda each: len(each[2].differing))
        if kind != "neither" or not division.differing:
            said.append(division.words)
            continue
        levels = {row.spec.switches for row in rows}
        even_out = " (--switches closed evens them out)" if levels <= {"plain", "usual"} else ""
        said.append(f"other conditions: {_conditions(stored, one, other)}{even_out}")
    return said


def _conditions(stored: Stored, one: Row, other: Row) -> str:
    """The conditions that differ: `pytorch NCHW, eager; tensorflow NHWC, graph`."""
    ours, theirs = (conditions.of_row(stored, row) for row in (one, other))
    differing = [name for name in ours if ours[name] != theirs[name]]
    said = [
        ", ".join(each[name] if name in _TELLING else f"{conditions.CONDITIONS[name]} {each[name]}" for name in differing)
        for each in (ours, theirs)
    ]
    return f"{one.contestant} {said[0]}; {other.contestant} {said[1]}"


def _training(stored: Stored) -> str:
    """Whether it is proved to be the same training, in a few words."""
    comparison, proof = stored.comparison, stored.comparison.proof
    headline = comparison.headline
    if proof is None:
        return "the same training? not examined (--proof full)"
    steps = sum(len(each.steps) for each in proof.spot_checks if not each.faults)
    of_runs = f", and {wording.count(steps, 'step')} of the timed runs are right" if steps else ""
    if headline == "proved":
        return f"the same training: proved in float64{of_runs}"
    if headline == IN_FLOAT64:
        return f"the same training in float64: proved{of_runs}; not every timed row is"
    return f"the same training: {proof.sentence.removesuffix('.')}"


def _trouble(stored: Stored, summaries: Sequence[Summary], found: Findings) -> list[str]:
    """What changes the answer, a line each."""
    said = [*cautions.nothing_can_run(stored.comparison)]
    if not found.comparable:
        proof = stored.comparison.proof
        faults = [f"{each.row}: {fault}" for each in (proof.spot_checks if proof else []) for fault in each.faults]
        wrong = [each for each in found.sameness if "NOT" in each]
        said += (faults or wrong)[:1] or ["the timed runs did not train the same"]
    said += [
        f"{summary.name} {summary.status}: {summary.reason or 'no reason given'}"
        for summary in summaries
        if summary.status in (*FAILURES, *UNFINISHED)
    ]
    kinds = (
        ("other work disturbed", [each for each in summaries if each.disturbed], "rely on no time of them"),
        (
            "too short to tell whether other work disturbed them",
            [each for each in summaries if each.unwatched and not each.disturbed],
            "do not rely on their times",
        ),
        (
            "some work may not be timed",
            [each for each in summaries if each.clock_caution is not None and not each.disturbed],
            "do not rely on their times",
        ),
        ("accuracy no better than guessing", [each for each in summaries if each.guesses], "train for longer"),
    )
    for what, rows, so in kinds:
        if rows:
            which = f"all {wording.count(len(rows), 'row')}" if len(rows) == len(summaries) else _named(rows)
            said.append(f"{what}: {which}; {so}")
    said += [f"Set aside: {reason}" for reason in stored.set_aside]
    said += cautions.signature(stored)
    return said


def _named(rows: Iterable[Summary]) -> str:
    return wording.listed([each.name for each in rows], NAMED)


def _chart(
    summaries: Sequence[Summary], questions: Sequence[Question], short: Mapping[str, str], found: Findings
) -> Chart | None:
    """The rows by their pace, the fastest first. Each with its verdict, and the accuracy."""
    timed = [each for each in summaries if each.epoch_seconds is not None]
    if not timed:
        return None
    timed.sort(key=lambda each: each.epoch_seconds.median if each.epoch_seconds else 0.0)
    others = [each for each in summaries if each.epoch_seconds is None]
    scored = any(each.test.accuracy is not None for each in summaries)
    bars: list[Bar] = []
    for summary in (*timed, *others):
        pace = summary.epoch_seconds.median if summary.epoch_seconds is not None else None
        against, mark = _against(summary, questions, found)
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


def _against(summary: Summary, questions: Sequence[Question], found: Findings) -> tuple[str, str]:
    """(whom a row is held against, and how many times as fast it is; the mark of the verdict)."""
    if not found.comparable:
        return "", ""
    own = [each for each in questions if not each.is_of_contestants and each.fast.id == summary.id]
    # A row of several pairs shows the nearest rival that it beats.
    pairs = [each for each in questions if each.is_of_contestants and each.times[0].id == summary.id]
    own += sorted(pairs, key=lambda each: (not each.is_decided, each.times[2].value))
    if not own:
        return "", ""
    question, judged = own[0], own[0].judged
    is_mode = not question.is_of_contestants
    rival = "serial" if is_mode else question.times[1].contestant
    if judged.disturbed:
        return f"{rival} disturbed", "?"
    ratio = judged.ratio if is_mode else question.times[2]
    mark = "~" if judged.verdict == "no difference that matters" else "?"
    if question.is_decided:
        mark = "+" if ratio.value >= 1.0 else "-"
    return f"{rival} {_range(ratio)}", mark


def _next(stored: Stored, questions: Sequence[Question], folder: Path) -> list[tuple[str, str]]:
    """What to do where something is not decided."""
    comparison = stored.comparison
    is_open = any(not each.is_decided and each.judged.verdict != "no difference that matters" for each in questions)
    if not is_open or comparison.argv[:1] != ["run"]:
        return []
    if any(each.judged.disturbed for each in questions):
        return [("again", wording.command("run", "--resume", str(folder), "--again", "disturbed"))]
    repeats = max(VERDICT_PAIRS, 2 * comparison.repeats if comparison.repeats >= VERDICT_PAIRS else 0)
    return [("more repeats", wording.command("run", "--resume", str(folder), "--repeats", str(repeats)))]


def _remarks(stored: Stored, summaries: Sequence[Summary], questions: Sequence[Question], found: Findings) -> list[str]:
    """What a reader would wonder about, and how many cautions there are."""
    said: list[str] = []
    accuracies = {each.test.accuracy.median for each in summaries if each.test.accuracy is not None}
    images = {each.test_examples for each in summaries if each.test_examples}
    if len(accuracies) > 1 and len(images) == 1 and found.comparable:
        said.append(
            "Accuracies of the same training may differ by rounding alone: "
            f"one of {wording.count(number := images.pop(), 'test image')} is {percent(1 / number, 1)}."
        )
    tested = [each.judged for each in questions if each.judged.p is not None]
    is_open = any(each.verdict == "no difference shown" and not each.disturbed for each in tested)
    if is_open and (least := resolution([each.ratio for each in tested], tested[0].family)) is not None:
        difference = f"{float(f'{100 * least:.2g}'):g} %"
        said.append(
            f"Not decided is not equal: at this noise, a difference of {difference} is found in {percent(POWER)} of cases."
        )
    departing = [row for row in stored.comparison.rows if row.spec.departs is not None and stored.runs[row.id]]
    if departing:
        named = wording.listed(dict.fromkeys(row.spec.variant for row in departing), NAMED)
        said.append(f"Not serial's mathematics, by design: {named}.")
    if stored.signature is not None and stored.signature.confirmed:
        said.append(stored.signature.sentence)
    if number := len(found.troubles) + len(found.environments):
        said.append(f"{wording.count(number, 'caution')}: {FULL}.")
    return said

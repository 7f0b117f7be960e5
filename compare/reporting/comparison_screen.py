"""The first screen of a comparison: who is faster, whether going parallel pays, and whether it is fair.

It is made of the judged facts that results.json holds. A row without a verdict gets none here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from common.machine.machine import processors
from compare.cli import wording
from compare.cli.terminal import FULL
from compare.cli.wording import percent
from compare.judgement import cautions, conditions, statement_words
from compare.judgement.findings import ComparisonFindings
from compare.judgement.row_figures import FAILURES, UNFINISHED, Summary
from compare.judgement.run_pairs import uses_accelerator, was_interrupted
from compare.judgement.summary import compared_row_ids
from compare.reporting.screen import LEGEND, MOST_SENTENCES, Bar, Chart, Paragraph, Screen
from compare.results import store
from compare.results.store import IN_FLOAT64, StoredComparison
from compare.running import matrix
from compare.running.matrix import Row
from compare.statistics import verdict_words
from compare.statistics.statistics import POWER, VERDICT_PAIRS, JudgedRatio, Ratio, resolution

MAX_NAMED = 2
"""Most rows or configurations that a sentence names. It counts the others."""
_PART_WORDS = {"training": "", "input": ", the input path alone", "compute": ", the model alone on one batch"}
_DECIDED, _DOUBTFUL, _TOO_FEW = "decided", "do not rely on this", "too few repeats to tell"
_SELF_EXPLANATORY_CONDITIONS = ("layout", "precision", "graph")
"""Conditions whose values need no name beside them."""


class RowRatio(NamedTuple):
    """A judged ratio of two rows."""

    slow: Summary
    """Row whose seconds are the numerator."""
    fast: Summary
    judged: JudgedRatio

    @property
    def is_of_contestants(self) -> bool:
        return self.slow.contestant != self.fast.contestant

    @property
    def is_of_inputs(self) -> bool:
        return not self.is_of_contestants and self.slow.is_parallel == self.fast.is_parallel

    @property
    def is_decided(self) -> bool:
        return self.judged.verdict in ("above", "below") and not self.judged.disturbed and not self.is_in_doubt

    @property
    def is_in_doubt(self) -> bool:
        return self.slow.in_doubt or self.fast.in_doubt

    @property
    def times(self) -> tuple[Summary, Summary, Ratio]:
        """(the faster row, the slower one, how many times as fast)."""
        return verdict_words.faster_side(self.judged.ratio, self.fast, self.slow)


def screen(stored: StoredComparison, summaries: Sequence[Summary], findings: ComparisonFindings, folder: Path) -> Screen:
    """The first screen of a comparison in a folder. The report adds the paths of its files."""
    disagreements = [statement for statement in findings.divisions if statement.kind == "divisions_disagree"]
    short, proof = _short_names(summaries), _proof_failures(stored, summaries)
    ratios = [] if proof else _ratios(stored, summaries, findings)
    answers = [
        *(
            [Paragraph("Not proved", proof, "bad")]
            if proof
            else [Paragraph("Faster", _faster(findings, summaries, ratios, short))]
        ),
        Paragraph("Settings", [] if proof else statement_words.sentences(disagreements), "warn"),
        Paragraph("Parallel", _parallel(ratios, short)),
        Paragraph("Input", _inputs(ratios, short)),
        Paragraph("Target", _target(summaries, short)),
        Paragraph("Fair?", _fair(stored, summaries, short, findings)),
        Paragraph("Trouble", _trouble(stored, summaries, findings), "bad"),
    ]
    return Screen(
        subject=subject_parts(stored),
        # Nothing of an answer is cut: what is left out could be its contrary.
        answers=[answer._replace(least=MOST_SENTENCES) for answer in answers],
        chart=_chart(summaries, ratios, short, findings),
        remarks=_remarks(stored, summaries, ratios, findings),
        next=_next(stored, summaries, ratios, folder),
    )


def subject_parts(stored: StoredComparison) -> list[str]:
    """Parts of the subject line: `simple_cnn on digits: 3 epochs, batch 64, 7 repeats`, `2 cores of AMD EPYC`, `28 runs took
    2 min 19 s`.
    """
    comparison = stored.comparison
    spec = comparison.rows[0].spec
    length = wording.count(spec.epochs, "epoch") if spec.epochs is not None else wording.count(spec.steps or 0, "step")
    seeds = f", {wording.count(len(comparison.settings.seeds), 'seed')}" if comparison.settings.seeds else ""
    most, fewest = comparison.settings.repeats, min(len(comparison.repeats_of(row.id)) for row in comparison.rows)
    repeats = f"{fewest} to {most} repeats" if fewest < most else wording.count(most, "repeat")
    cores = max(row.spec.cores for row in comparison.rows)
    runs = [run for repeats in stored.runs.values() for run in repeats.values()]
    wall_seconds = [run.phases.wall_seconds for run in runs if run.phases]
    planned = sum(len(comparison.repeats_of(row.id)) for row in comparison.rows if row.unavailable is None)
    count_words = (
        wording.count(len(wall_seconds), "run")
        if len(wall_seconds) >= planned
        else f"{len(wall_seconds)} of {wording.count(planned, 'run')}"
    )
    gpus = comparison.machine.get("gpus") if any(uses_accelerator(run.device) for run in runs) else None
    short = str(comparison.machine.get("processor") or "").replace("(R)", "").removesuffix(" Processor")
    where = ", ".join(gpus) if gpus else processors({**comparison.machine, "processor": short})
    digits = sorted({run.conditions.get("precision", "float32") for run in runs} | {spec.precision})
    return [
        f"{spec.model_label} on {comparison.data_name}: {length}, batch {spec.global_batch_size}, {repeats}{seeds}"
        f"{f', {wording.joined(digits)}' if digits != ['float32'] else ''}{_PART_WORDS[spec.part]}",
        where if gpus else f"{wording.count(cores, 'core')} of {where}",
        *([f"{count_words} took {_time_words(sum(wall_seconds))}"] if wall_seconds else []),
    ]


def _time_words(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _ratios(stored: StoredComparison, summaries: Sequence[Summary], findings: ComparisonFindings) -> list[RowRatio]:
    by_id = {summary.id: summary for summary in summaries}
    ratios: list[RowRatio] = []
    for judged in findings.verdicts:
        first, second = compared_row_ids(stored.comparison, judged)
        # A pair's ratio is seconds of the second over those of the first, a mode's those of serial over its own.
        ratios.append(RowRatio(by_id[second], by_id[first], judged))
    return ratios


def _short_names(summaries: Sequence[Summary]) -> dict[str, str]:
    """Configuration of each row, by row id. Cores are left out if all serial rows have the same number."""
    cores = {summary.cores for summary in summaries if not summary.is_parallel}
    cores_words = f"serial, {wording.count(cores.pop(), 'core')}" if len(cores) == 1 else ""
    return {
        summary.id: summary.configuration.replace(cores_words, "serial") if cores_words else summary.configuration
        for summary in summaries
    }


def _proof_failures(stored: StoredComparison, summaries: Sequence[Summary]) -> list[str]:
    """Say why the proof failed. Empty if it did not fail."""
    proof = stored.comparison.proof
    if proof is None or proof.verdict != "not proved":
        return []
    names = {summary.id: summary.name for summary in summaries}
    at_fault = list(dict.fromkeys(names[check.row] for check in proof.spot_checks if check.faults and check.row in names))
    reasons = [f"the timed runs of {wording.joined(at_fault)} did not train as planned (below)"] if at_fault else []
    if failed := [rung for rung in proof.rungs if rung.get("status") == "failed"]:
        name = str(failed[0].get("name")).lstrip("0123456789 ")
        who = ", ".join(
            str(value) for value in (failed[0].get("framework"), failed[0].get("mode"), failed[0].get("where")) if value
        )
        reasons.append(f"{len(failed)} of {len(proof.rungs)} checks failed, first: {name}{f' ({who})' if who else ''}")
    # A proof may fail in other ways: it may have broken off.
    reasons = reasons or [proof.reason]
    return [*reasons, "the times may be those of two different trainings"]


def _faster(
    findings: ComparisonFindings, summaries: Sequence[Summary], ratios: Sequence[RowRatio], short: Mapping[str, str]
) -> list[str]:
    if not findings.comparable:
        return ["No verdict: the timed runs did not train the same."]
    contestant_ratios = [row_ratio for row_ratio in ratios if row_ratio.is_of_contestants]
    if not contestant_ratios:
        return [] if ratios else [f"No verdict: {_nothing_compared(summaries)}"]
    sentences: list[str] = []
    for pair in dict.fromkeys(
        frozenset((row_ratio.slow.contestant, row_ratio.fast.contestant)) for row_ratio in contestant_ratios
    ):
        pair_ratios = [
            row_ratio for row_ratio in contestant_ratios if {row_ratio.slow.contestant, row_ratio.fast.contestant} == pair
        ]
        kinds: dict[tuple[str, str], list[RowRatio]] = {}
        for row_ratio in pair_ratios:
            kinds.setdefault((_kind(row_ratio), row_ratio.times[0].contestant if row_ratio.is_decided else ""), []).append(
                row_ratio
            )
        is_alone = len(set(short.values())) == 1
        for (kind, _), same_kind in sorted(kinds.items(), key=lambda entry: entry[0][0] != _DECIDED):
            places = ["" if is_alone else short[row_ratio.fast.id] for row_ratio in same_kind]
            sentences.append(_pair_sentence(kind, same_kind, places))
    return sentences


def _nothing_compared(summaries: Sequence[Summary]) -> str:
    """Say why no two rows have a ratio."""
    finished = [summary for summary in summaries if summary.repeats_done]
    if finished and all(summary.epoch_seconds is None for summary in finished):
        return "no epoch could be timed. Train for longer (--epochs), or in smaller batches."
    if len({summary.contestant for summary in summaries}) == 1:
        return "one framework alone has nothing to be compared with."
    return "no two rows can be compared."


def _pair_sentence(kind: str, ratios: Sequence[RowRatio], places: Sequence[str]) -> str:
    """Say which of two contestants is faster in configurations with the same kind of verdict. The only one has no name."""
    first = ratios[0]
    one, other, _ = first.times
    if kind == "disturbed":
        where = _in(wording.listed(places, MAX_NAMED) if all(places) else "")
        return f"{one.contestant} or {other.contestant}: not known{where}, as other programs took cores"
    quicker = [row_ratio.times[0].contestant for row_ratio in ratios]
    others = [
        f"{'' if name == one.contestant else f'{name} '}{_times(row_ratio)}{_in(place)}"
        for name, row_ratio, place in zip(quicker, ratios, places, strict=True)
    ][1:MAX_NAMED]
    num_unnamed = len(ratios) - 1 - len(others)
    more = [f"and {wording.count(num_unnamed, 'configuration')} more"] if num_unnamed else []
    text = (
        f"{_times(first)} times as fast as {other.contestant}{_in(places[0])}{verdict_words.within_margin_text(first.judged)}"
    )
    text = f"{one.contestant}: {text}" if kind == _DECIDED else f"{kind}: {one.contestant} {text}"
    return "; ".join([text, *others, *more])


def _in(place: str) -> str:
    return f" in {place}" if place else ""


def _kind(row_ratio: RowRatio) -> str:
    """The verdict in words. Verdicts of the same kind share a sentence."""
    if row_ratio.judged.disturbed:
        return "disturbed"
    if row_ratio.is_in_doubt:
        return _DOUBTFUL
    if row_ratio.is_decided:
        return _DECIDED
    if row_ratio.judged.verdict == _TOO_FEW:
        return f"{_TOO_FEW} ({row_ratio.judged.ratio.n} of {VERDICT_PAIRS})"
    return verdict_words.verdict_text(row_ratio.judged, when_above="", when_below="", when_neither=row_ratio.judged.verdict)


def _times(row_ratio: RowRatio) -> str:
    return verdict_words.bounded_words(row_ratio.times[2])


def _parallel(ratios: Sequence[RowRatio], short: Mapping[str, str]) -> list[str]:
    """Say which modes pay, those with one verdict together."""
    mode_ratios = [row_ratio for row_ratio in ratios if not (row_ratio.is_of_contestants or row_ratio.is_of_inputs)]
    cores = {row_ratio.fast.cores for row_ratio in mode_ratios}
    serial = f"serial on {wording.count(cores.pop(), 'core')}" if len(cores) == 1 else "serial on as many cores"
    return _gains(mode_ratios, short, serial)


def _inputs(ratios: Sequence[RowRatio], short: Mapping[str, str]) -> list[str]:
    """Say which inputs pay, those with one verdict together."""
    input_ratios = [row_ratio for row_ratio in ratios if row_ratio.is_of_inputs]
    return _gains(input_ratios, short, " or ".join(dict.fromkeys(row_ratio.slow.input_words for row_ratio in input_ratios)))


def _gains(ratios: Sequence[RowRatio], short: Mapping[str, str], base: str) -> list[str]:
    """Say which rows are faster than what they are compared with, the decided ones first.

    Args:
        base: what they are compared with, in words.
    """
    order = {"above": f"faster than {base}", "below": f"slower than {base}", "no difference shown": "no gain shown"}
    kinds: dict[str, list[RowRatio]] = {}
    for row_ratio in ratios:
        kind = (
            order.get(row_ratio.judged.verdict, _kind(row_ratio))
            if _kind(row_ratio) not in ("disturbed", _DOUBTFUL)
            else _kind(row_ratio)
        )
        kinds.setdefault(kind, []).append(row_ratio)
    sentences: list[str] = []
    for kind, same_kind in sorted(
        kinds.items(), key=lambda entry: [*order.values(), entry[0]].index(entry[0])
    ):  # decided ones first
        same_kind.sort(key=lambda row_ratio: -row_ratio.judged.ratio.value)
        names = [f"{row_ratio.fast.contestant} {short[row_ratio.fast.id]}" for row_ratio in same_kind]
        if kind == "disturbed":
            sentences.append(f"not known, as other programs took cores from the runs: {wording.listed(names, MAX_NAMED)}")
            continue
        listed = [
            f"{name} {verdict_words.bounded_words(row_ratio.judged.ratio)}"
            for name, row_ratio in zip(names, same_kind, strict=True)
        ]
        margin_text = verdict_words.within_margin_text(same_kind[0].judged) if len(same_kind) == 1 else ""
        sentences.append(f"{kind}: {wording.listed(listed, MAX_NAMED)}{' times' if len(same_kind) == 1 else ''}{margin_text}")
    return sentences


def _target(summaries: Sequence[Summary], short: Mapping[str, str]) -> list[str]:
    """Say how soon the target validation accuracy was reached. Empty without a target."""
    with_target = [(summary, summary.target) for summary in summaries if summary.target is not None and summary.target.repeats]
    reached = sorted(
        (target.seconds.median, f"{row.contestant} {short[row.id]}")
        for row, target in with_target
        if target.seconds is not None
    )
    missed = [f"{row.contestant} {short[row.id]}" for row, target in with_target if target.seconds is None]
    times = [f"{name} {seconds:.2f} s" for seconds, name in reached]
    if not with_target:
        return []
    target_words = f"validation accuracy {with_target[0][1].accuracy:g}"
    in_time = [f"{target_words} (median of training time): {wording.listed(times, MAX_NAMED)}"]
    not_in_time = [f"{target_words} not reached, or in too few repeats for a median: {wording.listed(missed, MAX_NAMED)}"]
    return in_time * bool(times) + not_in_time * bool(missed)


def _fair(
    stored: StoredComparison, summaries: Sequence[Summary], short: Mapping[str, str], findings: ComparisonFindings
) -> list[str]:
    """Say whether it is the same training, and under which conditions."""
    sentences = _proof_sentences(stored, summaries) if findings.comparable and not _proof_failures(stored, summaries) else []
    rows = [row for row in stored.comparison.rows if row.unavailable is None and stored.runs[row.id]]
    kinds: dict[str, list[tuple[Row, Row, conditions.ComparisonDivision]]] = {}
    for one, other in combinations(rows, 2):
        if matrix.same_except_contestant(one, other):
            division = conditions.division(stored, one, other)
            kinds.setdefault(division.kind, []).append((one, other, division))
    switches = {contestant.name: contestant.switches for contestant in stored.comparison.settings.contestants}
    for kind, pairs in kinds.items():
        one, other, division = min(pairs, key=lambda pair: len(pair[2].differing))
        where = wording.listed(dict.fromkeys(short[row.id] for row, _, _ in pairs), MAX_NAMED)
        place = f" ({where})" if len(kinds) > 1 else ""
        if kind != "neither" or not division.differing:
            sentences.append(f"{division.plain_words}{place}")
            continue
        # Switches that the user has set apart are what is compared.
        on_purpose = switches.get(one.contestant, {}) != switches.get(other.contestant, {})
        levels = {row.spec.switches for row in rows}
        even_out = "; --switches closed makes them equal" if levels <= {"plain", "usual"} and not on_purpose else ""
        first = _differing(stored, one, other)
        others = [
            name
            for name in conditions.CONDITIONS
            if name not in first and any(name in _differing(stored, *pair[:2]) for pair in pairs)
        ]
        also = (
            f"; other rows differ in {wording.joined([conditions.CONDITIONS[name] for name in others])} too" if others else ""
        )
        sentences.append(f"different settings{place}: {_conditions(stored, one, other)}{also}{even_out}")
    return sentences


def _differing(stored: StoredComparison, one: Row, other: Row) -> list[str]:
    ours, theirs = (conditions.row_conditions(stored, row) for row in (one, other))
    return [name for name in ours if ours[name] != theirs.get(name)]


def _conditions(stored: StoredComparison, one: Row, other: Row) -> str:
    """The conditions that differ: `pytorch NCHW, eager; tensorflow NHWC, graph`."""
    ours, theirs = (conditions.row_conditions(stored, row) for row in (one, other))
    differing = _differing(stored, one, other)
    values = [
        ", ".join(
            row_conditions[name] if name in _SELF_EXPLANATORY_CONDITIONS else f"{name.replace('_', ' ')} {row_conditions[name]}"
            for name in differing
        )
        for row_conditions in (ours, theirs)
    ]
    return f"{one.contestant} {values[0]}; {other.contestant} {values[1]}"


def _proof_sentences(stored: StoredComparison, summaries: Sequence[Summary]) -> list[str]:
    """Say whether it is proved to be the same training, in a few words, and which rows are not."""
    comparison, proof = stored.comparison, stored.comparison.proof
    if comparison.rows[0].spec.part != "training":
        return ["a part of the training alone: nothing is learned, so nothing is proved"]
    if proof is None:
        return ["the same training? not examined: the proof was left out"]
    if comparison.headline not in ("proved", IN_FLOAT64):
        return [f"the same training? {proof.verdict}: {proof.reason}"]
    lengths = [rung["steps"] for rung in proof.rungs if rung.get("status") == "passed" and rung.get("precision") == "float64"]
    over = f" over {wording.count(max(lengths), 'step')}" if lengths else ""
    good = [check for check in proof.spot_checks if check.steps and not check.faults]
    steps = sum(len(check.steps) for check in good)
    num_recomputed = sum(len(check.computed) for check in good if not check.shown)
    recomputed_words = f", {num_recomputed} of them by a third program" if num_recomputed else ""
    of_runs = f"; {wording.count(steps, 'step')} of the timed runs checked{recomputed_words}" if steps else ""
    when = " (proof of an earlier comparison)" if proof.remembered else ""
    sentences = [f"the same training: proved in 64-bit numbers{over}{when}{of_runs}"]
    rows_by_verdict: dict[str, list[str]] = {}
    for summary in summaries:
        if summary.repeats_done and summary.parity != "proved":
            rows_by_verdict.setdefault(summary.parity, []).append(summary.name)
    for verdict, rows in rows_by_verdict.items():
        which = "all rows" if len(rows) == len(summaries) else wording.listed(rows, MAX_NAMED)
        as_timed = f"{verdict} for {which} as {'it is' if len(rows) == 1 else 'they are'} timed"
        sentences.append(f"the timed runs of {which} were not fully checked" if verdict == IN_FLOAT64 else as_timed)
    return sentences


def _trouble(stored: StoredComparison, summaries: Sequence[Summary], findings: ComparisonFindings) -> list[str]:
    """Say what changes the answer, a line each: first for the whole comparison, then by rows."""
    sentences = statement_words.sentences([*cautions.nothing_can_run(stored.comparison), *cautions.signature(stored)])
    if not findings.comparable:
        proof = stored.comparison.proof
        faults: dict[str, list[str]] = {}
        for check in proof.spot_checks if proof else []:
            faults.setdefault(check.row, []).extend(check.faults)
        names = {summary.id: summary.name for summary in summaries}
        by_row = [
            f"{names.get(row, row)}: {row_faults[0]}{f'; {len(row_faults) - 1} more' if len(row_faults) > 1 else ''}"
            for row, row_faults in faults.items()
            if row_faults
        ]
        contradictions = statement_words.sentences(
            [statement for statement in findings.sameness if statement.level == "trouble"]
        )
        sentences += by_row or contradictions[:1] or ["the timed runs did not train the same"]
    rows_by_trouble: dict[str, list[Summary]] = {}
    for summary in summaries:
        if summary.doubt:
            rows_by_trouble.setdefault(f"do not rely on these times, {statement_words.DOUBTED_ROW[summary.doubt]}", []).append(
                summary
            )
        if summary.guesses:
            rows_by_trouble.setdefault("accuracy no better than guessing", []).append(summary)
    for trouble, rows in rows_by_trouble.items():
        which = f"all {wording.count(len(rows), 'row')}" if len(rows) == len(summaries) else _listed_names(rows)
        longer = cautions.longer(stored, summaries) if trouble.endswith(statement_words.DOUBTED_ROW["unwatched"]) else None
        sentences.append(f"{trouble}: {which}{f'. {statement_words.advice_words(longer)}' if longer is not None else ''}")
    sentences += [
        f"{summary.name} {summary.status}: {summary.reason or 'no reason given'}"
        for summary in summaries
        if summary.status in (*FAILURES, *UNFINISHED)
    ]
    return [*sentences, *(f"Set aside: {fault.reason}" for fault in stored.set_aside)]


def _listed_names(rows: Sequence[Summary]) -> str:
    return wording.listed([summary.name for summary in rows], MAX_NAMED)


def _chart(
    summaries: Sequence[Summary], ratios: Sequence[RowRatio], short: Mapping[str, str], findings: ComparisonFindings
) -> Chart | None:
    """Sort the rows by their pace, the fastest first. Each has its verdict, and the accuracy."""
    timed = [summary for summary in summaries if summary.epoch_seconds is not None]
    if not timed:
        return None
    timed.sort(key=lambda summary: summary.epoch_seconds.median if summary.epoch_seconds else 0.0)
    others = [summary for summary in summaries if summary.epoch_seconds is None]
    has_scores = any(summary.test.accuracy is not None for summary in summaries)
    bars: list[Bar] = []
    for summary in (*timed, *others):
        pace = summary.epoch_seconds.median if summary.epoch_seconds is not None else None
        rival_words, mark = _rival_and_mark(summary, ratios, findings)
        accuracy = summary.test.accuracy
        cells = [rival_words, mark, *([percent(accuracy.median, 1) if accuracy else ""] if has_scores else [])]
        value_text = _seconds(pace) if pace is not None else summary.status
        bars.append(Bar((summary.contestant, short[summary.id]), pace, value_text, cells, is_doubtful=summary.in_doubt))
    headings = ("seconds per epoch (median, shorter is faster)", "seconds per epoch (median)", "seconds per epoch", "s/epoch")
    is_judged = any(bar.cells[0] for bar in bars)
    columns = ["against" if is_judged else "", "", *(["test acc."] if has_scores else [])]
    return Chart(headings, columns, bars, LEGEND if any(bar.cells[1] for bar in bars) else "")


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 0.095 else f"{value:.2g}"


def _rival_and_mark(summary: Summary, ratios: Sequence[RowRatio], findings: ComparisonFindings) -> tuple[str, str]:
    """Return whom a row is compared with and how many times as fast it is, and the mark of the verdict."""
    if not findings.comparable:
        return "", ""
    against_base = [other for other in ratios if not other.is_of_contestants and other.fast.id == summary.id]
    candidates = [other for other in against_base if not other.is_of_inputs]
    # A row of several pairs shows the nearest rival that it beats.
    pairs = [other for other in ratios if other.is_of_contestants and other.times[0].id == summary.id]
    candidates += sorted(pairs, key=lambda other: (not other.is_decided, other.times[2].value))
    candidates += [other for other in against_base if other.is_of_inputs]
    if not candidates:
        return "", ""
    row_ratio, judged = candidates[0], candidates[0].judged
    is_mode = not row_ratio.is_of_contestants
    base = row_ratio.slow.input_words if row_ratio.is_of_inputs else "serial"
    rival = base if is_mode else row_ratio.times[1].contestant
    if judged.disturbed:
        return f"{rival} not known", "?"
    ratio = judged.ratio if is_mode else row_ratio.times[2]
    mark = "~" if judged.verdict == "no difference that matters" and not row_ratio.is_in_doubt else "?"
    if row_ratio.is_decided:
        mark = "+" if ratio.value >= 1.0 else "-"
    times = verdict_words.range_words(ratio) if ratio.is_bounded else f"{ratio.value:.2f}"  # a chart has little room
    return f"{rival} {times}", mark


def _next(
    stored: StoredComparison, summaries: Sequence[Summary], ratios: Sequence[RowRatio], folder: Path
) -> list[tuple[str, str]]:
    """Name what to do where something is missing, wrong or not decided."""
    comparison, proof = stored.comparison, stored.comparison.proof
    faulty = [check for check in (proof.spot_checks if proof else []) if check.faults]
    if faulty:
        return [("what was recorded", str(store.run_folder(folder, faulty[0].row, faulty[0].repeat)))]
    if comparison.argv[:1] != ["run"]:
        return []
    resume = ("run", "--resume", str(folder))
    if any(summary.status in UNFINISHED for summary in summaries) or any(
        was_interrupted(run) for runs in stored.runs.values() for run in runs.values()
    ):
        return [("continue", wording.command(*resume))]
    if any(row_ratio.judged.disturbed for row_ratio in ratios):
        return [("again", wording.command(*resume, "--again", "disturbed"))]
    if any(summary.unwatched for summary in summaries):
        return []  # more repeats of such runs decide nothing
    if any(not row_ratio.is_decided and row_ratio.judged.verdict != "no difference that matters" for row_ratio in ratios):
        repeats = max(VERDICT_PAIRS, 2 * comparison.settings.repeats if comparison.settings.repeats >= VERDICT_PAIRS else 0)
        return [("more repeats", wording.command(*resume, "--repeats", str(repeats)))]
    return []


def _remarks(
    stored: StoredComparison, summaries: Sequence[Summary], ratios: Sequence[RowRatio], findings: ComparisonFindings
) -> list[str]:
    """Say what a reader would wonder about, and how many cautions there are."""
    remarks: list[str] = []
    tested = [row_ratio.judged for row_ratio in ratios if row_ratio.judged.p is not None]
    is_open = any(judged.verdict == "no difference shown" and not judged.disturbed for judged in tested)
    if is_open and (least := resolution([judged.ratio for judged in tested], tested[0].family)) is not None:
        difference = verdict_words.difference_words(least)
        remarks.append(
            f"Not decided is not equal: a difference of {difference} shows in {percent(POWER)} of cases, "
            "a smaller one in fewer."
        )
    spec = stored.comparison.rows[0].spec
    proved = [
        summary for summary in summaries if summary.parity in ("proved", IN_FLOAT64) and summary.test.accuracy is not None
    ]
    accuracies = {summary.test.accuracy.median for summary in proved if summary.test.accuracy is not None}
    images = {summary.test_examples for summary in proved if summary.test_examples}
    is_one_training = findings.comparable and not stored.comparison.settings.seeds and not spec.optimizer.native
    if len(accuracies) > 1 and len(images) == 1 and is_one_training and not _proof_failures(stored, summaries):
        remarks.append(
            "Accuracies may differ, as rounding leads to other weights: "
            f"one of {wording.count(number := images.pop(), 'test image')} is {percent(1 / number, 1)}."
        )
    inexact_rows = [row for row in stored.comparison.rows if row.spec.not_serial_because is not None and stored.runs[row.id]]
    if inexact_rows:
        modes = wording.listed(dict.fromkeys(row.spec.variant for row in inexact_rows), MAX_NAMED)
        remarks.append(f"These train differently from serial on purpose: {modes}.")
    if stored.signature is not None and stored.signature.confirmed:
        remarks.append(stored.signature.sentence)
    if number := len(statement_words.sentences([*findings.troubles, *findings.environments], summaries)):
        remarks.append(f"{wording.count(number, 'caution')} about these figures: {FULL} lists all.")
    most_cores = max((row_ratio.fast.cores for row_ratio in ratios if row_ratio.judged.disturbed), default=1)
    if most_cores > 1 and most_cores >= (stored.comparison.machine.get("logical_cores") or 0):
        remarks.append("Is this machine never idle? Fewer cores (--cores), in a new folder, leave the rest to other work.")
    return remarks

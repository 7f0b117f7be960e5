"""What the figures allow to be said, in sentences that stand with the tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from common.artifacts.schema import RunResult
from common.frozen import Frozen
from common.training.loop import relative_difference
from compare.core import statistics, wording
from compare.core.statistics import Judged, interval_words
from compare.execution.store import ProofRecord, Stored
from compare.judgement import inexact_modes
from compare.judgement.summary import FAILURES, Family, Summary, family, measured, seconds_apart, serial_of

FIRST_STEP_TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
"""Relative difference of the first losses of the timed runs, before any update: rounding, and no more."""


WORTH_SAYING = 0.1
"""Part of the training time spent waiting for input below which the model alone bounds a run."""

CROWDED_FROM = 2.0
"""Load average over logical cores from which a run is said to have begun on a busy machine: earlier runs leave less."""

SLOWED_BELOW = 0.9
"""Clock over that of the fastest row with as many cores from which a row is said to have been slowed."""

FALLEN_FROM = 0.1
"""Accuracy below that of its best epoch from which a run is said to have broken down: small splits waver by less."""

RISEN_FROM = 2.0
"""Training loss over that of its best epoch from which it is, too, where that is also more than it began with."""

DISTURBED = " Other work disturbed it: do not rely on this."
UNWATCHED = " Too short to tell whether other work disturbed it: do not rely on this."


class Findings(Frozen):
    """Sentences by subject; each list may be empty."""

    sameness: list[str]
    """The proof, and what the timed runs themselves show."""
    comparable: bool
    """Whether the timed runs had the same data, weights and order, and the same first step up to rounding."""
    frameworks: list[str]
    """Which framework is faster, for each configuration that both ran."""
    modes: list[str]
    """Which parallel modes pay."""
    verdicts: list[Judged]
    """Behind the sentences on frameworks and modes: every comparison that was judged."""
    surety: list[str]
    """How sure those sentences are, and how many they are."""
    scores: list[str]
    """Accuracy over seeds, and how soon the accuracy that was asked for was reached."""
    departures: list[str]
    """Modes that are not meant to be serial's mathematics, and what came of them."""
    bounds: list[str]
    """Runs that wait for their input, and for how much of their training."""
    troubles: list[str]
    """Runs that failed or are missing, broke their budget or did not get it."""


def findings(stored: Stored, summaries: Sequence[Summary]) -> Findings:
    comparable = _comparable(stored, summaries)
    judged = family(stored, summaries) if comparable else Family([], {})
    return Findings(
        sameness=_sameness(stored, summaries),
        comparable=comparable,
        frameworks=_frameworks(judged),
        modes=_modes(stored, summaries, judged),
        verdicts=judged.judged,
        surety=[sentence] if (sentence := statistics.family_words(judged.judged)) else [],
        scores=[sentence for summary in summaries for sentence in _scores(summary)],
        departures=inexact_modes.sentences(stored, summaries),
        bounds=[sentence for summary in summaries if (sentence := _bound(summary))],
        troubles=_troubles(stored, summaries),
    )


def _comparable(stored: Stored, summaries: Sequence[Summary]) -> bool:
    runs = _all_runs(stored)
    hashes = [{run.data_hash for run in runs} - {None}]
    for same_seed in _by_seed(runs):
        hashes.append({run.weights_hash for run in same_seed} - {None})
        for as_long in _by_length([run for run in same_seed if run.status == "ok"]):
            hashes.append({run.order_hash for run in as_long} - {None})
    repeats = [same_seed for each in stored.runs.values() for same_seed in _by_seed(list(each.values()))]
    known = [[run.first_step_loss for run in each if run.first_step_loss is not None] for each in repeats]
    alike = all(relative_difference(min(losses), max(losses)) <= FIRST_STEP_TOLERANCE["float32"] for losses in known if losses)
    return alike and all(len(each) <= 1 for each in hashes) and all(_agrees(summary) for summary in summaries)


def _all_runs(stored: Stored) -> list[RunResult]:
    return [result for repeats in stored.runs.values() for result in repeats.values()]


def _by_seed(runs: Sequence[RunResult]) -> list[list[RunResult]]:
    """Runs that are meant to be the same training, seed by seed."""
    seeds = dict.fromkeys(run.spec.seed for run in runs)
    return [[run for run in runs if run.spec.seed == seed] for seed in seeds]


def _by_length(runs: Sequence[RunResult]) -> list[list[RunResult]]:
    """Runs that ended after the same number of epochs."""
    lengths = dict.fromkeys(len(run.epochs) for run in runs)
    return [[run for run in runs if len(run.epochs) == length] for length in lengths]


def _agrees(summary: Summary) -> bool:
    tolerance = FIRST_STEP_TOLERANCE[summary.precision]
    return summary.first_step_difference is None or summary.first_step_difference <= tolerance


def _sameness(stored: Stored, summaries: Sequence[Summary]) -> list[str]:
    proof = stored.comparison.proof
    runs = _all_runs(stored)
    said = "not claimed: it was not examined"
    if proof:
        said = f"{proof.verdict}: {proof.sentence.removeprefix(f'{proof.verdict}: ')}"
    sentences = [f"Identical training: {said.removesuffix('.')}."]
    sentences += [f"{mode}: not claimed: {reason}." for mode, reason in (proof.not_claimed if proof else {}).items()]
    sentences += [
        f"{mode}: held against {other}. The serial runs here see whole batches."
        for mode, other in (proof.held_against if proof else {}).items()
    ]
    known = [summary for summary in summaries if summary.first_step_difference is not None]
    if known:
        worst = max(known, key=lambda summary: summary.first_step_difference or 0.0)
        what = f"differ between the frameworks by at most {worst.first_step_difference:.1e} (relative; {worst.mode})"
        if not worst.first_step_difference:
            what = "are the same number in all frameworks"
        grown = _growth(proof)
        grows = f" It grows by rounding, {grown}: so float32 scores differ in the end." if grown else ""
        agrees = "agrees" if all(map(_agrees, known)) else "DOES NOT AGREE: figures do not compare"
        tolerance = FIRST_STEP_TOLERANCE[worst.precision]
        sentences.append(
            f"Timed configuration: {agrees}: the first {worst.precision} losses {what}, tolerance {tolerance:.0e}.{grows}"
        )
    fewer = {f"{run.framework} with {switch}" for run in runs for switch in run.reduced}
    if fewer:
        sentences.append(
            f"Fewer digits than the precision says: {', '.join(sorted(fewer))}. Those first losses are held against no others."
        )
    if any(summary.part != "training" for summary in summaries):
        return [*sentences, *filter(None, [_equal([runs], "data", lambda result: result.data_hash)])]
    sentences += filter(
        None,
        [
            _equal([runs], "data", lambda result: result.data_hash),
            _equal(_by_seed(runs), "initial weights", lambda result: result.weights_hash),
            _same_order([run for run in runs if run.status == "ok"]),
        ],
    )
    return sentences


def _same_order(runs: Sequence[RunResult]) -> str | None:
    """Of runs that trained as long as each other: with `best_epoch.patience` each may end when it will."""
    by_seed = _by_seed(runs)
    by_length = [as_long for same_seed in by_seed for as_long in _by_length(same_seed)]
    said = _equal(by_length, "order of examples", lambda result: result.order_hash)
    if said is None or len(by_length) == len(by_seed):
        return said
    if all(len(each) == 1 for each in by_length):
        return "Order of examples: the runs ended after different numbers of epochs, so that it cannot be compared."
    return f"{said} Only runs that ended after the same number of epochs are compared in this."


def _growth(proof: ProofRecord | None) -> str | None:
    """How the float32 losses of the timed configuration part, as the proof has seen it; None where it has not looked."""
    rungs = proof.rungs if proof else []
    shown = [rung["where"] for rung in rungs if rung["name"] == "5 losses" and rung["precision"] == "float32"]
    return next((str(where).removeprefix("grows by rounding: ") for where in shown if where), None)


def _equal(groups: Sequence[Sequence[RunResult]], what: str, pick: Callable[[RunResult], str | None]) -> str | None:
    """Whether the runs of each group have the same of something; several groups are those of several seeds."""
    known = [[value for run in runs if (value := pick(run)) is not None] for runs in groups]
    number = sum(map(len, known))
    if number == 0:
        return None
    if number == 1:
        return f"Same {what}: one run alone has nothing to be compared with."
    seeds = len({run.spec.seed for runs in groups for run in runs})
    within = f", within each of {seeds} seeds" if len(groups) > 1 and seeds > 1 else ""
    kinds = max(len(set(each)) for each in known)
    if kinds == 1:
        return f"Same {what} in all {number} runs that recorded it{within}."
    return f"NOT the same {what}: {kinds} different among {number} runs{within}. Their figures do not compare."


def doubt_of(*compared: Summary) -> str:
    """What a sentence on the times of these rows has to say besides; empty where nothing disturbed them."""
    if any(summary.disturbed for summary in compared):
        return DISTURBED
    return UNWATCHED if any(summary.unwatched for summary in compared) else ""


def _frameworks(judged: Family) -> list[str]:
    sentences: list[str] = []
    for first, second, seconds in judged.frameworks:
        doubt = doubt_of(first, second)
        sentences.append(f"{first.configuration}: {statistics.faster(seconds, first.framework, second.framework)}.{doubt}")
    return sentences


def _modes(stored: Stored, summaries: Sequence[Summary], judged: Family) -> list[str]:
    by_id = {summary.id: summary for summary in summaries}
    sentences: list[str] = []
    for row in stored.comparison.rows:
        serial = serial_of(stored.comparison, row)
        if row.id in judged.modes and serial is not None:
            sentences.append(_pays(by_id[row.id], judged.modes[row.id], by_id[serial.id]))
    return sentences


def _pays(summary: Summary, speedup: Judged, serial: Summary) -> str:
    cores = f"{wording.count(summary.cores, 'core')}"
    times = f"{interval_words(speedup.ratio)} times serial on {cores}"
    doubt = doubt_of(summary, serial)
    return f"{summary.name}: {statistics.pays(speedup)}; {times}{statistics.surety(speedup)}.{doubt}"


def _scores(summary: Summary) -> list[str]:
    sentences: list[str] = []
    over = summary.test_accuracy_over_seeds
    if over is not None:
        quartiles = f"quartiles {over.low:.4f} to {over.high:.4f}"
        sentences.append(f"{summary.name}: test accuracy {over.median:.4f} over {over.n} seeds ({quartiles}).")
    target, pace = summary.target, summary.epoch_seconds
    if target is not None and target.repeats:
        repeats = f"{target.reached} of {target.repeats} repeats"
        said = f"validation accuracy {target.accuracy:g} was not reached in {_epochs(summary.epochs_done)}"
        if target.reached:
            said = f"validation accuracy {target.accuracy:g} was reached in {repeats}, which leaves no median"
        if target.seconds is not None and target.epochs is not None:
            seconds, epochs = target.seconds, target.epochs
            spread = f" ({seconds.low:.2f} to {seconds.high:.2f})" if seconds.n > 1 else ""
            said = f"validation accuracy {target.accuracy:g} after {seconds.median:.2f} s{spread} and {_epochs(epochs.median)}"
            said += f", in {repeats}" if target.repeats > 1 else ""
        sentences.append(f"{summary.name}: {said}; {pace.median:.2f} s per epoch." if pace else f"{summary.name}: {said}.")
    return sentences


def _epochs(number: float) -> str:
    return f"{number:g} epoch{'' if number == 1 else 's'}"


def _bound(summary: Summary) -> str | None:
    wait = summary.input_wait
    if summary.part != "training" or wait is None or wait < WORTH_SAYING:
        return None
    what = "the input bounds it" if wait > 0.5 else "both count"
    return f"{summary.name}: waits {wait:.0%} of its training time for its input: {what}.{doubt_of(summary)}"


def _cut_short(summary: Summary, runs: Sequence[RunResult]) -> list[str]:
    """What became of the runs of a row that did not get through at once."""
    sentences: list[str] = []
    if resumes := sum(run.resumes for run in runs):
        times = "once" if resumes == 1 else f"{resumes} times"
        sentences.append(
            f"{summary.name}: was cut short and went on from a checkpoint {times}: its wall time leaves out what was lost in "
            "between, and each epoch is timed by itself."
        )
    reasons = dict.fromkeys(run.started_over for run in runs if run.started_over)
    return [*sentences, *(f"{summary.name}: was cut short and started over: {reason}." for reason in reasons)]


def _broke_down(summary: Summary, runs: Sequence[RunResult]) -> list[str]:
    """Of a row whose scores, which are those of the end, are far from those of its best epoch."""
    found = [words for run in runs if (words := _breakdown(run))]
    if not found:
        return []
    which = f" in {len(found)} of {len(runs)} repeats" if len(runs) > 1 else ""
    return [f"{summary.name}: broke down{which}: {found[0]}. Its scores are those of the end: try a smaller learning rate."]


def _breakdown(run: RunResult) -> str | None:
    """How a run ended far from its best epoch, in words; None where it did not."""
    for split, name in (("validation", "validation"), ("train", "training")):
        scores = [(record.epoch, found) for record in run.epochs if (found := getattr(record, split)) is not None]
        if scores:
            last, end = scores[-1]
            at, best = max(scores, key=lambda each: each[1].accuracy)
            if best.accuracy - end.accuracy > FALLEN_FROM:
                return f"{name} accuracy {best.accuracy:.4f} at epoch {at}, {end.accuracy:.4f} at the last, {last}"
            at, least = min(scores, key=lambda each: each[1].loss)
            if split == "train" and end.loss > max(scores[0][1].loss, RISEN_FROM * least.loss):
                return f"{name} loss {least.loss:.4f} at epoch {at}, {end.loss:.4f} at the last, {last}"
    return None


def _shared_cores(stored: Stored) -> list[str]:
    """Budgets that were threads of fewer physical cores."""
    budgets = {
        (len(run.machine["cpus"]), run.machine["physical_cores"])
        for runs in stored.runs.values()
        for run in runs.values()
        if "physical_cores" in run.machine
    }
    return [
        f"A budget of {cores} cores was {cores} hardware threads of {physical} physical core{'s' if physical > 1 else ''}: two "
        "threads of a core do less than two cores."
        for cores, physical in sorted(budgets)
        if physical < cores
    ]


def _not_in_turn(stored: Stored) -> list[str]:
    """Repeats whose runs did not meet the same machine, as those that a comparison makes when it goes on."""
    apart: dict[int, float] = {}
    good = [measured(stored, row) for row in stored.comparison.rows]
    for repeat in stored.wall_seconds:
        runs = [found[repeat] for found in good if repeat in found]
        if seconds := seconds_apart(stored, repeat, runs):
            apart[repeat] = seconds
    if not apart:
        return []
    which = ", ".join(str(repeat + 1) for repeat in sorted(apart))
    hours = max(apart.values()) / 3600.0
    return [
        f"Repeat{'s' if len(apart) > 1 else ''} {which}: not all runs were made in turn, up to {hours:.1f} hours lie between "
        "them. Runs so far apart are in no ratio: they did not meet the same machine."
    ]


def _troubles(stored: Stored, summaries: Sequence[Summary]) -> list[str]:
    sentences = [*(f"Set aside: {reason}" for reason in stored.set_aside), *_shared_cores(stored), *_not_in_turn(stored)]
    for row, summary in zip(stored.comparison.rows, summaries, strict=True):
        sentences += _cut_short(summary, list(stored.runs[summary.id].values()))
        if summary.status in FAILURES:
            sentences.append(f"{summary.name}: {summary.status} after {_epochs(summary.epochs_done)}: {summary.reason}.")
        elif summary.status != "ok":
            sentences.append(f"{summary.name}: {summary.status}: {summary.reason}.")
        sentences += _broke_down(summary, list(measured(stored, row).values()))
        if summary.repeats_done and summary.oversubscribed:
            sentences.append(f"{summary.name}: oversubscribed, {summary.replicas} replicas on {summary.cores} cores.")
        if summary.repeats_done and row.spec.parts() < (asked := row.spec.parts_asked):
            sentences.append(
                f"{summary.name}: its batches of {row.spec.global_batch_size} are cut into {row.spec.parts()} parts, not "
                f"{asked}: all parts of every replica's share are of one size."
            )
        if summary.too_short:
            sentences.append(
                f"{summary.name}: {summary.timed_steps} timed batches, of {summary.steps_needed} that show a steady pace: rely "
                "on no rate of it, and make it longer with --epochs."
            )
        if summary.unwatched:
            sentences.append(f"{summary.name}: too short to tell whether other work disturbed it: rely on no time of it.")
        if summary.exceeds_budget:
            sentences.append(f"{summary.name}: used {summary.cores_used:.2f} cores of a budget of {summary.cores}.")
        if summary.disturbed and not summary.stolen:
            sentences.append(
                f"{summary.name}: other work took {summary.cores_lost:.2f} cores of its budget of {summary.cores}: rely "
                "on no time of it."
            )
        sentences += _noise(stored, summary, [other for other in summaries if other.cores == summary.cores])
    return sentences


def _noise(stored: Stored, summary: Summary, alike: Sequence[Summary]) -> list[str]:
    """What the machine did beside a row, where it is too much; `alike` are the rows on as many cores, itself among them."""
    if summary.noise is None:
        return []
    noise, sentences = summary.noise, list[str]()
    if summary.stolen:
        sentences.append(
            f"{summary.name}: the hypervisor took {noise.cores_stolen:.2f} cores of its budget of {summary.cores}: rely on no "
            "time of it."
        )
    cores = stored.comparison.machine.get("logical_cores")
    if noise.load_start is not None and cores and noise.load_start > CROWDED_FROM * cores:
        sentences.append(f"{summary.name}: began at a load average of {noise.load_start:.1f} on {cores} logical cores.")
    fastest = max(other.noise.frequency_end_mhz or 0.0 for other in alike if other.noise)
    if noise.frequency_end_mhz is not None and noise.frequency_end_mhz < SLOWED_BELOW * fastest:
        sentences.append(
            f"{summary.name}: its CPUs ended at {noise.frequency_end_mhz:.0f} MHz, those of another row at {fastest:.0f}: "
            "their times do not compare well."
        )
    return sentences

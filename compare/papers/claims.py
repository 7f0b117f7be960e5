"""A verdict for each claim of a paper: one function for each kind of claim."""

from __future__ import annotations

import statistics as python_statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from common.machine import machine
from common.training.loop import relative_difference
from compare.core import statistics, wording
from compare.core.statistics import Judged, Ratio
from compare.data.data_report import counted
from compare.execution import launch, store
from compare.judgement.summary import DISTURBED_FROM, cores_lost
from compare.papers import judging, schema
from compare.papers.cells import found
from compare.papers.here import Here
from compare.papers.judging import UNTOLD, Difference, Verdict
from compare.papers.plan import AS_IT_WAS, CORRECTED
from compare.proof import ladder
from compare.tuning import tuning_findings

Judgement = tuple[Verdict, list[str]]
"""The verdict, and the sentences that it rests on."""

CONTRADICTED: Verdict = "contradicted by the paper's own table"


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper, judged."""

    name: str
    said: str
    verdict: Verdict
    evidence: list[str]


def judge_all(here: Here) -> list[Claim]:
    """The claims of the paper, in its order."""
    return [Claim(name, each.said, *judge(here, name)) for name, each in here.paper.claims.items()]


def judge(here: Here, name: str) -> Judgement:
    """A claim of the paper by its name."""
    claim = here.paper.claims[name]
    verdict, evidence = KINDS[type(claim)](here, claim)
    return verdict, [*evidence, *claim.remarks]


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


# From the paper's own tables.


def _not_judged(here: Here, claim: schema.NotJudged) -> Judgement:
    paper = here.paper
    slow = python_statistics.mean(paper.epochs_of(claim.slow).column("seconds"))
    fast = [seconds for run in claim.fast for seconds in paper.epochs_of(run).column("seconds")]
    images = paper.images_of(claim.slow)
    seconds = {run: here.epoch_seconds(run, images) for run in (claim.slow, *claim.fast)}
    known = [f"{paper.runs[run].title}: {each:.1f} s" for run, each in seconds.items() if each is not None]
    pace = f"An epoch of {images:,} images here, at the pace of {here.setting.scale}: {', '.join(known)}."
    return UNTOLD, [
        f"Its tables give {slow / max(fast):.1f} to {slow / min(fast):.1f} times.",
        *([pace] if known else []),
        *([] if here.setting.gpus else ["Here is no GPU beside the CPU either."]),
    ]


def _ordering(here: Here, claim: schema.Ordering) -> Judgement:
    tables = {run: table for run in here.paper.runs for table in here.paper.published_tables.values() if table.run == run}
    columns = {run: table.column(claim.column) for run, table in tables.items()}
    if claim.by == "least_on_average":
        orders = [{run: -python_statistics.mean(figures) for run, figures in columns.items()}]
        evidence = [f"Its tables: {_by_run(here, {run: _span(figures) for run, figures in columns.items()})}."]
        per_image = {run: 1e3 * -mean / here.paper.images_of(run) for run, mean in orders[0].items()}
        words = _by_run(here, {run: f"{each:.2f} ms an image" for run, each in per_image.items()})
        evidence.append(f"By the images that each trains on: {words}.")
        if report := here.trainings.get(CORRECTED):
            evidence += [f"Identical models here: {sentence}" for sentence in report.findings.frameworks]
    else:
        last = min(map(len, columns.values()))
        orders = [{run: figures[last - 1] for run, figures in columns.items()}]
        orders.append({run: figures[-1] for run, figures in columns.items()})
        common, own = (
            _by_run(here, {run: f"{order[run]:.4f}" for run in sorted(order, key=lambda run: -order[run])}) for order in orders
        )
        evidence = [
            f"Its tables, after {last} epochs, the last that all have: {common}.",
            f"Each at its own last epoch: {own}.",
        ]
        filled = {run: found(here, table)[last,][0] for run, table in tables.items()}
        measures = {run: values[tables[run].columns[claim.column].measure or claim.column] for run, values in filled.items()}
        if all(measures.values()):
            evidence.append(f"Here: {_by_run(here, {run: f'{value:.4f}' for run, value in measures.items()})}.")
    firsts = [sorted(order, key=lambda run: -order[run])[: len(claim.first)] for order in orders]
    return (UNTOLD if list(claim.first) in firsts else CONTRADICTED), evidence


def _span(seconds: Sequence[float]) -> str:
    return f"{min(seconds):.1f} to {max(seconds):.1f} s (mean {python_statistics.mean(seconds):.1f})"


def _by_run(here: Here, words: dict[str, str]) -> str:
    return ", ".join(f"{here.paper.runs[run].title} {each}" for run, each in words.items())


# Accuracy.


def _corrected_row(here: Here, run: str) -> str:
    """The corrected row that stands for a published run."""
    known = here.paper.runs[run]
    parallel, alone = judging.pair(here, known.framework)
    return parallel if known.parallel else alone


def _differences(here: Here, *, corrected: bool) -> dict[tuple[str, str], Difference]:
    """All differences in accuracy that the paper's claims need, tested as one family; by published runs or frameworks' rows."""
    runs: list[tuple[str, str]] = []
    rows: list[tuple[str, str]] = []
    for claim in here.paper.claims.values():
        if isinstance(claim, schema.MoreAccurate | schema.AccuracyLoss):
            runs.append((claim.run, claim.than))
            rows.append((_corrected_row(here, claim.run), _corrected_row(here, claim.than)))
        elif isinstance(claim, schema.NoAccuracyLoss):
            rows += [judging.pair(here, framework) for framework in launch.FRAMEWORKS]
    if corrected:
        return judging.differences(here, CORRECTED, list(dict.fromkeys(rows)))
    return judging.differences(here, AS_IT_WAS, runs, "validation")


def _no_accuracy_loss(here: Here, claim: schema.NoAccuracyLoss) -> Judgement:
    differences = _differences(here, corrected=True)
    pairs = [judging.pair(here, framework) for framework in launch.FRAMEWORKS]
    judged = [judging.sound(here, judging.loses_none(differences.get(pair))) for pair in pairs]
    evidence = [*(_sentence(words) for _, words in judged), judging.budget(here, CORRECTED)]
    return _joined([verdict for verdict, _ in judged]), evidence


def _joined(verdicts: Iterable[Verdict]) -> Verdict:
    """Of several verdicts: one refutes, all reproduce."""
    known = set(verdicts)
    if "not reproduced" in known:
        return "not reproduced"
    return "reproduced" if known == {"reproduced"} else UNTOLD


def _accuracy_loss(here: Here, claim: schema.AccuracyLoss) -> Judgement:
    native = _differences(here, corrected=False).get((claim.run, claim.than))
    alike = _differences(here, corrected=True).get((_corrected_row(here, claim.run), _corrected_row(here, claim.than)))
    verdict, words = judging.loses(native, claim.points)
    corrected = [_sentence(f"Corrected: {alike.words}")] if alike and not judging.unsound(here) else []
    return verdict, [_sentence(f"As it was: {words}"), judging.budget(here, AS_IT_WAS), *corrected]


def _more_accurate(here: Here, claim: schema.MoreAccurate) -> Judgement:
    native = _differences(here, corrected=False).get((claim.run, claim.than))
    alike = _differences(here, corrected=True).get((_corrected_row(here, claim.run), _corrected_row(here, claim.than)))
    verdict, words = judging.sound(here, judging.more_accurate(alike, claim.points))
    was, said_then = judging.more_accurate(native, claim.points)
    evidence = [
        _sentence(f"As it was: {said_then}"),
        judging.budget(here, AS_IT_WAS),
        _sentence(f"Corrected: {words}"),
        judging.budget(here, CORRECTED),
    ]
    report = here.trainings.get(CORRECTED)
    proof = report.stored.comparison.proof if report else None
    if proof and proof.verdict == "proved":
        evidence.append("The proof says that both are the same training. Only rounding is left to tell them apart.")
    return verdict if verdict == was else UNTOLD, evidence


# Times.


def _faster_than(here: Here, claim: schema.FasterThan) -> Judgement:
    run, than = (_corrected_row(here, name) for name in (claim.run, claim.than))
    if here.paper.runs[claim.run].framework == here.paper.runs[claim.than].framework:
        ratio = judging.speedup(here, CORRECTED, run)
    else:
        ratio = judging.framework_times(here, CORRECTED, run, than)
    where = judging.of_devices(here.summary(CORRECTED, run))
    judged = judging.above(ratio, f"epoch seconds of {than} over those of {run}, {where}")
    verdict, words = judging.undisturbed(here, CORRECTED, (run, than), judged)
    evidence = [_sentence(words)]
    if here.setting.gpus < claim.gpus:
        return UNTOLD, [_needs_gpus(claim.gpus), *evidence]
    return verdict, evidence


def _needs_gpus(gpus: int) -> str:
    return f"It needs {'a GPU' if gpus == 1 else f'{gpus} GPUs'}, as the paper's runs had."


def _gains_more(here: Here, claim: schema.GainsMore) -> Judgement:
    training = CORRECTED if claim.corrected else AS_IT_WAS
    rows: dict[str, tuple[str, str]] = {}
    for name in (*claim.runs, claim.than):
        if claim.corrected:
            rows[name] = judging.pair(here, here.paper.runs[name].framework)
        else:
            rows[name] = name, _serial_of(here, name)
    ratios = {name: judging.paired(here, training, alone, row) for name, (row, alone) in rows.items()}
    known = {name: ratio for name, ratio in ratios.items() if ratio}
    evidence = [f"{name}: {statistics.interval_words(ratio)} times as fast as serial." for name, ratio in known.items()]
    if claim.table:
        table, column = claim.table
        seconds = {schema.run_name(key): row[column] for key, row in here.paper.table(table).rows.items()}
        gains = [f"{name} {(seconds[_serial_of(here, name)] or 0) / (seconds[name] or 1):.2f}" for name in rows]
        evidence.append(f"By the paper's own seconds: {', '.join(gains)} times.")
    if doubt := judging.doubt(here, training, list(dict.fromkeys(row for pair in rows.values() for row in pair))):
        evidence.append(doubt)
    if here.setting.gpus < claim.gpus:
        if not claim.corrected:
            row = judging.pair(here, here.paper.runs[claim.than].framework)[0]
            words = "replicas on CPU cores over serial on as many"
            evidence.append(_sentence(judging.above(judging.speedup(here, CORRECTED, row), words)[1]))
        return UNTOLD, [_needs_gpus(claim.gpus), *evidence]
    if claim.than not in known:
        return UNTOLD, [f"{claim.than} was not run, or failed.", *evidence]
    if doubt:
        return UNTOLD, evidence
    best = max((known[name] for name in claim.runs if name in known), key=lambda ratio: ratio.value, default=None)
    missing = claim.corrected and len(known) < len(ratios)
    if best is None or missing or not all(ratio.decided for ratio in known.values()):
        return UNTOLD, [*evidence, "There are too few repeats to tell."]
    return judging.gains_more(best, known[claim.than]), evidence


def _serial_of(here: Here, name: str) -> str:
    """The published serial run of the framework of a run."""
    runs = here.paper.runs
    return next(each for each, run in runs.items() if run.framework == runs[name].framework and not run.parallel)


def _scans_scale_more(here: Here, claim: schema.ScansScaleMore) -> Judgement:
    most = max((row["workers"] for row in here.scans or []), default=1)
    engines = (claim.than_engine, claim.engine)
    rows = {(engine, workers): here.scan(engine, workers) for engine in engines for workers in (1, most)}
    if not all(rows.values()):
        return UNTOLD, ["The scans were not all made."]
    if most == 1:
        return UNTOLD, ["No scan was made by more than one worker."]
    made = {key: row for key, row in rows.items() if row}
    seconds = {key: [scan["seconds"] for scan in row["scans"]] for key, row in made.items()}
    gains = {engine: [a / b for a, b in zip(seconds[engine, 1], seconds[engine, most], strict=True)] for engine in engines}
    ratio = statistics.paired_ratio(list(zip(gains[claim.engine], gains[claim.than_engine], strict=True)))
    judged = statistics.verdicts([("gain", ratio)])[0] if ratio else None
    what = f"the gain of {claim.engine} over the gain of {claim.than_engine}, {most} workers against 1"
    verdict, words = judging.above(judged, what)
    own = statistics.paired_ratio(list(zip(seconds[claim.engine, 1], seconds[claim.engine, most], strict=True)))
    cores, known = machine.available_cores(), machine.describe()
    lost = max(
        cores_lost(scan["cores_of_others"], min(row["workers"], cores), known) for row in made.values() for scan in row["scans"]
    )
    tasks = min(row["tasks"] for row in made.values())
    untold = [
        *([f"It needs the {claim.cores} cores of the paper: here are {cores}."] if cores < claim.cores else []),
        *([f"No more than {tasks} of the {most} workers had work: there are no more tasks."] if tasks < most else []),
        *([f"Other work took up to {lost:.2f} cores from a scan."] if lost > DISTURBED_FROM else []),
        *([f"What {claim.engine} gains by itself is not shown."] if verdict == "reproduced" and not _surely_gains(own) else []),
    ]
    medians = ", ".join(f"{engine} {python_statistics.median(each):.2f} times" for engine, each in gains.items())
    paces = ", ".join(f"{engine} x1 {python_statistics.median(seconds[engine, 1]):.2f} s" for engine in engines)
    return UNTOLD if untold else verdict, [
        *untold,
        f"With {most} workers on {wording.count(cores, 'core')}: {medians}; the paper had {claim.cores} cores.",
        _sentence(words),
        f"What scales from a slower start gains more: {paces}.",
    ]


def _surely_gains(ratio: Ratio | None) -> bool:
    return ratio is not None and ratio.decided and (ratio.low or 0.0) > 1.0


def _no_gain_beyond_cores(here: Here, claim: schema.NoGainBeyondCores) -> Judgement:
    cores = machine.available_cores()
    training = here.training_of(claim.base)
    by_workers = {row.spec.workers: row.id for each in here.plan.faithful for row in each.rows if row.spec.workers}
    within, beyond = ([count for count in sorted(by_workers) if (count <= cores) is inside] for inside in (True, False))
    if not within or not beyond:
        return UNTOLD, [f"There are no runs with workers up to and beyond the {cores} cores here."]
    most = by_workers[within[-1]]
    run = [count for count in beyond if here.runs(training, by_workers[count])]
    ratios = {count: ratio for count in run if (ratio := judging.paired(here, training, most, by_workers[count]))}
    compared = [(f"{count}", statistics.held_against(ratio, claim.gain)) for count, ratio in ratios.items()]
    judged = dict(zip(ratios, statistics.verdicts(compared), strict=True))
    verdicts: list[Verdict] = []
    evidence: list[str] = []
    within_gains = judging.paired(here, training, claim.base, most)
    if within_gains:
        evidence.append(f"{within[-1]} workers: {statistics.interval_words(within_gains)} times as fast as {claim.base}.")
    for count in beyond:
        gain = no_gain(ratios.get(count), judged.get(count), claim.gain)
        verdict, words = judging.undisturbed(here, training, (most, by_workers[count]), gain)
        verdicts.append(verdict)
        evidence.append(f"{count} workers against {within[-1]} on {wording.count(cores, 'core')}: {words}.")
    silent = [count for count in run if not warned(here, training, by_workers[count], claim.warning)]
    if run:
        did, those = ("did not warn", silent) if silent else ("warned", run)
        framework = here.paper.runs[claim.base].framework
        evidence.append(f"{framework} {did} of it in the runs with {', '.join(map(str, those))} workers.")
    if silent:
        return "not reproduced", evidence
    if within[-1] < cores:  # a gain up to there shows nothing about more workers than cores
        return UNTOLD, [*evidence, f"There are no runs with as many workers as the {cores} cores here."]
    joined = _joined(verdicts)
    if joined != "not reproduced" and run and not _surely_gains(within_gains):
        return UNTOLD, [*evidence, "Workers up to the cores show no gain either. So these runs do not wait for their input."]
    return joined, evidence


def no_gain(ratio: Ratio | None, judged: Judged | None, gain: float) -> tuple[Verdict, str]:
    """More workers compared with as many as cores. `judged` compares that ratio with the gain."""
    if ratio is None or judged is None:
        return UNTOLD, "not measured"
    said = f"{statistics.interval_words(ratio)} times as fast"
    if not ratio.decided or ratio.high is None:
        return UNTOLD, f"{said}; too few repeats to tell"
    least = f"{100 * (gain - 1):.0f} %"
    if ratio.high < gain:
        return "reproduced", f"{said}: a gain of {least} is ruled out"
    if judged.verdict == "above":
        return "not reproduced", f"{said}: they gain more than {least}{statistics.surety(judged)}"
    return UNTOLD, f"{said}: neither a gain of {least} nor its absence is shown"


def warned(here: Here, training: str, row: str, warning: str) -> bool:
    """Whether a log of a row's runs has this warning."""
    logs = (store.run_folder(here.folders[training], row, repeat) / store.LOG_FILE for repeat in here.runs(training, row))
    return any(warning in log.read_text("utf-8", errors="replace") for log in logs if log.exists())


def _search_gain(here: Here, claim: schema.SearchGain) -> Judgement:
    if here.tuned is None:
        return UNTOLD, ["Nothing was searched."]
    stated = here.paper.table(claim.table).figure("speedup", claim.jobs)
    cores = machine.available_cores()
    gains = {gain.jobs: gain.seconds for gain in tuning_findings.find(here.tuned).gains if gain.seconds}
    evidence = [
        f"{jobs} jobs: {statistics.interval_words(each.ratio)} times as fast as 1{statistics.surety(each)}."
        for jobs, each in gains.items()
    ]
    if cores < claim.jobs and not here.setting.gpus:
        needed = f"{claim.jobs} jobs need {claim.jobs} cores, or a GPU that is idle otherwise: here are {cores}."
        return UNTOLD, [needed, *evidence]
    gain = gains.get(claim.jobs)
    if gain is None or not gain.ratio.decided or gain.ratio.low is None or gain.ratio.high is None:
        return UNTOLD, [*evidence, "There are too few repeats to tell."]
    if disturbed := tuning_findings.disturbed(here.tuned):
        return UNTOLD, [*evidence, f"Other work disturbed {counted(len(disturbed), 'search', 'searches')}."]
    if gain.verdict == "above" and gain.ratio.low <= stated <= gain.ratio.high:
        return "reproduced", [*evidence, f"That holds the {stated:g} times."]
    if gain.verdict == "below":
        return "not reproduced", evidence
    shown = "A gain, but not the" if gain.verdict == "above" else "It does not tell a gain of the"
    return UNTOLD, [*evidence, f"{shown} {stated:g} times."]


# Losses, compared number by number.

Losses = dict[int, list[float]]
"""Repeat: losses."""


def _losses(here: Here, training: str, row: str) -> Losses:
    """The training loss of each epoch."""
    return {
        repeat: [epoch.train.loss for epoch in run.epochs if epoch.train] for repeat, run in here.runs(training, row).items()
    }


def _first_loss(here: Here, training: str, row: str) -> Losses:
    """The loss of the first step, which is one number."""
    runs = here.runs(training, row).items()
    return {repeat: [run.first_step_loss] for repeat, run in runs if run.first_step_loss is not None}


def _gaps(base: Losses, other: Losses) -> list[float]:
    """Relative differences of the losses of the repeats that both have."""
    return [
        relative_difference(a, b)
        for repeat, losses in other.items()
        if repeat in base
        for a, b in zip(base[repeat], losses, strict=False)
    ]


def _own_gap(base: Losses) -> float | None:
    """The largest relative difference among repeats of one seed. None if there is one repeat."""
    first, *others = base.values() if base else ([],)
    return max((relative_difference(a, b) for other in others for a, b in zip(first, other, strict=False)), default=None)


def _same_losses(here: Here, claim: schema.SameLosses) -> Judgement:
    training = here.training_of(claim.base)
    base = _losses(here, training, claim.base)
    names = [row.id for each in here.plan.faithful for row in each.rows if row.spec.workers]
    gaps = [gap for name in names for gap in _gaps(base, _losses(here, training, name))]
    if not gaps:
        return UNTOLD, ["The runs were not all made."]
    said = f"{counted(len(gaps), 'training loss', 'training losses')} of epochs with workers, compared with serial's: "
    if not any(gaps):
        if missing := [name for name in names if not here.runs(training, name)]:
            return UNTOLD, [f"{said}all the same number. There is no run of {', '.join(missing)}."]
        return "reproduced", [f"{said}all the same number."]
    own = _own_gap(base)
    evidence = [f"{said}the largest relative difference is {max(gaps):.1e}."]
    if own == 0.0:
        return "not reproduced", [*evidence, "Repeats of serial have all the same losses."]
    known = "There is one repeat of serial" if own is None else f"Repeats of serial differ by up to {own:.1e} among themselves"
    return UNTOLD, [*evidence, f"{known}: this device may not repeat itself."]


def _other_losses(here: Here, claim: schema.OtherLosses) -> Judgement:
    run = here.paper.runs[claim.run]
    faithful = claim.run in {row.id for each in here.plan.faithful for row in each.rows}
    training, parallel, alone = (
        (here.training_of(claim.run), claim.run, claim.base) if faithful else (CORRECTED, *judging.pair(here, run.framework))
    )
    serial = _losses(here, training, alone)
    first = _gaps(_first_loss(here, training, alone), _first_loss(here, training, parallel))
    gaps = _gaps(serial, _losses(here, training, parallel))
    if not first or not gaps:
        return UNTOLD, ["The runs were not all made."]
    if not faithful and (unsound := judging.unsound(here)):
        return UNTOLD, [unsound]
    summary = here.summary(training, parallel)
    how = summary.implementation if summary else None
    evidence = [
        f"{counted(len(gaps), 'training loss', 'training losses')} of epochs ({how or 'two replicas'}), compared with "
        f"serial's: relative differences of {min(gaps):.1e} to {max(gaps):.1e}; of the first step, from equal weights: "
        f"{min(first):.1e} to {max(first):.1e}.",
        _of_batch_norm(here, training, parallel),
        *([] if faithful else [claim.remark_on_cores]),
    ]
    noise = ladder.FIRST_FLOAT32_TOLERANCE
    if rounding := _rounding(here):
        noise = max(noise, judging.SURELY * rounding)
        evidence.append(
            f"Serial runs of the two frameworks are the same training except for rounding. They differ by up to {rounding:.1e} "
            f"in their first step: more than {noise:.0e} counts as another curve."
        )
    if faithful and (own := _own_gap(_first_loss(here, training, alone))):
        evidence.append(f"Repeats of serial differ among themselves by up to {own:.1e}.")
        noise = max(noise, own)
    # Only the first step is judged. Later, rounding differences have grown and hide everything else.
    changed = [gap > noise for gap in first]
    if all(changed):
        return "reproduced", evidence
    return (UNTOLD if any(changed) else "not reproduced"), evidence


def _of_batch_norm(here: Here, training: str, row: str) -> str:
    specs = {(each.name, known.id): known.spec for each in here.plan.trainings for known in each.rows}
    if specs[training, row].batch_norm_statistics == "synchronised":
        return "BatchNorm is synchronised, as it was asked for here, and not in DataParallel: it is serial's mathematics."
    return (
        "Each replica normalises by the statistics of its own part of the batch, as DataParallel does: it is another function. "
        "With `--set batch_norm_statistics=synchronised` the modes that offer it are serial's mathematics."
    )


def _rounding(here: Here) -> float | None:
    """The largest relative difference of the first step's loss between the serial runs of the frameworks: the same training."""
    first, *others = (_first_loss(here, CORRECTED, judging.pair(here, framework)[1]) for framework in launch.FRAMEWORKS)
    return max((gap for other in others for gap in _gaps(first, other)), default=None)


KINDS: dict[type[schema.Claim], Callable[[Here, Any], Judgement]] = {
    schema.NotJudged: _not_judged,
    schema.Ordering: _ordering,
    schema.NoAccuracyLoss: _no_accuracy_loss,
    schema.AccuracyLoss: _accuracy_loss,
    schema.MoreAccurate: _more_accurate,
    schema.FasterThan: _faster_than,
    schema.GainsMore: _gains_more,
    schema.ScansScaleMore: _scans_scale_more,
    schema.NoGainBeyondCores: _no_gain_beyond_cores,
    schema.SearchGain: _search_gain,
    schema.SameLosses: _same_losses,
    schema.OtherLosses: _other_losses,
}
"""What judges each kind of claim."""

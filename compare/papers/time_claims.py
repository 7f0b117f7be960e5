"""Claims on times, judged over repeats."""

from __future__ import annotations

import statistics as python_statistics

from common.machine import machine
from common.machine.interference import DISTURBED_FROM
from compare.core import statistics, verdict_words, wording
from compare.core.statistics import JudgedRatio, Ratio
from compare.data import preprocess_report
from compare.execution import store
from compare.papers import judging, schema
from compare.papers.here import Here
from compare.papers.judging import CANNOT_TELL, Judgement, Verdict
from compare.papers.plan import AS_IT_WAS, CORRECTED
from compare.tuning import tuning_findings


def faster_than(here: Here, claim: schema.FasterThan) -> Judgement:
    run, than = (judging.corrected_row(here, name) for name in (claim.run, claim.than))
    if here.paper.runs[claim.run].framework == here.paper.runs[claim.than].framework:
        ratio = judging.speedup(here, CORRECTED, run)
    else:
        ratio = judging.framework_times(here, run, than)
    made = here.summary(CORRECTED, run)
    where = f"on {made.device or 'an unknown device'}, {made.cores} cores" if made else "not run"
    what = f"epoch seconds of {than} over those of {run}, {where}"
    verdict, words = judging.undisturbed(here, CORRECTED, (run, than), judging.above(ratio, what), f"{what}: ")
    evidence = [judging.sentence(words)]
    if here.setting.gpus < claim.gpus:
        return CANNOT_TELL, [_needs_gpus(claim.gpus), *evidence]
    return verdict, evidence


def _needs_gpus(gpus: int) -> str:
    return f"It needs {'a GPU' if gpus == 1 else f'{gpus} GPUs'}, as the paper's runs had."


def gains_more(here: Here, claim: schema.GainsMore) -> Judgement:
    training = CORRECTED if claim.corrected else AS_IT_WAS
    rows: dict[str, tuple[str, str]] = {}
    for name in (*claim.runs, claim.than):
        if claim.corrected:
            rows[name] = judging.pair(here, here.paper.runs[name].framework)
        else:
            rows[name] = name, _serial_of(here, name)
    ratios = {name: judging.paired(here, training, alone, row) for name, (row, alone) in rows.items()}
    known = {name: ratio for name, ratio in ratios.items() if ratio}
    doubt = judging.doubt(here, training, list(dict.fromkeys(row for pair in rows.values() for row in pair)))
    shown = {} if doubt == judging.NO_RATIO else known
    evidence = [f"{name}: {verdict_words.interval_words(ratio)} times as fast as serial." for name, ratio in shown.items()]
    if claim.table:
        table, column = claim.table
        seconds = {schema.run_name(key): row[column] for key, row in here.paper.table(table).rows.items()}
        gains = [f"{name} {(seconds[_serial_of(here, name)] or 0) / (seconds[name] or 1):.2f}" for name in rows]
        evidence.append(f"By the paper's own seconds: {', '.join(gains)} times.")
    if doubt:
        evidence.append(doubt)
    if here.setting.gpus < claim.gpus:
        if not claim.corrected:
            pair = judging.pair(here, here.paper.runs[claim.than].framework)
            words = "replicas on CPU cores over serial on as many"
            judged = judging.above(judging.speedup(here, CORRECTED, pair[0]), words)
            evidence.append(judging.sentence(judging.undisturbed(here, CORRECTED, pair, judged, f"{words}: ")[1]))
        return CANNOT_TELL, [_needs_gpus(claim.gpus), *evidence]
    if claim.than not in known:
        return CANNOT_TELL, [f"{claim.than} was not run, or failed.", *evidence]
    if doubt:
        return CANNOT_TELL, evidence
    best = max((known[name] for name in claim.runs if name in known), key=lambda ratio: ratio.value, default=None)
    missing = claim.corrected and len(known) < len(ratios)
    if best is None or missing or not all(ratio.has_enough_pairs for ratio in known.values()):
        return CANNOT_TELL, [*evidence, "There are too few repeats to tell."]
    return judging.gains_more(best, known[claim.than]), evidence


def _serial_of(here: Here, name: str) -> str:
    """The published serial run of the framework of a run."""
    runs = here.paper.runs
    return next(each for each, run in runs.items() if run.framework == runs[name].framework and not run.parallel)


def scans_scale_more(here: Here, claim: schema.ScansScaleMore) -> Judgement:
    most = max((row["workers"] for row in here.scans or []), default=1)
    engines = (claim.than_engine, claim.engine)
    rows = {(engine, workers): here.scan(engine, workers) for engine in engines for workers in (1, most)}
    if not all(rows.values()):
        return CANNOT_TELL, ["The scans were not all made."]
    if most == 1:
        return CANNOT_TELL, ["No scan was made by more than one worker."]
    made = {key: row for key, row in rows.items() if row}
    seconds = {key: [scan["seconds"] for scan in row["scans"]] for key, row in made.items()}
    gains = {engine: [a / b for a, b in zip(seconds[engine, 1], seconds[engine, most], strict=True)] for engine in engines}
    ratio = statistics.paired_ratio(list(zip(gains[claim.engine], gains[claim.than_engine], strict=True)))
    judged = statistics.verdicts([("gain", ratio)])[0] if ratio else None
    what = f"the gain of {claim.engine} over the gain of {claim.than_engine}, {most} workers against 1"
    verdict, words = judging.above(judged, what)
    own = statistics.paired_ratio(list(zip(seconds[claim.engine, 1], seconds[claim.engine, most], strict=True)))
    cores = machine.available_cores()
    lost = max(map(preprocess_report.cores_taken, made.values()))
    disturbed = lost > DISTURBED_FROM
    tasks = min(row["tasks"] for row in made.values())
    unclear = [
        *([f"It needs the {claim.cores} cores of the paper: here are {cores}."] if cores < claim.cores else []),
        *([f"No more than {tasks} of the {most} workers had work: there are no more tasks."] if tasks < most else []),
        *([f"Other work took up to {lost:.2f} cores from a scan."] if disturbed else []),
        *([f"What {claim.engine} gains by itself is not shown."] if verdict == "reproduced" and not _surely_gains(own) else []),
    ]
    medians = ", ".join(f"{engine} {python_statistics.median(each):.2f} times" for engine, each in gains.items())
    paces = ", ".join(f"{engine} x1 {python_statistics.median(seconds[engine, 1]):.2f} s" for engine in engines)
    return CANNOT_TELL if unclear else verdict, [
        *unclear,
        f"With {most} workers on {wording.count(cores, 'core')}: {'no finding' if disturbed else medians}; the paper had "
        f"{claim.cores} cores.",
        *([] if disturbed else [judging.sentence(words)]),
        f"What scales from a slower start gains more: {paces}.",
    ]


def _surely_gains(ratio: Ratio | None) -> bool:
    return ratio is not None and ratio.has_enough_pairs and (ratio.low or 0.0) > 1.0


def no_gain_beyond_cores(here: Here, claim: schema.NoGainBeyondCores) -> Judgement:
    cores = machine.available_cores()
    training = here.training_of(claim.base)
    by_workers = {row.spec.workers: row.id for each in here.plan.faithful for row in each.rows if row.spec.workers}
    within, beyond = ([count for count in sorted(by_workers) if (count <= cores) is inside] for inside in (True, False))
    if not within or not beyond:
        return CANNOT_TELL, [f"There are no runs with workers up to and beyond the {cores} cores here."]
    most = by_workers[within[-1]]
    run = [count for count in beyond if here.runs(training, by_workers[count])]
    ratios = {count: ratio for count in run if (ratio := judging.paired(here, training, most, by_workers[count]))}
    compared = [(f"{count}", statistics.relative_to(ratio, claim.gain)) for count, ratio in ratios.items()]
    judged = dict(zip(ratios, statistics.verdicts(compared), strict=True))
    verdicts: list[Verdict] = []
    evidence: list[str] = []
    within_gains = judging.paired(here, training, claim.base, most)
    if within_gains:
        said = f"{verdict_words.interval_words(within_gains)} times as fast as {claim.base}"
        said = judging.undisturbed(here, training, (claim.base, most), ("reproduced", said))[1]
        evidence.append(f"{within[-1]} workers: {said}.")
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
        return CANNOT_TELL, [*evidence, f"There are no runs with as many workers as the {cores} cores here."]
    joined = judging.joined(verdicts)
    if joined != "not reproduced" and run and not _surely_gains(within_gains):
        return CANNOT_TELL, [
            *evidence,
            "Workers up to the cores show no gain either. So these runs do not wait for their input.",
        ]
    return joined, evidence


def no_gain(ratio: Ratio | None, judged: JudgedRatio | None, gain: float) -> tuple[Verdict, str]:
    """More workers compared with as many as cores. `judged` compares that ratio with the gain."""
    if ratio is None or judged is None:
        return CANNOT_TELL, "not measured"
    said = f"{verdict_words.interval_words(ratio)} times as fast"
    if not ratio.has_enough_pairs or ratio.high is None:
        return CANNOT_TELL, f"{said}; too few repeats to tell"
    least = f"{100 * (gain - 1):.0f} %"
    if ratio.high < gain:
        return "reproduced", f"{said}: a gain of {least} is ruled out"
    if judged.verdict == "above":
        return "not reproduced", f"{said}: they gain more than {least}{verdict_words.p_value_text(judged)}"
    return CANNOT_TELL, f"{said}: neither a gain of {least} nor its absence is shown"


def warned(here: Here, training: str, row: str, warning: str) -> bool:
    """Whether a log of a row's runs has this warning."""
    logs = (store.run_folder(here.folders[training], row, repeat) / store.LOG_FILE for repeat in here.runs(training, row))
    return any(warning in log.read_text("utf-8", errors="replace") for log in logs if log.exists())


def search_gain(here: Here, claim: schema.SearchGain) -> Judgement:
    if here.tuned is None:
        return CANNOT_TELL, ["Nothing was searched."]
    stated = here.paper.table(claim.table).figure("speedup", claim.jobs)
    cores = machine.available_cores()
    gains = {gain.jobs: gain.seconds for gain in tuning_findings.find(here.tuned).gains if gain.seconds}
    disturbed = tuning_findings.disturbed(here.tuned)
    evidence = [
        f"{jobs} jobs: {verdict_words.interval_words(each.ratio)} times as fast as 1{verdict_words.p_value_text(each)}."
        for jobs, each in gains.items()
        if not disturbed
    ]
    if disturbed:
        evidence = [f"Other work disturbed {wording.count(len(disturbed), 'search', 'searches')}: no finding."]
    if cores < claim.jobs and not here.setting.gpus:
        needed = f"{claim.jobs} jobs need {claim.jobs} cores, or a GPU that is idle otherwise: here are {cores}."
        return CANNOT_TELL, [needed, *evidence]
    if disturbed:
        return CANNOT_TELL, evidence
    gain = gains.get(claim.jobs)
    if gain is None or not gain.ratio.has_enough_pairs or gain.ratio.low is None or gain.ratio.high is None:
        return CANNOT_TELL, [*evidence, "There are too few repeats to tell."]
    if gain.verdict == "above" and gain.ratio.low <= stated <= gain.ratio.high:
        return "reproduced", [*evidence, f"That holds the {stated:g} times."]
    if gain.verdict == "below":
        return "not reproduced", evidence
    shown = "A gain, but not the" if gain.verdict == "above" else "It does not tell a gain of the"
    return CANNOT_TELL, [*evidence, f"{shown} {stated:g} times."]

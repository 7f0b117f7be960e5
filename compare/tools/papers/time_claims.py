"""Judgements of claims on times, over repeats."""

from __future__ import annotations

import statistics as python_statistics

from common.machine.interference import DISTURBED_FROM
from compare.cli import wording
from compare.results import store
from compare.statistics import statistics, verdict_words
from compare.statistics.statistics import JudgedRatio, Ratio
from compare.tools.data import preprocess_report
from compare.tools.papers import judging, schema
from compare.tools.papers.judging import CANNOT_TELL, Judgement, Verdict
from compare.tools.papers.local_results import LocalResults
from compare.tools.papers.plan import AS_IT_WAS, CORRECTED
from compare.tools.tuning import tuning_findings


def faster_than(results: LocalResults, claim: schema.FasterThan) -> Judgement:
    run, than = (judging.corrected_row(results, name) for name in (claim.run, claim.than))
    if results.paper.runs[claim.run].framework == results.paper.runs[claim.than].framework:
        ratio = judging.speedup(results, CORRECTED, run)
    else:
        ratio = judging.framework_times(results, run, than)
    summary = results.summary(CORRECTED, run)
    where = f"on {summary.device or 'an unknown device'}, {summary.cores} cores" if summary else "not run"
    what = f"epoch seconds of {than} over those of {run}, {where}"
    verdict, words = judging.unless_disturbed(
        results, CORRECTED, (run, than), judging.judge_above_one(ratio, what), f"{what}: "
    )
    evidence = [judging.as_sentence(words)]
    if results.setting.gpus < claim.gpus:
        return CANNOT_TELL, [_needs_gpus(claim.gpus), *evidence]
    return verdict, evidence


def _needs_gpus(gpus: int) -> str:
    return f"It needs {'a GPU' if gpus == 1 else f'{gpus} GPUs'}, as the paper's runs had."


def gains_more(results: LocalResults, claim: schema.GainsMore) -> Judgement:
    training = CORRECTED if claim.corrected else AS_IT_WAS
    rows: dict[str, tuple[str, str]] = {}
    for name in (*claim.runs, claim.than):
        if claim.corrected:
            rows[name] = judging.corrected_pair(results, results.paper.runs[name].framework)
        else:
            rows[name] = name, _serial_of(results, name)
    ratios = {name: judging.seconds_ratio(results, training, alone, row) for name, (row, alone) in rows.items()}
    complete = {name: ratio for name, ratio in ratios.items() if ratio}
    all_rows = list(dict.fromkeys(row for pair in rows.values() for row in pair))
    doubt = judging.doubt_reason(results, training, all_rows)
    reliable = {} if judging.is_without_ratio(results, training, all_rows) else complete
    evidence = [f"{name}: {verdict_words.interval_words(ratio)} times as fast as serial." for name, ratio in reliable.items()]
    if claim.table:
        table, column = claim.table
        seconds = {schema.run_name(key): row[column] for key, row in results.paper.table(table).rows.items()}
        gains = [f"{name} {(seconds[_serial_of(results, name)] or 0) / (seconds[name] or 1):.2f}" for name in rows]
        evidence.append(f"By the paper's own seconds: {', '.join(gains)} times.")
    if doubt:
        evidence.append(doubt)
    if results.setting.gpus < claim.gpus:
        if not claim.corrected:
            pair = judging.corrected_pair(results, results.paper.runs[claim.than].framework)
            words = "replicas on CPU cores over serial on as many"
            judged = judging.judge_above_one(judging.speedup(results, CORRECTED, pair[0]), words)
            evidence.append(judging.as_sentence(judging.unless_disturbed(results, CORRECTED, pair, judged, f"{words}: ")[1]))
        return CANNOT_TELL, [_needs_gpus(claim.gpus), *evidence]
    if claim.than not in complete:
        return CANNOT_TELL, [f"{claim.than} was not run, or failed.", *evidence]
    if doubt:
        return CANNOT_TELL, evidence
    best = max((complete[name] for name in claim.runs if name in complete), key=lambda ratio: ratio.value, default=None)
    missing = claim.corrected and len(complete) < len(ratios)
    if best is None or missing or not all(ratio.has_enough_pairs for ratio in complete.values()):
        return CANNOT_TELL, [*evidence, "There are too few repeats to tell."]
    return judging.judge_larger_gain(best, complete[claim.than]), evidence


def _serial_of(results: LocalResults, name: str) -> str:
    """Return the published serial run of the framework of a run."""
    runs = results.paper.runs
    return next(run_name for run_name, run in runs.items() if run.framework == runs[name].framework and not run.parallel)


def scans_scale_more(results: LocalResults, claim: schema.ScansScaleMore) -> Judgement:
    max_workers = max((row["workers"] for row in results.scans or []), default=1)
    engines = (claim.than_engine, claim.engine)
    rows = {(engine, workers): results.scan(engine, workers) for engine in engines for workers in (1, max_workers)}
    if not all(rows.values()):
        return CANNOT_TELL, ["The scans were not all made."]
    if max_workers == 1:
        return CANNOT_TELL, ["No scan was made by more than one worker."]
    finished = {key: row for key, row in rows.items() if row}
    seconds = {key: [scan["seconds"] for scan in row["scans"]] for key, row in finished.items()}
    gains = {
        engine: [a / b for a, b in zip(seconds[engine, 1], seconds[engine, max_workers], strict=True)] for engine in engines
    }
    ratio = statistics.paired_ratio(list(zip(gains[claim.engine], gains[claim.than_engine], strict=True)))
    judged = statistics.verdicts([("gain", ratio)])[0] if ratio else None
    what = f"the gain of {claim.engine} over the gain of {claim.than_engine}, {max_workers} workers against 1"
    verdict, words = judging.judge_above_one(judged, what)
    own_gain = statistics.paired_ratio(list(zip(seconds[claim.engine, 1], seconds[claim.engine, max_workers], strict=True)))
    cores = results.setting.cores
    taken = max(map(preprocess_report.cores_taken, finished.values()))
    disturbed = taken > DISTURBED_FROM
    tasks = min(row["tasks"] for row in finished.values())
    unclear = [
        *([f"It needs the {claim.cores} cores of the paper: here are {cores}."] if cores < claim.cores else []),
        *(
            [f"No more than {tasks} of the {max_workers} workers had work: there are no more tasks."]
            if tasks < max_workers
            else []
        ),
        *([f"Other work took up to {taken:.2f} cores from a scan."] if disturbed else []),
        *(
            [f"What {claim.engine} gains by itself is not shown."]
            if verdict == "reproduced" and not _surely_gains(own_gain)
            else []
        ),
    ]
    medians = ", ".join(f"{engine} {python_statistics.median(values):.2f} times" for engine, values in gains.items())
    paces = ", ".join(f"{engine} x1 {python_statistics.median(seconds[engine, 1]):.2f} s" for engine in engines)
    return CANNOT_TELL if unclear else verdict, [
        *unclear,
        f"With {max_workers} workers on {wording.count(cores, 'core')}: {'no finding' if disturbed else medians}; the paper "
        f"had {claim.cores} cores.",
        *([] if disturbed else [judging.as_sentence(words)]),
        f"What scales from a slower start gains more: {paces}.",
    ]


def _surely_gains(ratio: Ratio | None) -> bool:
    return ratio is not None and ratio.has_enough_pairs and (ratio.low or 0.0) > 1.0


def no_gain_beyond_cores(results: LocalResults, claim: schema.NoGainBeyondCores) -> Judgement:
    cores = results.setting.cores
    training = results.training_of(claim.base)
    by_workers = {
        row.spec.workers: row.id
        for published_training in results.plan.faithful
        for row in published_training.rows
        if row.spec.workers
    }
    within, beyond = ([count for count in sorted(by_workers) if (count <= cores) is inside] for inside in (True, False))
    if not within or not beyond:
        return CANNOT_TELL, [f"There are no runs with workers up to and beyond the {cores} cores here."]
    most_row = by_workers[within[-1]]
    run = [count for count in beyond if results.runs(training, by_workers[count])]
    ratios = {count: ratio for count in run if (ratio := judging.seconds_ratio(results, training, most_row, by_workers[count]))}
    relative_gains = [(f"{count}", statistics.relative_to(ratio, claim.gain)) for count, ratio in ratios.items()]
    judged = dict(zip(ratios, statistics.verdicts(relative_gains), strict=True))
    verdicts: list[Verdict] = []
    evidence: list[str] = []
    within_gains = judging.seconds_ratio(results, training, claim.base, most_row)
    if within_gains:
        text = f"{verdict_words.interval_words(within_gains)} times as fast as {claim.base}"
        text = judging.unless_disturbed(results, training, (claim.base, most_row), ("reproduced", text))[1]
        evidence.append(f"{within[-1]} workers: {text}.")
    for count in beyond:
        gain = no_gain(ratios.get(count), judged.get(count), claim.gain)
        verdict, words = judging.unless_disturbed(results, training, (most_row, by_workers[count]), gain)
        verdicts.append(verdict)
        evidence.append(f"{count} workers against {within[-1]} on {wording.count(cores, 'core')}: {words}.")
    without_warning = [count for count in run if not warned(results, training, by_workers[count], claim.warning)]
    if run:
        verb, workers = ("did not warn", without_warning) if without_warning else ("warned", run)
        framework = results.paper.runs[claim.base].framework
        evidence.append(f"{framework} {verb} of it in the runs with {', '.join(map(str, workers))} workers.")
    if without_warning:
        return "not reproduced", evidence
    if within[-1] < cores:  # a gain up to there shows nothing about more workers than cores
        return CANNOT_TELL, [*evidence, f"There are no runs with as many workers as the {cores} cores here."]
    joined = judging.combine(verdicts)
    if joined != "not reproduced" and run and not _surely_gains(within_gains):
        return CANNOT_TELL, [
            *evidence,
            "Workers up to the cores show no gain either. So these runs do not wait for their input.",
        ]
    return joined, evidence


def no_gain(ratio: Ratio | None, judged: JudgedRatio | None, gain: float) -> tuple[Verdict, str]:
    """Compare more workers with as many as cores. `judged` compares that ratio with the gain."""
    if ratio is None or judged is None:
        return CANNOT_TELL, "not measured"
    text = f"{verdict_words.interval_words(ratio)} times as fast"
    if not ratio.has_enough_pairs or ratio.high is None:
        return CANNOT_TELL, f"{text}; too few repeats to tell"
    gain_text = f"{100 * (gain - 1):.0f} %"
    if ratio.high < gain:
        return "reproduced", f"{text}: a gain of {gain_text} is ruled out"
    if judged.verdict == "above":
        return "not reproduced", f"{text}: they gain more than {gain_text}{verdict_words.p_value_text(judged)}"
    return CANNOT_TELL, f"{text}: neither a gain of {gain_text} nor its absence is shown"


def warned(results: LocalResults, training: str, row: str, warning: str) -> bool:
    """Tell whether a log of a row's runs has this warning."""
    logs = (store.run_folder(results.folders[training], row, repeat) / store.LOG_FILE for repeat in results.runs(training, row))
    return any(warning in log.read_text("utf-8", errors="replace") for log in logs if log.exists())


def search_gain(results: LocalResults, claim: schema.SearchGain) -> Judgement:
    if results.tuning is None:
        return CANNOT_TELL, ["Nothing was searched."]
    stated = results.paper.table(claim.table).figure("speedup", claim.jobs)
    cores = results.setting.cores
    gains = {gain.jobs: gain.seconds for gain in tuning_findings.judge_tuning(results.tuning).gains if gain.seconds}
    disturbed = tuning_findings.disturbed(results.tuning)
    evidence = [
        f"{jobs} jobs: {verdict_words.interval_words(judged_ratio.ratio)} times as fast as 1"
        f"{verdict_words.p_value_text(judged_ratio)}."
        for jobs, judged_ratio in gains.items()
        if not disturbed
    ]
    if disturbed:
        evidence = [f"Other work disturbed {wording.count(len(disturbed), 'search', 'searches')}: no finding."]
    if cores < claim.jobs and not results.setting.gpus:
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
    start = "A gain, but not the" if gain.verdict == "above" else "It does not tell a gain of the"
    return CANNOT_TELL, [*evidence, f"{start} {stated:g} times."]

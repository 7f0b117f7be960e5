"""Claims on times, judged over repeats."""

from __future__ import annotations

import statistics as python_statistics
from typing import Literal

from common.machine.interference import DISTURBED_FROM
from compare.cli import wording
from compare.judgement.summary import family
from compare.results import store
from compare.statistics import statistics, verdict_words
from compare.statistics.statistics import JudgedRatio, Ratio
from compare.tools.data import preprocess_report
from compare.tools.papers.judging import CANNOT_TELL, Judgement, Verdict, as_sentence, combine, doubts, unless_disturbed
from compare.tools.papers.local_results import LocalResults
from compare.tools.papers.plan import AS_IT_WAS, CORRECTED
from compare.tools.papers.schema import PublishedClaim, run_name
from compare.tools.tuning import tuning_findings


def _above_one(judged: JudgedRatio | None, words: str) -> tuple[Verdict, str]:
    """Judge whether a ratio is above one.

    Args:
        words: names the ratio, e.g. `data_parallel x2 over serial`.
    """
    if judged is None:
        return CANNOT_TELL, f"{words}: one of the two was not run here, or was too short to be timed"
    text = f"{words}: {verdict_words.interval_words(judged.ratio)} times{verdict_words.p_value_text(judged)}"
    match judged.verdict:
        case "above":
            return "reproduced", text
        case "below":
            return "not reproduced", text
        case _:
            return CANNOT_TELL, f"{text}: {judged.verdict}"


def _framework_times(results: LocalResults, first: str, second: str) -> JudgedRatio | None:
    """Return the second row's seconds over the first's, judged in the family of its comparison. None if one is missing."""
    report = results.trainings.get(CORRECTED)
    contestant_ratios = family(report.stored, report.summaries).contestants if report else []
    return next(
        (judged for first_row, second_row, judged in contestant_ratios if (first_row.id, second_row.id) == (first, second)),
        None,
    )


def _speedup(results: LocalResults, row: str) -> JudgedRatio | None:
    """Return a corrected mode's speed-up over serial on the same cores, judged in its family. None if not run."""
    report = results.trainings.get(CORRECTED)
    return family(report.stored, report.summaries).modes.get(row) if report else None


class FasterThan(PublishedClaim):
    """Claim: a run is faster than another, corrected."""

    kind: Literal["faster_than"]
    run: str
    than: str

    def judge(self, results: LocalResults) -> Judgement:
        run, than = (results.corrected_row(name) for name in (self.run, self.than))
        if results.paper.runs[self.run].framework == results.paper.runs[self.than].framework:
            ratio = _speedup(results, run)
        else:
            ratio = _framework_times(results, run, than)
        summary = results.summary(CORRECTED, run)
        where = f"on {summary.device or 'an unknown device'}, {summary.cores} cores" if summary else "not run"
        what = f"epoch seconds of {than} over those of {run}, {where}"
        verdict, words = unless_disturbed(results, CORRECTED, (run, than), _above_one(ratio, what), f"{what}: ")
        evidence = [as_sentence(words)]
        if results.setting.gpus < self.gpus:
            return CANNOT_TELL, [_needs_gpus(self.gpus), *evidence]
        return verdict, evidence


def _needs_gpus(gpus: int) -> str:
    return f"It needs {'a GPU' if gpus == 1 else f'{gpus} GPUs'}, as the paper's runs had."


class GainsMore(PublishedClaim):
    """Claim: the best of these runs gains more over serial than another run does."""

    kind: Literal["gains_more"]
    runs: tuple[str, ...]
    than: str
    corrected: bool
    """Whether the corrected runs are judged, or the published ones."""
    table: tuple[str, str] | None = None
    """Table and column of the seconds that the paper states."""

    def judge(self, results: LocalResults) -> Judgement:
        training = CORRECTED if self.corrected else AS_IT_WAS
        rows: dict[str, tuple[str, str]] = {}
        for name in (*self.runs, self.than):
            if self.corrected:
                rows[name] = results.corrected_pair(results.paper.runs[name].framework)
            else:
                rows[name] = name, _serial_of(results, name)
        ratios = {name: results.seconds_ratio(training, alone, row) for name, (row, alone) in rows.items()}
        complete = {name: ratio for name, ratio in ratios.items() if ratio}
        all_rows = list(dict.fromkeys(row for pair in rows.values() for row in pair))
        doubt, has_ratio = doubts(results, training, all_rows)
        evidence = [
            f"{name}: {verdict_words.interval_words(ratio)} times as fast as serial."
            for name, ratio in complete.items()
            if has_ratio
        ]
        if self.table:
            table, column = self.table
            seconds = {run_name(key): row[column] for key, row in results.paper.table(table).rows.items()}
            gains = [f"{name} {(seconds[_serial_of(results, name)] or 0) / (seconds[name] or 1):.2f}" for name in rows]
            evidence.append(f"By the paper's own seconds: {', '.join(gains)} times.")
        if doubt:
            evidence.append(doubt)
        if results.setting.gpus < self.gpus:
            if not self.corrected:
                pair = results.corrected_pair(results.paper.runs[self.than].framework)
                words = "replicas on CPU cores over serial on as many"
                judged = _above_one(_speedup(results, pair[0]), words)
                evidence.append(as_sentence(unless_disturbed(results, CORRECTED, pair, judged, f"{words}: ")[1]))
            return CANNOT_TELL, [_needs_gpus(self.gpus), *evidence]
        if self.than not in complete:
            return CANNOT_TELL, [f"{self.than} was not run, or failed.", *evidence]
        if doubt:
            return CANNOT_TELL, evidence
        best = max((complete[name] for name in self.runs if name in complete), key=lambda ratio: ratio.value, default=None)
        missing = self.corrected and len(complete) < len(ratios)
        if best is None or missing or not all(ratio.has_enough_pairs for ratio in complete.values()):
            return CANNOT_TELL, [*evidence, "There are too few repeats to tell."]
        return _larger_gain(best, complete[self.than]), evidence


def _larger_gain(first: Ratio, second: Ratio) -> Verdict:
    """Judge whether the first of two speed-ups, both with enough repeats, is surely the larger one, and a gain at all."""
    first_low, first_high, second_low, second_high = (end or 0.0 for end in (first.low, first.high, second.low, second.high))
    if first_low > max(second_high, 1.0):
        return "reproduced"
    return "not reproduced" if first_high < max(second_low, 1.0) else CANNOT_TELL


def _serial_of(results: LocalResults, name: str) -> str:
    """Return the published serial run of the framework of a run."""
    runs = results.paper.runs
    return next(run_name for run_name, run in runs.items() if run.framework == runs[name].framework and not run.parallel)


class ScansScaleMore(PublishedClaim):
    """Claim: an engine gains more by workers than another."""

    kind: Literal["scans_scale_more"]
    engine: str
    than_engine: str
    cores: int
    """Number of cores of the paper's machine."""

    def judge(self, results: LocalResults) -> Judgement:
        max_workers = max((row["workers"] for row in results.scans or []), default=1)
        engines = (self.than_engine, self.engine)
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
        ratio = statistics.paired_ratio(list(zip(gains[self.engine], gains[self.than_engine], strict=True)))
        judged = statistics.verdicts([("gain", ratio)])[0] if ratio else None
        what = f"the gain of {self.engine} over the gain of {self.than_engine}, {max_workers} workers against 1"
        verdict, words = _above_one(judged, what)
        own_gain = statistics.paired_ratio(list(zip(seconds[self.engine, 1], seconds[self.engine, max_workers], strict=True)))
        cores = results.setting.cores
        taken = max(map(preprocess_report.cores_taken, finished.values()))
        disturbed = taken > DISTURBED_FROM
        tasks = min(row["tasks"] for row in finished.values())
        unclear = [
            *([f"It needs the {self.cores} cores of the paper: here are {cores}."] if cores < self.cores else []),
            *(
                [f"No more than {tasks} of the {max_workers} workers had work: there are no more tasks."]
                if tasks < max_workers
                else []
            ),
            *([f"Other work took up to {taken:.2f} cores from a scan."] if disturbed else []),
            *(
                [f"What {self.engine} gains by itself is not shown."]
                if verdict == "reproduced" and not _surely_gains(own_gain)
                else []
            ),
        ]
        medians = ", ".join(f"{engine} {python_statistics.median(values):.2f} times" for engine, values in gains.items())
        paces = ", ".join(f"{engine} x1 {python_statistics.median(seconds[engine, 1]):.2f} s" for engine in engines)
        return CANNOT_TELL if unclear else verdict, [
            *unclear,
            f"With {max_workers} workers on {wording.count(cores, 'core')}: {'not known' if disturbed else medians}; the "
            f"paper had {self.cores} cores.",
            *([] if disturbed else [as_sentence(words)]),
            f"What scales from a slower start gains more: {paces}.",
        ]


def _surely_gains(ratio: Ratio | None) -> bool:
    return ratio is not None and ratio.has_enough_pairs and (ratio.low or 0.0) > 1.0


class NoGainBeyondCores(PublishedClaim):
    """Claim: more loader workers than cores give nothing more."""

    kind: Literal["no_gain_beyond_cores"]
    base: str
    gain: float
    """The smallest speed-up that counts as a gain of more workers."""
    warning: str
    """Text of the framework's warning in the log."""

    def judge(self, results: LocalResults) -> Judgement:
        cores = results.setting.cores
        training = results.training_of(self.base)
        by_workers = {row.spec.workers: row.id for row in results.plan.published_rows if row.spec.workers}
        within, beyond = ([count for count in sorted(by_workers) if (count <= cores) is inside] for inside in (True, False))
        if not within or not beyond:
            return CANNOT_TELL, [f"There are no runs with workers up to and beyond the {cores} cores here."]
        most_row = by_workers[within[-1]]
        run = [count for count in beyond if results.runs(training, by_workers[count])]
        ratios = {count: ratio for count in run if (ratio := results.seconds_ratio(training, most_row, by_workers[count]))}
        relative_gains = [(f"{count}", statistics.relative_to(ratio, self.gain)) for count, ratio in ratios.items()]
        judged = dict(zip(ratios, statistics.verdicts(relative_gains), strict=True))
        verdicts: list[Verdict] = []
        evidence: list[str] = []
        within_gains = results.seconds_ratio(training, self.base, most_row)
        if within_gains:
            text = f"{verdict_words.interval_words(within_gains)} times as fast as {self.base}"
            text = unless_disturbed(results, training, (self.base, most_row), ("reproduced", text))[1]
            evidence.append(f"{within[-1]} workers: {text}.")
        for count in beyond:
            gain = no_gain(ratios.get(count), judged.get(count), self.gain)
            verdict, words = unless_disturbed(results, training, (most_row, by_workers[count]), gain)
            verdicts.append(verdict)
            evidence.append(f"{count} workers against {within[-1]} on {wording.count(cores, 'core')}: {words}.")
        without_warning = [count for count in run if not warned(results, training, by_workers[count], self.warning)]
        if run:
            verb, workers = ("did not warn", without_warning) if without_warning else ("warned", run)
            framework = results.paper.runs[self.base].framework
            evidence.append(f"{framework} {verb} of it in the runs with {', '.join(map(str, workers))} workers.")
        if without_warning:
            return "not reproduced", evidence
        if within[-1] < cores:  # a gain up to there shows nothing about more workers than cores
            return CANNOT_TELL, [*evidence, f"There are no runs with as many workers as the {cores} cores here."]
        joined = combine(verdicts)
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


class SearchGain(PublishedClaim):
    """Claim: parallel trials make a search as many times as fast as a table says."""

    kind: Literal["search_gain"]
    table: str
    jobs: int

    def judge(self, results: LocalResults) -> Judgement:
        if results.tuning is None:
            return CANNOT_TELL, ["Nothing was searched."]
        stated = results.paper.table(self.table).figure("speedup", self.jobs)
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
            evidence = [f"Other work disturbed {wording.count(len(disturbed), 'search', 'searches')}: not known."]
        if cores < self.jobs and not results.setting.gpus:
            needed = f"{self.jobs} jobs need {self.jobs} cores, or a GPU that is idle otherwise: here are {cores}."
            return CANNOT_TELL, [needed, *evidence]
        if disturbed:
            return CANNOT_TELL, evidence
        gain = gains.get(self.jobs)
        if gain is None or not gain.ratio.has_enough_pairs or gain.ratio.low is None or gain.ratio.high is None:
            return CANNOT_TELL, [*evidence, "There are too few repeats to tell."]
        if gain.verdict == "above" and gain.ratio.low <= stated <= gain.ratio.high:
            return "reproduced", [*evidence, f"That holds the {stated:g} times."]
        if gain.verdict == "below":
            return "not reproduced", evidence
        start = "A gain, but not the" if gain.verdict == "above" else "It does not tell a gain of the"
        return CANNOT_TELL, [*evidence, f"{start} {stated:g} times."]

"""Local results for a paper, and the reasons of its open cells."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from common.artifacts.schema import EpochRecord, RunResult
from common.spec import plain_values
from compare.judgement.row_figures import Summary
from compare.judgement.run_pairs import ratio_of_seconds
from compare.reporting.comparison_report import JudgedComparison
from compare.reporting.document import COMPARE
from compare.results.store import flatten
from compare.statistics.statistics import Ratio
from compare.tools.evaluation.scoring import EvaluationRecord
from compare.tools.papers.plan import AS_IT_WAS, CORRECTED, ReproductionPlan, ReproductionSetting
from compare.tools.papers.schema import SCALES, Paper, Scale
from compare.tools.tuning.records import TuningRecord

FAILED = "the run failed here: see the cautions"
"""Reason of open cells of an unfinished run."""


@dataclass(frozen=True)
class LocalResults:
    """All local results for a paper."""

    plan: ReproductionPlan
    trainings: dict[str, JudgedComparison]
    """Comparisons by name, with the corrected one."""
    folders: dict[str, Path]
    """Folders of the trainings, by name."""
    scans: list[dict[str, Any]] | None = None
    """Rows of the preprocessing, in the form of `preprocess_report.to_rows`."""
    tuning: TuningRecord | None = None
    evaluation: EvaluationRecord | None = None
    final_epoch: EpochRecord | None = None
    """Epoch whose weights the final training kept."""

    @property
    def paper(self) -> Paper:
        return self.plan.paper

    @property
    def setting(self) -> ReproductionSetting:
        return self.plan.setting

    @property
    def has_other_data(self) -> bool:
        """Whether the runs had other data than the paper's, so that no score of it can be expected of them."""
        return any(
            not self.paper.matches_classes(training.stored.comparison.class_names) for training in self.trainings.values()
        )

    def training_of(self, run: str) -> str:
        """Return the name of the comparison that a published run belongs to."""
        return AS_IT_WAS if self.paper.as_it_was.together else run

    def summary(self, training: str, row: str) -> Summary | None:
        """Return a row of a training. None if it is missing, or no run finished."""
        report = self.trainings.get(training)
        summaries = [summary for summary in report.summaries if summary.id == row] if report else []
        return summaries[0] if summaries and summaries[0].repeats_done else None

    def runs(self, training: str, row: str) -> dict[int, RunResult]:
        """Return the good runs of a row, by repeat."""
        report = self.trainings.get(training)
        runs = report.stored.runs.get(row, {}) if report else {}
        return {repeat: run for repeat, run in sorted(runs.items()) if run.status in ("ok", "not parallel")}

    @cached_property
    def unsound_reason(self) -> str:
        """Why the corrected runs show nothing. Empty if they are the same training, or were not run."""
        report = self.trainings.get(CORRECTED)
        if report is None:
            return ""
        proof = report.stored.comparison.proof
        if proof is not None and proof.verdict == "not proved":
            return "The proof that the corrected runs are the same training did not hold: see their page."
        return "" if report.findings.comparable else "The corrected runs were not the same training: see their page."

    def corrected_pair(self, framework: str) -> tuple[str, str]:
        """Return the ids of a framework's corrected rows: data parallel, and serial on as many cores."""
        rows = [row for row in self.plan.corrected.rows if row.contestant == framework]
        parallel = next(row for row in rows if row.spec.is_parallel)
        serial = next(row for row in rows if not row.spec.is_parallel and row.spec.cores == parallel.spec.cores)
        return parallel.id, serial.id

    def corrected_row(self, run: str) -> str:
        """Return the corrected row that stands for a published run."""
        published = self.paper.runs[run]
        parallel, alone = self.corrected_pair(published.framework)
        return parallel if published.parallel else alone

    def seconds_ratio(self, training: str, slow: str, fast: str) -> Ratio | None:
        """Return the epoch seconds of one row divided by those of another, over repeats. None if one is missing."""
        report = self.trainings.get(training)
        rows = {row.id: row for row in report.stored.comparison.rows} if report else {}
        if report is None or not {slow, fast} <= rows.keys():
            return None
        return ratio_of_seconds(report.stored, slow=rows[slow], fast=rows[fast])

    def epochs_of(self, run: str) -> list[EpochRecord]:
        """Return the epochs of the first good repeat of a published run."""
        return next((result.epochs for result in self.runs(self.training_of(run), run).values()), [])

    def epoch_seconds(self, run: str, images: int) -> float | None:
        """Return the seconds of an epoch of `images` images, at the measured pace of a published run."""
        summary = self.summary(self.training_of(run), run)
        pace = summary.images_per_second if summary else None
        return images / pace.median if pace else None

    def scan(self, engine: str, workers: int) -> dict[str, Any] | None:
        """Return the finished scans of an engine with `workers` workers."""
        rows = [row for row in self.scans or [] if (row["engine"], row["workers"]) == (engine, workers)]
        return rows[0] if rows and rows[0]["status"] == "ok" else None

    def lacks_gpus(self, run: str) -> bool:
        """Tell whether a published run needs more GPUs than are here."""
        return self.setting.gpus < self.paper.runs[run].gpus

    def why_not_run(self, run: str, epoch: int = 1) -> str:
        """Say why a published run, or an epoch of it, is missing."""
        published_run, setting = self.paper.runs[run], self.setting
        # A single GPU runs no replicas, not even on cores.
        if self.lacks_gpus(run) and (setting.gpus == 1 or not published_run.replicas_on_cores):
            return self.needs_gpus(run, epoch)
        if SCALES.index(setting.scale) < SCALES.index(published_run.first_scale):
            return reason_at_scale(
                self.paper, setting, f"not run at scale {setting.scale}", filled_at=published_run.first_scale
            )
        return FAILED

    def needs_gpus(self, run: str, epoch: int = 1) -> str:
        """Name the GPUs that a cell needs, and the command that fills it: at this scale, or the full one for later epochs."""
        published_run, setting = self.paper.runs[run], self.setting
        epochs = self.paper.scales[setting.scale].epochs or published_run.epochs
        needed = reproduce_command(self.paper, setting, setting.scale if epoch <= epochs else SCALES[-1])
        return f"needs {published_run.gpus} GPUs; there: {needed}"


def reason_after_last_epoch(paper: Paper, setting: ReproductionSetting, epochs: int) -> str:
    """Say why cells after the last epoch that was run are open, and name the command that fills them."""
    return reason_at_scale(paper, setting, f"after epoch {epochs} of scale {setting.scale}") if epochs else FAILED


def reason_at_scale(paper: Paper, setting: ReproductionSetting, reason: str, *, filled_at: Scale = SCALES[-1]) -> str:
    """Say why a cell is open that a larger scale fills, and name the command for that."""
    if SCALES.index(setting.scale) >= SCALES.index(filled_at):
        return reason
    return f"{reason}; all: {reproduce_command(paper, setting, filled_at)}"


def _is_plain(text: str) -> bool:
    """Tell whether YAML reads a text as itself, so that the command line needs no quotes of its own."""
    try:
        return plain_values.from_yaml(text) == text
    except plain_values.PlainValuesError:
        return False


def reproduce_command(paper: Paper, setting: ReproductionSetting, scale: Scale) -> str:
    """Return the command that reproduces a paper at that scale, with the settings used here."""
    words = ["reproduce", paper.argument, "--scale", scale]
    if not setting.synthetic:
        words += ["--data", setting.source]
    for field_name, value in flatten(dict(setting.values)).items():
        is_plain = isinstance(value, str) and _is_plain(value)
        words += ["--set", f"{field_name}={value if is_plain else json.dumps(value)}"]
    return f"{COMPARE} {shlex.join(words)}"

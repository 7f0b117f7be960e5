"""The results here for a paper, and the reasons of its open cells."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.artifacts.schema import EpochRecord, RunResult
from common.spec import plain_values
from compare.evaluation.final_training import Evaluated
from compare.execution.store import flatten
from compare.judgement.row_figures import Summary
from compare.papers.plan import AS_IT_WAS, Plan, Setting
from compare.papers.schema import SCALES, Paper, Scale
from compare.reporting.comparison_report import JudgedComparison
from compare.reporting.document import COMPARE
from compare.tuning.records import Tuned

FAILED = "the run failed here: see the cautions"
"""Why cells of an unfinished run are open."""


@dataclass(frozen=True)
class Here:
    """What was found here."""

    plan: Plan
    trainings: dict[str, JudgedComparison]
    """By name, with the corrected one."""
    folders: dict[str, Path]
    """Of the trainings."""
    scans: list[dict[str, Any]] | None = None
    """Rows of the preprocessing, as `preprocess_report.to_rows` has them."""
    tuned: Tuned | None = None
    evaluated: Evaluated | None = None
    final_epoch: EpochRecord | None = None
    """Whose weights the final training kept."""

    @property
    def paper(self) -> Paper:
        return self.plan.paper

    @property
    def setting(self) -> Setting:
        return self.plan.setting

    @property
    def other_data(self) -> bool:
        """Whether the runs had other data than the paper's, so that no score of it can be expected of them."""
        return any(not self.paper.is_of(each.stored.comparison.class_names) for each in self.trainings.values())

    def training_of(self, run: str) -> str:
        """The comparison of a published run."""
        return AS_IT_WAS if self.paper.as_it_was.together else run

    def summary(self, training: str, row: str) -> Summary | None:
        """A row of a training. None if it is missing, or no run finished."""
        report = self.trainings.get(training)
        found = [each for each in report.summaries if each.id == row] if report else []
        return found[0] if found and found[0].repeats_done else None

    def runs(self, training: str, row: str) -> dict[int, RunResult]:
        """The good runs of a row, by repeat."""
        report = self.trainings.get(training)
        kept = report.stored.runs.get(row, {}) if report else {}
        return {repeat: run for repeat, run in sorted(kept.items()) if run.status in ("ok", "not parallel")}

    def epochs_of(self, run: str) -> list[EpochRecord]:
        """Epochs of the first good repeat of a published run."""
        return next((result.epochs for result in self.runs(self.training_of(run), run).values()), [])

    def epoch_seconds(self, run: str, images: int) -> float | None:
        """Seconds of an epoch of so many images, at the measured pace of a published run."""
        found = self.summary(self.training_of(run), run)
        pace = found.images_per_second if found else None
        return images / pace.median if pace else None

    def scan(self, engine: str, workers: int) -> dict[str, Any] | None:
        """The finished scans of an engine with so many workers."""
        found = [row for row in self.scans or [] if (row["engine"], row["workers"]) == (engine, workers)]
        return found[0] if found and found[0]["status"] == "ok" else None

    def lacks_gpus(self, run: str) -> bool:
        """Whether a published run needs more GPUs than are here."""
        return self.setting.gpus < self.paper.runs[run].gpus

    def why_not_run(self, run: str, epoch: int = 1) -> str:
        """Why a published run, or an epoch of it, is missing."""
        known, setting = self.paper.runs[run], self.setting
        # A single GPU runs no replicas, not even on cores.
        if self.lacks_gpus(run) and (setting.gpus == 1 or not known.replicas_on_cores):
            return self.needs_gpus(run, epoch)
        if SCALES.index(setting.scale) < SCALES.index(known.first_scale):
            return not_at(self.paper, setting, f"not run at scale {setting.scale}", filled_at=known.first_scale)
        return FAILED

    def needs_gpus(self, run: str, epoch: int = 1) -> str:
        """The GPUs that a cell needs, and the command that fills it there: at this scale, or the full one for later epochs."""
        known, setting = self.paper.runs[run], self.setting
        epochs = self.paper.scales[setting.scale].epochs or known.epochs
        needed = command(self.paper, setting, setting.scale if epoch <= epochs else SCALES[-1])
        return f"needs {known.gpus} GPUs; there: {needed}"


def beyond(paper: Paper, setting: Setting, epochs: int) -> str:
    """Why cells after the last epoch that was run are open, and the command that fills them."""
    return not_at(paper, setting, f"after epoch {epochs} of scale {setting.scale}") if epochs else FAILED


def not_at(paper: Paper, setting: Setting, why: str, *, filled_at: Scale = SCALES[-1]) -> str:
    """Why a cell is open that a larger scale fills, and the command for that."""
    if SCALES.index(setting.scale) >= SCALES.index(filled_at):
        return why
    return f"{why}; all: {command(paper, setting, filled_at)}"


def _is_plain(text: str) -> bool:
    """Whether YAML reads a text as itself, so that the command line needs no quotes of its own."""
    try:
        return plain_values.from_yaml(text) == text
    except plain_values.PlainValuesError:
        return False


def command(paper: Paper, setting: Setting, scale: Scale) -> str:
    """The command that reproduces a paper at that scale, with the settings used here."""
    words = ["reproduce", paper.argument, "--scale", scale]
    if not setting.synthetic:
        words += ["--data", setting.source]
    for field_name, value in flatten(dict(setting.values)).items():
        plain = isinstance(value, str) and _is_plain(value)
        words += ["--set", f"{field_name}={value if plain else json.dumps(value)}"]
    return f"{COMPARE} {shlex.join(words)}"

"""Every measurement as pandas frames, for notebooks and other tools: one line for each run or epoch."""

from __future__ import annotations

from typing import Any

import pandas as pd

from common.artifacts.schema import Metrics, RunResult
from compare.judgement.figures import all_figures
from compare.judgement.run_figures import switches_words
from compare.results.store import StoredComparison
from compare.running.matrix import Row


def runs(stored: StoredComparison) -> pd.DataFrame:
    """One line for each run: its settings, its status, and all figures of a run."""
    figures = [figure for figure in all_figures() if figure.is_in_frame]
    frame = pd.DataFrame(
        [
            {
                **_identity(row, repeat, result),
                "status": result.status,
                **{figure.name: figure.of_run(result, stored.comparison) for figure in figures},
            }
            for row, repeat, result in _all_runs(stored)
        ]
    )
    recorded = {figure.part_of for figure in figures if figure.name in frame and bool(frame[figure.name].notna().any())}
    return frame.drop(
        columns=[figure.name for figure in figures if figure.part_of and figure.part_of not in recorded], errors="ignore"
    )


def epochs(stored: StoredComparison) -> pd.DataFrame:
    """One line for each epoch of each run: its scores, seconds and images per second."""
    return pd.DataFrame(
        [
            {
                **identity,
                "epoch": record.epoch,
                "learning_rate": record.learning_rate,
                **_scores("train", record.train),
                **_scores("validation", record.validation),
                "seconds": record.seconds,
                "images_per_second": record.images_per_second,
                "input_wait_seconds": record.input_wait_seconds,
                "evaluation_seconds": record.evaluation_seconds,
            }
            for row, repeat, result in _all_runs(stored)
            for identity in [_identity(row, repeat, result)]
            for record in result.epochs
        ]
    )


def _all_runs(stored: StoredComparison) -> list[tuple[Row, int, RunResult]]:
    return [
        (row, repeat, result)
        for row in stored.comparison.rows
        for repeat, result in sorted(stored.runs.get(row.id, {}).items())
    ]


def _identity(row: Row, repeat: int, result: RunResult) -> dict[str, Any]:
    spec = result.spec
    return {
        "run": row.id,
        "repeat": repeat,
        "seed": spec.seed,
        "contestant": row.contestant,
        "framework": result.framework,
        "model": spec.model_label,
        "mode": spec.variant,
        "replicas": spec.replicas,
        "input": spec.input,
        "workers": spec.workers,
        "cores": spec.cores,
        "precision": spec.precision,
        "switches": switches_words(spec),
    }


def _scores(split: str, scores: Metrics | None) -> dict[str, float | None]:
    return {f"{split}_loss": scores.loss if scores else None, f"{split}_accuracy": scores.accuracy if scores else None}

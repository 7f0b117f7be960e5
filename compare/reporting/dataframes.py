"""Every measurement as pandas frames, for notebooks and other tools: one line for each run or epoch."""

from __future__ import annotations

from typing import Any

import pandas as pd

from common.artifacts.schema import Metrics, RunResult, StepParts
from compare.execution.matrix import Row
from compare.execution.store import StoredComparison
from compare.judgement.run_figures import images_per_second, limit, switches_words, time_to_accuracy

_PARTS = [name for name in StepParts.model_fields if name.endswith("_seconds")]


def runs(stored: StoredComparison) -> pd.DataFrame:
    """One line for each run: its settings, status, scores, and wall seconds by phase."""
    return pd.DataFrame(
        [
            {
                **_identity(row, repeat, result),
                "status": result.status,
                "first_step_loss": result.first_step_loss,
                **_scores("test", result.test),
                **_target(stored.comparison.target_accuracy, result),
                "cores_used": result.cores_used,
                "peak_memory_pss_mib": result.peak_memory_pss_mib,
                "peak_memory_mib": result.peak_memory_mib,
                "device_peak_memory_mib": result.device_peak_memory_mib,
                "bytes_per_step": result.bytes_per_step,
                **(dict(result.phases) if result.phases else {}),
                **({name: getattr(result.step_parts, name) for name in _PARTS} if result.step_parts else {}),
                "cores_of_others": result.cores_of_others,
                **(dict(result.noise) if result.noise else {}),
                **_limit(stored, result),
            }
            for row, repeat, result in _all_runs(stored)
        ]
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


def _target(accuracy: float | None, result: RunResult) -> dict[str, float | None]:
    if accuracy is None:
        return {}
    seconds, epochs = time_to_accuracy(result, accuracy) or (None, None)
    return {"target_accuracy": accuracy, "target_seconds": seconds, "target_epochs": epochs}


def _limit(stored: StoredComparison, result: RunResult) -> dict[str, float | None]:
    rate = images_per_second(result) if result.epochs else float("nan")
    run_limit = limit(stored.comparison, result.spec, result.device, rate)
    return run_limit.model_dump() if run_limit else {}


def _scores(split: str, scores: Metrics | None) -> dict[str, float | None]:
    return {f"{split}_loss": scores.loss if scores else None, f"{split}_accuracy": scores.accuracy if scores else None}

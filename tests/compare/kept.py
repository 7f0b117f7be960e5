"""Measurements made up by hand and written as the suite and pytest-benchmark write them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.artifacts import results
from common.artifacts.schema import Metrics
from compare.execution import store
from compare.execution.matrix import Row
from compare.execution.store import ProofRecord
from tests.compare import made

NOISE = (1.0, 1.02, 0.98, 1.01, 0.99)
"""Of five repeats: 1.6 % of standard deviation."""
MACHINE = {"processor": "Some CPU", "logical_cores": 2, "python": "3.11.2", "commit": "a" * 40, "dirty": False}


def folder(
    path: Path,
    seconds: Mapping[str, float],
    *,
    noise: Sequence[float] = NOISE,
    created_at: str = "2026-01-01T00:00:00+00:00",
    machine: dict[str, Any] | None = None,
    verdict: str | None = None,
    accuracy: float | Sequence[float] = 0.7,
    seeds: Sequence[int] = (),
    first_losses: Mapping[str, float] | None = None,
    rows: Sequence[Row] | None = None,
    changed: Mapping[str, Any] | None = None,
    **plan: Any,
) -> Path:
    """A results folder.

    Args:
        path: of the folder.
        seconds: framework: an epoch's, of its serial row.
        noise: factor of each repeat.
        created_at: of the comparison.
        machine: what it says of the machine beyond MACHINE.
        verdict: of the proof; None: there was none.
        accuracy: on the test split of 1,000 examples, of all repeats or of each.
        seeds: of the repeats; none: all have the same.
        first_losses: framework: before any update; 2.3 of those that are not in it.
        rows: one a framework; None: serial on two cores.
        changed: fields of each result.
        plan: fields of the comparison.
    """
    rows = rows or [made.row(framework) for framework in seconds]
    modes = {framework: {"serial": verdict} for framework in seconds} if verdict else {}
    proof = ProofRecord(verdict=verdict, sentence="Losses agree.", mode_verdicts=modes) if verdict else None
    comparison = made.comparison(list(rows), repeats=len(noise), proof=proof)
    own = {"created_at": created_at, "machine": MACHINE | (machine or {}), "seeds": list(seeds), **plan}
    comparison = comparison.model_copy(update=own)
    store.write_plan(path, comparison)
    accuracies = [accuracy] * len(noise) if isinstance(accuracy, float) else accuracy
    for row in rows:
        for repeat, factor in enumerate(noise):
            first_loss = (first_losses or {}).get(row.contestant, 2.3)
            run = made.good(row, seconds[row.contestant] * factor, repeat, first_step_loss=first_loss)
            test = Metrics(
                loss=0.6, accuracy=accuracies[repeat], num_correct=round(1000 * accuracies[repeat]), num_examples=1000
            )
            spec = comparison.of_repeat(row, repeat).spec
            run = made.of_spec(run, spec).model_copy(update={"test": test, **(changed or {})})
            results.save(run, store.run_folder(path, row.id, repeat))
    return path


def benchmark_file(
    path: Path,
    samples: Mapping[str, Sequence[float]],
    *,
    measured_at: str = "2026-01-01T00:00:00+00:00",
    commit: str = "a" * 40,
    dirty: bool = False,
    keep: bool = True,
    machine: dict[str, Any] | None = None,
) -> Path:
    """A file as pytest-benchmark 5 writes it, with the suite's facts of the machine.

    Args:
        path: of the file.
        samples: benchmark: its seconds, a round each.
        measured_at: when.
        commit: of the code.
        dirty: whether it had changes.
        keep: whether the samples are kept beside their statistics.
        machine: `machine_info`; None: this suite's.
    """
    own = {"convtwins": {"processor": "Some CPU", "logical_cores": 2, "system": "Linux", "versions": {"torch": "2.0"}}}
    benchmarks = []
    for name, seconds in samples.items():
        ordered = sorted(seconds)
        middle, quarter = len(ordered) // 2, len(ordered) // 4
        stats = {"median": ordered[middle], "q1": ordered[quarter], "q3": ordered[-1 - quarter], "rounds": len(ordered)}
        benchmarks.append(
            {"name": name, "fullname": f"tests/benchmarks/test_steps.py::{name}"}
            | {"stats": stats | ({"data": list(seconds)} if keep else {})}
        )
    values = {
        "machine_info": {"python_version": "3.11.2", "release": "6.1", **(own if machine is None else machine)},
        "commit_info": {"id": commit, "dirty": dirty, "time": measured_at},
        "benchmarks": benchmarks,
        "datetime": measured_at,
        "version": "5.3.1",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))
    return path

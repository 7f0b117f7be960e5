"""Rerun repeats that other work disturbed: `run --again disturbed`.

A verdict is computed from pairs of runs of one repeat, which saw the same machine. So all runs of a disturbed repeat are made
again, interleaved, whichever of them was disturbed. Two runs that were both undisturbed stay a pair, see
`run_pairs.pairs_of_runs`. So a verdict that was given is never computed again from other runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compare.judgement.run_figures import disturbing_cores, epoch_seconds
from compare.judgement.run_pairs import finished_runs
from compare.results import store
from compare.results.store import Comparison, ReplacedRun, StoredComparison


def select_disturbed(stored: StoredComparison) -> list[ReplacedRun]:
    """Return the good runs of every repeat where other work disturbed a good run."""
    good = {row.id: finished_runs(stored, row) for row in stored.comparison.rows}
    repeats = {repeat for runs in good.values() for repeat, run in runs.items() if disturbing_cores(run) is not None}
    previous_numbers = {
        replaced_run.repeat: replaced_run.number
        for replaced_run in sorted(stored.comparison.replaced, key=lambda replaced_run: replaced_run.number)
    }
    return [
        ReplacedRun(
            row=row,
            repeat=repeat,
            sha256=stored.made_from[store.result_path(row, repeat)],
            number=previous_numbers.get(repeat, 0) + 1,
            cores_taken=disturbing_cores(runs[repeat]),
            epoch_seconds=epoch_seconds(runs[repeat]),
        )
        for repeat in sorted(repeats)
        for row, runs in good.items()
        if repeat in runs
    ]


def archive_and_requeue(comparison: Comparison, folder: Path, replaced: Sequence[ReplacedRun]) -> Comparison:
    """Archive the runs that are to be made again, and record them in the plan. A killed process loses none of them.

    Args:
        folder: folder of the comparison, locked.
        replaced: the runs, see `select_disturbed`.
    """
    comparison = comparison.model_copy(update={"replaced": [*comparison.replaced, *replaced]})
    store.write_plan(folder, comparison)
    store.archive_replaced_runs(folder, comparison.replaced)
    return comparison

"""Runs of both frameworks that take turns: the same training as without, and slices of the same steps."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from pathlib import Path

from common.artifacts import contradictions, event_log
from common.artifacts.schema import RunResult
from common.spec import build
from compare.comparison import executor
from compare.judgement import slices
from compare.results import store
from compare.running import launch, matrix
from compare.running.contestants import Contestant
from compare.running.matrix import Row
from compare.running.taking_turns import run_round

FIELDS = {"data": {"source": "digits", "limit": 640}, "epochs": 3, "global_batch_size": 16, "cores": 1}
SAME = ("step_losses", "order_hash", "final_weights_hash", "test", "confusion")


def rows(**modes: int) -> list[Row]:
    """Rows of both frameworks, with the replicas of each mode."""
    return [
        matrix.build_row(f"{name}-{mode}", Contestant.plain(name), build({**FIELDS, "mode": mode, "replicas": replicas}))
        for name in launch.FRAMEWORKS
        for mode, replicas in modes.items()
    ]


def alone(row: Row, folder: Path) -> RunResult:
    return executor.execute(Contestant.plain(row.contestant), row, 0, folder, lambda events: None)


def in_turns(planned: list[Row], folder: Path) -> list[RunResult]:
    ended = run_round(
        planned,
        lambda row, seat: executor.executing(Contestant.plain(row.contestant), row, 0, folder, lambda events: None, seat=seat),
    )
    return [result for _, result in sorted(ended, key=itemgetter(0))]


def test_turns_change_no_loss_and_no_weight_and_all_train_the_same_slices(tmp_path: Path) -> None:
    planned = rows(serial=1, multi_process=2)
    together = in_turns(planned, tmp_path / "turns")
    for row, result in zip(planned, together, strict=True):
        assert (result.status, result.reason) == ("ok", None)
        events = event_log.read_events(store.run_folder(tmp_path / "turns", row.id, 0))
        assert contradictions.find_contradictions(result, events) == []
        if not row.spec.is_parallel:  # its sums have one order
            assert [getattr(result, field) for field in SAME] == [
                getattr(alone(row, tmp_path / "alone"), field) for field in SAME
            ]
    cut = [[(slice_.first_step, slice_.steps) for epoch in result.epochs for slice_ in epoch.slices] for result in together]
    assert len(cut[0]) > 6 and all(each == cut[0] for each in cut)
    first_rows = slices.first_rows({row.id: result for row, result in zip(planned, together, strict=True)})
    times = Counter(first_rows)
    assert first_rows[0] == planned[0].id and max(times.values()) - min(times[row.id] for row in planned) <= 1
    pairs = [*slices.paired(together[0], together[-1])]  # a busy machine may disturb any of them
    assert pairs and pairs == [(one, other) for other, one in slices.paired(together[-1], together[0])]

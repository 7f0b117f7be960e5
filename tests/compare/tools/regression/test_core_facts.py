"""What the core declares or reads is known to `regress` and `history`."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import results
from common.artifacts.schema import Environment, RunResult
from compare.judgement import environments, figures
from compare.judgement.figures import Figure, Metric
from compare.judgement.row_values import largest
from compare.results import store
from compare.tools.regression import history, measurements, regress
from compare.tools.regression.records import Criteria, metrics_named
from tests.compare import test_fuzz
from tests.support import comparisons


def joules(run: RunResult) -> float:
    return 40.0 * len(run.epochs)


JOULES = Figure(
    "joules", "Energy of a run, made up.", run=joules, over=largest, heading="energy in J", digits=1,
    metric=Metric(is_time=False),
)  # fmt: skip


def test_a_figure_that_is_declared_once_is_a_metric_of_regress_and_history(tmp_path: Path) -> None:
    with figures.registered(JOULES):
        before, now = (comparisons.results_folder(tmp_path / name, seconds={"pytorch": 4.0}) for name in ("before", "now"))
        assert metrics_named("joules") == metrics_named("energy_in_J") == ("joules",)
        judgement = regress.judge_stored(before, now, Criteria(metrics=("joules",)))
        assert {(change.metric, change.baseline.median) for change in judgement.changes} >= {("joules", 80.0)}
        points, _, _ = history.points(tmp_path, ["joules"])
        assert {(point.metric, point.value.median) for point in points} == {("joules", 80.0)}


def test_the_result_of_another_repeat_is_named_by_history(tmp_path: Path) -> None:
    stored = comparisons.repeated(3)
    folder = comparisons.stored_in(stored, tmp_path / "results")
    first, second = (store.run_folder(folder, stored.comparison.rows[0].id, repeat) / results.RESULT_FILE for repeat in (0, 1))
    shutil.copy(second, first)
    ((_, reason),) = store.read(folder).set_aside
    assert history.points(tmp_path, ["epoch_seconds"])[1] == [f"{folder}: {reason}"]


def test_a_run_of_another_environment_is_a_caution_of_its_measurement(tmp_path: Path) -> None:
    stored = comparisons.repeated(2)
    planned, changed = (
        Environment(interpreter="/python", python="3.11.7", distributions=(numpy,), distributions_hash=numpy)
        for numpy in ("numpy==2.4.6", "numpy==2.4.7")
    )
    stored = comparisons.with_plan(stored, environments=dict.fromkeys(("pytorch", "tensorflow"), planned))
    stored = comparisons.with_runs(stored, environment=planned)
    stored = comparisons.with_runs(stored, stored.comparison.rows[0].id, [1], environment=changed)
    folder = comparisons.stored_in(stored, tmp_path)
    cautions = measurements.read(folder).environment_changes
    assert len(cautions) == 1 and cautions == environments.cautions(store.read(folder))


@pytest.mark.parametrize(("read", "drawn"), [("plans", test_fuzz.plans), ("results", test_fuzz.runs_of_a_folder)])
def test_hostile_results_are_read_or_refused_with_a_sentence(read: str, drawn: Any) -> None:
    def check(tree: Any) -> None:
        plan, runs = test_fuzz.comparison()
        plan, runs = (tree, runs) if read == "plans" else (plan, tree)
        test_fuzz.check_results(plan, runs, lambda folder: history.points(folder, ["epoch_seconds"]))

    test_fuzz.draw(read, test_fuzz.QUICK, {read: (check, (drawn,))})

"""Which rows a comparison has, and which of them are run."""

from typing import Any

import pytest
from pydantic import ValidationError

from common import spec
from common.machine import machine
from compare.execution import matrix
from tests.parity.made_up import DESCRIBED

CPU: dict[str, Any] = {"framework": "pytorch", **DESCRIBED}


@pytest.mark.parametrize(
    ("cores", "replicas", "budgets", "shared"),
    [(1, 2, [1], 1), (2, 2, [1, 2], 2), (3, 2, [1, 2, 3], 2), (7, 3, [1, 6, 7], 6), (8, 4, [1, 8], 8)],
)
def test_replicas_share_whole_cores_and_serial_runs_on_as_many(
    monkeypatch: pytest.MonkeyPatch, cores: int, replicas: int, budgets: list[int], shared: int
) -> None:
    monkeypatch.setattr(machine, "available_cores", lambda: cores)
    made = matrix.rows({"global_batch_size": 12}, ["pytorch"], ["serial", "data_parallel"], replicas)
    *serial, parallel = made
    assert [row.spec.cores for row in serial] == budgets
    assert (parallel.spec.cores, parallel.spec.replicas) == (shared, replicas)
    assert len({row.id for row in made}) == len(made)


def test_replicas_that_take_turns_on_a_core_are_not_parallel() -> None:
    made = matrix.rows({"cores": 1}, ["pytorch"], ["serial", "data_parallel"], 2)
    serial, parallel = matrix.judge(made, {"pytorch": CPU})
    assert serial.unavailable is None
    assert parallel.unavailable == "not parallel: 2 replicas would take turns on 1 core"


def test_replicas_on_gpus_need_no_core_each() -> None:
    gpus = {**CPU, "devices": [{"name": "A", "kind": "cuda"}, {"name": "B", "kind": "cuda"}]}
    made = matrix.rows({"cores": 1}, ["pytorch"], ["data_parallel"], 2)
    assert matrix.judge(made, {"pytorch": gpus})[0].unavailable is None


def test_every_row_has_an_id_of_its_own_whatever_the_spec_has_set() -> None:
    values: dict[str, Any] = {"pipeline": {"schedule": "1f1b"}, "parameter_server": {"updates": "asynchronous", "staleness": 2}}
    made = matrix.rows(values, ["pytorch"], list(spec.VARIANTS), 2, [0, 2])
    assert len({row.id for row in made}) == len(made)


def test_numbers_of_workers_make_rows_of_their_own() -> None:
    made = matrix.rows({"cores": 1}, ["pytorch"], ["serial"], 2, [0, 1, 4])
    assert [(row.id, row.spec.input, row.spec.workers) for row in made] == [
        ("pytorch-serial-1core-0workers", "inline", 0),
        ("pytorch-serial-1core-1workers", "workers", 1),
        ("pytorch-serial-1core-4workers", "workers", 4),
    ]
    (dask,) = matrix.rows({"cores": 1, "input": "dask"}, ["pytorch"], ["serial"], 2, [2])
    assert (dask.id, dask.spec.input, dask.spec.workers) == ("pytorch-serial-1core", "dask", 2)


def test_a_row_stored_by_an_earlier_version_names_its_contestant_framework():
    row = matrix.Row(id="it", contestant="pytorch", spec=spec.build({}))
    stored = row.model_dump(mode="json")
    stored["framework"] = stored.pop("contestant")
    assert matrix.Row.model_validate(stored) == row
    with pytest.raises(ValidationError):
        matrix.Row.model_validate(stored | {"contestant": "tensorflow"})


def test_each_level_of_switches_makes_rows_of_its_own() -> None:
    made = matrix.rows({"cores": 1}, ["pytorch"], ["serial"], 2, levels=["closed", "best"])
    assert [(row.id, row.spec.switches) for row in made] == [
        ("pytorch-serial-1core-closed", "closed"), ("pytorch-serial-1core-best", "best"),
    ]  # fmt: skip
    (row,) = matrix.rows({"cores": 1}, ["pytorch"], ["serial"], 2, levels=["closed"])
    assert (row.id, row.spec.switches) == ("pytorch-serial-1core", "closed")

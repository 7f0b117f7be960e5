"""Which rows a comparison has, and which of them are run."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common import spec
from common.data import sources
from common.machine import machine
from common.spec import Data, SpecError
from compare.running import matrix
from compare.running.contestants import Contestant
from tests.parity.made_up import DESCRIBED
from tests.support import trees
from tests.support.refusals import refused

CPU: dict[str, Any] = {"framework": "pytorch", **DESCRIBED}
PYTORCH = [Contestant.plain("pytorch")]


@pytest.mark.parametrize(
    ("cores", "replicas", "budgets", "shared"),
    [(1, 2, [1], 1), (2, 2, [1, 2], 2), (3, 2, [1, 2, 3], 2), (7, 3, [1, 6, 7], 6), (8, 4, [1, 8], 8)],
)
def test_replicas_share_whole_cores_and_serial_runs_on_as_many(
    monkeypatch: pytest.MonkeyPatch, cores: int, replicas: int, budgets: list[int], shared: int
) -> None:
    monkeypatch.setattr(machine, "available_cores", lambda: cores)  # more than this machine has
    made = matrix.build_rows({"global_batch_size": 12}, PYTORCH, ["serial", "data_parallel"], replicas)
    *serial, parallel = made
    assert [row.spec.cores for row in serial] == budgets
    assert (parallel.spec.cores, parallel.spec.replicas) == (shared, replicas)
    assert len({row.id for row in made}) == len(made)
    shorter = matrix.build_rows({"global_batch_size": 12}, PYTORCH, ["serial", "data_parallel"], replicas, one_core=False)
    assert shorter == [row for row in made if row.spec.cores > 1 or cores == 1]


def test_replicas_that_take_turns_on_a_core_are_not_parallel() -> None:
    made = matrix.build_rows({"cores": 1}, PYTORCH, ["serial", "data_parallel"], 2)
    serial, parallel = matrix.check_rows(made, {"pytorch": CPU}, PYTORCH)
    assert serial.unavailable is None
    assert str(parallel.unavailable) == "not parallel: 2 replicas would take turns on 1 core"


def test_replicas_on_gpus_need_no_core_each() -> None:
    gpus = {**CPU, "devices": [{"name": "A", "kind": "cuda"}, {"name": "B", "kind": "cuda"}]}
    made = matrix.build_rows({"cores": 1}, PYTORCH, ["data_parallel"], 2)
    assert matrix.check_rows(made, {"pytorch": gpus}, PYTORCH)[0].unavailable is None


@pytest.mark.parametrize("normalization", ["none", "dataset", "imagenet"])
def test_a_model_of_one_channel_takes_grey_images_and_is_refused_those_in_colour(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, normalization: str
) -> None:
    monkeypatch.syspath_prepend(trees.write(tmp_path, {"pairs_of_grey/net.py": GREY, "pairs_of_grey/__init__.py": ""}))
    values = {"data": {"normalization": normalization}, "augmentation": {"brightness": 0.5}}
    grey_model, colour_model = (
        matrix.build_rows({**values, **model}, PYTORCH, ["serial"], 1) for model in ({"model": "pairs_of_grey.net"}, {})
    )
    grey = sources.load(Data(source="digits"), seed=0, cache_dir=str(tmp_path))
    images = np.array(grey.train.images)
    images[-1, 0, 0, 2] ^= 1  # one channel of one pixel of all
    coloured = replace(grey, train=replace(grey.train, images=images))
    some = replace(grey, train=replace(grey.train, images=np.array(grey.train.images) ^ np.array([0, 0, 1], np.uint8)))
    matrix.check_data(grey_model, grey)
    matrix.check_data(grey_model, coloured)  # not looked at
    parts = {"field": "pairs_of_grey.net", "received": "digits, with 256 of 256 images in colour", "fix": "32x32x3"}
    with refused(SpecError, **parts):
        matrix.check_data(grey_model, some)
    matrix.check_data(colour_model, some)


GREY = """
from dataclasses import replace
from convtwins.models import Architecture
from tests.planted import pair_for_run
MODEL = replace(pair_for_run.MODEL, shape=(32, 32, 1), num_outputs=10)
def architecture(num_classes, image_size):
    return Architecture("pairs_of_grey.net", 32, 10, (MODEL,))
"""


def test_skewed_parts_are_checked_with_the_seeds_of_all_repeats(tmp_path: Path) -> None:
    """Of these seeds, some give each part an example in every batch."""
    dask = {"order": "owned", "owners": 2, "partition": "class_skew", "skew": 0.5}
    values = {"input": "dask", "workers": 1, "global_batch_size": 4, "dask": dask}
    made = matrix.build_rows(values, PYTORCH, ["multi_process"], 2)
    digits = sources.load(Data(source="digits"), seed=0, cache_dir=str(tmp_path))

    def fits(seed: int) -> bool:
        with contextlib.suppress(SpecError):
            matrix.check_data(made, digits, [seed])
            return True
        return False

    good, bad = (next(seed for seed in range(50) if fits(seed) is wanted) for wanted in (True, False))
    matrix.check_data(made, digits, [good])
    with refused(SpecError, names=["class_skew", f"seed {bad}"]):
        matrix.check_data(made, digits, [good, bad])


def test_every_row_has_an_id_of_its_own_whatever_the_spec_has_set() -> None:
    values: dict[str, Any] = {"pipeline": {"schedule": "1f1b"}, "parameter_server": {"updates": "asynchronous", "staleness": 2}}
    made = matrix.build_rows(values, PYTORCH, list(spec.MODES), 2, [0, 2])
    assert len({row.id for row in made}) == len(made)


def test_more_rows_than_a_report_can_compare_are_refused() -> None:
    with refused(SpecError, received=f"{matrix.MOST_ROWS + 1:,}", names=[f"{matrix.MOST_ROWS:,}"], fix="workers"):
        matrix.build_rows({"cores": 1}, PYTORCH, ["serial"], 2, range(matrix.MOST_ROWS + 1))


def test_numbers_of_workers_make_rows_of_their_own() -> None:
    made = matrix.build_rows({"cores": 1}, PYTORCH, ["serial"], 2, [0, 1, 4])
    assert [(row.id, row.spec.input, row.spec.workers) for row in made] == [
        ("pytorch-serial-1core-0workers", "inline", 0),
        ("pytorch-serial-1core-1workers", "workers", 1),
        ("pytorch-serial-1core-4workers", "workers", 4),
    ]
    (dask,) = matrix.build_rows({"cores": 1, "input": "dask"}, PYTORCH, ["serial"], 2, [2])
    assert (dask.id, dask.spec.input, dask.spec.workers) == ("pytorch-serial-1core", "dask", 2)


@pytest.mark.parametrize(
    ("inputs", "workers", "expected"),
    [
        (["inline", "workers", "dask"], [], [("inline", "inline", 0), ("1workers", "workers", 1), ("1dask", "dask", 1)]),
        (["inline", "workers"], [0, 2], [("inline", "inline", 0), ("2workers", "workers", 2)]),
        (["workers", "dask"], [1, 2], [(f"{n}{kind}", kind, n) for kind in ("workers", "dask") for n in (1, 2)]),
    ],
)
def test_each_input_makes_rows_of_its_own(inputs: list[str], workers: list[int], expected: list[tuple[str, str, int]]) -> None:
    made = matrix.build_rows({"cores": 1}, PYTORCH, ["serial"], 2, workers, inputs=inputs)
    prefix = "pytorch-serial-1core-"
    assert [(row.id.removeprefix(prefix), row.spec.input, row.spec.workers) for row in made] == expected
    bases = {row.id: base.id for row in made if (base := matrix.input_base_of(made, row)) is not None}
    assert bases == {row.id: made[0].id for row in made[1:]}


def test_rows_that_differ_by_more_than_their_input_are_no_pair() -> None:
    one, other = matrix.build_rows({"cores": 1}, PYTORCH, ["serial"], 2, inputs=["inline", "workers"])
    assert matrix.same_except_input(one, other) and not matrix.same_except_input(one, one)
    longer = other.model_copy(update={"spec": other.spec.with_fields(epochs=7)})
    assert not matrix.same_except_input(one, longer) and matrix.input_base_of([one, longer], longer) is None


def test_each_level_of_switches_makes_rows_of_its_own() -> None:
    made = matrix.build_rows({"cores": 1}, PYTORCH, ["serial"], 2, levels=["closed", "best"])
    assert [(row.id, row.spec.switches) for row in made] == [
        ("pytorch-serial-1core-closed", "closed"), ("pytorch-serial-1core-best", "best"),
    ]  # fmt: skip
    (row,) = matrix.build_rows({"cores": 1}, PYTORCH, ["serial"], 2, levels=["closed"])
    assert (row.id, row.spec.switches) == ("pytorch-serial-1core", "closed")

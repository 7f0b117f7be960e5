"""Copies of a run whose weights start one unit in the last place apart."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from common.training import trajectories


class Quadratic:
    """Training of one weight w towards zero: the loss is w^2, its update w (1 - rate)."""

    def __init__(self, dtype: Any) -> None:
        self.values = np.array([1.0, 0.0], dtype)

    def state(self) -> dict[str, Any]:
        return {"weights/w": self.values, "optimizer/buffer": np.zeros(2)}  # its own memory, as a framework returns it

    def load_state(self, values: dict[str, Any], step: int) -> None:
        assert step == 0 and not values["optimizer/buffer"].any()
        self.values[:] = values["weights/w"]

    def batches(self) -> Any:
        return iter(range(100))

    def train_step(self, batch: int, num_examples: int, learning_rate: float) -> tuple[Any, int]:
        loss = np.float64(self.values[0]) ** 2
        self.values[0] *= 1 - learning_rate
        return loss, 0

    def fetch(self, values: list[Any]) -> Any:
        return np.stack(values)

    def all_reduce(self, values: Any) -> Any:
        return values


def _plan() -> Any:
    return SimpleNamespace(steps_per_epoch=2, batch=lambda step: (step, step + 1), learning_rate=lambda step: 0.1)


def test_the_run_itself_comes_first_and_each_copy_starts_one_unit_in_the_last_place_apart() -> None:
    trainer: Any = Quadratic(np.float32)
    found = trajectories.losses(trainer, _plan(), 0, 4, steps=5)["losses"]
    assert found.shape == (5, 5)
    assert (found[0] == trajectories.losses(Quadratic(np.float32), _plan(), 0, 0, 5)["losses"][0]).all()  # pyright: ignore
    np.testing.assert_allclose(found[:, 0], 1.0, rtol=3e-7)
    assert (found[1:, 0] != 1.0).all()


def test_a_value_moves_to_its_neighbour_up_or_down_and_zero_stays() -> None:
    array = np.array([1.0, -2.0, 0.0] * 50, np.float32)
    moved = trajectories.moved(array, 1)
    assert moved.dtype == np.float32 and (trajectories.moved(array, 0) == array).all()
    ulps = np.abs(moved.view(np.int32) - array.view(np.int32))
    assert (ulps == (array != 0)).all()
    assert (moved > array).any() and (moved < array).any() and (moved != trajectories.moved(array, 2)).any()

"""What trainers share without a framework: the warm-up of batch sizes, and the optimizer's state by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from common import spec
from common.data.batches import BatchPlan
from common.models import architectures
from common.models.weights import ReadOnlyWeights, Weights
from common.training.trainer import BaseTrainer

DESCRIPTION: dict[str, Any] = {
    "devices": [{"name": "cpu", "kind": "cpu"}],
    "modes": {"serial": {"implementation": "one replica"}},
    "options": {},
}


class Optimizer:
    def __init__(self) -> None:
        self.values = {"step": np.array(3), "buffer/0": np.ones(2), "buffer/1": np.zeros(1)}

    def state(self) -> dict[str, Any]:
        return dict(self.values)

    def load_state(self, values: dict[str, Any]) -> None:
        self.values = values


class Noted(BaseTrainer):
    """Notes what is run. Its framework keeps arrays back to front."""

    def __init__(self) -> None:
        what = spec.build({"global_batch_size": 8, "data": {"limit": 20}})
        architecture = architectures.resolve("simple_cnn", 10, 32)
        super().__init__(what, architecture, BatchPlan(what, architecture, 20), None, DESCRIPTION)  # type: ignore[arg-type]
        self.done: list[Any] = []
        self.arrays: Weights = {"first": np.arange(2.0), "second": np.arange(1.0)}
        self._optimizer = Optimizer()

    def _run_step(self, batch: Any, num_examples: int, learning_rate: float) -> None:
        self.done.append((batch, num_examples, learning_rate))

    def _blank(self, examples: int) -> Any:
        return examples

    def _blank_score(self, batch: Any) -> None:
        self.done.append(f"score {batch}")

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        self.done.append("keep")
        yield
        self.done.append("restore")

    def weights(self) -> Weights:
        return self.arrays

    def load_weights(self, values: ReadOnlyWeights) -> None:
        self.arrays = dict(values)

    def _trainable(self) -> list[Any]:
        return [array[::-1].copy() for array in self.arrays.values()]

    def _by_name(self, arrays: list[Any]) -> Weights:
        return dict(zip(self.arrays, (array[::-1] for array in arrays), strict=True))


@pytest.mark.parametrize(("shard", "sizes"), [((0, 1), (8, 4)), ((1, 3), (3, 1))])
def test_every_batch_size_has_run_twice_when_training_goes_on(shard: tuple[int, int], sizes: tuple[int, int]) -> None:
    """The first step of the training was the first run of a whole batch."""
    trainer = Noted()
    trainer.shard = shard
    trainer.compile([8, 4], [8, 2])
    whole, rest = sizes
    steps = [(whole, 8, 0.0), (rest, 4, 0.0), (rest, 4, 0.0)]
    assert trainer.done == ["keep", *steps, "score 8", "score 2", "restore"]
    assert trainer.updates == 0


def test_what_the_optimizer_keeps_is_known_by_name_and_can_be_set_by_name() -> None:
    trainer = Noted()
    assert {slot: sorted(each) for slot, each in trainer.slots().items()} == {"buffer": ["first", "second"]}
    weights = {"first": np.array([0.0, 3.0]), "second": np.array([4.0])}
    trainer.load_slots({"buffer": {"first": np.array([5.0, 6.0]), "second": np.array([7.0])}}, weights)
    assert trainer.slots()["buffer"]["first"].tolist() == [5.0, 6.0]
    assert trainer._optimizer.values["buffer/0"].tolist() == [6.0, 5.0]
    assert trainer._optimizer.values["step"] == 3
    assert {name: array.tolist() for name, array in trainer.weights().items()} == {"first": [0.0, 3.0], "second": [4.0]}


def test_a_trainer_starts_over_from_a_state_that_it_is_given() -> None:
    trainer = Noted()
    state = {name: array.copy() for name, array in trainer.state().items()}
    for given in ({}, state):
        trainer.load_state({name: array + 1 for name, array in state.items()}, 7)
        trainer.reset(trainer._plan, None, given)  # type: ignore[arg-type]
        assert trainer.updates == 0
        assert all(np.array_equal(trainer.state()[name], array + (not given)) for name, array in state.items())


def test_a_state_is_restored_with_its_number_of_updates() -> None:
    trainer = Noted()
    state = {name: array.copy() for name, array in trainer.state().items()}
    trainer.load_weights({name: array + 1 for name, array in trainer.weights().items()})
    trainer._optimizer.values = {}
    trainer.load_state(state, 7)
    assert trainer.updates == 7 and trainer.state().keys() == state.keys()
    assert all(np.array_equal(trainer.state()[name], array) for name, array in state.items())

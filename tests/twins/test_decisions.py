"""What a recorded step does besides: it trains as any other, tells each decision, and nothing stays watched after it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from common import spec
from common.models import architectures
from tests.support import processes
from tests.twins import made
from tests.twins.adapters import Twin

ARCHITECTURE = made.network()
DATA = made.dataset(ARCHITECTURE).train
COUNT = 7
POINTS = [layer for _, layer in architectures.decision_layers(ARCHITECTURE.layers)]


MASKS = made.masks(ARCHITECTURE, COUNT)


def batch(twin: Twin, masks: Any = MASKS) -> Any:
    return twin.batch(DATA.images[:COUNT], DATA.labels[:COUNT], masks)


@pytest.mark.parametrize("fields", [{}, {"accumulation": 7}, {"mode": "data_parallel"}], ids=str)
def test_a_recorded_step_trains_as_another_does_and_tells_each_decision(twin: Twin, fields: dict[str, Any]) -> None:
    plain, recorded = (made.trainer(twin, ARCHITECTURE, **fields) for _ in range(2))
    loss, num_correct = plain.train_step(batch(twin), COUNT, 0.05)
    other_loss, other_correct, decisions = recorded.record_step(batch(twin), COUNT, 0.05)
    one, other = plain.fetch([loss]), recorded.fetch([other_loss])
    assert other == pytest.approx(one, rel=1e-12) and int(other_correct) == int(num_correct)
    weights = recorded.weights()
    for name, array in plain.weights().items():
        assert np.abs(weights[name] - array).max() <= 1e-12, name
    assert [len(array) for array in decisions] == [COUNT] * len(POINTS)
    kinds = [np.int16 if isinstance(point, architectures.MaxPool) else np.bool_ for point in POINTS]
    assert [array.dtype for array in decisions] == kinds


def test_decisions_that_micro_batches_do_not_divide_are_refused(twin: Twin) -> None:
    trainer = made.trainer(twin, ARCHITECTURE, framework_options={"graph": "eager"})
    if twin.framework == "pytorch":
        recorder = twin.decisions.DecisionRecorder()
        read = recorder.by_layer
    else:
        recorder = twin.decisions.DecisionRecorder(trainer._model, ARCHITECTURE)
        read = recorder.observed
    with recorder:
        for _ in range(3):
            trainer.logits(batch(twin), training=True)
    assert len(read(3)) == len(POINTS)
    uneven = 3 * len(POINTS) + 1
    with pytest.raises(RuntimeError, match=f"equally many decisions.* in {uneven} micro-batches"):
        read(uneven)


@pytest.mark.slow
@pytest.mark.parametrize("word", spec.MODES.variants(lambda mode: mode.not_serial_because is not None))
def test_a_mode_of_other_mathematics_tells_its_decisions_too(framework: str, word: str, tmp_path: Path) -> None:
    values = {
        "model": "tests.twins.own_plain_model",
        "data": {"image_size": made.SIZE_PX, "limit": 16},
        "global_batch_size": 16,
        "epochs": 1,
        "cores": 1,
    }
    for mode in ("serial", word):
        run = spec.build(spec.with_variant(values, mode, 2))
        (tmp_path / f"{mode}.json").write_text(run.to_json(), encoding="utf-8")
    options = "--drawn", "0", "--out"
    teacher, recording = (tmp_path / f"{mode}.safetensors" for mode in ("serial", word))
    processes.twin(framework, "trace", tmp_path / "serial.json", *options, teacher).succeeded()
    processes.twin(framework, "trace", tmp_path / f"{word}.json", *options, recording, "--teacher", teacher).succeeded()
    arrays = safetensors.numpy.load_file(recording)
    assert [len(arrays[f"decisions/0/{number}"]) for number in range(len(POINTS))] == [16] * len(POINTS)


@pytest.mark.parametrize("mode", ["serial", "data_parallel"])
def test_a_step_that_fails_while_it_is_recorded_leaves_nothing_watched(twin: Twin, mode: str) -> None:
    trainer = made.trainer(twin, ARCHITECTURE, mode=mode, framework_options={"graph": "eager"})
    before = watched(trainer)
    too_wide = tuple(np.repeat(mask, 2, axis=1) for mask in MASKS)
    with pytest.raises(Exception, match=r"size of tensor|shape"):
        trainer.record_step(batch(twin, too_wide), COUNT, 0.05)
    assert watched(trainer) == before
    _, _, decisions = trainer.record_step(batch(twin), COUNT, 0.05)
    assert [len(array) for array in decisions] == [COUNT] * len(POINTS)


def watched(trainer: Any) -> list[Any]:
    """What stands in the way of a step: functions that an object has of its own, in place of its class's."""
    objects = [trainer, *(item for item in vars(trainer).values() if hasattr(item, "__dict__"))]
    objects += getattr(trainer._model, "layers", [])
    return [(type(item).__name__, name, value) for item in objects for name, value in vars(item).items() if callable(value)]

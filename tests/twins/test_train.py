from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.artifacts import event_log
from common.data.batches import BatchPlan
from common.models.sharding import shard
from common.training import loop, timing
from tests.twins import made, oracles
from tests.twins.adapters import Twin

ARCHITECTURE = made.network()
DATA = made.dataset(ARCHITECTURE)
COUNT = 7
IMAGES, LABELS, MASKS = DATA.train.images[:COUNT], DATA.train.labels[:COUNT], made.masks(ARCHITECTURE, COUNT)

EPSILON = 1e-3
"""Of Adam: with the usual 1e-8 it blows the rounding of a bias in front of BatchNorm, which has no gradient, up to a step."""


def test_the_gradients_of_one_hot_labels_are_those_of_ids(twin: Twin) -> None:
    batch = twin.batch(IMAGES, LABELS, MASKS)
    ids, one_hot = (
        made.trainer(twin, ARCHITECTURE, loss=loss).gradients(batch, COUNT)
        for loss in ("sparse_categorical_crossentropy", "categorical_crossentropy")
    )
    scale = max(np.abs(gradient).max() for gradient in ids.values())
    assert ids.keys() == one_hot.keys()
    for name, gradient in ids.items():
        assert np.abs(one_hot[name] - gradient).max() <= 1e-13 * scale, name


@pytest.mark.parametrize("name", ["sgd", pytest.param("adam", marks=pytest.mark.slow)])
def test_data_parallel_with_synchronised_batch_norm_is_serial_also_in_uneven_last_batches(twin: Twin, name: str) -> None:
    fields = {"optimizer": {"name": name, "epsilon": EPSILON}, "augmentation": {"shift_px": 2}, "epochs": 2}
    serial = made.trainer(twin, ARCHITECTURE, DATA, **fields)
    parallel = made.trainer(twin, ARCHITECTURE, DATA, mode="data_parallel", batch_norm_statistics="synchronised", **fields)
    ours, theirs = train(serial), train(parallel)
    assert len(ours) == 6  # 9, 9 and 4 examples, twice
    for (loss, num_correct), (other_loss, other_correct) in zip(ours, theirs, strict=True):
        assert other_loss == pytest.approx(loss, rel=1e-10)
        assert other_correct == num_correct
    after = parallel.weights()
    for parameter, array in serial.weights().items():
        assert np.abs(after[parameter] - array).max() <= 1e-10, parameter


def test_per_replica_batch_norm_normalises_each_shard_by_itself(twin: Twin) -> None:
    trainer = made.trainer(twin, ARCHITECTURE, mode="data_parallel")
    loss, num_correct = trainer.train_step(twin.batch(IMAGES, LABELS, MASKS), COUNT, 0.05)
    logits = np.concatenate(
        [
            oracles.Forward(
                ARCHITECTURE, made.values(ARCHITECTURE), IMAGES[part], [mask[part] for mask in MASKS], training=True
            ).logits
            for part in (slice(*shard(COUNT, made.REPLICAS, rank)) for rank in range(made.REPLICAS))
        ]
    )
    assert trainer.fetch([loss])[0] == pytest.approx(oracles.cross_entropy(logits, LABELS).mean(), rel=1e-13)
    assert trainer.fetch([num_correct])[0] == (logits.argmax(1) == LABELS).sum()


def test_a_wrapper_trains_again_after_its_model_was_scored(twin: Twin) -> None:
    """torch's wrappers do not hear of the mode that their model was set to."""
    if twin.framework != "pytorch":
        pytest.skip("Keras is told the mode in each call")
    import torch

    trainer = made.trainer(twin, ARCHITECTURE)
    wrapper = torch.nn.DataParallel(trainer._model)
    trainer.score(IMAGES, LABELS)
    assert wrapper.training and not trainer._model.training
    images, labels, masks = twin.tensor(IMAGES), twin.tensor(LABELS), list(map(twin.tensor, MASKS))
    trainer._objective.forward(wrapper, images, labels, masks, COUNT)
    assert all(layer.training for layer in wrapper.modules())


def test_the_same_seed_gives_the_same_training_to_the_bit(twin: Twin) -> None:
    def once() -> Any:
        trainer = made.trainer(twin, ARCHITECTURE, DATA, precision="float32")
        return train(trainer), trainer.weights()

    (losses, weights), (same_losses, same_weights) = once(), once()
    assert losses == same_losses
    assert all(np.array_equal(array, same_weights[name]) for name, array in weights.items())


@pytest.mark.parametrize(
    ("batch_size", "learning_rate", "message", "epochs"),
    [
        (9, 1e30, r"^loss is nan at epoch 1, step 2; try a smaller optimizer\.learning_rate", 0),
        # One step an epoch, scored before its update: validation is the first to show what became of the weights.
        (30, 1e2, r"^validation loss is nan after epoch 2; try a smaller optimizer\.learning_rate", 1),
    ],
)
def test_a_loss_that_is_no_number_ends_the_run_and_keeps_the_epochs_before_it(
    twin: Twin, tmp_path: Path, batch_size: int, learning_rate: float, message: str, epochs: int
) -> None:
    architecture = made.resolve("simple_cnn")
    data = made.dataset(architecture)
    fields = {"global_batch_size": batch_size, "epochs": 3, "precision": "float32"}
    fields |= {"optimizer": {"learning_rate": learning_rate}}
    spec = made.settings(**fields)
    run = loop.TrainingRun(twin.framework, spec, {}, tmp_path, 0, timing.Stopwatch(twin.device.synchronize))
    trainer = made.trainer(twin, architecture, data, **fields)
    with pytest.raises(loop.Diverged, match=message):
        run.train(trainer, BatchPlan(spec, architecture, len(data.train)), data)
    assert len(run.result("diverged").epochs) == epochs
    assert event_log.read_epochs(tmp_path) == run.result("diverged").epochs


def train(trainer: Any) -> list[tuple[float, int]]:
    outputs = [trainer.train_step(batch, len(batch.labels), 0.02) for batch in trainer.batches()]
    losses, num_correct = (trainer.fetch(list(values)) for values in zip(*outputs, strict=True))
    return list(zip(losses.tolist(), num_correct.tolist(), strict=True))

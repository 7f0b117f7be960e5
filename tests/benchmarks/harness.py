"""What the harness costs: an epoch of a twin's run, of a hand-written loop in the same framework, and of others' trainers.

`python -m tests.benchmarks.harness --framework pytorch` prints the seconds of each one's epochs as JSON. All train the same
model on the same arrays with the framework's own Adam, in one process, on all cores, in turn; the first epoch of each is
warm-up. Keras' `fit` stands beside the TensorFlow twin, Lightning beside the PyTorch twin where it is installed
(requirements-bench.txt).
"""

import argparse
import importlib
import importlib.util
import json
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from common import spec
from common.data import sources
from common.data.batches import BatchPlan
from common.data.sources import Dataset
from common.machine import machine
from common.models import architectures, weights
from common.spec import Spec
from common.training import epoch as epochs
from common.training.loop import TrainingRun
from common.training.timing import Stopwatch

SETTINGS: dict[str, Any] = {
    "model": "mini_xception",
    "data": {"source": "leaves:classes=10,images=1000,size=32,seed=1", "limit": 512},
    "optimizer": {"name": "adam", "learning_rate": 1e-3, "native": True},
    "global_batch_size": 128,
}


HARNESS = "harness"
"""The name of the suite's own among those that take turns."""
BY_HAND, KERAS_FIT, LIGHTNING = "a loop by hand", "Keras fit", "Lightning"

Epoch = Callable[[], float]
"""Trains one, and tells its seconds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", required=True)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    machine.keep_freed_memory()
    what = spec.build(SETTINGS | {"epochs": arguments.rounds + 1})
    importlib.import_module(f"{arguments.framework}_impl.device").configure(what)
    print(json.dumps(seconds(arguments.framework, what, arguments.rounds)))


def seconds(framework: str, what: Spec, rounds: int) -> dict[str, list[float]]:
    """Seconds of an epoch of each by its name, round by round: A B C, then C B A, and so on."""
    dataset = sources.load(what.data, seed=what.seed)
    timed = {name: build(what, dataset) for name, build in RIVALS[framework].items() if is_installed(name)}
    timed = {HARNESS: harness(framework, what, dataset), **timed}
    for epoch in timed.values():
        epoch()
    found: dict[str, list[float]] = {name: [] for name in timed}
    for number in range(rounds):
        for name in list(timed)[:: 1 if number % 2 == 0 else -1]:
            found[name].append(timed[name]())
    return found


def is_installed(name: str) -> bool:
    """Whether what is named can be measured here."""
    return name != LIGHTNING or importlib.util.find_spec("pytorch_lightning") is not None


def harness(framework: str, what: Spec, dataset: Dataset) -> Epoch:
    """An epoch of the suite's own run, as it times itself."""
    architecture = architectures.build(what, len(dataset.class_names), dataset.image_size)
    plan = BatchPlan(what, architecture, len(dataset.train))
    parallel = importlib.import_module(f"{framework}_impl.parallel")
    device = importlib.import_module(f"{framework}_impl.device")
    trainer = parallel.build(what, architecture, plan, dataset, weights.initial(architecture, what.seed))
    folder = tempfile.TemporaryDirectory()
    run = TrainingRun(framework, what, {}, Path(folder.name), 0, Stopwatch(device.synchronize))
    feed, numbers = trainer.feed(), iter(range(1, plan.epochs + 1))

    def epoch() -> float:
        assert folder.name  # kept as long as this function
        number = next(numbers)
        run.train_epoch(epochs.Epoch(number, trainer, plan, dataset, feed, is_first=number == 1))
        record = run.record.epochs[-1]
        return record.timed_seconds / record.timed_images * record.images

    return epoch


def by_hand_pytorch(what: Spec, dataset: Dataset) -> Epoch:
    """What one would write without the suite."""
    import torch
    from torch.nn import functional

    from pytorch_impl import models

    model = models.build(architectures.build(what, len(dataset.class_names), dataset.image_size), "float32")
    optimizer = torch.optim.Adam(model.parameters(), lr=what.optimizer.learning_rate)
    images, labels = torch.from_numpy(np.array(dataset.train.images)), torch.from_numpy(np.array(dataset.train.labels))

    def epoch() -> float:
        model.train()
        start = time.perf_counter()
        losses: list[torch.Tensor] = []
        for ids in torch.randperm(len(labels)).split(what.global_batch_size):
            batch = images[ids].permute(0, 3, 1, 2).float().div(255.0).contiguous()
            optimizer.zero_grad(set_to_none=True)
            loss = functional.cross_entropy(model(batch), labels[ids])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        assert torch.isfinite(torch.stack(losses)).all()
        return time.perf_counter() - start

    return epoch


def by_hand_tensorflow(what: Spec, dataset: Dataset) -> Epoch:
    """What one would write without the suite."""
    import keras
    import tensorflow as tf

    from tensorflow_impl import models

    model = models.build(architectures.build(what, len(dataset.class_names), dataset.image_size), "float32")
    optimizer = keras.optimizers.Adam(what.optimizer.learning_rate)
    optimizer.build(model.trainable_variables)
    examples = tf.data.Dataset.from_tensor_slices((np.array(dataset.train.images), np.array(dataset.train.labels)))
    batches = examples.shuffle(len(dataset.train)).batch(what.global_batch_size)
    size = dataset.image_size

    @tf.function(input_signature=(tf.TensorSpec((None, size, size, 3), tf.uint8), tf.TensorSpec((None,), tf.int64)))
    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(tf.cast(images, tf.float32) / 255.0, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def epoch() -> float:
        start = time.perf_counter()
        losses = [step(images, labels) for images, labels in batches]
        assert np.isfinite(tf.stack(losses).numpy()).all()
        return time.perf_counter() - start

    return epoch


def keras_fit(what: Spec, dataset: Dataset) -> Epoch:
    """Keras' own training loop, as its documentation shows it."""
    import keras
    import tensorflow as tf

    from tensorflow_impl import models

    model = models.build(architectures.build(what, len(dataset.class_names), dataset.image_size), "float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(what.optimizer.learning_rate), loss=loss)
    examples = tf.data.Dataset.from_tensor_slices((np.array(dataset.train.images), np.array(dataset.train.labels)))
    batches = (
        examples.shuffle(len(dataset.train))
        .batch(what.global_batch_size)
        .map(lambda images, labels: (tf.cast(images, tf.float32) / 255.0, labels))
        .prefetch(tf.data.AUTOTUNE)
    )
    start, end = math.nan, math.nan

    class Clock(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            nonlocal start
            start = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            nonlocal end
            end = time.perf_counter()

    def epoch() -> float:
        history = model.fit(batches, epochs=1, shuffle=False, verbose=0, callbacks=[Clock()])
        assert np.isfinite(history.history["loss"]).all()
        return end - start

    return epoch


def lightning(what: Spec, dataset: Dataset) -> Epoch:
    """Lightning's trainer with all that it writes and shows switched off."""
    import pytorch_lightning
    import torch
    from torch.nn import functional
    from torch.utils.data import DataLoader, TensorDataset

    from pytorch_impl import models

    start, end = math.nan, math.nan

    class Module(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = models.build(architectures.build(what, len(dataset.class_names), dataset.image_size), "float32")

        def training_step(self, batch: Any, number: int) -> Any:
            images, labels = batch
            return functional.cross_entropy(self.model(images.permute(0, 3, 1, 2).float().div(255.0).contiguous()), labels)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=what.optimizer.learning_rate)

        def on_train_epoch_start(self) -> None:
            nonlocal start
            start = time.perf_counter()

        def on_train_epoch_end(self) -> None:
            nonlocal end
            end = time.perf_counter()

    module = Module()
    examples = TensorDataset(torch.from_numpy(np.array(dataset.train.images)), torch.from_numpy(np.array(dataset.train.labels)))
    batches = DataLoader(examples, batch_size=what.global_batch_size, shuffle=True)
    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)

    def epoch() -> float:
        pytorch_lightning.Trainer(max_epochs=1, devices=1, **off).fit(module, batches)
        assert all(torch.isfinite(parameter).all() for parameter in module.parameters())
        return end - start

    return epoch


RIVALS: dict[str, dict[str, Callable[[Spec, Dataset], Epoch]]] = {
    "pytorch": {BY_HAND: by_hand_pytorch, LIGHTNING: lightning},
    "tensorflow": {BY_HAND: by_hand_tensorflow, KERAS_FIT: keras_fit},
}


if __name__ == "__main__":
    main()

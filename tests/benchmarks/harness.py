"""What the harness costs: an epoch of a twin's run and one of a hand-written loop in the same framework, in turn.

`python -m tests.benchmarks.harness --framework pytorch` prints the seconds of each pair as JSON. Both train the same model on
the same arrays with the framework's own Adam, in one process, on all cores; the first epoch of each is warm-up.
"""

import argparse
import importlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from common import architectures, datasets, machine, spec, weights
from common.batches import Plan
from common.datasets import Dataset
from common.spec import Spec
from common.timing import Stopwatch
from common.training import Run

SETTINGS: dict[str, Any] = {
    "model": "mini_xception",
    "data": {"source": "leaves:classes=10,images=1000,size=32,seed=1", "limit": 512},
    "optimizer": {"name": "adam", "learning_rate": 1e-3, "native": True},
    "global_batch_size": 128,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", required=True)
    parser.add_argument("--pairs", type=int, default=10)
    arguments = parser.parse_args()
    machine.keep_freed_memory()
    what = spec.build(SETTINGS | {"epochs": arguments.pairs + 1})
    importlib.import_module(f"{arguments.framework}_impl.device").configure(what)
    print(json.dumps(list(pairs(arguments.framework, what, arguments.pairs))))


def pairs(framework: str, what: Spec, count: int) -> Iterator[tuple[float, float]]:
    """(harness, hand-written) seconds of an epoch, A B then B A and so on."""
    dataset = datasets.load(what.data, seed=what.seed)
    timed = [
        harness(framework, what, dataset),
        {"pytorch": by_hand_pytorch, "tensorflow": by_hand_tensorflow}[framework](what, dataset),
    ]
    for epoch in timed:
        epoch()
    for pair in range(count):
        order = (0, 1) if pair % 2 == 0 else (1, 0)
        seconds = {which: timed[which]() for which in order}
        yield seconds[0], seconds[1]


def harness(framework: str, what: Spec, dataset: Dataset) -> Callable[[], float]:
    """An epoch of the suite's own run, as it times itself."""
    architecture = architectures.resolve(what.model, len(dataset.class_names), dataset.image_size)
    plan = Plan(what, architecture, len(dataset.train))
    parallel = importlib.import_module(f"{framework}_impl.parallel")
    device = importlib.import_module(f"{framework}_impl.device")
    trainer = parallel.build(what, architecture, plan, dataset, weights.initial(architecture, what.seed))
    folder = tempfile.TemporaryDirectory()
    run = Run(framework, what, {}, Path(folder.name), 0, Stopwatch(device.synchronize, time.time()))
    batches, numbers = trainer.batches(), iter(range(1, plan.epochs + 1))

    def epoch() -> float:
        assert folder.name  # kept as long as this function
        run._epoch(next(numbers), trainer, plan, dataset, batches)
        record = run._epochs[-1]
        return record.timed_seconds / record.timed_images * record.images

    return epoch


def by_hand_pytorch(what: Spec, dataset: Dataset) -> Callable[[], float]:
    """What one would write without the suite."""
    import torch
    from torch.nn import functional

    from pytorch_impl import models

    model = models.build(architectures.resolve(what.model, len(dataset.class_names), dataset.image_size), "float32")
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


def by_hand_tensorflow(what: Spec, dataset: Dataset) -> Callable[[], float]:
    """What one would write without the suite."""
    import keras
    import tensorflow as tf

    from tensorflow_impl import models

    model = models.build(architectures.resolve(what.model, len(dataset.class_names), dataset.image_size), "float32")
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


if __name__ == "__main__":
    main()

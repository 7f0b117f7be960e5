"""Recordings of a few training steps for the parity proof, by the same code that is timed."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from common.artifacts import array_file
from common.data.batches import BatchPlan
from common.data.sources import Dataset, DatasetSplit
from common.machine import heartbeat
from common.models.weights import ReadOnlyWeights, Weights
from common.training.evaluation import evaluate
from common.training.trainer import BaseTrainer, Batch

SCORED, SCORED_AT_ONCE = 32, 20
"""Number of a step's images that are also scored in evaluation mode, and batch size. One does not divide the other."""
_BATCH_ARRAYS = ("images", "labels")
"""Arrays of a global batch that a teacher records."""
PIXEL_STEPS = 3
"""Number of steps whose augmented images are recorded, so that a difference can be given in levels. Others have a hash."""


def trace_steps(
    trainer: BaseTrainer, plan: BatchPlan, drawn_steps: Sequence[int], teacher: Mapping[str, npt.NDArray[Any]] | None
) -> NamedArrays:
    """Do single steps of the plan and record them. Steps between them are skipped, but their input is read.

    Args:
        trainer: this process's trainer, untrained.
        drawn_steps: steps to record, from 0, in order.
        teacher: a recording of the same steps, whose states are loaded. None (mode serial): train from step to step, and record
            the states and the batches for others.

    Yields:
        (name, array), as soon as each is available. By step, from 0: ids/<step>: int64 [N]; hashes/<step>: int64 [N], of each
        image; loss/<step>: mean over the batch; after/<step>/weights/<parameter>; after/<step>/slots/<slot>/<parameter>: the
        optimizer's state; num_correct/<step>: int64 [1]. In float32 decisions/<step>/<number>: int64 [N, words], see `pack`;
        and scored/<step>/loss: float64 [1], scored/<step>/predictions: int64 [up to SCORED], of the first images by an
        evaluation before the step.
        If replicas keep residuals of compression, lost/before/<step>/<bucket> and lost/after/...: float64 [replicas, count].
        A teacher adds images/<step>, labels/<step>, masks/<step>/<dropout>, and before/<step>/ if the step
        before was not drawn. At last pixel_mean and pixel_std.
    """
    iterator: Iterator[Batch] | None = None
    position = 0
    is_narrow = plan.spec.precision == "float32"
    for step in drawn_steps:
        epoch = step // plan.steps_per_epoch
        if iterator is None or step - position > 2 * plan.steps_per_epoch:
            iterator, position = trainer.batches(epoch + 1), epoch * plan.steps_per_epoch
        while position < step:
            next(iterator)
            position += 1
        batch, position = next(iterator), step + 1
        size, gather = _gather_function(trainer, plan, step)
        yield f"ids/{step}", gather(np.asarray(batch.ids))
        yield f"hashes/{step}", gather([int.from_bytes(_sha256(image).tobytes()[:7]) for image in np.asarray(batch.images)])
        if teacher is None:
            yield f"images/{step}", np.asarray(batch.images).copy()
            yield f"labels/{step}", np.asarray(batch.labels)
            yield from ((f"masks/{step}/{index}", np.asarray(mask)) for index, mask in enumerate(batch.masks))
            if step - 1 not in drawn_steps:
                yield f"before/{step}/drawn", np.array(step)
                yield from state_arrays(trainer, f"before/{step}")
        if teacher is not None:
            weights, slots = state_before(teacher, step)
            trainer.load_slots(slots, weights)
        if is_narrow:
            images, labels = (
                (batch.images, batch.labels) if teacher is None else (teacher[f"{name}/{step}"] for name in _BATCH_ARRAYS)
            )
            yield from score_arrays(trainer, step, np.asarray(images), np.asarray(labels))
        yield from residual_arrays(trainer, "before", step)
        train = trainer.record_step if is_narrow else trainer.train_step
        loss, num_correct, *recorded = train(batch, size, plan.learning_rate(step))
        heartbeat.count_step()
        yield from outcome_arrays(trainer, step, loss, num_correct)
        for decisions in recorded:
            yield from _packed_decisions(decisions, step, gather)
        trainer.broadcast_statistics()
        yield from state_arrays(trainer, f"after/{step}")
    mean, deviation = plan.scaling.mean, plan.scaling.std
    yield "pixel_mean", np.array(mean, np.float64)
    yield "pixel_std", np.array(deviation, np.float64)


NamedArrays = Iterator[tuple[str, npt.NDArray[Any]]]
"""Iterator of (name, array). All processes of a run iterate together."""


def batch_arrays(trainer: BaseTrainer, plan: BatchPlan, batch: Batch, step: int) -> NamedArrays:
    """Yield the global batch of a step, from 0, as the processes of a run received it. Names: see `trace_steps`."""
    _, gather = _gather_function(trainer, plan, step)
    yield f"ids/{step}", gather(np.asarray(batch.ids))
    yield f"labels/{step}", gather(np.asarray(batch.labels))
    images = np.asarray(batch.images)
    words = gather(pack(images)).view(np.uint8)
    yield f"images/{step}", words[:, : math.prod(images.shape[1:])].reshape(-1, *images.shape[1:])
    for index, mask in enumerate(map(np.asarray, batch.masks)):
        bits = gather(pack(mask)).view(np.uint8)
        yield f"masks/{step}/{index}", np.unpackbits(bits, 1, mask.shape[1]).view(bool)


def state_arrays(trainer: BaseTrainer, prefix: str) -> NamedArrays:
    """Yield the current weights, statistics and optimizer state."""
    yield from ((f"{prefix}/weights/{name}", array) for name, array in trainer.weights().items())
    for slot, values in trainer.slots().items():
        yield from ((f"{prefix}/slots/{slot}/{name}", array) for name, array in values.items())


def residual_arrays(trainer: BaseTrainer, when: str, step: int) -> NamedArrays:
    """Yield the residuals of compression. `when` is before or after the step."""
    index, number = trainer.shard
    for bucket, residuals in enumerate(trainer.error_feedback()):
        gathered = np.zeros((len(residuals) * number, residuals.shape[1]))
        gathered[len(residuals) * index : len(residuals) * (index + 1)] = residuals
        yield f"lost/{when}/{step}/{bucket}", trainer.all_reduce_shards(gathered)


def outcome_arrays(trainer: BaseTrainer, step: int, loss: Any, num_correct: Any) -> NamedArrays:
    """Yield the residuals after a step, and what `train_step` returned."""
    yield from residual_arrays(trainer, "after", step)
    yield f"loss/{step}", trainer.all_reduce_shards(trainer.fetch([loss]).astype(np.float64))
    yield f"num_correct/{step}", trainer.all_reduce_shards(trainer.fetch([num_correct]).astype(np.int64))


def score_arrays(trainer: BaseTrainer, step: int, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> NamedArrays:
    """Yield the scores of the first images of a step's batch, in evaluation mode."""
    scores, predictions = evaluate(trainer, DatasetSplit(images=images[:SCORED], labels=labels[:SCORED]), SCORED_AT_ONCE)
    yield f"scored/{step}/loss", np.array([scores.loss])
    yield f"scored/{step}/predictions", predictions


def decision_arrays(trainer: BaseTrainer, plan: BatchPlan, batch: Batch, step: int) -> NamedArrays:
    """Train on a step's batch once more, and yield the decisions of ReLUs and maxima."""
    size, gather = _gather_function(trainer, plan, step)
    _, _, decisions = trainer.record_step(batch, size, plan.learning_rate(step))
    yield from _packed_decisions(decisions, step, gather)


def _packed_decisions(decisions: Sequence[npt.NDArray[Any]], step: int, gather: Callable[[Any], Any]) -> NamedArrays:
    yield from ((f"decisions/{step}/{number}", gather(pack(array))) for number, array in enumerate(decisions))


def _gather_function(trainer: BaseTrainer, plan: BatchPlan, step: int) -> tuple[int, Callable[[Any], npt.NDArray[np.int64]]]:
    """Return (size of a step's global batch, a function that gathers int64 values of this process's examples)."""
    epoch, step_in_epoch = divmod(step, plan.steps_per_epoch)
    start, stop = plan.batch(step_in_epoch)
    index, number = trainer.shard
    low, high = plan.bounds(epoch + 1, number, index)[step_in_epoch]
    return stop - start, partial(_gather_rows, trainer, stop - start, slice(low - start, high - start))


def pack(decisions: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Pack bool or int16 [N, ...] into int64 [N, words], which processes can add up."""
    flat = decisions.reshape(len(decisions), -1)
    packed_bytes = np.packbits(flat, 1) if flat.dtype == np.bool_ else flat.view(np.uint8)
    return np.pad(packed_bytes, ((0, 0), (0, -packed_bytes.shape[1] % 8))).view(np.int64)


def refuse_uneven_decisions(number: int, micro_batches: int) -> None:
    """Refuse decisions that cannot be those of the same layers in each micro-batch.

    Args:
        number: number of recorded decisions of one replica.
        micro_batches: number of its micro-batches, which take equally many.
    """
    if number % micro_batches:
        raise RuntimeError(
            f"Each micro-batch must take equally many decisions of ReLUs and max-poolings. Received: {number} decisions in "
            f"{micro_batches} micro-batches. A layer of the model is called more often in some: call each in all of them."
        )


def unpack(words: npt.NDArray[np.int64], shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any] | None:
    """Undo `pack`: return bool or int16 [N, ...]. None: the words have another size."""
    values, count, is_bool = words.view(np.uint8), math.prod(shape[1:]), dtype == np.bool_
    if len(words) != shape[0] or values.shape[1] != 8 * math.ceil(count / (64 if is_bool else 4)):
        return None
    return (np.unpackbits(values, 1, count).view(bool) if is_bool else values[:, : 2 * count].view(np.int16)).reshape(shape)


def winners(
    images: npt.NDArray[Any], size: tuple[int, int], stride: tuple[int, int], padding: tuple[tuple[int, int], tuple[int, int]]
) -> npt.NDArray[np.int16]:
    """Return int16 [N, H', W', C]: the index of the largest value of each window of images [N, H, W, C], in row order.

    Sizes and strides are of height and width. Padding is never the largest. Of equal values the first one counts.
    """
    padded = np.pad(images, ((0, 0), *padding, (0, 0)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, size, (1, 2))[:, :: stride[0], :: stride[1]]
    return windows.reshape(*windows.shape[:4], -1).argmax(-1).astype(np.int16)


def _gather_rows(trainer: BaseTrainer, size: int, rows: slice, values: Any) -> npt.NDArray[np.int64]:
    """Gather int64 [size, ...] of a global batch. This process contributes `rows`."""
    gathered = np.zeros((size, *np.shape(values)[1:]), np.int64)
    gathered[rows] = values
    return trainer.all_reduce_shards(gathered)


def state(recording: Mapping[str, npt.NDArray[Any]], prefix: str) -> tuple[Weights, dict[str, Weights]]:
    """Return (weights by name, optimizer state by slot and name) from a recording of single steps."""
    slots: dict[str, Weights] = {}
    for path, array in group(recording, f"{prefix}/slots/").items():
        slot, _, name = path.partition("/")
        slots.setdefault(slot, {})[name] = array
    return group(recording, f"{prefix}/weights/"), slots


def state_before(teacher: Mapping[str, npt.NDArray[Any]], step: int) -> tuple[Weights, dict[str, Weights]]:
    """Return the state before a step. If the step before was recorded, it is the state after that one."""
    return state(teacher, f"before/{step}" if f"before/{step}/drawn" in teacher else f"after/{step - 1}")


def group(arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays whose names begin with a prefix, which ends with a slash, without the prefix."""
    if isinstance(arrays, array_file.ArrayFile):
        names = arrays.names_in(prefix)
    else:
        names = [name for name in arrays if name.startswith(prefix)]
    return {name.removeprefix(prefix): arrays[name] for name in names}


def trace(
    trainer: BaseTrainer, plan: BatchPlan, dataset: Dataset, initial: ReadOnlyWeights, *, batches_too: bool = False
) -> dict[str, npt.NDArray[Any]]:
    """Train `plan.total_steps` steps and record them.

    Returns:
        ids: int64 [examples], as trained on; loss: [steps], mean over each global batch before its update;
        num_correct: int64 [steps]; stepped/<parameter>: after one step; logits/final: eval mode, on the first batch.
        In serial mode also initial/<parameter>, gradient/<parameter>, logits/train and logits/eval before the first
        step, num_values: int64 [2], all and trainable; pixels: uint8 [steps, 32], SHA-256 of each augmented batch;
        images/<step> (uint8) of the first steps, and decoded: uint8 [32], SHA-256 of the decoded examples.
        With batches_too, images/<step>, labels/<step> and masks/<step>/<dropout> of all steps, learning_rate: [steps],
        final/<parameter>: after the last one, pixel_mean and pixel_std.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    serial = not plan.spec.is_parallel
    first: Batch | None = None
    ids: list[npt.NDArray[np.int64]] = []
    losses: list[npt.NDArray[np.float64]] = []
    correct: list[npt.NDArray[np.int64]] = []
    pixels: list[npt.NDArray[np.uint8]] = []
    batches = trainer.batches()
    for step in range(plan.total_steps):
        epoch, step_in_epoch = divmod(step, plan.steps_per_epoch)
        start, stop = plan.batch(step_in_epoch)
        batch = next(batches)
        if first is None:
            first = copy.deepcopy(batch)  # its memory is used again
            if serial:
                arrays |= _examine(trainer, batch, stop - start, initial)
        if serial:
            images = np.asarray(batch.images).copy()
            pixels.append(_sha256(images))
            if step < PIXEL_STEPS or batches_too:
                arrays[f"images/{step}"] = images
            if batches_too:
                arrays[f"labels/{step}"] = np.asarray(batch.labels)
                arrays |= {f"masks/{step}/{index}": np.asarray(mask) for index, mask in enumerate(batch.masks)}
        loss, num_correct = trainer.train_step(batch, stop - start, plan.learning_rate(step))
        heartbeat.count_step()
        losses.append(trainer.all_reduce_shards(trainer.fetch([loss]).astype(np.float64)))
        correct.append(trainer.all_reduce_shards(trainer.fetch([num_correct]).astype(np.int64)))
        index, number = trainer.shard
        low, high = plan.bounds(epoch + 1, number, index)[step_in_epoch]
        ids.append(_gather_rows(trainer, stop - start, slice(low - start, high - start), np.asarray(batch.ids)))
        if step == 0:
            trainer.finish_epoch()
            trainer.broadcast_statistics()
            arrays |= {f"stepped/{name}": array for name, array in trainer.weights().items()}
    assert first is not None, "a plan has at least one step"
    trainer.finish_epoch()
    trainer.broadcast_statistics()
    if batches_too:
        arrays |= {f"final/{name}": array for name, array in trainer.weights().items()}
        arrays |= {"pixel_mean": np.array(plan.scaling.mean), "pixel_std": np.array(plan.scaling.std)}
        arrays["learning_rate"] = np.array([plan.learning_rate(step) for step in range(plan.total_steps)])
    arrays |= {
        "ids": np.concatenate(ids),
        "loss": np.concatenate(losses),
        "num_correct": np.concatenate(correct),
        "logits/final": trainer.logits(first, training=False),
    }
    if serial:
        arrays["pixels"] = np.stack(pixels)
        arrays["decoded"] = _sha256(dataset.train.images[np.sort(arrays["ids"])])
    return arrays


def _examine(trainer: BaseTrainer, batch: Batch, num_examples: int, initial: ReadOnlyWeights) -> dict[str, npt.NDArray[Any]]:
    """Examine the untrained model, then restore its initial weights."""
    arrays: dict[str, npt.NDArray[Any]] = {f"initial/{name}": array for name, array in trainer.weights().items()}
    arrays["num_values"] = np.array(trainer.num_values())
    arrays["logits/eval"] = trainer.logits(batch, training=False)
    arrays["logits/train"] = trainer.logits(batch, training=True)
    trainer.load_weights(initial)
    arrays |= {f"gradient/{name}": array for name, array in trainer.gradients(batch, num_examples).items()}
    trainer.load_weights(initial)
    return arrays


def _sha256(array: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest(), np.uint8)

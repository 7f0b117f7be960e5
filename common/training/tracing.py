"""The arrays of a few training steps, for the parity proof. They come from the same code that is timed."""

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
from common.data.batches import Plan
from common.data.sources import Dataset, Split
from common.machine import heartbeat
from common.models.weights import GivenWeights, Weights
from common.training.evaluation import evaluate
from common.training.trainer import Batch, Trainer

SCORED, SCORED_AT_ONCE = 32, 20
"""Images of a step that are scored in evaluation mode too. They are no whole number of batches: those of a split seldom are."""
_WHOLE = ("images", "labels")
"""What a teacher records of a global batch."""
PIXEL_STEPS = 3
"""Steps whose augmented images are kept whole, so that a difference can be given in levels. Of other steps a hash is kept."""


def trace_steps(
    trainer: Trainer, plan: Plan, drawn: Sequence[int], teacher: Mapping[str, npt.NDArray[Any]] | None
) -> NamedArrays:
    """Do single steps of the plan and record them. The steps between them are not done, but their input is read.

    Args:
        trainer: of this process, untrained.
        drawn: steps, from 0, in order.
        teacher: a recording of the same steps, whose states are loaded. None: go on from step to step, and record the states
            and the batches for others. Mode serial.

    Yields:
        Arrays by name, as soon as they are there. By step, from 0: ids/<step>: int64 [N]; hashes/<step>: int64 [N], of each
        image; loss/<step>: mean over the batch; after/<step>/weights/<parameter>; after/<step>/slots/<slot>/<parameter>: the
        optimizer's state; num_correct/<step>: int64 [1]. In float32 decisions/<step>/<number>: int64 [N, words], see `packed`;
        and scored/<step>/loss: float64 [1], scored/<step>/predictions: int64 [up to SCORED], of the first images by an
        evaluation before the step.
        Where replicas keep what compression loses, lost/before/<step>/<bucket> and lost/after/...: float64 [replicas, count].
        A teacher adds images/<step>, labels/<step>, masks/<step>/<dropout>, and before/<step>/ if the step
        before was not drawn. At last pixel_mean and pixel_std.
    """
    iterator: Iterator[Batch] | None = None
    position = 0
    is_narrow = plan.spec.precision == "float32"
    for step in drawn:
        epoch = step // plan.steps_per_epoch
        if iterator is None or step - position > 2 * plan.steps_per_epoch:
            iterator, position = trainer.batches(epoch + 1), epoch * plan.steps_per_epoch
        while position < step:
            next(iterator)
            position += 1
        batch, position = next(iterator), step + 1
        size, gathered = _gathering(trainer, plan, step)
        yield f"ids/{step}", gathered(np.asarray(batch.ids))
        yield f"hashes/{step}", gathered([int.from_bytes(_sha256(image).tobytes()[:7]) for image in np.asarray(batch.images)])
        if teacher is None:
            yield f"images/{step}", np.asarray(batch.images).copy()
            yield f"labels/{step}", np.asarray(batch.labels)
            yield from ((f"masks/{step}/{index}", np.asarray(mask)) for index, mask in enumerate(batch.masks))
            if step - 1 not in drawn:
                yield f"before/{step}/drawn", np.array(step)
                yield from state_arrays(trainer, f"before/{step}")
        if teacher is not None or is_narrow:
            known, slots = (trainer.weights(), trainer.slots()) if teacher is None else state_before(teacher, step)
            images, labels = (batch.images, batch.labels) if teacher is None else (teacher[f"{each}/{step}"] for each in _WHOLE)
            if is_narrow:
                first = Split(images=np.asarray(images)[:SCORED], labels=np.asarray(labels)[:SCORED])
                yield from told_arrays(trainer, plan, batch, step, known, slots, first)
            else:
                trainer.load_slots(slots, known)
        yield from lost_arrays(trainer, "before", step)
        outputs = trainer.train_step(batch, size, plan.learning_rate(step))
        heartbeat.count_step()
        yield from outcome_arrays(trainer, step, *outputs)
        trainer.broadcast_statistics()
        yield from state_arrays(trainer, f"after/{step}")
    mean, deviation = plan.scaling.mean, plan.scaling.std
    yield "pixel_mean", np.array(mean, np.float64)
    yield "pixel_std", np.array(deviation, np.float64)


NamedArrays = Iterator[tuple[str, npt.NDArray[Any]]]
"""Arrays by name. All processes of a run read them together."""


def batch_arrays(trainer: Trainer, plan: Plan, batch: Batch, step: int) -> NamedArrays:
    """The global batch of a step, from 0, as the processes of a run got it. Names: see `trace_steps`."""
    _, gathered = _gathering(trainer, plan, step)
    yield f"ids/{step}", gathered(np.asarray(batch.ids))
    yield f"labels/{step}", gathered(np.asarray(batch.labels))
    images = np.asarray(batch.images)
    words = gathered(packed(images)).view(np.uint8)
    yield f"images/{step}", words[:, : math.prod(images.shape[1:])].reshape(-1, *images.shape[1:])
    for index, mask in enumerate(map(np.asarray, batch.masks)):
        bits = gathered(packed(mask)).view(np.uint8)
        yield f"masks/{step}/{index}", np.unpackbits(bits, 1, mask.shape[1]).view(bool)


def state_arrays(trainer: Trainer, prefix: str) -> NamedArrays:
    """Weights, statistics and the optimizer's state as they are."""
    yield from ((f"{prefix}/weights/{name}", array) for name, array in trainer.weights().items())
    for slot, values in trainer.slots().items():
        yield from ((f"{prefix}/slots/{slot}/{name}", array) for name, array in values.items())


def lost_arrays(trainer: Trainer, when: str, step: int) -> NamedArrays:
    """What compression has lost so far, `when` is before or after the step."""
    index, number = trainer.shard
    for bucket, own in enumerate(trainer.error_feedback()):
        found = np.zeros((len(own) * number, own.shape[1]))
        found[len(own) * index : len(own) * (index + 1)] = own
        yield f"lost/{when}/{step}/{bucket}", trainer.all_reduce(found)


def outcome_arrays(trainer: Trainer, step: int, loss: Any, num_correct: Any) -> NamedArrays:
    """What compression lost in a step, and what `train_step` returned."""
    yield from lost_arrays(trainer, "after", step)
    yield f"loss/{step}", trainer.all_reduce(trainer.fetch([loss]).astype(np.float64))
    yield f"num_correct/{step}", trainer.all_reduce(trainer.fetch([num_correct]).astype(np.int64))


def told_arrays(
    trainer: Trainer, plan: Plan, batch: Batch, step: int, weights: Weights, slots: Mapping[str, Weights], first: Split
) -> NamedArrays:
    """What ReLUs and maxima decide in a step from this state, and the scores of some images in evaluation mode before it.

    The trainer is in this state afterwards.
    """
    size, gathered = _gathering(trainer, plan, step)
    trainer.load_slots(slots, weights)
    for number, decided in enumerate(trainer.decisions(batch, size)):
        yield f"decisions/{step}/{number}", gathered(packed(decided))
    trainer.load_slots(slots, weights)
    scores, predictions = evaluate(trainer, first, SCORED_AT_ONCE)
    yield f"scored/{step}/loss", np.array([scores.loss])
    yield f"scored/{step}/predictions", predictions


def _gathering(trainer: Trainer, plan: Plan, step: int) -> tuple[int, Callable[[Any], npt.NDArray[np.int64]]]:
    """(examples in the global batch of a step; a function that gathers int64 values of this process's own examples)."""
    epoch, step_in_epoch = divmod(step, plan.steps_per_epoch)
    start, stop = plan.batch(step_in_epoch)
    index, number = trainer.shard
    low, high = plan.bounds(epoch + 1, number, index)[step_in_epoch]
    return stop - start, partial(_whole, trainer, stop - start, slice(low - start, high - start))


def packed(decisions: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """[N, ...] of bool or int16 as int64 [N, words], which processes can add up."""
    flat = decisions.reshape(len(decisions), -1)
    found = np.packbits(flat, 1) if flat.dtype == np.bool_ else flat.view(np.uint8)
    return np.pad(found, ((0, 0), (0, -found.shape[1] % 8))).view(np.int64)


def unpacked(words: npt.NDArray[np.int64], shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any] | None:
    """What was packed, as [N, ...] of bool or int16. None: it has another size."""
    values, count, is_bool = words.view(np.uint8), math.prod(shape[1:]), dtype == np.bool_
    if len(words) != shape[0] or values.shape[1] != 8 * math.ceil(count / (64 if is_bool else 4)):
        return None
    return (np.unpackbits(values, 1, count).view(bool) if is_bool else values[:, : 2 * count].view(np.int16)).reshape(shape)


def winners(
    images: npt.NDArray[Any], size: tuple[int, int], stride: tuple[int, int], padding: tuple[tuple[int, int], tuple[int, int]]
) -> npt.NDArray[np.int16]:
    """int16 [N, H', W', C]: which value of each window of images [N, H, W, C] is the largest, in row order.

    Sizes and strides are of height and width. Padding is never the largest. Of equal values the first one is.
    """
    padded = np.pad(images, ((0, 0), *padding, (0, 0)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, size, (1, 2))[:, :: stride[0], :: stride[1]]
    return windows.reshape(*windows.shape[:4], -1).argmax(-1).astype(np.int16)


def _whole(trainer: Trainer, size: int, own: slice, values: Any) -> npt.NDArray[np.int64]:
    """int64 [size, ...] of a global batch from this process's own rows."""
    found = np.zeros((size, *np.shape(values)[1:]), np.int64)
    found[own] = values
    return trainer.all_reduce(found)


def state(recording: Mapping[str, npt.NDArray[Any]], prefix: str) -> tuple[Weights, dict[str, Weights]]:
    """(weights by name; what the optimizer keeps, by slot and name) from a recording of single steps."""
    slots: dict[str, Weights] = {}
    for path, array in group(recording, f"{prefix}/slots/").items():
        slot, _, name = path.partition("/")
        slots.setdefault(slot, {})[name] = array
    return group(recording, f"{prefix}/weights/"), slots


def state_before(teacher: Mapping[str, npt.NDArray[Any]], step: int) -> tuple[Weights, dict[str, Weights]]:
    """The state before a step. It is that after the step before, if this one was drawn."""
    return state(teacher, f"before/{step}" if f"before/{step}/drawn" in teacher else f"after/{step - 1}")


def group(arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays whose names begin with a prefix, which ends with a slash, under the rest of their names."""
    if isinstance(arrays, array_file.ArrayFile):
        inside = arrays.names_in(prefix)
    else:
        inside = [name for name in arrays if name.startswith(prefix)]
    return {name.removeprefix(prefix): arrays[name] for name in inside}


def trace(
    trainer: Trainer, plan: Plan, dataset: Dataset, initial: GivenWeights, *, batches_too: bool = False
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
    serial = plan.spec.mode == "serial"
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
        losses.append(trainer.all_reduce(trainer.fetch([loss]).astype(np.float64)))
        correct.append(trainer.all_reduce(trainer.fetch([num_correct]).astype(np.int64)))
        index, number = trainer.shard
        low, high = plan.bounds(epoch + 1, number, index)[step_in_epoch]
        ids.append(_whole(trainer, stop - start, slice(low - start, high - start), np.asarray(batch.ids)))
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


def _examine(trainer: Trainer, batch: Batch, num_examples: int, initial: GivenWeights) -> dict[str, npt.NDArray[Any]]:
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

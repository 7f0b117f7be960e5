"""Uses of a trained model in a separate process: logits of images, their timing, and conversion of weights."""

from __future__ import annotations

import argparse
import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from common import spec
from common.artifacts import atomic_files, checked_arrays, trained
from common.artifacts.records import RecordError
from common.artifacts.trained import Card, Trained
from common.data import sources
from common.data.dataset import Images
from common.frozen import Frozen
from common.machine import heartbeat, machine, plain_file
from common.machine.interference import Meter
from common.models import weights
from common.models.architectures import Architecture
from common.models.weights import Weights, WeightsError
from common.spec import plain_values
from common.training.turns import Turns

COMMANDS = ("score", "infer", "write", "read")

SCORE_BATCH = 64
"""Number of images in a forward pass of the command `score`."""
WARM_UP_CALLS = 5
WARM_UP_SECONDS = 0.25
"""Least number of calls and of seconds before the timed calls of a batch size. They are not counted."""
LEAST_CALLS = 5
"""Number of calls that are timed for every batch size, however long they take."""
TURN_SECONDS, LEAST_TURN_CALLS = 0.25, 16
"""Seconds of calls that a turn aims at, and its least number of calls: those after a pause may be slower."""

ScoredSplit = Literal["validation", "test"]
"""Splits that can be scored."""

_LOGITS, _WEIGHTS_HASH = "logits", "weights_hash"


class SupportsLogits(Protocol):
    """A trained model on its device, in evaluation mode."""

    def logits(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.floating]:
        """Return logits [N, classes] of images uint8 [N, S, S, 3], both on the host, when the device has finished."""
        ...


@dataclass(frozen=True)
class Inference:
    """A twin's functions for trained models."""

    predictor: Callable[[Trained], SupportsLogits]
    suffixes: tuple[str, ...]
    """Suffixes of the framework's own files of weights."""
    write: Callable[[Trained, Path], None]
    """Writes the weights to a file of the framework's own format."""
    read: Callable[[Card, Architecture, Path], Weights]
    """Reads weights from such a file. Raises WeightsError if it does not fit."""


class BatchTimes(Frozen):
    """Times of one process for batches of one size."""

    batch_size: int
    first_seconds: float
    """Seconds of the first call: tracing or compiling, first touch of memory."""
    warm_up_calls: int
    seconds: list[float]
    """Seconds of each timed call, in order: from images on the host to logits on the host."""
    turns: list[int] = []
    """Number of these calls in each turn, in order. Empty: the process took no turns."""


class Latencies(Frozen):
    """Measurements of one process."""

    cores: int
    device: str
    versions: dict[str, str]
    peak_memory_mib: float
    cores_of_others: float
    """Mean number of cores that other work used during the measurement."""
    batches: list[BatchTimes]
    """Times by batch size, in order. The file is written after each size, so that running out of memory loses no other."""


def score(predictor: SupportsLogits, images: Images, batch_size: int = SCORE_BATCH) -> npt.NDArray[np.floating]:
    """Return logits [N, classes] of images uint8 [N, S, S, 3], each passed through once."""
    parts: list[npt.NDArray[np.floating]] = []
    for start in range(0, len(images), batch_size):
        parts.append(predictor.logits(np.asarray(images[start : start + batch_size])))
        heartbeat.heartbeat()
    return np.concatenate(parts)


def measure(
    predictor: SupportsLogits,
    image_size: int,
    batch_size: int,
    calls: int,
    seconds: float,
    warm_up_seconds: float = WARM_UP_SECONDS,
    wait: Callable[[], None] | None = None,
) -> BatchTimes:
    """Time one batch size after a warm-up, on random pixels. The time does not depend on what an image shows.

    Each turn has its share of calls and seconds, so that every process that is compared has as many turns. A slow one may make
    no call in some of them.

    Args:
        image_size: height and width in pixels.
        calls: largest number of timed calls.
        seconds: time after which no call is started. LEAST_CALLS are always made.
        warm_up_seconds: least time of the calls that are not timed.
        wait: waits for the process's next turn. None: it takes none.
    """
    images = np.random.default_rng(batch_size).integers(0, 256, (batch_size, image_size, image_size, 3), np.uint8)

    def call() -> float:
        start = time.perf_counter()
        predictor.logits(images)
        elapsed = time.perf_counter() - start
        heartbeat.heartbeat()
        return elapsed

    if wait is not None:
        wait()
    first = call()
    warm_up: list[float] = []
    while len(warm_up) < WARM_UP_CALLS or sum(warm_up) < warm_up_seconds:
        warm_up.append(call())
    call_seconds: list[float] = []
    turns: list[int] = []
    num_turns = 1 if wait is None else turns_of_a_size(calls, seconds)
    for number in range(1, num_turns + 1):
        part, before = number / num_turns, len(call_seconds)
        if wait is not None:
            wait()
            warm_up.append(call())  # caches are cold
        while len(call_seconds) < math.ceil(LEAST_CALLS * part) or (
            len(call_seconds) < math.ceil(calls * part) and sum(call_seconds) < seconds * part
        ):
            call_seconds.append(call())
        turns.append(len(call_seconds) - before)
    return BatchTimes(
        batch_size=batch_size,
        first_seconds=first,
        warm_up_calls=len(warm_up),
        seconds=call_seconds,
        turns=[] if wait is None else turns,
    )


def turns_of_a_size(calls: int, seconds: float) -> int:
    """Return the number of turns of a batch size, besides that of its warm-up.

    Args:
        calls, seconds: see `measure`.
    """
    return max(min(round(seconds / TURN_SECONDS), calls // LEAST_TURN_CALLS), 1)


def add_commands(commands: Any) -> None:
    """Add a twin's commands for trained models to `argparse`."""
    helps = ("logits of images (safetensors)", "how long logits take (JSON)", "as a file of the framework's own", "from one")
    for command, purpose in zip(COMMANDS, helps, strict=True):
        parser = commands.add_parser(command, help=f"a trained model: {purpose}")
        parser.add_argument("file", type=Path, metavar="FILE")
        parser.add_argument("--out", type=Path, required=True, metavar="FILE")
        parser.add_argument("--model", help="the user's own module that the file may name")
        parser.add_argument("--cores", type=int, default=None)
        parser.add_argument("--device", choices=get_args(spec.Device), default="auto", help="as in a spec")
        if command == "score":
            source = parser.add_mutually_exclusive_group(required=True)
            source.add_argument("--images", type=Path, metavar="IMAGES.npy", help="uint8 [N, S, S, 3]")
            source.add_argument("--data-of", type=Path, metavar="SPEC.json", help="a split of a spec's data")
            parser.add_argument("--split", choices=get_args(ScoredSplit), default="test", help="of --data-of")
        if command == "infer":
            parser.add_argument("--batches", required=True, help="sizes, with commas")
            parser.add_argument("--calls", type=int, required=True)
            parser.add_argument("--seconds", type=float, required=True)
        if command == "read":
            parser.add_argument("--card", type=Path, required=True, metavar="CARD.json")


def prepare_process(cores: int | None, device: spec.Device) -> spec.Spec:
    """Limit this process to `cores`, or to all, before its framework is imported. Returns the spec to configure it by."""
    process_spec = spec.build({"device": device} | ({} if cores is None else {"cores": cores}))
    machine.set_affinity(machine.cpu_budget(process_spec.cores))
    machine.keep_freed_memory()
    return process_spec


def run(
    inference: Inference,
    arguments: argparse.Namespace,
    device: str,
    versions: dict[str, str],
    cores: int,
    warm_up_seconds: float = WARM_UP_SECONDS,
) -> None:
    """Run one of COMMANDS.

    Args:
        arguments: parsed arguments of `add_commands`.
        cores: number of cores that this process may use.
        warm_up_seconds: see `measure`.
    """
    path, out = arguments.file, arguments.out
    if arguments.command == "read":
        card = trained.card_from(plain_file.read(arguments.card, trained.MOST_CARD_BYTES), arguments.card)
        architecture = trained.architecture_of(card, arguments.card, arguments.model)
        result = inference.read(card, architecture, path)
        weights.check(result, architecture, path)
        trained.save(card, result, out)
        return
    model = trained.load(path, arguments.model)
    if arguments.command == "write":
        _write(inference, model, out)
        return
    if arguments.command == "score":
        result = score(inference.predictor(model), _load_images(arguments))
        if not np.isfinite(result).all():
            raise WeightsError(f"{path} makes logits that are not finite. Use weights that a training has not driven there.")
        checked_arrays.write(out, {_WEIGHTS_HASH: weights.digest(model.weights)}, {_LOGITS: result})
        return
    turns = Turns.of_parts(device)
    turns.wait_to_build()
    predictor = inference.predictor(model)
    sizes = [int(size) for size in arguments.batches.split(",")]
    size_px = model.card.image_size
    # Of another size, and uncounted: else the process's own cold start would stand in the first size's first call.
    other_size = next(size for size in range(1, len(sizes) + 2) if size not in sizes)
    predictor.logits(np.zeros((other_size, size_px, size_px, 3), np.uint8))
    meter = Meter()
    batches: list[BatchTimes] = []
    wait = functools.partial(turns.wait_for_part, meter) if turns.are_taken else None
    for size in sizes:
        batches.append(measure(predictor, size_px, size, arguments.calls, arguments.seconds, warm_up_seconds, wait))
        latencies = Latencies(
            cores=cores,
            device=device,
            versions=versions,
            peak_memory_mib=machine.peak_memory_mib(),
            cores_of_others=meter.cores_of_others(),
            batches=batches,
        )
        atomic_files.write_atomically(out, latencies.model_dump_json(indent=1))
    turns.close()


def _write(inference: Inference, model: Trained, out: Path) -> None:
    """Write a file of the framework's own format atomically, and only if reading it returns the same weights."""
    partial = out.with_name(f".partial-{out.name}")  # the framework goes by the suffix
    try:
        inference.write(model, partial)
        restored_weights = inference.read(model.card, model.architecture, partial)
        for name, array in model.weights.items():
            if not np.array_equal(restored_weights[name], array.astype(model.card.precision)):
                raise AssertionError(f"{name} is read back from {out} with other values")
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


def _load_images(arguments: argparse.Namespace) -> Images:
    if arguments.images is not None:
        return np.load(arguments.images, mmap_mode="r", allow_pickle=False)
    data_spec = spec.from_json(plain_values.read_text(arguments.data_of))
    dataset = sources.load(data_spec.data, seed=data_spec.split_seed, cache_dir=data_spec.paths.cache_dir)
    return getattr(dataset, arguments.split).images


def load_logits(path: Path, model: Trained, count: int) -> npt.NDArray[np.floating]:
    """Load the logits that the command `score` has written.

    Args:
        model: the model that must have computed them.

    Returns:
        [count, classes].
    """
    metadata, arrays = checked_arrays.read(path, kind="record of logits")
    array = arrays.get(_LOGITS)
    shape = count, len(model.card.class_names)
    if metadata.get(_WEIGHTS_HASH) != weights.digest(model.weights) or array is None or array.shape != shape:
        raise RecordError(f"{path} holds no logits of this model and {count} images. Compute them again.")
    return array

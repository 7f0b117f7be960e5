"""Steps of a timed run that are recorded for a judge, and a fingerprint of all steps.

The steps are drawn epoch by epoch: from a word that only the launcher knew before the run, and from the losses so far, which
nobody knows before they are there. So no step is known before its epoch begins, and then to the loop alone. Anybody can draw
the steps of a stored result again. A recorded step is off the clock, with all that its record takes.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.artifacts import array_file
from common.data.batches import Plan
from common.data.sources import Split
from common.machine import placement
from common.training import tracing
from common.training.trainer import Batch, Trainer

BEFORE_FILE, AFTER_FILE = "spot_check_{}_before.safetensors", "spot_check_{}_after.safetensors"
"""Of one recorded step, which stands in the name: its batch and the state before it; its outcome and the state after it."""
TOLD_FILE = "spot_checks_told.safetensors"
"""What is found out about recorded steps after the training."""
LEAST_TIMED = 10
"""Steps of an epoch for each step that a record costs, if the input makes batches ahead."""
PARTS = 3
"""Of a run, each with a recorded step."""


def strata(plan: Plan) -> list[npt.NDArray[np.int64]]:
    """Steps of the run, from 0, of each of which one is drawn: the first, middle and last third, and all short batches.

    The first step of the run is none of them: a framework builds in it. With an input that makes batches ahead, a record costs
    the timed steps behind it too. If that is more than one in LEAST_TIMED of an epoch, there are no strata.
    """
    ahead = plan.spec.batches_ahead
    if ahead and (1 + ahead) * LEAST_TIMED > plan.steps_per_epoch:
        return []
    steps = np.arange(1, plan.total_steps)
    last = steps[(steps + 1) % plan.steps_per_epoch == 0]
    short = [last] if plan.num_examples % plan.spec.global_batch_size else []
    return [stratum for stratum in [*np.array_split(steps, PARTS), *short] if len(stratum)]


class Draw:
    """Draws one step of each stratum, epoch by epoch.

    Args:
        word: of the launcher.
        plan: of the run.
    """

    def __init__(self, word: str, plan: Plan) -> None:
        self._word = word
        self._open = dict(enumerate(strata(plan)))

    def steps(self, losses: Sequence[float], begin: int, stop: int) -> list[int]:
        """The steps of an epoch that are recorded.

        A step is drawn among all that are left of a stratum. If it lies in a later epoch, that one draws again.

        Args:
            losses: of the epochs so far, as they are recorded; of the first epoch, the loss of its first step.
            begin, stop: the epoch's steps, from 0.
        """
        found: set[int] = set()
        for number, stratum in list(self._open.items()):
            left = stratum[stratum >= begin]
            seed = hashlib.sha256(f"{self._word} {number} {[loss.hex() for loss in losses]}".encode()).digest()
            step = int(np.random.default_rng(np.frombuffer(seed, np.uint32)).choice(left)) if len(left) else 0
            if not len(left) or step < stop:
                found |= {step} if len(left) else set()
                del self._open[number]
        return sorted(found)


class SpotChecks:
    """The recorded steps of one process of a run, and the fingerprint of all. All processes call each method together.

    Args:
        plan: of the run.
        out: the folder of the run's files.
    """

    def __init__(self, plan: Plan, out: Path) -> None:
        self._plan = plan
        self._out = out
        word = os.environ.get(placement.SPOT_CHECKS_VARIABLE, "")
        self._draw = Draw(word, plan) if word and placement.is_first_rank() else None
        self._batches: list[tuple[int, Batch]] = []
        """Recorded steps, from 0, and this process's batches."""

    @property
    def steps(self) -> list[int]:
        """The recorded steps, from 0."""
        return [step for step, _ in self._batches]

    def of_epoch(self, trainer: Trainer, losses: Sequence[float], begin: int, stop: int) -> list[int]:
        """The steps of an epoch to record, from 0. Rank 0 draws them for all. Arguments: see `Draw.steps`."""
        marks = np.zeros(stop - begin, np.int64)
        if self._draw is not None:
            marks[[step - begin for step in self._draw.steps(losses, begin, stop)]] = 1
        return (begin + np.flatnonzero(trainer.total(marks))).tolist()

    def record(self, trainer: Trainer, batch: Batch, step: int, train: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
        """Train a step, and record it. Returns what `train` returns.

        A file that cannot be written is reported and left out: the training goes on.
        """
        before = (
            tracing.batch_arrays(trainer, self._plan, batch, step),
            iter([(f"before/{step}/drawn", np.array(step))]),
            tracing.state_arrays(trainer, f"before/{step}"),
            tracing.lost_arrays(trainer, "before", step),
        )
        self._write(BEFORE_FILE.format(step), itertools.chain.from_iterable(before))
        outputs = train()
        after = tracing.outcome_arrays(trainer, step, *outputs), tracing.state_arrays(trainer, f"after/{step}")
        self._write(AFTER_FILE.format(step), itertools.chain.from_iterable(after))
        self._batches.append((step, batch._replace(images=copy.deepcopy(batch.images))))  # its memory may be used again
        return outputs

    def finish(self, trainer: Trainer) -> None:
        """Find out, after everything else, what ReLUs and maxima decided in recorded steps, and score some of their images."""
        self._write(TOLD_FILE, itertools.chain.from_iterable(itertools.starmap(partial(self._told, trainer), self._batches)))

    def _told(self, trainer: Trainer, step: int, batch: Batch) -> tracing.NamedArrays:
        """Of a step whose record all processes can read: they may be on several hosts."""
        path = self._out / BEFORE_FILE.format(step)
        if trainer.total(np.array([not path.exists()], np.int64)).item():
            return
        arrays = array_file.ArrayFile(path)
        images, labels = (arrays[f"{each}/{step}"][: tracing.SCORED] for each in ("images", "labels"))
        weights, slots = tracing.state(arrays, f"before/{step}")
        first = Split(images=images, labels=labels)
        yield from tracing.told_arrays(trainer, self._plan, batch, step, weights, slots, first)

    def _write(self, name: str, arrays: tracing.NamedArrays) -> None:
        """Write arrays as they come, in the first process. All gather them together, whatever becomes of the file."""
        path, most = self._out / name, 64 + 8 * len(list(self._plan.architecture.parameters()))
        failed: list[BaseException] = []

        def read() -> tracing.NamedArrays:
            try:
                yield from arrays
            except BaseException as error:
                failed.append(error)
                raise

        if placement.is_first_rank():
            try:
                array_file.write(path, read(), most)
            except (OSError, ValueError, KeyError) as error:
                if failed:  # not of the file: the run's own, as where a rank has died
                    raise
                print(f"{name} was not written: {error}. This step of the run is not judged.", file=sys.stderr)
                with contextlib.suppress(OSError):
                    path.with_suffix(".partial").unlink()
        deque(arrays, maxlen=0)


def example_hashes(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """int64 [N]: a hash of every pixel of each image, and of its label.

    It is a sum, modulo 2**64, of words of 8 bytes times odd factors: some ten microseconds for 64 images of 32 pixels.

    Args:
        images: uint8 [N, H, W, 3].
        labels: int64 [N].
    """
    rows = np.ascontiguousarray(images).reshape(len(images), -1)
    if rows.shape[1] % 8:
        rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 8)))
    words = rows.view(np.uint64)
    factors = _factors(words.shape[1] + 1)
    return (words @ factors[1:] + labels.astype(np.uint64) * factors[0]).view(np.int64)


@cache
def _factors(number: int) -> npt.NDArray[np.uint64]:
    return np.random.Generator(np.random.Philox(key=number)).integers(0, 2**63, number, np.uint64) * np.uint64(2) + np.uint64(1)


def fingerprint(
    ids: npt.NDArray[np.int64], hashes: npt.NDArray[np.int64], learning_rates: Sequence[float], first_step: int
) -> str:
    """SHA-256 of what the steps of an epoch trained on.

    Args:
        ids: int64 [examples], in the order of training.
        hashes: int64 [examples], see `example_hashes`.
        learning_rates: of each step.
        first_step: of the epoch, from 0.
    """
    steps = np.arange(first_step, first_step + len(learning_rates), dtype="<i8")
    arrays = (ids.astype("<i8"), hashes.astype("<i8"), steps, np.asarray(learning_rates, "<f8"))
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()

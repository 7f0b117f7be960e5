"""Steps of a timed run that are recorded for later verification, and a fingerprint of all steps.

The steps are drawn epoch by epoch: from a secret of the launcher, and from the losses so far, which nobody knows in advance. So
no step is known before its epoch begins, and then only to the loop. Anybody can draw the steps of a stored result again. A
recorded step and the writing of its record are off the clock.
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
from common.data.batches import BatchPlan
from common.machine import placement
from common.training import tracing
from common.training.trainer import BaseTrainer, Batch

BEFORE_FILE, AFTER_FILE = "spot_check_{}_before.safetensors", "spot_check_{}_after.safetensors"
"""Files of one recorded step, whose number is in the name: batch and state before it; outcome and state after it."""
DECISIONS_FILE = "spot_checks_told.safetensors"
"""File of the decisions and scores of recorded steps, which are computed after the training."""
LEAST_TIMED = 10
"""Least number of an epoch's steps for each step that a record costs, if the input prepares batches ahead."""
PARTS = 3
"""Number of parts of a run, each with a recorded step."""


def strata(plan: BatchPlan) -> list[npt.NDArray[np.int64]]:
    """Return the strata of the run's steps, from 0. One step of each is drawn: three thirds, and all short batches.

    The first step of the run is in none of them: a framework builds in it. With an input that prepares batches ahead, a record
    costs the next timed steps too. If that is more than one in LEAST_TIMED of an epoch, there are no strata.
    """
    batches_ahead = plan.spec.batches_ahead
    if batches_ahead and (1 + batches_ahead) * LEAST_TIMED > plan.steps_per_epoch:
        return []
    steps = np.arange(1, plan.total_steps)
    last = steps[(steps + 1) % plan.steps_per_epoch == 0]
    short_batches = [last] if plan.num_examples % plan.spec.global_batch_size else []
    return [stratum for stratum in [*np.array_split(steps, PARTS), *short_batches] if len(stratum)]


class StepDraw:
    """Draws one step of each stratum, epoch by epoch.

    Args:
        launcher_secret: the launcher's secret word.
        plan: the run's plan.
    """

    def __init__(self, launcher_secret: str, plan: BatchPlan) -> None:
        self._launcher_secret = launcher_secret
        self._open_strata = dict(enumerate(strata(plan)))

    def steps(self, losses: Sequence[float], begin: int, stop: int) -> list[int]:
        """Draw the steps of an epoch that are recorded.

        A step is drawn among all that remain of a stratum. If it lies in a later epoch, that epoch draws again.

        Args:
            losses: recorded losses of the epochs so far; before the first epoch's end, the loss of its first step.
            begin, stop: the epoch's steps, from 0.
        """
        steps: set[int] = set()
        for number, stratum in list(self._open_strata.items()):
            remaining = stratum[stratum >= begin]
            seed = hashlib.sha256(f"{self._launcher_secret} {number} {[loss.hex() for loss in losses]}".encode()).digest()
            step = int(np.random.default_rng(np.frombuffer(seed, np.uint32)).choice(remaining)) if len(remaining) else 0
            if not len(remaining) or step < stop:
                steps |= {step} if len(remaining) else set()
                del self._open_strata[number]
        return sorted(steps)


class SpotChecks:
    """The recorded steps of one process of a run, and the fingerprint of all. All processes call each method together.

    Args:
        plan: the run's plan.
        out: the folder of the run's files.
    """

    def __init__(self, plan: BatchPlan, out: Path) -> None:
        self._plan = plan
        self._out = out
        launcher_secret = os.environ.get(placement.SPOT_CHECKS_VARIABLE, "")
        self._draw = StepDraw(launcher_secret, plan) if launcher_secret and placement.is_first_rank() else None
        self._batches: list[tuple[int, Batch]] = []
        """(recorded step, from 0; this process's batch)."""

    @property
    def steps(self) -> list[int]:
        """Recorded steps, from 0."""
        return [step for step, _ in self._batches]

    def steps_of_epoch(self, trainer: BaseTrainer, losses: Sequence[float], begin: int, stop: int) -> list[int]:
        """Return the steps of an epoch to record, from 0. Rank 0 draws them for all. Arguments: see `StepDraw.steps`."""
        marks = np.zeros(stop - begin, np.int64)
        if self._draw is not None:
            marks[[step - begin for step in self._draw.steps(losses, begin, stop)]] = 1
        return (begin + np.flatnonzero(trainer.all_reduce_world(marks))).tolist()

    def record(self, trainer: BaseTrainer, batch: Batch, step: int, train: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
        """Train a step, and record it. Returns what `train` returns.

        A file that cannot be written is reported and left out: the training goes on.
        """
        before = (
            tracing.batch_arrays(trainer, self._plan, batch, step),
            iter([(f"before/{step}/drawn", np.array(step))]),
            tracing.state_arrays(trainer, f"before/{step}"),
            tracing.residual_arrays(trainer, "before", step),
        )
        self._write(BEFORE_FILE.format(step), itertools.chain.from_iterable(before))
        outputs = train()
        after = tracing.outcome_arrays(trainer, step, *outputs), tracing.state_arrays(trainer, f"after/{step}")
        self._write(AFTER_FILE.format(step), itertools.chain.from_iterable(after))
        self._batches.append((step, batch._replace(images=copy.deepcopy(batch.images))))  # its memory may be used again
        return outputs

    def finish(self, trainer: BaseTrainer) -> None:
        """Compute, after everything else, the decisions of ReLUs and maxima in recorded steps, and scores of some images."""
        self._write(
            DECISIONS_FILE,
            itertools.chain.from_iterable(itertools.starmap(partial(self._decision_arrays, trainer), self._batches)),
        )

    def _decision_arrays(self, trainer: BaseTrainer, step: int, batch: Batch) -> tracing.NamedArrays:
        """Yield the decisions of a step, if all processes can read its record: they may be on several hosts."""
        path = self._out / BEFORE_FILE.format(step)
        if trainer.all_reduce_world(np.array([not path.exists()], np.int64)).item():
            return
        arrays = array_file.ArrayFile(path)
        weights, slots = tracing.state(arrays, f"before/{step}")
        trainer.load_slots(slots, weights)
        yield from tracing.score_arrays(trainer, step, arrays[f"images/{step}"], arrays[f"labels/{step}"])
        yield from tracing.decision_arrays(trainer, self._plan, batch, step)

    def _write(self, name: str, arrays: tracing.NamedArrays) -> None:
        """Write arrays one by one in the first process. All processes gather them, even if the file cannot be written."""
        path, max_arrays = self._out / name, 64 + 8 * len(list(self._plan.architecture.parameters()))
        errors: list[BaseException] = []

        def read_arrays() -> tracing.NamedArrays:
            try:
                yield from arrays
            except BaseException as error:
                errors.append(error)
                raise

        if placement.is_first_rank():
            try:
                array_file.write(path, read_arrays(), max_arrays)
            except (OSError, ValueError, KeyError) as error:
                if errors:  # not of the file: the run's own, as where a rank has died
                    raise
                print(f"{name} was not written: {error}. This step of the run is not judged.", file=sys.stderr)
                with contextlib.suppress(OSError):
                    path.with_suffix(".partial").unlink()
        deque(arrays, maxlen=0)


def example_hashes(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return int64 [N]: a hash of every pixel of each image, and of its label.

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
    """Return the SHA-256 of the data that the steps of an epoch trained on.

    Args:
        ids: int64 [examples], in the order of training.
        hashes: int64 [examples], see `example_hashes`.
        learning_rates: learning rate of each step.
        first_step: number of the epoch's first step, from 0.
    """
    steps = np.arange(first_step, first_step + len(learning_rates), dtype="<i8")
    arrays = (ids.astype("<i8"), hashes.astype("<i8"), steps, np.asarray(learning_rates, "<f8"))
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()

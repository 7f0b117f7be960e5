"""One epoch of a run in one process: its steps, what they return, and the blocks of steps that are timed together."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from common.artifacts.schema import Slice
from common.data.batches import BatchPlan, Feed
from common.data.sources import Dataset
from common.machine import heartbeat, ranges
from common.training.run_record import RunRecord
from common.training.spot_checks import SpotChecks, example_hashes, fingerprint
from common.training.timing import Timer
from common.training.trainer import BaseTrainer, Batch
from common.training.turns import Turn, Turns


class StepBlock(NamedTuple):
    """Consecutive steps of an epoch, numbered from 0."""

    timed: list[int]
    untimed: list[int]
    """Steps that follow the timed ones and are not timed."""
    ends_epoch: bool = False
    """Whether the clock runs here for the last time in the epoch."""


class Epoch:
    """The steps of one epoch. All processes call each method together.

    Args:
        number: number of the epoch, from 1.
        trainer: this process's trainer.
        plan: the run's plan.
        dataset: the run's data.
        feed: feed of this process's batches.
        spot_checks: the run's recorded steps. None: there are none, and no fingerprint.
        is_first: whether it is the first epoch of this process, which compiles in its first step.
        batch: batch of all steps. None: each step has its own.
    """

    def __init__(
        self,
        number: int,
        trainer: BaseTrainer,
        plan: BatchPlan,
        dataset: Dataset,
        feed: Feed[Batch],
        spot_checks: SpotChecks | None = None,
        *,
        is_first: bool = False,
        batch: Batch | None = None,
    ) -> None:
        self.number, self.is_first = number, is_first
        self.trainer, self.plan, self.dataset = trainer, plan, dataset
        self.part = plan.spec.part
        self.steps = plan.steps_in(number)
        self.first_step = (number - 1) * plan.steps_per_epoch
        """Number of the epoch's first step in the run, from 0."""
        self.sizes = [stop - start for start, stop in map(plan.batch, range(self.steps))]
        """Size of the global batch of each step."""
        if self.part == "compute":
            self.sizes = self.sizes[:1] * self.steps
        self.batch = batch
        self.first_step_seconds: float | None = None
        self.timers: list[Timer] = []
        self.untimed_since: float | None = None
        """Time when the blocks began with steps that are not timed, in seconds since 1970. None: the first timer began them."""
        self.turns: list[Turn] = []
        self.slices: list[Slice] = []
        self.left_out: set[int] = set()
        """Steps that are not timed: those recorded off the clock, those whose batches got ready then, the first of a turn."""
        self.unfinished_seconds = 0.0
        """Seconds of device work that was still running when the clock had stopped."""
        self.outputs: list[tuple[Any, Any]] = []
        """(loss, number of right predictions) of each step so far, on the device."""
        self.losses, self.num_correct, self.ids = np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64)
        """Mean loss and number of right predictions of each step, and ids of the examples in training order. See `fetch`."""
        self.fingerprint: str | None = None
        """See `common.training.spot_checks.fingerprint`. None: the batches are not on the host."""
        self._feed, self._spot_checks = feed, spot_checks
        self._batches: Iterator[Batch] = iter(())
        self._block_steps: Sequence[int] = range(self.steps)
        self._recorded: Collection[int] = ()
        self._num_untimed = 0
        self._ids: list[Any] = []
        self._begin_times: list[Any] = []
        self._hashes: list[npt.NDArray[np.int64]] = []
        self._rates: list[float] = []

    @property
    def timed(self) -> list[int]:
        """Timed steps of the epoch, from 0."""
        return [step for step in self._block_steps if step not in self.left_out]

    @property
    def timed_seconds(self) -> float:
        """Seconds of the timed steps, over all processes."""
        return sum(timer.seconds for timer in self.timers)

    @property
    def begin_times(self) -> list[float]:
        """Times when the input began the batches of the steps in blocks, in seconds since 1970."""
        return [float(begin_time) for begin_time in self._begin_times[self._num_untimed :]]

    def num_images(self) -> int:
        """Return the number of this process's images in the timed steps."""
        return sum(len(np.asarray(self._ids[step])) for step in self.timed)

    def train_first(self, timer: Timer) -> Batch:
        """Train the first step, with a batch for each input worker, so that all have started. Returns its batch."""
        self._batches = self._feed(self.number, [0] * max(self.plan.spec.workers, 1))
        batch = self.train(0, timer)
        deque(self._batches, maxlen=0)
        self._block_steps, self._num_untimed = range(1, self.steps), 1
        if self.part == "compute":
            self.batch = batch
        return batch

    def draw(self, record: RunRecord) -> None:
        """Start the queue of the batches of all other steps, and draw which steps are recorded."""
        self._batches = self._feed(self.number, self._block_steps)
        if self._spot_checks is None or not self._block_steps:
            return
        losses = [earlier.train.loss for earlier in record.epochs if earlier.train] or [record.facts["first_step_loss"]]
        first, last = self.first_step + self._block_steps[0], self.first_step + self._block_steps[-1]
        steps = self._spot_checks.steps_of_epoch(self.trainer, losses, first, last + 1)
        self._recorded = [step - self.first_step for step in steps]
        behind = self.plan.spec.batches_ahead
        self.left_out = {
            step for recorded in self._recorded for step in range(recorded, recorded + behind + 1) if step in self._block_steps
        }

    def train(self, step: int, timer: Timer) -> Batch:
        """Train one step, from 0. Returns its batch."""
        batch = self.batch
        if batch is None:
            with timer.waiting_for_input(), ranges.annotate("input"):
                batch = next(self._batches)
        if self.part != "input":
            number = self.first_step + step
            rate = self.plan.learning_rate(number)
            with ranges.annotate(f"step {number + 1}"):
                if self._spot_checks is not None and step in self._recorded:
                    train_step = partial(self.trainer.train_step, batch, self.sizes[step], rate)
                    self.outputs.append(self._spot_checks.record(self.trainer, batch, number, train_step))
                else:
                    self.outputs.append(self.trainer.train_step(batch, self.sizes[step], rate))
            self._rates.append(rate)
        heartbeat.count_step()
        if self._spot_checks is not None:
            self._hashes.append(example_hashes(np.asarray(batch.images), np.asarray(batch.labels)))
        self._ids.append(batch.ids)
        self._begin_times.append(batch.begin_time)
        return batch

    def blocks(self, turns: Turns, record: RunRecord) -> Iterator[StepBlock]:
        """Yield the blocks of steps, turn by turn. Each that has timed steps is timed before the next is asked for."""
        position = 0
        while not self.timers or position < len(self._block_steps):
            self.turns.append(turns.wait(self.trainer, len(self._block_steps) - position))
            steps = self._block_steps[position : position + self.turns[-1].steps]
            position += len(steps)
            if turns.are_taken and steps and (len(steps) > 1 or self.slices):  # else nothing of the epoch were timed
                # After the pause, caches are cold and threads asleep. Meanwhile input workers make batches off the clock.
                cold = min(1 + self.plan.spec.batches_ahead, max(len(steps) // 2, 1))
                self.left_out.update(steps[:cold])
            num_timers, usage = len(self.timers), record.usage
            blocks = self._cut(steps, ends_epoch=position == len(self._block_steps))
            if not self.timers and not blocks[0].timed:
                self.untimed_since = time.time()
            yield from blocks
            if turns.are_taken and steps:
                timers, used = self.timers[num_timers:], record.usage.minus(usage)
                self.slices.append(
                    Slice(
                        first_step=steps[0] + 1,
                        steps=len(steps),
                        seconds=sum(timer.seconds for timer in timers),
                        taken_cpu_seconds=used.taken_cpu_seconds,
                        stolen_cpu_seconds=used.stolen_cpu_seconds,
                        began_at=self.turns[-1].continued_at,
                    )
                )

    def _cut(self, steps: Sequence[int], *, ends_epoch: bool) -> list[StepBlock]:
        """Cut steps where some are left out. The clock of an epoch runs once more at its end."""
        blocks = [StepBlock([], [])]
        for step in steps:
            if step in self.left_out:
                blocks[-1].untimed.append(step)
                continue
            if blocks[-1].untimed:
                blocks.append(StepBlock([], []))
            blocks[-1].timed.append(step)
        if ends_epoch and blocks[-1].untimed:
            blocks.append(StepBlock([], []))
        return [*blocks[:-1], blocks[-1]._replace(ends_epoch=ends_epoch)]

    def fetch(self) -> None:
        """Fetch what the steps have returned, and sum it over all processes."""
        (losses, num_correct), first_read_seconds = self._fetch()
        _, second_read_seconds = self._fetch()  # the values are there: this is what reading them takes
        self.unfinished_seconds = sum(timer.unfinished_device_seconds for timer in self.timers) + max(
            first_read_seconds - second_read_seconds, 0.0
        )
        self.losses = self.trainer.all_reduce_shards(losses.astype(np.float64))
        self.num_correct = self.trainer.all_reduce_shards(num_correct.astype(np.int64))
        self.ids = self._gather(self._ids)
        if self._spot_checks is not None:
            self.fingerprint = fingerprint(self.ids, self._gather(self._hashes), self._rates, self.first_step)

    def _fetch(self) -> tuple[list[npt.NDArray[Any]], float]:
        """Fetch the steps' outputs. Returns ([losses, numbers of right predictions], seconds of fetching)."""
        start = time.perf_counter()
        return [self.trainer.fetch(list(values)) for values in zip(*self.outputs, strict=True)], time.perf_counter() - start

    def _gather(self, values: Sequence[Any]) -> npt.NDArray[np.int64]:
        """Gather a value of each example, e.g. the ids that all shards really trained on, in the order of the batches."""
        gathered = np.zeros(self.plan.batch(self.steps - 1)[1], np.int64)
        index, number = self.trainer.shard
        for (start, end), shard_values in zip(self.plan.bounds(self.number, number, index), values, strict=True):
            gathered[start:end] = np.asarray(shard_values)
        return self.trainer.all_reduce_shards(gathered)


class Observer:
    """Follows the epochs of a run. All ranks call each method together, so it may exchange values."""

    def after_steps(self, epoch: Epoch) -> None:
        """See an epoch whose steps are done. Nothing of them is fetched yet."""

    def before_validation(self, epoch: Epoch) -> None:
        """See a trained epoch before it is validated. Runs of a part of the training have no validation."""

    def after_validation(self, epoch: Epoch) -> None:
        """See a validated epoch before it is recorded."""

    def after_epoch(self, epoch: Epoch) -> bool:
        """See an epoch that is recorded. Returns whether training stops."""
        return False

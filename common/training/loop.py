"""The training run that both twins share: the order of the batches, the timing, and the record.

A twin provides a `BaseTrainer`: its model, optimizer, input and communication. This module imports no framework, so both twins
are timed and scored by the same rules.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from common.artifacts.schema import EpochRecord, Metrics, RunResult, Status
from common.data.batches import BatchPlan, order_digest
from common.data.sources import Dataset
from common.machine import machine, placement
from common.machine.interference import Meter
from common.machine.rates import DeviceRates
from common.models.sharding import shard
from common.models.weights import digest
from common.spec import Spec
from common.training import metrics, profiling
from common.training.epoch import Epoch, Observer
from common.training.evaluation import evaluate
from common.training.observers import BestEpochKeeper, Checkpoints, Memory, Speeds
from common.training.run_clock import RunClock
from common.training.run_record import RunRecord
from common.training.spot_checks import SpotChecks
from common.training.timing import Stopwatch, Timer
from common.training.trainer import BaseTrainer, Batch
from common.training.turns import Turns


class Diverged(ArithmeticError):
    """The loss is no longer a finite number."""


class TrainingRun:
    """One training run: the loop over its epochs, with its record, clock and observers.

    Args:
        framework, spec, versions, out, repeat, stopwatch, listener: see `RunRecord`.
        cpus: the CPUs that the run may use; None: all.
        meter: starts to measure the usage of these CPUs.
    """

    def __init__(
        self,
        framework: str,
        spec: Spec,
        versions: dict[str, str],
        out: Path,
        repeat: int,
        stopwatch: Stopwatch,
        cpus: Sequence[int] | None = None,
        listener: Callable[[dict[str, Any]], None] | None = None,
        meter: Callable[[Sequence[int]], Meter] = Meter,
    ) -> None:
        self._spec = spec
        self.record = RunRecord(framework, spec, versions, out, repeat, stopwatch, listener)
        self.memory = Memory(self.record)
        self._turns = Turns(stopwatch)
        self._clock = RunClock(self.record, machine.cpu_budget(spec.cores) if cpus is None else cpus, meter)
        best = BestEpochKeeper(self.record)
        self._checkpoints = Checkpoints(self.record, self._clock, self.memory, best)
        self._observers: tuple[Observer, ...] = (self.memory, Speeds(self.record), self._clock, best, self._checkpoints)
        self._first_batch: Batch | None = None
        self._spot_checks: SpotChecks | None = None

    def wait_to_build(self) -> None:
        """Wait until this run may build its model, if it takes turns. Its processes have imported the framework."""
        self._turns.wait_to_build()

    def train(self, trainer: BaseTrainer, plan: BatchPlan, dataset: Dataset, earlier_folder: Path | None = None) -> None:
        """Train and validate epoch by epoch, then score the test split.

        Args:
            trainer: this process's trainer.
            plan: the run's plan.
            dataset: the run's data.
            earlier_folder: the folder of an interrupted attempt. The run resumes from its checkpoint, if it can.

        Raises:
            Diverged: a loss of the epoch is NaN or infinite. The epochs before it are kept.
        """
        self.train_and_validate(trainer, plan, dataset, earlier_folder)
        if self._spec.part != "training":
            return
        self.record.update(final_weights_hash=digest(trainer.weights()))
        with self.record.stopwatch.phase("evaluation"):
            test, predictions = evaluate(trainer, dataset.test, self._spec.global_batch_size)
        self._clock.check(trainer)
        self.memory.measure(trainer)
        self.record.update(test=test, predictions_hash=order_digest(predictions))
        self.record.update(confusion=metrics.confusion(dataset.test.labels, predictions, len(dataset.class_names)))
        self.record.update(**trainer.report(dataset.test))

    def train_and_validate(
        self, trainer: BaseTrainer, plan: BatchPlan, dataset: Dataset, earlier_folder: Path | None = None
    ) -> None:
        """Train and validate epoch by epoch as `train` does, without the test split."""
        record = self.record
        record.update(implementation=trainer.implementation, devices=trainer.devices, threads=trainer.threads)
        record.event("start", total_epochs=plan.epochs, total_steps=plan.total_steps, steps_per_epoch=plan.steps_per_epoch)
        if self._spec.part == "training" and trainer.images_on_host:
            self._spot_checks = SpotChecks(plan, record.out)
        with record.stopwatch.phase("build"):
            first_epoch = self._checkpoints.resume(trainer, plan, dataset, earlier_folder)
            feed = trainer.feed()
        with closing(self._turns):
            for number in range(first_epoch, plan.epochs + 1):
                batch = self._first_batch if self._spec.part == "compute" else None
                epoch = Epoch(
                    number, trainer, plan, dataset, feed, self._spot_checks, is_first=number == first_epoch, batch=batch
                )
                self.train_epoch(epoch)
                # In order: what stops the training comes before what saves it, for a run that ends needs no checkpoint.
                if any(observer.after_epoch(epoch) for observer in self._observers):
                    break

    def train_epoch(self, epoch: Epoch) -> None:
        """Train one epoch on the clock, validate and record it."""
        trainer, part = epoch.trainer, epoch.part
        if epoch.is_first:
            self._first_step(epoch)
        epoch.draw(self.record)
        for block in epoch.blocks(self._turns, self.record):
            if block.timed or block.ends_epoch:
                with self._clock.timed(trainer) as timer:
                    for step in block.timed:
                        epoch.train(step, timer)
                    trainer.synchronize()  # a device may still compute what the loop has asked of it
                    timer.steps_seconds = timer.elapsed()
                    if block.ends_epoch and part != "input":
                        trainer.finish_epoch()
                epoch.timers.append(timer)
            for step in block.untimed:
                epoch.train(step, Timer())
        for observer in self._observers:
            observer.after_steps(epoch)
        if part != "training":
            self._record_epoch(epoch, train=None, validation=None, evaluation_seconds=0.0)
            return

        epoch.fetch()
        self.record.add_steps(epoch.ids, epoch.losses, epoch.first_step)
        if not np.isfinite(epoch.losses).all():
            step = int(np.argmin(np.isfinite(epoch.losses)))
            raise Diverged(_advice(f"loss is {epoch.losses[step]} at epoch {epoch.number}, step {step + 1}"))
        for observer in self._observers:
            observer.before_validation(epoch)
        with self.record.stopwatch.phase("evaluation") as evaluation:
            trainer.broadcast_statistics()
            validation, _ = evaluate(trainer, epoch.dataset.validation, self._spec.global_batch_size)
        if not math.isfinite(validation.loss):
            raise Diverged(_advice(f"validation loss is {validation.loss} after epoch {epoch.number}"))
        for observer in self._observers:
            observer.after_validation(epoch)
        loss_sum = float(epoch.losses @ np.array(epoch.sizes))
        self._record_epoch(
            epoch,
            train=metrics.from_counts(int(epoch.num_correct.sum()), sum(epoch.sizes), loss_sum),
            validation=validation,
            evaluation_seconds=evaluation.seconds,
            first_step_seconds=epoch.first_step_seconds,
            fingerprint=epoch.fingerprint,
        )

    def _first_step(self, epoch: Epoch) -> None:
        """Train the first step of this process, in which a framework builds, and build for all other batch sizes."""
        trainer, stopwatch = epoch.trainer, self.record.stopwatch
        with stopwatch.phase("first_step") as timer:
            batch = epoch.train_first(timer)
        if self._spec.profile_steps or epoch.part == "compute":
            self._first_batch = batch
        seconds = timer.seconds
        if epoch.number == 1 and epoch.part == "training":
            loss = float(trainer.all_reduce_shards(trainer.fetch([epoch.outputs[0][0]]).astype(np.float64))[0])
            self.record.update(first_step_loss=loss)
            self.record.event("first_step", seconds=seconds, loss=loss)
        if epoch.part != "input":
            with stopwatch.phase("compile") as compiling:
                trainer.compile(*_batch_sizes(epoch))
            seconds += compiling.seconds
        epoch.first_step_seconds = seconds

    def _record_epoch(self, epoch: Epoch, train: Metrics | None, validation: Metrics | None, **measured: Any) -> None:
        sizes, timed = epoch.sizes, epoch.timed
        record = EpochRecord(
            epoch=epoch.number,
            steps=len(sizes),
            images=sum(sizes),
            epoch_images=epoch.plan.num_examples,
            learning_rate=epoch.plan.learning_rate(epoch.first_step + len(sizes) - 1),
            train=train,
            validation=validation,
            timed_seconds=epoch.timed_seconds,
            timed_steps=len(timed),
            timed_images=sum(sizes[step] for step in timed),
            input_wait_seconds=sum(timer.input_wait_seconds for timer in epoch.timers),
            left_out=[step + 1 for step in sorted(epoch.left_out)],
            slices=epoch.slices,
            **measured,
        )
        self.record.epochs.append(record)
        self.record.event("epoch", **record.model_dump())

    # After everything else.

    def result(self, status: Status, reason: str | None = None) -> RunResult:
        """Return the result of the run."""
        return self.record.result(status, reason)

    def finish_spot_checks(self, trainer: BaseTrainer) -> None:
        """Record which steps were recorded, and examine them. The wall time ends before."""
        if self._spot_checks is None or not self._spot_checks.steps:
            return
        self.record.end_wall_time()
        self.record.update(spot_checks=[step + 1 for step in self._spot_checks.steps])
        try:
            self._spot_checks.finish(trainer)
        except Exception as error:  # whatever a device raises whose memory holds a model: the training is done
            print(f"Recorded steps do not tell their decisions: {error}", file=sys.stderr)

    def measure_device_rates(self, device_rates: Callable[[Spec], DeviceRates | None]) -> None:
        """Measure the device's rates. The wall time ends before."""
        phases = self.record.phases()
        try:
            rates = device_rates(self._spec)
        except Exception as error:  # whatever a device raises whose memory holds a model: the training is done
            print(f"The device's rates were not measured: {error}", file=sys.stderr)
            return
        if rates is not None:
            self.record.end_wall_time(phases)
            self.record.update(device_rates=rates)

    def profile(self, trainer: BaseTrainer, plan: BatchPlan) -> None:
        """Break a step down if the spec requests it. The wall time ends before."""
        if self._first_batch is None or not self._spec.profile_steps:
            return
        self.record.end_wall_time()
        batch, size, steps = self._first_batch, plan.batch(0)[1], self._spec.profile_steps
        self.record.update(step_parts=profiling.step_parts(trainer, batch, size, steps))
        folder = self.record.out if placement.is_first_rank() else None
        traced_steps = min(steps, profiling.MOST_TRACED_STEPS)
        self.record.update(top_operations=profiling.top_operations(trainer, batch, size, traced_steps, folder))


def _batch_sizes(epoch: Epoch) -> tuple[list[int], list[int]]:
    """Return the sizes of the global batches to train on, and of this process's batches to score."""
    plan, trainer = epoch.plan, epoch.trainer
    if epoch.part != "training":
        return [plan.batch(0)[1]], []
    sizes = {stop - start for start, stop in map(plan.batch, range(plan.steps_in(1)))}
    index, number = trainer.shard
    low, high = shard(len(epoch.dataset.validation.labels), number, 0 if trainer.scores_together else index)
    size = plan.spec.global_batch_size
    return sorted(sizes, reverse=True), sorted({min(high - low, size), (high - low) % size} - {0})


def _advice(problem: str) -> str:
    return f"{problem}; try a smaller optimizer.learning_rate"

"""The training run that both twins share: the order of the batches, the timing, and the record.

A twin provides a `BaseTrainer`: its model, optimizer, input and communication. This module imports no framework, so both twins
are timed and scored by the same rules.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from common.artifacts import checkpoint, event_log, results, trained
from common.artifacts.checkpoint import Checkpoint, CheckpointError, Identity, Progress
from common.artifacts.schema import EpochRecord, Noise, Phases, RunResult, Slice, Status
from common.artifacts.trained import Card
from common.data.batches import BatchPlan, Feed, order_digest
from common.data.sources import Dataset
from common.machine import heartbeat, machine, placement, ranges
from common.machine.interference import LEAST_TIMED_SECONDS, Meter, Usage
from common.machine.rates import DeviceRates
from common.models.sharding import shard
from common.models.weights import Weights, digest
from common.spec import Spec
from common.training import metrics, profiling, timing
from common.training.evaluation import evaluate
from common.training.spot_checks import SpotChecks, example_hashes, fingerprint
from common.training.timing import ClockAudit, ClockError, ClockEvidence, ClockSpan, Stopwatch, Timer
from common.training.trainer import BaseTrainer, Batch
from common.training.turns import Turn, Turns, seconds_ahead


class _StepBlock(NamedTuple):
    """Consecutive steps of an epoch, numbered from 0."""

    timed: list[int]
    untimed: list[int]
    """Steps that follow the timed ones and are not timed."""


class Diverged(ArithmeticError):
    """The loss is no longer a finite number."""


class TrainingRun:
    """One training run: its measurements so far, and the result made from them.

    Args:
        framework: name of the framework in the result.
        spec: the run's spec.
        versions: versions of the framework's packages.
        out: the folder for the run's events and checkpoints.
        repeat: the number of this repeat.
        stopwatch: a stopwatch that was started with the run.
        cpus: the CPUs that the run may use; None: all.
        listener: receives every event, which is then not written to `out`. It may raise to end the run.
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
        self._out = out
        self._listener = listener
        self._meter = meter
        self._stopwatch = stopwatch
        self._turns = Turns(stopwatch)
        self._epochs: list[EpochRecord] = []
        self._order: list[npt.NDArray[np.int64]] = []
        self._cpus = machine.cpu_budget(spec.cores) if cpus is None else cpus  # of all ranks
        self._usage = Usage()
        self._images_and_seconds = np.zeros(2)
        """This process's (images, seconds) in all timed epochs."""
        self._memory_mib = np.array([0.0, math.nan])
        """Largest (resident, proportional) memory so far in MiB. The second is NaN if the system does not report it."""
        self._audit = ClockAudit()
        self._last_event_clock: float | None = None
        """Reading of the run's clock after its last event was written."""
        self._load, self._frequency_mhz = machine.load(), machine.frequency_mhz()
        self._first_batch: Batch | None = None
        self._spot_checks: SpotChecks | None = None
        self._first_epoch = 1
        self._earlier: Phases | None = None
        self._phases: Phases | None = None
        self._best: Weights = {}
        self._facts: dict[str, Any] = {
            "framework": framework,
            "spec": spec,
            "repeat": repeat,
            "versions": versions,
            "machine": machine.describe(),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def record(self, **facts: Any) -> None:
        """Set fields of the result as soon as they are known, so that the row of a failed run has them too."""
        self._facts.update(facts)

    def result(self, status: Status, reason: str | None = None) -> RunResult:
        usage = self._usage
        # How busy a machine was is known of this machine only, but the ranks' CPU seconds come from all machines.
        is_one_host = placement.on_one_host()
        return RunResult(
            status=status,
            reason=reason,
            epochs=self._epochs,
            phases=self._phases or self._phases_so_far(),
            order_hash=order_digest(np.concatenate(self._order)) if self._order else None,
            cores_used=self._over_time(usage.process_cpu_seconds),
            cores_of_others=self._over_time(usage.other_cpu_seconds) if is_one_host else None,
            noise=Noise(
                load_start=self._load,
                load_end=machine.load(),
                frequency_start_mhz=self._frequency_mhz,
                frequency_end_mhz=machine.frequency_mhz(),
                cores_stolen=self._over_time(usage.stolen_cpu_seconds),
                cores_taken=self._over_time(usage.taken_cpu_seconds) if is_one_host else None,
            ),
            **self._facts,
        )

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
        self.record(final_weights_hash=digest(trainer.weights()))
        with self._stopwatch.phase("evaluation"):
            test, predictions = evaluate(trainer, dataset.test, self._spec.global_batch_size)
        self._check_clocks(trainer)
        self._record_memory(trainer)
        self.record(test=test, predictions_hash=order_digest(predictions))
        self.record(confusion=metrics.confusion(dataset.test.labels, predictions, len(dataset.class_names)))
        self.record(**trainer.report(dataset.test))

    def train_and_validate(
        self, trainer: BaseTrainer, plan: BatchPlan, dataset: Dataset, earlier_folder: Path | None = None
    ) -> None:
        """Train and validate epoch by epoch as `train` does, without the test split."""
        self.record(implementation=trainer.implementation, devices=trainer.devices, threads=trainer.threads)
        self._event("start", total_epochs=plan.epochs, total_steps=plan.total_steps, steps_per_epoch=plan.steps_per_epoch)
        if self._spec.part == "training" and trainer.images_on_host:
            self._spot_checks = SpotChecks(plan, self._out)
        with self._stopwatch.phase("build"):
            self._resume(trainer, plan, dataset, earlier_folder)
            feed = trainer.feed()
        saved_at = time.monotonic()
        with closing(self._turns):
            for epoch in range(self._first_epoch, plan.epochs + 1):
                self._epoch(epoch, trainer, plan, dataset, feed)
                if self._spec.part == "training" and self._update_best(trainer, plan, dataset):
                    break
                if epoch == plan.epochs or self._spec.not_resumable_because is not None:
                    continue
                is_due = time.monotonic() - saved_at >= (self._spec.checkpoint_seconds or 0.0)
                if _broadcast_from_rank0(trainer, is_due)[0]:
                    self._save(trainer)
                    saved_at = time.monotonic()

    def record_device_memory(self, trainer: BaseTrainer, device_mib: Sequence[float]) -> None:
        """Record the peak memory of each device of each process. All processes call it.

        Args:
            device_mib: peak memory in MiB of each device that this process sees; empty on a CPU.
        """
        ranks, rank = _ranks()
        numbers = np.zeros(ranks, np.int64)
        numbers[rank] = len(device_mib)
        by_rank = np.zeros((ranks, trainer.all_reduce_world(numbers).max()))
        if not by_rank.size:
            return
        by_rank[rank, : len(device_mib)] = device_mib
        by_rank = trainer.all_reduce_world(by_rank)
        peaks = {
            f"rank {other_rank} GPU {index}": float(by_rank[other_rank, index])
            for other_rank, index in np.argwhere(by_rank > 0.0)
        }
        self.record(device_peak_memory_mib=float(by_rank.sum()), peak_memory_by_device_mib=peaks)

    def finish_spot_checks(self, trainer: BaseTrainer) -> None:
        """Record which steps were recorded, and examine them, after everything else. The wall time ends before."""
        if self._spot_checks is None or not self._spot_checks.steps:
            return
        self._phases = self._phases or self._phases_so_far()
        self.record(spot_checks=[step + 1 for step in self._spot_checks.steps])
        try:
            self._spot_checks.finish(trainer)
        except Exception as error:  # whatever a device raises whose memory holds a model: the training is done
            print(f"Recorded steps do not tell their decisions: {error}", file=sys.stderr)

    def measure_device_rates(self, device_rates: Callable[[Spec], DeviceRates | None]) -> None:
        """Measure the device's rates, after everything else. The wall time ends before."""
        phases = self._phases or self._phases_so_far()
        try:
            rates = device_rates(self._spec)
        except Exception as error:  # whatever a device raises whose memory holds a model: the training is done
            print(f"The device's rates were not measured: {error}", file=sys.stderr)
            return
        if rates is not None:
            self._phases = phases
            self.record(device_rates=rates)

    def profile(self, trainer: BaseTrainer, plan: BatchPlan) -> None:
        """Break a step down if the spec requests it, after everything else. The wall time ends before."""
        if self._first_batch is None or not self._spec.profile_steps:
            return
        self._phases = self._phases or self._phases_so_far()
        batch, size, steps = self._first_batch, plan.batch(0)[1], self._spec.profile_steps
        self.record(step_parts=profiling.step_parts(trainer, batch, size, steps))
        folder = self._out if placement.is_first_rank() else None
        traced_steps = min(steps, profiling.MOST_TRACED_STEPS)
        self.record(top_operations=profiling.top_operations(trainer, batch, size, traced_steps, folder))

    def _update_best(self, trainer: BaseTrainer, plan: BatchPlan, dataset: Dataset) -> bool:
        """Keep the weights if this epoch is the best so far. Returns whether to stop because epochs no longer improve."""
        settings = self._spec.best_epoch
        if not settings.keep and settings.patience is None:
            return False
        best = best_epoch(self._epochs, settings.by)
        epochs_since_best = self._epochs[-1].epoch - best
        stops = settings.patience is not None and epochs_since_best >= settings.patience
        decisions = _broadcast_from_rank0(trainer, epochs_since_best == 0, stops)
        self.record(best_epoch=best)
        if settings.keep and decisions[0]:
            weights = trainer.weights()  # called by all ranks: each may hold only a part
            if placement.is_first_rank():
                self._best = weights
                self._save_best(plan, dataset)
        return decisions[1]

    def _save_best(self, plan: BatchPlan, dataset: Dataset) -> None:
        record, labels = self._epochs[self._facts["best_epoch"] - 1], dataset.validation.labels
        card = Card(
            framework=self._facts["framework"],
            versions=self._facts["versions"],
            model=self._spec.model,
            width=self._spec.width,
            depth=self._spec.depth,
            dropout=self._spec.dropout,
            class_names=dataset.class_names,
            image_size=plan.architecture.image_size,
            pixel_mean=plan.scaling.mean,
            pixel_std=plan.scaling.std,
            precision=self._spec.precision,
            spec_hash=self._spec.digest,
            data_hash=dataset.content_hash,
            seed=self._spec.seed,
            epoch=record.epoch,
            validation=record.validation,
            chance_accuracy=float(np.bincount(labels).max() / len(labels)) if len(labels) else None,
        )
        trained.save(card, self._best, self._out / results.BEST_FILE)

    def _resume(self, trainer: BaseTrainer, plan: BatchPlan, dataset: Dataset, earlier_folder: Path | None) -> None:
        """Resume from the checkpoint of an earlier attempt. If that is impossible, record the reason and start over."""
        if self._spec.not_resumable_because is not None:
            if earlier_folder is not None:
                self.record(started_over=self._spec.not_resumable_because)
            return
        restored: Checkpoint | None = None
        if earlier_folder is not None and placement.is_first_rank():
            try:
                restored = checkpoint.load(earlier_folder)
                self._check_identity(restored.progress.identity)
            except CheckpointError as error:
                restored = None
                print(f"The run starts over: {error}.", file=sys.stderr)
                self.record(started_over=str(error))
        restored = checkpoint.broadcast_from_rank0(trainer, restored)
        if restored is None:
            return
        progress = restored.progress
        self._first_epoch = len(progress.epochs) + 1
        trainer.load_state(restored.state, (self._first_epoch - 1) * plan.steps_per_epoch)
        self._order = [restored.ids]
        self._epochs = list(progress.epochs)
        self._earlier = progress.phases
        self._usage = progress.usage
        self._memory_mib = np.array([progress.peak_memory_mib, progress.peak_memory_pss_mib], np.float64)
        self._load, self._frequency_mhz = progress.load_start, progress.frequency_start_mhz
        same_ranks = progress.identity.spec.replicas == self._spec.replicas  # an elastic run's times do not count
        self._audit = ClockAudit(progress.clock if same_ranks else [], progress.clock_stepped)
        self.record(first_step_loss=progress.first_step_loss, step_losses=progress.step_losses)
        self.record(resumes=progress.resumes + 1, clock_caution=self._audit.caution())
        self._event("first_step", seconds=progress.phases.first_step_seconds, loss=progress.first_step_loss)
        for record in progress.epochs:
            self._event("epoch", **record.model_dump())
        self._event("resume", epochs=len(progress.epochs))
        if restored.best and placement.is_first_rank():
            self._best = restored.best
            self.record(best_epoch=best_epoch(self._epochs, self._spec.best_epoch.by))
            self._save_best(plan, dataset)

    def _check_identity(self, identity: Identity) -> None:
        for field, expected in self._identity():
            stored = getattr(identity, field)
            if not (self._spec.can_resume_from(stored) if field == "spec" else stored == expected):
                raise CheckpointError(f"the checkpoint is of another run: its {field} differs")

    def _identity(self) -> Identity:
        return Identity(**{name: self._facts[name] for name in Identity.model_fields})

    def _save(self, trainer: BaseTrainer) -> None:
        """Save a checkpoint. If that fails, the run continues without one. All ranks call it, since each may hold a part."""
        if not (placement.is_first_rank() or trainer.shards_optimizer):
            return
        state = trainer.state()
        if not placement.is_first_rank():
            return
        progress = Progress(
            identity=self._identity(),
            epochs=self._epochs,
            phases=self._phases_so_far(),
            first_step_loss=self._facts["first_step_loss"],
            step_losses=self._facts.get("step_losses", []),
            resumes=self._facts.get("resumes", 0),
            usage=self._usage,
            load_start=self._load,
            frequency_start_mhz=self._frequency_mhz,
            peak_memory_mib=self._facts["peak_memory_mib"],
            peak_memory_pss_mib=self._facts["peak_memory_pss_mib"],
            clock=self._audit.epochs,
            clock_stepped=self._audit.clock_step_caution,
        )
        try:
            checkpoint.save(Checkpoint(progress, np.concatenate(self._order), state, self._best), self._out)
        except OSError as error:
            print(f"No checkpoint after epoch {len(self._epochs)}: {error}.", file=sys.stderr)
        heartbeat.heartbeat()

    def _phases_so_far(self) -> Phases:
        """Return the phases of this attempt and of the earlier attempts that it resumes."""
        phases = self._stopwatch.phases()
        if self._earlier is None:
            return phases
        return Phases(**{name: seconds + getattr(self._earlier, name) for name, seconds in phases})

    def _epoch(self, epoch: int, trainer: BaseTrainer, plan: BatchPlan, dataset: Dataset, feed: Feed[Batch]) -> None:
        part, steps, first_step = self._spec.part, plan.steps_in(epoch), (epoch - 1) * plan.steps_per_epoch
        sizes = [stop - start for start, stop in map(plan.batch, range(steps))]
        if part == "compute":
            sizes = sizes[:1] * steps
        outputs: list[tuple[Any, Any]] = []
        ids: list[Any] = []
        begin_times: list[Any] = []
        hashes: list[npt.NDArray[np.int64]] = []
        rates: list[float] = []
        checks = self._spot_checks

        def train(timer: Timer, step: int, *, is_recorded: bool = False) -> None:
            batch = self._first_batch
            if batch is None or part != "compute":
                with timer.waiting_for_input(), ranges.annotate("input"):
                    batch = next(batches)
            if self._first_batch is None and (self._spec.profile_steps or part == "compute"):
                self._first_batch = batch
            if part != "input":
                number = first_step + step
                rate = plan.learning_rate(number)
                with ranges.annotate(f"step {number + 1}"):
                    if is_recorded and checks is not None:
                        train_once = partial(trainer.train_step, batch, sizes[step], rate)
                        outputs.append(checks.record(trainer, batch, number, train_once))
                    else:
                        outputs.append(trainer.train_step(batch, sizes[step], rate))
                rates.append(rate)
            heartbeat.count_step()
            if checks is not None:
                hashes.append(example_hashes(np.asarray(batch.images), np.asarray(batch.labels)))
            ids.append(batch.ids)
            begin_times.append(batch.begin_time)

        timed, first_step_seconds = range(steps), None
        if epoch == self._first_epoch:  # of this process, which compiles in its first step
            batches = feed(epoch, [0] * max(self._spec.workers, 1))  # a batch for each worker, so that all have started
            with self._stopwatch.phase("first_step") as timer:
                train(timer, 0)
                deque(batches, maxlen=0)
            timed, first_step_seconds = range(1, steps), timer.seconds
            if epoch == 1 and part == "training":
                first_loss = float(trainer.all_reduce_shards(trainer.fetch([outputs[0][0]]).astype(np.float64))[0])
                self.record(first_step_loss=first_loss)
                self._event("first_step", seconds=timer.seconds, loss=first_loss)
            if part != "input":
                with self._stopwatch.phase("compile") as compiling:
                    trainer.compile(*self._batch_sizes(trainer, plan, dataset))
                first_step_seconds += compiling.seconds
        batches, untimed = feed(epoch, timed), len(ids)
        recorded_steps = self._steps_to_record(trainer, timed, first_step)
        left_out = _left_out(plan, timed, recorded_steps)
        timers: list[Timer] = []
        turns: list[Turn] = []
        slices: list[Slice] = []
        own_seconds = 0.0
        position = 0
        while not timers or position < len(timed):
            turns.append(self._turns.wait(trainer, len(timed) - position))
            slice_steps = timed[position : position + turns[-1].steps]
            position += len(slice_steps)
            is_last, num_timers, usage = position == len(timed), len(timers), self._usage
            blocks = _step_blocks(slice_steps, left_out, ends_epoch=is_last)
            for block in blocks:
                with self._timed(trainer) as timer:
                    for step in block.timed:
                        train(timer, step)
                    trainer.synchronize()  # a device may still compute what the loop has asked of it
                    own_seconds += timer.elapsed()
                    if part != "input" and is_last and block is blocks[-1]:
                        trainer.finish_epoch()
                timers.append(timer)
                for step in block.untimed:
                    train(Timer(), step, is_recorded=step in recorded_steps)
            if self._turns.are_taken and slice_steps:
                slices.append(_slice(slice_steps, timers[num_timers:], self._usage.minus(usage)))
        self._record_memory(trainer)
        timed = [step for step in timed if step not in left_out]
        measured = {
            "timed_seconds": sum(timer.seconds for timer in timers),
            "input_wait_seconds": sum(timer.input_wait_seconds for timer in timers),
        }
        num_examples = {step: len(np.asarray(batch_ids)) for step, batch_ids in zip(range(steps), ids, strict=True)}
        self._record_speeds(trainer, sum(num_examples[step] for step in timed), own_seconds)
        if part != "training":
            self._record_epoch(
                epoch, plan, sizes, timed, train=None, validation=None, evaluation_seconds=0.0, slices=slices, **measured
            )
            return

        (losses, num_correct), first_read_seconds = _fetch_outputs(trainer, outputs)
        _, second_read_seconds = _fetch_outputs(trainer, outputs)  # the values are there: this is what reading them takes
        unfinished_seconds = sum(timer.unfinished_device_seconds for timer in timers) + max(
            first_read_seconds - second_read_seconds, 0.0
        )
        losses, num_correct = (
            trainer.all_reduce_shards(losses.astype(np.float64)),
            trainer.all_reduce_shards(num_correct.astype(np.int64)),
        )
        order = _gather(trainer, plan, epoch, ids)
        self._order.append(order)
        epoch_fingerprint = (
            None if checks is None else fingerprint(order, _gather(trainer, plan, epoch, hashes), rates, first_step)
        )
        if not np.isfinite(losses).all():
            step = int(np.argmin(np.isfinite(losses)))
            self._record_losses(losses, first_step)
            raise Diverged(f"loss is {losses[step]} at epoch {epoch}, step {step + 1}; try a smaller optimizer.learning_rate")
        self._record_losses(losses, first_step)
        parameters_digest = self._parameters(trainer, plan, epoch)
        with self._stopwatch.phase("evaluation") as evaluation:
            trainer.broadcast_statistics()
            validation, _ = evaluate(trainer, dataset.validation, self._spec.global_batch_size)
        if not math.isfinite(validation.loss):
            raise Diverged(f"validation loss is {validation.loss} after epoch {epoch}; try a smaller optimizer.learning_rate")
        timed_begin_times = [float(begin_time) for begin_time in begin_times[untimed:]]
        started_at = timers[0].started_at
        evidence = ClockEvidence(
            seconds=measured["timed_seconds"],
            rank_seconds=sum(timer.rank_seconds for timer in timers),
            barrier_to_barrier_seconds=sum(timer.barrier_to_barrier_seconds for timer in timers),
            unfinished_device_seconds=unfinished_seconds,
            prefetch_lead_seconds=max(
                started_at - min(timed_begin_times, default=started_at), seconds_ahead(turns, timed_begin_times)
            )
            if all(timed_begin_times)
            else math.inf,
            clock_step_seconds=sum(timer.clock_step_seconds for timer in timers),
            compilations=sum(timer.compilations for timer in timers),
            updates=trainer.updates - (first_step + steps),
            parameters_changed=self._parameters(trainer, plan, epoch) != parameters_digest,
        )
        if self._listener is None:  # trials of a search share a process, its compilers and its cores
            self._judge_clock(trainer, evidence)
        self._record_epoch(
            epoch,
            plan,
            sizes,
            timed,
            train=metrics.from_counts(int(num_correct.sum()), sum(sizes), float(losses @ np.array(sizes))),
            validation=validation,
            evaluation_seconds=evaluation.seconds,
            first_step_seconds=first_step_seconds,
            left_out=[step + 1 for step in sorted(left_out)],
            fingerprint=epoch_fingerprint,
            slices=slices,
            **measured,
        )

    def _steps_to_record(self, trainer: BaseTrainer, timed: Sequence[int], first_step: int) -> list[int]:
        """Return which of an epoch's timed steps to record, numbered from 0 in the epoch."""
        if self._spot_checks is None or not timed:
            return []
        losses = [record.train.loss for record in self._epochs if record.train] or [self._facts["first_step_loss"]]
        steps = self._spot_checks.steps_of_epoch(trainer, losses, first_step + timed[0], first_step + timed[-1] + 1)
        return [step - first_step for step in steps]

    def _record_speeds(self, trainer: BaseTrainer, images: int, seconds: float) -> None:
        """Record each process's images per second in all timed epochs, until the barrier at their ends.

        Args:
            images: this process's images in the timed steps of this epoch.
            seconds: duration of these steps.
        """
        ranks, rank = _ranks()
        if images:
            self._images_and_seconds += images, seconds
        if ranks > 1:
            speeds = np.zeros(ranks)
            speeds[rank] = self._images_and_seconds[0] / self._images_and_seconds[1] if self._images_and_seconds[0] else 0.0
            speeds = trainer.all_reduce_world(speeds)
            self.record(images_per_second_by_process=speeds.tolist() if speeds.all() else [])

    def _batch_sizes(self, trainer: BaseTrainer, plan: BatchPlan, dataset: Dataset) -> tuple[list[int], list[int]]:
        """Return the sizes of the global batches to train on, and of this process's batches to score."""
        if self._spec.part != "training":
            return [plan.batch(0)[1]], []
        sizes = {stop - start for start, stop in map(plan.batch, range(plan.steps_in(1)))}
        index, number = trainer.shard
        low, high = shard(len(dataset.validation.labels), number, 0 if trainer.scores_together else index)
        size = self._spec.global_batch_size
        return sorted(sizes, reverse=True), sorted({min(high - low, size), (high - low) % size} - {0})

    def _parameters(self, trainer: BaseTrainer, plan: BatchPlan, epoch: int) -> str | None:
        """Return a digest of the trained parameters in this process's first epoch; None in the others."""
        if epoch != self._first_epoch:
            return None
        statistics = {parameter.name for parameter in plan.architecture.parameters() if not parameter.trainable}
        return digest({name: array for name, array in trainer.weights().items() if name not in statistics})

    def _judge_clock(self, trainer: BaseTrainer, evidence: ClockEvidence) -> None:
        """End the run in all processes if one of them has found a defect of the clock. Record a caution if it is uncertain."""
        ranks, rank = _ranks()
        by_rank = np.zeros((ranks, len(evidence)))
        by_rank[rank] = evidence
        if defects := self._audit.defects([ClockEvidence(*map(float, row)) for row in trainer.all_reduce_world(by_rank)]):
            raise ClockError("; ".join(defects.values()))
        self.record(clock_caution=self._audit.caution())

    def _record_losses(self, losses: npt.NDArray[np.float64], first_step: int) -> None:
        """Record the losses of an epoch, if those of all earlier steps are recorded, up to _MAX_STEP_LOSSES."""
        recorded_losses: list[float] = self._facts.get("step_losses", [])
        if len(recorded_losses) == first_step:
            self.record(step_losses=[*recorded_losses, *losses.tolist()][:_MAX_STEP_LOSSES])

    def _record_epoch(self, epoch: int, plan: BatchPlan, sizes: Sequence[int], timed: Sequence[int], **measured: Any) -> None:
        """Record an epoch: the sizes of its batches, the positions of its timed steps, and the measurements."""
        record = EpochRecord(
            epoch=epoch,
            steps=len(sizes),
            images=sum(sizes),
            epoch_images=plan.num_examples,
            learning_rate=plan.learning_rate((epoch - 1) * plan.steps_per_epoch + len(sizes) - 1),
            timed_steps=len(timed),
            timed_images=sum(sizes[step] for step in timed),
            **measured,
        )
        self._epochs.append(record)
        self._event("epoch", **record.model_dump())

    @contextmanager
    def _timed(self, trainer: BaseTrainer) -> Generator[Timer]:
        """Time training from the moment when all ranks are ready until the last rank has done its last update.

        Each rank reads its clock at its own end. The exchange of these readings is not timed.

        The CPU use of these processes and of all others is measured too.
        """
        entered_at = time.perf_counter()
        _barrier(trainer)
        meter, compilations = self._meter(self._cpus), trainer.compilations()
        with self._stopwatch.phase("training") as timer:
            yield timer
            trainer.synchronize()
            timed = timer.end()
            timer.unfinished_device_seconds = self._stopwatch.drain()
            timer.compilations = trainer.compilations() - compilations
            timer.global_seconds = timing.elapsed_over_ranks(
                *_gather_start_and_end(trainer, timer.start, timer.start + timer.rank_seconds)
            )
            timer.barrier_to_barrier_seconds = time.perf_counter() - entered_at
        self._check_clocks(trainer, timed)
        usage = meter.usage()
        seconds = trainer.all_reduce_world(np.array([usage.process_cpu_seconds]))
        usage = usage.model_copy(update={"wall_seconds": timer.seconds, "process_cpu_seconds": float(seconds[0])})
        self._usage = self._usage.plus(usage)

    def _check_clocks(self, trainer: BaseTrainer, timed: ClockSpan | None = None) -> None:
        """End the run in all processes if the clock of one of them contradicts another, in `timed` or since the last call."""
        ranks, rank = _ranks()
        span = self._stopwatch.span_since_last_call()
        by_rank = np.zeros((2, ranks, len(span)))
        by_rank[:, rank] = timed or span, span
        steps, spans_since_check = (
            [ClockSpan(*map(float, row)) for row in spans] for spans in trainer.all_reduce_world(by_rank)
        )
        disagreement = timing.disagreement(
            {"the timed steps": steps, "all since the last look": spans_since_check}, self._facts["framework"]
        )
        if disagreement is not None and self._listener is None:  # trials of a search share a process
            raise ClockError(disagreement)

    def _over_time(self, seconds: float) -> float | None:
        wall = self._usage.wall_seconds
        return seconds / wall if wall >= LEAST_TIMED_SECONDS else None

    def _record_memory(self, trainer: BaseTrainer) -> None:
        """Record the largest memory so far, of all processes together and of each."""
        proportional = machine.proportional_memory_mib()
        ranks, rank = _ranks()
        by_rank = np.zeros((2, ranks))
        by_rank[:, rank] = machine.peak_memory_mib(), math.nan if proportional is None else proportional
        by_rank = trainer.all_reduce_world(by_rank)
        self._memory_mib = np.fmax(self._memory_mib, by_rank.sum(1))
        resident, proportional = map(float, self._memory_mib)
        self.record(peak_memory_mib=resident, peak_memory_pss_mib=None if math.isnan(proportional) else proportional)
        if self._spec.input == "dask":
            self.record(chunks=trainer.chunks())
        self.record(peak_memory_by_process_mib=by_rank[0].tolist(), computed_memory_by_device_mib=trainer.memory_by_device())

    def clocks(self) -> dict[str, float | None]:
        """Return the readings of the run's clock for an event: now, and after the previous event was written."""
        return {"clock": self._stopwatch.clock(), "written": self._last_event_clock}

    def _event(self, event: str, **values: Any) -> None:
        heartbeat.count_sync_point()
        if self._listener is not None:
            self._listener({"event": event, **values})
        elif placement.is_first_rank():
            event_log.append_event(self._out, event, time=time.time(), **self.clocks(), **values)
            self._last_event_clock = self._stopwatch.clock()


def _left_out(plan: BatchPlan, timed: Sequence[int], recorded_steps: Sequence[int]) -> set[int]:
    """Return the steps of an epoch that are not timed: those recorded off the clock, and those whose batches got ready then."""
    behind = plan.spec.batches_ahead
    return {step for recorded in recorded_steps for step in range(recorded, recorded + behind + 1) if step in timed}


def _step_blocks(steps: Sequence[int], left_out: Collection[int], *, ends_epoch: bool) -> list[_StepBlock]:
    """Cut steps where some are left out. The clock of an epoch runs once more at its end."""
    blocks = [_StepBlock([], [])]
    for step in steps:
        if step in left_out:
            blocks[-1].untimed.append(step)
            continue
        if blocks[-1].untimed:
            blocks.append(_StepBlock([], []))
        blocks[-1].timed.append(step)
    return [*blocks, _StepBlock([], [])] if blocks[-1].untimed and ends_epoch else blocks


def _slice(steps: Sequence[int], timers: Sequence[Timer], usage: Usage) -> Slice:
    return Slice(
        first_step=steps[0] + 1,
        steps=len(steps),
        seconds=sum(timer.seconds for timer in timers),
        taken_cpu_seconds=usage.taken_cpu_seconds,
        stolen_cpu_seconds=usage.stolen_cpu_seconds,
    )


def _broadcast_from_rank0(trainer: BaseTrainer, *decisions: bool) -> list[bool]:
    """Broadcast decisions of rank 0. Clocks and the last bits of sums differ between ranks, but all must decide the same."""
    return [bool(decision) for decision in trainer.all_reduce_world(np.array(decisions, np.int64) * placement.is_first_rank())]


def _barrier(trainer: BaseTrainer) -> None:
    """Wait until all processes of the run have reached this point."""
    trainer.all_reduce_world(np.zeros(1))


def _gather_start_and_end(trainer: BaseTrainer, start: float, end: float) -> npt.NDArray[np.float64]:
    """Return [2, ranks]: each rank's start and end, by the clock that all processes of a machine share.

    Hosts share no clock. On several hosts, each rank counts from its own start, directly after a barrier.
    """
    ranks, rank = _ranks()
    stamps = np.zeros((2, ranks))
    stamps[:, rank] = (start, end) if placement.on_one_host() else (0.0, end - start)
    return trainer.all_reduce_world(stamps)


def _ranks() -> tuple[int, int]:
    """Return (number of ranks, this rank)."""
    return int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))


def best_epoch(epochs: Sequence[EpochRecord], by: str) -> int:
    """Return the number of the best epoch on the validation split; among equal ones the earliest.

    Args:
        epochs: at least one, each with a validation.
        by: `accuracy` or `loss`.
    """

    def rank(record: EpochRecord) -> tuple[float, int]:
        assert record.validation is not None
        return (record.validation.loss if by == "loss" else -record.validation.num_correct), record.epoch

    return min(epochs, key=rank).epoch


_MAX_STEP_LOSSES = 200
"""Number of first steps whose losses a result keeps."""


def _fetch_outputs(trainer: BaseTrainer, outputs: Sequence[tuple[Any, Any]]) -> tuple[list[npt.NDArray[Any]], float]:
    """Fetch the steps' outputs. Returns ([losses, numbers of correct predictions], seconds of fetching)."""
    start = time.perf_counter()
    return [trainer.fetch(list(values)) for values in zip(*outputs, strict=True)], time.perf_counter() - start


def _gather(trainer: BaseTrainer, plan: BatchPlan, epoch: int, ids: list[Any]) -> npt.NDArray[np.int64]:
    """Gather the ids that all shards actually trained on, in the order of the global batches."""
    stop = plan.batch(plan.steps_in(epoch) - 1)[1]
    gathered = np.zeros(stop, np.int64)
    index, number = trainer.shard
    for (start, end), shard_ids in zip(plan.bounds(epoch, number, index), ids, strict=True):
        gathered[start:end] = np.asarray(shard_ids)
    return trainer.all_reduce_shards(gathered)

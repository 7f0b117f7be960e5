"""Observers of a run, beside its training and its clock: memory, speeds, the best epoch, checkpoints."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.artifacts import checkpoint, results, trained
from common.artifacts.checkpoint import Checkpoint, CheckpointError, Identity, Progress
from common.artifacts.schema import EpochRecord
from common.artifacts.trained import Card
from common.data.batches import BatchPlan
from common.data.sources import Dataset
from common.machine import heartbeat, machine, placement
from common.models.weights import Weights
from common.training import world
from common.training.epoch import Epoch, Observer
from common.training.run_clock import RunClock
from common.training.run_record import RunRecord
from common.training.timing import ClockAudit
from common.training.trainer import BaseTrainer


class Memory(Observer):
    """The largest memory of a run so far, of all processes together and of each."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self.peaks_mib = np.array([0.0, math.nan])
        """Largest (resident, proportional) memory in MiB. The second is NaN if the system does not report it."""

    def measure(self, trainer: BaseTrainer) -> None:
        """Record the memory of all processes."""
        proportional = machine.proportional_memory_mib()
        by_rank = world.gather(trainer, (machine.peak_memory_mib(), math.nan if proportional is None else proportional))
        self.peaks_mib = np.fmax(self.peaks_mib, by_rank.sum(1))
        resident, proportional = map(float, self.peaks_mib)
        record = self._record
        record.update(peak_memory_mib=resident, peak_memory_pss_mib=None if math.isnan(proportional) else proportional)
        if record.spec.input == "dask":
            record.update(chunks=trainer.chunks())
        record.update(peak_memory_by_process_mib=by_rank[0].tolist(), computed_memory_by_device_mib=trainer.memory_by_device())

    def after_steps(self, epoch: Epoch) -> None:
        self.measure(epoch.trainer)

    def measure_devices(self, trainer: BaseTrainer, device_mib: Sequence[float]) -> None:
        """Record the peak memory of each device of each process.

        Args:
            device_mib: peak memory in MiB of each device that this process sees; empty on a CPU.
        """
        most = int(world.gather(trainer, len(device_mib)).max())
        if not most:
            return
        by_rank = world.gather(trainer, [*device_mib, *[0.0] * (most - len(device_mib))]).T
        peaks = {f"rank {rank} GPU {index}": float(by_rank[rank, index]) for rank, index in np.argwhere(by_rank > 0.0)}
        self._record.update(device_peak_memory_mib=float(by_rank.sum()), peak_memory_by_device_mib=peaks)


class Speeds(Observer):
    """Each process's images per second in all timed epochs, until its device was done."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._images, self._seconds = 0, 0.0

    def add(self, trainer: BaseTrainer, images: int, seconds: float) -> None:
        """Add this process's images in timed steps, and their duration."""
        if images:
            self._images, self._seconds = self._images + images, self._seconds + seconds
        if placement.num_ranks() > 1:
            speeds = world.gather(trainer, self._images / self._seconds if self._images else 0.0)
            self._record.update(images_per_second_by_process=speeds.tolist() if speeds.all() else [])

    def after_steps(self, epoch: Epoch) -> None:
        self.add(epoch.trainer, epoch.num_images(), sum(timer.steps_seconds for timer in epoch.timers))


class BestEpochKeeper(Observer):
    """Keeps the weights of the best epoch, and stops training when epochs no longer improve."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self.weights: Weights = {}
        """Weights of the best epoch in rank 0, if the spec keeps them."""

    def after_epoch(self, epoch: Epoch) -> bool:
        settings, trainer = self._record.spec.best_epoch, epoch.trainer
        if not settings.keep and settings.patience is None:
            return False
        best = best_epoch(self._record.epochs, settings.by)
        epochs_since_best = epoch.number - best
        stops = settings.patience is not None and epochs_since_best >= settings.patience
        is_best, stops = world.broadcast_from_rank0(trainer, epochs_since_best == 0, stops)
        self._record.update(best_epoch=best)
        if settings.keep and is_best:
            weights = trainer.weights()  # called by all ranks: each may hold only a part
            if placement.is_first_rank():
                self.weights = weights
                self.save(epoch.plan, epoch.dataset)
        return stops

    def save(self, plan: BatchPlan, dataset: Dataset) -> None:
        """Write the weights of the best epoch beside the result."""
        facts, spec, labels = self._record.facts, self._record.spec, dataset.validation.labels
        best = self._record.epochs[facts["best_epoch"] - 1]
        card = Card(
            framework=facts["framework"],
            versions=facts["versions"],
            model=spec.model,
            width=spec.width,
            depth=spec.depth,
            dropout=spec.dropout,
            class_names=dataset.class_names,
            image_size=plan.architecture.image_size,
            pixel_mean=plan.scaling.mean,
            pixel_std=plan.scaling.std,
            precision=spec.precision,
            spec_hash=spec.digest,
            data_hash=dataset.content_hash,
            seed=spec.seed,
            epoch=best.epoch,
            validation=best.validation,
            chance_accuracy=float(np.bincount(labels).max() / len(labels)) if len(labels) else None,
        )
        trained.save(card, self.weights, self._record.out / results.BEST_FILE)


class Checkpoints(Observer):
    """Saves a run between epochs, and resumes it.

    Args:
        record: the run's record.
        clock: the run's clock, whose audit is saved.
        memory: the run's memory, whose peaks are saved.
        best: keeper of the best epoch, whose weights are saved.
    """

    def __init__(self, record: RunRecord, clock: RunClock, memory: Memory, best: BestEpochKeeper) -> None:
        self._record, self._clock, self._memory, self._best = record, clock, memory, best
        self._saved_at = time.monotonic()

    def after_epoch(self, epoch: Epoch) -> bool:
        spec = self._record.spec
        if epoch.number < epoch.plan.epochs and spec.not_resumable_because is None:
            is_due = time.monotonic() - self._saved_at >= (spec.checkpoint_seconds or 0.0)
            if world.broadcast_from_rank0(epoch.trainer, is_due)[0]:
                self._save(epoch.trainer)
                self._saved_at = time.monotonic()
        return False

    def resume(self, trainer: BaseTrainer, plan: BatchPlan, dataset: Dataset, earlier_folder: Path | None) -> int:
        """Resume from the checkpoint of an earlier attempt. If that is impossible, record the reason and start over.

        Returns:
            The number of the first epoch to train.
        """
        record = self._record
        self._saved_at = time.monotonic()
        if record.spec.not_resumable_because is not None:
            if earlier_folder is not None:
                record.update(started_over=record.spec.not_resumable_because)
            return 1
        restored: Checkpoint | None = None
        if earlier_folder is not None and placement.is_first_rank():
            try:
                restored = checkpoint.load(earlier_folder)
                self._check_identity(restored.progress.identity)
            except CheckpointError as error:
                restored = None
                print(f"The run starts over: {error}.", file=sys.stderr)
                record.update(started_over=str(error))
        restored = checkpoint.broadcast_from_rank0(trainer, restored)
        if restored is None:
            return 1
        first_epoch = len(restored.progress.epochs) + 1
        trainer.load_state(restored.state, (first_epoch - 1) * plan.steps_per_epoch)
        self._restore(restored)
        if restored.best and placement.is_first_rank():
            self._best.weights = restored.best
            record.update(best_epoch=best_epoch(record.epochs, record.spec.best_epoch.by))
            self._best.save(plan, dataset)
        return first_epoch

    def _restore(self, restored: Checkpoint) -> None:
        """Set what an earlier attempt has measured, and repeat its events."""
        record, progress = self._record, restored.progress
        record.ids, record.epochs = [restored.ids], list(progress.epochs)
        record.earlier_phases, record.usage = progress.phases, progress.usage
        record.load_start, record.frequency_start_mhz = progress.load_start, progress.frequency_start_mhz
        self._memory.peaks_mib = np.array([progress.peak_memory_mib, progress.peak_memory_pss_mib], np.float64)
        same_ranks = progress.identity.spec.replicas == record.spec.replicas  # an elastic run's times do not count
        self._clock.audit = ClockAudit(progress.clock if same_ranks else [], progress.clock_stepped)
        record.update(first_step_loss=progress.first_step_loss, step_losses=progress.step_losses)
        record.update(resumes=progress.resumes + 1, clock_caution=self._clock.audit.caution())
        record.event("first_step", seconds=progress.phases.first_step_seconds, loss=progress.first_step_loss)
        for epoch in progress.epochs:
            record.event("epoch", **epoch.model_dump())
        record.event("resume", epochs=len(progress.epochs))

    def _check_identity(self, identity: Identity) -> None:
        for field, expected in self._identity():
            stored = getattr(identity, field)
            if not (self._record.spec.can_resume_from(stored) if field == "spec" else stored == expected):
                raise CheckpointError(f"the checkpoint is of another run: its {field} differs")

    def _identity(self) -> Identity:
        return Identity(**{name: self._record.facts[name] for name in Identity.model_fields})

    def _save(self, trainer: BaseTrainer) -> None:
        """Save a checkpoint. If that fails, the run continues without one. All ranks call it, since each may hold a part."""
        if not (placement.is_first_rank() or trainer.shards_optimizer):
            return
        state = trainer.state()
        if not placement.is_first_rank():
            return
        record, facts = self._record, self._record.facts
        progress = Progress(
            identity=self._identity(),
            epochs=record.epochs,
            phases=record.phases(),
            first_step_loss=facts["first_step_loss"],
            step_losses=facts.get("step_losses", []),
            resumes=facts.get("resumes", 0),
            usage=record.usage,
            load_start=record.load_start,
            frequency_start_mhz=record.frequency_start_mhz,
            peak_memory_mib=facts["peak_memory_mib"],
            peak_memory_pss_mib=facts["peak_memory_pss_mib"],
            clock=self._clock.audit.epochs,
            clock_stepped=self._clock.audit.clock_step_caution,
        )
        try:
            checkpoint.save(Checkpoint(progress, np.concatenate(record.ids), state, self._best.weights), record.out)
        except OSError as error:
            print(f"No checkpoint after epoch {len(record.epochs)}: {error}.", file=sys.stderr)
        heartbeat.heartbeat()


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

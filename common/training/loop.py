"""The run that both twins share: the order of the batches, what is timed, and what is recorded.

A twin brings a `Trainer`: its model, optimizer, input and communication. This module knows no framework, so both twins are
timed and scored by the same rules.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from common.artifacts import checkpoint, event_log, results, trained
from common.artifacts.checkpoint import Checkpoint, CheckpointError, Identity, Progress
from common.artifacts.schema import EpochRecord, Noise, Phases, RunResult, Status
from common.artifacts.trained import Card
from common.data.batches import Feed, Plan, order_digest
from common.data.sources import Dataset
from common.machine import heartbeat, machine, placement, ranges
from common.machine.interference import Meter, Usage
from common.machine.rates import DeviceRates
from common.models.sharding import shard
from common.models.weights import Weights, digest
from common.spec import Spec
from common.training import metrics, profiling, timing
from common.training.evaluation import evaluate
from common.training.spot_checks import SpotChecks, example_hashes, fingerprint
from common.training.timing import Audit, ClockError, Evidence, Span, Stopwatch, Timer
from common.training.trainer import Batch, Trainer

LEAST_TIMED_SECONDS = 0.5
"""Shorter training says nothing of cores, because the kernel's clocks tick every 10 ms."""


class _Stretch(NamedTuple):
    """Steps of an epoch, from 0."""

    timed: list[int]
    untimed: list[int]
    """They follow the timed ones."""


class Diverged(ArithmeticError):
    """The loss is no longer a finite number."""


class Run:
    """One training run: what has been measured so far, and the result made from it.

    Args:
        framework: its name in the result.
        spec: of the run.
        versions: of the framework's packages.
        out: the folder for the run's events and checkpoints.
        repeat: the number of this repeat.
        stopwatch: started with the run.
        cpus: the CPUs that the run may use; None: all.
        listener: receives every event, which is then not written to `out`. It may raise to end the run.
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
    ) -> None:
        self._spec = spec
        self._out = out
        self._listener = listener
        self._stopwatch = stopwatch
        self._epochs: list[EpochRecord] = []
        self._order: list[npt.NDArray[np.int64]] = []
        self._cpus = machine.cpu_budget(spec.cores) if cpus is None else cpus  # of all ranks
        self._usage = Usage()
        self._own_pace = np.zeros(2)
        """(images, seconds) of this process in all timed epochs."""
        self._memory_mib = np.array([0.0, math.nan])
        """The largest so far: resident, and proportional if the system says."""
        self._audit = Audit()
        self._written: float | None = None
        """The run's clock when its last event had been written."""
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
        used = self._usage
        # How busy a machine was is known of this machine only, but the ranks' CPU seconds come from all machines.
        here = placement.on_one_host()
        return RunResult(
            status=status,
            reason=reason,
            epochs=self._epochs,
            phases=self._phases or self._phases_so_far(),
            order_hash=order_digest(np.concatenate(self._order)) if self._order else None,
            cores_used=self._over_time(used.process_cpu_seconds),
            cores_of_others=self._over_time(used.other_cpu_seconds) if here else None,
            noise=Noise(
                load_start=self._load,
                load_end=machine.load(),
                frequency_start_mhz=self._frequency_mhz,
                frequency_end_mhz=machine.frequency_mhz(),
                cores_stolen=self._over_time(used.stolen_cpu_seconds),
                cores_taken=self._over_time(used.taken_cpu_seconds) if here else None,
            ),
            **self._facts,
        )

    def train(self, trainer: Trainer, plan: Plan, dataset: Dataset, earlier: Path | None = None) -> None:
        """Train and validate epoch by epoch, then score the test split.

        Args:
            trainer: of this process.
            plan: of the run.
            dataset: of the run.
            earlier: the folder of an interrupted attempt. The run resumes from its checkpoint, if it can.

        Raises:
            Diverged: a loss of the epoch is NaN or infinite. The epochs before it are kept.
        """
        self.learn(trainer, plan, dataset, earlier)
        if self._spec.part != "training":
            return
        self.record(final_weights_hash=digest(trainer.weights()))
        with self._stopwatch.phase("evaluation"):
            test, predictions = evaluate(trainer, dataset.test, self._spec.global_batch_size)
        self._hold_clocks(trainer)
        self._record_memory(trainer)
        self.record(test=test, predictions_hash=order_digest(predictions))
        self.record(confusion=metrics.confusion(dataset.test.labels, predictions, len(dataset.class_names)))
        self.record(**trainer.report(dataset.test))

    def learn(self, trainer: Trainer, plan: Plan, dataset: Dataset, earlier: Path | None = None) -> None:
        """Train and validate epoch by epoch as `train` does, without the test split."""
        self.record(implementation=trainer.implementation, devices=trainer.devices, threads=trainer.threads)
        self._event("start", total_epochs=plan.epochs, total_steps=plan.total_steps, steps_per_epoch=plan.steps_per_epoch)
        if self._spec.part == "training" and trainer.images_on_host:
            self._spot_checks = SpotChecks(plan, self._out)
        with self._stopwatch.phase("build"):
            self._resume(trainer, plan, dataset, earlier)
            feed = trainer.feed()
        saved = time.monotonic()
        for epoch in range(self._first_epoch, plan.epochs + 1):
            self._epoch(epoch, trainer, plan, dataset, feed)
            if self._spec.part == "training" and self._select(trainer, plan, dataset):
                break
            if epoch == plan.epochs or self._spec.not_resumable_because is not None:
                continue
            due = time.monotonic() - saved >= (self._spec.checkpoint_seconds or 0.0)
            if _decided(trainer, due)[0]:
                self._save(trainer)
                saved = time.monotonic()

    def record_device_memory(self, trainer: Trainer, own_mib: Sequence[float]) -> None:
        """Record the peak memory of each device of each process. All processes call it.

        Args:
            own_mib: of each device that this process sees; empty on a CPU.
        """
        ranks, rank = _ranks()
        numbers = np.zeros(ranks, np.int64)
        numbers[rank] = len(own_mib)
        by_rank = np.zeros((ranks, trainer.total(numbers).max()))
        if not by_rank.size:
            return
        by_rank[rank, : len(own_mib)] = own_mib
        by_rank = trainer.total(by_rank)
        used = {f"rank {at} GPU {index}": float(by_rank[at, index]) for at, index in np.argwhere(by_rank > 0.0)}
        self.record(device_peak_memory_mib=float(by_rank.sum()), peak_memory_by_device_mib=used)

    def finish_spot_checks(self, trainer: Trainer) -> None:
        """Note the recorded steps, and find out more about them, after everything else. The wall time ends before."""
        if self._spot_checks is None or not self._spot_checks.steps:
            return
        self._phases = self._phases or self._phases_so_far()
        self.record(spot_checks=[step + 1 for step in self._spot_checks.steps])
        try:
            self._spot_checks.finish(trainer)
        except Exception as error:  # whatever a device raises whose memory holds a model: the training is done
            print(f"Recorded steps do not tell their decisions: {error}", file=sys.stderr)

    def rate(self, device_rates: Callable[[Spec], DeviceRates | None]) -> None:
        """Measure the device's rates, after everything else. The wall time ends before."""
        so_far = self._phases or self._phases_so_far()
        try:
            found = device_rates(self._spec)
        except Exception as error:  # whatever a device raises whose memory holds a model: the training is done
            print(f"The device's rates were not measured: {error}", file=sys.stderr)
            return
        if found is not None:
            self._phases = so_far
            self.record(device_rates=found)

    def profile(self, trainer: Trainer, plan: Plan) -> None:
        """Break a step down where the spec asks for it, after everything else. The wall time ends before."""
        if self._first_batch is None or not self._spec.profile_steps:
            return
        self._phases = self._phases or self._phases_so_far()
        batch, size, steps = self._first_batch, plan.batch(0)[1], self._spec.profile_steps
        self.record(step_parts=profiling.step_parts(trainer, batch, size, steps))
        folder = self._out if placement.is_first_rank() else None
        traced = min(steps, profiling.MOST_TRACED_STEPS)
        self.record(top_operations=profiling.top_operations(trainer, batch, size, traced, folder))

    def _select(self, trainer: Trainer, plan: Plan, dataset: Dataset) -> bool:
        """Keep the weights if this epoch is the best so far. Returns whether to stop because epochs no longer improve."""
        wanted = self._spec.best_epoch
        if not wanted.keep and wanted.patience is None:
            return False
        best = best_epoch(self._epochs, wanted.by)
        waited = self._epochs[-1].epoch - best
        ends = wanted.patience is not None and waited >= wanted.patience
        decided = _decided(trainer, waited == 0, ends)
        self.record(best_epoch=best)
        if wanted.keep and decided[0]:
            kept = trainer.weights()  # called by all ranks: each may hold only a part
            if placement.is_first_rank():
                self._best = kept
                self._keep_best(plan, dataset)
        return decided[1]

    def _keep_best(self, plan: Plan, dataset: Dataset) -> None:
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

    def _resume(self, trainer: Trainer, plan: Plan, dataset: Dataset, earlier: Path | None) -> None:
        """Resume from the checkpoint of an earlier attempt. If that is impossible, record the reason and start over."""
        if self._spec.not_resumable_because is not None:
            if earlier is not None:
                self.record(started_over=self._spec.not_resumable_because)
            return
        found: Checkpoint | None = None
        if earlier is not None and placement.is_first_rank():
            try:
                found = checkpoint.load(earlier)
                self._check(found.progress.identity)
            except CheckpointError as error:
                found = None
                print(f"The run starts over: {error}.", file=sys.stderr)
                self.record(started_over=str(error))
        found = checkpoint.broadcast_from_rank0(trainer, found)
        if found is None:
            return
        progress = found.progress
        self._first_epoch = len(progress.epochs) + 1
        trainer.load_state(found.state, (self._first_epoch - 1) * plan.steps_per_epoch)
        self._order = [found.ids]
        self._epochs = list(progress.epochs)
        self._earlier = progress.phases
        self._usage = progress.usage
        self._memory_mib = np.array([progress.peak_memory_mib, progress.peak_memory_pss_mib], np.float64)
        self._load, self._frequency_mhz = progress.load_start, progress.frequency_start_mhz
        same_ranks = progress.identity.spec.replicas == self._spec.replicas  # an elastic run's times do not count
        self._audit = Audit(progress.clock if same_ranks else [], progress.clock_stepped)
        self.record(first_step_loss=progress.first_step_loss, step_losses=progress.step_losses)
        self.record(resumes=progress.resumes + 1, clock_caution=self._audit.caution())
        self._event("first_step", seconds=progress.phases.first_step_seconds, loss=progress.first_step_loss)
        for record in progress.epochs:
            self._event("epoch", **record.model_dump())
        self._event("resume", epochs=len(progress.epochs))
        if found.best and placement.is_first_rank():
            self._best = found.best
            self.record(best_epoch=best_epoch(self._epochs, self._spec.best_epoch.by))
            self._keep_best(plan, dataset)

    def _check(self, found: Identity) -> None:
        for field, wanted in self._identity():
            there = getattr(found, field)
            if not (self._spec.can_resume_from(there) if field == "spec" else there == wanted):
                raise CheckpointError(f"the checkpoint is of another run: its {field} differs")

    def _identity(self) -> Identity:
        return Identity(**{name: self._facts[name] for name in Identity.model_fields})

    def _save(self, trainer: Trainer) -> None:
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
            clock_stepped=self._audit.stepped,
        )
        try:
            checkpoint.save(Checkpoint(progress, np.concatenate(self._order), state, self._best), self._out)
        except OSError as error:
            print(f"No checkpoint after epoch {len(self._epochs)}: {error}.", file=sys.stderr)
        heartbeat.heartbeat()

    def _phases_so_far(self) -> Phases:
        """Of this attempt, and of the earlier attempts that it resumes."""
        own = self._stopwatch.phases()
        if self._earlier is None:
            return own
        return Phases(**{name: seconds + getattr(self._earlier, name) for name, seconds in own})

    def _epoch(self, epoch: int, trainer: Trainer, plan: Plan, dataset: Dataset, feed: Feed[Batch]) -> None:
        part, steps, first_step = self._spec.part, plan.steps_in(epoch), (epoch - 1) * plan.steps_per_epoch
        sizes = [stop - start for start, stop in map(plan.batch, range(steps))]
        if part == "compute":
            sizes = sizes[:1] * steps
        outputs: list[tuple[Any, Any]] = []
        ids: list[Any] = []
        begun: list[Any] = []
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
                        once = partial(trainer.train_step, batch, sizes[step], rate)
                        outputs.append(checks.record(trainer, batch, number, once))
                    else:
                        outputs.append(trainer.train_step(batch, sizes[step], rate))
                rates.append(rate)
            heartbeat.count_step()
            if checks is not None:
                hashes.append(example_hashes(np.asarray(batch.images), np.asarray(batch.labels)))
            ids.append(batch.ids)
            begun.append(batch.begun)

        timed, first_step_seconds = range(steps), None
        if epoch == self._first_epoch:  # of this process, which compiles in its first step
            batches = feed(epoch, [0] * max(self._spec.workers, 1))  # a batch for each worker, so that all have started
            with self._stopwatch.phase("first_step") as timer:
                train(timer, 0)
                deque(batches, maxlen=0)
            timed, first_step_seconds = range(1, steps), timer.seconds
            if epoch == 1 and part == "training":
                first_loss = float(trainer.all_reduce(trainer.fetch([outputs[0][0]]).astype(np.float64))[0])
                self.record(first_step_loss=first_loss)
                self._event("first_step", seconds=timer.seconds, loss=first_loss)
            if part != "input":
                with self._stopwatch.phase("compile") as compiling:
                    trainer.compile(*self._batch_sizes(trainer, plan, dataset))
                first_step_seconds += compiling.seconds
        batches, untimed = feed(epoch, timed), len(ids)
        recorded = self._recorded(trainer, timed, first_step)
        stretches = self._stretches(plan, timed, recorded)
        timers: list[Timer] = []
        own_seconds = 0.0
        for stretch in stretches:
            with self._timed(trainer) as timer:
                for step in stretch.timed:
                    train(timer, step)
                trainer.synchronize()  # a device may still compute what the loop has asked of it
                own_seconds += timer.elapsed()
                if part != "input" and stretch is stretches[-1]:
                    trainer.finish_epoch()
            timers.append(timer)
            for step in stretch.untimed:
                train(Timer(), step, is_recorded=step in recorded)
        timed = [step for stretch in stretches for step in stretch.timed]
        measured = {
            "timed_seconds": sum(timer.seconds for timer in timers),
            "input_wait_seconds": sum(timer.input_wait_seconds for timer in timers),
        }
        own = {step: len(np.asarray(each)) for step, each in zip(range(steps), ids, strict=True)}
        self._record_speeds(trainer, sum(own[step] for step in timed), own_seconds)
        if part != "training":
            self._record_epoch(epoch, plan, sizes, timed, train=None, validation=None, evaluation_seconds=0.0, **measured)
            return

        (losses, num_correct), first = _fetched(trainer, outputs)
        _, again = _fetched(trainer, outputs)  # the values are there: this is what reading them takes
        late = sum(timer.late_seconds for timer in timers) + max(first - again, 0.0)
        losses, num_correct = trainer.all_reduce(losses.astype(np.float64)), trainer.all_reduce(num_correct.astype(np.int64))
        order = _gather(trainer, plan, epoch, ids)
        self._order.append(order)
        trained_on = None if checks is None else fingerprint(order, _gather(trainer, plan, epoch, hashes), rates, first_step)
        if not np.isfinite(losses).all():
            step = int(np.argmin(np.isfinite(losses)))
            self._keep_losses(losses, first_step)
            raise Diverged(f"loss is {losses[step]} at epoch {epoch}, step {step + 1}; try a smaller optimizer.learning_rate")
        self._keep_losses(losses, first_step)
        trained = self._parameters(trainer, plan, epoch)
        with self._stopwatch.phase("evaluation") as evaluation:
            trainer.broadcast_statistics()
            validation, _ = evaluate(trainer, dataset.validation, self._spec.global_batch_size)
        if not math.isfinite(validation.loss):
            raise Diverged(f"validation loss is {validation.loss} after epoch {epoch}; try a smaller optimizer.learning_rate")
        begins = [float(at) for at in begun[untimed:]]
        started_at = timers[0].started_at
        seen = Evidence(
            seconds=measured["timed_seconds"],
            own_seconds=sum(timer.own_seconds for timer in timers),
            meeting_seconds=sum(timer.meeting_seconds for timer in timers),
            late_seconds=late,
            begun_before=started_at - min(begins, default=started_at) if all(begins) else math.inf,
            clock_stepped=sum(timer.stepped_seconds for timer in timers),
            compilations=sum(timer.compilations for timer in timers),
            updates=trainer.updates - (first_step + steps),
            moved=self._parameters(trainer, plan, epoch) != trained,
        )
        if self._listener is None:  # trials of a search share a process, its compilers and its cores
            self._judge_clock(trainer, seen)
        self._record_epoch(
            epoch,
            plan,
            sizes,
            timed,
            train=metrics.from_counts(int(num_correct.sum()), sum(sizes), float(losses @ np.array(sizes))),
            validation=validation,
            evaluation_seconds=evaluation.seconds,
            first_step_seconds=first_step_seconds,
            left_out=[step + 1 for stretch in stretches for step in stretch.untimed],
            fingerprint=trained_on,
            **measured,
        )

    def _stretches(self, plan: Plan, timed: Sequence[int], recorded: Sequence[int]) -> list[_Stretch]:
        """An epoch's steps, cut where a step is recorded off the clock. Batches that were ready meanwhile are off it too."""
        stretches, left_out_until = [_Stretch([], [])], -1
        for step in timed:
            if step in recorded:
                left_out_until = step + plan.spec.batches_ahead
            if step <= left_out_until:
                stretches[-1].untimed.append(step)
                continue
            if stretches[-1].untimed:
                stretches.append(_Stretch([], []))
            stretches[-1].timed.append(step)
        return [*stretches, _Stretch([], [])] if stretches[-1].untimed else stretches

    def _recorded(self, trainer: Trainer, timed: Sequence[int], first_step: int) -> list[int]:
        """Which of an epoch's timed steps are recorded, from 0 in the epoch."""
        if self._spot_checks is None or not timed:
            return []
        losses = [record.train.loss for record in self._epochs if record.train] or [self._facts["first_step_loss"]]
        found = self._spot_checks.of_epoch(trainer, losses, first_step + timed[0], first_step + timed[-1] + 1)
        return [step - first_step for step in found]

    def _record_speeds(self, trainer: Trainer, images: int, seconds: float) -> None:
        """Record how fast each process went through its own images in all timed epochs, until it met the others at their ends.

        Args:
            images: of this process, in the timed steps of this epoch.
            seconds: that they took.
        """
        ranks, rank = _ranks()
        if images:
            self._own_pace += images, seconds
        if ranks > 1:
            speeds = np.zeros(ranks)
            speeds[rank] = self._own_pace[0] / self._own_pace[1] if self._own_pace[0] else 0.0
            speeds = trainer.total(speeds)
            self.record(images_per_second_by_process=speeds.tolist() if speeds.all() else [])

    def _batch_sizes(self, trainer: Trainer, plan: Plan, dataset: Dataset) -> tuple[list[int], list[int]]:
        """Sizes of the global batches to train on, and of this process's batches to score."""
        if self._spec.part != "training":
            return [plan.batch(0)[1]], []
        sizes = {stop - start for start, stop in map(plan.batch, range(plan.steps_in(1)))}
        index, number = trainer.shard
        low, high = shard(len(dataset.validation.labels), number, 0 if trainer.scores_together else index)
        size = self._spec.global_batch_size
        return sorted(sizes, reverse=True), sorted({min(high - low, size), (high - low) % size} - {0})

    def _parameters(self, trainer: Trainer, plan: Plan, epoch: int) -> str | None:
        """A digest of the trained parameters in this process's first epoch, which stands for all; None in the others."""
        if epoch != self._first_epoch:
            return None
        statistics = {parameter.name for parameter in plan.architecture.parameters() if not parameter.trainable}
        return digest({name: array for name, array in trainer.weights().items() if name not in statistics})

    def _judge_clock(self, trainer: Trainer, seen: Evidence) -> None:
        """End the run in all processes if one of them has seen a defect of the clock. Record what may be none."""
        ranks, rank = _ranks()
        by_rank = np.zeros((ranks, len(seen)))
        by_rank[rank] = seen
        if defects := self._audit.defects([Evidence(*map(float, each)) for each in trainer.total(by_rank)]):
            raise ClockError("; ".join(defects.values()))
        self.record(clock_caution=self._audit.caution())

    def _keep_losses(self, losses: npt.NDArray[np.float64], first_step: int) -> None:
        """Record the losses of an epoch, if those of all steps before it are recorded and there is room."""
        kept: list[float] = self._facts.get("step_losses", [])
        if len(kept) == first_step:
            self.record(step_losses=[*kept, *losses.tolist()][:_STEP_LOSSES_KEPT])

    def _record_epoch(self, epoch: int, plan: Plan, sizes: Sequence[int], timed: Sequence[int], **measured: Any) -> None:
        """Record an epoch: the sizes of its batches, the positions of its timed steps, and what was measured."""
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
    def _timed(self, trainer: Trainer) -> Generator[Timer]:
        """Time training from the moment when all ranks are ready until the last rank has done its last update.

        Each rank notes its own end, and then they tell each other: what that takes is not in the time.

        Also measure how much of the machine these processes and all others use meanwhile.
        """
        before = time.perf_counter()
        _meet(trainer)
        meter, compilations = Meter(self._cpus), trainer.compilations()
        with self._stopwatch.phase("training") as timer:
            yield timer
            trainer.synchronize()
            timed = timer.end()
            timer.late_seconds = self._stopwatch.drain()
            timer.compilations = trainer.compilations() - compilations
            timer.agreed_seconds = timing.lasted(*_stamps(trainer, timer.start, timer.start + timer.own_seconds))
            timer.meeting_seconds = time.perf_counter() - before
        self._hold_clocks(trainer, timed)
        used = meter.usage()
        seconds = trainer.total(np.array([used.process_cpu_seconds]))
        used = used.model_copy(update={"wall_seconds": timer.seconds, "process_cpu_seconds": float(seconds[0])})
        self._usage = self._usage.plus(used)
        self._record_memory(trainer)

    def _hold_clocks(self, trainer: Trainer, timed: Span | None = None) -> None:
        """End the run in all processes if the clock of one of them contradicts another, in `timed` or since the last call."""
        ranks, rank = _ranks()
        look = self._stopwatch.look()
        by_rank = np.zeros((2, ranks, len(look)))
        by_rank[:, rank] = timed or look, look
        steps, whole = ([Span(*map(float, each)) for each in spans] for spans in trainer.total(by_rank))
        words = timing.disagreement({"the timed steps": steps, "all since the last look": whole}, self._facts["framework"])
        if words is not None and self._listener is None:  # trials of a search share a process
            raise ClockError(words)

    def _over_time(self, seconds: float) -> float | None:
        wall = self._usage.wall_seconds
        return seconds / wall if wall >= LEAST_TIMED_SECONDS else None

    def _record_memory(self, trainer: Trainer) -> None:
        """Record the largest memory so far, of all processes together and of each."""
        proportional = machine.proportional_memory_mib()
        ranks, rank = _ranks()
        by_rank = np.zeros((2, ranks))
        by_rank[:, rank] = machine.peak_memory_mib(), math.nan if proportional is None else proportional
        by_rank = trainer.total(by_rank)
        self._memory_mib = np.fmax(self._memory_mib, by_rank.sum(1))
        resident, proportional = map(float, self._memory_mib)
        self.record(peak_memory_mib=resident, peak_memory_pss_mib=None if math.isnan(proportional) else proportional)
        if self._spec.input == "dask":
            self.record(chunks=trainer.chunks())
        self.record(peak_memory_by_process_mib=by_rank[0].tolist(), computed_memory_by_device_mib=trainer.memory_by_device())

    def clocks(self) -> dict[str, float | None]:
        """What an event says of the run's clock: what it shows now, and what it showed when the event before was written."""
        return {"clock": self._stopwatch.clock(), "written": self._written}

    def _event(self, event: str, **values: Any) -> None:
        heartbeat.count_sync_point()
        if self._listener is not None:
            self._listener({"event": event, **values})
        elif placement.is_first_rank():
            event_log.append_event(self._out, event, time=time.time(), **self.clocks(), **values)
            self._written = self._stopwatch.clock()


def _decided(trainer: Trainer, *own: bool) -> list[bool]:
    """What rank 0 decides for all. Its clock and the last bits of its sums may differ from theirs, and all must do the same."""
    return [bool(each) for each in trainer.total(np.array(own, np.int64) * placement.is_first_rank())]


def _meet(trainer: Trainer) -> None:
    """Wait until all processes of the run are here."""
    trainer.total(np.zeros(1))


def _stamps(trainer: Trainer, start: float, end: float) -> npt.NDArray[np.float64]:
    """[2, ranks]: when each rank started and ended, by the clock that all processes of a machine share.

    Hosts share none. Over several, each rank counts from its own start, because they have just met.
    """
    ranks, rank = _ranks()
    stamps = np.zeros((2, ranks))
    stamps[:, rank] = (start, end) if placement.on_one_host() else (0.0, end - start)
    return trainer.total(stamps)


def _ranks() -> tuple[int, int]:
    """(number of ranks, this one)."""
    return int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))


def best_epoch(epochs: Sequence[EpochRecord], by: str) -> int:
    """The number of the best epoch on the validation split; among equal ones the earliest.

    Args:
        epochs: at least one, each with a validation.
        by: `accuracy` or `loss`.
    """

    def rank(record: EpochRecord) -> tuple[float, int]:
        assert record.validation is not None
        return (record.validation.loss if by == "loss" else -record.validation.num_correct), record.epoch

    return min(epochs, key=rank).epoch


_STEP_LOSSES_KEPT = 200
"""Losses of the first steps that a result keeps."""


def _fetched(trainer: Trainer, outputs: Sequence[tuple[Any, Any]]) -> tuple[list[npt.NDArray[Any]], float]:
    """([losses, numbers of correct predictions] of the steps, seconds that it took)."""
    start = time.perf_counter()
    return [trainer.fetch(list(values)) for values in zip(*outputs, strict=True)], time.perf_counter() - start


def _gather(trainer: Trainer, plan: Plan, epoch: int, ids: list[Any]) -> npt.NDArray[np.int64]:
    """The ids that all shards actually trained on, in the order of the global batches."""
    stop = plan.batch(plan.steps_in(epoch) - 1)[1]
    gathered = np.zeros(stop, np.int64)
    index, number = trainer.shard
    for (start, end), own in zip(plan.bounds(epoch, number, index), ids, strict=True):
        gathered[start:end] = np.asarray(own)
    return trainer.all_reduce(gathered)

"""The clock of a run: it times blocks of steps over all ranks, and is compared with other clocks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from common.machine import placement
from common.machine.interference import Meter
from common.models.weights import digest
from common.training import timing, world
from common.training.epoch import Epoch, Observer
from common.training.run_record import RunRecord
from common.training.timing import ClockAudit, ClockError, ClockEvidence, ClockSpan, Timer
from common.training.trainer import BaseTrainer
from common.training.turns import seconds_ahead


class RunClock(Observer):
    """Times the training of a run, and audits itself after each epoch.

    Args:
        record: the run's record.
        cpus: CPUs of the run, of all ranks.
        meter: starts to measure the usage of these CPUs.
    """

    def __init__(self, record: RunRecord, cpus: Sequence[int], meter: Callable[[Sequence[int]], Meter]) -> None:
        self.audit = ClockAudit()
        self._record, self._cpus, self._meter = record, cpus, meter
        self._parameters_digest: str | None = None

    @contextmanager
    def timed(self, trainer: BaseTrainer) -> Generator[Timer]:
        """Time training from the moment when all ranks are ready until the last rank has done its last update.

        Each rank reads its clock at its own end. The exchange of these readings is not timed.

        The CPU use of these processes and of all others is measured too.
        """
        entered_at = time.perf_counter()
        world.barrier(trainer)
        meter, compilations = self._meter(self._cpus), trainer.compilations()
        with self._record.stopwatch.phase("training") as timer:
            yield timer
            trainer.synchronize()
            timed = timer.end()
            timer.unfinished_device_seconds = self._record.stopwatch.drain()
            timer.compilations = trainer.compilations() - compilations
            timer.global_seconds = timing.elapsed_over_ranks(
                *gather_start_and_end(trainer, timer.start, timer.start + timer.rank_seconds)
            )
            timer.barrier_to_barrier_seconds = time.perf_counter() - entered_at
        self.check(trainer, timed)
        usage = meter.usage()
        seconds = trainer.all_reduce_world(np.array([usage.process_cpu_seconds]))
        usage = usage.model_copy(update={"wall_seconds": timer.seconds, "process_cpu_seconds": float(seconds[0])})
        self._record.usage = self._record.usage.plus(usage)

    def check(self, trainer: BaseTrainer, timed: ClockSpan | None = None) -> None:
        """End the run in all processes if the clock of one of them contradicts another, in `timed` or since the last call."""
        span = self._record.stopwatch.span_since_last_call()
        steps, spans_since_check = (
            [ClockSpan(*map(float, by_rank)) for by_rank in by_span.T]
            for by_span in world.gather(trainer, [timed or span, span])
        )
        disagreement = timing.disagreement(
            {"the timed steps": steps, "all since the last look": spans_since_check}, self._record.facts["framework"]
        )
        if disagreement is not None and not self._record.is_trial:
            raise ClockError(disagreement)

    def before_validation(self, epoch: Epoch) -> None:
        """Remember the trained parameters of this process's first epoch."""
        self._parameters_digest = _parameters_digest(epoch)

    def after_validation(self, epoch: Epoch) -> None:
        """End the run in all processes if one of them has found a defect of the clock. Record a caution if it is uncertain."""
        evidence = self._evidence(epoch)
        if self._record.is_trial:
            return
        by_rank = world.gather(epoch.trainer, evidence).T
        if defects := self.audit.defects([ClockEvidence(*map(float, row)) for row in by_rank]):
            raise ClockError("; ".join(defects.values()))
        self._record.update(clock_caution=self.audit.caution())

    def _evidence(self, epoch: Epoch) -> ClockEvidence:
        timers, begin_times = epoch.timers, epoch.begin_times
        started_at = epoch.untimed_since or timers[0].started_at
        lead_seconds = math.inf
        if all(begin_times):
            lead_seconds = max(started_at - min(begin_times, default=started_at), seconds_ahead(epoch.turns, begin_times))
        return ClockEvidence(
            seconds=epoch.timed_seconds,
            rank_seconds=sum(timer.rank_seconds for timer in timers),
            barrier_to_barrier_seconds=sum(timer.barrier_to_barrier_seconds for timer in timers),
            unfinished_device_seconds=epoch.unfinished_seconds,
            prefetch_lead_seconds=lead_seconds,
            clock_step_seconds=sum(timer.clock_step_seconds for timer in timers),
            compilations=sum(timer.compilations for timer in timers),
            updates=epoch.trainer.updates - (epoch.first_step + epoch.steps),
            parameters_changed=_parameters_digest(epoch) != self._parameters_digest,
        )


def gather_start_and_end(trainer: BaseTrainer, start: float, end: float) -> npt.NDArray[np.float64]:
    """Return [2, ranks]: each rank's start and end, by the clock that all processes of a machine share.

    Hosts share no clock. On several hosts, each rank counts from its own start, directly after a barrier.
    """
    return world.gather(trainer, (start, end) if placement.on_one_host() else (0.0, end - start))


def _parameters_digest(epoch: Epoch) -> str | None:
    """Return a digest of the trained parameters in this process's first epoch; None in the others."""
    if not epoch.is_first:
        return None
    statistics = {parameter.name for parameter in epoch.plan.architecture.parameters() if not parameter.trainable}
    return digest({name: array for name, array in epoch.trainer.weights().items() if name not in statistics})

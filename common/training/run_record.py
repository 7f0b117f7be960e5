"""The record of a run: all that is known of it so far, its events, and the result made from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.artifacts import event_log
from common.artifacts.schema import EpochRecord, Noise, Phases, RunResult, Status
from common.data.batches import order_digest
from common.machine import heartbeat, machine, placement
from common.machine.interference import LEAST_TIMED_SECONDS, Usage
from common.spec import Spec
from common.training.timing import Stopwatch

_MAX_STEP_LOSSES = 200
"""Number of first steps whose losses a result keeps."""


class RunRecord:
    """The measurements of a run so far, over all its attempts.

    Args:
        framework: name of the framework in the result.
        spec: the run's spec.
        versions: versions of the framework's packages.
        out: the folder for the run's events and checkpoints.
        repeat: the number of this repeat.
        stopwatch: a stopwatch that was started with the run.
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
        listener: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.spec = spec
        self.out = out
        self.stopwatch = stopwatch
        self.facts: dict[str, Any] = {
            "framework": framework,
            "spec": spec,
            "repeat": repeat,
            "versions": versions,
            "machine": machine.describe(),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        """Fields of the result."""
        self.epochs: list[EpochRecord] = []
        self.ids: list[npt.NDArray[np.int64]] = []
        """Ids of the examples so far, in training order."""
        self.usage = Usage()
        """Usage of the timed steps."""
        self.load_start, self.frequency_start_mhz = machine.load(), machine.frequency_mhz()
        self.earlier_phases: Phases | None = None
        """Phases of the attempts that this one resumes."""
        self._final_phases: Phases | None = None
        self._listener = listener
        self._last_event_clock: float | None = None
        """Reading of the run's clock after its last event was written."""

    @property
    def is_trial(self) -> bool:
        """Whether the run is a trial of a search, which shares a process, its compilers and its cores with others."""
        return self._listener is not None

    def update(self, **facts: Any) -> None:
        """Set fields of the result as soon as they are known, so that the row of a failed run has them too."""
        self.facts.update(facts)

    def add_steps(self, ids: npt.NDArray[np.int64], losses: npt.NDArray[np.float64], first_step: int) -> None:
        """Add the examples and losses of an epoch. The losses of the first _MAX_STEP_LOSSES steps are kept."""
        self.ids.append(ids)
        step_losses: list[float] = self.facts.get("step_losses", [])
        if len(step_losses) == first_step:
            self.update(step_losses=[*step_losses, *losses.tolist()][:_MAX_STEP_LOSSES])

    def event(self, event: str, **values: Any) -> None:
        """Write an event, or tell it to the listener."""
        heartbeat.count_sync_point()
        if self._listener is not None:
            self._listener({"event": event, **values})
        elif placement.is_first_rank():
            event_log.append_event(self.out, event, time=time.time(), **self.clocks(), **values)
            self._last_event_clock = self.stopwatch.clock()

    def clocks(self) -> dict[str, float | None]:
        """Return the readings of the run's clock for an event: now, and after the previous event was written."""
        return {"clock": self.stopwatch.clock(), "written": self._last_event_clock}

    def phases(self) -> Phases:
        """Return the phases of all attempts until now, or until `end_wall_time`."""
        if self._final_phases is not None:
            return self._final_phases
        phases = self.stopwatch.phases()
        if self.earlier_phases is None:
            return phases
        return Phases(**{name: seconds + getattr(self.earlier_phases, name) for name, seconds in phases})

    def end_wall_time(self, phases: Phases | None = None) -> None:
        """End the wall time of the run at `phases`, or now. What is measured later does not count."""
        self._final_phases = phases or self.phases()

    def result(self, status: Status, reason: str | None = None) -> RunResult:
        """Return the result of the run."""
        usage = self.usage
        # How busy a machine was is known of this machine only, but the ranks' CPU seconds come from all machines.
        is_one_host = placement.on_one_host()
        return RunResult(
            status=status,
            reason=reason,
            epochs=self.epochs,
            phases=self.phases(),
            order_hash=order_digest(np.concatenate(self.ids)) if self.ids else None,
            cores_used=self._over_time(usage.process_cpu_seconds),
            cores_of_others=self._over_time(usage.other_cpu_seconds) if is_one_host else None,
            noise=Noise(
                load_start=self.load_start,
                load_end=machine.load(),
                frequency_start_mhz=self.frequency_start_mhz,
                frequency_end_mhz=machine.frequency_mhz(),
                cores_stolen=self._over_time(usage.stolen_cpu_seconds),
                cores_taken=self._over_time(usage.taken_cpu_seconds) if is_one_host else None,
            ),
            **self.facts,
        )

    def _over_time(self, seconds: float) -> float | None:
        wall = self.usage.wall_seconds
        return seconds / wall if wall >= LEAST_TIMED_SECONDS else None

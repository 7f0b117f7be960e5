"""Runs one search: the only process that talks to its study, and the servers that train its trials."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage

from common import spec
from common.machine.interference import Meter
from common.processes import signals
from common.spec import SpecError
from compare.cli.errors import LaunchError
from compare.cli.progress import Display
from compare.running.servers import ENDED, Listener
from compare.tools.tuning import optuna_study, search_space
from compare.tools.tuning.optuna_study import SearchJob
from compare.tools.tuning.records import State
from compare.tools.tuning.servers import Server, Serving

_POLL_SECONDS = 0.25


def conduct(search: SearchJob, storage: RDBStorage, logs: Path, progress: Display, serving: Serving) -> None:
    """Run a search, or the rest of it.

    Args:
        storage: holds the search's study, or will hold it.
        logs: path of the servers' logs without place and suffix.
        progress: receives every trial.
        serving: starts the servers, as `servers.serving` does.
    """
    with optuna_study.storage_errors():
        study = optuna_study.open_study(search, storage)
        if optuna_study.DONE in study.user_attrs:
            return
        optuna_study.release(study)
        study.set_user_attr(optuna_study.ATTEMPTS, study.user_attrs.get(optuna_study.ATTEMPTS, 0) + 1)
        hang_seconds = spec.build(search.values).hang_seconds
        with serving(search.contestant, search.layout, search.settings.scheduler, logs, hang_seconds) as start:
            conductor = _Conductor(search, study, start, progress)
            try:
                conductor.run()
            finally:
                conductor.close()
                optuna_study.release(study)


@dataclass
class _Running:
    """A trial that a server trains."""

    trial: optuna.Trial
    place: int
    began: float
    total: int = 0
    epochs: int = 0
    images: int = 0
    scores: dict[str, float] = field(default_factory=dict[str, float])


class _Conductor:
    """Takes settings from the study, lets the servers train them, and reports the results to the study. All in one thread."""

    def __init__(
        self, search: SearchJob, study: optuna.Study, start: Callable[[int, Listener], Server], progress: Display
    ) -> None:
        self._search, self._study, self._start_server, self._progress = search, study, start, progress
        self._inbox: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
        self._servers: dict[int, Server] = {}
        self._ready: set[int] = set()
        self._running: dict[str, _Running] = {}
        self._pending = optuna_study.pending(search, study)
        if search.settings.sampler == "grid":
            grid = search_space.grid(search.space, search.seed)
            self._pending = [(slot, grid[slot]) for slot, _ in self._pending]
        # The clock resumes where the last trial of the previous attempt ended.
        self._earlier = optuna_study.read_result(search, study).seconds
        self._zero = time.monotonic()
        self._up = False
        self._servers_lost = 0

    def run(self) -> None:
        """Run all remaining trials."""
        start = time.monotonic()
        places = range(self._search.layout.servers) if self._pending else ()
        for place in places:
            self._start(place)
        while len(self._ready) < len(places):
            self._handle(*self._next())
        self._up = True
        start_seconds = time.monotonic() - start
        self._zero = time.monotonic()
        others = Meter()
        self._show()
        while self._pending or self._running:
            for place in sorted(self._ready):
                while self._pending and self._load(place) < self._search.layout.trials_a_server:
                    self._begin(place, *self._pending.pop(0))
            if self._running or self._pending:
                self._handle(*self._next())
        cores_of_others = others.cores_of_others() if self._search.settings.scheduler is None else None
        facts = {"start_seconds": start_seconds, "cores_of_others": cores_of_others, "servers_lost": self._servers_lost}
        self._study.set_user_attr(optuna_study.DONE, facts)

    def close(self) -> None:
        """End every server."""
        for server in self._servers.values():
            server.close()

    def _start(self, place: int) -> None:
        # A Dask worker may be waited for, and it ends what it has started.
        waiting = contextlib.nullcontext() if self._search.layout.backend == "dask" else signals.defer_signals()
        with waiting:
            self._servers[place] = self._start_server(place, lambda event: self._inbox.put((place, event)))

    def _next(self) -> tuple[int, dict[str, Any]]:
        """The next event of any server. Hanging servers are ended meanwhile."""
        while True:
            try:
                return self._inbox.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                for place, server in self._servers.items():
                    if place not in self._ready or self._load(place):
                        server.look()

    def _load(self, place: int) -> int:
        return sum(running.place == place for running in self._running.values())

    def _clock(self) -> float:
        return self._earlier + time.monotonic() - self._zero

    def _begin(self, place: int, slot: int, fixed: dict[str, Any] | None) -> None:
        """Let a server train what the sampler proposes for a slot. `fixed` values replace the proposal."""
        search = self._search
        self._study.sampler = optuna_study.sampler(search, slot, fixed)
        trial = self._study.ask(search.space.distributions)
        trial.set_user_attr(optuna_study.SLOT, slot)
        name = str(trial.number)
        running = self._running[name] = _Running(trial, place, self._clock())
        fields = {"cores": search.layout.cores_a_trial, "checkpoint_seconds": None, **search.space.fixed, **trial.params}
        try:
            trial_spec = spec.build(spec.overlay(search.values, fields))
        except SpecError as error:  # each value is valid alone, but not together with the others
            self._finish(name, "failed", str(error))
            return
        server = self._servers[place]
        if self._load(place) == 1:
            server.expect()
        running.began = self._clock()
        can_prune = search.settings.pruner != "none"
        server.send({"trial": name, "spec": trial_spec.model_dump(mode="json"), "judged": can_prune})

    def _handle(self, place: int, event: dict[str, Any]) -> None:
        match event["event"]:
            case "ready":
                self._ready.add(place)
            case "start":
                self._running[event["trial"]].total = event["total_epochs"]
            case "epoch":
                self._epoch(event)
            case "end":
                state: State = "pruned" if event["status"] == "stopped" else event["status"]
                self._finish(event["trial"], state, event["reason"])
            case other if other == ENDED:
                self._handle_lost_server(place, event["reason"])
            case _:
                pass

    def _epoch(self, event: dict[str, Any]) -> None:
        running = self._running[event["trial"]]
        running.epochs, running.scores = event["epoch"], event["validation"]
        running.images += event["images"]
        running.trial.report(running.scores[self._search.settings.objective], running.epochs)
        if self._search.settings.pruner != "none" and running.epochs < running.total:
            go_on = not running.trial.should_prune()
            self._servers[running.place].send({"trial": event["trial"], "go_on": go_on})

    def _handle_lost_server(self, place: int, reason: str) -> None:
        """Fail the trials of a server that has ended. Start another in its place if work is left."""
        if place not in self._ready:  # it never started
            if not self._up or not self._ready:
                raise LaunchError(f"{self._search.contestant} cannot serve trials: {reason}.")
            self._give_up(place)
            return
        self._ready.discard(place)
        for name in [name for name, running in self._running.items() if running.place == place]:
            self._finish(name, "killed", reason)
        self._servers.pop(place).close()
        if not self._pending:
            return
        try:
            self._start(place)
        except LaunchError:
            if not self._ready:
                raise
            self._give_up(place)

    def _give_up(self, place: int) -> None:
        """Continue with the remaining servers."""
        if (server := self._servers.pop(place, None)) is not None:
            server.close()
        self._servers_lost += 1

    def _finish(self, name: str, state: State, reason: str | None = None) -> None:
        """Report a trial to the study: first its record, then its end."""
        running = self._running.pop(name)
        facts = {
            "state": state,
            "reason": reason,
            "loss": running.scores.get("loss"),
            "accuracy": running.scores.get("accuracy"),
            "epochs": running.epochs,
            "images": running.images,
            "began_seconds": running.began,
            "ended_seconds": self._clock(),
        }
        running.trial.set_user_attr(optuna_study.RUN, facts)
        value = running.scores[self._search.settings.objective] if state == "ok" else None
        self._study.tell(running.trial, value, optuna_study.OPTUNA_STATES[state])
        self._progress.end()
        self._show()

    def _show(self) -> None:
        search = self._search
        finished = search.trials - len(self._pending) - len(self._running)
        self._progress.begin(search.name, f"{search.name}: {finished} of {search.trials} trials")

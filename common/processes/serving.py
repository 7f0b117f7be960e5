"""Serving trials: one process of one framework trains what it is asked for, several runs side by side in its threads.

Requests and reports are lines of JSON.

- `{"trial": name, "spec": {...}, "judged": true}` begins a run.
- `{"trial": name, "go_on": true}` answers every epoch of a judged run but the last.
- `{"event": "ready", ...}` is reported once. Then come the events of each run, as `run` writes them, with `"trial": name`.
- The last event of a run is `"event": "end"` with its status.

The asking process keeps the number of runs at what this process was started for.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TextIO

from common import spec
from common.data.batches import Plan
from common.data.sources import Dataset
from common.spec import Spec, SpecError
from common.training import timing
from common.training.loop import Diverged, Run
from common.training.trainer import Trainer

Ending = Literal["ok", "stopped", "diverged", "failed"]
"""How a trial ended: after its last epoch, on request, without a finite loss, or with an error."""

Prepare = Callable[[Spec], tuple[Dataset, Plan, Trainer]]
"""Data, plan and Trainer of a run. Raises SpecError if this process cannot do it."""


class Stopped(Exception):
    """The trial was asked to stop."""


class Serving:
    """The trials of one process.

    Args:
        cores: of every trial. This process was configured for them.
        prepare: what a trial trains with.
        synchronize: waits until the device has done all that was asked of it.
        report: takes a line. Called from many threads, one at a time.
    """

    def __init__(
        self,
        framework: str,
        versions: dict[str, str],
        cores: int,
        prepare: Prepare,
        synchronize: Callable[[], None],
        report: Callable[[str], None],
    ) -> None:
        self._framework = framework
        self._versions = versions
        self._cores = cores
        self._prepare = prepare
        self._synchronize = synchronize
        self._write = report
        self._reporting = threading.Lock()
        self._answers: dict[str, queue.SimpleQueue[bool]] = {}

    def serve(self, asked: Iterable[str], **facts: Any) -> None:
        """Do what the lines ask for. After the last one, wait for unfinished trials.

        Args:
            asked: see the module.
            facts: of the event `ready`.
        """
        self._report(event="ready", framework=self._framework, versions=self._versions, **facts)
        threads: list[threading.Thread] = []
        for line in asked:
            message: dict[str, Any] = json.loads(line)
            trial = message["trial"]
            if "go_on" in message:
                self._answers[trial].put(bool(message["go_on"]))
                continue
            self._answers[trial] = queue.SimpleQueue()
            arguments = (trial, json.dumps(message["spec"]), bool(message["judged"]))
            # A thread for each trial: what a framework keeps for each thread is then new, as in a process.
            threads.append(threading.Thread(target=self._trial, args=arguments, name=f"trial {trial}", daemon=True))
            threads[-1].start()
            threads = [thread for thread in threads if thread.is_alive()]
        for thread in threads:
            thread.join()

    def _trial(self, trial: str, text: str, judged: bool) -> None:
        stopwatch = timing.Stopwatch(self._synchronize)
        status: Ending = "ok"
        reason = None
        try:
            self._train(trial, text, stopwatch, judged)
        except Stopped:
            status = "stopped"
        except Diverged as error:
            status, reason = "diverged", str(error)
        except SpecError as error:
            status, reason = "failed", str(error)
        except (Exception, SystemExit) as error:  # a user's own code may call sys.exit
            with contextlib.suppress(OSError):
                traceback.print_exc()
            status, reason = "failed", f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:500]}"
        del self._answers[trial]
        phases = stopwatch.phases().model_dump()
        self._report(trial=trial, event="end", status=status, reason=reason, phases=phases)

    def _train(self, trial: str, text: str, stopwatch: timing.Stopwatch, judged: bool) -> None:
        read = spec.from_json(text).with_fields()  # judged again: for this machine
        if read.cores != self._cores:
            raise SpecError(f"cores of a trial must be those of the process. Received: {read.cores}. Use {self._cores}.")
        if read.part != "training" or read.mode != "serial" or read.profile_steps or read.best_epoch.keep:
            raise SpecError(
                f"A trial trains serially, all of it. Received: mode {read.mode}, part {read.part}, profile_steps "
                f"{read.profile_steps}, best_epoch.keep {read.best_epoch.keep}. Use serial, training, 0 and false."
            )
        last = 0

        def listener(event: dict[str, Any]) -> None:
            nonlocal last
            last = event.get("total_epochs", last)
            self._report(trial=trial, **event)
            if judged and event["event"] == "epoch" and event["epoch"] < last and not self._answers[trial].get():
                raise Stopped

        run = Run(self._framework, read, self._versions, Path(os.devnull), 0, stopwatch, listener=listener)
        with stopwatch.phase("build"):
            dataset, plan, trainer = self._prepare(read)
        run.learn(trainer, plan, dataset)
        trainer.close()

    def _report(self, **message: Any) -> None:
        line = json.dumps(message)
        with self._reporting:
            self._write(line)


@contextmanager
def answers() -> Generator[TextIO]:
    """Standard output for lines of JSON only. Anything else that this process prints goes to standard error."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1) as file:
        os.dup2(2, 1)
        try:
            yield file
        finally:
            os.dup2(file.fileno(), 1)


def leave_at_once() -> None:
    """Let SIGTERM and SIGINT end the process at once. Its threads cannot be waited for, and nothing of it is kept."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not a handler of ours: Python calls it when the main thread wakes up, and this one waits for a line of stdin.
        signal.signal(number, signal.SIG_DFL)

"""A server of trials: one process of one framework trains the requested specs, several at the same time in its threads.

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
from common.data.batches import BatchPlan
from common.data.sources import Dataset
from common.spec import Spec, SpecError
from common.training import timing
from common.training.loop import Diverged, TrainingRun
from common.training.trainer import BaseTrainer

TrialStatus = Literal["ok", "stopped", "diverged", "failed"]
"""Status of a finished trial: after its last epoch, on request, without a finite loss, or with an error."""

Prepare = Callable[[Spec], tuple[Dataset, BatchPlan, BaseTrainer]]
"""Function that returns data, plan and Trainer of a run. Raises SpecError if this process cannot train it."""


class TrialStopped(Exception):
    """The trial was asked to stop."""


class TrialServer:
    """The trials of one process.

    Args:
        framework: name of the framework.
        versions: versions of its packages.
        cores: cores of every trial. This process was configured for them.
        prepare: see `Prepare`.
        synchronize: waits until the device has no work left.
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
        self._report_lock = threading.Lock()
        self._answers: dict[str, queue.SimpleQueue[bool]] = {}

    def serve(self, requests: Iterable[str], **facts: Any) -> None:
        """Serve the requests. After the last one, wait for unfinished trials.

        Args:
            requests: lines of JSON, see the module.
            facts: fields of the event `ready`.
        """
        self._report(event="ready", framework=self._framework, versions=self._versions, **facts)
        threads: list[threading.Thread] = []
        for line in requests:
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
        status: TrialStatus = "ok"
        reason = None
        try:
            self._train(trial, text, stopwatch, judged)
        except TrialStopped:
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
        run_spec = spec.from_json(text).with_fields()  # judged again: for this machine
        if run_spec.cores != self._cores:
            raise SpecError(f"cores of a trial must be those of the process. Received: {run_spec.cores}. Use {self._cores}.")
        if run_spec.part != "training" or run_spec.is_parallel or run_spec.profile_steps or run_spec.best_epoch.keep:
            raise SpecError(
                f"A trial trains serially, all of it. Received: mode {run_spec.mode}, part {run_spec.part}, profile_steps "
                f"{run_spec.profile_steps}, best_epoch.keep {run_spec.best_epoch.keep}. Use serial, training, 0 and false."
            )
        last = 0

        def listener(event: dict[str, Any]) -> None:
            nonlocal last
            last = event.get("total_epochs", last)
            self._report(trial=trial, **event)
            if judged and event["event"] == "epoch" and event["epoch"] < last and not self._answers[trial].get():
                raise TrialStopped

        run = TrainingRun(self._framework, run_spec, self._versions, Path(os.devnull), 0, stopwatch, listener=listener)
        with stopwatch.phase("build"):
            dataset, plan, trainer = self._prepare(run_spec)
        run.train_and_validate(trainer, plan, dataset)
        trainer.close()

    def _report(self, **message: Any) -> None:
        line = json.dumps(message)
        with self._report_lock:
            self._write(line)


@contextmanager
def json_stdout() -> Generator[TextIO]:
    """Reserve standard output for lines of JSON. Anything else that this process prints goes to standard error."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1) as file:
        os.dup2(2, 1)
        try:
            yield file
        finally:
            os.dup2(file.fileno(), 1)


def exit_on_signals() -> None:
    """Let SIGTERM and SIGINT end the process at once. It does not wait for its threads and keeps nothing."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not a handler of ours: Python calls it when the main thread wakes up, and this one waits for a line of stdin.
        signal.signal(number, signal.SIG_DFL)

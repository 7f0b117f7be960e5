"""Recordings of a few steps by each framework, made through the code that is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.numpy

from common.artifacts import array_file
from common.machine import machine, private_folder
from common.processes.entry import PROCESS_WIDE_FIELDS
from common.spec import Spec
from compare.cli.errors import LaunchError
from compare.proof import claims
from compare.proof.differences import Arrays
from compare.running import launch
from compare.running.twins import Twins

_TWIN_ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
"""Environment of two twins that run at the same time: a waiting thread must sleep, or it takes a core from the other
process."""
_LAST_LINES = 10
"""Number of last lines of a log that an error shows. They hold the last call of a traceback and its reason."""


class TraceRequest(NamedTuple):
    """Request for a recording of one framework."""

    label: str
    framework: str
    spec: Spec
    options: tuple[str, ...] = ()
    """Options of `python -m <twin> trace`."""
    teacher: TraceRequest | None = None
    """Recording whose states this one loads."""


class Recorder:
    """Starts the twins that make recordings, and knows the recordings that are there.

    Nothing is timed here. So two processes run at the same time if there are two cores: each imports for seconds on one core.

    Args:
        twins: the contestants that are recorded.
        out: folder for specs, recordings and logs.
        progress: called with a message about the current work.
    """

    def __init__(self, twins: Twins, out: Path, progress: Callable[[str], None]) -> None:
        self._twins = twins
        self._out = out
        self._progress = progress
        self._recorded: dict[Path, TraceRequest] = {}

    def path(self, request: TraceRequest) -> Path:
        """Return the path of a recording."""
        folder = self._out / request.spec.model / request.spec.optimizer.name
        return folder / f"{request.label}-{request.framework}.safetensors"

    def arrays(self, request: TraceRequest) -> Arrays:
        """Return the arrays of a recording. It is made if it is not there."""
        self.make([request])
        return safetensors.numpy.load_file(self.path(request))

    def open(self, request: TraceRequest) -> array_file.ArrayFile:
        """Open the file of a recording, which reads each array on access. It is made if it is not there."""
        self.make([request])
        return array_file.ArrayFile(self.path(request))

    def forget(self, requests: Iterable[TraceRequest]) -> None:
        """Delete recordings that have been judged."""
        for request in requests:
            del self._recorded[self.path(request)]
            self.path(request).unlink()

    def forget_all(self) -> None:
        """Delete every recording. Specs and logs stay: `trace` of a twin can make each recording again."""
        self.forget(list(self._recorded.values()))

    def make(self, requests: Iterable[TraceRequest], on_recorded: Callable[[], object] = lambda: None) -> None:
        """Make the recordings that are not there yet.

        A process starts once the processes of its teachers have started. It imports meanwhile, and then waits for their files.

        Args:
            requests: the recordings.
            on_recorded: called whenever some have been made. Their process may go on to make others.
        """
        requests = list(requests)
        teachers = [request.teacher for request in requests if request.teacher is not None]
        pending: list[list[TraceRequest]] = []
        for request in [*(teacher for teacher in teachers if teacher not in requests), *requests]:
            if self.is_made(request) or any(request in process for process in pending):
                continue
            for process in pending:
                if self._process_key(process[0]) == self._process_key(request):
                    process.append(request)
                    break
            else:
                pending.append([request])
        running: dict[Path, list[TraceRequest]] = {}
        num_processes = len(pending)

        def next_call() -> launch.Call | None:
            for process in pending:
                outside = [
                    request.teacher for request in process if request.teacher is not None and request.teacher not in process
                ]
                recorded = [request for process in running.values() for request in process]
                if all(self.is_made(request) or request in recorded for request in outside):
                    pending.remove(process)
                    self._say_started(process, num_processes - len(pending), num_processes)
                    call = self._call(process, teachers)
                    running[call.log] = process
                    return call
            return None

        def on_exit(call: launch.Call, code: int) -> None:
            process = running[call.log]
            if code != 0:
                raise _recording_error(call, process, code)
            note_written()

        def note_written() -> None:
            """Note the recordings whose files exist. A twin moves a file there when it is complete."""
            written = {
                self.path(request): request
                for process in running.values()
                for request in process
                if self.path(request).exists()
            }
            if not written.items() <= self._recorded.items():  # one may lie in the place of another
                self._recorded.update(written)
                on_recorded()

        max_parallel = 1 if self._has_gpu(pending) else min(2, machine.available_cores())
        launch.call_all(next_call, on_exit, max_parallel, on_poll=note_written)
        if pending:
            raise LaunchError(f"{_labels(pending[0])} of {pending[0][0].framework} waits for a recording that waits for it.")

    def _process_key(self, request: TraceRequest) -> Any:
        """Key that is equal for requests that one process, or the ranks of one launch, can record.

        A parameter server has one run.
        """
        single_run = request.label if request.spec.traits.has_server else None
        switches = claims.proved_switches(self._twins, request.framework, request.spec)
        return request.framework, single_run, switches, [getattr(request.spec, name) for name in PROCESS_WIDE_FIELDS]

    def _has_gpu(self, processes: Sequence[Sequence[TraceRequest]]) -> bool:
        """Whether a twin uses an accelerator, whose memory may not hold two processes."""
        names = {process[0].framework for process in processes}
        return any(device["kind"] != "cpu" for name in names for device in self._twins.describe(name).get("devices", ()))

    def is_made(self, request: TraceRequest) -> bool:
        """Whether a recording has been made."""
        return self._recorded.get(self.path(request)) == request

    def _say_started(self, process: Sequence[TraceRequest], number: int, num_processes: int) -> None:
        first = process[0]
        what = f"{first.framework} records {_labels(process)} of {first.spec.model}, {first.spec.optimizer.name}"
        self._progress(f"proof, process {number} of {num_processes}: {what}")

    def _call(self, process: list[TraceRequest], teachers: Sequence[TraceRequest]) -> launch.Call:
        framework, spec = process[0].framework, process[0].spec
        words: list[str] = []
        for request in sorted(process, key=lambda request: request not in teachers):  # other processes wait for a teacher
            switches = claims.proved_switches(self._twins, framework, request.spec)
            path = self.path(request)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # never judge a recording of an earlier proof
            source = path.with_suffix(".json")
            with_switches = (
                request.spec.with_fields(framework_options={**request.spec.framework_options, **switches})
                if switches
                else request.spec
            )
            source.write_text(with_switches.to_json(), encoding="utf-8")
            words += ["--then" if words else "trace", str(source), "--out", str(path), *request.options]
            if request.teacher is not None:
                words += ["--teacher", str(self.path(request.teacher))]
        log = self.path(process[0]).with_suffix(".log")
        return launch.Call(self._twins[framework], words, log, spec.hang_seconds, environment=_TWIN_ENVIRONMENT)


def _labels(process: Sequence[TraceRequest]) -> str:
    first, others = process[0].label, len(process) - 1
    return f"{first} and {others} more" if others else first


def _recording_error(call: launch.Call, process: Sequence[TraceRequest], code: int) -> LaunchError:
    """Return the error of a twin that could not record, with the last lines of its log."""
    ending = launch.describe_exit(code) + launch.describe_full_disk(call.log.parent)
    log_hint = "With --out DIR its log is kept" if private_folder.contains(call.log) else f"See {call.log}"
    first = f"{call.contestant.name} could not record {_labels(process)} ({ending}). {log_hint}."
    lines = call.log.read_text(encoding="utf-8", errors="replace").splitlines()
    return LaunchError("\n".join([first, *lines[-_LAST_LINES:]]))

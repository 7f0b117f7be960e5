"""Recordings of a few steps by each framework, made through the code that is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.numpy

from common.artifacts import array_file
from common.machine import machine, private_folder
from common.processes.entry import OF_THE_PROCESS
from common.spec import Spec
from compare.core.errors import LaunchError
from compare.execution import launch
from compare.proof import claims
from compare.proof.differences import Arrays

_SIDE_BY_SIDE = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
"""A thread that waits must sleep. One that spins takes a core from the other process."""
_LAST_LINES = 10
"""Of a log, shown with an error. A traceback's last call and its reason are in them."""


class Recording(NamedTuple):
    """What one framework is asked to record."""

    label: str
    framework: str
    what: Spec
    options: tuple[str, ...] = ()
    """Of `python -m <twin> trace`."""
    teacher: Recording | None = None
    """The recording whose states this one loads."""

    @property
    def process(self) -> Any:
        """Equal for recordings that one process can make, or the ranks of one launch. A parameter server has one run."""
        alone = self.label if self.what.mode == "parameter_server" else None
        own = claims.proved_switches(self.framework, self.what)
        return self.framework, alone, own, [getattr(self.what, name) for name in OF_THE_PROCESS]


class Recorder:
    """Asks the frameworks for recordings, and keeps them.

    Nothing is timed here. So two processes work side by side where there are two cores: each imports for seconds on one.

    Args:
        out: folder for specs, recordings and logs.
        progress: called with what is being done.
    """

    def __init__(self, out: Path, progress: Callable[[str], None]) -> None:
        self._out = out
        self._progress = progress
        self._made: dict[Path, Recording] = {}

    def path(self, wanted: Recording) -> Path:
        """Where a recording lies."""
        folder = self._out / wanted.what.model / wanted.what.optimizer.name
        return folder / f"{wanted.label}-{wanted.framework}.safetensors"

    def arrays(self, wanted: Recording) -> Arrays:
        """A recording, which is made if it is not there.

        Raises:
            LaunchError: the twin could not record.
        """
        self.make([wanted])
        return safetensors.numpy.load_file(self.path(wanted))

    def opened(self, wanted: Recording) -> array_file.ArrayFile:
        """The same, but each array is read when it is asked for.

        Raises:
            LaunchError: the twin could not record.
        """
        self.make([wanted])
        return array_file.ArrayFile(self.path(wanted))

    def forget(self, made: Iterable[Recording]) -> None:
        """Delete recordings that have been judged."""
        for each in made:
            del self._made[self.path(each)]
            self.path(each).unlink()

    def forget_all(self) -> None:
        """Delete every recording. Specs and logs stay: a twin's `trace` makes each again."""
        self.forget(list(self._made.values()))

    def make(self, wanted: Iterable[Recording], made: Callable[[], object] = lambda: None) -> None:
        """Make those recordings that are not there yet.

        A process starts once those have started that record its teachers. It imports meanwhile, and then waits for their files.

        Args:
            wanted: recordings.
            made: called whenever some have been made. Their process may go on to make others.

        Raises:
            LaunchError: a twin could not record.
        """
        wanted = list(wanted)
        teachers = [each.teacher for each in wanted if each.teacher is not None]
        waiting: list[list[Recording]] = []
        for each in [*(teacher for teacher in teachers if teacher not in wanted), *wanted]:
            if self.is_made(each) or any(each in process for process in waiting):
                continue
            for process in waiting:
                if process[0].process == each.process:
                    process.append(each)
                    break
            else:
                waiting.append([each])
        started: dict[Path, list[Recording]] = {}

        def following() -> launch.Call | None:
            for process in waiting:
                outside = [each.teacher for each in process if each.teacher is not None and each.teacher not in process]
                recorded = [each for process in started.values() for each in process]
                if all(self.is_made(each) or each in recorded for each in outside):
                    waiting.remove(process)
                    call = self._call(process, teachers)
                    started[call.log] = process
                    return call
            return None

        def ended(call: launch.Call, code: int) -> None:
            process = started[call.log]
            if code != 0:
                raise _refused(call, process, code)
            written()

        def written() -> None:
            """Note what lies in its place. A twin puts a recording there when it is whole."""
            there = {self.path(each): each for process in started.values() for each in process if self.path(each).exists()}
            if not there.items() <= self._made.items():  # one may lie in the place of another
                self._made.update(there)
                made()

        at_once = 1 if self._has_gpu(waiting) else min(2, machine.available_cores())
        launch.call_all(following, ended, at_once, on_poll=written)
        if waiting:
            raise LaunchError(f"{_labels(waiting[0])} of {waiting[0][0].framework} waits for a recording that waits for it.")

    def _has_gpu(self, processes: Sequence[Sequence[Recording]]) -> bool:
        """Two processes may not find room side by side on one accelerator."""
        names = {process[0].framework for process in processes}
        return any(device["kind"] != "cpu" for name in names for device in launch.describe(name).get("devices", ()))

    def is_made(self, wanted: Recording) -> bool:
        """Whether a recording is there."""
        return self._made.get(self.path(wanted)) == wanted

    def _call(self, process: list[Recording], teachers: Sequence[Recording]) -> launch.Call:
        framework, what = process[0].framework, process[0].what
        self._progress(f"proof: {what.model}, {what.optimizer.name}, {_labels(process)}, {framework}")
        words: list[str] = []
        for each in sorted(process, key=lambda each: each not in teachers):  # others wait for a teacher
            own = claims.proved_switches(framework, each.what)
            place = self.path(each)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)  # never judge a recording of an earlier proof
            source = place.with_suffix(".json")
            with_own = each.what.with_fields(framework_options={**each.what.framework_options, **own}) if own else each.what
            source.write_text(with_own.to_json(), encoding="utf-8")
            words += ["--then" if words else "trace", str(source), "--out", str(place), *each.options]
            if each.teacher is not None:
                words += ["--teacher", str(self.path(each.teacher))]
        log = self.path(process[0]).with_suffix(".log")
        return launch.Call(framework, words, log, what.hang_seconds, environment=_SIDE_BY_SIDE)


def _labels(process: Sequence[Recording]) -> str:
    first, others = process[0].label, len(process) - 1
    return f"{first} and {others} more" if others else first


def _refused(call: launch.Call, process: Sequence[Recording], code: int) -> LaunchError:
    """A twin that could not record, with the last words of its log."""
    ended = launch.describe_exit(code) + launch.describe_full_disk(call.log.parent)
    kept = "With --out DIR its log is kept" if private_folder.contains(call.log) else f"See {call.log}"
    first = f"{call.framework} could not record {_labels(process)} ({ended}). {kept}."
    lines = call.log.read_text(encoding="utf-8", errors="replace").splitlines()
    return LaunchError("\n".join([first, *lines[-_LAST_LINES:]]))

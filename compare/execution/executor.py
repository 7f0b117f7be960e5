"""One run of one row in a process of its own, watched while it works. Its result is always stored."""

from __future__ import annotations

import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.artifacts import atomic_files, checkpoint, event_log, results
from common.artifacts.schema import INTERRUPTED, Restart, ResultError, RunResult, Status
from common.machine import placement
from common.processes import signals
from common.spec import Spec
from compare.execution import launch, store
from compare.execution.launchers_clock import LaunchersClock
from compare.execution.matrix import Row

Watch = Callable[[list[dict[str, Any]]], None]
"""Called repeatedly with the run's events so far."""


@dataclass(frozen=True)
class Code:
    """Other code than this, which runs instead."""

    root: Path | None
    """Another checkout of the suite. None: this one."""
    spec_json: Callable[[Row], str]
    """A row's spec as that code understands it."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to that of a twin: where it finds a user's own model."""
    folder: Path | None = None
    """Its working directory. None: `root`, else the caller's."""


_POLL_SECONDS = 0.25


def execute(
    row: Row, repeat: int, folder: Path, watch: Watch, code: Code | None = None, restarts: int = 0, *, is_checked: bool = False
) -> RunResult:
    """Run one row once, from the checkpoint of an earlier attempt if there is one, and store its result.

    If a run dies or is interrupted, its reason and its epochs so far are stored here. If the disk is full, the result may not
    be stored. Then the run counts as missing, and the others continue.

    Args:
        restarts: how often a run that something from outside ended is started again, all its processes, from its last
            checkpoint. What a run gives a reason for itself would end it again: an error, refused data, a divergence. So would
            a lack of memory. An elastic run is restarted with fewer replicas first, as often as it has some to lose.
        is_checked: it records steps that are drawn from a word of this attempt, see `compare.proof.spot_checks`.
    """
    directory = store.run_folder(folder, row.id, repeat)
    deaths, left = _deaths(directory), row.spec
    while True:
        made, death = _attempt(row, repeat, folder, watch, code, deaths, left, is_checked=is_checked)
        if death is None:
            return made
        if (fewer := left.with_fewer_replicas) is not None:
            left, death = fewer, death.model_copy(update={"replicas": fewer.replicas})
        elif restarts:
            restarts -= 1
        else:
            break
        deaths = [*deaths, death]
        _changed(made, directory, restarts=deaths)
        print(f"{row.id}, repeat {repeat + 1} is restarted: {death.words}.", file=sys.stderr)
    if not deaths:
        return made
    before = "; ".join(f"{number}. {each.words}" for number, each in enumerate(deaths, 1))
    return _changed(made, directory, reason=f"{made.reason}. No restart is left. Those before: {before}")


def _deaths(directory: Path) -> list[Restart]:
    """Those that a run was restarted after, before the comparison was cut short and resumed."""
    for attempt in (directory, *store.attempts(directory)):
        try:
            if found := results.load(attempt / results.RESULT_FILE).restarts:
                return [*found]
        except (ResultError, OSError):
            continue
    return []


def _attempt(
    row: Row,
    repeat: int,
    folder: Path,
    watch: Watch,
    code: Code | None,
    deaths: list[Restart],
    left: Spec,
    *,
    is_checked: bool,
) -> tuple[RunResult, Restart | None]:
    """The result of one attempt after these deaths, and how it died itself, if it may be restarted.

    Args:
        left: the row's spec with the replicas that are left.
    """
    directory = store.run_folder(folder, row.id, repeat)
    begun = time.monotonic()
    process: launch.Started | None = None
    try:
        try:
            store.clear(directory)
            spec_file, log = directory / store.SPEC_FILE, directory / store.LOG_FILE
            atomic_files.write_atomically(spec_file, code.spec_json(_with_spec(row, left)) if code else left.to_json())
            arguments = ["run", str(spec_file), "--out", str(directory), "--repeat", str(repeat)]
            if (earlier := store.resumable(directory)) is not None:
                arguments += ["--resume", str(earlier)]
            kills = launch.memory_kills()
            root, environment, at = (code.root, code.environment, code.folder) if code else (None, {}, None)
            if is_checked:
                word = secrets.token_hex(16)  # nobody knew it before
                atomic_files.write_atomically(directory / store.WORD_FILE, word)
                environment = {**environment, placement.SPOT_CHECKS_VARIABLE: word}
            with signals.deferred():
                process = launch.start(row.contestant, arguments, log=log, root=root, environment=environment, folder=at)
        except OSError as error:
            return _not_stored(row, repeat, f"it cannot be started: {error}"), None
        clock = LaunchersClock(directory)
        hang = _wait(process, row.spec.hang_seconds, directory, watch, clock)
    except BaseException:
        if process is not None:
            launch.stop(process, grace_seconds=launch.INTERRUPTED_GRACE_SECONDS)
            _finish(row, repeat, folder, deaths, left, "killed", INTERRUPTED)
        raise
    launch.stop(process)
    ending, lacked_memory = signals.code_of(process.returncode), launch.memory_kills() > kills
    if hang is not None:
        made = _finish(row, repeat, folder, deaths, left, "killed", hang)
    else:
        status: Status = "killed" if ending < 0 else "failed"
        made = _finish(row, repeat, folder, deaths, left, status, ending_words(ending, log, lacked_memory))
    if made.status in store.FINISHED:
        made = _changed(made, directory, **_told_by(clock, row))
    if made.status == "ok":
        for attempt in store.attempts(directory):
            checkpoint.remove(attempt)
    if made.status != "killed" or ending in (-signal.SIGINT, -signal.SIGABRT):  # a user's, or the process's own
        return made, None
    if lacked_memory:
        said = (made.reason or "").removesuffix(launch.LACKED_MEMORY) + launch.LACKED_MEMORY
        return _changed(made, directory, reason=said), None
    return made, _death(made, directory, begun, process.watched.marks().steps)


def _death(made: RunResult, directory: Path, begun: float, steps: int) -> Restart:
    """How an attempt died.

    Args:
        begun: when it was started, by the monotonic clock.
        steps: its updates.
    """
    kept = directory / checkpoint.FILE
    seconds = time.monotonic() - begun
    if kept.exists():  # a file has the time of the wall clock, which may have been set meanwhile
        seconds = min(seconds, max(time.time() - kept.stat().st_mtime, 0.0))
    events = event_log.read_events(directory)
    resumed = next((event["epochs"] for event in events if event.get("event") == "resume"), 0)
    steps -= sum(epoch.steps for epoch in made.epochs[resumed:])
    return Restart(
        reason=made.reason or made.status,
        epochs=len(made.epochs),
        steps=max(steps, 0),
        seconds_lost=seconds,
    )


def _told_by(clock: LaunchersClock, row: Row) -> dict[str, Any]:
    """Fields of a finished run's result that the launcher's own clock decides."""
    if (words := clock.disagreement(row.framework)) is not None:
        return {"status": "failed", "reason": words, "clock_confirmed": None}
    return {"clock_confirmed": clock.confirms()}


def _changed(made: RunResult, directory: Path, **fields: Any) -> RunResult:
    """A result with other values of some fields, stored as far as the disk has room."""
    made = made.model_copy(update=fields)
    try:
        results.save(made, directory)
    except OSError as error:
        print(f"{directory}: its result cannot be written: {error}", file=sys.stderr)
    return made


def _wait(process: launch.Started, hang_seconds: float, directory: Path, watch: Watch, clock: LaunchersClock) -> str | None:
    def look() -> None:
        if (events := clock.look()) is not None:
            watch(events)

    hang = launch.wait(process, poll_seconds=_POLL_SECONDS, watch=look, hang_seconds=hang_seconds, folder=directory)
    clock.look()
    return hang


def _finish(row: Row, repeat: int, folder: Path, deaths: list[Restart], left: Spec, status: Status, reason: str) -> RunResult:
    """The run's own result if it wrote one for this spec, else one made from its events. It is one of the row's spec."""
    try:
        stored = store.finished(folder, _with_spec(row, left), repeat)
    except ResultError as error:
        stored, reason = None, f"{reason}; {error}"
    directory = store.run_folder(folder, row.id, repeat)
    if stored is not None:
        if not deaths:
            return stored
        fields: dict[str, Any] = {"spec": row.spec, "restarts": deaths}
        if stored.status == "ok" and left != row.spec:
            reason = f"it went on with {left.replicas} of {row.spec.replicas} replicas (--elastic)"
            fields |= {"status": "not parallel", "reason": reason}
        return _changed(stored, directory, **fields)
    first_steps = (event for event in event_log.read_events(directory) if event.get("event") == "first_step")
    made = RunResult(
        framework=row.framework,
        spec=row.spec,
        status=status,
        reason=reason,
        repeat=repeat,
        epochs=event_log.read_epochs(directory),
        first_step_loss=next((event.get("loss") for event in first_steps), None),
        restarts=deaths,
    )
    try:
        results.save(made, directory)
    except OSError as error:
        return _not_stored(row, repeat, f"{reason}; its result cannot be written: {error}")
    return made


def _with_spec(row: Row, spec: Spec) -> Row:
    return row.model_copy(update={"spec": spec})


def _not_stored(row: Row, repeat: int, reason: str) -> RunResult:
    print(f"{row.id}, repeat {repeat + 1}: {reason}", file=sys.stderr)
    return RunResult(framework=row.framework, spec=row.spec, status="failed", reason=reason, repeat=repeat)


def has_room(directory: Path) -> bool:
    """Whether the result of a run that ended is in its folder, and the disk could take more."""
    return (directory / results.RESULT_FILE).exists() and not launch.is_full(directory)


def ending_words(code: int, log: Path, lacked_memory: bool) -> str:
    """How a process without a result ended, with the last line of its log."""
    words = launch.exit_words(code) if code else "ended without a result"
    if lacked_memory:
        return words + launch.LACKED_MEMORY
    if full := launch.full_disk_words(log.parent):
        return f"{words}{full}"
    last = "" if code == -signal.SIGKILL else launch.last_line(log)  # a killed process said nothing of its end
    return f"{words}: {last}" if last else words

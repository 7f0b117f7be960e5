"""One run of one row in a process of its own, watched while it works. Its result is always stored."""

from __future__ import annotations

import secrets
import signal
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.artifacts import atomic_files, checkpoint, event_log, results
from common.artifacts.schema import INTERRUPTED, Restart, ResultError, RunResult, Status
from common.machine import placement
from common.processes import signals
from common.spec import Spec
from compare.results import store
from compare.running import launch
from compare.running.contestants import Checkout, Contestant
from compare.running.interleaving import Job
from compare.running.launch import StartedProcess, waited_for
from compare.running.launchers_clock import LaunchersClock
from compare.running.matrix import Row
from compare.running.taking_turns import Seat, importing_at_once, run_round
from compare.running.twins import Twins

Watch = Callable[[list[dict[str, Any]]], None]
"""Called repeatedly with the run's events so far."""


def execute(
    contestant: Contestant,
    row: Row,
    repeat: int,
    folder: Path,
    watch: Watch,
    restarts: int = 0,
    *,
    has_spot_checks: bool = False,
) -> RunResult:
    """Run one row once as `executing` does, and wait for it. A signal that ends the waiting stops the run, and stores why."""
    return waited_for(executing(contestant, row, repeat, folder, watch, restarts, has_spot_checks=has_spot_checks))


def execute_together(
    jobs: Sequence[Job[Row]],
    twins: Twins,
    folder: Path,
    watch: Watch,
    options_of: Callable[[Job[Row]], Mapping[str, Any]] = lambda job: {},
) -> Generator[tuple[int, RunResult]]:
    """Run the jobs of a round in turns, see `run_together`. Yields the place of each and its result when it ends.

    Args:
        options_of: returns the options of `execute` for a job.
    """

    def look(place: int, seat: Seat | None) -> Generator[StartedProcess, None, RunResult]:
        row, repeat = jobs[place]
        return executing(twins[row.contestant], row, repeat, folder, watch, seat=seat, **options_of(jobs[place]))

    return run_together([job.item for job in jobs], [twins[job.item.contestant] for job in jobs], look)


def run_together(
    rows: Sequence[Row],
    contestants: Sequence[Contestant],
    run: Callable[[int, Seat | None], Generator[StartedProcess, None, RunResult]],
) -> Generator[tuple[int, RunResult]]:
    """Run rows in turns. Yields the place of each and its result when it ends.

    Rows on several hosts run alone, before the others: other machines reach no socket here, and have other noise.

    Args:
        rows, contestants: the rows in the order of starting, and whose each is.
        run: runs the row at a place, one look at its process for each step of the generator. Without a seat it runs alone.
    """
    places = [place for place, row in enumerate(rows) if not row.spec.hosts]
    for place in range(len(rows)):
        if place not in places:
            yield place, waited_for(run(place, None))
    # Code of another revision may know no turns, and train on once it has imported. Nothing else may run then.
    checkouts = [contestants[place].checkout for place in places]
    has_revisions = any(checkout is not None and checkout.root is not None for checkout in checkouts)
    cores = 1 if has_revisions else min((rows[place].spec.cores for place in places), default=1)
    for number, result in run_round(places, run, importing=importing_at_once(len(places), cores)):
        yield places[number], result


def executing(
    contestant: Contestant,
    row: Row,
    repeat: int,
    folder: Path,
    watch: Watch,
    restarts: int = 0,
    *,
    has_spot_checks: bool = False,
    seat: Seat | None = None,
) -> Generator[StartedProcess, None, RunResult]:
    """Run one row once, from the checkpoint of an earlier attempt if there is one, and store its result.

    Each step of the generator looks at the process, which the caller waits for in between.

    If a run dies or is interrupted, its reason and its epochs so far are stored here. If the disk is full, the result may not
    be stored. Then the run counts as missing, and the others continue.

    Args:
        contestant: the row's contestant.
        restarts: how often a run that something from outside ended is started again, all its processes, from its last
            checkpoint. What a run gives a reason for itself would end it again: an error, refused data, a divergence. So would
            a lack of memory. An elastic run is restarted with fewer replicas first, as often as it has some to lose.
        has_spot_checks: whether it records steps that are drawn with a nonce of this attempt, see `compare.proof.spot_checks`.
        seat: its place in a round of runs that take turns. None: it trains without a pause.
    """
    directory = store.run_folder(folder, row.id, repeat)
    deaths, remaining_spec = _earlier_deaths(directory), row.spec
    while True:
        result, death = yield from _run_attempt(
            contestant, row, repeat, folder, watch, deaths, remaining_spec, has_spot_checks=has_spot_checks, seat=seat
        )
        if death is None:
            return result
        if (smaller_spec := remaining_spec.with_fewer_replicas) is not None:
            remaining_spec, death = smaller_spec, death.model_copy(update={"replicas": smaller_spec.replicas})
        elif restarts:
            restarts -= 1
        else:
            break
        deaths = [*deaths, death]
        _update_result(result, directory, restarts=deaths)
        print(f"{row.id}, repeat {repeat + 1} is restarted: {death.words}.", file=sys.stderr)
    if not deaths:
        return result
    earlier_deaths = "; ".join(f"{number}. {restart.words}" for number, restart in enumerate(deaths, 1))
    return _update_result(result, directory, reason=f"{result.reason}. No restart is left. Those before: {earlier_deaths}")


def _earlier_deaths(directory: Path) -> list[Restart]:
    """Deaths that a run was restarted after, before the comparison was interrupted and resumed."""
    for attempt in (directory, *store.earlier_attempts(directory)):
        try:
            if restarts := results.load(attempt / results.RESULT_FILE).restarts:
                return [*restarts]
        except (ResultError, OSError):
            continue
    return []


def _run_attempt(
    contestant: Contestant,
    row: Row,
    repeat: int,
    folder: Path,
    watch: Watch,
    deaths: list[Restart],
    remaining_spec: Spec,
    *,
    has_spot_checks: bool,
    seat: Seat | None,
) -> Generator[StartedProcess, None, tuple[RunResult, Restart | None]]:
    """Run one attempt after these deaths. Returns its result, and how it died itself, if it may be restarted.

    Args:
        remaining_spec: the row's spec with the replicas that are left.
    """
    directory = store.run_folder(folder, row.id, repeat)
    paused = seat.paused_seconds if seat is not None else lambda: 0.0
    started_seconds = time.monotonic() - paused()
    process: StartedProcess | None = None
    try:
        try:
            store.prepare_run_folder(directory)
            spec_file, log = directory / store.SPEC_FILE, directory / store.LOG_FILE
            checkout = contestant.checkout or Checkout()
            atomic_files.write_atomically(spec_file, checkout.spec_json(row.id, remaining_spec))
            arguments = ["run", str(spec_file), "--out", str(directory), "--repeat", str(repeat)]
            if (resumed_attempt := store.attempt_to_resume(directory)) is not None:
                arguments += ["--resume", str(resumed_attempt)]
            kills_before = launch.memory_kills()
            environment: dict[str, str] = {}
            if has_spot_checks:
                nonce = secrets.token_hex(16)  # nobody knew it before
                atomic_files.write_atomically(directory / store.NONCE_FILE, nonce)
                environment[placement.SPOT_CHECKS_VARIABLE] = nonce
            if seat is not None:
                environment |= seat.environment
            with signals.defer_signals():
                process = launch.start(contestant, arguments, log=log, environment=environment)
        except OSError as error:
            return _not_stored(row, repeat, f"it cannot be started: {error}"), None
        clock = LaunchersClock(directory, paused=paused)
        hang = yield from _watching(process, row.spec.hang_seconds, directory, watch, clock)
    except BaseException:
        if process is not None:
            launch.stop(process, grace_seconds=launch.INTERRUPTED_GRACE_SECONDS)
            _collect_result(row, repeat, folder, deaths, remaining_spec, "killed", INTERRUPTED)
        raise
    launch.stop(process)
    ending, lacked_memory = signals.exit_code(process.returncode), launch.memory_kills() > kills_before
    if hang is not None:
        result = _collect_result(row, repeat, folder, deaths, remaining_spec, "killed", hang)
    else:
        status: Status = "killed" if ending < 0 else "failed"
        result = _collect_result(
            row, repeat, folder, deaths, remaining_spec, status, launch.describe_ending(ending, log, lacked_memory)
        )
    if result.status in store.FINISHED:
        result = _update_result(result, directory, **_clock_fields(clock, row, seat))
    if result.status == "ok":
        for attempt in store.earlier_attempts(directory):
            checkpoint.remove(attempt)
    if result.status != "killed" or ending in (-signal.SIGINT, -signal.SIGABRT):  # a user's, or the process's own
        return result, None
    if lacked_memory:
        reason = (result.reason or "").removesuffix(launch.LACKED_MEMORY) + launch.LACKED_MEMORY
        return _update_result(result, directory, reason=reason), None
    seconds = time.monotonic() - paused() - started_seconds
    return result, _describe_death(result, directory, seconds, process.watched.marks().steps)


def _describe_death(result: RunResult, directory: Path, seconds: float, steps: int) -> Restart:
    """Describe how an attempt died.

    Args:
        seconds: seconds of the attempt, without those of waiting for its turns.
        steps: updates of the attempt.
    """
    checkpoint_file = directory / checkpoint.FILE
    if checkpoint_file.exists():  # a file has the time of the wall clock, which may have been set meanwhile
        seconds = min(seconds, max(time.time() - checkpoint_file.stat().st_mtime, 0.0))
    events = event_log.read_events(directory)
    resumed_epochs = next((event["epochs"] for event in events if event.get("event") == "resume"), 0)
    steps -= sum(epoch.steps for epoch in result.epochs[resumed_epochs:])
    return Restart(
        reason=result.reason or result.status,
        epochs=len(result.epochs),
        steps=max(steps, 0),
        seconds_lost=seconds,
    )


def _clock_fields(clock: LaunchersClock, row: Row, seat: Seat | None) -> dict[str, Any]:
    """Result fields of a finished run that the launcher's own clock, and its view of the run's turns, decide."""
    if (words := clock.disagreement(row.framework) or (seat and seat.defect())) is not None:
        return {"status": "failed", "reason": words, "clock_confirmed": None}
    return {"clock_confirmed": clock.confirms(), "round_id": seat.round_id if seat is not None else None}


def _update_result(result: RunResult, directory: Path, **fields: Any) -> RunResult:
    """Update fields of a result, and store it as far as the disk has space."""
    result = result.model_copy(update=fields)
    try:
        results.save(result, directory)
    except OSError as error:
        print(f"{directory}: its result cannot be written: {error}", file=sys.stderr)
    return result


def _watching(
    process: StartedProcess, hang_seconds: float, directory: Path, watch: Watch, clock: LaunchersClock
) -> Generator[StartedProcess, None, str | None]:
    def poll() -> None:
        if (events := clock.poll()) is not None:
            watch(events)

    hang = yield from launch.watching(process, watch=poll, hang_seconds=hang_seconds, folder=directory)
    clock.poll()
    return hang


def _collect_result(
    row: Row, repeat: int, folder: Path, deaths: list[Restart], remaining_spec: Spec, status: Status, reason: str
) -> RunResult:
    """Return the run's own result if it wrote one for this spec, else one made from its events. Its spec is the row's."""
    try:
        stored = store.load_result(folder, _with_spec(row, remaining_spec), repeat)
    except ResultError as error:
        stored, reason = None, f"{reason}; {error}"
    directory = store.run_folder(folder, row.id, repeat)
    if stored is not None:
        if not deaths:
            return stored
        fields: dict[str, Any] = {"spec": row.spec, "restarts": deaths}
        if stored.status == "ok" and remaining_spec != row.spec:
            reason = f"it went on with {remaining_spec.replicas} of {row.spec.replicas} replicas (--elastic)"
            fields |= {"status": "not parallel", "reason": reason}
        return _update_result(stored, directory, **fields)
    first_steps = (event for event in event_log.read_events(directory) if event.get("event") == "first_step")
    result = RunResult(
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
        results.save(result, directory)
    except OSError as error:
        return _not_stored(row, repeat, f"{reason}; its result cannot be written: {error}")
    return result


def _with_spec(row: Row, spec: Spec) -> Row:
    return row.model_copy(update={"spec": spec})


def _not_stored(row: Row, repeat: int, reason: str) -> RunResult:
    print(f"{row.id}, repeat {repeat + 1}: {reason}", file=sys.stderr)
    return RunResult(framework=row.framework, spec=row.spec, status="failed", reason=reason, repeat=repeat)


def is_stored_with_space_left(directory: Path) -> bool:
    """Whether the result of a run is in its folder, and the disk has space for more."""
    return (directory / results.RESULT_FILE).exists() and not launch.is_full(directory)

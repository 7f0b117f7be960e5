"""Starts the processes of one run, watches them, and ends them together."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from common.machine import heartbeat, machine, placement
from common.processes import hosts, signals
from common.processes.process_spec import KILL_SECONDS, LocalProcess, ProcessSpec, RunningProcess
from common.watching import flight_report, watchdog


class AddressError(OSError):
    """An address is not of this machine."""


def free_ports(count: int, address: str = placement.LOOPBACK) -> list[int]:
    """Return TCP ports of an address of this machine that nobody listens on now.

    Raises:
        AddressError: it is another machine's, or nobody's.
    """
    with contextlib.ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(_bind_free_port(address)) for _ in range(count)]
        return [port_socket.getsockname()[1] for port_socket in sockets]


def _bind_free_port(address: str) -> socket.socket:
    """Bind a free port at an address of this machine.

    Raises:
        AddressError: the address is another machine's, or nobody's.
    """
    try:
        return placement.bind(address, 0)
    except OSError as error:
        raise AddressError(f"{address}: {error}") from None


class Watch(NamedTuple):
    """Settings of the watchdog of a run, see `common.watching.watchdog`."""

    hang_seconds: float = heartbeat.HANG_SECONDS
    """Seconds until a run that hangs is ended."""
    folder: Path | None = None
    """Folder for the stacks of a run that hung, or of the processes that waited for a dead one."""
    waiting: str | None = None
    """Regular expression. If a stack frame's file name matches, the rank waits for the others."""
    grace_seconds: float = 5.0
    """Seconds that processes get to end by themselves: all of them after one has failed, so that rank 0 can still write down
    why, and servers after all ranks have ended well."""
    loading_seconds: float | None = None
    """Seconds until a process without its data counts as stuck. None: `heartbeat.LOADING_SECONDS`."""


class Failure(NamedTuple):
    """The member that ended badly first, or that made the run hang."""

    rank: int
    """Index among the members."""
    code: int | None
    """Exit code, negative for the signal that ended it. None: the run hung, or lost a host that had answered."""
    message: str

    @property
    def is_death(self) -> bool:
        """Whether something from outside ended the run.

        A process that ended itself had a reason, which it would have again. SIGABRT counts as such: it is its own signal.
        """
        return self.code is None or (self.code < 0 and self.code != -signal.SIGABRT)


def run_members(members: Sequence[ProcessSpec], watch: Watch) -> Failure | None:
    """Run several processes until all ranks have ended.

    The first that fails, or that hangs, ends the others: they would wait for it forever. Each leads a process group, so
    that what it started can be ended even where it was killed itself; Ctrl-C reaches it by way of this process.

    Returns:
        None where all ended well.
    """
    started: dict[int, RunningProcess] = {}
    stack = contextlib.ExitStack()

    def forward(number: int, frame: FrameType | None) -> None:
        end_all(list(started.values()))
        sys.exit(128 + number)

    previous = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assigned = _assign_ports(members, stack)
        for index, member in enumerate(assigned):  # servers before the ranks
            if not member.trains:
                with signals.defer_signals():
                    server = started[index] = LocalProcess(member)
                # Rank 0 counts what it uses of the machine.
                companion = {machine.COMPANION_VARIABLE: str(server.pid)}
                assigned[0] = assigned[0]._replace(environment=assigned[0].environment | companion)
        for index, member in enumerate(assigned):
            if member.trains:
                with signals.defer_signals():
                    started[index] = (
                        LocalProcess(member) if member.host is None else hosts.RemoteProcess(member, watch.hang_seconds)
                    )
        processes = [started[index] for index in range(len(members))]
        watcher = watchdog.Watchdog(
            [
                watchdog.WatchTarget(_member_name(members, index), process.watched, members[index].trains)
                for index, process in enumerate(processes)
            ],
            watch.hang_seconds,
            watch.waiting,
            watch.loading_seconds,
        )
        heartbeat.count_sync_point()
        while True:
            heartbeat.heartbeat()  # who watches this process need not watch the members too
            codes = [None if (code := process.poll()) is None else signals.exit_code(code) for process in processes]
            heartbeat.set_steps(processes[0].watched.marks().steps)
            if all(code == 0 for code, member in zip(codes, members, strict=True) if member.trains):
                servers = [process for process, member in zip(processes, members, strict=True) if not member.trains]
                for server in servers:
                    server.terminate()
                _wait(servers, watch.grace_seconds)
                return None
            exits = [
                (code, index)
                for index, (code, member) in enumerate(zip(codes, members, strict=True))
                if code is not None and (code or not member.trains)
            ]
            if exits:
                code, index = min(exits)  # a signal before an exit code, which it may have caused
                if code > 0 and (hang := watcher.halted()) is not None:
                    words = f"{hang.message}, and {_member_name(members, index)} {_describe_exit(code)}"
                    return Failure(hang.culprit, None, words + _save_diagnostics(hang.stacks, processes, members, watch.folder))
                if code > 0 or code == -signal.SIGABRT:
                    _wait(processes, watch.grace_seconds)  # where all meet the same error, rank 0 still writes down which
                    code, index = _root_cause(processes, (code, index))
                process = processes[index]
                is_lost = isinstance(process, hosts.RemoteProcess) and process.connection_lost
                words = (
                    f"{_member_name(members, index)} {'lost its connection, which ' if is_lost else ''}{_describe_exit(code)}"
                )
                some_live = any(
                    process.poll() is None for process, member in zip(processes, members, strict=True) if member.trains
                )
                words += _save_diagnostics(watcher.stacks() if some_live else [], processes, members, watch.folder)
                # A host that never answered has a wrong name, or refuses us.
                return Failure(index, None if is_lost and process.watched.marks().beats else code, words)
            if (hang := watcher.check()) is not None:
                return Failure(
                    hang.culprit, None, hang.message + _save_diagnostics(hang.stacks, processes, members, watch.folder)
                )
            time.sleep(0.05)
    finally:
        # Ranks before their server: they would notice its end, and blame it.
        end_all([started[index] for index in sorted(started)])
        stack.close()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _root_cause(running: Sequence[RunningProcess], first: tuple[int, int]) -> tuple[int, int]:
    """Return (code, index) of the process that ended the run and so the others. A signal comes before an exit code.

    SIGABRT comes last: gloo ends a rank with it when the rank's partner is gone. A signal may be seen later than its effects:
    that of another host, or a rank's own before it ends.

    Args:
        running: all processes.
        first: (code, index) of the process whose end was seen first. It counts among exit codes.
    """
    codes = [(signals.exit_code(code), index) for index, process in enumerate(running) if (code := process.poll())]
    killed = [process for process in codes if process[0] < 0 and process[0] != -signal.SIGABRT]
    failed = [first] if first[0] > 0 else [process for process in codes if process[0] > 0]
    return min(killed or failed or [first])


def _assign_ports(members: Sequence[ProcessSpec], stack: contextlib.ExitStack) -> list[ProcessSpec]:
    """Give all ranks the port of their rendezvous, and keep it bound.

    A port that nobody holds may be given to whoever connects next. That may be a rank that tries to reach rank 0 before rank 0
    listens. It would then be connected to itself. Linux lets rank 0 listen on a port that is held but not listened on.
    """
    sockets = {
        address: stack.enter_context(_bind_free_port(address))
        for address in {member.environment.get("MASTER_ADDR") for member in members}
        if address is not None
    }
    ports = {address: str(port_socket.getsockname()[1]) for address, port_socket in sockets.items()}
    if sys.platform != "linux":
        stack.close()
    return [
        member._replace(environment={**member.environment, "MASTER_PORT": ports[address]})
        if (address := member.environment.get("MASTER_ADDR")) is not None
        else member
        for member in members
    ]


def _member_name(members: Sequence[ProcessSpec], index: int) -> str:
    member, ranks = members[index], sum(other.trains for other in members)
    total = f" of {ranks}" if member.trains else ""
    location = f" on {member.host}" if member.host is not None else ""
    return f"{member.name}{total}{location}"


def _save_diagnostics(
    stacks: Sequence[str], processes: Sequence[RunningProcess], members: Sequence[ProcessSpec], folder: Path | None
) -> str:
    """Save the stacks and the last exchanges of all ranks. Returns a text on the files and the exchange that differs."""
    ranks = [
        flight_report.Rank(member.name, process.watched.flight(), process.poll() is not None)
        for process, member in zip(processes, members, strict=True)
        if member.trains
    ]
    sentence = flight_report.sentence(ranks)
    paths: list[Path] = []
    unwritten = ""
    try:
        if folder is not None and stacks:
            paths += watchdog.save_stacks(stacks, [member.name for member in members], folder)
        if folder is not None and (sentence or (stacks and any(rank.flight and rank.flight.records for rank in ranks))):
            paths.append(flight_report.save(ranks, folder))
    except OSError as error:  # a full disk is no reason to lose why the run ends
        unwritten = f"; what its ranks did cannot be written ({error})"
    note = f"; see {', '.join(path.name for path in paths)}{unwritten}" if paths else unwritten
    return f"{note}. {sentence}" if sentence else note


def _wait(processes: Sequence[RunningProcess], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        process.wait(max(deadline - time.monotonic(), 0.0))


def end_all(
    processes: Sequence[RunningProcess],
    kill_seconds: float = KILL_SECONDS,
    shutdown_seconds: float = hosts.SHUTDOWN_SECONDS,
) -> None:
    """End processes with all that they started.

    Args:
        processes: processes on this machine and on others.
        kill_seconds: seconds to wait for all those on this machine after SIGKILL.
        shutdown_seconds: seconds that those on other machines get to end by themselves.
    """
    remote = [process for process in processes if isinstance(process, hosts.RemoteProcess)]
    local = [process for process in processes if isinstance(process, LocalProcess)]
    for process in remote:
        process.terminate()
    # Several may be held, by a freezer for example. They are waited for together.
    deadline = time.monotonic() + kill_seconds
    for process in local:
        process.kill(0.0)
    for process in local:
        process.kill(max(deadline - time.monotonic(), 0.0))
    _wait(remote, shutdown_seconds)
    for process in remote:
        process.kill()


def _describe_exit(code: int) -> str:
    return f"ended with exit code {code}" if code >= 0 else f"was ended by {signals.name(-code)}"

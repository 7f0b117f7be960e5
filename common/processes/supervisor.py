"""Starting the processes of one run, watching them, and ending them together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from common.machine import heartbeat, machine, placement
from common.processes import flight_report, hosts, signals, watchdog
from common.processes.process_spec import HELD_SECONDS, Local, ProcessSpec, Running

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent is gone, so that a kill leaves no orphan."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    # Not SIGTERM: TensorFlow takes that over once its processes have met, and then only makes a note of it.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended in between
        sys.exit(128 + signal.SIGTERM)


class AddressError(OSError):
    """An address is not of this machine."""


def free_ports(count: int, address: str = placement.LOOPBACK) -> list[int]:
    """TCP ports of an address of this machine that nobody listens on now.

    Raises:
        AddressError: it is another machine's, or nobody's.
    """
    with contextlib.ExitStack() as open_sockets:
        held = [open_sockets.enter_context(_held(address)) for _ in range(count)]
        return [each.getsockname()[1] for each in held]


def _held(address: str) -> socket.socket:
    """A port of an address of this machine that nobody else has.

    Raises:
        AddressError: the address is another machine's, or nobody's.
    """
    try:
        return placement.bind(address, 0)
    except OSError as error:
        raise AddressError(f"{address}: {error}") from None


class Watch(NamedTuple):
    """How the members of a run are watched, see `common.processes.watchdog`."""

    hang_seconds: float = heartbeat.HANG_SECONDS
    """Within which a run that hangs is ended."""
    folder: Path | None = None
    """Gets the stacks of a run that hung, or of those that a dead member left behind."""
    waiting: str | None = None
    """Regular expression. If a stack frame's file name matches, the rank waits for the others."""


class Failure(NamedTuple):
    """The member that ended badly first, or that made the run hang."""

    rank: int
    """Its index among the members."""
    code: int | None
    """Its exit code, negative for the signal that ended it. None: the run hung, or lost a host that had answered."""
    words: str

    @property
    def is_death(self) -> bool:
        """Whether something from outside ended the run. A process that ended itself had a reason, which it would have again. So
        had one that ended by SIGABRT: that is its own signal.
        """
        return self.code is None or (self.code < 0 and self.code != -signal.SIGABRT)


def run_members(members: Sequence[ProcessSpec], watch: Watch) -> Failure | None:
    """Run several processes until all ranks have ended.

    The first that fails, or that hangs, ends the others: they would wait for it forever. Each leads a process group, so
    that what it started can be ended even where it was killed itself; Ctrl-C reaches it by way of this process.

    Returns:
        None where all ended well.
    """
    started: dict[int, Running] = {}
    held = contextlib.ExitStack()

    def forward(number: int, frame: FrameType | None) -> None:
        _end(list(started.values()))
        sys.exit(128 + number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        placed = _with_meeting_place(members, held)
        for index, member in enumerate(placed):  # servers before the ranks
            if not member.trains:
                with signals.deferred():
                    server = started[index] = Local(member)
                # Rank 0 counts what it uses of the machine.
                companion = {machine.COMPANION_VARIABLE: str(server.pid)}
                placed[0] = placed[0]._replace(environment=placed[0].environment | companion)
        for index, member in enumerate(placed):
            if member.trains:
                with signals.deferred():
                    started[index] = Local(member) if member.host is None else hosts.Distant(member, watch.hang_seconds)
        running = [started[index] for index in range(len(members))]
        dog = watchdog.Watchdog(
            [watchdog.Member(_name(members, index), each.watched, members[index].trains) for index, each in enumerate(running)],
            watch.hang_seconds,
            watch.waiting,
        )
        heartbeat.count_sync_point()
        while True:
            heartbeat.heartbeat()  # who watches this process need not watch the members too
            codes = [None if (code := each.poll()) is None else signals.code_of(code) for each in running]
            heartbeat.set_steps(running[0].watched.marks().steps)
            if all(code == 0 for code, member in zip(codes, members, strict=True) if member.trains):
                servers = [each for each, member in zip(running, members, strict=True) if not member.trains]
                for server in servers:
                    server.terminate()
                _wait(servers)
                return None
            ended = [
                (code, index)
                for index, (code, member) in enumerate(zip(codes, members, strict=True))
                if code is not None and (code or not member.trains)
            ]
            if ended:
                code, index = min(ended)  # a signal before an exit code, which it may have caused
                if code > 0 and (hang := dog.halted()) is not None:
                    words = f"{hang.words}, and {_name(members, index)} {_words(code)}"
                    return Failure(hang.culprit, None, words + _saved(hang.stacks, running, members, watch.folder))
                if code > 0 or code == -signal.SIGABRT:
                    _wait(running)  # where all meet the same error, rank 0 still writes down which
                    code, index = _cause(running, (code, index))
                each = running[index]
                is_lost = isinstance(each, hosts.Distant) and each.lost
                words = f"{_name(members, index)} {'lost its connection, which ' if is_lost else ''}{_words(code)}"
                some_live = any(each.poll() is None for each, member in zip(running, members, strict=True) if member.trains)
                words += _saved(dog.stacks() if some_live else [], running, members, watch.folder)
                # A host that never answered has a wrong name, or refuses us.
                return Failure(index, None if is_lost and each.watched.marks().beats else code, words)
            if (hang := dog.look()) is not None:
                return Failure(hang.culprit, None, hang.words + _saved(hang.stacks, running, members, watch.folder))
            time.sleep(0.05)
    finally:
        # Ranks before their server: they would notice its end, and blame it.
        _end([started[index] for index in sorted(started)])
        held.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _cause(running: Sequence[Running], first: tuple[int, int]) -> tuple[int, int]:
    """(code, index) of the process that ended the run, once others have ended by it: a signal before an exit code.

    SIGABRT comes last: gloo ends a rank with it when the rank's partner is gone. A signal may be seen later than its effects:
    that of another host, or one that a rank takes itself before it ends.

    Args:
        first: the one that was seen first. It counts among exit codes.
    """
    codes = [(signals.code_of(code), index) for index, each in enumerate(running) if (code := each.poll())]
    killed = [each for each in codes if each[0] < 0 and each[0] != -signal.SIGABRT]
    failed = [first] if first[0] > 0 else [each for each in codes if each[0] > 0]
    return min(killed or failed or [first])


def _with_meeting_place(members: Sequence[ProcessSpec], held: contextlib.ExitStack) -> list[ProcessSpec]:
    """Give all ranks the port of their meeting place. Nobody else gets that port meanwhile.

    A port that nobody holds may be given to whoever connects next. That may be a rank that tries to reach rank 0 before rank 0
    listens. It would then be connected to itself. Linux lets rank 0 listen on a port that is held but not listened on.
    """
    sockets = {
        address: held.enter_context(_held(address))
        for address in {member.environment.get("MASTER_ADDR") for member in members}
        if address is not None
    }
    ports = {address: str(each.getsockname()[1]) for address, each in sockets.items()}
    if sys.platform != "linux":
        held.close()
    return [
        member._replace(environment={**member.environment, "MASTER_PORT": ports[address]})
        if (address := member.environment.get("MASTER_ADDR")) is not None
        else member
        for member in members
    ]


def _name(members: Sequence[ProcessSpec], index: int) -> str:
    member, ranks = members[index], sum(each.trains for each in members)
    of = f" of {ranks}" if member.trains else ""
    on = f" on {member.host}" if member.host is not None else ""
    return f"{member.name}{of}{on}"


def _saved(stacks: Sequence[str], running: Sequence[Running], members: Sequence[ProcessSpec], folder: Path | None) -> str:
    """Save the stacks, if there are any, and the last exchanges of all ranks; in words, which one does not match."""
    ranks = [
        flight_report.Rank(member.name, each.watched.flight(), each.poll() is not None)
        for each, member in zip(running, members, strict=True)
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
    seen = f"; see {', '.join(path.name for path in paths)}{unwritten}" if paths else unwritten
    return f"{seen}. {sentence}" if sentence else seen


def _wait(running: Sequence[Running], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    for each in running:
        each.wait(max(deadline - time.monotonic(), 0.0))


def _end(running: Sequence[Running]) -> None:
    distant = [each for each in running if isinstance(each, hosts.Distant)]
    local = [each for each in running if isinstance(each, Local)]
    for each in distant:
        each.terminate()
    # Several may be held, by a freezer for example. They are waited for together.
    deadline = time.monotonic() + HELD_SECONDS
    for each in local:
        each.kill(0.0)
    for each in local:
        each.kill(max(deadline - time.monotonic(), 0.0))
    _wait(distant, seconds=hosts.ENDING_SECONDS)
    for each in distant:
        each.kill()


def _words(code: int) -> str:
    return f"ended with exit code {code}" if code >= 0 else f"was ended by {signals.name(-code)}"

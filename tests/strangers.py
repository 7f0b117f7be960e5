"""A local user without the secret of a run, who sends pickles to its ports: `nobody` where the tests run as root."""

import asyncio
import contextlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from distributed.comm.tcp import _add_frames_header  # pyright: ignore[reportPrivateUsage]
from distributed.comm.utils import to_frames

from common.machine import challenge

# The standard library alone: `nobody` may not read the environment of the tests.
_ATTACK = """
import json, os, select, socket, sys, time
ports, messages = json.load(sys.stdin)
if os.getuid() == 0:
    import pwd
    other = pwd.getpwnam("nobody")
    os.setgroups([]), os.setgid(other.pw_gid), os.setuid(other.pw_uid)
open_sockets, answers = {}, []
for port in ports:
    for message in messages:
        connection = socket.socket()
        connection.connect(("127.0.0.1", port))
        connection.sendall(bytes.fromhex(message))
        open_sockets[connection] = [port, 0, False]
        answers.append(open_sockets[connection])
deadline = time.monotonic() + 2
while open_sockets and time.monotonic() < deadline:
    for connection in select.select(list(open_sockets), [], [], 0.1)[0]:
        try:
            received = connection.recv(65536)
        except ConnectionResetError:
            received = b""
        open_sockets[connection][1] += len(received)
        if not received:
            open_sockets.pop(connection)[2] = True
print(json.dumps(answers))
"""


class Answer(NamedTuple):
    """What a port has answered to one message."""

    port: int
    received_bytes: int
    closed: bool

    @property
    def refused(self) -> bool:
        """Whether the connection was closed after a challenge that this process cannot answer."""
        return self.closed and self.received_bytes <= 2 * challenge.BYTES


class _Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def attack(ports: Iterable[int], marker: Path) -> list[Answer]:
    """Send to each port what makes a Dask scheduler, nanny or worker run code, which makes the folder `marker`."""
    function = pickle.dumps(_Payload(marker))
    greeting = {"compression": None, "python": sys.version_info[:3], "pickle-protocol": 4}
    asked = {"function": function, "args": pickle.dumps(()), "kwargs": pickle.dumps({}), "wait": True, "reply": True}
    messages = [(_dask(greeting) + _dask(asked | {"op": op})).hex() for op in ("run", "run_function")]
    messages.append((b"\0" * 64 + function).hex())
    command = [sys.executable, "-I", "-S", "-c", _ATTACK]
    given = json.dumps([list(ports), messages])
    done = subprocess.run(command, input=given, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [Answer(*each) for each in json.loads(done.stdout)]


def listening(process: int) -> set[int]:
    """Ports of the loopback interface on which a process or one that it has started listens."""
    found: set[int] = set()
    for each in [psutil.Process(process), *psutil.Process(process).children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):  # a helper of the processes may have ended by now
            connections = each.net_connections("tcp")
            found |= {connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN}
    return found


def _dask(message: dict[str, Any]) -> bytes:
    frames, _, _ = _add_frames_header(asyncio.run(to_frames(message)))
    return b"".join(frames)

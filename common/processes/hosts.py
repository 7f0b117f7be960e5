"""Ranks on other machines: started there by ssh, watched from here, and ended with the connection.

`python -m common.processes.hosts` runs there. It starts one rank, reports its state, and ends it when the launcher falls
silent. The rank's own output comes back as it is. Only the two streams of ssh are open between the machines.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common.machine import machine
from common.machine.flight import Flight
from common.machine.heartbeat import Marks
from common.machine.private_folder import PrivateFolder
from common.processes.process_spec import COMPUTE_VARIABLES, RESERVED_VARIABLES, LocalProcess, ProcessSpec
from common.watching import watchdog
from common.watching.watchdog import Sample

SHELL_VARIABLE = "CONVTWINS_RSH"
"""Variable with the command that runs another on a host. `{host}` in it stands for the host's name."""
SHELL = "ssh -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3 {host}"
FOLDER = "{folder}"
"""Placeholder in a command for a temporary folder on the other machine."""

_FORWARDED = re.compile("(CONVTWINS|GLOO|NCCL|TF|TORCH|PYTHON)_?[A-Z0-9_]*|LANG|LC_ALL")
"""Variables of the environment that are passed to ranks on other machines, beside `COMPUTING`."""
_HEARTBEAT_SECONDS = 0.5
"""Seconds between two heartbeat messages, in both directions."""
_SILENCE_SECONDS = 4 * _HEARTBEAT_SECONDS
"""Seconds without a message after which the other machine counts as silent."""
SHUTDOWN_SECONDS = 5.0
"""Seconds that ranks on other machines get to end by themselves."""


class RemoteProcess:
    """A process of the run on another machine."""

    def __init__(self, member: ProcessSpec, hang_seconds: float) -> None:
        """Start the process.

        Args:
            member: the process. Its command may name FOLDER.
            hang_seconds: silence of this machine after which the other machine ends it.
        """
        assert member.host is not None
        self._host = member.host
        self._code: int | None = None
        self.connection_lost = False
        """Whether the connection ended before the exit code arrived."""
        self._line = b""
        self._last_sent = 0.0
        self._last_received = time.monotonic()
        self._requested_at = 0.0
        self._sample = Sample(Marks(), stopped=False, cpu_seconds=0.0)
        self._stacks: str | None = None
        self._flight: Flight | None = None
        shell = [word.replace("{host}", member.host) for word in shlex.split(os.environ.get(SHELL_VARIABLE, SHELL))]
        remote_command = ["env", f"PYTHONPATH={machine.PROJECT_ROOT}", sys.executable, "-P", "-m", "common.processes.hosts"]
        self._process = subprocess.Popen(
            [*shell, *map(shlex.quote, remote_command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
        forwarded = {name: value for name, value in os.environ.items() if _is_forwarded(name)}
        self._send(
            command=list(member.command),
            environment=forwarded | member.environment,
            files=member.files,
            folder=str(Path.cwd()),
            silence_seconds=hang_seconds,
        )
        self._answers = self._process.stdout
        assert self._answers is not None
        os.set_blocking(self._answers.fileno(), False)
        self.watched = self

    def poll(self) -> int | None:
        """Return the exit code, negative for the signal that ended it. None: it is running."""
        self._receive()
        if time.monotonic() - self._last_sent > _HEARTBEAT_SECONDS:
            self._send()
        if self._code is None and (code := self._process.poll()) is not None:
            self._receive()
            if self._code is None:  # nobody there has sent it
                self._code, self.connection_lost = code or 1, True
        return self._code

    def terminate(self) -> None:
        """Close the connection. The other machine then ends the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def kill(self) -> None:
        """End the connection at once, if it still exists."""
        self.terminate()
        self._process.kill()
        self._process.wait()

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for its end. Do not wait for a silent machine."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.0 if self._silent_seconds() else seconds)

    def sample(self) -> Sample | None:
        """Return its last sample. None: it has ended."""
        if self.poll() is not None:
            return None
        silent = self._silent_seconds()
        # What it wanted then is unknown now.
        return self._sample._replace(active=False, silent_seconds=silent) if silent else self._sample

    def marks(self) -> Marks:
        """Return the marks in its last sample."""
        return self._sample.marks

    def ask_for_stacks(self) -> None:
        """Request the stacks of its threads."""
        self._requested_at = time.monotonic()
        self._stacks = None
        if self._code is None:  # else the last one stays
            self._flight = None
        self._send(stacks=True)

    def stacks(self) -> str:
        """Return the requested stacks, or the reason why there are none."""
        deadline = self._requested_at + 2 * watchdog.STACKS_SECONDS
        while self._stacks is None and self.poll() is None and not self._silent_seconds() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self._stacks if self._stacks is not None else f"{self._host} did not answer: no stacks.\n"

    def flight(self) -> Flight | None:
        """Return its last exchanges with other ranks, as sent with its stacks or at its end. None: they did not arrive."""
        return self._flight

    def _silent_seconds(self) -> float:
        silent = time.monotonic() - self._last_received
        return silent if silent >= _SILENCE_SECONDS else 0.0

    def _send(self, **fields: Any) -> None:
        assert self._process.stdin is not None
        self._last_sent = time.monotonic()
        try:
            self._process.stdin.write(json.dumps(fields).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):  # it has ended, which `poll` will see
            pass

    def _receive(self) -> None:
        if self._answers is None or self._answers.closed:
            return
        while received := self._answers.read(65536):
            *lines, self._line = (self._line + received).split(b"\n")
            for line in lines:
                answer = _parse_answer(line)
                if answer is None:  # a greeting of the shell there
                    sys.stderr.write(line.decode(errors="replace") + "\n")
                    continue
                self._last_received = time.monotonic()
                if "sample" in answer:
                    marks, *rest = answer["sample"]
                    self._sample = Sample(Marks(*marks), *rest)
                self._stacks = answer.get("stacks", self._stacks)
                if answer.get("flight") is not None:
                    self._flight = Flight.from_json(answer["flight"])
                self._code = answer.get("code", self._code)


def _is_forwarded(name: str) -> bool:
    """Return whether remote ranks get a variable. Those that decide how a process computes must be equal in all ranks."""
    return any(pattern.fullmatch(name) for pattern in (_FORWARDED, COMPUTE_VARIABLES))


def main() -> int:
    """Run one rank for a launcher on another machine, as standard input says. Returns the exit code."""
    received = b""
    while b"\n" not in received:
        chunk = os.read(0, 65536)  # as `_supervise` reads, which would miss what is in a buffer
        if not chunk:
            return 1  # the launcher is gone
        received += chunk
    line, received = received.split(b"\n", 1)
    request = json.loads(line)
    for name in filter(RESERVED_VARIABLES.fullmatch, list(os.environ)):
        del os.environ[name]
    with PrivateFolder() as temporary:
        folder = str(temporary.path)
        for name, content in request["files"].items():
            (Path(folder) / name).write_text(content, encoding="utf-8")
        if Path(request["folder"]).is_dir():
            os.chdir(request["folder"])
        command = [word.replace(FOLDER, folder) for word in request["command"]]
        # What it prints is for people: standard output is the answers'.
        rank = LocalProcess(ProcessSpec("rank", command, request["environment"] | temporary.environment), stdout=sys.stderr)
        try:
            return _supervise(rank, request["silence_seconds"], received)
        finally:
            rank.kill()


def _supervise(rank: LocalProcess, silence_seconds: float, received: bytes) -> int:
    last_received = time.monotonic()
    while (code := rank.poll()) is None:
        *lines, received = received.split(b"\n")
        if any(json.loads(line).get("stacks") for line in lines):
            rank.watched.ask_for_stacks()
            _send_answer(stacks=rank.watched.stacks(), flight=rank.watched.flight())
        if (sample := rank.watched.sample()) is not None:
            _send_answer(sample=sample)
        readable, _, _ = select.select([0], [], [], _HEARTBEAT_SECONDS)
        if readable:
            chunk = os.read(0, 65536)
            if not chunk:
                return 1  # the launcher is gone
            last_received = time.monotonic()
            received += chunk
        elif time.monotonic() - last_received > silence_seconds:
            return 1
    _send_answer(code=code, flight=rank.watched.flight())
    return 0 if code == 0 else 1


def _parse_answer(line: bytes) -> dict[str, Any] | None:
    """Parse a line that `_send_answer` wrote on the other machine. None: another line."""
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _send_answer(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

"""A process on this machine that answers requests until it is closed; see `common.processes.serving`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.watching import watchdog
from compare.running import launch
from compare.running.contestants import Contestant

ENDED = "ended"
"""Event that reports that a server has ended. Its field `reason` says how."""

Listener = Callable[[dict[str, Any]], None]
"""Called with every event of a server, from a thread of its own."""


class LocalServer:
    """A server on this machine.

    Args:
        log: receives its stderr.
        listener: called with its events, and finally with ENDED.
        hang_seconds: after this time, a server that hangs is ended.
    """

    def __init__(self, framework: str, arguments: list[str], log: Path, listener: Listener, hang_seconds: float) -> None:
        self._hang_seconds = hang_seconds
        self._log = log
        self._hang: str | None = None
        self._kills = launch.memory_kills()
        self._process = launch.start(Contestant.plain(framework), arguments, log=log, with_pipes=True)
        self.expect()
        threading.Thread(target=self._listen, args=(listener,), daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        """Send the server a request. If the server has ended, ENDED arrives instead of an answer."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # `_listen` reports its end
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def expect(self) -> None:
        """Start the watchdog: the server has work from now on."""
        member = watchdog.WatchTarget("the process", self._process.watched)
        self._dog = watchdog.Watchdog([member], self._hang_seconds)

    def look(self) -> None:
        """Check the watchdog. Call this often while the server has work. A server that hangs is ended."""
        if self._hang is None and (hang := self._dog.check()) is not None:
            (path,) = watchdog.save_stacks(hang.stacks, [self._log.stem], self._log.parent)
            self._hang = f"{hang.message}; see {path.name}"
            launch.stop(self._process, grace_seconds=0.0)

    def close(self) -> None:
        """End the server."""
        launch.stop(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # of unsent data
                    pipe.close()

    def _listen(self, listener: Listener) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):  # an incomplete line, or a pipe that was closed meanwhile
            for line in self._process.stdout:
                listener(json.loads(line))
        code = self._process.wait()
        lacked_memory = launch.memory_kills() > self._kills
        listener({"event": ENDED, "reason": self._hang or launch.describe_ending(code, self._log, lacked_memory)})

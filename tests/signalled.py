"""A real signal at the worst moment: a process has been started, and nobody has a note of it yet."""

import os
import signal
import subprocess
from typing import Any

import pytest


def signalled_at_start(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> list[int]:
    """Let the next process that this one starts be followed by a signal to this one. Returns the list that gets its id."""
    started = list[int]()
    start = subprocess.Popen._execute_child  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]

    def signalled(process: Any, *arguments: Any) -> None:
        start(process, *arguments)
        if not started:
            started.append(process.pid)
            os.kill(os.getpid(), number)

    monkeypatch.setattr(subprocess.Popen, "_execute_child", signalled)
    return started

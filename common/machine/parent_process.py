"""Processes that end with their parent, so that a launcher that is killed leaves none behind. Linux alone can do that."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1

# This asks the kernel to end the process with its parent (PR_SET_PDEATHSIG, Linux), then becomes the command. A setting made
# between fork and exec would need preexec_fn, which can deadlock in a threaded parent; this one survives the exec.
_TIED_TO_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]): sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def tied_to_parent(command: Sequence[str], python: str = sys.executable) -> list[str]:
    """Return a command whose process ends with this one from its first instruction on, where the system can do that.

    Args:
        command: program and arguments.
        python: interpreter of the few lines that tie the process, and then become the command.
    """
    if sys.platform != "linux":
        return list(command)
    return [python, "-I", "-S", "-c", _TIED_TO_PARENT, str(os.getpid()), *command]


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent is gone, so that a kill leaves no orphan.

    This is for a rank that another program starts, `torchrun` for example. See `tied_to_parent` for others.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    # Not SIGTERM: TensorFlow takes that over once its processes have met, and then only makes a note of it.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended in between
        sys.exit(128 + signal.SIGTERM)

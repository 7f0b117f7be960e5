"""Python stacks of other processes, by py-spy. It reads their memory and does not pause them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import psutil

_SECONDS = 10.0
"""py-spy takes milliseconds, and seconds in a process with very many frames on a busy machine."""
_RANK_NAMES = ("rank", "local_rank", "global_rank", "proc_id")
"""Of a variable in an outer frame."""
_SPAWNED = ("_wrap", "i")
"""The function of torch.multiprocessing.spawn that calls the user's, and its variable with the number of the process."""
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
"""Which processes may read which. Missing: those of one user may read each other."""
INSTALL = f"{sys.executable} -m pip install py-spy"


class Frame(NamedTuple):
    function: str
    file: str
    line: int


class Stack(NamedTuple):
    """What a thread that Python knows is doing."""

    thread: int
    """The operating system's number."""
    name: str
    frames: list[Frame]
    """The innermost first."""


class Dump(NamedTuple):
    """The stacks of one process."""

    stacks: list[Stack]
    """The main thread first. Empty if `missing`."""
    missing: str = ""
    """Why there are none, and what to do."""
    rank: int | None = None
    """That its variables say."""


def dump(pid: int) -> Dump:
    """The stacks of a process, as they are now."""
    spy = program()
    if spy is None:
        return Dump([], f"py-spy is not installed. Run: {INSTALL}")
    command = [spy, "dump", "--pid", str(pid), "--json", "--nonblocking", "--locals"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Dump([], f"py-spy did not answer in {_SECONDS:g} s")
    except OSError as error:
        return Dump([], f"py-spy cannot be started ({error.strerror})")
    try:
        threads = json.loads(done.stdout) if done.returncode == 0 else None
    except ValueError:
        threads = None
    if not threads:
        return Dump([], _why_not(pid, done.stderr.decode(errors="replace")))
    found = [
        Stack(
            each["os_thread_id"] or 0,
            each["thread_name"] or "",
            [Frame(frame["name"], frame["filename"], frame["line"]) for frame in each["frames"]],
        )
        for each in threads
    ]
    return Dump(
        sorted(found, key=lambda stack: stack.thread != pid),
        rank=rank_in([each for each in threads if each["os_thread_id"] == pid]),
    )


def program() -> str | None:
    """py-spy of this environment, else of PATH."""
    return shutil.which("py-spy", path=Path(sys.executable).parent) or shutil.which("py-spy")


def rank_in(threads: list[dict[str, Any]]) -> int | None:
    """The number in a variable that is called so. The outermost frame decides."""
    for thread in threads:
        for frame in reversed(thread["frames"]):
            function = frame["name"].rpartition(".")[2]
            for local in frame["locals"] or ():
                if local["name"] in _RANK_NAMES or (function, local["name"]) == _SPAWNED:
                    value = local["repr"] or ""
                    if value.isdecimal():
                        return int(value)
    return None


def _why_not(pid: int, error: str) -> str:
    """What keeps py-spy from reading a process, and what to do."""
    try:
        process = psutil.Process(pid)
        owner, status = process.username(), process.status()
    except psutil.NoSuchProcess:
        return "it has ended"
    if status == psutil.STATUS_ZOMBIE:
        return "it has ended"
    if "permission" in error.lower() or "not permitted" in error.lower():
        return _refused(process, owner)
    first = next(iter(error.strip().splitlines()), "no message").removeprefix("Error: ")
    if "python" in first.lower() and ("find" in first.lower() or "version" in first.lower()):
        return f"it is no Python program that py-spy knows ({first})"
    return f"py-spy says: {first}"


def _refused(process: psutil.Process, owner: str) -> str:
    if os.geteuid() and process.uids().real != os.getuid():
        return f"it belongs to {owner}. Run the command as {'' if owner == 'root' else f'{owner} or '}root"
    try:
        scope = YAMA.read_text(encoding="ascii").strip()
    except OSError:
        scope = "0"
    if scope == "3":
        return "kernel.yama.ptrace_scope is 3: nobody may read another process until the machine is started again"
    if scope == "2" and os.geteuid():
        return "kernel.yama.ptrace_scope is 2: only root may read another process. Run the command as root"
    if scope == "1" and os.geteuid():
        allow = "sudo sysctl kernel.yama.ptrace_scope=0"
        return f"kernel.yama.ptrace_scope is 1: only a parent may read a process. Run the command as root, or: {allow}"
    return (
        "ptrace is refused. In a container, start it with --cap-add SYS_PTRACE, or run the command on its host as root. "
        "A process may also have forbidden it (prctl PR_SET_DUMPABLE)"
    )

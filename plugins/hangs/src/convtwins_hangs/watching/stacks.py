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

from common.machine import footprint

_TIMEOUT_SECONDS = 10.0
"""Timeout of py-spy. It takes milliseconds, or seconds for very many frames on a busy machine."""
_RANK_NAMES = ("rank", "local_rank", "global_rank", "proc_id")
"""Names of local variables that hold a rank."""
_SPAWN_LOCAL = ("_wrap", "i")
"""(function, local variable) of torch.multiprocessing.spawn with the number of the process."""
_NOBODY_ID = 65534
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
"""File with the kernel's ptrace scope. Missing: processes of one user may read each other."""
INSTALL_COMMAND = f"{sys.executable} -m pip install py-spy"


class StackFrame(NamedTuple):
    function: str
    file: str
    line: int


class ThreadStack(NamedTuple):
    """Stack of a Python thread."""

    thread: int
    """Thread id of the operating system."""
    name: str
    frames: list[StackFrame]
    """Frames, the innermost first."""


class SourceReader(NamedTuple):
    """User and groups with whose rights root reads a process's source files: the process may name any file."""

    user: int
    group: int
    groups: tuple[int, ...]
    root: str
    """Root directory of the process, as a path in this mount namespace."""


class StackDump(NamedTuple):
    """Stacks of one process."""

    stacks: list[ThreadStack]
    """Stacks of its threads, the main thread first. Empty if `missing`."""
    missing: str = ""
    """Reason why there are no stacks, and what to do."""
    rank: int | None = None
    """Rank found in its local variables. None: there is none."""
    is_python: bool = True
    """Whether it is a Python program."""
    reader: SourceReader | None = None
    """Rights to read its source files with. None: those of this process."""


def dump(pid: int, py_spy: str | None = None) -> StackDump:
    """Take the current stacks of a process. `py_spy` is the program that reads them. None: `py_spy_path`."""
    py_spy = py_spy or py_spy_path()
    if py_spy is None:
        return StackDump([], f"py-spy is not installed. Run: {INSTALL_COMMAND}")
    command = [py_spy, "dump", "--pid", str(pid), "--json", "--nonblocking", "--locals"]
    try:
        completed = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return StackDump([], f"py-spy did not answer in {_TIMEOUT_SECONDS:g} s")
    except OSError as error:
        return StackDump([], f"py-spy cannot be started ({error.strerror})")
    try:
        threads = json.loads(completed.stdout) if completed.returncode == 0 else None
    except ValueError:
        threads = None
    if not threads:
        error = completed.stderr.decode(errors="replace")
        return StackDump([], _failure_reason(pid, error), is_python=not _is_other_program(error))
    thread_numbers = _thread_numbers(pid)
    for thread in threads:
        thread["os_thread_id"] = thread_numbers.get(thread["os_thread_id"], thread["os_thread_id"])
    stacks = [
        ThreadStack(
            thread["os_thread_id"] or 0,
            thread["thread_name"] or "",
            [StackFrame(frame["name"], frame["filename"], frame["line"]) for frame in thread["frames"]],
        )
        for thread in threads
    ]
    return StackDump(
        sorted(stacks, key=lambda stack: stack.thread != pid),
        rank=rank_in_locals([thread for thread in threads if thread["os_thread_id"] == pid]),
        reader=source_reader(pid),
    )


def py_spy_path() -> str | None:
    """Return the path of py-spy in this environment, else on PATH. None: not installed."""
    return shutil.which("py-spy", path=Path(sys.executable).parent) or shutil.which("py-spy")


def source_reader(pid: int) -> SourceReader | None:
    """Return the rights to read a process's source files with. None: those of this process."""
    if os.geteuid():
        return None
    status = footprint.status(pid)
    users, groups, more = (tuple(map(int, status.get(name, "").split())) for name in ("Uid", "Gid", "Groups"))
    try:
        root = "/" if os.path.samefile(f"/proc/{pid}/root", "/") else f"/proc/{pid}/root"  # noqa: PTH121  a link of the kernel
    except OSError:
        users, root = (), "/"
    user = next(filter(None, users), 0)
    if users and not user and root == "/":
        return None
    # Root in a container is not root here, though it has the same number.
    return SourceReader(user, groups[1], more, root) if user else SourceReader(_NOBODY_ID, _NOBODY_ID, (), root)


def _thread_numbers(pid: int) -> dict[int, int]:
    """Return thread ids by their ids in the process's PID namespace. Empty: it has no namespace of its own."""
    if len(footprint.status(pid).get("NSpid", "").split()) < 2:
        return {}
    try:
        names = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  names alone
    except OSError:  # it has ended meanwhile
        return {}
    statuses = {int(name): footprint.status(pid, int(name)) for name in names}
    return {int(status["NSpid"].split()[-1]): thread_number for thread_number, status in statuses.items() if "NSpid" in status}


def rank_in_locals(threads: list[dict[str, Any]]) -> int | None:
    """Return the rank in a local variable of that name. The outermost frame has precedence."""
    for thread in threads:
        for frame in reversed(thread["frames"]):
            function = frame["name"].rpartition(".")[2]
            for local in frame["locals"] or ():
                if local["name"] in _RANK_NAMES or (function, local["name"]) == _SPAWN_LOCAL:
                    value = local["repr"] or ""
                    if value.isdecimal():
                        return int(value)
    return None


def _failure_reason(pid: int, error: str) -> str:
    """Return why py-spy cannot read a process, and what to do."""
    try:
        process = psutil.Process(pid)
        owner, status = process.username(), process.status()
    except psutil.NoSuchProcess:
        return "it has ended"
    if status == psutil.STATUS_ZOMBIE:
        return "it has ended"
    if "permission" in error.lower() or "not permitted" in error.lower():
        return _refusal_reason(process, owner)
    first = _first_line(error)
    return f"it is no Python program that py-spy knows ({first})" if _is_other_program(error) else f"py-spy says: {first}"


def _is_other_program(error: str) -> bool:
    first = _first_line(error).lower()
    return "python" in first and ("find" in first or "version" in first)


def _first_line(error: str) -> str:
    return next(iter(error.strip().splitlines()), "no message").removeprefix("Error: ")


def _refusal_reason(process: psutil.Process, owner: str) -> str:
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

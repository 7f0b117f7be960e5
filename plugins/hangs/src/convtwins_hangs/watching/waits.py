"""Classification of a thread's wait by its stack, its source and the kernel function that it sleeps in."""

from __future__ import annotations

import ast
import os
import re
import stat
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from common.machine import plain_file
from common.watching.phrases import Phrase
from convtwins_hangs.watching.stacks import SourceReader, StackFrame

EXCHANGE, MESSAGE, LOCK, POLL, SLEEP, FILE, CALL, INSIDE, TASK, WORK = (
    *("exchange", "message", "lock", "poll", "sleep", "file", "call", "inside", "task", "work"),
)
"""Kinds of waits:

- `exchange`: for other ranks
- `message`: for a socket, a pipe, or a queue or lock between processes
- `lock`
- `poll`: it asks again and again in a loop
- `sleep`
- `file`: for a file system
- `call`: in something in C that Python does not show
- `inside`: for another thread or process of the same rank (a queue, an event, a join)
- `task`: an idle worker, as it should be
- `work`: it does not wait
"""
PEER_WAITS = (EXCHANGE, MESSAGE)
"""Kinds of waits for other ranks."""
SELF_ENDING_WAITS = (SLEEP, FILE)
"""Kinds of waits that end without another rank or thread."""


class Wait(NamedTuple):
    """Classified wait of a thread."""

    kind: str
    description: Phrase
    """Words such as `waits in all_reduce`."""
    location: str
    """Innermost line of user code, as `in step (train.py:30: loss.backward())`."""
    loop: tuple[str, int] | None = None
    """File and line of the polling loop. None: there is none."""

    @property
    def words(self) -> Phrase:
        return self.description.followed_by(f" {self.location}" if self.location else "")


_TENSORFLOW = "a call of TensorFlow"
IN_TENSORFLOW = Phrase("wait", f"in {_TENSORFLOW}")
"""Text of a wait in TensorFlow. Its threads may exchange or compute meanwhile: the stack is the same."""
TENSORFLOW_COMPUTE_THREADS = re.compile(r"tf_(?!data)")
"""Names of TensorFlow's compute threads. Its communication threads and those of tf.data have other names."""
_CALLS = tuple(
    (kind, re.compile(file), re.compile(function), name)
    for kind, file, function, name in (
        # The first row that a frame matches counts.
        (TASK, r"/concurrent/futures/(thread|process)\.py$|/multiprocessing/pool\.py$", r"_?worker$", ""),
        (TASK, r"/(socket|socketserver|multiprocessing/connection)\.py$", r"(accept|serve_forever)$", ""),
        (TASK, r"/torch/utils/data/_utils/(worker|pin_memory)\.py$", r"", ""),
        (TASK, r"/tensorflow/python/training/server_lib\.py$", r"join$", ""),
        (INSIDE, r"/torch/utils/data/", r"", "the next batch of its DataLoader"),
        (INSIDE, r"/tensorflow/python/data/", r"", "the next batch of tf.data"),
        (INSIDE, r"/torch/distributed/(elastic|launcher|run\.py)|/torch/multiprocessing/", r"", "its processes"),
        (EXCHANGE, r"/torch/(distributed|nn/parallel|autograd)/|/torch/_tensor\.py$|/horovod/", r"", ""),
        (EXCHANGE, r"/tensorflow/python/(eager|distribute|framework|util)/", r"", _TENSORFLOW),
        (INSIDE, r"/(queue|concurrent/futures/_base|subprocess)\.py$", r"", ""),
        (MESSAGE, r"/multiprocessing/queues\.py$", r"", ""),
        (MESSAGE, r"/multiprocessing/synchronize\.py$", r"(__enter__|acquire)$", "a lock between processes"),
        (INSIDE, r"/multiprocessing/(process|popen_\w+)\.py$", r"", ""),
        (LOCK, r"/threading\.py$", r"(__enter__|acquire)$", ""),
        (
            INSIDE,
            r"/(threading|multiprocessing/synchronize)\.py$",
            r"(wait|wait_for|join|_shutdown|_wait|_enter\w*|_wait_for_\w+)$",
            "",
        ),
        (MESSAGE, r"/(socket|ssl|select|selectors|multiprocessing/connection|http/client|asyncio/\w+)\.py$", r"", ""),
    )
)
_AUTOGRAD = re.compile(r"/torch/(autograd/|_tensor\.py$)")
_WRAPPERS = re.compile(r"^(wrapper|inner|_wrapped|__call__|__next__|_call_impl|_wrapped_call_impl|<lambda>)$")
"""Functions whose names are not informative."""
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3[^/]*/|^<")
_KERNEL = (
    (re.compile(r"futex"), "futex"),
    (re.compile(r"nanosleep"), SLEEP),
    (re.compile(r"do_wait|wait4|waitid|pidfd"), INSIDE),
    (re.compile(r"fuse|request_wait|nfs|rpc_|io_schedule|folio|filemap|ext4|xfs|btrfs|jbd2"), FILE),
    (re.compile(r"poll|select|wait_woken|sk_wait|unix_|inet|tcp_|skb_|sock|pipe"), MESSAGE),
)
_COLLECTIVES = re.compile(
    r"\.((?:all_?)?reduce|all_?gather|all_?to_?all|b(?:road)?cast|barrier|gather|scatter|wait)\w*\(", re.IGNORECASE
)
"""Collectives called in a user's line without Python frames of their own: by mpi4py, or `wait` of an asynchronous one."""
_MAX_SOURCE_BYTES = 2**22
"""Maximum size of a source file."""
_READ_TIMEOUT_SECONDS = 2.0
"""Timeout of reading a source file as another user."""
_POLLING_CALLS = frozenset(
    {"sleep", "is_set", "poll", "acquire", "release", "locked", "empty", "full", "qsize", "get_nowait", "put_nowait"}
    | {"exists", "is_file", "isfile", "is_alive", "done", "is_completed", "ready", "test", "monotonic", "time", "perf_counter"}
)
"""Calls that a polling loop may make."""


def classify_wait(frames: Sequence[StackFrame], blocked_in: str, reader: SourceReader | None = None) -> Wait:
    """Classify what a thread waits in.

    Args:
        frames: the thread's stack, the innermost frame first.
        blocked_in: the kernel function that it sleeps in; empty where that is unknown, or where it runs.
        reader: rights to read its source files with. None: those of this process.
    """
    user_frame = next((frame for frame in frames if not is_library(frame)), None)
    frame = user_frame or next(iter(frames), None)
    location = _location_text(frame, reader) if frame is not None else ""
    line = (
        _source(user_frame, reader) if user_frame is not None and user_frame == frames[0] else ""
    )  # it calls what Python does not show
    loop = _polling_loop(user_frame.file, user_frame.line, reader) if user_frame is not None else None
    kind, name = _waiting_call(frames)
    if kind == EXCHANGE and not blocked_in and (name == _TENSORFLOW or _AUTOGRAD.search(frames[0].file)):
        return Wait(WORK, Phrase("compute"), location)  # both compute there as well
    if kind in (EXCHANGE, TASK):
        return Wait(kind, Phrase("wait", f"in {name}" if kind == EXCHANGE else "for tasks"), location)
    if match := _COLLECTIVES.search(line):
        return Wait(EXCHANGE, Phrase("wait", f"in {match[1]}"), location)
    if loop is not None:
        return Wait(POLL, Phrase("ask", "again and again"), location, loop)
    if kind:
        what = "for a lock" if kind == LOCK else f"{'for' if ' ' in name else 'in'} {name}"
        return Wait(kind, Phrase("wait", what), location)
    return _without_frames(blocked_in, line, location)


def is_library(frame: StackFrame) -> bool:
    """Return whether a frame's file belongs to Python or to an installed package."""
    return _LIBRARY.search(frame.file) is not None


def _without_frames(blocked_in: str, line: str, location: str) -> Wait:
    """Classify the wait of a thread whose innermost frame called a C function."""
    kind = next((kind for pattern, kind in _KERNEL if pattern.search(blocked_in)), "")
    if kind == SLEEP or (kind and re.search(r"\bsleep\(", line)):
        return Wait(SLEEP, Phrase("sleep"), location)
    if kind == "futex":
        is_lock = re.search(r"^\s*(async )?with\b|\bacquire\(", line)
        kind, what = (LOCK, "for a lock") if is_lock else (CALL, "in a call")
        return Wait(kind, Phrase("wait", what), location)
    if kind == INSIDE:
        return Wait(INSIDE, Phrase("wait", "for its processes", "for their processes"), location)
    if kind == FILE:
        return Wait(FILE, Phrase("wait", "for a file system"), location)
    if kind == MESSAGE:
        return Wait(MESSAGE, Phrase("wait", "for a socket or pipe"), location)
    return Wait(CALL, Phrase("wait", "in a call"), location) if blocked_in else Wait(WORK, Phrase("compute"), location)


def _waiting_call(frames: Sequence[StackFrame]) -> tuple[str, str]:
    """Return (kind, name) of the outermost of the innermost waiting frames, e.g. (`inside`, `Queue.get`). Empty: none waits."""
    kind = name = ""
    for frame in frames:
        row = next((row for row in _CALLS if row[1].search(frame.file) and row[2].search(frame.function)), None)
        if row is None:
            break
        kind = row[0]
        if row[3]:
            name = row[3]
        elif not _WRAPPERS.match(last := frame.function.rpartition(".")[2]):
            name = last if kind == EXCHANGE else _short_name(frame.function)
    return kind, name


def _location_text(frame: StackFrame, reader: SourceReader | None) -> str:
    text = _source(frame, reader)
    suffix = f": {text if len(text) <= 60 else text[:59] + '…'}" if text else ""
    return f"in {_short_name(frame.function)} ({Path(frame.file).name}:{frame.line}{suffix})"


def _short_name(function: str) -> str:
    """Return a function's name without its enclosing functions."""
    return function.rpartition("<locals>.")[2]


def _source(frame: StackFrame, reader: SourceReader | None) -> str:
    lines = _lines(frame.file, reader)
    return lines[frame.line - 1].strip() if 0 < frame.line <= len(lines) else ""


@lru_cache(maxsize=256)
def _lines(file: str, reader: SourceReader | None) -> list[str]:
    """Return the lines of a source file. Empty: no plain file of a usual size. The name comes from another process.

    Files of the kernel, such as /proc/kmsg, say that they are plain and empty. Reading them may take what is there, or wait.
    """
    relative = file.lstrip("/")
    try:
        # Not opened before that: opening a device may have effects.
        status = os.stat(file if reader is None else os.path.join(reader.root, relative))  # noqa: PTH116, PTH118  as above: may be any text
        if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size < _MAX_SOURCE_BYTES:
            return []
        if reader is None:
            text = plain_file.read(file, _MAX_SOURCE_BYTES)
        else:
            text = subprocess.run(
                ["head", "-c", str(_MAX_SOURCE_BYTES), f"./{relative}"],
                cwd=reader.root,
                user=reader.user,
                group=reader.group,
                extra_groups=reader.groups,
                capture_output=True,
                timeout=_READ_TIMEOUT_SECONDS,
                check=False,
            ).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return text.decode("utf-8", "replace").splitlines()


@lru_cache(maxsize=256)
def _polling_loop(file: str, line: int, reader: SourceReader | None) -> tuple[str, int] | None:
    """Return file and first line of the innermost `while` around a line if it only polls and waits."""
    try:
        tree = ast.parse("\n".join(_lines(file, reader)))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    loops = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.While) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    if not loops:
        return None
    loop = max(loops, key=lambda node: node.lineno)
    nodes = [node for part in (loop.test, *loop.body) for node in ast.walk(part)]
    only_polls = all(_call_name(node) in _POLLING_CALLS for node in nodes if isinstance(node, ast.Call))
    makes_progress = any(isinstance(node, ast.AugAssign | ast.For | ast.Yield | ast.Await) for node in nodes)
    return (file, loop.lineno) if only_polls and not makes_progress else None


def _call_name(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""

"""Run the programs of the corpus, and keep what was seen: `python -m plugins.hangs.tests.corpus.confirm`.

What was seen before of the same text is not run again. Threads run in one forked process, ranks in two that use gloo. A process
that has imported torch once forks for each program. It has no threads then, so that is safe.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import runpy
import signal
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plugins.hangs.tests.corpus import generator
from plugins.hangs.tests.corpus.generator import Program

SEEN_FILE = Path(__file__).parent / "seen.json"
LIMIT_SECONDS = {"threads": 4.0, "ranks": 12.0}
"""A program that has not ended by then hangs. One that ends takes less than a tenth of a second, or one second."""
AT_ONCE = {"threads": 4, "ranks": 3}
RANKS = 2
ENDS, HANGS, FAILS, WRONG = "ends", "hangs", "fails", "prints something else"


@dataclass
class _Running:
    program: Program
    processes: dict[int, int | None]
    """Process: its exit code, None while it runs."""
    output: Path
    until: float = field(default=0.0)


def seen() -> dict[str, list[str]]:
    """Program: [digest of its text, what was seen]."""
    return json.loads(SEEN_FILE.read_text()) if SEEN_FILE.exists() else {}


def is_confirmed(program: Program, found: dict[str, list[str]]) -> bool:
    """Whether this text was run, and did what the generator says of it."""
    digest, outcome = found.get(program.name, ["", ""])
    return digest == program.digest and bool(outcome) and (outcome != ENDS) == program.planted


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the programs of the corpus, and keep what was seen.")
    parser.add_argument("--runs", choices=("threads", "ranks"), action="append", help="only these")
    for runs in parser.parse_args().runs or ("threads", "ranks"):
        found = seen()
        waiting = [each for each in generator.programs() if each.runs == runs and not is_confirmed(each, found)]
        if waiting:
            _run(waiting, runs, found)
    found = seen()
    refuted = [each.name for each in generator.programs() if not is_confirmed(each, found)]
    print(f"{len(generator.programs()) - len(refuted)} confirmed; not confirmed: {', '.join(refuted) or 'none'}")
    return bool(refuted)


def _run(waiting: list[Program], runs: str, found: dict[str, list[str]]) -> None:
    if runs == "ranks":
        import torch
        import torch._dynamo  # by DistributedDataParallel: it takes seconds, which a program would seem to hang
        import torch.distributed
        import torch.nn.parallel
        import torch.utils.data

        torch.set_num_threads(1)
    running: list[_Running] = []
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < AT_ONCE[runs]:
                running.append(_started(waiting.pop(0), Path(folder)))
            for each in list(running):
                if (outcome := _outcome(each)) is not None:
                    running.remove(each)
                    found[each.program.name] = [each.program.digest, outcome]
                    print(f"{each.program.name}: {'planted' if each.program.planted else 'correct'}, {outcome}", flush=True)
                    current = {one.name for one in generator.programs()}
                    kept = {name: found[name] for name in sorted(found) if name in current}
                    SEEN_FILE.write_text(json.dumps(kept, indent=0) + "\n")
            time.sleep(0.02)


def _started(program: Program, folder: Path) -> _Running:
    path = folder / f"{program.name}.py"
    path.write_text(program.text)
    output = path.with_suffix(".txt")
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes: dict[int, int | None] = {}
    for rank in range(RANKS if program.runs == "ranks" else 1):
        child = os.fork()
        if not child:
            _child(program, path, output.with_suffix(f".{rank}"), rank, port)
        processes[child] = None
    return _Running(program, processes, output, time.monotonic() + LIMIT_SECONDS[program.runs])


def _child(program: Program, path: Path, output: Path, rank: int, port: int) -> None:
    os.setsid()
    code = 1
    try:
        target = os.open(output, os.O_CREAT | os.O_WRONLY)
        os.dup2(target, 1)
        os.dup2(target, 2)
        values = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in values.items()})
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        _force(program.forced, str(path), rank)
        runpy.run_path(str(path), run_name="__main__")
        threading._shutdown()  # waits for all threads, as the interpreter does before it ends
        code = 0
    except BaseException as error:
        print(type(error).__name__, error)
    finally:
        sys.stdout.flush()
        os._exit(code)


def _force(how: str, path: str, rank: int) -> None:
    """Make the schedule happen that shows the bug. A correct program ends under it too."""
    if how == "slow locks":
        make = threading.Lock

        class Slow:
            def __init__(self) -> None:
                self._lock = make()

            def acquire(self, *words: Any, **values: Any) -> bool:
                taken = self._lock.acquire(*words, **values)
                if sys._getframe(1).f_code.co_filename == path:  # not those of the standard library
                    time.sleep(0.03)
                return taken

            def __enter__(self) -> bool:
                taken = self._lock.acquire()
                if sys._getframe(1).f_code.co_filename == path:
                    time.sleep(0.03)
                return taken

            def __exit__(self, *_: object) -> None:
                self._lock.release()

            def __getattr__(self, name: str) -> Any:
                return getattr(self._lock, name)

        threading.Lock = Slow
    elif how == "slow starts":
        before = threading.Thread.run

        def run(thread: threading.Thread) -> None:
            time.sleep(0.1)
            before(thread)

        threading.Thread.run = run
    elif how == "slow gets":
        before_get = queue.Queue.get

        def get(own: Any, *words: Any, **values: Any) -> Any:
            item = before_get(own, *words, **values)
            time.sleep(0.02)
            return item

        queue.Queue.get = get
    elif how == "switch between instructions":

        def trace(frame: Any, event: str, _: object) -> Any:
            if frame.f_code.co_filename != path:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                time.sleep(1e-5)
            return trace

        threading.settrace(trace)
    elif how == "delay by rank and thread":
        import torch.distributed

        before_all_reduce = torch.distributed.all_reduce

        def all_reduce(*words: Any, **values: Any) -> Any:
            if (threading.current_thread() is threading.main_thread()) == (rank == 0):
                time.sleep(0.5)
            return before_all_reduce(*words, **values)

        torch.distributed.all_reduce = all_reduce


def _outcome(running: _Running) -> str | None:
    for process, code in running.processes.items():
        if code is None:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                running.processes[process] = os.waitstatus_to_exitcode(status)
    left = [process for process, code in running.processes.items() if code is None]
    if left and time.monotonic() < running.until:
        return None
    for process in running.processes:
        with contextlib.suppress(ProcessLookupError):  # with what it has forked itself
            os.killpg(process, signal.SIGKILL)
    for process in left:
        os.waitpid(process, 0)
    if left:
        return HANGS
    if any(running.processes.values()):
        return FAILS
    printed = running.output.with_suffix(".0").read_text().splitlines()
    return WRONG if running.program.expects and running.program.expects not in printed else ENDS


if __name__ == "__main__":
    sys.exit(main())

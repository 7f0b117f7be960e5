"""Fake twins start as forks of this process, which has imported already what they import.

Nine tenths of what a fake run costs is its imports, and the tests start about a thousand of them. Whatever else starts, a real
twin among it, is a process as always. So is a fake twin of a command that is itself a process.
"""

import ctypes
import gc
import os
import runpy
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import pytest

from common.machine.parent_process import tied_to_parent
from compare.running import launch

FORKED = frozenset(
    f"tests.compare.twins.{name}"
    for name in (
        *("left", "right", "as_pytorch", "as_tensorflow", "scan_left", "scan_right", "learner_left", "learner_right"),
        "fake_comparison",
    )
)
_DIE_WITH_PARENT, _NAME = 1, 15
"""PR_SET_PDEATHSIG and PR_SET_NAME."""


class Suite(subprocess.Popen[str]):
    """As `launch.start_suite_module` starts a module."""

    def __init__(self, module: str) -> None:
        command, pipe = tied_to_parent([sys.executable, "-m", module]), subprocess.PIPE
        super().__init__(command, env=launch._environment(), stdin=pipe, stdout=pipe, text=True)


def install(patch: pytest.MonkeyPatch) -> None:
    """Let `launch` fork the modules of FORKED."""
    if sys.platform != "linux":
        return

    def execute_child(self: Any, args: Sequence[str], executable: Any, preexec: Any, *others: Any) -> None:
        module = args[args.index("-m") + 1] if "-m" in args else ""
        if module in FORKED:
            words, parent = list(args[args.index("-m") + 2 :]), os.getpid()
            _, kept, _, environment = others[:4]

            def preexec() -> NoReturn:
                _become(module, words, kept, environment, parent)

        with warnings.catch_warnings():
            # Python 3.12 warns of threads: those of pytest-xdist hold nothing that a fake twin needs.
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            cast(Any, subprocess.Popen)._execute_child(self, args, executable, preexec, *others)

    for started in (launch.StartedProcess, launch._CapturedProcess, Suite):
        patch.setattr(started, "_execute_child", execute_child, raising=False)


def _become(module: str, words: list[str], kept: Sequence[int], environment: Mapping[str, str], parent: int) -> NoReturn:
    """Do what `python -m module words` would do, in this fork. Its streams, folder and session are set already.

    What the test has patched is patched here too.
    """
    code = 1
    try:
        gc.freeze()  # the parent's objects stay shared
        control = ctypes.CDLL(None).prctl
        control(_DIE_WITH_PARENT, signal.SIGKILL)
        control(_NAME, module.rpartition(".")[2].encode())  # its command line stays that of pytest
        if os.getppid() != parent:
            os._exit(1)
        lowest = 3
        for descriptor in (*sorted(kept), os.sysconf("SC_OPEN_MAX")):
            os.closerange(lowest, descriptor)
            lowest = descriptor + 1
        os.environ.clear()
        os.environ.update(environment)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)  # as Python does when it starts
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # They stay open where those of a fork that forks are thrown away.
        streams = (os.fdopen(number, mode, closefd=False) for number, mode in enumerate("rww"))
        sys.stdin, sys.stdout, sys.stderr = streams
        warnings.resetwarnings()  # pytest makes errors of them
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)
        sys.argv = [module, *words]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

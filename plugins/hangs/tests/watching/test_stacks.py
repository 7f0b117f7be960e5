"""Python stacks of other processes, and what is said where the system refuses them."""

import os
import re
from pathlib import Path

import psutil
import pytest
from syrupy.assertion import SnapshotAssertion

from common.machine import machine
from convtwins_hangs.watching import stacks
from plugins.hangs.tests.watching.jobs import started
from tests.support import processes

WAITS = """
    import threading
    def take(lock):
        print("ready")
        with lock:
            pass
    lock = threading.Lock()
    lock.acquire()
    take(lock)
"""


def test_the_stacks_of_a_process_name_its_lines(tmp_path: Path) -> None:
    with started(WAITS, tmp_path) as pid:
        (stack,) = stacks.dump(pid).stacks
    assert (stack.thread, stack.name) == (pid, "MainThread")
    assert stack.frames == [
        stacks.StackFrame("take", str(tmp_path / "train.py"), 5),
        stacks.StackFrame("<module>", str(tmp_path / "train.py"), 9),
    ]


def test_what_is_no_python_and_what_has_ended_has_none_and_says_so() -> None:
    with processes.started(["sleep", 60]) as process:
        found = stacks.dump(process.pid)
    assert found.stacks == [] and not found.is_python and "Python" in found.missing, found
    assert stacks.dump(2**22 + 1).missing == "it has ended"


def test_without_py_spy_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "py_spy_path", lambda: None)  # which stands beside the interpreter of these tests
    assert stacks.INSTALL_COMMAND in stacks.dump(os.getpid()).missing


@pytest.mark.parametrize("scope", ["1", "2", "3", "0", None])
def test_a_refusal_of_the_system_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str | None, snapshot: SnapshotAssertion
) -> None:
    """A program in place of py-spy is refused as py-spy is."""
    refused = tmp_path / "py-spy"
    refused.write_text("#!/bin/sh\necho 'Error: Permission denied (os error 13)' >&2\nexit 1\n")
    refused.chmod(0o755)
    if scope is not None:
        (tmp_path / "scope").write_text(f"{scope}\n")
    # Another kernel and another user than these.
    monkeypatch.setattr(stacks, "YAMA", tmp_path / "scope")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getuid", lambda: psutil.Process().uids().real)
    assert stacks.dump(os.getpid(), str(refused)).missing == snapshot


OTHER_USER = """
import os, pwd, sys, time
from convtwins_hangs.watching.watcher import Watcher
other = pwd.getpwnam("nobody")
os.setgroups([]), os.setgid(other.pw_gid), os.setuid(other.pw_uid)
watcher = Watcher([int(sys.argv[1])], 1.0)
deadline = time.monotonic() + 30
while True:
    watcher.look()
    found = watcher.verdict()
    if "no stacks" in found.text or time.monotonic() > deadline:
        break
    time.sleep(0.2)
print(found.text)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_job_is_judged_by_its_footprints_and_the_verdict_says_what_is_missing(tmp_path: Path) -> None:
    with started(WAITS, tmp_path) as pid:
        done = processes.python("-c", OTHER_USER, pid, PYTHONPATH=str(machine.PROJECT_ROOT)).succeeded()
    # The other user may be kept from the folder of py-spy too.
    missing = r"(it belongs to root\. Run the command as root|py-spy .*)"
    assert re.fullmatch(rf"cannot be told: process {pid} does nothing \(no stacks: {missing}\)\n", done.stdout), done.stderr

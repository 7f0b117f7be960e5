"""Ranks on other machines, for which `env` stands in that starts them here: only the two streams are between."""

import json
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from common.machine import machine
from common.processes import hosts, supervisor
from common.processes.hosts import RemoteProcess
from common.processes.process_spec import ProcessSpec
from common.processes.supervisor import Watch
from tests.support import processes

LIMIT = 4.0

PRELUDE = """
import os, signal, sys, threading, time
from common.machine import heartbeat, parent_process
rank = int(os.environ["RANK"])
parent_process.die_with_parent()
heartbeat.attach()
heartbeat.count_sync_point()
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(machine.PROJECT_ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # one that is killed leaves its folder
    monkeypatch.setenv(hosts.SHELL_VARIABLE, "env")


def member(rank: int, code: str, host: str | None = None) -> ProcessSpec:
    return ProcessSpec(f"rank {rank}", [sys.executable, "-c", PRELUDE + textwrap.dedent(code)], {"RANK": str(rank)}, host=host)


@pytest.mark.parametrize(
    "others",
    [
        pytest.param("threading.Event().wait()", marks=pytest.mark.slow),
        "while True: heartbeat.count_step(); time.sleep(0.01)",
    ],
)
def test_a_host_that_is_lost_is_named_though_its_last_word_was_of_work(
    tmp_path: Path, snapshot: SnapshotAssertion, others: str
) -> None:
    lost = """
        end = time.monotonic() + 1.5
        while time.monotonic() < end: pass
        os.kill(os.getppid(), signal.SIGSTOP)  # its host speaks no more, as where the wire is cut
        while True: pass
    """
    members = [member(0, others), member(1, lost, "far")]
    failure = supervisor.run_members(members, Watch(LIMIT, tmp_path, "threading"))
    assert failure is not None and failure[:2] == (1, None)
    first, _, rest = failure.message.partition("; ")
    assert rest.startswith("rank 0 of 2 ")
    assert [first, (tmp_path / "stacks-rank1.txt").read_text()] == snapshot


def test_a_rank_killed_on_a_host_is_named_though_it_is_told_later_than_what_came_of_it_here(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    killed = f"open({str(begun)!r}, 'w'); os.kill(os.getpid(), signal.SIGKILL)"
    here = f"""
        while not os.path.exists({str(begun)!r}): time.sleep(0.01)
        sys.exit(1)  # as one that cannot read from its partner any more; the other host speaks twice a second
    """
    failure = supervisor.run_members([member(0, here), member(1, killed, "far")], Watch())
    assert failure is not None and failure[:2] == (1, -signal.SIGKILL) and "on far" in failure.message


def test_a_host_that_had_answered_and_is_gone_is_a_death_and_no_mistake(snapshot: SnapshotAssertion) -> None:
    gone = "time.sleep(1.5); os.kill(os.getppid(), signal.SIGKILL)"  # what speaks for the host, as where its power is cut
    failure = supervisor.run_members([member(0, "time.sleep(60)"), member(1, gone, "far")], Watch())
    assert failure is not None and failure[:2] == (1, None) and failure.is_death
    assert failure == snapshot


RECORDS = """
from common.machine import flight
channel = flight.group_channel((0, 1))
flight.end(channel.begin("all_reduce", "float32", (4, 25), 400))
"""


@pytest.mark.parametrize("has_ended", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["hangs", "is killed"])
def test_what_a_rank_on_a_host_has_recorded_comes_here(tmp_path: Path, has_ended: bool) -> None:
    waits = f"{RECORDS}channel.begin('barrier'); threading.Event().wait()"
    there = f"{RECORDS}{'os.kill(os.getpid(), signal.SIGKILL)' if has_ended else 'time.sleep(60)'}"
    failure = supervisor.run_members([member(0, waits), member(1, there, "far")], Watch(LIMIT, tmp_path, "threading"))
    assert failure is not None and (failure.code == -signal.SIGKILL) == has_ended
    waiting, other = failure.message.split("; ")[-2:]  # as flight_report writes them
    assert "rank 0" in waiting and "barrier" in waiting
    assert "rank 1" in other and ("ended" in other) == has_ended and "1, all_reduce, done" in other
    assert "all_reduce of 4 x 25 float32 (400 bytes)" in (tmp_path / "collectives.txt").read_text().partition("rank 1")[2]


@pytest.mark.parametrize(("shell", "code"), [("sh -c 'exit 255' sh", 255), ("true", 1)])
def test_a_host_that_cannot_be_reached_is_named(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion, shell: str, code: int
) -> None:
    monkeypatch.setenv(hosts.SHELL_VARIABLE, shell)
    members = [member(0, "time.sleep(60)"), member(1, "", "far")]
    failure = supervisor.run_members(members, Watch(grace_seconds=0.1))
    assert failure is not None and failure[:2] == (1, code)
    assert failure == snapshot


def test_what_the_shell_there_says_is_no_answer(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    greeting = """sh -c 'echo Welcome; echo 7; exec "$@"' sh"""
    monkeypatch.setenv(hosts.SHELL_VARIABLE, greeting)
    assert supervisor.run_members([member(0, ""), member(1, "print('done')", "far")], Watch()) is None
    assert capfd.readouterr().err.splitlines() == ["Welcome", "7", "done"]


def test_a_rank_on_another_host_has_the_launchers_threads_and_kernels(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Local ranks have them too. With others, ranks of one run would compute differently."""
    monkeypatch.setenv(hosts.SHELL_VARIABLE, """sh -c 'OMP_NUM_THREADS=9 GOTO_NUM_THREADS=9 exec "$@"' sh""")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("GOTO_NUM_THREADS", raising=False)
    told = 'import os; print(*(os.environ.get(f"{name}_NUM_THREADS") for name in ("OMP", "GOTO")))'
    assert supervisor.run_members([member(0, ""), member(1, told, "far")], Watch()) is None
    assert capfd.readouterr().err.splitlines() == ["3 None"]


def test_hosts_that_do_not_end_by_themselves_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hosts.SHELL_VARIABLE, "sh -c 'exec sleep 600' sh")
    lost = [RemoteProcess(member(rank, "", "far"), LIMIT) for rank in range(8)]
    begun = time.monotonic()
    supervisor.end_all(lost, shutdown_seconds=1.5)
    assert time.monotonic() - begun < 4 * 1.5
    assert None not in [each.poll() for each in lost]


@contextmanager
def asked(code: str, *further: dict[str, Any], folder: Path, **environment: str) -> Generator[subprocess.Popen[str]]:
    """The program that runs on a host, with what its launcher asks of it."""
    first = {"command": [sys.executable, "-c", code], "environment": environment, "files": {}, "folder": str(folder)}
    with processes.started([sys.executable, "-m", "common.processes.hosts"], stdin=subprocess.PIPE, stderr=None) as process:
        assert process.stdin is not None
        for message in (first | {"silence_seconds": 60.0}, *further):
            process.stdin.write(f"{json.dumps(message)}\n")
        process.stdin.flush()
        yield process


def test_what_is_asked_with_the_first_words_is_answered(tmp_path: Path) -> None:
    with asked("import time; time.sleep(60)", {"stacks": True}, folder=tmp_path) as process:
        answers = map(json.loads, process.stdout or ())
        assert next(answer["stacks"] for answer in answers if "stacks" in answer) == (
            "It had not begun to answer yet: no stacks.\n"
        )
        process.communicate()  # closes its input, which ends it


def test_a_rank_takes_no_settings_from_the_shell_of_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank has what the run gives it alone, also where ssh's shell sets more there."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("XLA_FLAGS", "--of_the_shell")
    monkeypatch.setenv("RANK", "5")
    told = 'import json, os; json.dump(dict(os.environ), open("told.json", "w"))'
    with asked(told, folder=tmp_path, RANK="1", MKL_NUM_THREADS="2") as process:
        assert process.wait(60) == 0  # while its launcher still listens
    found = json.loads((tmp_path / "told.json").read_text())
    assert (found["RANK"], found["MKL_NUM_THREADS"]) == ("1", "2")
    assert not found.keys() & {"OMP_NUM_THREADS", "XLA_FLAGS"}

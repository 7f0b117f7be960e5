"""Ranks on other machines, for which `env` stands in that starts them here: only the two streams are between."""

import argparse
import json
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest

from common import spec
from common.artifacts import results
from common.machine import machine, placement
from common.processes import hosts, ranks, supervisor
from common.processes.hosts import RemoteProcess
from common.processes.process_spec import ProcessSpec
from common.processes.supervisor import Failure, Watch
from common.processes.twin import EXIT_FAILED, TwinJob

LIMIT = 4.0

PRELUDE = """
import os, signal, sys, threading, time
from common.machine import heartbeat
from common.processes import supervisor
rank = int(os.environ["RANK"])
supervisor.die_with_parent()
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
def test_a_host_that_is_lost_is_named_though_its_last_word_was_of_work(tmp_path: Path, others: str) -> None:
    lost = """
        end = time.monotonic() + 1.5
        while time.monotonic() < end: pass
        os.kill(os.getppid(), signal.SIGSTOP)  # its host speaks no more, as where the wire is cut
        while True: pass
    """
    members = [member(0, others), member(1, lost, "far")]
    failure = supervisor.run_members(members, Watch(LIMIT, tmp_path, "threading"))
    assert failure is not None
    assert failure[:2] == (1, None)
    assert failure.message.startswith("rank 1 of 2 on far is not heard of after step 0; rank 0 of 2 "), failure.message
    assert (tmp_path / "stacks-rank1.txt").read_text() == "far did not answer: no stacks.\n"


def test_a_rank_killed_on_a_host_is_named_though_it_is_told_later_than_what_came_of_it_here(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    killed = f"open({str(begun)!r}, 'w'); os.kill(os.getpid(), signal.SIGKILL)"
    here = f"""
        while not os.path.exists({str(begun)!r}): time.sleep(0.01)
        sys.exit(1)  # as one that cannot read from its partner any more; the other host speaks twice a second
    """
    failure = supervisor.run_members([member(0, here), member(1, killed, "far")], Watch())
    assert failure == Failure(1, -signal.SIGKILL, "rank 1 of 2 on far was ended by SIGKILL")


def test_a_host_that_had_answered_and_is_gone_is_a_death_and_no_mistake() -> None:
    gone = "time.sleep(1.5); os.kill(os.getppid(), signal.SIGKILL)"  # what speaks for the host, as where its power is cut
    failure = supervisor.run_members([member(0, "time.sleep(60)"), member(1, gone, "far")], Watch())
    assert failure == Failure(1, None, "rank 1 of 2 on far lost its connection, which was ended by SIGKILL")
    assert failure.is_death


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
    assert failure is not None
    state = "has ended before it" if has_ended else "has not come to it"
    assert f"rank 0 waits in barrier; rank 1 {state}: its last was 1, all_reduce, done " in failure.message, failure.message
    assert "all_reduce of 4 x 25 float32 (400 bytes)" in (tmp_path / "collectives.txt").read_text().partition("rank 1")[2]


@pytest.mark.parametrize(("shell", "code"), [("sh -c 'exit 255' sh", 255), ("true", 1)])
def test_a_host_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch, shell: str, code: int) -> None:
    monkeypatch.setenv(hosts.SHELL_VARIABLE, shell)
    monkeypatch.setattr(supervisor, "_wait", partial(supervisor._wait, seconds=0.1))  # pyright: ignore[reportPrivateUsage]
    words = f"rank 1 of 2 on far lost its connection, which ended with exit code {code}"
    assert supervisor.run_members([member(0, "time.sleep(60)"), member(1, "", "far")], Watch()) == Failure(1, code, words)


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
    monkeypatch.setattr(hosts, "SHUTDOWN_SECONDS", 1.5)
    lost = [RemoteProcess(member(rank, "", "far"), LIMIT) for rank in range(8)]
    begun = time.monotonic()
    supervisor._end_all(lost)  # pyright: ignore[reportPrivateUsage]
    assert time.monotonic() - begun < 4 * hosts.SHUTDOWN_SECONDS
    assert None not in [each.poll() for each in lost]


def test_what_is_asked_with_the_first_words_is_answered() -> None:
    asked = {
        "command": [sys.executable, "-c", "import time; time.sleep(60)"],
        "environment": {},
        "files": {},
        "folder": "/",
        "silence_seconds": 60.0,
    }
    command = [sys.executable, "-m", "common.processes.hosts"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=machine.PROJECT_ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{json.dumps(asked)}\n{json.dumps({'stacks': True})}\n".encode())
        process.stdin.flush()
        answers = (json.loads(line) for line in process.stdout)
        assert next(answer["stacks"] for answer in answers if "stacks" in answer) == (
            "It had not begun to answer yet: no stacks.\n"
        )
        process.stdin.close()


def test_a_rank_takes_no_settings_from_the_shell_of_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank has what the run gives it alone, also where ssh's shell sets more there."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("XLA_FLAGS", "--of_the_shell")
    monkeypatch.setenv("RANK", "5")
    told = 'import json, os; json.dump(dict(os.environ), open("told.json", "w"))'
    asked = {
        "command": [sys.executable, "-c", told],
        "environment": {"RANK": "1", "MKL_NUM_THREADS": "2"},
        "files": {},
        "folder": str(tmp_path),
        "silence_seconds": 60.0,
    }
    command = [sys.executable, "-m", "common.processes.hosts"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=machine.PROJECT_ROOT) as process:
        assert process.stdin is not None
        process.stdin.write(f"{json.dumps(asked)}\n".encode())
        process.stdin.flush()
        assert process.wait(60) == 0  # while its launcher still listens
    found = json.loads((tmp_path / "told.json").read_text())
    assert (found["RANK"], found["MKL_NUM_THREADS"]) == ("1", "2")
    assert not found.keys() & {"OMP_NUM_THREADS", "XLA_FLAGS"}


def test_another_error_of_the_system_is_not_taken_for_a_wrong_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_members(*_: object) -> None:
        raise FileNotFoundError("no ssh")

    monkeypatch.setattr(supervisor, "run_members", run_members)
    monkeypatch.setattr(machine, "set_affinity", lambda _: None)
    read = spec.build({"mode": "multi_process", "replicas": 2, "cores": 1, "hosts": ["a", "b"]})
    arguments = argparse.Namespace(command="run", spec=tmp_path / "spec.json", out=tmp_path, repeat=0)
    environments = placement.rank_environments(2, read.hosts)
    assert ranks.launch(TwinJob("pytorch", read, arguments, [], 0.0), environments, "") == EXIT_FAILED
    made = results.load(tmp_path / results.RESULT_FILE)
    assert made.status == "failed" and "the ranks cannot be run: no ssh" in str(made.reason)


@pytest.mark.parametrize("command", ["run", "trace"])
def test_ranks_that_all_end_well_and_have_written_nothing_have_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setattr(supervisor, "run_members", lambda *_: None)
    monkeypatch.setattr(machine, "set_affinity", lambda _: None)
    read = spec.build({"mode": "multi_process", "replicas": 2, "cores": 1})
    out = tmp_path if command == "run" else tmp_path / "recording"
    arguments = argparse.Namespace(command=command, spec=tmp_path / "spec.json", out=out, repeat=0)
    job = TwinJob("pytorch", read, arguments, [command], 0.0)
    assert ranks.launch(job, placement.rank_environments(2), "") == 1
    assert "all ranks ended with exit code 0" in capsys.readouterr().err
    if command == "run":
        assert results.load(tmp_path / results.RESULT_FILE).status == "failed"

import errno
import os
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest
from syrupy.assertion import SnapshotAssertion

from common.machine import machine
from common.processes import supervisor
from common.processes.process_spec import LocalProcess, ProcessSpec
from common.processes.supervisor import Failure, Watch
from common.watching.watchdog import WatchedProcess
from tests.ranks import assert_gone, run_ranks, runs
from tests.support import processes

linux = pytest.mark.skipif(sys.platform != "linux", reason="a kernel's service of Linux")

PRELUDE = """
import os, pathlib, subprocess, sys, time
rank = int(os.environ.get("RANK", "0"))
def note(name):
    pathlib.Path(str(name)).touch()
def wait_for(count):
    while len(os.listdir()) < count: time.sleep(0.005)
"""


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Gives back the signals that run_ranks takes for the rest of the process."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the ranks run, and where `note` leaves an empty file with a name that a test reads, mostly a pid."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(machine.PROJECT_ROOT))
    return tmp_path


def python(code: str) -> list[str]:
    return [sys.executable, "-c", PRELUDE + textwrap.dedent(code)]


def run(code: str, ranks: int, watch: Watch | None = None) -> Failure | None:
    return run_ranks(python(code), [{"RANK": str(rank)} for rank in range(ranks)], watch)


def failed(found: Failure | None) -> tuple[int, int | None]:
    """The process that is named, and its exit code."""
    assert found is not None
    return found.rank, found.code


def noted(folder: Path, count: int) -> list[int]:
    deadline = time.monotonic() + 120
    while len(pids := [int(path.name) for path in folder.iterdir()]) < count:
        assert time.monotonic() < deadline, "the processes did not start"
        time.sleep(0.02)
    return pids


def test_ranks_that_all_end_well_are_no_failure_and_each_has_its_own_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARED", "kept")
    assert run("note(f'{rank} {os.environ[\"SHARED\"]}')", ranks=3) is None
    assert sorted(path.name for path in folder.iterdir()) == ["0 kept", "1 kept", "2 kept"]


IMPATIENT = Watch(grace_seconds=0.1)


@pytest.mark.parametrize(("end", "code"), [("os.kill(os.getpid(), 9)", -9), ("sys.exit(3)", 3)])
def test_the_first_rank_that_fails_ends_the_others_and_what_they_started(
    folder: Path, snapshot: SnapshotAssertion, end: str, code: int
) -> None:
    started = f"""
        if rank == 1:
            wait_for(4)
            {end}
        note(os.getpid())
        note(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid)
        time.sleep(60)
    """
    found = run(started, ranks=3, watch=IMPATIENT)
    assert failed(found) == (1, code)
    assert found == snapshot
    assert_gone(noted(folder, 4))


def test_what_a_killed_rank_started_is_ended_with_it(folder: Path) -> None:
    code = """
        note(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)
        if rank == 1:
            wait_for(2)
            os.kill(os.getpid(), 9)
        time.sleep(60)
    """
    assert failed(run(code, ranks=2)) == (1, -9)
    assert_gone(noted(folder, 2))


def test_what_a_rank_left_running_is_ended_though_all_ended_well(folder: Path) -> None:
    assert run('note(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)', ranks=2) is None
    assert_gone(noted(folder, 2))


@pytest.mark.parametrize("is_writable", [True, False])
def test_the_stacks_of_those_that_a_dead_rank_leaves_behind_are_saved_where_they_can_be(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, is_writable: bool
) -> None:
    code = """
        from common.machine import heartbeat
        heartbeat.attach()
        note(os.getpid())
        if rank == 1:
            wait_for(2)
            os.kill(os.getpid(), 9)
        time.sleep(60)
    """
    saved = tmp_path_factory.mktemp("out") / "saved"
    if not is_writable:
        saved.touch()  # where a folder should be
    failure = run(code, 2, Watch(folder=saved))
    assert failure is not None and failed(failure) == (1, -9)
    if not is_writable:
        assert os.strerror(errno.EEXIST) in failure.message
        return
    assert failure.message.endswith("; see stacks-rank0.txt, stacks-rank1.txt")
    assert "most recent call first" in (saved / "stacks-rank0.txt").read_text()
    assert (saved / "stacks-rank1.txt").read_text() == "It has ended.\n"


def test_the_group_of_a_rank_is_ended_before_its_number_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []

    def killpg(group: int, number: int) -> None:
        assert psutil.Process(group).status() == psutil.STATUS_ZOMBIE
        killed.append(group)

    monkeypatch.setattr("common.processes.process_spec.os.killpg", killpg)  # between two steps of `poll`
    rank = LocalProcess(ProcessSpec("rank 0", [sys.executable, "-c", "raise SystemExit(3)"], {}))
    while (code := rank.poll()) is None:
        time.sleep(0.01)
    rank.kill()
    assert (code, killed) == (3, [rank.pid])


def test_ranks_that_are_held_after_their_end_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held as the freezer of a control group holds a process: SIGKILL does not end it yet."""
    ranks = [LocalProcess(ProcessSpec("rank", python("import time; time.sleep(60)"), {})) for _ in range(4)]
    struck: dict[int, float] = {}
    with monkeypatch.context() as held:
        # In place of a freezer, which only root can make.
        held.setattr(os, "killpg", lambda group, number: struck.setdefault(group, time.monotonic()))
        begun = time.monotonic()
        supervisor.end_all(ranks, kill_seconds=1.0)
        seconds = time.monotonic() - begun
    assert [each.poll() for each in ranks] == [None] * 4
    assert struck.keys() == {each.pid for each in ranks} and max(struck.values()) - begun < 1.0  # all before one is waited for
    assert 1.0 <= seconds < 3.0  # one after the other: four
    supervisor.end_all(ranks)
    assert [each.poll() for each in ranks] == [-signal.SIGKILL] * 4


def test_where_all_fail_alike_the_first_rank_may_still_write_down_why(folder: Path) -> None:
    code = """
        if rank == 0:
            wait_for(1)
            time.sleep(0.4)
        pathlib.Path(f"reason of {rank}").touch()
        sys.exit(4)
    """
    assert failed(run(code, ranks=2))[1] == 4
    assert (folder / "reason of 0").exists()


def run_beside(companion: str, code: str, watch: Watch) -> Failure | None:
    """Two ranks and what they need beside them."""
    ranks = [ProcessSpec(f"rank {rank}", python(code), {"RANK": str(rank)}) for rank in range(2)]
    return supervisor.run_members([*ranks, ProcessSpec("a server", python(companion), {}, trains=False)], watch)


def test_a_companion_is_started_before_the_ranks_known_to_the_first_and_ended_after_them(folder: Path) -> None:
    companion = """
        import signal
        def leave(number, frame):
            note(f"told {number}")
            sys.exit()
        signal.signal(signal.SIGTERM, leave)
        note(f"companion {os.getpid()}")
        time.sleep(60)
    """
    code = "wait_for(1); note(f'{rank} {os.environ.get(\"CONVTWINS_COMPANION\")}'); wait_for(3)"
    assert run_beside(companion, code, Watch()) is None
    names = sorted(path.name for path in folder.iterdir())
    (pid,) = [name.split()[1] for name in names if name.startswith("companion")]
    assert names == [f"0 {pid}", "1 None", f"companion {pid}", f"told {signal.SIGTERM.value}"]
    assert_gone([int(pid)])


@pytest.mark.parametrize(("end", "code"), [("os.kill(os.getpid(), 9)", -9), ("sys.exit(0)", 0)])
def test_a_companion_that_ends_before_the_ranks_is_the_failure_and_ends_them(
    folder: Path, snapshot: SnapshotAssertion, end: str, code: int
) -> None:
    found = run_beside(f"wait_for(2); {end}", "note(os.getpid()); time.sleep(60)", IMPATIENT)
    assert failed(found) == (2, code)
    assert found == snapshot
    assert_gone([int(path.name) for path in folder.iterdir()])


OTHER_HAS_ENDED = """
wait_for(1)
(other,) = os.listdir()
while pathlib.Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()[0] != "Z": time.sleep(0.001)
"""
NOTED = "note(os.getpid()); "
CAUSES: dict[str, tuple[str, str, tuple[int, int], bool]] = {
    # Both have ended when they are looked at. The end of the first caused that of the second.
    "a signal before an exit code": (f"{OTHER_HAS_ENDED}os._exit(1)", f"{NOTED}os.kill(os.getpid(), 15)", (1, -15), True),
    "a signal that was taken": (f"{OTHER_HAS_ENDED}os._exit(1)", f"{NOTED}os._exit(143)", (1, -15), True),
    "a code before an abort, as of gloo": (f"{NOTED}os._exit(4)", f"{OTHER_HAS_ENDED}os.abort()", (0, 4), False),
    "a signal that is taken and seen later": ("os._exit(1)", "time.sleep(0.5); os._exit(143)", (1, -15), True),
}
"""Name: (what rank 0 does, what rank 1 does, who is named with which code, whether it is a death)."""


@linux
@pytest.mark.parametrize("name", CAUSES)
def test_of_two_ranks_that_end_the_cause_is_named(folder: Path, name: str) -> None:
    first, second, cause, is_death = CAUSES[name]
    found = run(f"exec({first!r} if rank == 0 else {second!r})", ranks=2)
    assert found is not None and failed(found) == cause and found.is_death == is_death


def test_a_rank_that_aborts_had_a_reason(folder: Path) -> None:
    found = run("os.abort()", ranks=1)
    assert found is not None and found.code == -signal.SIGABRT and not found.is_death


def test_who_watches_the_launcher_sees_the_steps_of_rank_0(folder: Path) -> None:
    rank = """
        from common.machine import heartbeat
        heartbeat.attach()
        for _ in range(3 + rank): heartbeat.count_step()
        if rank == 0: os.kill(os.getpid(), 9)
        time.sleep(60)
    """
    launcher = f"""
        from common.machine import heartbeat
        from tests.ranks import run_ranks
        heartbeat.attach()
        sys.exit(-run_ranks({python(rank)}, [{{"RANK": "0"}}, {{"RANK": "1"}}]).code)
    """
    with closing(WatchedProcess()) as watched:
        words, seen = python(launcher), {"variables": watched.environment, "pass_fds": watched.descriptors}
        with processes.started(words, folder=folder, stderr=None, **seen) as process:
            assert process.wait(120) == signal.SIGKILL
        assert watched.marks().steps == 3


def test_ranks_that_run_are_ended_where_another_cannot_start() -> None:
    before = psutil.Process().children()
    too_long_for_the_system = "x" * 2**22
    with pytest.raises(OSError, match=os.strerror(errno.E2BIG)):
        run_ranks(python("time.sleep(60)"), [{}, {"LONG": too_long_for_the_system}])
    assert psutil.Process().children() == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_the_launcher_ends_its_ranks(folder: Path, number: signal.Signals, code: int) -> None:
    rank = python("note(os.getpid()); time.sleep(60)")
    words = python(f"from tests.ranks import run_ranks; run_ranks({rank}, [{{}}, {{}}])")
    with processes.started(words, folder=folder, stderr=None) as launcher:
        pids = noted(folder, 2)
        launcher.send_signal(number)
        assert launcher.wait(120) == code
    assert_gone(pids)


@linux
def test_a_grandchild_dies_with_a_parent_that_is_killed(folder: Path) -> None:
    grandchild = python(
        "from common.machine import parent_process; parent_process.die_with_parent(); note(os.getpid()); time.sleep(60)"
    )
    with processes.started(python(f"subprocess.run({grandchild})"), folder=folder, stderr=None) as parent:
        (pid,) = noted(folder, 1)
        assert runs(pid)
        parent.kill()
    assert_gone([pid])


RANK = """LocalProcess(ProcessSpec("rank 0", [sys.executable, "-c", "import time; time.sleep(600)"], {}))"""
SERVER = """LocalProcess(parameter_server.server_process(run, "secret")[0])"""


@linux
@pytest.mark.parametrize("child", [RANK, SERVER], ids=["rank", "parameter server"])
def test_a_process_ends_with_a_launcher_that_is_killed_as_soon_as_it_has_started_it(folder: Path, child: str) -> None:
    """The rank ties itself to nothing, and the server had no time to."""
    launcher = f"""
        import signal
        from common import spec
        from common.processes import parameter_server
        from common.processes.process_spec import LocalProcess, ProcessSpec
        run = spec.build({{"mode": "parameter_server", "replicas": 2}})
        note({child}.pid)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert processes.run(python(launcher), folder=folder).exit_code == -signal.SIGKILL
    assert_gone(noted(folder, 1))


@linux
@pytest.mark.parametrize(("parents", "code"), [((7, 7), 0), ((7, 1), 143)])
def test_a_process_whose_parent_ended_meanwhile_leaves_at_once(folder: Path, parents: tuple[int, int], code: int) -> None:
    process = f"""
        from common.machine import parent_process
        parents = iter({parents})
        os.getppid = lambda: next(parents)
        parent_process.die_with_parent()
        note("lives on")
    """
    assert processes.run(python(process), folder=folder).exit_code == code
    assert (folder / "lives on").exists() == (code == 0)


@pytest.mark.parametrize("count", [0, 1, 20])
def test_free_ports_are_different_ones_that_can_be_listened_on(count: int) -> None:
    ports = supervisor.free_ports(count)
    assert len(set(ports)) == count
    with ExitStack() as stack:
        for port in ports:
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", port))
            listener.listen()


@linux
def test_the_meeting_place_is_given_to_nobody_before_rank_0_listens_there(folder: Path) -> None:
    code = """
        import errno, socket
        from common.machine import placement
        from common.processes import rendezvous
        with socket.socket() as stranger:
            try:
                stranger.bind(placement.master_address())
            except OSError as error:
                assert error.errno == errno.EADDRINUSE
            else:
                sys.exit(1)
        with rendezvous.listen(), socket.create_connection(placement.master_address()) as reached:
            assert reached.getsockname() != reached.getpeername()
    """
    environment = {"MASTER_ADDR": "127.0.0.1", "RANK": "0", "WORLD_SIZE": "1"}
    assert run_ranks(python(code), [environment]) is None

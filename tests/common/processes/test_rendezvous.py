import contextlib
import ipaddress
import socket
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest

from common import spec
from common.machine import challenge, machine, placement
from common.machine.connection import Connection
from common.processes import ranks, rendezvous, supervisor
from common.spec import SpecError
from tests.support import processes
from tests.support.refusals import refused


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> int:
    """A meeting place on the loopback interface; its port."""
    (port,) = supervisor.free_ports(1)
    for name, value in {"MASTER_ADDR": placement.LOOPBACK, "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    return port


@pytest.mark.parametrize(
    ("replicas", "hosts", "places"),
    [
        (3, (), [("127.0.0.1", 0), ("127.0.0.1", 1), ("127.0.0.1", 2)]),
        (4, ("a", "b"), [("a", 0), ("a", 1), ("a", 0), ("a", 1)]),
        (3, ("a", "b"), [("a", 0), ("a", 1), ("a", 0)]),
        (2, ("a", "b"), [("a", 0), ("a", 0)]),
    ],
)
def test_ranks_are_spread_over_hosts_in_order_and_meet_at_the_first(
    replicas: int, hosts: tuple[str, ...], places: list[tuple[str, int]]
) -> None:
    made = placement.rank_environments(replicas, hosts)
    assert [(each["MASTER_ADDR"], int(each["LOCAL_RANK"])) for each in made] == places
    assert [each["RANK"] for each in made] == [str(rank) for rank in range(replicas)]
    assert {each["WORLD_SIZE"] for each in made} == {str(replicas)}
    assert sum(int(each["LOCAL_RANK"]) == 0 for each in made) == max(len(hosts), 1)
    last_on_each = [
        int(each["LOCAL_RANK"]) + 1
        for each, after in zip(made, [*made[1:], made[0]], strict=True)
        if after["LOCAL_RANK"] == "0"
    ]
    assert sorted({int(each["LOCAL_WORLD_SIZE"]) for each in made}) == sorted(set(last_on_each))


def test_every_rank_gets_every_rank_s_word_and_a_stranger_none(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVTWINS_RUN_SECRET", "swordfish")
    strangers = [
        (None, b""),  # says nothing, and stays
        (None, b"GET / HTTP/1.1\n"),
        ("sword", b'[1, "of a thief"]\n'),
        ("swordfish", b"[1]\n"),
        ("swordfish", b'[3, "of one too many"]\n'),
    ]
    ranks = [("swordfish", said) for said in (b'[2, "word of 2"]\n', b'[2, "again"]\n', b'[1, "word of 1"]\n')]
    # As a wire shows them: the environment says of this process that it is rank 0.
    connections: list[socket.socket] = []

    def come() -> None:
        for secret, said in [*strangers, *ranks]:
            connections.append(rendezvous._connect(*placement.master_address()))  # pyright: ignore[reportPrivateUsage]
            if secret is not None:
                with contextlib.suppress(ConnectionError):
                    Connection(connections[-1], secret, server_side=False)
            with contextlib.suppress(OSError):  # it was refused already, and may be closed
                connections[-1].sendall(said)

    others = threading.Thread(target=come)
    others.start()
    assert rendezvous.all_gather("word of 0", 0.5) == ["word of 0", "word of 1", "word of 2"]
    others.join()
    told = b'["word of 0", "word of 1", "word of 2"]\n'
    heard = [_heard(each) for each in connections]
    assert [len(each) for each in heard[:2]] == [challenge.BYTES] * 2, "the challenge, and no word"
    assert heard[2:] == [b""] * 3 + [told, b"", told]


@pytest.mark.parametrize("secret", [None, "swordfish"])
def test_a_process_that_says_a_byte_at_a_time_has_no_more_time_than_another(
    secret: str | None, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the secret it says a challenge slowly, with it its word."""
    monkeypatch.setenv("CONVTWINS_RUN_SECRET", "swordfish")
    monkeypatch.setenv("WORLD_SIZE", "2")
    said: list[int] = []

    def come() -> None:
        slow = rendezvous._connect(*placement.master_address())  # pyright: ignore[reportPrivateUsage]
        with slow, contextlib.suppress(ConnectionError):
            if secret is not None:
                Connection(slow, secret, server_side=False)
            while len(said) < challenge.BYTES:
                said.append(slow.send(b"x"))
                time.sleep(0.1)
        rank_1 = rendezvous._connect(*placement.master_address())  # pyright: ignore[reportPrivateUsage]
        Connection(rank_1, "swordfish", server_side=False)
        rank_1.sendall(b'[1, "word of 1"]\n')
        _heard(rank_1)

    others = threading.Thread(target=come)
    others.start()
    assert rendezvous.all_gather("word of 0", 0.5) == ["word of 0", "word of 1"]
    others.join()
    assert 0 < len(said) < challenge.BYTES, "rank 0 let go of it"


def test_a_rank_says_that_rank_0_has_gone(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with rendezvous.listen() as listener:
        rank_0 = threading.Thread(target=lambda: listener.accept()[0].close())
        rank_0.start()
        monkeypatch.setenv("RANK", "1")
        with pytest.raises(ConnectionError, check=lambda error: "rank 0" in str(error)):
            rendezvous.all_gather("word of 1")
        rank_0.join()


def test_each_run_has_a_password_of_its_own() -> None:
    first, second = (placement.rank_environments(2) for _ in range(2))
    assert first[0]["CONVTWINS_RUN_SECRET"] == first[1]["CONVTWINS_RUN_SECRET"] != second[0]["CONVTWINS_RUN_SECRET"]


def test_an_address_and_its_port_are_one_word() -> None:
    assert (rendezvous.join_address("10.0.0.1", 80), rendezvous.join_address("fe80::1", 80)) == ("10.0.0.1:80", "[fe80::1]:80")


def _heard(connection: socket.socket) -> bytes:
    with connection:
        try:
            return connection.recv(4096)
        except OSError:  # it is closed, or had said what nobody read
            return b""


def test_own_address_and_interface_are_those_from_which_rank_0_is_reached(place: int) -> None:
    assert placement.local_address() == placement.LOOPBACK
    assert any(each.address == placement.LOOPBACK for each in psutil.net_if_addrs()[rendezvous.local_interface()])


def test_rank_0_listens_at_the_meeting_place_alone(place: int) -> None:
    with rendezvous.listen() as listener:
        assert listener.getsockname() == (placement.LOOPBACK, place)


@pytest.mark.skipif(sys.platform != "linux", reason="a kernel's service of Linux")
def test_a_socket_that_listens_everywhere_is_kept_to_the_loopback_interface(place: int) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        rendezvous.bind_to_loopback()
        bound = listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
        assert bound.rstrip(b"\0").decode() == rendezvous.local_interface()
        with socket.create_connection((placement.LOOPBACK, listener.getsockname()[1])):
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="a kernel's service of Linux")
def test_a_socket_is_left_as_it_is_where_ranks_meet_elsewhere(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = [
        each.address
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family == socket.AF_INET and not ipaddress.ip_address(each.address).is_loopback
    ]
    if not outside:
        pytest.skip("no network beyond the loopback interface")
    monkeypatch.setenv("MASTER_ADDR", outside[0])
    with socket.create_server(("0.0.0.0", 0)) as listener:
        rendezvous.bind_to_loopback()
        assert not listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0")


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        (
            {"mode": "data_parallel"},
            {"received": "a, b", "names": ["data_parallel", "multi_process", "parameter_server", "model_averaging"]},
        ),
        ({"hosts": ("a", "b", "c")}, {"field": "replicas", "received": "2 on 3"}),
        ({"hosts": ("a", "-oProxyCommand=x")}, {"field": "hosts", "received": "'-oProxyCommand=x'"}),
        ({"hosts": ("a", "b c")}, {"field": "hosts", "received": "'b c'"}),
    ],
)
def test_hosts_that_cannot_be_are_refused(fields: dict[str, Any], parts: dict[str, Any]) -> None:
    with refused(SpecError, **parts):
        spec.build({"mode": "multi_process", "replicas": 2, "hosts": ("a", "b"), "cores": 1, **fields})


@pytest.mark.parametrize("given", [True, False])
def test_cores_are_those_of_all_hosts_and_serial_runs_on_one(given: bool) -> None:
    here = machine.available_cores()
    values: dict[str, Any] = {"hosts": ["a", "b"], **({"cores": 2 * here} if given else {})}
    assert spec.build(spec.with_variant(values, "multi_process", 2)).cores == 2 * here
    serial = spec.build(spec.with_variant(values, "serial", 2))
    assert (serial.hosts, serial.cores) == ((), here)
    with refused(SpecError, field="cores", received=2 * here + 1):
        spec.build(spec.with_variant({**values, "cores": 2 * here + 1}, "multi_process", 2))


@pytest.mark.parametrize(("what", "here", "advice"), [("data", "1", "every host"), ("code", "3", "file of the code")])
def test_ranks_that_have_other_data_or_code_are_named(
    what: str, here: str, advice: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    mine = {"data": "the same", "code": "the same"}

    def of_rank_2(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Adds what the other ranks would; rank 2 has something else, once."""
        told = values.copy()
        told[1:] = values[0]
        if asked.pop(0) == what:
            told[2, 0] += 1
        return told

    asked = list(mine)
    with pytest.raises(RuntimeError) as raised:
        ranks.require_equal_digests(SimpleNamespace(all_reduce_world=of_rank_2), mine)  # pyright: ignore[reportArgumentType]
    problem, _, fix = str(raised.value).partition(". ")
    assert problem.startswith("rank 2 ") and what in problem and advice in fix


def test_ranks_that_fail_together_do_not_mix_their_lines() -> None:
    """Each prints its exception by one call of the system, into the log that they share."""
    script = (
        "import os, sys; from common.processes import ranks; write = os.write\n"
        "os.write = lambda file, text: write(file, str(text.count(b'\\n')).encode() + b' lines: ' + text)\n"
        "sys.excepthook = ranks.print_exception; raise RuntimeError('a reason')"
    )
    done = processes.python("-c", script)
    assert done.exit_code == 1 and done.stderr.count(" lines: ") == 1
    assert done.stderr.startswith("3 lines: Traceback") and done.stderr.endswith("\nRuntimeError: a reason\n")


def test_ranks_that_have_the_same_go_on(place: int) -> None:
    def same(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.broadcast_to(values[0], values.shape)

    ranks.require_equal_digests(SimpleNamespace(all_reduce_world=same), {"data": "the same"})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("environment", "sharing", "gpu"),
    [
        ({}, 4, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 4, 2),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 4, 2),
        ({"CUDA_VISIBLE_DEVICES": "2"}, 1, 0),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}, 1, 0),
        ({"CUDA_VISIBLE_DEVICES": "0", "CONVTWINS_RUN_SECRET": "a word"}, 4, 2),
    ],
)
def test_a_launcher_may_give_each_rank_a_gpu_of_its_own(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], sharing: int, gpu: int
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CONVTWINS_RUN_SECRET"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"} | environment).items():
        monkeypatch.setenv(name, value)
    assert (placement.replicas_that_share_gpus(), placement.gpu_index()) == (sharing, gpu)


@pytest.mark.parametrize(
    ("environment", "replicas", "gpus"),
    [
        ({}, 1, [0]),
        ({}, 3, [0, 1, 2]),
        ({"RANK": "6", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}, 1, [2]),
        ({"RANK": "6", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4", "CUDA_VISIBLE_DEVICES": "2"}, 1, [0]),
    ],
)
def test_a_process_has_a_gpu_for_each_of_its_replicas(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], replicas: int, gpus: list[int]
) -> None:
    for name in ("RANK", "CUDA_VISIBLE_DEVICES", "CONVTWINS_RUN_SECRET"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert list(placement.gpu_indices(replicas)) == gpus


OUTER = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
SLURM = {"SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_CPUS_PER_TASK": "4"}


@pytest.mark.parametrize(
    ("environment", "hosts", "cores", "machines", "share"),
    [
        ({}, (), 8, 1, 2),  # no rank: four replicas in one process
        (OUTER, (), 16, 2, 4),  # torchrun on two machines of 8 cores
        (OUTER | {"LOCAL_WORLD_SIZE": "4"}, (), 8, 1, 2),
        (OUTER | SLURM, (), 16, 4, 4),  # each rank is a task with CPUs of its own
        (OUTER | SLURM | {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, (), 16, 2, 4),  # torchrun in a task a machine
        (OUTER | {"CONVTWINS_RUN_SECRET": "a word", "LOCAL_WORLD_SIZE": "4"}, (), 8, 1, 2),
        (OUTER | {"CONVTWINS_RUN_SECRET": "a word"}, ("a", "b"), 16, 2, 4),
        (
            OUTER | {"CONVTWINS_RUN_SECRET": "a word", "LOCAL_WORLD_SIZE": "1"},
            ("a", "b"),
            16,
            2,
            8,
        ),  # one of three on the second
    ],
)
def test_the_ranks_of_a_machine_share_its_cores_and_no_other_s(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], hosts: tuple[str, ...], cores: int, machines: int, share: int
) -> None:
    for name in ("CONVTWINS_RUN_SECRET", "RANK", *OUTER, *SLURM):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({**environment, "RANK": "3"} if environment else {}).items():
        monkeypatch.setenv(name, value)
    assert placement.num_machines(hosts) == machines
    assert placement.cores_of_replica(cores, 4, hosts) == share

"""How the ranks of one run find each other: rank 0 listens at an address that all of them know."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
import time
from collections.abc import Sequence
from typing import Any

import psutil

LOOPBACK = "127.0.0.1"
_PASSWORD_VARIABLE = "CONVTWINS_MEETING"
"""A word that the ranks of one run alone know; an outer launcher has none."""
_STRANGER_SECONDS = 10.0
"""In which one that comes to the meeting place must have said who it is."""
_LONGEST = 2**20
"""Bytes that one may say."""


def environments(replicas: int, hosts: Sequence[str] = ()) -> list[dict[str, str]]:
    """What tells each rank who it is, by torchrun's variables; the port at which they meet is added when they start.

    Args:
        replicas: the number of ranks.
        hosts: on which they are, in order and in equal parts; none: this machine.
    """
    places = [host_of(rank, replicas, len(hosts) or 1) for rank in range(replicas)]
    shared = {
        "WORLD_SIZE": str(replicas),
        "MASTER_ADDR": hosts[0] if hosts else LOOPBACK,
        _PASSWORD_VARIABLE: secrets.token_hex(16),
    }
    return [
        {
            **shared,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank - places.index(own)),
            "LOCAL_WORLD_SIZE": str(places.count(own)),
        }
        for rank, own in enumerate(places)
    ]


def host_of(rank: int, replicas: int, hosts: int) -> int:
    """Index of the host of a rank."""
    return rank * hosts // replicas


def on_one_host() -> bool:
    """Whether all of this run is on this machine."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


def machines(hosts: Sequence[str]) -> int:
    """How many times the CPUs of this process a run has, for each of its machines: 1 where all of it is here.

    Args:
        hosts: of the run, as its spec names them. Where it names none, an outer launcher's variables may tell of several.
    """
    if hosts:
        return len(hosts)
    if _PASSWORD_VARIABLE in os.environ or "RANK" not in os.environ:
        return 1
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    return -(-ranks // (1 if _has_cpus_of_its_own() else int(os.environ.get("LOCAL_WORLD_SIZE", ranks))))


def cores_of_replica(cores: int, replicas: int, hosts: Sequence[str]) -> int:
    """CPU cores for each replica of this process's machine; 0 where there are fewer than replicas.

    Args:
        cores: of the whole run.
        replicas: of the whole run.
        hosts: of the run.
    """
    if "RANK" not in os.environ:
        return cores // replicas
    sharing = 1 if _has_cpus_of_its_own() else int(os.environ.get("LOCAL_WORLD_SIZE", replicas))
    return cores // machines(hosts) // sharing


def judged_by_its_launcher() -> bool:
    """Whether the suite started this process as a rank: its cores were judged where the run began, on the first host."""
    return _PASSWORD_VARIABLE in os.environ and "RANK" in os.environ


def _has_cpus_of_its_own() -> bool:
    """Whether Slurm started this rank as a task and holds it to CPUs of its own; what torchrun starts in a task shares them."""
    own = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    task = {"RANK": os.environ.get("SLURM_PROCID"), "WORLD_SIZE": os.environ.get("SLURM_NTASKS")}
    return _PASSWORD_VARIABLE not in os.environ and "SLURM_CPUS_PER_TASK" in os.environ and own == task


def replicas_that_share_gpus() -> int:
    """Replicas that see the GPUs of this process: those on this machine, unless an outer launcher gave each a GPU of its own.

    Such a launcher (`srun --gpus-per-task=1`) hides the other GPUs from a rank; a user who hides them from the launcher of
    this suite leaves one GPU to all its ranks.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if _PASSWORD_VARIABLE not in os.environ and visible != [""] and len(visible) == 1:
        return 1
    return int(os.environ["LOCAL_WORLD_SIZE"])


def own_gpu() -> int:
    """Index of this rank's GPU among those that it sees."""
    return int(os.environ["LOCAL_RANK"]) if replicas_that_share_gpus() > 1 else 0


def place() -> tuple[str, int]:
    """(address, port) at which the ranks of this run meet: rank 0's."""
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def word() -> str:
    """The meeting place as a word that no other run has at the same time."""
    return joined(*place())


def listen() -> socket.socket:
    """Listen at the meeting place, and at no other address of this machine; for rank 0."""
    listener = bound(*place())
    listener.listen(int(os.environ["WORLD_SIZE"]))
    return listener


def joined(address: str, port: int) -> str:
    """`address:port` in one word, an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def own_address() -> str:
    """The address of this machine from which the meeting place is reached."""
    family, kind, _, _, there = socket.getaddrinfo(*place(), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(there)  # asks the routing table, and sends nothing
        return probe.getsockname()[0]


def own_interface() -> str:
    """The name of the network interface that has `own_address`."""
    address = own_address()
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return name
    raise OSError(f"No network interface has the address from which rank 0 is reached. Received: {address}.")


def exchange(word: str) -> list[str]:
    """Every rank's word, by rank: rank 0 collects them at the meeting place and hands them out.

    Raises:
        ConnectionError: rank 0 has gone.
    """
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    password = os.environ.get(_PASSWORD_VARIABLE, "")
    if rank:
        try:
            with _reached(*place()) as connection:
                connection.sendall(json.dumps([password, rank, word]).encode() + b"\n")
                answer = _line(connection)
        except ConnectionError:
            answer = b""
        if not answer:
            raise ConnectionError("rank 0 has gone, before all ranks had met")
        return json.loads(answer)
    words = {rank: word}
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen())
        connections: list[socket.socket] = []
        while len(words) < ranks:
            connection = stack.enter_context(listener.accept()[0])
            introduced = _introduced(connection, password)
            if introduced is None or introduced[0] in words or introduced[0] not in range(ranks):
                connection.close()  # a stranger
                continue
            words[introduced[0]] = introduced[1]
            connections.append(connection)
        told = [words[each] for each in range(ranks)]
        for connection in connections:
            connection.sendall(json.dumps(told).encode() + b"\n")
    return told


def _introduced(connection: socket.socket, password: str) -> tuple[int, str] | None:
    """(rank, word) of one that has come to the meeting place; None where it is none of this run's."""
    connection.settimeout(_STRANGER_SECONDS)
    try:
        said: Any = json.loads(_line(connection))
    except (OSError, ValueError):
        return None
    finally:
        connection.settimeout(None)
    match said:
        case [str(brought), int(rank), str(word)] if hmac.compare_digest(brought.encode(), password.encode()):
            return rank, word
        case _:
            return None


def _line(connection: socket.socket) -> bytes:
    """What comes until a line ends; nothing where it does not."""
    with connection.makefile("rb") as stream:
        line = stream.readline(_LONGEST)
    return line if line.endswith(b"\n") else b""


def keep_to_loopback() -> None:
    """Where the ranks meet on the loopback interface, bind every socket on which this process listens to it.

    For libraries that listen on all addresses and have no setting for it. Linux alone; elsewhere nothing is done.
    """
    if not hasattr(socket, "SO_BINDTODEVICE") or not ipaddress.ip_address(own_address()).is_loopback:
        return
    for connection in psutil.Process().net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN:
            with socket.socket(fileno=os.dup(connection.fd)) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, own_interface().encode())


def bound(address: str, port: int) -> socket.socket:
    """A TCP socket that has an address of this machine; port 0: one that is free."""
    family, _, _, _, there = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(there)
    except BaseException:
        listener.close()
        raise
    return listener


def _reached(address: str, port: int) -> socket.socket:
    """A connection to rank 0, as soon as it listens; the watchdog ends a rank that waits in vain."""
    while True:
        try:
            return socket.create_connection((address, port))
        except ConnectionRefusedError:
            time.sleep(0.1)

"""How the ranks of one run find each other: rank 0 listens at an address that all of them know."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import time
from typing import Any

import psutil

from common.machine import challenge
from common.machine.placement import RUN_SECRET_VARIABLE, bind, local_address, master_address

_LONGEST = 2**20
"""Bytes of one message."""


def word() -> str:
    """The meeting place as a word that no other run has at the same time."""
    return joined(*master_address())


def listen() -> socket.socket:
    """Listen at the meeting place, and at no other address of this machine. For rank 0."""
    listener = bind(*master_address())
    listener.listen(int(os.environ["WORLD_SIZE"]))
    return listener


def joined(address: str, port: int) -> str:
    """`address:port` in one word, an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def own_interface() -> str:
    """The name of the network interface that has `own_address`."""
    address = local_address()
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return name
    raise OSError(f"No network interface has the address from which rank 0 is reached. Received: {address}.")


def exchange(word: str) -> list[str]:
    """Every rank's word, by rank. Rank 0 collects them at the meeting place and sends them to all.

    Raises:
        ConnectionError: rank 0 has gone, or another process listens in its place.
    """
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    password = os.environ.get(RUN_SECRET_VARIABLE, "")
    if rank:
        try:
            with _reached(*master_address()) as connection:
                challenge.authenticate(connection, password, server_side=False)
                connection.sendall(json.dumps([rank, word]).encode() + b"\n")
                answer = _line(connection)
        except challenge.AuthenticationError:
            raise
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
        everybody = [words[each] for each in range(ranks)]
        for connection in connections:
            connection.sendall(json.dumps(everybody).encode() + b"\n")
    return everybody


def _introduced(connection: socket.socket, password: str) -> tuple[int, str] | None:
    """(rank, word) of a process that has connected. None if it is not of this run."""
    deadline = time.monotonic() + challenge.HANDSHAKE_SECONDS
    try:
        challenge.authenticate(connection, password, server_side=True, deadline=deadline)
        said: Any = json.loads(_line(connection, deadline))
    except (OSError, ValueError):
        return None
    finally:
        connection.settimeout(None)
    match said:
        case [int(rank), str(word)]:
            return rank, word
        case _:
            return None


def _line(connection: socket.socket, deadline: float | None = None) -> bytes:
    """One line. Empty if it does not end. For the deadline see `challenge.apply_deadline`."""
    line = bytearray()
    while b"\n" not in line and len(line) < _LONGEST:
        challenge.apply_deadline(deadline, connection)
        more = connection.recv(_LONGEST - len(line))
        if not more:
            break
        line += more
    return bytes(line[: line.find(b"\n") + 1])


def keep_to_loopback() -> None:
    """Bind every listening socket of this process to the loopback interface, if the ranks meet there.

    For libraries that listen on all addresses and have no setting for it. Linux only. Elsewhere it does nothing.
    """
    if not hasattr(socket, "SO_BINDTODEVICE") or not ipaddress.ip_address(local_address()).is_loopback:
        return
    for connection in psutil.Process().net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN:
            with socket.socket(fileno=os.dup(connection.fd)) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, own_interface().encode())


def _reached(address: str, port: int) -> socket.socket:
    """A connection to rank 0, as soon as it listens. The watchdog ends a rank that waits in vain."""
    while True:
        try:
            return socket.create_connection((address, port))
        except ConnectionRefusedError:
            time.sleep(0.1)

"""The rendezvous of a run's ranks: rank 0 listens at an address that all of them know."""

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

_MAX_MESSAGE_BYTES = 2**20
"""Largest size of one message, in bytes."""


def rendezvous_id() -> str:
    """Return the address of the rendezvous, which no other run has at the same time."""
    return join_address(*master_address())


def listen() -> socket.socket:
    """Listen at the rendezvous address, and at no other address of this machine. For rank 0."""
    listener = bind(*master_address())
    listener.listen(int(os.environ["WORLD_SIZE"]))
    return listener


def join_address(address: str, port: int) -> str:
    """Return `address:port`, with an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def local_interface() -> str:
    """Return the name of the network interface that has `local_address`."""
    address = local_address()
    for name, addresses in psutil.net_if_addrs().items():
        if any(interface_address.address.partition("%")[0] == address for interface_address in addresses):
            return name
    raise OSError(f"No network interface has the address from which rank 0 is reached. Received: {address}.")


def all_gather(value: str, handshake_seconds: float = challenge.HANDSHAKE_SECONDS) -> list[str]:
    """Return every rank's value, by rank. Rank 0 collects them and sends them to all.

    Args:
        value: value of this rank.
        handshake_seconds: seconds that rank 0 gives a process that has connected to authenticate and introduce itself.

    Raises:
        ConnectionError: rank 0 has gone, or another process listens in its place.
    """
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    secret = os.environ.get(RUN_SECRET_VARIABLE, "")
    if rank:
        try:
            with _connect(*master_address()) as connection:
                challenge.authenticate(connection, secret, server_side=False)
                connection.sendall(json.dumps([rank, value]).encode() + b"\n")
                answer = _read_line(connection)
        except challenge.AuthenticationError:
            raise
        except ConnectionError:
            answer = b""
        if not answer:
            raise ConnectionError("rank 0 has gone, before all ranks had met")
        return json.loads(answer)
    values = {rank: value}
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen())
        connections: list[socket.socket] = []
        while len(values) < ranks:
            connection = stack.enter_context(listener.accept()[0])
            introduction = _read_introduction(connection, secret, handshake_seconds)
            if introduction is None or introduction[0] in values or introduction[0] not in range(ranks):
                connection.close()  # a stranger
                continue
            values[introduction[0]] = introduction[1]
            connections.append(connection)
        all_values = [values[index] for index in range(ranks)]
        for connection in connections:
            connection.sendall(json.dumps(all_values).encode() + b"\n")
    return all_values


def _read_introduction(connection: socket.socket, secret: str, seconds: float) -> tuple[int, str] | None:
    """Return (rank, value) of a process that has connected. None: it is not of this run."""
    deadline = time.monotonic() + seconds
    try:
        challenge.authenticate(connection, secret, server_side=True, deadline=deadline)
        message: Any = json.loads(_read_line(connection, deadline))
    except (OSError, ValueError):
        return None
    finally:
        connection.settimeout(None)
    match message:
        case [int(rank), str(value)]:
            return rank, value
        case _:
            return None


def _read_line(connection: socket.socket, deadline: float | None = None) -> bytes:
    """Read one line. Empty: it does not end. For the deadline see `challenge.apply_deadline`."""
    line = bytearray()
    while b"\n" not in line and len(line) < _MAX_MESSAGE_BYTES:
        challenge.apply_deadline(deadline, connection)
        chunk = connection.recv(_MAX_MESSAGE_BYTES - len(line))
        if not chunk:
            break
        line += chunk
    return bytes(line[: line.find(b"\n") + 1])


def bind_to_loopback() -> None:
    """Bind every listening socket of this process to the loopback interface, if the rendezvous is there.

    For libraries that listen on all addresses and have no setting for it. Linux only. Elsewhere it does nothing.
    """
    if not hasattr(socket, "SO_BINDTODEVICE") or not ipaddress.ip_address(local_address()).is_loopback:
        return
    for connection in psutil.Process().net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN:
            with socket.socket(fileno=os.dup(connection.fd)) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, local_interface().encode())


def _connect(address: str, port: int) -> socket.socket:
    """Connect to rank 0 as soon as it listens. The watchdog ends a rank that waits in vain."""
    while True:
        try:
            return socket.create_connection((address, port))
        except ConnectionRefusedError:
            time.sleep(0.1)

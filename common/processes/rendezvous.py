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

from common.machine import challenge, placement
from common.machine.connection import Connection

_MAX_MESSAGE_BYTES = 2**20
"""Largest size of one message, in bytes."""


def rendezvous_id() -> str:
    """Return the address of the rendezvous, which no other run has at the same time."""
    return join_address(*placement.master_address())


def listen() -> socket.socket:
    """Listen at the rendezvous address, and at no other address of this machine. For rank 0."""
    listener = placement.bind(*placement.master_address())
    listener.listen(placement.num_ranks())
    return listener


def join_address(address: str, port: int) -> str:
    """Return `address:port`, with an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def local_interface() -> str:
    """Return the name of the network interface that has `local_address`."""
    address = placement.local_address()
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
    rank, ranks = placement.rank(), placement.num_ranks()
    secret = os.environ.get(placement.RUN_SECRET_VARIABLE, "")
    if rank:
        try:
            with Connection(_connect(*placement.master_address()), secret, server_side=False) as connection:
                connection.send(_to_line([rank, value]))
                return json.loads(connection.receive_line(_MAX_MESSAGE_BYTES))
        except challenge.AuthenticationError:
            raise
        except ConnectionError:
            raise ConnectionError("rank 0 has gone, before all ranks had met") from None
    values = {rank: value}
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen())
        connections: list[Connection] = []
        while len(values) < ranks:
            accepted, _ = listener.accept()
            try:
                connection = Connection(accepted, secret, server_side=True, seconds=handshake_seconds)
            except OSError:
                continue  # a stranger
            stack.enter_context(connection)
            introduction = _read_introduction(connection)
            if introduction is None or introduction[0] in values or introduction[0] not in range(ranks):
                connection.close()  # not of this run, or another process has come in its place
                continue
            connection.wait_without_limit()
            values[introduction[0]] = introduction[1]
            connections.append(connection)
        all_values = [values[index] for index in range(ranks)]
        for connection in connections:
            connection.send(_to_line(all_values))
    return all_values


def _to_line(values: Any) -> bytes:
    return json.dumps(values).encode() + b"\n"


def _read_introduction(connection: Connection) -> tuple[int, str] | None:
    """Return (rank, value) of a process that has connected. None: it says something else, or nothing."""
    try:
        message: Any = json.loads(connection.receive_line(_MAX_MESSAGE_BYTES))
    except (OSError, ValueError):
        return None
    match message:
        case [int(rank), str(value)]:
            return rank, value
        case _:
            return None


def bind_to_loopback() -> None:
    """Bind every listening socket of this process to the loopback interface, if the rendezvous is there.

    For libraries that listen on all addresses and have no setting for it. Linux only. Elsewhere it does nothing.
    """
    if not hasattr(socket, "SO_BINDTODEVICE") or not ipaddress.ip_address(placement.local_address()).is_loopback:
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

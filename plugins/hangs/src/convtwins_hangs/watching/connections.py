"""TCP connections of processes: bytes, and whether the other end still answers. From the kernel's own table (Linux)."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _DONE, _ERROR = 4, 20, 3, 2
_REQUEST_DUMP = 0x301
_WITH_TCP_INFO, _TCP_INFO = 1 << 1, 2
_HEADER = struct.Struct("=IHHII")
_QUERY = struct.Struct("=BBBxI48x")
_ANSWER = struct.Struct("=BBBB2s2s16s16s12x4xIIII")
"""Fields: family, state, timer, tries, ports, addresses, bytes to be read and to be sent, user, inode."""
_ATTRIBUTE = struct.Struct("=HH")
_BYTES = struct.Struct("=QQ")
_BYTES_OFFSET = 120
"""Offset of the bytes acknowledged and received in `tcp_info`. Kernels before 4.1 have a shorter structure."""
_ESTABLISHED, _SENDING_AGAIN = 1, 1


class TcpConnection(NamedTuple):
    """One TCP connection. Byte counts are since it was opened."""

    peer: str
    acknowledged_bytes: int
    """Bytes sent and acknowledged by the peer."""
    received_bytes: int
    unsent_bytes: int
    """Bytes waiting to be sent or acknowledged."""
    tries: int
    """Number of retransmissions of the oldest unacknowledged bytes."""


def established() -> dict[int, TcpConnection]:
    """Return every established TCP connection of this network namespace by inode. Empty off Linux, or where it is refused."""
    if sys.platform != "linux":
        return {}
    connections: dict[int, TcpConnection] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(1.0)
            for family in (socket.AF_INET, socket.AF_INET6):
                query = _QUERY.pack(family, socket.IPPROTO_TCP, _WITH_TCP_INFO, 1 << _ESTABLISHED)
                kernel.send(_HEADER.pack(_HEADER.size + len(query), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 0, 0) + query)
                connections |= dict(_replies(kernel))
    except OSError:
        return {}
    return connections


def socket_inodes(pids: Iterable[int]) -> set[int]:
    """Return the inodes of all sockets that the processes have open. Those of another user's processes are unknown."""
    sockets: set[int] = set()
    for pid in pids:
        try:
            descriptors = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208  names alone
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                target = os.readlink(f"/proc/{pid}/fd/{descriptor}")  # noqa: PTH115  is no path
            except OSError:
                continue
            if target.startswith("socket:["):
                sockets.add(int(target[8:-1]))
    return sockets


def _replies(kernel: socket.socket) -> Iterator[tuple[int, TcpConnection]]:
    while True:
        received, offset = kernel.recv(2**20), 0
        while offset < len(received):
            length, kind, *_ = _HEADER.unpack_from(received, offset)
            if kind in (_DONE, _ERROR):
                return
            yield _parse_reply(received[offset + _HEADER.size : offset + length])
            offset += (length + 3) & ~3


def _parse_reply(message: bytes) -> tuple[int, TcpConnection]:
    family, _, timer, tries, _, port, _, address, _, unsent, _, inode = _ANSWER.unpack_from(message)
    packed = address[:4] if family == socket.AF_INET else address
    host = ipaddress.ip_address(packed)
    peer = f"[{host}]:{int.from_bytes(port)}" if host.version == 6 else f"{host}:{int.from_bytes(port)}"
    acknowledged, received = 0, 0
    offset = _ANSWER.size
    while offset + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, offset)
        if kind == _TCP_INFO and length >= _ATTRIBUTE.size + _BYTES_OFFSET + _BYTES.size:
            acknowledged, received = _BYTES.unpack_from(message, offset + _ATTRIBUTE.size + _BYTES_OFFSET)
        offset += max((length + 3) & ~3, _ATTRIBUTE.size)
    return inode, TcpConnection(peer, acknowledged, received, unsent, tries if timer == _SENDING_AGAIN else 0)

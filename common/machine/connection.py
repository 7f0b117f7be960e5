"""Connections between processes of one run that neither Dask nor a framework makes. They begin with `challenge`."""

from __future__ import annotations

import socket
import time
from typing import Any, Self

from common.machine import challenge


class Connection:
    """A TCP connection to another process of the run. Both have proved that they know the run's secret.

    It carries bytes as they are. Nothing is unpickled.
    """

    def __init__(self, open_socket: socket.socket, secret: str, *, server_side: bool, seconds: float | None = None) -> None:
        """Let both processes authenticate to each other.

        Args:
            open_socket: a socket to the other process. The connection closes it, also if the other fails to authenticate.
            secret: the run's secret.
            server_side: whether this side has accepted the connection.
            seconds: time for the handshake and all that is received, until `wait_without_limit`. None: any time.

        Raises:
            AuthenticationError: the other process does not know the secret.
            OSError: it has gone, or the time is over.
        """
        self.socket = open_socket
        self._deadline = None if seconds is None else time.monotonic() + seconds
        try:
            open_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            handshake = challenge.Challenge(secret, open_socket, server_side=server_side)
            self.send(handshake.nonce)
            self.send(handshake.answer(self.receive(challenge.BYTES)))
            handshake.verify(self.receive(challenge.BYTES))
        except BaseException:
            self.close()
            raise

    def wait_without_limit(self) -> None:
        """Let the other process take any time from now on."""
        self._deadline = None
        self.socket.settimeout(None)

    def send(self, content: Any) -> None:
        """Send bytes, or the memory of an array."""
        self.socket.sendall(content)

    def receive(self, num_bytes: int) -> bytes:
        """Receive so many bytes. Raises as `receive_into` does."""
        return bytes(self.receive_into(bytearray(num_bytes)))

    def receive_into(self, buffer: Any) -> Any:
        """Fill a buffer, and return it.

        Raises:
            ConnectionResetError: the other process has gone.
            TimeoutError: the time is over.
        """
        remaining = memoryview(buffer).cast("B")
        while remaining:
            self._apply_deadline()
            count = self.socket.recv_into(remaining)
            if not count:
                raise ConnectionResetError("the other process has closed the connection")
            remaining = remaining[count:]
        return buffer

    def receive_line(self, max_bytes: int) -> bytes:
        """Receive a line, the last thing that the other process sends for now. Raises as `receive_into` does.

        A line that does not end within `max_bytes` counts as none: ConnectionResetError.
        """
        line = bytearray()
        while not line.endswith(b"\n"):
            self._apply_deadline()
            received = self.socket.recv(max_bytes - len(line))
            if not received:
                raise ConnectionResetError("the other process has sent no whole line")
            line += received
        return bytes(line)

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _apply_deadline(self) -> None:
        if self._deadline is not None:
            remaining = self._deadline - time.monotonic()
            if remaining <= 0.0:
                raise TimeoutError("the other process took too long")
            self.socket.settimeout(remaining)

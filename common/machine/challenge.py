"""How two processes prove to each other that they belong to one run, before either reads anything else.

Each side sends a random challenge and answers the other's with an HMAC over both, its role and the listener's address. So
the secret never leaves its process, and an answer is of no use at another address. This is what
`multiprocessing.connection` does with its `authkey`, with both sides at once and SHA-256.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time

BYTES = 32
"""Length of a nonce and of an answer."""
HANDSHAKE_SECONDS = 10.0
"""Seconds that a listener gives a process that has connected to authenticate and introduce itself, in all."""


class AuthenticationError(ConnectionError):
    """The other process does not know the secret."""


class Challenge:
    """One side of the handshake: send `nonce`, answer the peer's, verify the peer's answer.

    Args:
        secret: the run's secret.
        connection: socket to the other process.
        server_side: whether this side has accepted the connection.
    """

    def __init__(self, secret: str, connection: socket.socket, *, server_side: bool) -> None:
        self.nonce = secrets.token_bytes(BYTES)
        self._secret = secret
        self._server_side = server_side
        host, port = (connection.getsockname() if server_side else connection.getpeername())[:2]
        self._address = f"{host.partition('%')[0]} {port}"  # a scope is another name on each machine
        self._peer_nonce = b""

    def answer(self, peer_nonce: bytes) -> bytes:
        """Return the answer to the peer's nonce."""
        self._peer_nonce = peer_nonce
        return self._digest(self._server_side, self.nonce, peer_nonce)

    def verify(self, answer: bytes) -> None:
        """Check the peer's answer.

        Raises:
            AuthenticationError: the answer is wrong.
        """
        if not hmac.compare_digest(answer, self._digest(not self._server_side, self._peer_nonce, self.nonce)):
            raise AuthenticationError("the other process does not know the secret of this run")

    def _digest(self, server_side: bool, nonce: bytes, peer_nonce: bytes) -> bytes:
        return hmac.digest(self._secret.encode(), bytes([server_side]) + nonce + peer_nonce + self._address.encode(), "sha256")


def authenticate(connection: socket.socket, secret: str, *, server_side: bool, deadline: float | None = None) -> None:
    """Authenticate both processes to each other on a blocking socket.

    Args:
        connection: socket to the other process.
        secret: the run's secret.
        server_side: whether this side has accepted the connection.
        deadline: see `apply_deadline`.

    Raises:
        AuthenticationError: the other process does not know the secret.
        OSError: it has gone, or the deadline or the socket's timeout is over.
    """
    handshake = Challenge(secret, connection, server_side=server_side)
    apply_deadline(deadline, connection)
    connection.sendall(handshake.nonce)
    connection.sendall(handshake.answer(_receive_exactly(connection, deadline)))
    handshake.verify(_receive_exactly(connection, deadline))


def apply_deadline(deadline: float | None, connection: socket.socket) -> None:
    """Limit the next wait on a socket to a deadline of `time.monotonic`. None: the socket keeps its timeout.

    Raises:
        TimeoutError: the deadline is over.
    """
    if deadline is not None:
        remaining = deadline - time.monotonic()
        if remaining <= 0.0:
            raise TimeoutError("the other process took too long to prove itself")
        connection.settimeout(remaining)


def _receive_exactly(connection: socket.socket, deadline: float | None) -> bytes:
    received = b""
    while len(received) < BYTES:
        apply_deadline(deadline, connection)
        chunk = connection.recv(BYTES - len(received))
        if not chunk:
            raise ConnectionResetError("the other process has gone")
        received += chunk
    return received

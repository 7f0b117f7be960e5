"""How two processes prove to each other that they belong to one run, before either reads anything else.

Each side sends a random challenge and answers the other's with an HMAC over both, its role and the listener's address. So
the secret never leaves its process, and an answer is of no use at another address. This is what
`multiprocessing.connection` does with its `authkey`, with both sides at once and SHA-256.
"""

from __future__ import annotations

import hmac
import secrets
import socket

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

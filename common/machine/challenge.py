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
"""Length of a challenge and of an answer."""
STRANGER_SECONDS = 10.0
"""For which a listener waits, in all, for a process that has connected to prove and introduce itself."""


class NotOfThisRun(ConnectionError):
    """The other process does not know the secret."""


class Challenge:
    """One side's half of the exchange: send `own`, answer the other's, judge its answer.

    Args:
        secret: of the run.
        connection: socket to the other process.
        listens: whether this side has accepted the connection.
    """

    def __init__(self, secret: str, connection: socket.socket, *, listens: bool) -> None:
        self.own = secrets.token_bytes(BYTES)
        self._secret = secret
        self._listens = listens
        host, port = (connection.getsockname() if listens else connection.getpeername())[:2]
        self._address = f"{host.partition('%')[0]} {port}"  # a scope is another name on each machine
        self._other = b""

    def answer(self, other: bytes) -> bytes:
        """The answer to the other side's challenge."""
        self._other = other
        return self._proof(self._listens, self.own, other)

    def judge(self, answer: bytes) -> None:
        """Check the other side's answer.

        Raises:
            NotOfThisRun: it is wrong.
        """
        if not hmac.compare_digest(answer, self._proof(not self._listens, self._other, self.own)):
            raise NotOfThisRun("the other process does not know the secret of this run")

    def _proof(self, listens: bool, own: bytes, other: bytes) -> bytes:
        return hmac.digest(self._secret.encode(), bytes([listens]) + own + other + self._address.encode(), "sha256")


def meet(connection: socket.socket, secret: str, *, listens: bool, deadline: float | None = None) -> None:
    """Prove this process on a blocking socket, and require the same of the other.

    Args:
        connection: socket to the other process.
        secret: of the run.
        listens: whether this side has accepted the connection.
        deadline: see `keep_to`.

    Raises:
        NotOfThisRun: the other process does not know the secret.
        OSError: it has gone, or the deadline or the socket's timeout is over.
    """
    challenge = Challenge(secret, connection, listens=listens)
    keep_to(deadline, connection)
    connection.sendall(challenge.own)
    connection.sendall(challenge.answer(_received(connection, deadline)))
    challenge.judge(_received(connection, deadline))


def keep_to(deadline: float | None, connection: socket.socket) -> None:
    """Let the next wait on a socket end at a deadline of `time.monotonic`. None: the socket keeps its timeout.

    Raises:
        TimeoutError: the deadline is over.
    """
    if deadline is not None:
        left = deadline - time.monotonic()
        if left <= 0.0:
            raise TimeoutError("the other process took too long to prove itself")
        connection.settimeout(left)


def _received(connection: socket.socket, deadline: float | None) -> bytes:
    received = b""
    while len(received) < BYTES:
        keep_to(deadline, connection)
        more = connection.recv(BYTES - len(received))
        if not more:
            raise ConnectionResetError("the other process has gone")
        received += more
    return received

"""The processes of a run that hold the training images together. Each holds some, and sends the others what they ask for.

A request is positions in the owner's images. The answer is their pixels. Nothing is unpickled, and each connection begins
with `challenge`.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from common.machine import challenge, placement

Images = npt.NDArray[np.uint8]
Gather = Callable[[npt.NDArray[np.int64]], Callable[[], Images]]
"""Starts to gather the images at some positions. The function that it returns waits for them."""

_COUNT = struct.Struct("<q")
_LONGEST = 128
"""Bytes of an address in words."""


class OwnerGoneError(ConnectionError):
    """A process that holds a part of the training images has ended."""


class Owners:
    """The processes of a run, as one of them sees them. Alone, it holds all images.

    `ask` and what it returns are called by one thread at a time.
    """

    def __init__(
        self,
        rank: int = 0,
        addresses: list[tuple[str, int]] | None = None,
        listener: socket.socket | None = None,
        word: str | None = None,
    ) -> None:
        """Know the owners by rank.

        Args:
            rank: of this process.
            addresses: where each owner answers, by rank. None: this process is alone.
            listener: at the address of this rank; taken over.
            word: that all of them know, and no other run. None: a new one.
        """
        self.word = word or secrets.token_hex(8)
        self.rank = rank
        self.number = len(addresses or [None])
        self.moved_bytes = 0
        """Of the pixels that this process has received from others."""
        self._addresses = addresses or []
        self._listener = listener
        self._secret = os.environ.get(placement.PASSWORD_VARIABLE, "")
        self._asked: dict[int, _Line] = {}
        self._served: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def serve(self, gather: Gather) -> None:
        """Answer the others from now on, in threads. Nothing is gathered before one of them asks."""
        if self._listener is not None:
            self._start(self._accept, self._listener, gather)

    def ask(self, rank: int, positions: npt.NDArray[np.int64], image_size: int) -> Callable[[], Images]:
        """Ask another process for the images at some of its positions.

        Returns:
            A function that waits for uint8 [N, image_size, image_size, 3].

        Raises:
            OwnerGoneError: also of the function.
        """
        try:
            line = self._asked.get(rank) or self._asked.setdefault(rank, _Line(self._addresses[rank], self._secret))
            receive = line.ask(positions, (image_size, image_size, 3))
        except challenge.NotOfThisRun:
            raise
        except OSError as error:
            raise self._gone(rank, error) from None

        def wait() -> Images:
            try:
                images = receive()
            except OSError as error:
                raise self._gone(rank, error) from None
            self.moved_bytes += images.nbytes
            return images

        return wait

    def close(self) -> None:
        """Ask and answer no more."""
        lines = [line.connection for line in self._asked.values()]
        for connection in (self._listener, *self._served, *lines):
            if connection is not None:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
                connection.close()
        for thread in self._threads:
            thread.join()

    def _gone(self, rank: int, error: OSError) -> OwnerGoneError:
        return OwnerGoneError(f"rank {rank} has gone, which holds a part of the training images ({error})")

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, name="owner", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket, gather: Gather) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed
                return
            self._served.append(connection)
            self._start(self._answer, connection, gather)

    def _answer(self, connection: socket.socket, gather: Gather) -> None:
        with suppress(OSError), connection:  # the other has gone, or is a stranger
            connection.settimeout(challenge.STRANGER_SECONDS)
            challenge.meet(connection, self._secret, listens=True)
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                (count,) = _COUNT.unpack(_received(connection, bytearray(_COUNT.size)))
                positions = np.empty(count, "<i8")
                _received(connection, positions)
                connection.sendall(np.ascontiguousarray(gather(positions)()).data)


class _Line:
    """A connection to another owner. Answers come in the order of the questions."""

    def __init__(self, address: tuple[str, int], secret: str) -> None:
        self.connection = socket.create_connection(address)
        try:
            challenge.meet(self.connection, secret, listens=False)
        except BaseException:
            self.connection.close()
            raise
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open: deque[Images] = deque()
        """Where the answers to open questions go."""

    def ask(self, positions: npt.NDArray[np.int64], image_shape: tuple[int, int, int]) -> Callable[[], Images]:
        self.connection.sendall(_COUNT.pack(len(positions)) + np.ascontiguousarray(positions, "<i8").tobytes())
        images = np.empty((len(positions), *image_shape), np.uint8)
        self._open.append(images)

        def receive() -> Images:
            while self._open:  # a feed that was left early has not waited for all answers
                first = self._open.popleft()
                _received(self.connection, first)
                if first is images:
                    break
            return images

        return receive


def meet(total: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]) -> Owners:
    """The owners of this run. All of its processes call it together.

    Args:
        total: sums over the processes of the run.
    """
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if ranks == 1:
        return Owners()
    listener = placement.bound(placement.own_address(), 0)
    listener.listen(ranks)
    own = " ".join([*map(str, listener.getsockname()[:2]), secrets.token_hex(8)]).encode()
    words = np.zeros((ranks, _LONGEST), np.int64)
    words[rank, : len(own)] = list(own)
    found = [bytes(row[row > 0].tolist()).decode().split() for row in total(words)]
    return Owners(rank, [(address, int(port)) for address, port, _ in found], listener, found[0][2])


def _received(connection: socket.socket, into: Any) -> Any:
    """Fill a buffer from a socket.

    Raises:
        ConnectionResetError: the other process has gone.
    """
    left = memoryview(into).cast("B")
    while left:
        count = connection.recv_into(left)
        if not count:
            raise ConnectionResetError("it has closed the connection")
        left = left[count:]
    return into

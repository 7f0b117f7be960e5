"""The processes of a run that hold the training images together. Each holds some, and sends the others what they ask for.

A request is positions in the owner's images. The answer is their pixels, or why there are none. Nothing is unpickled, and each
connection begins with `challenge`.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from common.machine import challenge, placement

Images = npt.NDArray[np.uint8]
Gather = Callable[[npt.NDArray[np.int64]], Callable[[], Images]]
"""Starts to gather the images at some positions. The function that it returns waits for them."""

_COUNT = struct.Struct("<q")
_FAILED = -1
"""In the place of an answer's count of images: the text of an error follows, after its length."""
_LONGEST_TEXT = 2**14
"""Bytes of an error's text."""
_LONGEST = 128
"""Bytes of an address in words."""
_MOST_STRANGERS = 32
"""Connections at one time that have not proved themselves. Others wait for their turn."""
_PAUSE_SECONDS = 0.1
"""For which the listener waits if it can accept no connection, e.g. for lack of file descriptors."""


class OwnerGoneError(ConnectionError):
    """A process that holds a part of the training images has ended."""


class OwnerFailedError(RuntimeError):
    """A process that holds a part of the training images lives, and cannot read them."""


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
        self._secret = os.environ.get(placement.RUN_SECRET_VARIABLE, "")
        self._asked: dict[int, _Line] = {}
        self._served: list[tuple[socket.socket, threading.Thread]] = []
        self._accepting: threading.Thread | None = None
        self._closed = threading.Event()
        self._strangers = threading.Semaphore(_MOST_STRANGERS)

    def serve(self, gather: Gather, images: int, most: int) -> None:
        """Answer the others from now on, in threads. Nothing is gathered before one of them asks.

        Args:
            images: number of images that this process holds. Positions are below it.
            most: images that one request may ask for.
        """
        if self._listener is not None:
            self._accepting = _thread(self._accept, self._listener, _Answering(gather, images, most))
            self._accepting.start()

    def ask(self, rank: int, positions: npt.NDArray[np.int64], image_size: int) -> Callable[[], Images]:
        """Ask another process for the images at some of its positions.

        Returns:
            A function that waits for uint8 [N, image_size, image_size, 3].

        Raises:
            OwnerGoneError: also of the function.
            OwnerFailedError: of the function.
        """
        try:
            line = self._asked.get(rank) or self._asked.setdefault(rank, _Line(self._addresses[rank], self._secret))
            receive = line.ask(positions, (image_size, image_size, 3))
        except challenge.AuthenticationError:
            raise
        except OSError as error:
            raise self._gone(rank, error) from None

        def wait() -> Images:
            try:
                images = receive()
            except _AnswerError as error:
                raise OwnerFailedError(f"rank {rank} cannot read its part of the training images: {error}") from None
            except OSError as error:
                raise self._gone(rank, error) from None
            self.moved_bytes += images.nbytes
            return images

        return wait

    def close(self) -> None:
        """Ask and answer no more."""
        self._closed.set()
        if self._listener is not None:
            _end(self._listener)
        if self._accepting is not None:
            self._accepting.join()  # first: it may have just accepted one more
        for connection in (*(each for each, _ in self._served), *(line.connection for line in self._asked.values())):
            _end(connection)
        for _, thread in self._served:
            thread.join()

    def _gone(self, rank: int, error: OSError) -> OwnerGoneError:
        return OwnerGoneError(f"rank {rank} has gone, which holds a part of the training images ({error})")

    def _accept(self, listener: socket.socket, answering: _Answering) -> None:
        while not self._closed.is_set():
            if not self._strangers.acquire(timeout=_PAUSE_SECONDS):
                continue
            try:
                connection, _ = listener.accept()
            except OSError:  # closed, or a lack of file descriptors, which passes
                self._strangers.release()
                self._closed.wait(_PAUSE_SECONDS)
                continue
            thread = _thread(self._answer, connection, answering)
            try:
                thread.start()
            except RuntimeError:  # a lack of threads
                self._strangers.release()
                connection.close()
                continue
            self._served = [each for each in self._served if each[1].is_alive()] + [(connection, thread)]

    def _answer(self, connection: socket.socket, answering: _Answering) -> None:
        with suppress(OSError), connection:  # the other has gone, or is a stranger
            try:
                deadline = time.monotonic() + challenge.HANDSHAKE_SECONDS
                challenge.authenticate(connection, self._secret, server_side=True, deadline=deadline)
            finally:
                self._strangers.release()
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while answering.answer(connection):
                pass


@dataclass(frozen=True)
class _Answering:
    """What an owner answers to one request after the other."""

    gather: Gather
    images: int
    most: int

    def answer(self, connection: socket.socket) -> bool:
        """Answer the next request. Returns whether another may follow."""
        (count,) = _COUNT.unpack(_received(connection, bytearray(_COUNT.size)))
        if not 1 <= count <= self.most:
            _say(connection, f"a request asks for 1 to {self.most} images. Received: {count}.")
            return False  # what follows cannot be read
        positions = _received(connection, np.empty(count, "<i8"))
        if positions.min() < 0 or positions.max() >= self.images:
            _say(connection, f"positions are below {self.images}. Received: {positions.min()} to {positions.max()}.")
            return True
        try:
            images = np.ascontiguousarray(self.gather(positions)())
        except Exception as error:  # of a file, a decoder or Dask: it is told to the process that asked
            _say(connection, f"{type(error).__name__}: {error}")
            return True
        connection.sendall(_COUNT.pack(count))
        connection.sendall(images.data)
        return True


class _AnswerError(Exception):
    """The answer to a question is an error."""


@dataclass(eq=False)
class _Question:
    """One that is open until its answer has arrived."""

    images: Images
    """Where the answer goes."""
    error: str | None = None


class _Line:
    """A connection to another owner. Answers come in the order of the questions."""

    def __init__(self, address: tuple[str, int], secret: str) -> None:
        self.connection = socket.create_connection(address)
        try:
            challenge.authenticate(self.connection, secret, server_side=False)
        except BaseException:
            self.connection.close()
            raise
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open: deque[_Question] = deque()

    def ask(self, positions: npt.NDArray[np.int64], image_shape: tuple[int, int, int]) -> Callable[[], Images]:
        self._send(_COUNT.pack(len(positions)) + np.ascontiguousarray(positions, "<i8").tobytes())
        question = _Question(np.empty((len(positions), *image_shape), np.uint8))
        self._open.append(question)

        def receive() -> Images:
            while question in self._open:  # a feed that was left early has not waited for all answers
                self._receive()
            if question.error is not None:
                raise _AnswerError(question.error)
            return question.images

        return receive

    def _send(self, request: bytes) -> None:
        """Send while reading answers. The other process may read no request before its answers are read."""
        left = memoryview(request)
        while left:
            try:
                left = left[self.connection.send(left, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                with selectors.DefaultSelector() as selector:
                    selector.register(self.connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
                    ready = selector.select()[0][1]
                if ready & selectors.EVENT_READ:
                    self._receive()

    def _receive(self) -> None:
        """Read the answer to the oldest open question."""
        (count,) = _COUNT.unpack(_received(self.connection, bytearray(_COUNT.size)))
        if not self._open:
            raise ConnectionResetError("it has answered without a question")
        question = self._open.popleft()
        if count == len(question.images):
            _received(self.connection, question.images)
            return
        (length,) = _COUNT.unpack(_received(self.connection, bytearray(_COUNT.size)))
        if count != _FAILED or not 0 <= length <= _LONGEST_TEXT:
            raise ConnectionResetError("its answer is not to the question")
        question.error = bytes(_received(self.connection, bytearray(length))).decode(errors="replace")


def _say(connection: socket.socket, error: str) -> None:
    """Answer with the text of an error."""
    text = error.encode()[:_LONGEST_TEXT]
    connection.sendall(_COUNT.pack(_FAILED) + _COUNT.pack(len(text)) + text)


def _thread(work: Callable[..., None], *arguments: Any) -> threading.Thread:
    return threading.Thread(target=work, args=arguments, name="owner", daemon=True)


def _end(connection: socket.socket) -> None:
    """Close a socket, and wake the thread that waits for it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def meet(total: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]) -> Owners:
    """The owners of this run. All of its processes call it together.

    Args:
        total: sums over the processes of the run.
    """
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if ranks == 1:
        return Owners()
    listener = placement.bind(placement.local_address(), 0)
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

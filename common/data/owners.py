"""The processes of a run that hold the training images together. Each holds some, and sends them to the others on request.

A request is positions in the owner's images. The answer is their pixels, or the text of an error. Nothing is unpickled, and
each connection is a `Connection`, which refuses strangers.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from common.machine import challenge, placement
from common.machine.connection import Connection

Images = npt.NDArray[np.uint8]
Gather = Callable[[npt.NDArray[np.int64]], Callable[[], Images]]
"""Starts to gather the images at some positions. The function that it returns waits for them."""

_COUNT = struct.Struct("<q")
_FAILED = -1
"""Code in place of an answer's count of images. The length and the text of an error follow."""
_MAX_ERROR_BYTES = 2**14
"""Largest size of an error's text, in bytes."""
_MAX_ADDRESS_BYTES = 128
"""Largest size of an address as text, in bytes."""
_MAX_UNAUTHENTICATED = 32
"""Largest number of connections at a time that have not authenticated themselves. Others wait."""
_PAUSE_SECONDS = 0.1
"""Seconds that the listener waits if it can accept no connection, e.g. for lack of file descriptors."""


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
        token: str | None = None,
        *,
        handshake_seconds: float = challenge.HANDSHAKE_SECONDS,
    ) -> None:
        """Store the owners by rank.

        Args:
            rank: rank of this process.
            addresses: address of each owner, by rank. None: this process is alone.
            listener: socket at the address of this rank. This object closes it.
            token: an id that all owners of this run share with no other run. None: a new one.
            handshake_seconds: seconds within which another process must authenticate itself.
        """
        self.word = token or secrets.token_hex(8)
        self.rank = rank
        self.size = len(addresses or [None])
        self.moved_bytes = 0
        """Bytes of the pixels that this process has received from others."""
        self._addresses = addresses or []
        self._listener = listener
        self._secret = os.environ.get(placement.RUN_SECRET_VARIABLE, "")
        self._connections: dict[int, _PeerConnection] = {}
        self._handlers: list[tuple[socket.socket, threading.Thread]] = []
        self._accept_thread: threading.Thread | None = None
        self._handshake_seconds = handshake_seconds
        self._closed = threading.Event()
        self._unauthenticated = threading.Semaphore(_MAX_UNAUTHENTICATED)

    def serve(self, gather: Gather, num_images: int, max_images: int) -> None:
        """Answer the others from now on, in threads. Nothing is gathered before the first request.

        Args:
            gather: gathers images at some positions.
            num_images: number of images that this process holds. Positions are below it.
            max_images: largest number of images in one request.
        """
        if self._listener is not None:
            self._accept_thread = _thread(self._accept, self._listener, _RequestHandler(gather, num_images, max_images))
            self._accept_thread.start()

    def ask(self, rank: int, positions: npt.NDArray[np.int64], image_size: int) -> Callable[[], Images]:
        """Ask another process for the images at some of its positions.

        Returns:
            A function that waits for uint8 [N, image_size, image_size, 3].

        Raises:
            OwnerGoneError: the other process has gone. The function raises it too.
            OwnerFailedError: the other process cannot read the images. Only the function raises it.
        """
        try:
            connection = self._connections.get(rank) or self._connections.setdefault(
                rank, _PeerConnection(self._addresses[rank], self._secret)
            )
            receive = connection.ask(positions, (image_size, image_size, 3))
        except challenge.AuthenticationError:
            raise
        except OSError as error:
            raise self._gone_error(rank, error) from None

        def wait() -> Images:
            try:
                images = receive()
            except _AnswerError as error:
                raise OwnerFailedError(f"rank {rank} cannot read its part of the training images: {error}") from None
            except OSError as error:
                raise self._gone_error(rank, error) from None
            self.moved_bytes += images.nbytes
            return images

        return wait

    def close(self) -> None:
        """Close all connections, and end the threads. A garbage collection may call it in one of these threads."""
        self._closed.set()
        if self._listener is not None:
            _close_socket(self._listener)
        if self._accept_thread is not None:
            _join(self._accept_thread)  # first: it may have just accepted one more
        for connection in (
            *(handler_connection for handler_connection, _ in self._handlers),
            *(peer.socket for peer in self._connections.values()),
        ):
            _close_socket(connection)
        for _, thread in self._handlers:
            _join(thread)

    def _gone_error(self, rank: int, error: OSError) -> OwnerGoneError:
        return OwnerGoneError(f"rank {rank} has gone, which holds a part of the training images ({error})")

    def _accept(self, listener: socket.socket, handler: _RequestHandler) -> None:
        while not self._closed.is_set():
            if not self._unauthenticated.acquire(timeout=_PAUSE_SECONDS):
                continue
            try:
                connection, _ = listener.accept()
            except OSError:  # closed, or a lack of file descriptors, which passes
                self._unauthenticated.release()
                self._closed.wait(_PAUSE_SECONDS)
                continue
            thread = _thread(self._answer, connection, handler)
            try:
                thread.start()
            except RuntimeError:  # a lack of threads
                self._unauthenticated.release()
                connection.close()
                continue
            self._handlers = [entry for entry in self._handlers if entry[1].is_alive()] + [(connection, thread)]
        for connection, _ in self._handlers:
            _close_socket(connection)  # `close` has missed the last one if this thread called it

    def _answer(self, accepted: socket.socket, handler: _RequestHandler) -> None:
        with suppress(OSError):  # the other has gone, or is a stranger
            try:
                connection = Connection(accepted, self._secret, server_side=True, seconds=self._handshake_seconds)
            finally:
                self._unauthenticated.release()
            with connection:
                connection.wait_without_limit()
                while handler.answer(connection):
                    pass


@dataclass(frozen=True)
class _RequestHandler:
    """Handles the requests to an owner, one after the other."""

    gather: Gather
    num_images: int
    max_images: int

    def answer(self, connection: Connection) -> bool:
        """Answer the next request. Returns whether another may follow."""
        (count,) = _COUNT.unpack(connection.receive(_COUNT.size))
        if not 1 <= count <= self.max_images:
            _send_error(connection, f"a request asks for 1 to {self.max_images} images. Received: {count}.")
            return False  # what follows cannot be read
        positions = connection.receive_into(np.empty(count, "<i8"))
        if positions.min() < 0 or positions.max() >= self.num_images:
            _send_error(connection, f"positions are below {self.num_images}. Received: {positions.min()} to {positions.max()}.")
            return True
        try:
            images = np.ascontiguousarray(self.gather(positions)())
        except Exception as error:  # of a file, a decoder or Dask: it is told to the process that asked
            _send_error(connection, f"{type(error).__name__}: {error}")
            return True
        connection.send(_COUNT.pack(count))
        connection.send(images.data)
        return True


class _AnswerError(Exception):
    """The answer to a request is an error."""


@dataclass(eq=False)
class _PendingRequest:
    """A request whose answer has not arrived."""

    images: Images
    """Array that receives the answer."""
    error: str | None = None


class _PeerConnection:
    """A connection to another owner. Answers come in the order of the requests."""

    def __init__(self, address: tuple[str, int], secret: str) -> None:
        self._connection = Connection(socket.create_connection(address), secret, server_side=False)
        self.socket = self._connection.socket
        self._pending: deque[_PendingRequest] = deque()

    def ask(self, positions: npt.NDArray[np.int64], image_shape: tuple[int, int, int]) -> Callable[[], Images]:
        self._send(_COUNT.pack(len(positions)) + np.ascontiguousarray(positions, "<i8").tobytes())
        request = _PendingRequest(np.empty((len(positions), *image_shape), np.uint8))
        self._pending.append(request)

        def receive() -> Images:
            while request in self._pending:  # a feed that was left early has not waited for all answers
                self._receive()
            if request.error is not None:
                raise _AnswerError(request.error)
            return request.images

        return receive

    def _send(self, request: bytes) -> None:
        """Send while reading answers. The other process may read no request before its answers are read."""
        remaining = memoryview(request)
        while remaining:
            try:
                remaining = remaining[self.socket.send(remaining, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                with selectors.DefaultSelector() as selector:
                    selector.register(self.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
                    ready = selector.select()[0][1]
                if ready & selectors.EVENT_READ:
                    self._receive()

    def _receive(self) -> None:
        """Read the answer to the oldest pending request."""
        (count,) = _COUNT.unpack(self._connection.receive(_COUNT.size))
        if not self._pending:
            raise ConnectionResetError("it has answered without a question")
        request = self._pending.popleft()
        if count == len(request.images):
            self._connection.receive_into(request.images)
            return
        (length,) = _COUNT.unpack(self._connection.receive(_COUNT.size))
        if count != _FAILED or not 0 <= length <= _MAX_ERROR_BYTES:
            raise ConnectionResetError("its answer is not to the question")
        request.error = self._connection.receive(length).decode(errors="replace")


def _send_error(connection: Connection, error: str) -> None:
    """Answer with the text of an error."""
    text = error.encode()[:_MAX_ERROR_BYTES]
    connection.send(_COUNT.pack(_FAILED) + _COUNT.pack(len(text)) + text)


def _thread(work: Callable[..., None], *arguments: Any) -> threading.Thread:
    return threading.Thread(target=work, args=arguments, name="owner", daemon=True)


def _join(thread: threading.Thread) -> None:
    """Wait for a thread to end, unless it waits itself."""
    if thread is not threading.current_thread():
        thread.join()


def _close_socket(connection: socket.socket) -> None:
    """Close a socket, and wake the thread that waits for it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def connect_owners(all_reduce: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]) -> Owners:
    """Connect the owners of this run. All of its processes call it together.

    Args:
        all_reduce: sums an array over the processes of the run.
    """
    rank, ranks = placement.rank(), placement.num_ranks()
    if ranks == 1:
        return Owners()
    listener = placement.bind(placement.local_address(), 0)
    listener.listen(ranks)
    address_bytes = " ".join([*map(str, listener.getsockname()[:2]), secrets.token_hex(8)]).encode()
    encoded = np.zeros((ranks, _MAX_ADDRESS_BYTES), np.int64)
    encoded[rank, : len(address_bytes)] = list(address_bytes)
    decoded = [bytes(row[row > 0].tolist()).decode().split() for row in all_reduce(encoded)]
    return Owners(rank, [(address, int(port)) for address, port, _ in decoded], listener, decoded[0][2])

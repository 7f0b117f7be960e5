"""Processes that send each other images, all of which are this one. Strangers and broken owners among them."""

import errno
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.data import chunks
from common.data.owners import Gather, OwnerFailedError, Owners
from common.data.sources import DatasetSplit
from common.machine import challenge, placement
from common.machine.connection import Connection
from tests.common.data.test_chunks import IMAGES, SPLIT, a_plan, together

SIZE = 2
"""Of the images."""
OWN = np.arange(100 * SIZE * SIZE * 3).astype(np.uint8).reshape(100, SIZE, SIZE, 3)
"""Those of each owner."""
MOST = 2048
SECONDS = 60


def gather(positions: Any) -> Callable[[], Any]:
    return lambda: OWN[positions]


@pytest.fixture
def made() -> Iterator[Callable[..., list[Owners]]]:
    """Makes owners that answer."""
    opened: list[Owners] = []

    def make(
        ranks: int = 2,
        how: Gather = gather,
        listener: Callable[[socket.socket], socket.socket] | None = None,
        handshake_seconds: float = challenge.HANDSHAKE_SECONDS,
    ) -> Any:
        listeners = [placement.bind(placement.LOOPBACK, 0) for _ in range(ranks)]
        for each in listeners:
            each.listen(64)
        addresses = [each.getsockname() for each in listeners]
        if listener:
            listeners[1] = listener(listeners[1])
        for rank, each in enumerate(listeners):
            opened.append(Owners(rank, addresses, each, handshake_seconds=handshake_seconds))
        for owners in opened:
            owners.serve(how, len(OWN), MOST)
        return opened

    yield make
    for owners in opened:
        owners.close()


def address(owners: Owners) -> tuple[str, int]:
    return owners._addresses[1]


def test_an_owner_that_cannot_read_its_images_is_not_called_gone_and_says_why(tmp_path: Path) -> None:
    splits: list[DatasetSplit] = []
    for rank in range(2):
        np.save(tmp_path / f"{rank}.npy", IMAGES)
        splits.append(DatasetSplit(images=np.load(tmp_path / f"{rank}.npy", mmap_mode="r"), labels=SPLIT.labels))
    accounts = together(2)
    feeds = [chunks.feed(a_plan(), split, 2, rank, accounts[rank]) for rank, split in enumerate(splits)]
    (tmp_path / "1.npy").unlink()
    with pytest.raises(
        OwnerFailedError, match=r"rank 1 .*part of the training images.*FileNotFoundError.*1\.npy"
    ):  # a name would keep the feeds alive
        list(feeds[0](1, range(6)))
    del feeds


def test_answers_after_an_error_are_those_to_their_questions(made: Any) -> None:
    def torn(positions: Any) -> Callable[[], Any]:
        if positions[0] == 13:
            raise OSError("image 13 is torn")
        return gather(positions)

    owners = made(how=torn)[0]
    asked = [owners.ask(1, np.array([position]), SIZE) for position in (7, 13, 8)]
    assert np.array_equal(asked[0](), OWN[7:8])
    with pytest.raises(OwnerFailedError, match=r"rank 1 .*OSError: image 13 is torn"):
        asked[1]()
    assert np.array_equal(asked[2](), OWN[8:9])


def test_owners_that_ask_each_other_for_more_than_the_system_buffers_do_not_wait_for_each_other(made: Any) -> None:
    both, positions = made(), np.arange(MOST) % len(OWN)
    wrong: list[int] = []

    def ask(rank: int) -> None:
        waiting = [both[rank].ask(1 - rank, positions, SIZE) for _ in range(1024)]
        wrong.append(sum(not np.array_equal(wait(), OWN[positions]) for wait in waiting))

    threads = [threading.Thread(target=ask, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert wrong == [0, 0]


@pytest.mark.parametrize(
    ("count", "positions", "said"),
    [
        (2**40, [], "asks for 1 to 2048 images. Received: 1099511627776"),
        (-1, [], "Received: -1"),
        (2, [0, 100], "positions are below 100. Received: 0 to 100"),
        (2, [-1, 0], "Received: -1 to 0"),
    ],
)
def test_a_request_for_what_an_owner_has_not_is_refused(made: Any, count: int, positions: list[int], said: str) -> None:
    with socket.create_connection(address(made()[0])) as connection:
        connection.settimeout(SECONDS)
        Connection(connection, "", server_side=False)
        connection.sendall(struct.pack(f"<q{len(positions)}q", count, *positions))
        with connection.makefile("rb") as answer:
            failed, length = struct.unpack("<qq", answer.read(16))
            assert failed == -1 and said in answer.read(length).decode()


def test_a_listener_that_lacks_file_descriptors_for_a_while_goes_on(made: Any) -> None:
    class Full(socket.socket):
        refusals = 2

        def accept(self) -> Any:
            if self.refusals:
                self.refusals -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    owners = made(listener=lambda each: Full(fileno=each.detach()))[0]
    assert np.array_equal(owners.ask(1, np.array([5]), SIZE)(), OWN[5:6])


def test_strangers_have_little_time_and_are_few_at_once(made: Any) -> None:
    owners, answering = made(handshake_seconds=0.5)
    before = threading.active_count()
    silent = [socket.create_connection(address(owners)) for _ in range(50)]
    time.sleep(0.3)
    assert threading.active_count() - before <= 32
    begun = time.monotonic()
    with suppress(OSError):
        while time.monotonic() < begun + SECONDS:  # a byte now and then is no proof
            silent[0].sendall(b"\0")
            time.sleep(0.1)
    assert time.monotonic() < begun + 2.5, "it was still listened to"
    assert np.array_equal(owners.ask(1, np.array([5]), SIZE)(), OWN[5:6])
    assert len(answering._handlers) < len(silent), "those that have ended are forgotten"
    for each in silent:
        each.close()


@pytest.mark.parametrize("thread", ["that answers", "that accepts"])
def test_a_thread_of_the_owners_may_close_them_as_a_garbage_collection_in_it_does(made: Any, thread: str) -> None:
    ended, errors, before = threading.Event(), list[RuntimeError](), threading.active_count()

    def close() -> None:
        try:
            both[1].close()
        except RuntimeError as error:
            errors.append(error)
        ended.set()

    def how(positions: Any) -> Callable[[], Any]:
        close()
        return gather(positions)

    class Closing(socket.socket):
        def accept(self) -> Any:
            connection = super().accept()
            if thread == "that accepts":
                close()
            return connection

    both = made(how=how, listener=lambda each: Closing(fileno=each.detach()))
    with pytest.raises(OSError):
        both[0].ask(1, np.array([5]), SIZE)()
    assert ended.wait(SECONDS) and errors == []
    for owners in both:
        owners.close()
    assert threading.active_count() == before


def test_a_connection_that_is_accepted_while_owners_close_is_closed_too(made: Any) -> None:
    accepted, may_return = threading.Event(), threading.Event()

    class Slow(socket.socket):
        def accept(self) -> Any:
            found = super().accept()
            accepted.set()
            may_return.wait(SECONDS)
            return found

    before = threading.active_count()
    both = made(listener=lambda each: Slow(fileno=each.detach()))
    with socket.create_connection(address(both[0])) as connection:
        assert accepted.wait(SECONDS)
        closing = threading.Thread(target=both[1].close)
        closing.start()
        time.sleep(0.2)
        may_return.set()
        begun = time.monotonic()
        closing.join(SECONDS)
        assert time.monotonic() < begun + challenge.HANDSHAKE_SECONDS / 2
        connection.settimeout(SECONDS)
        with suppress(ConnectionResetError):
            while connection.recv(64):
                pass
    both[0].close()
    assert threading.active_count() == before

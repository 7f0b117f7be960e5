import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest

from common.machine.challenge import BYTES, AuthenticationError, Challenge
from common.machine.connection import Connection


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a connection: the listener's first."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = socket.create_connection(listener.getsockname())
        with listener.accept()[0] as accepted, other:
            yield accepted, other


Ends = tuple[socket.socket, socket.socket]


def outcome(ends: Ends, *secrets: str) -> list[bool]:
    """Whether each end accepts the other."""
    accepted = [False, False]

    def meet(place: int) -> None:
        with suppress(AuthenticationError):
            Connection(ends[place], secrets[place], server_side=place == 0)
            accepted[place] = True

    threads = [threading.Thread(target=meet, args=(place,)) for place in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return accepted


@pytest.mark.parametrize(
    ("secrets", "accepted"),
    [(("one", "one"), [True, True]), (("one", "two"), [False, False]), (("", "one"), [False, False]), (("", ""), [True, True])],
)
def test_both_sides_must_know_the_secret(connection: Ends, secrets: tuple[str, str], accepted: list[bool]) -> None:
    assert outcome(connection, *secrets) == accepted


def reflected(mine: Challenge, ends: Ends) -> bytes:
    """What the listener answers, sent back to it."""
    return mine.answer(mine.nonce)


def by_the_same_role(mine: Challenge, ends: Ends) -> bytes:
    other = Challenge("one", ends[0], server_side=True)
    other.nonce = b"1" * BYTES
    mine.answer(other.nonce)
    return other.answer(mine.nonce)


def to_another_challenge(mine: Challenge, ends: Ends) -> bytes:
    other = Challenge("one", ends[1], server_side=False)
    mine.answer(other.nonce)
    return other.answer(b"2" * BYTES)


def from_another_address(mine: Challenge, ends: Ends) -> bytes:
    """What a rank says that was led to a relay, which listens at another port."""
    with socket.create_server(("127.0.0.1", 0)) as relay, closing(socket.create_connection(relay.getsockname())) as led:
        other = Challenge("one", led, server_side=False)
    mine.answer(other.nonce)
    return other.answer(mine.nonce)


@pytest.mark.parametrize("forged", [reflected, by_the_same_role, to_another_challenge, from_another_address])
def test_an_answer_that_was_given_elsewhere_is_no_proof(connection: Ends, forged: Callable[[Challenge, Ends], bytes]) -> None:
    mine = Challenge("one", connection[0], server_side=True)
    with pytest.raises(AuthenticationError):
        mine.verify(forged(mine, connection))


def test_the_secret_is_never_sent_and_no_two_exchanges_are_alike(connection: Ends) -> None:
    secret = "a secret of the run"
    made = [Challenge(secret, connection[0], server_side=True) for _ in range(2)]
    sent = [each.nonce + each.answer(b"3" * BYTES) for each in made]
    assert sent[0] != sent[1]
    assert not any(secret.encode() in each for each in sent)


def test_a_process_that_goes_is_no_proof(connection: Ends) -> None:
    connection[1].close()
    with pytest.raises(ConnectionError):
        Connection(connection[0], "one", server_side=True)


def test_a_dask_listener_lets_go_of_a_stranger_that_says_nothing() -> None:
    from distributed.comm import listen

    from common.machine.dask_security import RunSecurity

    arguments = RunSecurity(handshake_seconds=0.2).get_listen_args("worker")

    async def answered() -> bytes:
        async with listen("convtwins://127.0.0.1:0", lambda comm: None, **arguments) as listener:
            _, _, port = listener.listen_address.rpartition(":")
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
            received = await asyncio.wait_for(reader.read(), 300)
            writer.close()
            return received

    assert len(asyncio.run(answered())) == BYTES

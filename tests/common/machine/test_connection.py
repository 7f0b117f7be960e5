import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from common.machine.connection import Connection

SECRET = "of the run"
Sockets = tuple[socket.socket, socket.socket]


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    """The two ends of a connection: the listener's first."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = socket.create_connection(listener.getsockname())
        with listener.accept()[0] as accepted, other:
            yield accepted, other


def connect(sockets: Sockets, seconds: float | None = None) -> tuple[Connection, Connection]:
    clients: list[Connection] = []
    client = threading.Thread(target=lambda: clients.append(Connection(sockets[1], SECRET, server_side=False)))
    client.start()
    server = Connection(sockets[0], SECRET, server_side=True, seconds=seconds)
    client.join()
    return server, clients[0]


def test_bytes_arrays_and_lines_arrive_as_they_were_sent(sockets: Sockets) -> None:
    server, client = connect(sockets)
    sent = np.arange(6, dtype="<i8").reshape(2, 3)
    client.send(b"head")
    client.send(sent.data)
    client.send(b'["a line"]\n')
    assert server.receive(4) == b"head"
    assert np.array_equal(server.receive_into(np.empty_like(sent)), sent)
    assert server.receive_line(64) == b'["a line"]\n'


@pytest.mark.parametrize("content", [b"", b"no end", b"x" * 64])
def test_a_line_that_does_not_end_is_none(sockets: Sockets, content: bytes) -> None:
    server, client = connect(sockets)
    client.send(content)
    client.socket.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError, match="no whole line"):
        server.receive_line(32)


def test_a_process_that_has_gone_is_no_end_of_a_message(sockets: Sockets) -> None:
    server, client = connect(sockets)
    client.send(b"ha")
    client.close()
    with pytest.raises(ConnectionResetError):
        server.receive(4)


def test_one_time_holds_for_the_handshake_and_all_that_follows(sockets: Sockets) -> None:
    server, client = connect(sockets, seconds=0.5)
    ended = threading.Event()

    def drip() -> None:
        while not ended.wait(0.1):
            client.send(b"x")

    sender = threading.Thread(target=drip)
    sender.start()
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        server.receive(1024)
    assert time.monotonic() < begun + 30
    ended.set()
    sender.join()


def test_a_process_that_has_introduced_itself_may_take_any_time(sockets: Sockets) -> None:
    server, client = connect(sockets, seconds=0.3)
    server.wait_without_limit()
    later = threading.Timer(0.6, client.send, (b"late",))
    later.start()
    assert server.receive(4) == b"late"
    later.join()


def test_a_socket_is_closed_if_the_other_process_does_not_know_the_secret(sockets: Sockets) -> None:
    sockets[1].sendall(b"\0" * 64)
    with pytest.raises(ConnectionError):
        Connection(sockets[0], SECRET, server_side=True)
    assert sockets[0].fileno() == -1

"""The links of the chaos runs: each does to connections what it says."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from livetables.local.ports import free_ports
from tests.chaos.links import Link

SECONDS = 10.0


class Echo:
    """A server that sends back what it is sent, and remembers it."""

    def __init__(self) -> None:
        self.received = b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listening.getsockname()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(65536):
                self.received += data
                connection.sendall(data)
        except OSError:
            pass

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def link(echo: Echo) -> Iterator[Link]:
    with Link(("127.0.0.1", free_ports(1)[0]), echo.address) as opened:
        yield opened


def connected(link: Link) -> socket.socket:
    return socket.create_connection(link.listening, timeout=SECONDS)


def asked(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return received(connection, len(data))


def received(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (piece := connection.recv(size - len(found))):
        found += piece
    return found


def wait_for(echo: Echo, data: bytes) -> None:
    deadline = time.monotonic() + SECONDS
    while data not in echo.received:
        assert time.monotonic() < deadline, f"{data!r} did not arrive"
        time.sleep(0.01)


def test_an_open_link_passes_everything(link: Link) -> None:
    with connected(link) as connection:
        data = bytes(range(256)) * 1000
        assert asked(connection, data) == data


def test_a_slow_link_passes_everything_late(link: Link) -> None:
    with connected(link) as connection, link.broken("slow"):
        assert asked(connection, b"x" * 10_000) == b"x" * 10_000


def test_a_link_that_resets_ends_connections_and_takes_new_ones_afterwards(link: Link) -> None:
    with connected(link) as connection:
        assert asked(connection, b"before") == b"before"
        with link.broken("reset"), pytest.raises(ConnectionResetError):
            received(connection, 1)
    with connected(link) as connection:
        assert asked(connection, b"after") == b"after"


def test_what_goes_into_a_black_hole_comes_out_when_it_is_gone(link: Link, echo: Echo) -> None:
    with connected(link) as connection:
        assert asked(connection, b"before") == b"before"
        with link.broken("black_hole"):
            connection.sendall(b"during")
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                received(connection, 1)
            assert b"during" not in echo.received
        connection.settimeout(SECONDS)
        assert received(connection, 6) == b"during"


def test_a_half_open_link_loses_answers_without_an_error_until_it_is_reset(link: Link, echo: Echo) -> None:
    with connected(link) as connection:
        with link.broken("half_open", "from"):
            connection.sendall(b"request")
            wait_for(echo, b"request")
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                received(connection, 1)
            connection.settimeout(SECONDS)
        with pytest.raises(ConnectionResetError):
            received(connection, 1)


def test_an_answer_is_lost_with_its_connection_after_the_request_has_arrived(link: Link, echo: Echo) -> None:
    with connected(link) as connection, link.broken("lost_answers"):
        connection.sendall(b"request")
        with pytest.raises(ConnectionResetError):
            received(connection, 1)
        wait_for(echo, b"request")
        assert link.answers_lost == 1

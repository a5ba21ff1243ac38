"""Those without a key at a real server: what they send is bounded, and they keep nobody out."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.pipeline.server_client import SMALL_BODY_BYTES
from livetables.server.api.front import PREFACE_BYTES, READER_BYTES_MAX, STRANGER_SECONDS, STRANGERS_MAX, Meter
from livetables.server.api.http_timeouts import HEAD_SECONDS
from tests.support import certificates
from tests.support.server import TOKEN, ServerProcess

pytestmark = pytest.mark.processes

TEXTS = TableShape("texts", pa.schema([("id", pa.int64()), ("text", pa.string())]), ("id",))
MESSAGE_BYTES = 200_000_000
GROWTH_MEGABYTES_MAX = 100  # four such messages took 2.2 GB
LATE_SECONDS = 10.0


@pytest.fixture(scope="module", params=["plain", "tls"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("server")
    authority = certificates.authority(directory)
    shown = certificates.signed_by(authority, directory, hosts="IP:127.0.0.1")
    with ServerProcess(directory, shown.settings if request.param == "tls" else {}) as server:
        server.ca_file = authority.certificate if request.param == "tls" else None  # type: ignore[attr-defined]
        yield server


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("plain")) as server:
        yield server


def flight_client(server: ServerProcess) -> flight.FlightClient:
    ca_file: Path | None = getattr(server, "ca_file", None)
    trusted = {"tls_root_certs": ca_file.read_bytes()} if ca_file else {}
    return flight.FlightClient(server.flight, generic_options=[("grpc.use_local_subchannel_pool", 1)], **trusted)


def options(token: str | None = TOKEN) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(
        timeout=60, headers=[(b"authorization", f"Bearer {token}".encode())] if token else []
    )


def is_closed(connection: socket.socket, seconds: float) -> bool:
    """Whether the server closes a connection within a time; what it sends meanwhile does not count."""
    connection.settimeout(seconds)
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            if not connection.recv(65536):
                return True
    except TimeoutError:
        return False
    except OSError:
        return True
    return False


# Flight


@pytest.mark.parametrize("token", [None, "wrong"])
def test_large_messages_without_a_key_take_no_memory(server: ServerProcess, token: str | None) -> None:
    body = pa.py_buffer(bytes(MESSAGE_BYTES))
    peak, ended = 0.0, threading.Event()
    before = server.rss_megabytes()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.02):
            peak = max(peak, server.rss_megabytes())

    def send(_: int) -> None:
        with flight_client(server) as each, pytest.raises(flight.FlightError):
            list(each.do_action(flight.Action("put", body), options(token)))

    with ThreadPoolExecutor(5) as threads:
        watching = threads.submit(watch)
        list(threads.map(send, range(4)))
        ended.set()
        watching.result(10)
    assert peak - before < GROWTH_MEGABYTES_MAX


def test_a_reader_sends_no_large_messages_either(plain: ServerProcess) -> None:
    settings = options()
    with flight_client(plain) as each:
        assert list(each.list_flights(options=settings)) == []
        with pytest.raises(flight.FlightError):
            each.do_get(flight.Ticket(bytes(2 * READER_BYTES_MAX)), settings).read_all()
        assert list(each.list_flights(options=settings)) == []


def test_the_pipeline_sends_large_batches(plain: ServerProcess) -> None:
    rows = pa.table({"id": range(100), "text": ["x" * 100_000] * 100}, TEXTS.schema)
    assert rows.nbytes > 10 * SMALL_BODY_BYTES
    with closing(plain.sink()) as sink:
        sink.begin("large", [TEXTS])
        sink.put(Batch("large", 0, (TableChanges("texts", rows, TEXTS.key_schema.empty_table()),)))
        sink.publish("large")
        assert plain.table("texts").num_rows == 100
        sink.drop("large")


def test_many_connections_without_a_key_keep_nobody_out(plain: ServerProcess) -> None:
    with ExitStack() as opened:
        for _ in range(2 * STRANGERS_MAX):
            opened.enter_context(socket.create_connection(("127.0.0.1", plain.flight_port)))
        with closing(plain.sink(patience_seconds=5)) as sink:
            assert sink.generations() == ()


def test_connections_without_a_key_are_closed_and_one_with_a_key_stays(plain: ServerProcess) -> None:
    with closing(flight_client(plain)) as known, ExitStack() as opened:
        list(known.list_flights(options=options()))
        idle, half = (
            opened.enter_context(socket.create_connection(("127.0.0.1", plain.flight_port))) for _ in range(2)
        )
        half.sendall(b"PRI * HTTP")
        before = plain.log().count("flight_sent_away")
        for stranger in (idle, half):
            assert is_closed(stranger, STRANGER_SECONDS + LATE_SECONDS)
        assert list(known.list_flights(options=options())) == []
        assert plain.log().count("flight_sent_away") == before + 2


def test_what_is_sent_in_calls_that_are_not_whole_is_counted() -> None:
    def frame(kind: int, flags: int, stream: int, length: int) -> bytes:
        return length.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + bytes(length)

    sent = b"".join(
        [
            bytes(PREFACE_BYTES),
            frame(0x4, 0, 0, 18),  # settings
            frame(0x1, 0x4, 1, 100),  # headers
            frame(0x0, 0, 1, 300),
            frame(0x0, 0, 3, 1000),
            frame(0x0, 0x1, 1, 5),  # the end of the first
        ]
    )
    for size in (1, 7, len(sent)):
        meter = Meter()
        for place in range(0, len(sent), size):
            meter.take(sent[place : place + size])
        assert meter.open_bytes == 1000
    meter.take(frame(0x3, 0, 3, 4))  # reset
    assert meter.open_bytes == 0


# HTTP


HALVES = [
    b"",
    b"GET /api/tables HTTP/1.1\r\nHost: x\r\nX-Slow: ",
    b"POST /api/sql HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
    b"POST /api/frames HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n{",
    f"POST /api/frames HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 1000\r\n\r\n{{".encode(),
]


def test_half_a_request_is_not_waited_for_nor_one_that_drips(plain: ServerProcess) -> None:
    address = ("127.0.0.1", plain.port)
    with ExitStack() as opened:
        slow = [opened.enter_context(socket.create_connection(address)) for _ in HALVES]
        for connection, half in zip(slow, HALVES, strict=True):
            connection.sendall(half)
        dripping = opened.enter_context(socket.create_connection(address))
        dripping.sendall(b"GET / HTTP/1.1\r\n")
        deadline = time.monotonic() + HEAD_SECONDS + LATE_SECONDS
        while time.monotonic() < deadline and not is_closed(dripping, 0.5):
            with contextlib.suppress(OSError):
                dripping.sendall(b"X: y\r\n")
        assert time.monotonic() < deadline
        assert [is_closed(connection, LATE_SECONDS) for connection in slow] == [True] * len(HALVES)


def test_a_head_without_end_takes_no_memory(plain: ServerProcess) -> None:
    before = plain.rss_megabytes()
    with socket.create_connection(("127.0.0.1", plain.port)) as endless:
        endless.sendall(b"GET / HTTP/1.1\r\nX: ")
        with contextlib.suppress(OSError):
            for _ in range(2000):
                endless.sendall(bytes(100_000).replace(b"\0", b"x"))
    assert plain.rss_megabytes() - before < GROWTH_MEGABYTES_MAX


ENDLESS = {
    "trailers": b"1:1\r\n" * 20_000,
    "one trailer": b"x" * 100_000,
    "an extension of a chunk": b"x" * 100_000,
}


@pytest.mark.parametrize("key", ["", f"Authorization: Bearer {TOKEN}\r\n"], ids=["no key", "a key"])
@pytest.mark.parametrize("what", ENDLESS)
def test_what_comes_beside_a_body_takes_no_memory(plain: ServerProcess, what: str, key: str) -> None:
    begin = {"trailers": "0\r\n", "one trailer": "0\r\nX: ", "an extension of a chunk": "1;"}[what]
    before = plain.rss_megabytes()
    with socket.create_connection(("127.0.0.1", plain.port)) as endless:
        endless.sendall(f"GET /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n{key}\r\n{begin}".encode())
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
            endless.sendall(ENDLESS[what] * 300)
    assert plain.rss_megabytes() - before < GROWTH_MEGABYTES_MAX


def test_a_body_in_many_small_chunks_is_taken(plain: ServerProcess) -> None:
    text = b'{"sql": "SELECT 1"}' + b" " * 60_000
    head = f"POST /api/sql HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", plain.port)) as chunked:
        chunked.sendall(head.encode() + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
        chunked.sendall(b"".join(b"1;from=here\r\n" + text[n : n + 1] + b"\r\n" for n in range(len(text))))
        chunked.sendall(b"0\r\nAuthorization: Bearer nobody\r\n\r\n")
        assert b"".join(iter(lambda: chunked.recv(65536), b"")).startswith(b"HTTP/1.1 200 ")


def test_many_half_requests_keep_the_pipeline_out_of_nothing(plain: ServerProcess) -> None:
    with ExitStack() as opened:
        for _ in range(500):
            slow = opened.enter_context(socket.create_connection(("127.0.0.1", plain.port)))
            slow.sendall(b"POST /api/frames HTTP/1.1\r\n")
        assert plain.get("/api/tables")

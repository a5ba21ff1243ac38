"""Clients of a real server that send and do not read: they take little memory, and their connections end."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.server.api.asgi import uvicorn_config
from livetables.server.live import connection as connection_module
from livetables.server.live.connection import Accepting, serve_session
from livetables.server.live.sessions import Sessions
from tests.support.kafka import wait_until
from tests.support.server import TOKEN, WITH_RELAYS, ServerProcess

pytestmark = pytest.mark.processes

TEXTS = TableShape("texts", pa.schema([("id", pa.int64()), ("text", pa.string())]), ("id",))
WIDE = 8  # subscriptions, whose windows are more than the buffers of the system hold
PING_BYTES = 125
PINGS = 80_000  # their pongs are 10 MB
GROWTH_MEGABYTES_MAX = 5
END_SECONDS = 60.0
HEAD = (
    b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
TEXT, CLOSE, PING, PONG = 0x1, 0x8, 0x9, 0xA


@pytest.fixture(scope="module", params=[{}, WITH_RELAYS], ids=["alone", "relays"])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server"), request.param) as running:
        rows = pa.table({"id": range(10_000), "text": ["x" * 400] * 10_000}, TEXTS.schema)
        sink = running.sink()
        sink.begin("g", [TEXTS])
        sink.put(Batch("g", 0, (TableChanges("texts", rows, TEXTS.key_schema.empty_table()),)))
        sink.publish("g")
        sink.close()
        yield running
        assert "Traceback" not in running.log()


class Raw:
    """A client of the WebSocket that reads when it is told to, and has next to no buffer of its own."""

    def __init__(self, server: ServerProcess, token: str | None = None) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(END_SECONDS)
        self.socket.connect(("127.0.0.1", server.port))
        self.socket.sendall(HEAD + b"\r\n")
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += self._taken(1)
        assert answer.startswith(b"HTTP/1.1 101 ")
        if token:
            self.send_json(type="hello", protocol=1, token=token)

    def send(self, kind: int, payload: bytes) -> None:
        self.socket.sendall(frame(kind, payload))

    def send_json(self, **fields: Any) -> None:
        self.send(TEXT, json.dumps(fields).encode())

    def received(self) -> tuple[int, bytes]:
        kind, length = self._taken(2)
        if length >= 126:
            length = int.from_bytes(self._taken(2 if length == 126 else 8), "big")
        return kind & 0xF, self._taken(length)

    def close(self) -> None:
        self.socket.close()

    def _taken(self, count: int) -> bytes:
        taken = bytearray()
        while len(taken) < count:
            data = self.socket.recv(min(65536, count - len(taken)))
            assert data, "the server has closed the connection"
            taken += data
        return bytes(taken)


def frame(kind: int, payload: bytes) -> bytes:
    """A whole frame of a client, with a mask that changes nothing."""
    length = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2, "big")
    return bytes([0x80 | kind]) + length + bytes(4) + payload


def pings(count: int) -> bytes:
    return b"".join(frame(PING, f"{number}".encode().ljust(PING_BYTES)) for number in range(count))


def is_held(server: ServerProcess, client: socket.socket) -> bool:
    """Whether a process still has the other end of a connection open; if not, that has no inode."""
    port, its_port = f"{server.port:04X}", f"{client.getsockname()[1]:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(f":{port}") and row[2].endswith(f":{its_port}") and row[9] != "0" for row in rows)


def is_let_go(server: ServerProcess, client: socket.socket) -> None:
    assert is_held(server, client)
    wait_until(lambda: not is_held(server, client), "the server has let the connection go", END_SECONDS)


def test_pings_of_a_client_that_does_not_read_take_no_memory_and_the_last_is_answered(server: ServerProcess) -> None:
    client = Raw(server, TOKEN)
    try:
        before = server.rss_megabytes()
        client.socket.sendall(pings(PINGS))
        assert server.rss_megabytes() - before < GROWTH_MEGABYTES_MAX
        answered = 0
        while True:
            kind, payload = client.received()
            answered += kind == PONG
            if kind == PONG and payload.strip() == f"{PINGS - 1}".encode():
                break
        assert answered < PINGS
    finally:
        client.close()


def test_who_sends_pings_instead_of_a_key_and_does_not_read_is_let_go(server: ServerProcess) -> None:
    client = Raw(server)
    try:
        client.socket.sendall(pings(PINGS))
        is_let_go(server, client.socket)
    finally:
        client.close()


@pytest.mark.parametrize("how", ["a close frame", "an invalid frame"])
def test_who_leaves_without_reading_what_was_sent_is_let_go(server: ServerProcess, how: str) -> None:
    client = Raw(server, TOKEN)
    try:
        for sub in range(WIDE):
            client.send_json(type="subscribe", sub=sub, table="texts", view={"size": 10_000, "offset": sub})
        for _ in range(3):
            client.received()  # hello, status, and a schema: windows come now
        client.send(CLOSE if how == "a close frame" else 0x3, b"")
        is_let_go(server, client.socket)
    finally:
        client.close()


BAD_HEADS = {
    "a long header": HEAD + b"X-Long: " + b"x" * 9_000 + b"\r\n\r\n",
    "many headers": HEAD + b"".join(b"X-%d: x\r\n" % number for number in range(300)) + b"\r\n",
    "a long path": HEAD.replace(b"/ws", b"/ws?" + b"x" * 9_000) + b"\r\n",
    "another path": HEAD.replace(b"/ws", b"/nothing") + b"\r\n",
    "a body": HEAD + b"Content-Length: 5\r\n\r\n",
    "a chunked body": HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
    "another version": HEAD.replace(b"13", b"12") + b"\r\n",
    "no key": HEAD.replace(b"Sec-WebSocket-Key", b"X") + b"\r\n",
    "another method": HEAD.replace(b"GET", b"POST") + b"\r\n",
}


@pytest.mark.parametrize("name", BAD_HEADS)
def test_an_upgrade_that_cannot_be_is_closed(server: ServerProcess, name: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=END_SECONDS) as client:
        client.sendall(BAD_HEADS[name])
        with suppress(ConnectionResetError):
            while client.recv(65536):
                pass


# Without a server


def test_who_has_sent_an_invalid_frame_is_gone_for_whoever_has_news() -> None:
    """uvicorn takes news in this very moment for a mistake of the application, which would be in the log."""
    ended: list[Exception] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        await websocket.accept()
        assert (await websocket.receive())["type"] == "websocket.disconnect"
        try:
            await websocket.send_text("news")
        except Exception as error:
            ended.append(error)

    async def send_invalid_frame() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn_config(app))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            writer.write(HEAD + b"\r\n")
            await reader.readuntil(b"\r\n\r\n")
            writer.write(frame(0x3, b""))
            await reader.read()
            writer.close()
        finally:
            server.should_exit = True
            await serving

    asyncio.run(send_invalid_frame())
    assert [type(each) for each in ended] == [WebSocketDisconnect]


def test_whoever_is_refused_does_not_wait_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is a fake: how many wait cannot be seen from outside."""
    monkeypatch.setattr(connection_module, "HELLO_SECONDS", 0.01)
    sessions, sending = Sessions(), asyncio.Event()
    services = SimpleNamespace(sessions=sessions, origins=(), hosts=())
    messages = iter([{"type": "websocket.connect"}])

    async def receive() -> Message:
        for message in messages:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] != "websocket.accept":
            sending.set()
            await asyncio.Event().wait()  # as long as a client does not read

    async def refuse() -> None:
        scope: Scope = {"type": "websocket", "scheme": "ws", "headers": [], "path": "/ws"}
        serving = asyncio.create_task(serve_session(WebSocket(scope, receive, send), cast(Accepting, services)))
        await asyncio.wait_for(sending.wait(), 10)
        assert sessions.waiting == 0
        await asyncio.wait_for(serving, 30)

    asyncio.run(refuse())

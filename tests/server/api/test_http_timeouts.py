"""HTTP clients that do not read what they asked for: their connections end, and nothing is left of them.

What else is waited for is tested on a server of its own, in `tests/server/access/test_strangers.py`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import uvicorn
from uvicorn.server import ServerState

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.server.api import http_timeouts
from livetables.server.api.asgi import uvicorn_config
from livetables.server.api.http import create_app
from livetables.server.api.services import Services
from livetables.server.storage.store import Store
from tests.server.api.test_http import TOKEN, services_of

LOOK_SECONDS = 0.2  # instead of a minute
END_SECONDS = 30.0
LARGE = 5_000_000
SHAPE = TableShape("large", pa.schema([("id", pa.int64()), ("text", pa.string())]), ("id",))
BUFFER = 4096  # of both ends of a connection
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


REQUESTS = {
    "an export": get("/api/tables/large/rows", "Accept: text/csv", f"Authorization: Bearer {TOKEN}"),
    "a window": get("/api/tables/large/rows?limit=1000", f"Authorization: Bearer {TOKEN}"),
    "a large file": get("/large.js"),
    "the last large file": get("/large.js", "Connection: close"),
    "one small answer": get("/openapi.json"),
    "the last small answer": get("/openapi.json", "Connection: close"),
    "many answers": get("/openapi.json") * 500,
    "an answer before nonsense": get("/openapi.json") + b"nonsense\r\n\r\n",
    "an upgrade with many answers": get("/openapi.json") * 500 + UPGRADE,
}


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    (tmp_path / "large.js").write_bytes(b"/" * LARGE)
    with closing(Store(None)) as store:
        store.begin("g1", [SHAPE])
        rows = pa.table({"id": range(1000), "text": ["x" * (LARGE // 1000)] * 1000}, SHAPE.schema)
        store.put(Batch("g1", 0, (TableChanges("large", rows, pa.table({})),)))
        store.publish("g1")
        yield replace(services_of(store), web_directory=tmp_path)


@asynccontextmanager
async def served(services: Services) -> AsyncIterator[tuple[int, ServerState]]:
    """The port of a server, and what it knows of its connections."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    server = uvicorn.Server(uvicorn_config(create_app(services)))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield listening.getsockname()[1], server.server_state
    finally:
        server.should_exit = True
        await serving


async def connected(port: int) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    return client


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(END_SECONDS):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited in vain until {what}") from None


def run(services: Services, act: Callable[[int, ServerState], Awaitable[None]]) -> None:
    async def on_server() -> None:
        async with served(services) as (port, state):
            await act(port, state)

    asyncio.run(on_server())


@pytest.mark.parametrize("name", REQUESTS)
def test_nothing_is_left_of_a_client_that_does_not_read(
    services: Services, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(http_timeouts, "UNREAD_SECONDS", LOOK_SECONDS, raising=False)
    monkeypatch.setattr(http_timeouts, "HEAD_SECONDS", LOOK_SECONDS)

    async def ask(port: int, state: ServerState) -> None:
        with closing(await connected(port)) as client:
            await asyncio.get_running_loop().sock_sendall(client, REQUESTS[name])
            await until(lambda: state.total_requests > 0 or bool(state.tasks), "it is asked")
            await until(lambda: not state.connections and not state.tasks, "the connection is gone, and its requests")

    run(services, ask)


def test_nothing_is_left_of_an_upgrade_while_an_answer_is_not_read(services: Services) -> None:
    """The WebSocket's protocol would get the news that the client has read, and the answer would wait for it."""

    async def ask(port: int, state: ServerState) -> None:
        with closing(await connected(port)) as client:
            await asyncio.get_running_loop().sock_sendall(client, REQUESTS["a large file"])
            await until(lambda: any(each.flow.write_paused for each in state.connections), "the answer waits")  # type: ignore[union-attr]
            await asyncio.get_running_loop().sock_sendall(client, UPGRADE)
            await until(lambda: not state.connections and not state.tasks, "the connection is gone, and its requests")

    run(services, ask)


def test_nothing_is_left_of_a_client_that_sends_empty_lines_instead_of_a_request(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_timeouts, "HEAD_SECONDS", LOOK_SECONDS)

    async def ask(port: int, state: ServerState) -> None:
        loop, received = asyncio.get_running_loop(), b""
        with closing(await connected(port)) as client:
            await loop.sock_sendall(client, get("/healthz"))
            while not received.endswith(b"}"):
                received += await loop.sock_recv(client, 1000)
            await loop.sock_sendall(client, b"\r\n")
            await until(lambda: not state.connections, "the connection is gone")

    run(services, ask)


def test_a_client_that_reads_slowly_gets_all_of_it(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_timeouts, "UNREAD_SECONDS", LOOK_SECONDS, raising=False)

    async def ask(port: int, _: ServerState) -> None:
        loop, received = asyncio.get_running_loop(), 0
        with closing(await connected(port)) as client:
            await loop.sock_sendall(client, REQUESTS["the last large file"])
            while data := await loop.sock_recv(client, LARGE // 20):
                received += len(data)
                await asyncio.sleep(0 if received > LARGE // 100 else LOOK_SECONDS)
        assert received > LARGE

    run(services, ask)

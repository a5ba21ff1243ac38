"""What an operator finds in the server's log: what happened to it, a line each, and nothing secret."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest
from websockets.exceptions import ConnectionClosed

from livetables.log import BURST
from livetables.model.change import TableShape
from tests.support.kafka import wait_until
from tests.support.server import TOKEN, LiveClient, ServerProcess
from tests.test_log import parsed

SHAPE = TableShape("users_ui", pa.schema([("_id", pa.int64())]), ("_id",))
WRONG = "a-wrong-key"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as running:
        yield running


def events(server: ServerProcess) -> list[dict[str, str]]:
    return [parsed(line) for line in server.log().splitlines()]


def names(server: ServerProcess) -> list[str]:
    return [event["event"] for event in events(server)]


def test_the_life_of_generations_and_clients_is_logged(server: ServerProcess) -> None:
    sink = server.sink()
    sink.begin("g1", [SHAPE])
    sink.begin("g1", [SHAPE])  # as each start of a query does
    sink.publish("g1")
    with LiveClient(server.websocket) as client:
        client.receive_type("hello")
    wait_until(lambda: "client_disconnected" in names(server), "end of the session", 10)
    sink.drop("g1")
    sink.drop("g1")
    sink.close()
    assert names(server) == [
        "store_opened",
        "serving",
        "generation_begun",
        "generation_published",
        "client_connected",
        "client_disconnected",
        "generation_dropped",
    ]
    connected = next(event for event in events(server) if event["event"] == "client_connected")
    assert (connected["address"], connected["clients"]) == ("127.0.0.1", "1")


def test_wrong_keys_are_logged_but_flood_nothing_and_are_not_shown(server: ServerProcess) -> None:
    request = Request(f"{server.http}/api/status", headers={"Authorization": f"Bearer {WRONG}"})  # noqa: S310
    started = time.monotonic()
    for _ in range(5 * BURST):
        with pytest.raises(HTTPError):
            urlopen(request, timeout=10)  # noqa: S310
    with suppress(ConnectionClosed), LiveClient(server.websocket, token=WRONG) as client:
        client.receive_to_the_end()
    wait_until(lambda: any(event.get("door") == "websocket" for event in events(server)), "the websocket's", 10)
    failed = [event for event in events(server) if event["event"] == "login_failed"]
    at_most = BURST + (time.monotonic() - started) + 1
    assert BURST <= len([event for event in failed if event["door"] == "http"]) <= at_most
    assert {event["level"] for event in failed} == {"warning"}
    assert WRONG not in server.log()
    assert TOKEN not in server.log()

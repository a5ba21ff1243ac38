"""Roles at every endpoint of a real server: who may do what, and what others are sent."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight
from websockets.exceptions import ConnectionClosed

import livetables
from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.errors import RequestError, SinkError
from livetables.model.roles import Role, RoleKey
from livetables.model.wire import Receipt
from livetables.pipeline.flow.plan import DEAD_LETTER_SCHEMA
from livetables.pipeline.server_client import ServerClient
from livetables.server.access.key import Key
from livetables.server.viewports.row import rows_of
from livetables.server.viewports.viewport import ViewOptions
from livetables.server.viewports.window import Delta, LiveWindow
from tests.support.server import TOKEN, WITH_RELAYS, LiveClient, ServerProcess

pytestmark = pytest.mark.processes

KEYS: Mapping[Role, str] = {"viewer": "a-viewers-key", "operator": TOKEN, "pipeline": "a-pipelines-key"}
ENVIRONMENT = {"LIVETABLES_VIEWER_TOKEN": KEYS["viewer"], "LIVETABLES_PIPELINE_TOKEN": KEYS["pipeline"]}
PEOPLE = TableShape("people", pa.schema([("id", pa.int64())]), ("id",))
DEAD_LETTERS = TableShape("dead_letters", DEAD_LETTER_SCHEMA, ("source", "_id"), appends=True)
SECRET = "do-not-show-this"  # noqa: S105
FORBIDDEN = 403


def filled(server: ServerProcess) -> None:
    letter = {
        **dict.fromkeys(DEAD_LETTER_SCHEMA.names),
        "source": "people",
        "_id": 1,
        "topic": "people",
        "partition": 0,
        "offset": 1,
        "reason": f"id: expected int64, found the string {SECRET}",
        "raw": f'{{"id": "{SECRET}"}}',
    }
    with closing(ServerClient(server.flight, KEYS["pipeline"])) as sink:
        sink.begin("g1", [PEOPLE, DEAD_LETTERS])
        changes = [
            TableChanges("people", pa.table({"id": [1]}, PEOPLE.schema), PEOPLE.key_schema.empty_table()),
            TableChanges(
                "dead_letters",
                pa.Table.from_pylist([letter], DEAD_LETTER_SCHEMA),
                DEAD_LETTERS.key_schema.empty_table(),
            ),
        ]
        sink.put(Batch("g1", 0, tuple(changes)))
        sink.publish("g1")


@pytest.fixture(scope="module", params=["alone", "relays"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {**ENVIRONMENT, "LIVETABLES_SERVER_HIDE_RAW_FROM_VIEWERS": "true"}
    relays = WITH_RELAYS if request.param == "relays" else {}
    with ServerProcess(tmp_path_factory.mktemp("server"), {**settings, **relays}) as server:
        filled(server)
        yield server


def status(server: ServerProcess, path: str, token: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
    """The status and the text of an answer."""
    request = urllib.request.Request(server.http + path, body, {"Authorization": f"Bearer {token}", **headers})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
            return response.status, response.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def options(token: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(timeout=30, headers=[(b"authorization", f"Bearer {token}".encode())])


READS = {
    "/api/tables": None,
    "/api/tables/people/rows": None,
    "/api/status": None,
    "/metrics": None,
    "/api/sql": b'{"sql": "SELECT 1"}',
}


@pytest.mark.parametrize("path", READS)
@pytest.mark.parametrize(("role", "expected"), [("viewer", 200), ("operator", 200), ("pipeline", FORBIDDEN)])
def test_viewers_and_operators_read_over_http(server: ServerProcess, path: str, role: Role, expected: int) -> None:
    code, text = status(server, path, KEYS[role], READS[path], **{"Content-Type": "application/json"})
    assert code == expected
    if expected == FORBIDDEN:
        assert json.loads(text)["code"] == "forbidden"
        assert "needs the role viewer; this key has the role pipeline" in json.loads(text)["problem"]


@pytest.mark.parametrize("role", ["viewer", "pipeline"])
def test_only_an_operator_sends_control_messages(server: ServerProcess, role: Role) -> None:
    code, text = status(
        server, "/api/control", KEYS[role], b'{"joinType": "left"}', **{"Content-Type": "application/json"}
    )
    assert code == FORBIDDEN
    assert f"control messages needs the role operator; this key has the role {role}" in text


def test_an_operators_control_message_is_taken_by_the_pipeline(server: ServerProcess) -> None:
    with closing(ServerClient(server.flight, KEYS["pipeline"])) as sink, ThreadPoolExecutor(1) as threads:
        body, headers = b'{"joinType": "left"}', {"Content-Type": "application/json"}
        answer = threads.submit(status, server, "/api/control", KEYS["operator"], body, **headers)
        (request,) = sink.control_requests(10)
        sink.control_settled(request.request_id, Receipt("control", 0, 7))
        assert answer.result(10) == (202, '{"topic":"control","partition":0,"offset":7}')


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_only_the_pipeline_sends_frames(server: ServerProcess, role: Role) -> None:
    code, text = status(server, "/api/frames", KEYS[role], b"")
    assert code == FORBIDDEN
    assert f"writing tables needs the role pipeline; this key has the role {role}" in text
    assert status(server, "/api/frames", KEYS["pipeline"], b"")[0] == 400


@pytest.mark.parametrize("role", ["viewer", "operator"])
@pytest.mark.parametrize(
    "act",
    [
        lambda sink: sink.drop("g1"),
        lambda sink: sink.publish("g1"),
        lambda sink: sink.generations(),
        lambda sink: sink.start_pipeline(),
        lambda sink: sink.control_requests(0),
    ],
)
def test_only_the_pipeline_acts_over_flight(
    server: ServerProcess, role: Role, act: Callable[[ServerClient], object]
) -> None:
    with (
        closing(ServerClient(server.flight, KEYS[role])) as sink,
        pytest.raises(SinkError, match=f"needs the role pipeline; this key has the role {role}"),
    ):
        act(sink)
    assert server.table("people").num_rows == 1


def test_the_pipeline_reads_nothing_over_flight(server: ServerProcess) -> None:
    refused = pytest.raises(flight.FlightUnauthorizedError, match="needs the role viewer")
    with flight.FlightClient(server.flight) as client:
        with refused:
            client.do_get(flight.Ticket('{"table": "people"}'), options(KEYS["pipeline"])).read_all()
        with refused:
            list(client.list_flights(options=options(KEYS["pipeline"])))
        with refused:
            client.get_flight_info(flight.FlightDescriptor.for_path("people"), options(KEYS["pipeline"]))
        with pytest.raises((pa.ArrowException, OSError), match="needs the role viewer"):
            client.get_schema(flight.FlightDescriptor.for_path("people"), options(KEYS["pipeline"]))
    with closing(ServerClient(server.flight, KEYS["pipeline"])) as sink:
        assert sink.table("people") is None  # it is no status table


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_a_hello_and_the_status_have_the_role(server: ServerProcess, role: Role) -> None:
    with LiveClient(server.websocket, KEYS[role]) as client:
        assert client.receive_type("hello")["role"] == role
    assert livetables.connect(server.http, KEYS[role]).status()["role"] == role


def test_the_pipelines_key_opens_no_websocket(server: ServerProcess) -> None:
    with LiveClient(server.websocket, KEYS["pipeline"]) as client:
        assert client.receive_type("error")["code"] == "forbidden"
        with pytest.raises(ConnectionClosed) as closed:
            client.receive()
        assert closed.value.rcvd
        assert closed.value.rcvd.code == 4403


def test_the_python_client_names_the_role_that_is_needed(server: ServerProcess) -> None:
    with livetables.connect(server.http, KEYS["viewer"]) as connection, pytest.raises(RequestError) as refused:
        connection.control(join="left")
    assert refused.value.code == "forbidden"
    assert "role operator" in refused.value.problem
    assert "LIVETABLES_TOKEN" in refused.value.cure


# One key for all


def test_without_a_pipelines_key_the_operators_writes_and_the_viewers_does_not(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, {"LIVETABLES_VIEWER_TOKEN": KEYS["viewer"]}) as server:
        with (
            closing(ServerClient(server.flight, KEYS["viewer"])) as sink,
            pytest.raises(SinkError, match="role pipeline"),
        ):
            sink.begin("g1", [PEOPLE])
        with closing(server.sink()) as sink:
            sink.begin("g1", [PEOPLE])
        assert status(server, "/api/frames", TOKEN, b"")[0] == 400


# Keys that change


@pytest.mark.parametrize("relays", [{}, WITH_RELAYS], ids=["alone", "relays"])
def test_a_session_ends_when_its_key_is_gone_or_has_another_role(tmp_path: Path, relays: Mapping[str, str]) -> None:
    keys = tmp_path / "keys"
    keys.write_text("operator stays\nviewer goes\nviewer rises\n")
    with ServerProcess(tmp_path, {"LIVETABLES_SERVER_TOKEN_FILE": str(keys), **relays}) as server:
        clients = {token: LiveClient(server.websocket, token) for token in ("stays", "goes", "rises")}
        try:
            for client in clients.values():
                client.receive_type("hello")
            keys.write_text("operator stays\noperator rises\n")
            for token in ("goes", "rises"):
                clients[token].receive_to_the_end()
            assert {token: clients[token].socket.close_code for token in ("goes", "rises")} == {
                "goes": 4401,
                "rises": 1012,
            }
            clients["stays"].send({"type": "heartbeat"})
            assert clients["stays"].receive_type("heartbeat")
            with LiveClient(server.websocket, "rises") as client:
                assert client.receive_type("hello")["role"] == "operator"
        finally:
            for client in clients.values():
                client.close()


# What dead letters hold


WAYS: Mapping[str, Callable[[ServerProcess, str], str]] = {
    "json": lambda server, token: status(server, "/api/tables/dead_letters/rows", token)[1],
    "window as csv": lambda server, token: status(
        server, "/api/tables/dead_letters/rows?limit=10", token, Accept="text/csv"
    )[1],
    "csv": lambda server, token: status(server, "/api/tables/dead_letters/rows", token, Accept="text/csv")[1],
    "arrow": lambda server, token: status(
        server, "/api/tables/dead_letters/rows", token, Accept="application/vnd.apache.arrow.stream"
    )[1],
    "sql": lambda server, token: status(
        server,
        "/api/sql",
        token,
        b'{"sql": "SELECT raw, reason FROM dead_letters"}',
        **{"Content-Type": "application/json"},
    )[1],
    "sql of a subquery": lambda server, token: status(
        server,
        "/api/sql",
        token,
        b'{"sql": "WITH x AS (SELECT * FROM main.Dead_Letters) SELECT * FROM x"}',
        **{"Content-Type": "application/json"},
    )[1],
    "flight": lambda server, token: taken(server, token, {"table": "dead_letters"}),
    "flight window": lambda server, token: taken(server, token, {"table": "dead_letters", "offset": 0, "size": 5}),
    "flight unmasked": lambda server, token: taken(server, token, {"table": "dead_letters", "masked": False}),
    "flight sql": lambda server, token: taken(server, token, {"sql": "FROM dead_letters"}),
    "changes": lambda server, token: taken(server, token, {"changes": "dead_letters"}),
    "websocket": lambda server, token: watched(server, token, {}),
    "websocket unmasked": lambda server, token: watched(server, token, {"masked": False}),
    "websocket arrow": lambda server, token: watched(server, token, {}, "arrow"),
}


def taken(server: ServerProcess, token: str, ticket: Mapping[str, Any]) -> str:
    with flight.FlightClient(server.flight) as client:
        try:
            return str(client.do_get(flight.Ticket(json.dumps(ticket)), options(token)).read_all().to_pylist())
        except flight.FlightError as error:
            return str(error)


def watched(server: ServerProcess, token: str, view: Mapping[str, Any], form: str = "json") -> str:
    with LiveClient(server.websocket, token) as client:
        client.send({"type": "subscribe", "sub": 1, "table": "dead_letters", "view": view, "format": form})
        while True:
            frame = client.socket.recv(timeout=10)
            if isinstance(frame, bytes):
                return frame.decode(errors="replace")
            if json.loads(frame)["type"] == "snapshot":
                return frame


@pytest.mark.parametrize("way", WAYS)
def test_what_dead_letters_hold_is_hidden_from_viewers_on_every_way(server: ServerProcess, way: str) -> None:
    assert SECRET in WAYS[way](server, KEYS["operator"])
    assert SECRET not in WAYS[way](server, KEYS["viewer"])


@pytest.mark.parametrize(
    "query",
    [
        f"q={SECRET}",
        f'filter=[{{"column":"raw","op":"contains","value":"{SECRET}"}}]',
        f'filter=[{{"column":"reason","op":"contains","value":"{SECRET}"}}]',
    ],
)
def test_what_is_hidden_cannot_be_found_by_searching_either(server: ServerProcess, query: str) -> None:
    path = "/api/tables/dead_letters/rows?" + query.replace('"', "%22")
    assert json.loads(status(server, path, KEYS["operator"])[1])["total"] == 1
    assert json.loads(status(server, path, KEYS["viewer"])[1])["total"] == 0


def test_rows_that_frames_bring_are_hidden_too() -> None:
    numbered = pa.table({"_row": [0], "offset": [1], "raw": [SECRET]})
    schema = numbered.schema.remove(0)
    window = LiveWindow(schema, ViewOptions(masked=True), 0, [], 0, ("raw",))
    window.advance(Delta(numbered))
    assert window.shown(1) == [(0, (1, None))]
    (row,) = rows_of(numbered)
    window.advance(Delta(changed=((row, None),)))
    assert window.total == 0
    searching = LiveWindow(schema, ViewOptions(quick=SECRET, masked=True), 0, [], 0, ("raw",))
    searching.advance(Delta(numbered))
    assert searching.total == 0


def test_a_viewer_sees_that_there_are_dead_letters(server: ServerProcess) -> None:
    answer = json.loads(status(server, "/api/tables/dead_letters/rows", KEYS["viewer"])[1])
    assert [(row["topic"], row["offset"], row["raw"], row["reason"]) for row in answer["rows"]] == [
        ("people", 1, None, None)
    ]


def test_without_the_setting_viewers_see_all(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, ENVIRONMENT) as server:
        filled(server)
        for way in ("json", "sql", "changes", "websocket"):
            assert SECRET in WAYS[way](server, KEYS["viewer"])


# The keys


def test_a_role_is_found_whatever_the_place_of_its_key() -> None:
    key = Key("o", RoleKey("v", "viewer"), RoleKey("p", "pipeline"))
    assert [key.role_of(token) for token in ("o", "v", "p", "x", "", None)] == [
        "operator",
        "viewer",
        "pipeline",
        None,
        None,
        None,
    ]


def test_all_keys_are_compared_with_digests_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []

    def compare_digest(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    key = Key("short", RoleKey("a much longer key than the other one, of more than 32 characters", "viewer"))
    monkeypatch.setattr("livetables.server.access.key.hmac.compare_digest", compare_digest)
    assert key.role_of("short") == "operator"
    assert compared == [(32, 32), (32, 32)]

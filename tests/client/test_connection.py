"""The client's questions against a real server: the examples of the documentation, what notebooks show, and errors."""

from __future__ import annotations

import asyncio
import doctest
import http.server
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import livetables
from livetables import client
from livetables.client import Connection, Outcome, changes, connection, table
from livetables.client.local_system import Addresses, LocalSystem
from livetables.config.load import load_config
from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.errors import ConfigError, LivetablesError, RequestError, SetupError
from livetables.model.wire import Receipt
from livetables.pipeline.reporting import status
from livetables.pipeline.server_client import ServerClient
from tests.support.kafka import wait_until
from tests.support.server import TOKEN, ServerProcess, free_port

pytestmark = pytest.mark.processes

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ACCOUNTS = TableShape(
    "accounts_ui",
    pa.schema(
        [
            ("_id", pa.int64()),
            ("userId", pa.string()),
            ("accountType", pa.string()),
            ("balance", pa.float64()),
            ("ts", pa.timestamp("us", "UTC")),
        ]
    ),
    ("_id",),
    aliases=("account",),
    appends=True,
)
FINAL = TableShape(
    "final_ui",
    pa.schema([("_id", pa.int64()), ("name", pa.string()), ("age", pa.int64()), ("vip", pa.bool_())]),
    ("_id",),
)
VALUES = [("u1", "savings", 120.5), ("u2", "checking", 2500.0), ("u1", "checking", 40.0), ("u3", None, 0.0)]
ROWS = [
    {"_id": number, "userId": user, "accountType": kind, "balance": balance, "ts": NOON + timedelta(hours=number)}
    for number, (user, kind, balance) in enumerate(VALUES)
]
PEOPLE: list[dict[str, Any]] = [
    {"_id": 1, "name": "<b>Žofie</b> & co", "age": 2**53 + 1, "vip": True},
    {"_id": 2, "name": None, "age": None, "vip": None},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as running:
        sink = running.sink()
        sink.begin("g", [ACCOUNTS, FINAL])
        put(sink, "g", 0, {ACCOUNTS: ROWS, FINAL: PEOPLE})
        sink.publish("g")
        yield running
        sink.close()


@pytest.fixture
def connected(server: ServerProcess) -> Iterator[Connection]:
    with livetables.connect(server.http, TOKEN) as open_connection:
        yield open_connection


def put(sink: ServerClient, generation: str, number: int, rows: dict[TableShape, list[dict[str, Any]]]) -> None:
    made = (
        TableChanges(shape.name, pa.Table.from_pylist(each, shape.schema), pa.table({})) for shape, each in rows.items()
    )
    sink.put(Batch(generation, number, tuple(made)))


# The documentation's examples


class DecidedControl:
    """Stands in for a pipeline that applies every control message: nothing else decides one without Kafka and Spark."""

    def __init__(self, sink: ServerClient) -> None:
        self._sink = sink
        self._shapes = status.shapes(load_config(None, {}).spec)
        self._sink.begin("status", self._shapes)
        self._sink.publish("status")
        self._thread = threading.Thread(target=self._decide, daemon=True)
        self._thread.start()

    def _decide(self) -> None:
        for number, request in enumerate(iter(self._requested, None)):
            self._sink.control_settled(request.request_id, Receipt("control", 0, number))
            raw = json.dumps({**request.fields, "messageId": request.message_id})
            row = {
                "_id": number,
                "partition": 0,
                "offset": number,
                "outcome": "applied",
                "generation": "g2",
                "raw": raw,
            }
            self._sink.put(status.batch("status", number, self._shapes, {"control_raw": [row]}))

    def _requested(self) -> Any:
        while True:
            try:
                requests = self._sink.control_requests(1)
            except LivetablesError:
                return None
            if requests:
                return requests[0]


@pytest.mark.parametrize("module", [client, connection, table, changes])
def test_the_examples_of_the_documentation_do_what_they_say(module: ModuleType, tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as running:
        sink = running.sink()
        sink.begin("g", [ACCOUNTS, FINAL])
        put(sink, "g", 0, {ACCOUNTS: ROWS, FINAL: PEOPLE})
        sink.publish("g")
        with livetables.connect(running.http, TOKEN) as server:
            names = {"url": running.http, "token": TOKEN, "server": server, "accounts": server.table("accounts_ui")}
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
            for example in doctest.DocTestFinder().find(module, extraglobs=names):
                if ".control" in example.name:
                    DecidedControl(sink)
                runner.run(example)
            assert runner.tries > 1
            assert runner.failures == 0
        sink.close()


# Tables


def test_tables_are_listed_with_their_columns_rows_and_aliases(connected: Connection) -> None:
    tables = {each.name: each for each in connected.tables()}
    assert (tables["account"].alias_of, tables["account"].rows, tables["account"].generation) == ("accounts_ui", 4, "g")
    assert tables["final_ui"].columns == {"_id": "int64", "name": "string", "age": "int64", "vip": "bool"}
    assert connected.table("account").to_arrow() == connected.table("accounts_ui").to_arrow()


def test_a_table_is_what_was_put_in(connected: Connection) -> None:
    accounts = connected.table("accounts_ui")
    assert accounts.to_arrow().to_pylist() == ROWS
    assert accounts.schema == ACCOUNTS.schema
    assert accounts.generation == "g"
    later = accounts.to_arrow(["_id"], filters=[("ts", ">", NOON), ("userId", "in", ["u1", "u2"])])
    assert later["_id"].to_pylist() == [1, 2]
    assert accounts.to_arrow(["_id"], filters=[("accountType", "is_null")])["_id"].to_pylist() == [3]
    assert accounts.to_arrow(["_id"], quick="check", sort=["userId:desc"])["_id"].to_pylist() == [1, 2]


def test_pandas_keeps_integers_and_missing_values(connected: Connection) -> None:
    frame = connected.table("final_ui").to_pandas()
    assert [str(kind) for kind in frame.dtypes] == ["Int64", "string", "Int64", "boolean"]
    assert frame["age"][0] == 2**53 + 1
    assert frame["age"].isna().tolist() == [False, True]
    assert str(connected.table("accounts_ui").to_pandas()["ts"].dtype) == "datetime64[us, UTC]"


def test_polars_keeps_types_and_missing_values(connected: Connection) -> None:
    frame = connected.table("final_ui").to_polars(["age", "vip"])
    assert frame.to_dicts() == [{"age": 2**53 + 1, "vip": True}, {"age": None, "vip": None}]


def test_a_package_that_is_not_there_is_named(connected: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(SetupError, match="pip install polars"):
        connected.table("final_ui").to_polars()


def test_notebooks_show_tables_with_everything_escaped(connected: Connection) -> None:
    shown = connected.table("final_ui")._repr_html_()
    assert "&lt;b&gt;Žofie&lt;/b&gt; &amp; co" in shown
    assert "<b>Žofie" not in shown
    assert "<b>final_ui</b>, 2 rows" in shown
    assert "name<br><small>string</small>" in shown
    assert "accounts_ui" in connected._repr_html_()
    assert TOKEN not in f"{connected!r} {connected._http_client!r} {connected.table('final_ui')!r}"


# Finding the server


def test_what_runs_in_the_directory_needs_neither_address_nor_key(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no address is given"):
        livetables.connect()
    (tmp_path / ".livetables").mkdir()
    LocalSystem(Addresses(None, server.http, server.flight), TOKEN).write(tmp_path / ".livetables")
    with livetables.connect() as found, livetables.connect(f"{server.http}/") as given:
        assert found.table("final_ui").count() == given.table("final_ui").count() == 2
    with pytest.raises(ConfigError, match=r"there is no key for the server at http://127\.0\.0\.1:1"):
        livetables.connect("http://127.0.0.1:1")


def test_a_key_that_is_given_is_used_though_the_file_that_this_directory_names_is_gone(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".livetables").mkdir()
    running = LocalSystem(Addresses(None, server.http, server.flight), TOKEN, token_file=str(tmp_path / "gone"))
    running.write(tmp_path / ".livetables")
    with livetables.connect(server.http, TOKEN) as both, livetables.connect(token=TOKEN) as key:
        assert both.table("final_ui").count() == key.table("final_ui").count() == 2
    for url in (None, server.http):
        with pytest.raises(ConfigError, match='gone" cannot be read'):
            livetables.connect(url)


def test_an_invalid_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="give one like http://host:8765"):
        livetables.connect("127.0.0.1:8765", TOKEN)


def test_no_server_and_a_wrong_key_are_errors(server: ServerProcess) -> None:
    with pytest.raises(SetupError, match=r"no livetables server answers at http://127.0.0.1:1"):
        livetables.connect("http://127.0.0.1:1", TOKEN)
    with pytest.raises(RequestError, match="the key is wrong") as refusal:
        livetables.connect(server.http, "another")
    assert refusal.value.code == "unauthorized"


def test_another_address_for_flight_is_used(server: ServerProcess) -> None:
    nowhere = livetables.connect(server.http, TOKEN, flight=f"grpc://127.0.0.1:{free_port()}")
    with nowhere, pytest.raises(SetupError, match="`flight=`"):
        nowhere.table("final_ui")
    with livetables.connect(server.http, TOKEN, flight=server.flight) as there:
        assert there.sql("SELECT 1 AS one").to_pylist() == [{"one": 1}]


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody trusts, and its key."""
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", key, "-out", chain], check=True, capture_output=True, timeout=60)
    return chain, key


def test_https_needs_a_certificate_that_is_trusted_and_means_encrypted_flight(certificate: tuple[Path, Path]) -> None:
    chain, key = certificate

    class FakeServer(flight.FlightServerBase):  # type: ignore[misc]
        """Stands in for a server with TLS: its answer shows that it was called."""

        def do_get(self, _context: Any, _ticket: Any) -> Any:
            return flight.RecordBatchStream(pa.table({"encrypted": [True]}))

    class Status(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"flight_port": flight_server.port, "time": NOON.isoformat()}).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with FakeServer(
        "grpc+tls://127.0.0.1:0", tls_certificates=[(chain.read_bytes(), key.read_bytes())]
    ) as flight_server:
        web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Status)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain, key)
        web.socket = context.wrap_socket(web.socket, server_side=True)
        threading.Thread(target=web.serve_forever, daemon=True).start()
        url = f"https://127.0.0.1:{web.server_port}"
        with pytest.raises(SetupError, match="`ca_file`"):
            livetables.connect(url, TOKEN)
        with pytest.raises(SetupError, match="cannot be read"):
            livetables.connect(url, TOKEN, ca_file=str(chain.parent / "nothing.pem"))
        with livetables.connect(url, TOKEN, ca_file=str(chain)) as connected:
            assert connected.sql("SELECT 1").to_pylist() == [{"encrypted": True}]
        web.shutdown()
        web.server_close()


# Waiting for changes


def test_a_task_that_gives_up_loses_nothing(tmp_path: Path) -> None:
    async def follow(running: ServerProcess, sink: ServerClient) -> list[list[int]]:
        received = []
        with livetables.connect(running.http, TOKEN) as open_connection:
            async with open_connection.table("accounts_ui").changes() as following:
                received.append((await anext(following)).upserts["_id"].to_pylist())
                for _ in range(20):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(anext(following), 0.01)
                await asyncio.to_thread(put, sink, "g", 1, {ACCOUNTS: [{**ROWS[0], "_id": 10}]})
                async for change in following:
                    received.append(change.upserts["_id"].to_pylist())
                    break
                waiting = asyncio.create_task(anext(following))
                await asyncio.sleep(0)
                following.close()
                with pytest.raises(StopAsyncIteration):
                    await asyncio.wait_for(waiting, 5)
        return received

    with ServerProcess(tmp_path) as running:
        sink = running.sink()
        sink.begin("g", [ACCOUNTS])
        put(sink, "g", 0, {ACCOUNTS: ROWS})
        sink.publish("g")
        threads = threading.active_count()
        assert asyncio.run(follow(running, sink)) == [[0, 1, 2, 3], [10]]
        wait_until(lambda: threading.active_count() <= threads + 1, "no thread is left but the one whose wait runs out")
        sink.close()


def test_closing_the_connection_ends_who_waits_on_another_thread(server: ServerProcess) -> None:
    open_connection = livetables.connect(server.http, TOKEN)
    following = open_connection.table("final_ui").changes()
    next(following)
    waiting = threading.Thread(target=lambda: next(following, None), daemon=True)
    waiting.start()
    open_connection.close()
    waiting.join(timeout=5)
    assert not waiting.is_alive()
    assert next(following, None) is None


CLOSED_WHILE_ASKING = """
import sys, threading, livetables
for _ in range(60):
    connection = livetables.connect(sys.argv[1], sys.argv[2])
    following = connection.table("final_ui").changes()
    next(following)
    waiting = threading.Thread(target=lambda: next(following, None), daemon=True)
    waiting.start()
    connection.close()
    waiting.join(30)
    assert not waiting.is_alive()
"""


def test_closing_the_connection_while_a_call_begins_crashes_nothing(server: ServerProcess) -> None:
    """In a process of its own: Arrow ends the whole process when a client is closed during a call."""
    command = [sys.executable, "-c", CLOSED_WHILE_ASKING, server.http, TOKEN]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_is_asked_of_a_closed_connection_is_refused_with_the_cure(server: ServerProcess) -> None:
    closed = livetables.connect(server.http, TOKEN)
    table = closed.table("final_ui")
    table.to_arrow()
    closed.close()
    with pytest.raises(LivetablesError, match=r"connection is closed\n  cure: open another one"):
        table.to_arrow()


def test_a_table_of_the_status_can_be_followed_too(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as running:
        sink = running.sink()
        DecidedControl(sink)
        with livetables.connect(running.http, TOKEN) as open_connection:
            with open_connection.table("control_raw").changes() as following:
                assert next(following).upserts.num_rows == 0
                heard: list[str] = []
                outcome = open_connection.control(users_topic="user_2", progress=heard.append)
                assert outcome == Outcome("applied", None, "g2", "control", 0, 0)
                assert next(following).upserts["outcome"].to_pylist() == ["applied"]
            with pytest.raises(ConfigError, match="nothing to change"):
                open_connection.control()
        sink.close()

"""The Flight server: who gets in, what clients can take, and that nothing they do leaves anything behind."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.errors import RequestError
from livetables.model.wire import DELETED, ChangesHeader, Receipt, encode_batch, encode_shapes
from livetables.server.access.key import Key
from livetables.server.access.logins import WRONG_KEYS_MAX
from livetables.server.api import flight as flight_module
from livetables.server.api import flight_actions, flight_streams
from livetables.server.api.control_requests import ControlQueue
from livetables.server.api.flight import FlightServer
from livetables.server.api.flight_actions import ACTIONS
from livetables.server.api.flight_streams import SCANS_MAX
from livetables.server.api.services import Backend, Pulse
from livetables.server.health.metrics import Metrics
from livetables.server.storage import feed as feed_module
from livetables.server.storage.store import Store
from tests.model.test_checksum import defined_checksum
from tests.support.kafka import wait_until
from tests.support.tables import batch

pytestmark = pytest.mark.processes

TOKEN = "open sesame"  # noqa: S105
SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("value", pa.float64()), ("at", pa.timestamp("us", "UTC"))]
)
PEOPLE = TableShape("people", SCHEMA, ("id",), aliases=("user",))
START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = [{"id": n, "name": f"name {n % 7}", "value": n / 2, "at": START + timedelta(seconds=n)} for n in range(100)]
MANY = 400_000  # rows, 80 MB: more than a stream's buffers hold, which grow where a connection is slow
BIG = TableShape("big", pa.schema([("id", pa.int64()), ("text", pa.string())]), ("id",))


@dataclass
class Served:
    """A server and everything behind it."""

    store: Store
    server: FlightServer
    pulse: Pulse
    control: ControlQueue
    metrics: Metrics

    @property
    def location(self) -> str:
        return f"grpc://127.0.0.1:{self.server.port}"

    def count(self, name: str, **labels: str) -> float | None:
        return self.metrics._registry.get_sample_value(name, labels)


class Client:
    """A Flight client with a key."""

    def __init__(
        self,
        location: str,
        authorization: str | None = f"Bearer {TOKEN}",
        settings: list[tuple[str, int]] | None = None,
    ) -> None:
        self.raw = flight.FlightClient(location, generic_options=settings)
        headers = [(b"authorization", authorization.encode())] if authorization else []
        self.options = flight.FlightCallOptions(timeout=60, headers=headers)

    def get(self, **ticket: Any) -> Any:
        return self.raw.do_get(flight.Ticket(json.dumps(ticket)), self.options)

    def action(self, name: str, body: bytes = b"") -> Any:
        (result,) = self.raw.do_action(flight.Action(name, body), self.options)
        return json.loads(result.body.to_pybytes())

    def call(self, action: str, **body: Any) -> Any:
        return self.action(action, json.dumps(body).encode())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    store = Store(tmp_path / "store.duckdb")
    pulse, control, metrics = Pulse(store), ControlQueue(), Metrics()
    server = FlightServer("127.0.0.1", 0, Backend(store, Key(TOKEN), pulse, control, metrics))
    store.begin("g", [PEOPLE])
    store.put(Batch("g", 0, (TableChanges("people", pa.Table.from_pylist(ROWS, SCHEMA), pa.table({})),)))
    store.publish("g")
    yield Served(store, server, pulse, control, metrics)
    server.shutdown()
    store.close()


@pytest.fixture
def client(served: Served) -> Client:
    return Client(served.location)


@pytest.fixture
def big(served: Served) -> pa.Table:
    """A table that no buffer holds whole, and that comes in chunks, so that the end of a stream is not in one."""
    table = pa.table({"id": range(MANY), "text": [f"{n:0>200}" for n in range(MANY)]}, BIG.schema)
    served.store.begin("b", [BIG])
    served.store.put(Batch("b", 0, (TableChanges("big", table, pa.table({})),)))
    served.store.publish("b")
    return table


def info_of(error: pytest.ExceptionInfo[Any]) -> dict[str, str]:
    """The fields of an error for programs; its message must have the same for people."""
    info: dict[str, str] = json.loads(error.value.extra_info)
    assert f"{info['problem']}\n  cure: {info['cure']}" in str(error.value)
    return info


# Who gets in


@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Bearer", TOKEN, f"Basic {TOKEN}", "Bearer "])
def test_without_the_key_every_call_is_refused_with_the_cure(served: Served, authorization: str | None) -> None:
    stranger = Client(served.location, authorization)
    calls: list[Callable[[], Any]] = [
        lambda: stranger.get(table="people").read_all(),
        lambda: stranger.action("generations"),
        lambda: list(stranger.raw.list_flights(options=stranger.options)),
        lambda: stranger.raw.list_actions(stranger.options),
        lambda: stranger.raw.get_flight_info(flight.FlightDescriptor.for_path("people"), stranger.options),
    ]
    for call in calls:
        with pytest.raises(flight.FlightUnauthenticatedError, match="authorization: Bearer") as error:
            call()
        assert info_of(error)["code"] == "unauthorized"
        assert TOKEN not in str(error.value)
    assert served.count("livetables_logins_failed_total", door="flight") == len(calls)
    assert served.pulse.status().pipeline_seen is None


def test_without_the_key_a_schema_is_refused_too(served: Served) -> None:
    """The client of pyarrow does not show what kind of error it is; the server shows nothing of its insides."""
    for number in range(WRONG_KEYS_MAX + 1):
        stranger = Client(served.location, f"Bearer wrong {number}")
        problem = "the key is wrong" if number < WRONG_KEYS_MAX else "too many different wrong keys"
        with pytest.raises((OSError, pa.ArrowException), match=problem) as error:
            stranger.raw.get_schema(flight.FlightDescriptor.for_path("people"), stranger.options)
        assert "Traceback" not in str(error.value)


# What clients can take


def test_a_table_is_taken_whole(client: Client) -> None:
    table = client.get(table="people").read_all()
    assert table.schema == SCHEMA
    assert table.to_pylist() == ROWS


def test_an_alias_is_a_table_too(client: Client) -> None:
    assert client.get(table="user").read_all().to_pylist() == ROWS


def test_a_selection_is_sorted_and_filtered(client: Client) -> None:
    table = client.get(
        table="people",
        columns=["name", "id"],
        sort=[{"column": "id", "descending": True}],
        filters=[{"column": "value", "op": ">", "value": 40}],
        quick="NAME 3",
    ).read_all()
    assert table.to_pylist() == [{"name": "name 3", "id": n} for n in (94, 87)]


def test_a_window_is_a_part(client: Client) -> None:
    assert client.get(table="people", offset=10, size=5).read_all().to_pylist() == ROWS[10:15]
    last = client.get(table="people", size=3, sort=[{"column": "id", "descending": True}]).read_all()
    assert last["id"].to_pylist() == [99, 98, 97]
    nothing = client.get(table="people", offset=1000, quick="name").read_all()
    assert (nothing.num_rows, nothing.schema) == (0, SCHEMA)


def test_sql_is_answered(client: Client) -> None:
    table = client.get(sql="SELECT name, count(*) AS n FROM people GROUP BY name ORDER BY name LIMIT 2").read_all()
    assert table.to_pylist() == [{"name": "name 0", "n": 15}, {"name": "name 1", "n": 15}]


def test_an_empty_answer_has_its_schema(client: Client) -> None:
    table = client.get(table="people", filters=[{"column": "id", "op": "<", "value": 0}]).read_all()
    assert (table.num_rows, table.schema) == (0, SCHEMA)
    assert client.get(sql="SELECT id FROM people WHERE false").read_all().num_rows == 0


def test_a_large_table_streams_in_chunks(client: Client, big: pa.Table) -> None:
    chunks = [chunk.data for chunk in client.get(table="big")]
    assert len(chunks) > 2
    assert pa.Table.from_batches(chunks) == big


def test_a_stream_is_a_snapshot(served: Served, client: Client, big: pa.Table) -> None:
    reader = client.get(table="big")
    first = reader.read_chunk().data
    served.store.put(Batch("b", 1, (TableChanges("big", BIG.schema.empty_table(), big.select(["id"])),)))
    served.store.drop("b")
    assert first.num_rows + reader.read_all().num_rows == MANY
    with pytest.raises(flight.FlightServerError) as error:
        client.get(table="big").read_all()
    assert info_of(error)["code"] == "unknown_table"


def test_flights_are_the_tables(client: Client) -> None:
    infos = list(client.raw.list_flights(options=client.options))
    assert [info.descriptor.path for info in infos] == [[b"people"], [b"user"]]
    assert [info.schema for info in infos] == [SCHEMA, SCHEMA]
    for info in infos:
        assert client.raw.do_get(info.endpoints[0].ticket, client.options).read_all().to_pylist() == ROWS


@pytest.mark.parametrize(
    "ticket",
    [
        {"table": "people", "columns": ["at", "id"]},
        {"table": "people", "size": 2},
        {"sql": 'SELECT id, "at" FROM people'},
        {"sql": "SHOW TABLES"},
    ],
)
def test_the_info_of_an_answer_is_true(client: Client, ticket: dict[str, Any]) -> None:
    descriptor = flight.FlightDescriptor.for_command(json.dumps(ticket))
    info = client.raw.get_flight_info(descriptor, client.options)
    answer = client.raw.do_get(info.endpoints[0].ticket, client.options).read_all()
    assert info.schema == client.raw.get_schema(descriptor, client.options).schema == answer.schema
    assert answer == client.get(**ticket).read_all()


def test_asking_for_a_schema_leaves_nothing_open(client: Client) -> None:
    descriptor = flight.FlightDescriptor.for_command(json.dumps({"sql": "SELECT * FROM people"}))
    for _ in range(SCANS_MAX * 2):
        client.raw.get_schema(descriptor, client.options)


def test_a_path_of_two_names_is_no_table(client: Client) -> None:
    with pytest.raises(flight.FlightServerError, match="the table's name alone"):
        client.raw.get_flight_info(flight.FlightDescriptor.for_path("main", "people"), client.options)


# What they cannot


@pytest.mark.parametrize(
    ("ticket", "code", "problem"),
    [
        (b"", "bad_frame", "cannot be read"),
        (b"people", "bad_frame", "cannot be read"),
        (b"[1]", "bad_frame", "not a JSON object"),
        (b"[" * 60_000, "bad_frame", "recursion"),
        (b"\xff\xfe", "bad_frame", "cannot be read"),
        (b'{"table": "\\ud800"}', "bad_frame", "cannot be read"),
        (b"{}", "bad_frame", "table: Field required"),
        (b'{"table": 1}', "bad_frame", "table: Input should be a valid string"),
        (b'{"table": "people", "colums": ["id"]}', "bad_frame", "colums: Extra inputs"),
        (b'{"table": "people", "size": 10002}', "bad_frame", "size: Input should be less than or equal to 10001"),
        (b'{"table": "people", "offset": -1}', "bad_frame", "offset: "),
        (b'{"table": "people", "sort": [{"column": 3}]}', "bad_frame", "sort.0.column: "),
        (b'{"sql": "SELECT 1", "table": "people"}', "bad_frame", "table: Extra inputs"),
        (b'{"sql": "' + b"x" * 70_000 + b'"}', "limit", "at most 65,536"),
        (b'{"table": "peeple"}', "unknown_table", 'did you mean "people"'),
        (b'{"table": "people", "columns": ["nam"]}', "unknown_column", 'did you mean "name"'),
        (b'{"table": "people", "filters": [{"column": "id", "op": "<", "value": "x"}]}', "bad_filter", "a number"),
        (b'{"sql": "SELECT * FROM nowhere"}', "unknown_table", "there is no table nowhere"),
        (b'{"sql": "SELECT nothing FROM people"}', "bad_sql", "nothing"),
        (b'{"sql": "DROP VIEW people"}', "bad_sql", "send a single SELECT"),
        (b'{"sql": "INSERT INTO people VALUES (1)"}', "bad_sql", "send a single SELECT"),
        (b'{"sql": "COPY people TO \'/tmp/people.csv\'"}', "bad_sql", "send a single SELECT"),
        (b'{"sql": "SELECT * FROM read_csv(\'/etc/passwd\')"}', "bad_sql", "not available here"),
        (b'{"sql": "SELECT * FROM \'/etc/passwd\'"}', "unknown_table", "use one of people"),
        (b'{"sql": "SELECT ' + b"\xf0\x9f\xa6\x86" * 9_000 + b'"}', "bad_sql", "cure: correct the query"),
        (b'{"sql": "SELECT \\u0001' + b'\\"' * 9_001 + b'"}', "bad_sql", "cure: correct the query"),
    ],
)
def test_a_bad_ticket_is_an_error_with_its_cure(client: Client, ticket: bytes, code: str, problem: str) -> None:
    with pytest.raises(flight.FlightServerError) as error:
        client.raw.do_get(flight.Ticket(ticket), client.options).read_all()
    assert info_of(error)["code"] == code
    assert problem in str(error.value)
    assert client.get(table="people", size=1).read_all().num_rows == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [(RequestError("bad_sql", "a bad cell", "leave it out"), "bad_sql"), (ZeroDivisionError("a bug"), "internal")],
)
@pytest.mark.parametrize("ticket", [{"sql": "SELECT 1"}, {"table": "people"}])
def test_an_error_in_the_middle_of_a_stream_reaches_the_client(
    served: Served,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    ticket: dict[str, str],
    error: Exception,
    code: str,
) -> None:
    @contextmanager
    def failing(*_: object, **__: object) -> Iterator[pa.RecordBatchReader]:
        def chunks() -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"id": [1]})
            raise error

        yield pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), chunks())

    monkeypatch.setattr(served.store.reader, "sql", failing)
    monkeypatch.setattr(served.store.reader, "scan", failing)
    reader = client.get(**ticket)
    assert reader.read_chunk().data.num_rows == 1
    with pytest.raises(flight.FlightError) as raised:
        reader.read_all()
    assert info_of(raised)["code"] == code
    assert free_places(served) == SCANS_MAX


def test_an_error_of_a_cell_reaches_the_client(client: Client) -> None:
    with pytest.raises(flight.FlightServerError, match="name 0") as error:
        client.get(sql="SELECT CAST(name AS BIGINT) FROM people").read_all()
    assert info_of(error)["code"] == "bad_sql"


@pytest.mark.parametrize("what", ["count(*)", "a.id"])
def test_a_query_that_takes_too_long_ends(
    served: Served, client: Client, big: pa.Table, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    sql = served.store.reader.sql
    monkeypatch.setattr(served.store.reader, "sql", lambda text, **options: sql(text, 0.2, **options))
    with pytest.raises(flight.FlightServerError) as error:
        for _ in client.get(sql=f"SELECT {what} FROM big a, big b WHERE a.id + b.id <> 7"):
            pass
    assert info_of(error)["code"] == "timeout"
    assert big.num_rows == MANY


def test_a_bug_is_reported_in_a_line_and_logged_once(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug\nof two lines")

    monkeypatch.setattr(served.store.reader, "window", broken)
    with pytest.raises(flight.FlightInternalError, match="ZeroDivisionError: a bug of two lines") as error:
        client.get(table="people", size=1).read_all()
    assert info_of(error)["code"] == "internal"
    assert [record.message for record in caplog.records] == ["a Flight call failed"]
    assert client.get(table="people").read_all().num_rows == 100


# That nothing is left behind


def test_more_scans_than_places_are_refused_until_one_ends(client: Client, big: pa.Table) -> None:
    readers = [client.get(table="big") for _ in range(SCANS_MAX)]
    for reader in readers:
        reader.read_chunk()
    with pytest.raises(flight.FlightServerError, match="ask again when one has been read") as error:
        client.get(table="people").read_all()
    assert info_of(error)["code"] == "busy"
    assert client.get(table="people", size=1).read_all().num_rows == 1
    assert 0 < readers.pop().read_all().num_rows < big.num_rows
    wait_until(lambda: can_scan(client), "there is a place again")
    for reader in readers:
        reader.cancel()


def can_scan(client: Client) -> bool:
    try:
        return bool(client.get(table="people").read_all().num_rows)
    except flight.FlightServerError as error:
        if json.loads(error.extra_info)["code"] != "busy":
            raise
        return False


def free_places(served: Served) -> int:
    return served.server._streams._places._value


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_streams_that_a_client_abandons_are_closed(
    served: Served, client: Client, big: pa.Table, is_cancelled: bool
) -> None:
    readers = [client.get(table="big") for _ in range(SCANS_MAX)]
    for reader in readers:
        reader.read_chunk()
        if is_cancelled:
            reader.cancel()
    assert is_cancelled or free_places(served) == 0
    del reader, readers
    wait_until(lambda: free_places(served) == SCANS_MAX, "all places are free")
    served.store.drop("b")
    assert big.num_rows == MANY
    assert list(served.store.generations()) == ["g"]


def test_a_stream_that_is_never_read_is_closed(served: Served, client: Client, big: pa.Table) -> None:
    for _ in range(SCANS_MAX):
        client.get(table="big").cancel()
    wait_until(lambda: free_places(served) == SCANS_MAX, "all places are free")
    assert big.num_rows == MANY


def test_a_stream_left_unread_too_long_loses_its_place(
    served: Served, client: Client, big: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_module, "STALLED_SECONDS_MAX", 0.1)
    readers = [client.get(table="big") for _ in range(SCANS_MAX)]
    for reader in readers:
        reader.read_chunk()  # so that it has been opened
    wait_until(lambda: can_scan(client) and free_places(served) == SCANS_MAX, "the stalled streams' places are free")
    with pytest.raises(flight.FlightServerError, match="left unread") as error:
        readers[0].read_all()
    assert info_of(error)["code"] == "timeout"
    for reader in readers:
        reader.cancel()
    assert big.num_rows == MANY


SMALL_BUFFERS = [("grpc.http2.bdp_probe", 0)]  # they do not grow where a connection is slow
LARGE = pa.table({"id": range(10_000), "text": [f"{n:0>1500}" for n in range(10_000)]}, BIG.schema)
UNREAD = {
    "window": {"table": "big", "offset": 0, "size": 10_000},
    "change": {"changes": "big", "generation": "b", "after": -1},
    "table": {"table": "big"},
    "sql": {"sql": "SELECT a.text FROM big a, people p"},
}


@pytest.fixture
def large(served: Served) -> None:
    """A table of one large window, all of which has just changed."""
    served.store.begin("b", [BIG])
    served.store.publish("b")
    served.store.put(Batch("b", 0, (TableChanges("big", LARGE, pa.table({})),)))


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("ticket", UNREAD.values(), ids=UNREAD)
def test_who_reads_nothing_loses_first_the_stream_and_then_the_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch, ticket: dict[str, Any]
) -> None:
    client = Client(served.location, settings=SMALL_BUFFERS)
    readers = [client.get(**ticket) for _ in range(2)]
    assert len(served.server._streams._open) == 2
    for stream in served.server._streams._open:
        stream._rest_seconds_max = 0.1
    del stream
    monkeypatch.setattr(flight_streams, "PATIENCE_SECONDS", 0.1)
    wait_until(lambda: not served.server.front._connections, "the connection has ended")
    wait_until(lambda: not served.server._streams._open, "gRPC has let go of all streams")
    wait_until(
        lambda: (free_places(served), served.server._streams._answers_bytes) == (SCANS_MAX, 0), "what they had is free"
    )
    for reader in readers:
        with pytest.raises((flight.FlightError, pa.ArrowException)):
            reader.read_all()
    assert Client(served.location).get(table="people").read_all().num_rows == 100


@pytest.mark.usefixtures("large")
def test_while_too_much_is_unread_a_large_window_is_refused_and_a_small_one_is_not(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_streams, "ANSWERS_BYTES_MAX", 20_000_000)
    client = Client(served.location, settings=SMALL_BUFFERS)
    reader = client.get(table="big", size=10_000)
    with pytest.raises(flight.FlightServerError, match="do not read") as error:
        client.get(table="big", size=10_000).read_all()
    assert info_of(error)["code"] == "busy"
    assert client.get(table="people", size=1).read_all().num_rows == 1
    assert reader.read_all().num_rows == 10_000
    wait_until(lambda: is_answered(client), "there is room again")


def is_answered(client: Client) -> bool:
    with suppress(flight.FlightServerError):
        return bool(client.get(table="big", size=10_000).read_all().num_rows)
    return False


def test_shutdown_does_not_wait_for_a_client_that_has_stopped_reading(
    served: Served, client: Client, big: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_module, "GOODBYE_SECONDS", 0.5)
    reader = client.get(table="big")
    reader.read_chunk()
    closing = threading.Thread(target=served.server.shutdown)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    assert not any(thread.name == "flight-shutdown" for thread in threading.enumerate())
    with pytest.raises((flight.FlightError, pa.ArrowException)):
        reader.read_all()
    assert big.num_rows == MANY


def test_shutdown_does_not_wait_for_a_pipeline_that_waits(served: Served, client: Client) -> None:
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(client.call, "control_requests", seconds_max=20)
        wait_until(lambda: served.pulse.status().pipeline_seen is not None, "the pipeline waits")
        started = time.monotonic()
        served.server.shutdown()
        assert time.monotonic() - started < 18
        assert waiting.result() == []


# The pipeline's actions, where its sink does not get; tests/pipeline/test_server_client.py has the rest


def test_the_actions_are_listed(client: Client) -> None:
    assert {action.type for action in client.raw.list_actions(client.options)} == set(ACTIONS)


def test_a_batch_is_counted_once(served: Served, client: Client) -> None:
    rows, gone = pa.Table.from_pylist(ROWS[:2], SCHEMA), pa.table({"id": [50]})
    body = encode_batch(Batch("g", 1, (TableChanges("people", rows, gone),)))
    assert [client.action("put", body) for _ in range(2)] == [{"applied": True}, {"applied": False}]
    assert served.count("livetables_batches_total") == 1
    assert served.count("livetables_batch_seconds_count") == 1
    assert served.count("livetables_rows_total", table="people", change="upsert") == 2
    assert served.count("livetables_rows_total", table="people", change="delete") == 1
    assert served.pulse.status().state == "live"


def test_generations_are_listed(served: Served, client: Client) -> None:
    client.action("begin", encode_shapes("next", [PEOPLE]))
    now, coming = client.action("generations")
    known = served.store.generations()
    assert known["g"].published
    assert now == {
        "name": "g",
        "last_batch_id": 0,
        "sequence": 0,
        "positions": {},
        "records": {},
        "published": known["g"].published.isoformat(),
        "begun": known["g"].begun.isoformat(),
        "rows": {"people": 100},
    }
    assert (coming["name"], coming["last_batch_id"], coming["published"]) == ("next", None, None)
    assert coming["rows"] == {"people": 0}


def test_begin_returns_where_http_is(tmp_path: Path) -> None:
    store = Store(tmp_path / "other.duckdb")
    pulse, control, metrics = Pulse(store), ControlQueue(), Metrics()
    backend = Backend(store, Key(TOKEN), pulse, control, metrics)
    with FlightServer("127.0.0.1", 0, backend, http_port=4711) as server:
        answer = Client(f"grpc://127.0.0.1:{server.port}").action("begin", encode_shapes("g", [PEOPLE]))
        assert answer == {"http_port": 4711, "scheme": "http"}
    store.close()


def test_a_call_of_an_older_pipeline_is_refused(served: Served, client: Client) -> None:
    assert client.action("start_pipeline") == {"number": 1}
    client.options = flight.FlightCallOptions(
        headers=[(b"authorization", f"Bearer {TOKEN}".encode()), (b"livetables-pipeline", b"1")]
    )
    assert client.action("positions") == {"g": {}}
    assert served.store.fencing.start_pipeline() == 2
    with pytest.raises(flight.FlightServerError, match="another pipeline has taken over") as error:
        client.action("positions")
    assert info_of(error)["code"] == "fenced"
    assert "pipeline 1 asks, but this server belongs to pipeline 2" in info_of(error)["problem"]
    assert client.get(table="people").read_all().num_rows == len(ROWS), "whoever reads has no number"
    assert Client(served.location).action("positions") == {"g": {}}


def test_a_pipeline_whose_number_the_store_has_lost_is_to_start_again(client: Client) -> None:
    assert client.action("start_pipeline") == {"number": 1}
    client.options = flight.FlightCallOptions(
        headers=[(b"authorization", f"Bearer {TOKEN}".encode()), (b"livetables-pipeline", b"2")]
    )
    with pytest.raises(flight.FlightServerError, match="start the pipeline again") as error:
        client.action("positions")
    assert info_of(error)["code"] == "fenced"
    assert "pipeline 2 asks, but this server belongs to pipeline 1" in info_of(error)["problem"]


@pytest.mark.parametrize("number", [b"one", b"-1", b""])
def test_an_invalid_number_is_refused(served: Served, client: Client, number: bytes) -> None:
    client.options = flight.FlightCallOptions(
        headers=[(b"authorization", f"Bearer {TOKEN}".encode()), (b"livetables-pipeline", number)]
    )
    with pytest.raises(flight.FlightServerError, match="livetables-pipeline is") as error:
        client.action("positions")
    assert info_of(error)["code"] == "bad_frame"
    assert served.store.fencing.start_pipeline() == 1


def test_a_report_sets_how_fresh_the_tables_are(served: Served, client: Client) -> None:
    source = {"table": "people", "topic": "people-topic", "lag_records": 12_345}
    client.call("report", generation="g", sources=[source])
    assert served.pulse.status().message == "catching up: 12,345 records of topic people-topic are still to be read"


def test_a_report_may_have_the_reason_why_a_generation_does_not_move(served: Served, client: Client) -> None:
    client.call("report", generation="g", sources=[], problem="topic people-topic was deleted")
    status = served.pulse.status()
    assert (status.state, status.message) == ("failed", "topic people-topic was deleted")
    client.call("report", generation="g", sources=[])
    assert served.pulse.status().state == "live"


def test_reports_of_generations_that_are_gone_do_not_pile_up(served: Served, client: Client) -> None:
    client.action("begin", encode_shapes("next", [PEOPLE]))
    for generation in ("next", "never begun", "g"):
        client.call("report", generation=generation, sources=[])
    assert set(served.pulse._freshness.reports) == {"next", "g"}
    client.call("drop", generation="next")
    client.call("report", generation="g", sources=[])
    assert set(served.pulse._freshness.reports) == {"g"}


def test_control_messages_go_out_and_answers_come_back(served: Served, client: Client) -> None:
    with ThreadPoolExecutor() as threads:
        sent = threads.submit(served.control.send, {"joinType": "left"})
        (request,) = client.call("control_requests", seconds_max=20)
        assert request["fields"] == {"joinType": "left"}
        client.call("control_settled", request_id=request["request_id"], topic="control", partition=0, offset=7)
        assert sent.result() == Receipt("control", 0, 7)

        sent = threads.submit(served.control.send, {"joinType": "odd"})
        (request,) = client.call("control_requests", seconds_max=20)
        problem = {"code": "unavailable", "problem": "Kafka is away", "cure": "start it"}
        client.call("control_settled", request_id=request["request_id"], **problem)
        with pytest.raises(RequestError, match="Kafka is away\n  cure: start it"):
            sent.result()


def test_a_pipeline_that_has_gone_takes_no_control_message_with_it(served: Served, client: Client) -> None:
    gone = flight.FlightCallOptions(timeout=0.2, headers=[(b"authorization", f"Bearer {TOKEN}".encode())])
    with pytest.raises(flight.FlightTimedOutError):
        list(client.raw.do_action(flight.Action("control_requests", b'{"seconds_max": 20}'), gone))
    wait_until(lambda: not served.control._changed._waiters, "the call has ended")  # type: ignore[attr-defined]
    with ThreadPoolExecutor() as threads:
        sent = threads.submit(served.control.send, {"a": 1})
        (request,) = client.call("control_requests", seconds_max=20)
        client.call("control_settled", request_id=request["request_id"], topic="control", partition=0, offset=1)
        assert sent.result().offset == 1


def test_a_pipeline_that_waits_is_alive(served: Served, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_actions, "CONTROL_SLICE_SECONDS", 0.05)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(client.call, "control_requests", seconds_max=2)
        wait_until(lambda: served.pulse.status().pipeline_seen is not None, "the pipeline waits")
        first = served.pulse.status().pipeline_seen
        assert first
        wait_until(
            lambda: (served.pulse.status().pipeline_seen or first) - first > timedelta(seconds=0.5), "it is heard"
        )
        assert not waiting.done()
        assert waiting.result() == []


@pytest.mark.parametrize(
    ("action", "body", "problem"),
    [
        ("putt", b"", 'did you mean "put"'),
        ("put", b"", "the body of put cannot be read"),
        ("put", b'{"lengths": [5]}\nabc', "the same version"),
        (
            "put",
            encode_batch(Batch("g", 1, (TableChanges("people", SCHEMA.empty_table(), pa.table({})),)))[:-1],
            "version",
        ),
        ("begin", b'{"generation": "x"}\n', "the same version"),
        ("publish", b"{}", "generation: Field required"),
        ("publish", b'{"generation": "x"}', "generation x was not begun"),
        ("drop", b'{"generation": 1}', "generation: Input should be a valid string"),
        ("report", b'{"generation": "g", "sources": [{}]}', "sources.0.table: Field required"),
        ("control_requests", b'{"seconds_max": NaN}', "cannot be read"),
        ("control_requests", b'{"seconds_max": -1}', "seconds_max: "),
        ("control_settled", b'{"request_id": 1}', "Field required"),
        ("drop", b" " * 70_000, "at most 65,536"),
    ],
)
def test_a_bad_action_is_an_error_with_its_cure(client: Client, action: str, body: bytes, problem: str) -> None:
    with pytest.raises(flight.FlightServerError) as error:
        client.action(action, body)
    assert info_of(error)["code"] in ("refused", "limit")
    assert problem in str(error.value)
    assert client.get(table="people").read_all().num_rows == 100


# Following a table


def people(served: Served, number: int, *rows: dict[str, Any]) -> None:
    served.store.put(batch("g", number, {PEOPLE: (list(rows), [])}))


def following(served: Served) -> int:
    return sum(map(len, served.store.feed._waiting.values()))


def test_a_ticket_without_a_place_gives_the_table_or_the_place(served: Served) -> None:
    client = Client(served.location)
    whole = client.get(changes="user").read_all()
    header = ChangesHeader.of(whole.schema)
    assert (header.table, header.is_snapshot, header.key) == ("user", True, ("id",))
    assert whole.drop_columns(DELETED).to_pylist() == ROWS
    nothing = client.get(changes="user", snapshot=False).read_all()
    assert nothing.num_rows == 0
    assert ChangesHeader.of(nothing.schema) == ChangesHeader("user", header.place, False, ("id",))


def test_a_ticket_with_a_place_waits_for_the_next_change(served: Served) -> None:
    client = Client(served.location)
    with ThreadPoolExecutor(1) as asking:
        answer = asking.submit(lambda: client.get(changes="user", generation="g", after=0, seconds_max=20).read_all())
        wait_until(lambda: following(served) == 1, "the client waits")
        people(served, 1, {**ROWS[3], "name": "new"})
        changes = answer.result(timeout=30)
    assert changes.to_pylist() == [{**ROWS[3], "name": "new", DELETED: False}]
    assert ChangesHeader.of(changes.schema).place[:2] == ("g", 1)
    assert following(served) == 0


def test_time_that_is_up_gives_nothing_and_the_newest_place(served: Served) -> None:
    served.store.put(batch("g", 1, {}))
    changes = Client(served.location).get(changes="people", generation="g", after=0, seconds_max=0).read_all()
    assert changes.num_rows == 0
    assert ChangesHeader.of(changes.schema).place.sequence == 1


def test_who_waits_through_a_swap_gets_the_new_table(served: Served) -> None:
    client = Client(served.location)
    with ThreadPoolExecutor(1) as asking:
        answer = asking.submit(lambda: client.get(changes="people", generation="g", after=0).read_all())
        wait_until(lambda: following(served) == 1, "the client waits")
        served.store.begin("g2", [PEOPLE])
        served.store.put(batch("g2", 0, {PEOPLE: (ROWS[:2], [])}))
        served.store.publish("g2")
        header = ChangesHeader.of(answer.result(timeout=30).schema)
    assert (header.place.generation, header.is_snapshot) == ("g2", True)


def test_changes_have_a_checksum_if_it_is_asked_for(served: Served) -> None:
    people(served, 1, {**ROWS[3], "name": "é", "value": None}, {**ROWS[4], "at": None})
    client = Client(served.location)

    def answered(**ticket: Any) -> tuple[pa.Table, str | None]:
        rows = client.get(changes="people", **ticket).read_all()
        return rows, ChangesHeader.of(rows.schema).checksum

    rows, checksum = answered(generation="g", after=0, checksum=True)
    assert (rows.num_rows, checksum) == (2, defined_checksum(rows))
    assert answered(generation="g", after=0)[1] is None
    assert answered(checksum=True)[1] is None  # the whole table
    empty, checksum = answered(generation="g", after=1, seconds_max=0, checksum=True)
    assert (empty.num_rows, checksum) == (0, "00000000")


def test_a_checksum_that_differed_is_counted(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(served.location)
    assert served.count("livetables_checksum_mismatches_total") == 0
    client.get(changes="people", generation="g", after=0, seconds_max=0, checksum=True, reason="checksum").read_all()
    assert served.count("livetables_checksum_mismatches_total") == 1
    assert "event=checksum_mismatch table=people" in caplog.text


@pytest.mark.parametrize(
    ("ticket", "code"),
    [
        ({"changes": "nobody"}, "unknown_table"),
        ({"changes": "people", "checksum": 1}, "bad_frame"),
        ({"changes": "people", "reason": "boredom"}, "bad_frame"),
        ({"changes": "people", "generation": "g"}, "bad_frame"),
        ({"changes": "people", "after": 0}, "bad_frame"),
        ({"changes": "people", "generation": "g", "after": -2}, "bad_frame"),
        ({"changes": "people", "seconds_max": -1}, "bad_frame"),
        ({"changes": "people", "table": "people"}, "bad_frame"),
        ({"changes": "people", "generation": "before", "after": 0, "snapshot": False}, "limit"),
    ],
)
def test_a_ticket_that_cannot_be_answered_is_refused(
    served: Served,
    ticket: dict[str, Any],
    code: str,
) -> None:
    with pytest.raises(flight.FlightServerError) as error:
        Client(served.location).get(**ticket).read_all()
    assert info_of(error)["code"] == code


def test_a_table_may_yet_come_while_nothing_is_published(served: Served) -> None:
    served.store.drop("g")
    with pytest.raises(flight.FlightServerError) as error:
        Client(served.location).get(changes="people").read_all()
    assert info_of(error)["code"] == "unavailable"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(feed_module, "WAITING_MAX", 3)
    return 3


def waiting(served: Served, count: int) -> list[threading.Thread]:
    """Clients that wait for changes until they are refused."""

    def wait() -> None:
        with pytest.raises(flight.FlightError):
            Client(served.location).get(changes="people", generation="g", after=0).read_all()

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    wait_until(lambda: following(served) == count, "all of them wait")
    return threads


def test_too_many_who_wait_are_refused_and_a_stop_ends_all_waits(served: Served, few: int) -> None:
    threads = waiting(served, few)
    client = Client(served.location)
    with pytest.raises(flight.FlightServerError) as error:
        client.get(changes="people", generation="g", after=0).read_all()
    assert info_of(error)["code"] == "busy"
    # Who need not wait is served.
    assert client.get(changes="people", generation="g", after=0, seconds_max=0).read_all().num_rows == 0
    served.server.shutdown()
    for thread in threads:
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in threads)
    assert following(served) == 0


def test_who_waits_holds_no_snapshot(served: Served, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.store.database, "snapshot", None)
    with pytest.raises(flight.FlightInternalError):
        Client(served.location).get(changes="people").read_all()
    waiting(served, few)


def test_a_client_that_has_gone_waits_no_more(served: Served) -> None:
    client = Client(served.location)
    client.options = flight.FlightCallOptions(timeout=0.3, headers=[(b"authorization", f"Bearer {TOKEN}".encode())])
    with pytest.raises(flight.FlightTimedOutError):
        client.get(changes="people", generation="g", after=0, seconds_max=20).read_all()
    wait_until(lambda: following(served) == 0, "its place is free", seconds=10)

"""A real server and real WebSockets: what a client sees, and what bad clients cannot do."""

from __future__ import annotations

import asyncio
import json
import random
import string
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
import websockets
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.wire import FramePart, SourceReport
from livetables.pipeline.server_client import ServerClient
from livetables.server.health.freshness import Freshness, Moment
from livetables.server.live import sessions as sessions_module
from livetables.server.live.serving import Pulse
from livetables.server.live.session import Session
from livetables.server.live.sessions import Sessions
from tests.support.checksum import checksum
from tests.support.frames import SHAPES, Operator, Record, encode_part, marks_of, part
from tests.support.kafka import wait_until
from tests.support.server import TOKEN, WITH_RELAYS, LiveClient, ServerProcess

pytestmark = pytest.mark.processes

SCHEMA = pa.schema(
    [
        ("_id", pa.int64()),
        ("name", pa.string()),
        ("age", pa.int64()),
        ("score", pa.float64()),
        ("ts", pa.timestamp("us", tz="UTC")),
    ]
)
USERS = TableShape("users_ui", SCHEMA, ("_id",), aliases=("user",))
START = datetime(2026, 1, 1, tzinfo=UTC)
NO_DELETES = pa.table({})


@pytest.fixture(scope="module", params=[{}, WITH_RELAYS], ids=["alone", "relays"])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server"), request.param) as running:
        yield running
        assert "Traceback" not in running.log()


@pytest.fixture
def feed(server: ServerProcess) -> Iterator[Feed]:
    """A generation of users of a test's own, published, with three rows."""
    feeding = Feed(server.sink())
    feeding.rows([1, 2, 3])
    feeding.sink.publish(feeding.generation)
    yield feeding
    for generation in feeding.begun:
        feeding.sink.drop(generation)
    feeding.sink.close()


class Feed:
    """The pipeline's side: rows whose values follow from their id."""

    def __init__(self, sink: ServerClient) -> None:
        self.sink = sink
        self.begun: list[str] = []
        self.batch_id = 0
        self.begin([USERS])

    @property
    def generation(self) -> str:
        return self.begun[-1]

    def begin(self, shapes: list[TableShape]) -> None:
        """Go on with a new generation."""
        self.begun.append("g" + "".join(random.choices(string.ascii_lowercase, k=10)))
        self.sink.begin(self.generation, shapes)
        self.batch_id = 0

    def rows(self, ids: list[int], *, age: int | None = None, deletes: tuple[int, ...] = ()) -> None:
        rows = [row(row_id, row_id if age is None else age) for row_id in ids]
        keys = pa.table({"_id": pa.array(deletes, pa.int64())}) if deletes else NO_DELETES
        changes = TableChanges("users_ui", pa.Table.from_pylist(rows, schema=SCHEMA), keys)
        self.sink.put(Batch(self.generation, self.batch_id, (changes,)))
        self.batch_id += 1


def row(row_id: int, age: int) -> dict[str, Any]:
    return {
        "_id": row_id,
        "name": f"name {row_id}",
        "age": age,
        "score": row_id / 4,
        "ts": START + timedelta(milliseconds=row_id % 1_000_000),
    }


def has(client: LiveClient, sub: int, condition: Callable[[list[dict[str, Any]]], bool]) -> Callable[[Any], bool]:
    return lambda _: sub in client.windows and condition(client.windows[sub].as_dicts())


def test_a_window_comes_whole_and_then_only_what_changes(server: ServerProcess, feed: Feed) -> None:
    with LiveClient(server.websocket) as client:
        client.subscribe(1, "users_ui", sort=[{"column": "age", "descending": True}], size=3)
        client.receive_type("snapshot")
        feed.rows([4, 2], age=50, deletes=(3,))
        client.receive_type("patch", "snapshot")
        expected = server.rows("users_ui", "sort=age:desc&limit=3")
        assert client.windows[1].as_dicts() == expected
        assert [row["_id"] for row in expected] == [2, 4, 1]
        assert client.windows[1].total == 3
        feed.rows([2], age=51)
        frame = client.receive_type("patch", "snapshot")
        assert (frame["type"], frame["removed"], frame["inserted"]) == ("patch", [], [])
        assert frame["updated"] == [[0, SCHEMA.get_field_index("age"), 51]]


def test_whatever_changes_the_windows_end_as_the_tables_are(server: ServerProcess, feed: Feed) -> None:
    chance = random.Random(11)
    views: dict[int, tuple[dict[str, Any], str]] = {
        1: ({"size": 40}, "limit=40"),
        2: (
            {"sort": [{"column": "age", "descending": True}], "offset": 5, "size": 20},
            "sort=age:desc&offset=5&limit=20",
        ),
        3: ({"quick": "name 1", "sort": [{"column": "score"}], "size": 500}, "q=name%201&sort=score&limit=500"),
    }
    with LiveClient(server.websocket) as client:
        for sub, (view, _) in views.items():
            client.subscribe(sub, "users_ui", **view)
        for _ in range(100):
            ids = chance.sample(range(300), k=chance.randrange(1, 12))
            gone = tuple(chance.sample(sorted(set(range(300)) - set(ids)), k=chance.randrange(4)))
            feed.rows(ids, age=chance.randrange(50), deletes=gone)
        expected = {sub: server.rows("users_ui", query) for sub, (_, query) in views.items()}
        for sub, rows in expected.items():
            while sub not in client.windows or client.windows[sub].as_dicts() != rows:
                client.receive()
        kinds = [frame["type"] for frame in client.frames]
        assert kinds.count("patch") > 10
        assert kinds.count("schema") == len(views)


def test_every_data_frame_says_where_it_is_from(server: ServerProcess, feed: Feed) -> None:
    with LiveClient(server.websocket) as client:
        client.subscribe(7, "user", quick="name 2")
        schema, snapshot = client.receive_type("schema"), client.receive_type("snapshot")
        for frame in (schema, snapshot):
            assert (frame["sub"], frame["revision"], frame["table"]) == (7, 0, "user")
            assert frame["generation"] == feed.generation
            assert frame["newest"] == "2026-01-01T00:00:00.003Z"
        assert [column["type"] for column in schema["columns"]] == ["int64", "string", "int64", "double", "timestamp"]
        assert snapshot["rows"] == [[2, "name 2", 2, 0.5, "2026-01-01T00:00:00.002Z"]]
        assert snapshot["total"] == 1


def test_a_number_beyond_javascript_arrives_exact(server: ServerProcess, feed: Feed) -> None:
    feed.rows([2**53 - 1], age=2**53 + 1)
    with LiveClient(server.websocket) as client:
        client.subscribe(
            1, "users_ui", filters=[{"column": "age", "op": ">", "value": str(2**53)}], columns=["_id", "age"]
        )
        assert client.receive_type("snapshot")["rows"] == [[9007199254740991, "9007199254740993"]]


def test_rows_come_as_arrow_on_request(server: ServerProcess, feed: Feed) -> None:
    with connect(server.websocket) as socket:
        socket.send(json.dumps({"type": "hello", "protocol": 1, "token": TOKEN}))
        socket.send(json.dumps({"type": "subscribe", "sub": 1, "table": "users_ui", "format": "arrow"}))
        while isinstance(frame := socket.recv(timeout=10), str):
            pass
        header_end = 4 + int.from_bytes(frame[:4], "little")
        assert json.loads(frame[4:header_end])["generation"] == feed.generation
        table = pa.ipc.open_stream(frame[header_end:]).read_all()
        assert table.column_names[0] == "_row"
        assert table.drop_columns("_row").to_pylist() == [row(row_id, row_id) for row_id in (1, 2, 3)]


def test_subscribers_of_one_view_share_its_evaluation_and_a_late_one_is_served_at_once(
    server: ServerProcess, feed: Feed
) -> None:
    clients = [LiveClient(server.websocket) for _ in range(20)]
    try:
        for client in clients:
            client.subscribe(1, "users_ui", size=10)
            client.receive_type("snapshot")
        before = server.metric("livetables_viewport_evaluations_total")
        feed.rows([4])
        for client in clients:
            client.receive_until(has(client, 1, lambda rows: len(rows) == 4), "fourth row")
        assert server.metric("livetables_viewport_evaluations_total") == before + 1
        assert server.metric("livetables_viewports") == 1
        with LiveClient(server.websocket) as late:
            late.subscribe(1, "users_ui", size=10)
            assert len(late.receive_type("snapshot")["rows"]) == 4
        assert server.metric("livetables_viewport_evaluations_total") == before + 1
    finally:
        for client in clients:
            client.close()
    wait_until(lambda: server.metric("livetables_viewports") == 0, "end of the viewport", 10)
    wait_until(lambda: server.metric("livetables_clients") == 0, "end of the clients", 10)


def test_only_viewports_whose_table_changed_are_evaluated(server: ServerProcess, feed: Feed) -> None:
    feed.begin([USERS, TableShape("others_ui", SCHEMA, ("_id",))])
    feed.sink.publish(feed.generation)
    with LiveClient(server.websocket) as client:
        client.subscribe(1, "users_ui")
        client.receive_type("snapshot")
        client.subscribe(2, "others_ui")
        client.receive_type("snapshot")
        before = server.metric("livetables_viewport_evaluations_total")
        feed.rows([1])
        client.receive_until(has(client, 1, lambda rows: len(rows) == 1), "row")
        assert server.metric("livetables_viewport_evaluations_total") == before + 1


def test_looking_elsewhere_keeps_what_is_not_named(server: ServerProcess, feed: Feed) -> None:
    feed.rows(list(range(4, 101)))
    with LiveClient(server.websocket) as client:
        client.subscribe(1, "users_ui", sort=[{"column": "_id", "descending": True}], columns=["_id"], size=2)
        client.receive_type("snapshot")
        client.send({"type": "set", "sub": 1, "revision": 1, "offset": 10})
        frame = client.receive_until(lambda frame: frame.get("revision") == 1, "new range")
        assert (frame["type"], frame["rows"], frame["offset"], frame["total"]) == ("snapshot", [[90], [89]], 10, 100)
        client.send({"type": "set", "sub": 1, "revision": 2, "quick": "name 10", "offset": 0})
        frame = client.receive_until(lambda frame: frame.get("revision") == 2, "filtered window")
        assert (frame["rows"], frame["total"]) == ([[100], [10]], 2)
        client.send({"type": "set", "sub": 1, "revision": 3, "columns": None})
        frame = client.receive_until(lambda frame: frame.get("revision") == 3, "schema of all columns")
        assert (frame["type"], len(frame["columns"])) == ("schema", 5)
        client.send({"type": "unsubscribe", "sub": 1})
        client.send({"type": "resync", "sub": 1})
        assert client.receive_type("error")["code"] == "unknown_subscription"
        wait_until(lambda: server.metric("livetables_viewports") == 0, "end of the viewport", 10)


@pytest.mark.usefixtures("feed")
def test_a_resync_sends_the_window_again(server: ServerProcess) -> None:
    with LiveClient(server.websocket) as client:
        client.subscribe(1, "users_ui")
        first = client.receive_type("snapshot")
        client.send({"type": "resync", "sub": 1})
        again = client.receive_type("snapshot")
        assert again == first


def post(server: ServerProcess, sent: FramePart) -> None:
    """Send a frame as the pipeline does."""
    request = urllib.request.Request(  # noqa: S310
        f"{server.http}/api/frames", encode_part(sent), {"Authorization": f"Bearer {TOKEN}"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
        assert json.loads(response.read())["applied"]


@pytest.fixture
def frames(server: ServerProcess) -> Iterator[Callable[..., None]]:
    """Sends users with these offsets to a published generation of its own."""
    sink, numbers = server.sink(), count()
    sink.begin("frames", SHAPES)
    sink.publish("frames")
    operator = Operator()

    def send(*offsets: int, key: str = "a", **fields: Any) -> None:
        records = [Record("users", 0, offset, key, offset) for offset in offsets]
        emitted = [each for record in records for each in operator.process(record)]
        place = {"generation": "frames", "frame": next(numbers), "attempt": "a", **fields}
        post(server, part(emitted, marks_of(records), **place))

    yield send
    sink.drop("frames")
    sink.close()


def begins_with(number: int) -> Callable[[list[dict[str, Any]]], bool]:
    return lambda rows: bool(rows) and rows[0]["n"] == number


def test_receipts_have_the_times_at_which_a_record_was_where(
    server: ServerProcess, frames: Callable[..., None]
) -> None:
    with LiveClient(server.websocket) as client:
        client.subscribe(1, "users_ui")
        assert client.receive_type("snapshot")["receipt"] is None, "no record has caused the first window"
        now = time.time() * 1000
        frames(1, 2, kafka_ms=int(now) - 30, sent_ms=int(now) - 10, durable=False)
        frame = client.receive_type("patch", "snapshot")
        receipt = frame["receipt"]
        assert list(receipt) == ["kafka", "spark", "applied", "sent"]
        assert (receipt["kafka"], receipt["spark"]) == (int(now) - 30, int(now) - 10)
        assert receipt["spark"] < receipt["applied"] <= receipt["sent"] <= time.time() * 1000
        client.send({"type": "resync", "sub": 1})
        assert client.receive_type("snapshot")["receipt"] is None
        with LiveClient(server.websocket) as late:
            late.subscribe(1, "users_ui")
            assert late.receive_type("snapshot")["receipt"] is None, "it has not waited for that record"


def test_frames_have_a_checksum_for_those_who_ask(server: ServerProcess, frames: Callable[..., None]) -> None:
    with LiveClient(server.websocket) as client, LiveClient(server.websocket) as other:
        view = {"sort": [{"column": "n", "descending": True}], "size": 3, "columns": ["n", "k", "ts"]}
        client.send({"type": "subscribe", "sub": 1, "table": "users_ui", "view": view, "checksum": True})
        other.subscribe(1, "users_ui", **view)
        client.receive_type("snapshot")
        other.receive_type("snapshot")
        for number in range(6):
            frames(10 * number, 10 * number + 1, durable=number % 2 == 0)
            client.receive_until(has(client, 1, begins_with(10 * number + 1)), "rows")
            window = client.windows[1]
            assert window.total is not None
            ids, rows = [row_id for row_id, _ in window.rows], [values for _, values in window.rows]
            frame = client.frames[-1]
            assert list(frame)[-1] == "checksum"
            assert frame["checksum"] == checksum(window.total, ids, rows)
        client.send({"type": "set", "sub": 1, "revision": 1, "size": 2})
        assert "checksum" in client.receive_until(lambda frame: frame.get("revision") == 1, "window")
        other.receive_until(has(other, 1, begins_with(51)), "rows")
        assert not any("checksum" in frame for frame in other.frames)


def test_a_wrong_checksum_is_counted_and_the_window_sent_again(server: ServerProcess, feed: Feed) -> None:
    name = "livetables_checksum_mismatches_total"
    before = server.metric(name)
    with LiveClient(server.websocket) as client:
        client.subscribe(1, "users_ui")
        first = client.receive_type("snapshot")
        client.send({"type": "resync", "sub": 1, "reason": "gap"})
        assert client.receive_type("snapshot")["rows"] == first["rows"]
        assert server.metric(name) == before
        client.send({"type": "resync", "sub": 1, "reason": "checksum"})
        assert client.receive_type("snapshot")["rows"] == first["rows"]
        wait_until(lambda: server.metric(name) == before + 1, "it is counted")  # a relay sends its counts every second
        assert feed.generation == first["generation"]


def test_rows_of_a_megabyte_come_in_frames_that_are_bounded(server: ServerProcess, frames: Callable[..., None]) -> None:
    with LiveClient(server.websocket) as client:
        client.subscribe(1, "users_ui", sort=[{"column": "n", "descending": True}])
        first = client.receive_type("snapshot")
        assert "hint" not in first
        for number in range(12):
            frames(number, key=f"{number}" + "x" * 1024**2, durable=False)
        client.receive_until(has(client, 1, begins_with(11)), "last row", 30)
        assert client.windows[1].total == 12
        assert [row["n"] for row in client.windows[1].as_dicts()] == [11, 10, 9]
        assert client.frames[-1]["hint"] == "only 3 of 12 rows are sent: more is over 4 MB; ask for fewer rows"
        assert max(len(json.dumps(frame)) for frame in client.frames) < 5 * 1024**2


def test_publishing_rebinds_once_on_the_same_socket_and_keeps_the_view(server: ServerProcess, feed: Feed) -> None:
    with LiveClient(server.websocket) as client:
        view = {"sort": [{"column": "age", "descending": True}], "quick": "name", "offset": 1, "size": 2}
        client.subscribe(1, "users_ui", **view)
        client.receive_type("snapshot")
        before = feed.generation
        feed.begin([USERS])
        feed.rows([10, 20, 30, 40])
        feed.sink.publish(feed.generation)
        rebound = client.receive_type("rebound")
        assert (rebound["before"], rebound["generation"]) == (before, feed.generation)
        assert client.receive()["type"] == "snapshot"
        assert [row["_id"] for row in client.windows[1].as_dicts()] == [30, 20]
        feed.rows([50])
        client.receive_until(has(client, 1, lambda rows: [row["_id"] for row in rows] == [40, 30]), "next rows")
        assert [frame["type"] for frame in client.frames].count("rebound") == 1
        assert [frame["type"] for frame in client.frames].count("schema") == 1


def test_other_columns_of_a_new_generation_arrive_as_a_schema(server: ServerProcess, feed: Feed) -> None:
    with LiveClient(server.websocket) as client:
        client.subscribe(1, "users_ui")
        client.receive_type("snapshot")
        client.subscribe(2, "users_ui", sort=[{"column": "age"}])
        client.receive_type("snapshot")
        narrow = TableShape("users_ui", pa.schema([("_id", pa.int64()), ("name", pa.string())]), ("_id",))
        feed.begin([narrow])
        feed.sink.publish(feed.generation)
        schema = client.receive_until(lambda frame: frame["type"] == "schema" and frame["sub"] == 1, "schema")
        assert [column["name"] for column in schema["columns"]] == ["_id", "name"]
        while not (errors := [frame for frame in client.frames if frame["type"] == "error"]):
            client.receive()
        (error,) = errors
        assert (error["sub"], error["code"]) == (2, "unknown_column")
        assert "age" in error["problem"]


def test_a_table_that_is_not_there_yet_is_served_when_it_appears(server: ServerProcess, feed: Feed) -> None:
    with LiveClient(server.websocket) as client:
        client.subscribe(1, "later_ui")
        error = client.receive_type("error")
        assert (error["sub"], error["code"]) == (1, "unknown_table")
        feed.begin([TableShape("later_ui", SCHEMA, ("_id",))])
        feed.sink.publish(feed.generation)
        assert client.receive_type("snapshot")["total"] == 0


def test_a_client_that_does_not_read_gets_the_newest_state_and_costs_little(server: ServerProcess, feed: Feed) -> None:
    feed.rows(list(range(1, 3001)))
    # A short queue and no reading: frames pile up in the kernel first, then at the server.
    with LiveClient(server.websocket) as reading, LiveClient(server.websocket, max_queue=1) as slow:
        for client in (slow, reading):
            client.subscribe(1, "users_ui", size=3000)
            client.receive_type("snapshot")
        before, evaluations = server.rss_megabytes(), server.metric("livetables_viewport_evaluations_total")
        for age in range(1, 201):
            feed.rows(list(range(1, 3001)), age=age)
        newest = has(reading, 1, lambda rows: rows[0]["age"] == rows[-1]["age"] == 200)
        reading.receive_until(newest, "newest state", 60)
        grown = server.rss_megabytes() - before
        slow.receive_until(has(slow, 1, lambda rows: rows[0]["age"] == rows[-1]["age"] == 200), "newest state", 60)
        assert slow.windows[1].rows == reading.windows[1].rows
        # 200 windows of 3,000 rows are 50 MB as JSON; DuckDB's own memory moves a little as well.
        assert grown < 100
        states = server.metric("livetables_viewport_evaluations_total") - evaluations
        # One with a hint alone, that the view takes long on this machine, needs no state.
        data = [
            [f for f in c.frames if f["type"] in ("snapshot", "patch") and "hint" not in f] for c in (slow, reading)
        ]
        frames = [len(each) for each in data]
        assert max(frames) <= 1 + states


def test_silence_of_the_pipeline_and_its_lag_are_shown_with_their_cause(server: ServerProcess, feed: Feed) -> None:
    with LiveClient(server.websocket) as client:
        lag = [SourceReport("users_ui", "user-topic", 50_000)]
        feed.sink.report(feed.generation, lag)
        status = client.receive_until(lambda frame: frame.get("state") == "catching_up", "lag")
        assert "50,000 records of topic user-topic" in status["message"]
        assert status["sources"][0]["lag_records"] == 50_000
        feed.sink.report(feed.generation, [SourceReport("users_ui", "user-topic", 0)])
        status = client.receive_until(lambda frame: frame.get("state") == "live", "end of the lag")
        assert status["sources"][0]["newest"] == "2026-01-01T00:00:00.003Z"
        status = client.receive_until(lambda frame: frame.get("state") == "pipeline_down", "silence", 20)
        assert "last heard" in status["message"]


def test_a_heartbeat_is_answered(server: ServerProcess) -> None:
    with LiveClient(server.websocket) as client:
        client.send({"type": "heartbeat"})
        assert client.receive_type("heartbeat")["time"].endswith("Z")


@pytest.mark.parametrize(
    ("hello", "code", "close_code"),
    [
        ({"type": "hello", "protocol": 1, "token": "wrong"}, "unauthorized", 4401),
        ({"type": "hello", "protocol": 1, "token": ""}, "unauthorized", 4401),
        ({"type": "hello", "protocol": 2, "token": TOKEN}, "unsupported_protocol", 4400),
        ({"type": "subscribe", "sub": 1, "table": "users_ui"}, "unauthorized", 4401),
        ({"type": "nonsense"}, "bad_frame", 4400),
    ],
)
def test_a_bad_login_gets_the_reason_and_is_closed(
    server: ServerProcess, hello: dict[str, Any], code: str, close_code: int
) -> None:
    with connect(server.websocket) as socket:
        socket.send(json.dumps(hello))
        error = json.loads(socket.recv(timeout=10))
        assert (error["type"], error["code"]) == ("error", code)
        assert error["cure"]
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=10)
        assert closed.value.rcvd
        assert closed.value.rcvd.code == close_code


def test_a_page_from_elsewhere_may_not_connect(server: ServerProcess) -> None:
    with pytest.raises(InvalidStatus) as refused:
        LiveClient(server.websocket, origin=websockets.Origin("http://evil.example"))
    assert refused.value.response.status_code == 403
    with LiveClient(server.websocket, origin=websockets.Origin(server.http)) as own:
        assert own.receive_type("hello")


@pytest.mark.usefixtures("feed")
def test_an_invalid_frame_is_an_error_and_the_session_goes_on(server: ServerProcess) -> None:
    with LiveClient(server.websocket) as client:
        for frame, code in (
            ({"type": "hello", "protocol": 1, "token": TOKEN}, "bad_frame"),
            ({"type": "set", "sub": 9, "revision": 1}, "unknown_subscription"),
            ({"type": "unsubscribe", "sub": 9}, "unknown_subscription"),
            ({"type": "subscribe", "sub": 1, "table": "users_ui", "view": {"size": 10_002}}, "limit"),
            ({"type": "subscribe", "sub": 2, "table": "users_ui", "view": {"columns": ["nme"]}}, "unknown_column"),
            ({"type": "subscribe", "sub": 2, "table": "users_ui"}, "bad_frame"),
            ({"type": "subscribe", "sub": 3, "table": "x" * 60_000}, "unknown_table"),
        ):
            client.send(frame)
            assert client.receive_type("error")["code"] == code
        client.socket.send(b"binary")
        assert client.receive_type("error")["code"] == "bad_frame"
        for sub in range(100, 162):
            client.subscribe(sub, "users_ui", size=0)
        client.subscribe(1000, "users_ui")
        assert client.receive_type("error")["code"] == "limit"
        client.send({"type": "set", "sub": 100, "revision": 1, "size": 10})
        client.receive_until(lambda frame: frame.get("revision") == 1 and frame["type"] == "snapshot", "rows")


@pytest.mark.usefixtures("feed")
def test_an_invalid_frame_that_names_its_subscription_is_an_error_about_that_one(server: ServerProcess) -> None:
    with LiveClient(server.websocket) as client:
        client.subscribe(1, "users_ui", size=1)
        client.receive_type("snapshot")
        for frame, code in (
            ({"type": "subscribe", "sub": 2, "table": "users_ui", "view": {"offset": 0.5}}, "bad_frame"),
            ({"type": "subscribe", "sub": 3, "table": "users_ui", "view": {"size": None}}, "bad_frame"),
            ({"type": "set", "sub": 1, "revision": 1, "quick": "x" * 1001}, "limit"),
            ({"type": "set", "sub": 1, "revision": 1, "quick": "\ud800"}, "bad_frame"),
        ):
            client.send(frame)
            error = client.receive_type("error")
            assert (error["code"], error.get("sub")) == (code, frame["sub"])
        for text in (
            "[]",
            "{",
            "[" * 60_000,
            '{"sub": true}',
            '{"sub": 2.5}',
            '{"sub": -1}',
            '{"sub": 9007199254740992}',
        ):
            client.socket.send(text)
            assert "sub" not in client.receive_type("error")
        client.send({"type": "set", "sub": 1, "revision": 2, "size": 2})
        client.receive_until(lambda frame: frame.get("revision") == 2 and frame["type"] == "snapshot", "rows")


@pytest.mark.usefixtures("feed")
def test_an_oversized_frame_closes_its_own_session_only(server: ServerProcess) -> None:
    with LiveClient(server.websocket) as good, LiveClient(server.websocket) as bad:
        with suppress(ConnectionClosed):
            bad.socket.send("x" * 10_000_000)
        bad.receive_to_the_end()
        good.subscribe(1, "users_ui")
        assert good.receive_type("snapshot")["total"] == 3


@pytest.mark.usefixtures("feed")
def test_ten_thousand_fuzzed_frames_get_answers_and_the_server_serves_on(server: ServerProcess) -> None:
    chance = random.Random(7)
    frames = [fuzzed(chance) for _ in range(10_000)]

    async def bombard() -> int:
        answers = 0
        async with websockets.connect(server.websocket, max_size=None, compression=None) as socket:
            await socket.send(json.dumps({"type": "hello", "protocol": 1, "token": TOKEN}))

            async def read() -> None:
                nonlocal answers
                async for text in socket:
                    frame = json.loads(text)
                    answers += frame["type"] == "error"
                    if frame["type"] == "heartbeat":
                        return

            reading = asyncio.create_task(read())
            for frame in frames:
                await socket.send(frame)
            await socket.send('{"type":"heartbeat"}')
            await asyncio.wait_for(reading, 60)
        return answers

    assert asyncio.run(bombard()) >= 9_000
    with LiveClient(server.websocket) as client:
        client.subscribe(1, "users_ui")
        assert client.receive_type("snapshot")["total"] == 3


def fuzzed(chance: random.Random) -> str:
    """A frame that is broken somewhere: a good one with bytes changed, or with values of other kinds put in."""
    good: dict[str, Any] = {
        "type": chance.choice(["hello", "subscribe", "set", "unsubscribe", "resync", "", "snapshot"]),
        "sub": chance.choice([0, 1, -1, 2**60, "1", None, 1.5, [], {}]),
        "revision": chance.choice([0, "x", None, -5]),
        "table": chance.choice(["users_ui", "", "x" * 1000, None, 5, "'; DROP TABLE users_ui; --", "\u0000", "\ud800"]),
        "view": chance.choice(
            [None, [], {"sort": [{"column": '"; DROP'}]}, {"filters": [{"column": "age", "op": "in"}]}]
        ),
    }
    for _ in range(chance.randrange(3)):
        good.pop(chance.choice(list(good)), None)
    text = json.dumps(good)
    if chance.random() < 0.5:
        position = chance.randrange(len(text))
        text = text[:position] + chance.choice(string.printable) + text[position + chance.randrange(3) :]
    return text if text.strip() != '{"type":"heartbeat"}' else "{}"


@pytest.mark.usefixtures("feed")
def test_a_thousand_connections_that_never_log_in_are_sent_away(server: ServerProcess) -> None:
    async def crowd() -> list[int | None]:
        sockets = await asyncio.gather(
            *(websockets.connect(server.websocket, open_timeout=60, ping_interval=None) for _ in range(1000))
        )
        with LiveClient(server.websocket) as client:
            client.subscribe(1, "users_ui")
            assert client.receive_type("snapshot")["total"] == 3
        await asyncio.gather(*(socket.wait_closed() for socket in sockets))
        return [socket.close_code for socket in sockets]

    assert set(asyncio.run(crowd())) == {4408}


def test_a_client_that_was_silent_for_too_long_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock and the session are fakes: nobody waits three minutes for a test."""
    now = 1_000.0
    monkeypatch.setattr(sessions_module, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr(sessions_module, "time", SimpleNamespace(monotonic=lambda: now))
    sessions = Sessions()
    silent, lively = FakeSession(heard=now - 181), FakeSession(heard=now - 179)
    for each in (silent, lively):
        sessions.add(cast(Session, each))
    status = Freshness(Moment.now()).status(Moment.now(), [], {})
    pulse = cast(Pulse, SimpleNamespace(status=lambda: status))

    async def watch_for_a_while() -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(sessions.watch(pulse), 0.05)

    asyncio.run(watch_for_a_while())
    assert set(silent.sent_away) == {4408}
    assert lively.sent_away == []
    assert lively.statuses == 1, "the same status is sent once"


class FakeSession:
    def __init__(self, heard: float) -> None:
        self.heard = self.spoke = heard
        self.sent_away: list[int] = []
        self.statuses = 0

    def send_status(self, _frame: str) -> None:
        self.statuses += 1

    def reply(self, _frame: str) -> None:
        """Heartbeats are not what is tested."""

    def send_away(self, code: int, _reason: str) -> None:
        self.sent_away.append(code)


def test_the_server_stops_cleanly_and_notifies_its_clients(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, LiveClient(server.websocket) as client:
        client.receive_type("status")
        assert server.stop() == 0
        client.receive_to_the_end()
        assert client.socket.close_code == 1012

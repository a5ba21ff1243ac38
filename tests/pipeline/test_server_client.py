"""The server as a sink: what MemorySink holds, the server holds, whatever happens to the way there."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.errors import RequestError, SinkError
from livetables.model.wire import Receipt, SourceReport
from livetables.pipeline import server_client
from livetables.pipeline.server_client import ServerClient
from livetables.pipeline.table_server import ConnectionClosedError, DeadLetters, FencedError, NoAnswerError
from livetables.server.access.key import Key
from livetables.server.api.control_requests import ControlQueue
from livetables.server.api.flight import FlightServer
from livetables.server.api.services import Backend, Pulse
from livetables.server.health.metrics import Metrics
from livetables.server.storage.generation import Frame
from livetables.server.storage.store import Store
from livetables.server.viewports.viewport import Selection
from tests.support import frames
from tests.support.kafka import wait_until
from tests.support.memory import MemorySink, Row

pytestmark = pytest.mark.processes

TOKEN = "3fe1-open-sesame"  # noqa: S105
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("other", pa.string()),
        ("value", pa.float64()),
        ("good", pa.bool_()),
        ("v", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
PLAIN = TableShape("plain", SCHEMA, ("id", "other"))
VERSIONED = TableShape("versioned", SCHEMA, ("id",), version=("v", "at"), aliases=("user",))
LOG = TableShape("log", SCHEMA, ("id",), appends=True)
SHAPES = (PLAIN, VERSIONED, LOG)
STATUS = TableShape("control_raw", SCHEMA, ("id",))
HTTP_PORT = 8765
START = datetime(2026, 1, 1, tzinfo=UTC)


class Server:
    """A server in this process, which can be stopped and started again at its port, with its file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._port = 0
        self.start()

    def start(self) -> None:
        self.store = Store(self._path)
        self.pulse, self.control = Pulse(self.store), ControlQueue()
        backend = Backend(self.store, Key(TOKEN), self.pulse, self.control, Metrics())
        self.flight = FlightServer("127.0.0.1", self._port, backend, http_port=HTTP_PORT)
        self._port = self.flight.port

    def stop(self) -> None:
        self.flight.shutdown()
        self.store.close()

    @property
    def location(self) -> str:
        return f"grpc://127.0.0.1:{self._port}"

    def rows(self, table: str) -> list[Row]:
        with self.store.reader.scan(table, Selection()) as reader:
            rows: list[Row] = reader.read_all().to_pylist()
            return rows


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "store.duckdb")
    yield server
    server.stop()


@pytest.fixture
def sink(server: Server) -> Iterator[ServerClient]:
    sink = ServerClient(server.location, TOKEN)
    yield sink
    sink.close()


@pytest.fixture
def silence() -> Iterator[str]:
    """The location of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"grpc://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def nowhere() -> str:
    """The location of no server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"grpc://127.0.0.1:{listener.getsockname()[1]}"


def batches(seed: int, count: int, generation: str = "g") -> Iterator[Batch]:
    """Changes to three tables at random, with null keys, deletes of what is there and what is not, and old versions."""
    chance = random.Random(seed)
    logged = 0

    def row(key: tuple[int, str | None]) -> Row:
        return {
            "id": key[0],
            "other": key[1],
            "value": chance.choice([None, -0.0, chance.random()]),
            "good": chance.choice([None, True, False]),
            "v": chance.choice([None, *range(9)]),
            "at": chance.choice([None, START + timedelta(microseconds=chance.randrange(10**12))]),
        }

    for batch_id in range(count):
        keys = [(number, other) for number in range(8) for other in (None, "", "ü")]
        chance.shuffle(keys)
        upserts, deletes = keys[: chance.randrange(9)], keys[9 : 9 + chance.randrange(9)]
        ids = chance.sample(range(30), 12)
        news = [row((logged + number, None)) for number in range(chance.randrange(4))]
        logged += len(news)
        changes = [
            TableChanges(
                "plain",
                pa.Table.from_pylist([row(key) for key in upserts], SCHEMA),
                pa.Table.from_pylist([{"id": a, "other": b} for a, b in deletes], PLAIN.key_schema),
            ),
            TableChanges(
                "versioned",
                pa.Table.from_pylist([row((number, "x")) for number in ids[:9]], SCHEMA),
                pa.Table.from_pylist(
                    [{"id": number} for number in ids[9 : chance.randrange(9, 12)]], VERSIONED.key_schema
                ),
            ),
            TableChanges("log", pa.Table.from_pylist(news, SCHEMA), pa.table({})),
        ]
        chance.shuffle(changes)
        yield Batch(generation, batch_id, tuple(changes[: chance.randrange(1, 4)]), {"plain": {"odd": batch_id}})


def sorted_rows(rows: Sequence[Row]) -> list[str]:
    return sorted(map(repr, rows))


def assert_same(server: Server, memory: MemorySink) -> None:
    for shape in SHAPES:
        assert sorted_rows(server.rows(shape.name)) == sorted_rows(memory.rows(shape.name))


def simple(batch_id: int, rows: int = 1) -> Batch:
    table = pa.Table.from_pylist([{"id": number, "v": batch_id} for number in range(rows)], SCHEMA)
    return Batch("g", batch_id, (TableChanges("versioned", table, pa.table({})),))


# What it holds


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.chaos) for seed in (1, 2))])
def test_the_server_holds_what_memory_holds(server: Server, sink: ServerClient, seed: int) -> None:
    memory = MemorySink()
    sinks: list[ServerClient | MemorySink] = [sink, memory]
    for each in sinks:
        each.begin("g", SHAPES)
        each.publish("g")
        for batch in batches(seed, 100):
            each.put(batch)
    assert_same(server, memory)
    assert server.rows("user") == server.rows("versioned")
    assert server.store.unknown_fields == memory.unknown_fields
    assert sink.generations()[0].last_batch_id == memory.last_batch_id("g") == 99


def test_two_generations_live_side_by_side_until_one_is_dropped(server: Server, sink: ServerClient) -> None:
    memory = MemorySink()
    sinks: list[ServerClient | MemorySink] = [sink, memory]
    for each in sinks:
        for generation, seed in (("g", 1), ("h", 2)):
            each.begin(generation, SHAPES)
            for batch in batches(seed, 10, generation):
                each.put(batch)
            each.publish(generation)
        each.drop("g")
        each.drop("g")
    assert_same(server, memory)
    (left,) = sink.generations()
    assert (left.name, left.last_batch_id) == ("h", 9)
    assert left.published
    assert left.begun < left.published
    assert left.rows == {shape.name: len(memory.rows(shape.name)) for shape in SHAPES}


def test_a_batch_that_comes_again_is_ignored(server: Server, sink: ServerClient) -> None:
    sink.begin("g", SHAPES)
    sink.publish("g")
    sink.put(simple(0, rows=3))
    sink.put(simple(0, rows=5))
    assert len(server.rows("versioned")) == 3


def test_a_gap_is_refused_at_once_with_the_cure(sink: ServerClient) -> None:
    sink.begin("g", SHAPES)
    sink.put(simple(0))
    with pytest.raises(SinkError, match="batch 2 of generation g came where 1 was due") as error:
        sink.put(simple(2))
    assert error.value.cure.startswith("build a new generation")
    assert error.type is SinkError


def test_what_was_not_begun_is_refused(sink: ServerClient) -> None:
    calls: list[Callable[[], None]] = [lambda: sink.put(simple(0)), lambda: sink.publish("g")]
    for refused in calls:
        with pytest.raises(SinkError, match="generation g was not begun\n  cure: call begin"):
            refused()
    sink.begin("g", SHAPES)
    with pytest.raises(SinkError, match="has other tables already\n  cure: begin a generation under a new name"):
        sink.begin("g", SHAPES[:1])


@pytest.mark.chaos
def test_a_batch_of_a_hundred_megabytes_passes(server: Server, sink: ServerClient) -> None:
    shape = TableShape("wide", pa.schema([("id", pa.int64()), ("text", pa.string())]), ("id",), appends=True)
    rows = pa.table({"id": range(1000), "text": [str(number % 10) * 100_000 for number in range(1000)]}, shape.schema)
    sink.begin("g", [shape])
    sink.publish("g")
    sink.put(Batch("g", 0, (TableChanges("wide", rows, pa.table({})),)))
    with server.store.reader.scan("wide", Selection()) as reader:
        assert reader.read_all() == rows


def test_a_batch_too_large_to_send_is_refused_with_the_cure(
    sink: ServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_client, "BODY_BYTES_MAX", 1000)
    with pytest.raises(SinkError, match=r"too many to send\n  cure: lower pipeline\.max_records_per_batch"):
        sink.put(simple(0))


# What it gives back


def test_a_status_table_is_read_back_whole(sink: ServerClient) -> None:
    sink.begin("g", [STATUS])
    rows = pa.Table.from_pylist([{"id": number} for number in range(100_000)], SCHEMA)
    sink.put(Batch("g", 0, (TableChanges(STATUS.name, rows, pa.table({})),)))
    sink.publish("g")
    read = sink.table(STATUS.name)
    assert read is not None
    assert read.schema == SCHEMA
    assert read["id"].to_pylist() == list(range(100_000))


def test_other_tables_are_not_the_pipelines_to_read(sink: ServerClient) -> None:
    sink.begin("g", SHAPES)
    sink.publish("g")
    assert sink.table("versioned") is None


def test_a_table_that_is_not_there_or_not_published_is_none(sink: ServerClient) -> None:
    assert sink.table(STATUS.name) is None
    sink.begin("g", [STATUS])
    assert sink.table(STATUS.name) is None
    sink.publish("g")
    assert sink.table("generations") is None


def test_a_table_is_asked_for_until_the_server_is_there_and_has_time(
    server: Server, sink: ServerClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink.begin("g", [STATUS])
    sink.publish("g")
    server.stop()
    with ThreadPoolExecutor() as threads:
        reading = threads.submit(sink.table, STATUS.name)
        wait_until(lambda: "does not answer" in caplog.text, "the sink has tried in vain")
        server.start()
        assert reading.result(60) == SCHEMA.empty_table()

        scan, is_busy = server.store.reader.scan, threading.Event()

        def busy(*_: object) -> object:
            monkeypatch.setattr(server.store.reader, "scan", scan)
            is_busy.set()
            raise RequestError("busy", "others are reading", "ask again")

        monkeypatch.setattr(server.store.reader, "scan", busy)
        assert threads.submit(sink.table, STATUS.name).result(60) == SCHEMA.empty_table()
        assert is_busy.is_set()


def test_a_table_that_may_not_be_read_is_an_error_at_once(server: Server) -> None:
    with pytest.raises(SinkError, match="LIVETABLES_TOKEN") as error:
        ServerClient(server.location, "wr0ng-token").table(STATUS.name)
    assert error.type is SinkError


# When the server is away


def test_a_server_that_restarts_loses_nothing_and_doubles_nothing(server: Server, sink: ServerClient) -> None:
    memory = MemorySink()
    applied = threading.Semaphore(0)
    memory.begin("g", SHAPES)
    memory.publish("g")
    sink.begin("g", SHAPES)
    sink.publish("g")

    def pipeline() -> None:
        for batch in batches(7, 60):
            sink.put(batch)
            memory.put(batch)
            applied.release()

    with ThreadPoolExecutor() as threads:
        running = threads.submit(pipeline)
        for _ in range(3):
            for _ in range(10):
                assert applied.acquire(timeout=30)
            server.stop()
            server.start()
        running.result(60)
    assert_same(server, memory)
    assert sink.generations()[0].last_batch_id == 59


def test_a_batch_whose_answer_was_lost_is_not_applied_twice(
    server: Server, sink: ServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.begin("g", SHAPES)
    put, answers = server.store.put, []

    def losing(batch: Batch) -> bool:
        answers.append(put(batch))
        if len(answers) == 1:
            raise flight.FlightUnavailableError("the cable was pulled")
        return answers[-1]

    monkeypatch.setattr(server.store, "put", losing)
    sink.put(Batch("g", 0, simple(0).changes, {"versioned": {"odd": 1}}))
    assert answers == [True, False]
    assert server.store.unknown_fields == {("versioned", "odd"): 1}


def test_a_server_that_fails_is_asked_again(
    server: Server, sink: ServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.begin("g", SHAPES)
    put = server.store.put

    def failing(_batch: Batch) -> bool:
        monkeypatch.setattr(server.store, "put", put)
        raise OSError("no space left on device")

    monkeypatch.setattr(server.store, "put", failing)
    sink.put(simple(0))
    assert sink.generations()[0].last_batch_id == 0


def test_a_server_that_fails_for_long_did_not_refuse(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_batch: Batch) -> bool:
        raise OSError("no space left on device")

    monkeypatch.setattr(server.store, "put", failing)
    with pytest.raises(NoAnswerError, match="no space left on device\n  cure: look into the server's log"):
        ServerClient(server.location, TOKEN, patience_seconds=0.2).put(simple(0))


def test_a_server_that_starts_late_is_waited_for(
    server: Server, sink: ServerClient, caplog: pytest.LogCaptureFixture
) -> None:
    server.stop()
    with ThreadPoolExecutor() as threads:
        beginning = threads.submit(sink.begin, "g", SHAPES)
        wait_until(lambda: "does not answer" in caplog.text, "the sink has tried in vain")
        server.start()
        beginning.result(60)
    assert list(server.store.generations()) == ["g"]


def test_a_server_that_is_never_there_is_an_error_when_patience_ends(nowhere: str) -> None:
    sink = ServerClient(nowhere, TOKEN, patience_seconds=0.5)
    started = time.monotonic()
    with pytest.raises(NoAnswerError, match=f"the server at {nowhere} does not answer") as error:
        sink.publish("g")
    assert time.monotonic() - started >= 0.5, "it gave up before its patience ended"
    assert "livetables serve" in error.value.cure
    assert TOKEN not in f"{error.value!r} {error.value} {sink!r}"


def test_a_server_that_says_nothing_is_an_error_too(silence: str) -> None:
    sink = ServerClient(silence, TOKEN, call_seconds_max=0.2, patience_seconds=0.5)
    with pytest.raises(NoAnswerError, match="does not answer"):
        sink.put(simple(0))


@pytest.mark.parametrize("use", ["publish", "table"])
@pytest.mark.parametrize("place", ["nowhere", "silence"])
def test_close_ends_a_wait_at_once(place: str, use: str, request: pytest.FixtureRequest) -> None:
    location = request.getfixturevalue(place)
    sink = ServerClient(location, TOKEN)
    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(getattr(sink, use), "g") for _ in range(2)]
        wait_until(lambda: any(thread.name == f"calls-{location}" for thread in threading.enumerate()), "it tries")
        sink.close()
        for each in waiting:
            with pytest.raises(ConnectionClosedError, match="the connection to the server was closed"):
                each.result(30)
    with pytest.raises(ConnectionClosedError, match="the connection to the server was closed"):
        getattr(sink, use)("g")


def workers(location: str) -> int:
    return sum(thread.name == f"calls-{location}" for thread in threading.enumerate())


@pytest.mark.parametrize("is_closed", [True, False])
def test_one_thread_makes_all_calls_and_ends_with_the_client(server: Server, is_closed: bool) -> None:
    client = ServerClient(server.location, TOKEN)
    with ThreadPoolExecutor() as threads:
        for _ in range(3):
            assert [each.result(60) for each in [threads.submit(client.generations) for _ in range(4)]] == [()] * 4
            assert workers(server.location) == 1
    if is_closed:
        client.close()
    del client
    wait_until(lambda: not workers(server.location), "its thread has ended")


def test_what_is_only_good_now_is_not_tried_again(nowhere: str) -> None:
    sink = ServerClient(nowhere, TOKEN)
    started = time.monotonic()
    for call in (
        lambda: sink.report("g", []),
        lambda: sink.control_requests(1),
        lambda: sink.control_settled(1, Receipt("t", 0, 0)),
    ):
        with pytest.raises(NoAnswerError, match="does not answer"):
            call()
    assert time.monotonic() - started < 30


# Who may


def test_a_wrong_token_is_an_error_at_once_and_never_shown(server: Server) -> None:
    wrong = ServerClient(server.location, "wr0ng-token")
    with pytest.raises(SinkError, match="LIVETABLES_TOKEN") as error:
        wrong.begin("g", SHAPES)
    assert "wr0ng-token" not in f"{error.value!r} {error.value} {wrong!r}"
    assert not server.store.generations()


@pytest.mark.parametrize("token", ["clé", "two\nlines"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(SinkError, match="LIVETABLES_TOKEN") as error:
        ServerClient("grpc://127.0.0.1:1", token)
    assert token not in str(error.value)


@pytest.mark.parametrize("location", ["", "127.0.0.1:8000", "http://127.0.0.1:8000"])
def test_what_is_no_address_is_refused(location: str) -> None:
    with pytest.raises(SinkError, match="grpc://host:port"):
        ServerClient(location, TOKEN)


# What else the pipeline and the server send each other


def test_a_report_reaches_the_server(server: Server, sink: ServerClient) -> None:
    sink.begin("g", SHAPES)
    sink.publish("g")
    sink.report("g", [SourceReport("plain", "a", 12), SourceReport("log", "b", 0)])
    status = server.pulse.status()
    assert status.state == "live"
    assert [(s.table, s.topic, s.lag_records, s.newest) for s in status.sources] == [
        ("plain", "a", 12, None),
        ("log", "b", 0, None),
    ]


def test_a_problem_reaches_the_server_and_ends_with_the_next_report(server: Server, sink: ServerClient) -> None:
    sink.begin("g", SHAPES)
    sink.publish("g")
    sink.report("g", [SourceReport("plain", "a", 0)], "topic a was deleted")
    status = server.pulse.status()
    assert (status.state, status.message) == ("failed", "topic a was deleted")
    sink.report("g", [SourceReport("plain", "a", 0)])
    assert server.pulse.status().state == "live"


def test_control_messages_come_and_their_outcome_goes_back(server: Server, sink: ServerClient) -> None:
    assert sink.control_requests(0) == ()
    fields: dict[str, Any] = {"joinType": "left", "nested": {"n": [1, None, "ü"]}}
    with ThreadPoolExecutor() as threads:
        sent = threads.submit(server.control.send, fields)
        (request,) = sink.control_requests(20)
        assert json.loads(json.dumps(request.fields)) == fields
        sink.control_settled(request.request_id, Receipt("control", 1, 42))
        assert sent.result() == Receipt("control", 1, 42)

        sent = threads.submit(server.control.send, fields)
        (request,) = sink.control_requests(20)
        sink.control_settled(request.request_id, RequestError("unavailable", "Kafka is away", "start it"))
        with pytest.raises(RequestError, match="Kafka is away\n  cure: start it") as error:
            sent.result()
        assert error.value.code == "unavailable"
    sink.control_settled(999, Receipt("control", 0, 0))


# What the real-time engine asks for


def test_begin_returns_where_to_send_frames(sink: ServerClient) -> None:
    assert sink.begin("g", SHAPES) == f"http://127.0.0.1:{HTTP_PORT}"


def test_a_pipeline_that_was_taken_over_is_fenced(server: Server, sink: ServerClient) -> None:
    assert sink.start_pipeline() == 1
    sink.begin("g", SHAPES)
    other = ServerClient(server.location, TOKEN)
    assert other.start_pipeline() == 2
    with pytest.raises(FencedError, match=r"pipeline 1 asks.*pipeline 2") as refused:
        sink.publish("g")
    assert "another pipeline has taken over" in refused.value.cure
    other.publish("g")
    plain = ServerClient(server.location, TOKEN)
    assert [each.name for each in plain.generations()] == ["g"]
    for each in (other, plain):
        each.close()


def test_a_server_that_lost_its_store_takes_over_the_number(server: Server) -> None:
    known = ServerClient(server.location, TOKEN, number=7)
    known.begin("g", SHAPES)
    assert server.store.fencing.start_pipeline() == 8
    known.close()


def test_positions_and_sequence_come_from_frames(server: Server, sink: ServerClient) -> None:
    sink.begin("g", frames.SHAPES)
    assert sink.positions() == {"g": {}}
    records = [frames.Record("users", partition, 4, "a", 0) for partition in (0, 3)]
    operator = frames.Operator()
    part = frames.part([each for record in records for each in operator.process(record)], frames.marks_of(records))
    assert server.store.apply([Frame(part, part.streams)]).outcomes == (0,)
    (stored,) = sink.generations()
    assert (stored.sequence, stored.last_batch_id, stored.rows["users_ui"]) == (0, None, 2)
    assert stored.positions == sink.positions()["g"] == {"users": {0: 5, 3: 5}, "accounts": {}}
    assert stored.records == {"users_ui": 2}


def test_dead_letters_are_counted_also_before_a_generation_is_published(server: Server, sink: ServerClient) -> None:
    sink.begin("g", frames.SHAPES)
    assert sink.dead_letters("g") == {}
    letters = [{"source": "users_ui", "_id": n, "ts": START, "raw": raw} for n, raw in enumerate([b"", b"[]", None])]
    part = frames.part((("dead_letters", "rows", letter) for letter in letters), {"users": {"k": {0: 2}}})
    server.store.apply([Frame(part, part.streams)])
    reason = "the value is empty: a record needs a JSON object as its value"
    assert sink.dead_letters("g") == {"users_ui": DeadLetters(3, reason)}
    with pytest.raises(SinkError, match="generation h was not begun"):
        sink.dead_letters("h")


def test_what_was_shown_and_is_not_stored_yet_is_counted(server: Server, sink: ServerClient) -> None:
    """A build whose positions are at the end takes over, or is rejected, by these counts."""
    sink.begin("g", frames.SHAPES)
    record = frames.Record("users", 0, 4, "a", 0)
    shown = frames.part(frames.Operator().process(record), frames.marks_of([record]))
    server.store.show(Frame(shown, shown.streams))
    (stored,) = sink.generations()
    assert (stored.positions["users"], stored.rows["users_ui"]) == ({0: 5}, 1)
    letter = {"source": "users_ui", "_id": 5, "ts": START, "raw": b""}
    shown = frames.part([("dead_letters", "rows", letter)], {"users": {"k": {0: 5}}}, frame=1)
    server.store.show(Frame(shown, shown.streams))
    assert sink.dead_letters("g")["users_ui"].count == 1

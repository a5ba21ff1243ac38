"""Whoever follows a table has it whole at every step, through restarts, kills and swaps of the server."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import livetables
from livetables.client import Change, Place, Table, changes, connection
from livetables.client.flight import Flight
from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.errors import RequestError
from livetables.pipeline.server_client import ServerClient
from tests.support import frames
from tests.support.kafka import wait_until
from tests.support.server import TOKEN, ServerProcess
from tests.support.tables import APPENDS, KEYED, SHAPES, VERSIONED, batch, numbered

pytestmark = pytest.mark.processes

Rows = dict[tuple[Any, ...], dict[str, Any]]
STEPS = 60
MARKED = TableShape(
    "keyed", pa.schema([("name", pa.string()), ("age", pa.int64()), ("mark", pa.string())]), ("name", "age")
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path) as running:
        yield running


class Follower:
    """Follows a table on a thread of its own, and keeps a copy of it."""

    def __init__(self, table: Table, since: Place | None = None) -> None:
        self.rows: Rows = {}
        self.steps: list[tuple[bool, Place]] = []
        self.error: Exception | None = None
        self.changes = table.changes(since)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            for change in self.changes:
                check(change)
                change.apply_to(self.rows)
                self.steps.append((change.is_snapshot, change.place))
        except Exception as error:
            self.error = error

    def close(self) -> None:
        self.changes.close()
        self._thread.join(timeout=5)
        assert not self._thread.is_alive(), "closing did not end the wait"
        assert self.error is None
        assert self.changes.checksum_mismatches == 0


def check(change: Change) -> None:
    """A step has every key once."""
    rows = [*change.upserts.to_pylist(), *change.deletes.to_pylist()]
    keys = [tuple(row[column] for column in change.key) for row in rows]
    assert len(keys) == len(set(keys))
    assert not (change.is_snapshot and change.deletes.num_rows)


def by_key(rows: pa.Table, key: tuple[str, ...]) -> Rows:
    return {tuple(row[column] for column in key): row for row in rows.to_pylist()}


class Feeding:
    """Sends random batches of every kind of table to generations, which take each other's place."""

    def __init__(self, sink: ServerClient, chance: random.Random) -> None:
        self._sink = sink
        self._chance = chance
        self._next: dict[str, int] = {}
        self._fresh = 0
        self.live = ""
        self.swap()

    def swap(self) -> None:
        generation = f"g{len(self._next) + 1}"
        self._sink.begin(generation, SHAPES)
        self._next[generation] = 0
        before, self.live = self.live, generation
        for _ in range(self._chance.randrange(3)):
            self.put()
        self._sink.publish(generation)
        if before and self._chance.random() < 0.5:
            self._sink.drop(before)
            del self._next[before]
            self._next.setdefault(f"gone {before}", 0)

    def put(self) -> None:
        changes: dict[TableShape, Any] = {}
        if self._chance.random() < 0.8:
            changes[APPENDS] = (numbered(self._fresh, self._chance.randrange(5)), [])
            self._fresh += 5
        if self._chance.random() < 0.8:
            rows = numbered(0, 12)
            chosen = self._chance.sample(rows, 6)
            for row in chosen:
                row.update(name=self._chance.choice([None, row["name"]]), balance=self._chance.random())
            kept = {(row["name"], row["age"]): row for row in chosen[:4]}
            gone = [row for row in chosen[4:] if (row["name"], row["age"]) not in kept]
            changes[KEYED] = (list(kept.values()), gone)
        if self._chance.random() < 0.8:
            chosen = self._chance.sample(numbered(0, 8), 4)
            for row in chosen:
                row.update(age=self._chance.choice([None, *range(6)]), balance=self._chance.random(), ts=None)
            changes[VERSIONED] = (chosen[:3], chosen[3:])
        self._sink.put(batch(self.live, self._next[self.live], changes))
        self._next[self.live] += 1


@pytest.mark.parametrize("seed", [random.randrange(1_000_000)])
def test_followers_have_the_tables_through_batches_swaps_restarts_and_kills(
    server: ServerProcess, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "CHECK_SECONDS", 0.0)  # every answer is compared with its checksum
    chance = random.Random(seed)
    sink = server.sink(patience_seconds=60)
    feeding = Feeding(sink, chance)
    with livetables.connect(server.http, TOKEN) as connection:
        followers = {shape: Follower(connection.table(shape.name)) for shape in SHAPES}
        mishaps = dict(zip(chance.sample(range(STEPS), 5), ["swap", "kill", "restart", "swap", "kill"], strict=True))
        for step in range(STEPS):
            match mishaps.get(step):
                case "swap":
                    feeding.swap()
                case "kill":
                    server.kill()
                    server.start()
                case "restart":
                    server.stop()
                    server.start()
                case _:
                    feeding.put()
            if chance.random() < 0.2:
                assert_same(connection, followers)
        assert_same(connection, followers)
        for follower in followers.values():
            follower.close()
    assert [follower.steps[0][0] for follower in followers.values()] == [True] * len(SHAPES)
    sink.close()


def assert_same(connection: livetables.client.Connection, followers: Mapping[TableShape, Follower]) -> None:
    for shape, follower in followers.items():
        table = connection.table(shape.name).to_arrow()
        wanted = by_key(table, shape.key)
        assert len(wanted) == table.num_rows
        wait_until(partial(is_same, follower, wanted), f"{shape.name} is the same")
        assert follower.error is None


def is_same(follower: Follower, wanted: Rows) -> bool:
    return follower.rows == wanted or follower.error is not None


def test_a_restart_goes_on_from_the_place_without_the_whole_table(server: ServerProcess) -> None:
    sink = server.sink()
    sink.begin("g", [KEYED])
    sink.put(batch("g", 0, {KEYED: (numbered(0, 10), [])}))
    sink.publish("g")
    with livetables.connect(server.http, TOKEN) as connection:
        follower = Follower(connection.table("keyed"))
        wait_until(lambda: len(follower.rows) == 10, "all rows are there")
        server.kill()
        server.start()
        sink.put(batch("g", 1, {KEYED: (numbered(10, 1), numbered(0, 1))}))
        wait_until(lambda: len(follower.steps) == 2, "the change has come")
        assert [is_snapshot for is_snapshot, _ in follower.steps] == [True, False]
        follower.close()
    sink.close()


def test_a_place_that_is_too_old_gives_the_whole_table(server: ServerProcess) -> None:
    sink = server.sink()
    sink.begin("g", [KEYED])
    for number in range(3):
        sink.put(batch("g", number, {KEYED: (numbered(number, 1), [])}))
    sink.publish("g")
    with livetables.connect(server.http, TOKEN) as connection, connection.table("keyed").changes(("g", 1)) as changes:
        first = next(changes)
        assert (first.is_snapshot, first.upserts.num_rows, first.sequence) == (True, 3, 2)
        with connection.table("keyed").changes(first.place) as later:
            sink.put(batch("g", 3, {KEYED: ([], numbered(0, 1))}))
            change = next(later)
        assert (change.is_snapshot, change.upserts.num_rows) == (False, 0)
        assert change.deletes.to_pylist() == [{"name": "user 0", "age": 0}]
    sink.close()


def test_a_swap_to_other_columns_gives_the_whole_new_table(server: ServerProcess) -> None:
    sink = server.sink()
    sink.begin("g1", [KEYED])
    sink.publish("g1")
    with livetables.connect(server.http, TOKEN) as connection, connection.table("keyed").changes() as changes:
        assert next(changes).upserts.num_rows == 0
        sink.begin("g2", [MARKED])
        row = {"name": "a", "age": 1, "mark": "new"}
        sink.put(Batch("g2", 0, (TableChanges("keyed", pa.Table.from_pylist([row], MARKED.schema), pa.table({})),)))
        sink.publish("g2")
        change = next(changes)
        assert (change.generation, change.is_snapshot, change.upserts.to_pylist()) == ("g2", True, [row])
    sink.close()


def test_a_generation_built_anew_under_the_same_name_is_another(server: ServerProcess) -> None:
    sink = server.sink()
    for value in ("first", "second"):
        sink.begin("g", [KEYED])
        for number in range(3):
            sink.put(batch("g", number, {KEYED: (numbered(number, 1, value), [])}))
        sink.publish("g")
        with livetables.connect(server.http, TOKEN) as connection:
            if value == "first":
                place = next(connection.table("keyed").changes()).place
                sink.drop("g")
            else:
                change = next(connection.table("keyed").changes(since=place))
    assert change.is_snapshot
    assert {row["name"] for row in change.upserts.to_pylist()} == {"second 0", "second 1", "second 2"}
    sink.close()


def test_without_a_snapshot_only_what_comes_is_received(server: ServerProcess) -> None:
    sink = server.sink()
    sink.begin("g", [VERSIONED])
    sink.put(batch("g", 0, {VERSIONED: (numbered(0, 5), [])}))
    sink.publish("g")
    with livetables.connect(server.http, TOKEN) as connection:
        received: list[Change] = []
        changes = connection.table("versioned").changes(snapshot=False)
        following = threading.Thread(target=lambda: received.extend(changes), daemon=True)
        following.start()
        number = 0

        def another() -> bool:
            """It is not known when the follower's place is taken: older rows, which are not taken, and one new one."""
            nonlocal number
            number += 1
            older = [{**row, "ts": None} for row in numbered(0, 5)]
            sink.put(batch("g", number, {VERSIONED: ([*older, *numbered(100 + number, 1)], [])}))
            return bool(received)

        wait_until(another, "a change is received")
        changes.close()
        following.join(timeout=5)
        ids = {row["_id"] for change in received for row in change.upserts.to_pylist()}
        assert min(ids) > 100, "an upsert that was not taken was sent"
        assert not any(change.is_snapshot for change in received)
    sink.close()


def test_what_the_server_refuses_is_raised(server: ServerProcess) -> None:
    sink = server.sink()
    sink.begin("g", [KEYED])
    sink.publish("g")
    with livetables.connect(server.http, TOKEN) as connection:
        with pytest.raises(RequestError, match='did you mean "keyed"') as refusal:
            connection.table("keyd")
        assert refusal.value.code == "unknown_table"
        changes = connection.table("keyed").changes()
        assert next(changes).is_snapshot
        sink.begin("g2", [APPENDS])
        sink.publish("g2")
        sink.drop("g")
        with pytest.raises(RequestError, match="there is no table"):
            next(changes)
    sink.close()


# Receipts


def send_user(server: ServerProcess, kafka_ms: int, spark_ms: int) -> None:
    record = frames.Record("users", 0, 0, None, 1)
    emitted, marks = frames.Operator().process(record), frames.marks_of([record])
    server.send_frame(frames.part(emitted, marks, kafka_ms=kafka_ms, sent_ms=spark_ms))


@pytest.fixture
def framed(server: ServerProcess) -> ServerProcess:
    """A server with a generation that frames can be sent to."""
    sink = server.sink()
    sink.begin("g", frames.SHAPES)
    sink.publish("g")
    sink.close()
    return server


def test_a_change_has_the_receipt_of_its_newest_record(framed: ServerProcess) -> None:
    with livetables.connect(framed.http, TOKEN) as connected, connected.table("users_ui").changes() as following:
        assert next(following).receipt is None
        assert following.latency is None
        before = time.time() * 1000
        kafka = int(before) - 1_000
        send_user(framed, kafka, kafka + 400)
        receipt = next(following).receipt
        after = time.time() * 1000
        assert receipt is not None
        assert (receipt.kafka, receipt.spark) == (kafka, kafka + 400)
        margin = 0.01  # for what is rounded
        assert before - margin <= receipt.applied <= receipt.sent <= receipt.received + margin <= after + 2 * margin
        assert receipt.latency_ms == receipt.received - kafka
        latency = following.latency
        assert latency is not None
        assert (latency.changes, latency.phases["kafka_to_spark"].p99) == (1, 400)
        assert latency.whole.p50 == receipt.latency_ms


def test_clocks_that_differ_are_allowed_for(framed: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    class BehindTime:
        """A fake of this machine's clock, an hour behind: the server runs here too, and has the same clock."""

        monotonic = staticmethod(time.monotonic)

        @staticmethod
        def time() -> float:
            return time.time() - 3_600

    for module in (changes, connection):
        monkeypatch.setattr(module, "time", BehindTime)
    with livetables.connect(framed.http, TOKEN) as connected, connected.table("users_ui").changes() as following:
        next(following)
        kafka = int(time.time() * 1000)
        send_user(framed, kafka, kafka)
        receipt = next(following).receipt
        assert receipt is not None
        assert connected.clock().ahead_ms == pytest.approx(3_600_000, abs=60_000)
        assert abs(receipt.latency_ms) < 60_000  # without it, an hour less


# Checksums


class DamagedFlight:
    """A fake of a way on which answers are damaged: a name in each of the next `damaged` answers with rows is another.

    TCP and gRPC let no such thing through; a mistake in what makes or reads an answer would.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.damaged = 0
        self.tickets: list[dict[str, Any]] = []
        self._rows = Flight.rows
        monkeypatch.setattr(Flight, "rows", lambda flight, *arguments: self.rows(flight, *arguments))

    def rows(self, flight: Flight, ticket: dict[str, Any], seconds_max: float | None = None) -> pa.Table:
        rows = self._rows(flight, ticket, seconds_max)
        if "changes" not in ticket:
            return rows
        self.tickets.append(ticket)
        if not (self.damaged and rows.num_rows):
            return rows
        self.damaged -= 1
        place = rows.column_names.index("name")
        names = pa.array(["damaged", *rows["name"].to_pylist()[1:]])
        return rows.set_column(place, "name", names).replace_schema_metadata(rows.schema.metadata)


@pytest.fixture
def way(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[DamagedFlight, ServerClient, Table]]:
    sink = server.sink()
    sink.begin("g", [KEYED])
    sink.put(batch("g", 0, {KEYED: (numbered(0, 3), [])}))
    sink.publish("g")
    with livetables.connect(server.http, TOKEN) as connected:
        yield DamagedFlight(monkeypatch), sink, connected.table("keyed")
    sink.close()


def test_a_damaged_answer_is_noticed_asked_for_again_and_counted(
    server: ServerProcess, way: tuple[DamagedFlight, ServerClient, Table]
) -> None:
    flight, sink, table = way
    rows: Rows = {}
    with table.changes() as following:
        next(following).apply_to(rows)
        flight.damaged = 2
        sink.put(batch("g", 1, {KEYED: (numbered(3, 2), numbered(0, 1))}))
        change = next(following)
        change.apply_to(rows)
        assert (change.is_snapshot, change.sequence, following.checksum_mismatches) == (False, 1, 2)
    assert rows == by_key(table.to_arrow(), KEYED.key)
    assert server.metric("livetables_checksum_mismatches_total") == 2
    asked = [ticket for ticket in flight.tickets if ticket.get("after") == 0]
    assert [(ticket["checksum"], ticket.get("reason")) for ticket in asked] == [
        (True, None),
        (True, "checksum"),
        (True, "checksum"),
    ]


def test_checksums_are_right_for_a_follower_that_reads_seldom(
    way: tuple[DamagedFlight, ServerClient, Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    flight, sink, table = way
    monkeypatch.setattr(changes, "CHECK_SECONDS", 0.0)
    rows: Rows = {}
    with table.changes() as following:
        next(following).apply_to(rows)
        for number in range(1, 20):
            sink.put(batch("g", number, {KEYED: (numbered(number, 4), numbered(number - 1, 1))}))
        for change in following:
            change.apply_to(rows)
            if change.sequence == 19:
                break
        assert following.checksum_mismatches == 0
    assert rows == by_key(table.to_arrow(), KEYED.key)
    assert all(ticket["checksum"] for ticket in flight.tickets if "after" in ticket)


def test_answers_that_stay_damaged_are_an_error(way: tuple[DamagedFlight, ServerClient, Table]) -> None:
    flight, sink, table = way
    with table.changes() as following:
        next(following)
        flight.damaged = 1_000
        sink.put(batch("g", 1, {KEYED: (numbered(3, 1), [])}))
        with pytest.raises(RequestError, match="5 answers in a row"):
            next(following)
        flight.damaged = 0
        assert next(following).upserts.to_pylist() == numbered(3, 1)  # nothing is lost by it


def test_a_checksum_is_asked_for_after_each_snapshot_and_then_now_and_then(
    way: tuple[DamagedFlight, ServerClient, Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    flight, sink, table = way
    monkeypatch.setattr(changes, "CHECK_SECONDS", 3_600.0)
    with table.changes() as following:
        next(following)
        for number in range(1, 4):
            sink.put(batch("g", number, {KEYED: (numbered(number, 1), [])}))
            next(following)
        sink.begin("g2", [KEYED])
        sink.publish("g2")
        assert next(following).is_snapshot
        sink.put(batch("g2", 0, {KEYED: (numbered(0, 1), [])}))
        next(following)
        monkeypatch.setattr(following, "_check_due", 0.0)  # an hour later
        sink.put(batch("g2", 1, {KEYED: (numbered(1, 1), [])}))
        next(following)
    checked = [(ticket.get("generation"), ticket.get("after")) for ticket in flight.tickets if ticket["checksum"]]
    assert checked == [("g", 0), ("g2", -1), ("g2", 0)]

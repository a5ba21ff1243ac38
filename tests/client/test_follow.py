"""Whoever follows a table has it whole at every step, through restarts, kills and swaps of the server."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import livetables
from livetables.change import Batch, TableChanges, TableShape
from livetables.client import Change, Place, Table
from livetables.errors import RequestError
from livetables.pipeline.flight_sink import FlightSink
from tests.support.kafka import wait_until
from tests.support.server import TOKEN, ServerProcess
from tests.support.tables import APPENDS, KEYED, SHAPES, VERSIONED, batch, numbered

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


def check(change: Change) -> None:
    """A step tells every key once."""
    rows = [*change.upserts.to_pylist(), *change.deletes.to_pylist()]
    keys = [tuple(row[column] for column in change.key) for row in rows]
    assert len(keys) == len(set(keys))
    assert not (change.is_snapshot and change.deletes.num_rows)


def by_key(rows: pa.Table, key: tuple[str, ...]) -> Rows:
    return {tuple(row[column] for column in key): row for row in rows.to_pylist()}


class Feeding:
    """Sends random batches of every kind of table to generations, which take each other's place."""

    def __init__(self, sink: FlightSink, chance: random.Random) -> None:
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
def test_followers_have_the_tables_through_batches_swaps_restarts_and_kills(server: ServerProcess, seed: int) -> None:
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


def test_without_a_snapshot_only_what_comes_is_told(server: ServerProcess) -> None:
    sink = server.sink()
    sink.begin("g", [VERSIONED])
    sink.put(batch("g", 0, {VERSIONED: (numbered(0, 5), [])}))
    sink.publish("g")
    with livetables.connect(server.http, TOKEN) as connection:
        told: list[Change] = []
        changes = connection.table("versioned").changes(snapshot=False)
        following = threading.Thread(target=lambda: told.extend(changes), daemon=True)
        following.start()
        number = 0

        def another() -> bool:
            """It is not known when the follower's place is taken: older rows, which are not taken, and one new one."""
            nonlocal number
            number += 1
            older = [{**row, "ts": None} for row in numbered(0, 5)]
            sink.put(batch("g", number, {VERSIONED: ([*older, *numbered(100 + number, 1)], [])}))
            return bool(told)

        wait_until(another, "a change is told")
        changes.close()
        following.join(timeout=5)
        ids = {row["_id"] for change in told for row in change.upserts.to_pylist()}
        assert min(ids) > 100, "an upsert that was not taken was told"
        assert not any(change.is_snapshot for change in told)
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

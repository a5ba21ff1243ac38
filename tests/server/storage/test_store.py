"""The store: batches whole and once, generations that take over in one step, and nothing lost by a crash."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.errors import RequestError, SetupError, SinkError
from livetables.model.spec import CONTROL_TABLES
from livetables.server.storage.listeners import Changed
from livetables.server.storage.store import Store
from livetables.server.viewports.viewport import Selection, Sort, ViewOptions
from tests.support.memory import MemorySink
from tests.support.tables import (
    APPENDS,
    EPOCH,
    KEYED,
    SHAPES,
    VERSIONED,
    Row,
    batch,
    histories,
    numbered,
    table_changes,
)

GENERATIONS = count()
USERS = replace(APPENDS, name="users", aliases=("user",))
ACCOUNTS = replace(APPENDS, name="accounts")


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store(None)
    yield store
    store.close()


@pytest.fixture(scope="module")
def shared_store() -> Iterator[Store]:
    store = Store(None)
    yield store
    store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.duckdb"


def answer(store: Store, sql: str) -> list[tuple[Any, ...]]:
    with store.reader.sql(sql) as reader:
        return [tuple(row.values()) for row in reader.read_all().to_pylist()]


def content(store: Store, name: str) -> list[str]:
    """All rows of a table, in a form that compares whatever their order."""
    with store.reader.scan(name, Selection()) as reader:
        return comparable(reader.read_all().to_pylist())


def comparable(rows: list[Row]) -> list[str]:
    """Rows whatever their order; zeros are alike, because DuckDB does not update one to the other."""
    return sorted(
        repr([str(value + 0.0 if isinstance(value, float) else value) for value in row.values()]) for row in rows
    )


def begin(store: Store, generation: str, *shapes: TableShape, rows: int = 0, name: str = "user") -> None:
    store.begin(generation, shapes)
    store.put(batch(generation, 0, {shape: (numbered(0, rows, name), []) for shape in shapes}))


# Batches


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_the_store_applies_batches_as_the_memory_sink_does(shared_store: Store, data: Any) -> None:
    generation, sink = f"g{next(GENERATIONS)}", MemorySink()
    shared_store.begin(generation, SHAPES)
    sink.begin(generation, SHAPES)
    shared_store.publish(generation)
    longest = {shape: data.draw(histories(shape)) for shape in SHAPES}
    for batch_id in range(max(map(len, longest.values()))):
        each = batch(generation, batch_id, {s: h[batch_id] for s, h in longest.items() if batch_id < len(h)})
        sink.put(each)
        assert shared_store.put(each)
        if data.draw(st.booleans()):
            assert not shared_store.put(each)
    for shape in SHAPES:
        assert content(shared_store, shape.name) == comparable(sink.rows(shape.name, generation))
    shared_store.drop(generation)


def test_a_batch_that_comes_again_changes_nothing(store: Store) -> None:
    begin(store, "g", APPENDS, rows=3)
    store.publish("g")
    assert not store.put(batch("g", 0, {APPENDS: (numbered(50, 5), [])}))
    assert store.reader.row_counts() == {"g": {"appends": 3}}
    assert store.table("appends").next_row == 3


def test_a_gap_is_refused_with_its_cure(store: Store) -> None:
    begin(store, "g", APPENDS)
    with pytest.raises(SinkError, match=r"batch 2 of generation g came where 1 was due\n  cure: build a new"):
        store.put(batch("g", 2, {}))


def test_a_generation_that_was_not_begun_is_refused(store: Store) -> None:
    for act in (lambda: store.put(batch("h", 0, {})), lambda: store.publish("h")):
        with pytest.raises(SinkError, match=r"generation h was not begun\n  cure: call begin"):
            act()


def test_beginning_again_keeps_the_rows_but_not_other_tables(store: Store) -> None:
    begin(store, "g", KEYED, rows=2)
    store.begin("g", [KEYED])
    assert store.reader.row_counts() == {"g": {"keyed": 2}}
    with pytest.raises(SinkError, match="has other tables already"):
        store.begin("g", [VERSIONED])


def test_unknown_fields_are_counted_once_a_batch(store: Store) -> None:
    begin(store, "g", APPENDS)
    each = Batch("g", 1, (), {"appends": {"odd": 2}})
    store.put(each)
    store.put(each)
    assert store.unknown_fields == {("appends", "odd"): 2}


def test_a_table_of_nothing_but_keys_takes_a_key_again(store: Store) -> None:
    shape = TableShape("keys", pa.schema([("a", pa.string())]), ("a",))
    store.begin("g", [shape])
    for batch_id in range(2):
        store.put(batch("g", batch_id, {shape: ([{"a": "x"}, {"a": None}], [])}))
    assert store.reader.row_counts() == {"g": {"keys": 2}}


@pytest.mark.parametrize("version", [(), ("n",)], ids=["keyed", "versioned"])
def test_a_zero_of_the_other_sign_takes_the_place_of_a_zero(store: Store, version: tuple[str, ...]) -> None:
    shape = TableShape("zeros", pa.schema([("k", pa.int64()), ("n", pa.int64()), ("x", pa.float64())]), ("k",), version)
    store.begin("g", [shape])
    for number, zero in enumerate([0.0, -0.0, 0.0, None, -0.0]):
        store.put(batch("g", number, {shape: ([{"k": 1, "n": number, "x": zero}], [])}))
        store.publish("g")
        assert answer(store, "SELECT CAST(x AS VARCHAR) FROM zeros") == [(None if zero is None else str(zero),)]


def test_the_newest_event_time_is_known(store: Store) -> None:
    begin(store, "g", APPENDS, rows=3)
    store.publish("g")
    assert store.table("appends").newest == EPOCH + timedelta(seconds=2)
    store.put(batch("g", 1, {APPENDS: ([{"_id": 9, "ts": EPOCH}, {"_id": 10}], [])}))
    assert store.table("appends").newest == EPOCH + timedelta(seconds=2)


def changed_type(changes: TableChanges) -> TableChanges:
    ages = pa.array(["x"] * changes.upserts.num_rows)
    return replace(changes, upserts=changes.upserts.set_column(2, "age", ages))


BAD_CHANGES: dict[str, Callable[[], TableChanges]] = {
    "unknown table": lambda: replace(table_changes(APPENDS, numbered(9, 1)), table="nowhere"),
    "other type": lambda: changed_type(table_changes(APPENDS, numbered(9, 2))),
    "column missing": lambda: TableChanges(
        "appends",
        table_changes(APPENDS, numbered(9, 1)).upserts.drop_columns("age"),
        table_changes(APPENDS, []).deletes,
    ),
    "key of another type": lambda: TableChanges(
        "appends", table_changes(APPENDS, numbered(9, 1)).upserts, pa.table({"_id": ["x"]})
    ),
}


@pytest.mark.parametrize("make", BAD_CHANGES.values(), ids=BAD_CHANGES)
def test_a_bad_batch_leaves_everything_as_it_was(store: Store, make: Callable[[], TableChanges]) -> None:
    begin(store, "g", APPENDS, KEYED, rows=3)
    store.publish("g")
    before = store.generations(), content(store, "appends"), content(store, "keyed")
    good = table_changes(KEYED, numbered(30, 4))
    with pytest.raises(SinkError, match="cure: "):
        store.put(Batch("g", 1, (good, make()), {"keyed": {"odd": 1}}))
    assert (store.generations(), content(store, "appends"), content(store, "keyed")) == before
    assert store.unknown_fields == {}
    assert store.put(Batch("g", 1, (good,)))
    _, window = store.reader.window("keyed", ViewOptions(offset=3, size=4))
    assert window.ids == (3, 4, 5, 6)


def test_a_batch_that_fails_in_the_database_leaves_everything_as_it_was(store: Store) -> None:
    begin(store, "g", KEYED, rows=3)
    store.publish("g")
    before = store.generations()
    broken = TableChanges("keyed", broken_text(), table_changes(KEYED, []).deletes)
    with pytest.raises(duckdb.Error):
        store.put(Batch("g", 1, (table_changes(KEYED, numbered(30, 4)), broken)))
    assert store.generations() == before
    assert len(content(store, "keyed")) == 3
    assert store.put(Batch("g", 1, (table_changes(KEYED, numbered(30, 4)),)))
    assert len(content(store, "keyed")) == 7


def broken_text() -> pa.Table:
    """A row whose text is no UTF-8: Arrow lets it be made, and DuckDB refuses it only as it reads it."""
    text = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    return pa.table([text if f.name == "name" else pa.nulls(1, f.type) for f in KEYED.schema], schema=KEYED.schema)


# Names


def test_two_generations_live_side_by_side_and_the_published_one_is_read(store: Store) -> None:
    begin(store, "g1", APPENDS, rows=2)
    store.publish("g1")
    begin(store, "g2", APPENDS, rows=5)
    assert store.reader.row_counts() == {"g1": {"appends": 2}, "g2": {"appends": 5}}
    assert len(content(store, "appends")) == 2
    store.publish("g2")
    assert len(content(store, "appends")) == 5
    store.put(batch("g1", 1, {APPENDS: (numbered(2, 1), [])}))
    assert len(content(store, "appends")) == 5
    store.publish("g1")
    assert len(content(store, "appends")) == 3


def test_aliases_are_names_too(store: Store) -> None:
    begin(store, "g", USERS, rows=2)
    store.publish("g")
    assert set(store.tables()) == {"users", "user"}
    assert store.table("user") == store.table("users")
    assert answer(store, "SELECT count(*) FROM user") == [(2,)]


def test_publishing_takes_the_place_only_of_generations_that_share_a_name(store: Store) -> None:
    begin(store, "u", USERS, rows=1)
    begin(store, "a", ACCOUNTS, rows=2)
    begin(store, "u2", replace(USERS, aliases=()), rows=3)
    store.publish("u")
    store.publish("a")
    store.publish("u2")
    assert {name: table.generation for name, table in store.tables().items()} == {"users": "u2", "accounts": "a"}
    assert [name for name, each in store.generations().items() if each.published] == ["a", "u2"]
    assert answer(store, "SHOW TABLES") == [("accounts",), ("users",)]


def test_what_is_live_is_published_and_has_data(store: Store) -> None:
    control = [replace(APPENDS, name=name) for name in CONTROL_TABLES]
    begin(store, "status", *control)
    begin(store, "letters", replace(APPENDS, name="dead_letters"))
    begin(store, "data", USERS, ACCOUNTS)
    assert store.live() == []
    store.publish("status")
    assert store.live() == []
    store.publish("data")
    store.publish("letters")
    assert store.live() == ["data", "letters"]
    store.drop("letters")
    assert store.live() == ["data"]


def test_an_unknown_table_is_an_error_with_its_cure(store: Store) -> None:
    begin(store, "status", replace(APPENDS, name=CONTROL_TABLES[0]))
    store.publish("status")
    with pytest.raises(RequestError, match=r"there is no table 'users'\n  cure: wait until"):
        store.table("users")
    begin(store, "g", USERS)
    store.publish("g")
    with pytest.raises(RequestError, match=r"there is no table 'usrs'\n  cure: did you mean \"users\"") as caught:
        store.reader.window("usrs", ViewOptions())
    assert caught.value.code == "unknown_table"


def test_listeners_get_the_names_that_changed(store: Store) -> None:
    received: list[Changed] = []
    begin(store, "g", USERS, ACCOUNTS)
    store.listen(received.append)
    store.put(batch("g", 1, {USERS: (numbered(0, 1), [])}))
    store.publish("g")
    store.put(batch("g", 2, {USERS: (numbered(1, 1), [])}))
    store.put(batch("g", 2, {USERS: (numbered(1, 1), [])}))
    store.drop("g")
    assert received == [
        Changed(frozenset({"users", "user", "accounts"}), rebound=True),
        Changed(frozenset({"users", "user"})),
        Changed(frozenset({"users", "user", "accounts"}), rebound=True),
    ]


def test_dropping_takes_the_names_along_and_twice_changes_nothing(store: Store) -> None:
    begin(store, "g", USERS)
    store.publish("g")
    store.drop("g")
    store.drop("g")
    assert (store.tables(), dict(store.generations()), store.reader.row_counts()) == ({}, {}, {})
    begin(store, "g", USERS, rows=1)
    store.publish("g")
    assert len(content(store, "user")) == 1


# Readers beside writers


class Readers:
    """Threads that do something again and again until the block ends; what any of them raises, the block raises."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        self._acts = acts
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(len(acts))
        self.rounds = [0] * len(acts)

    def __enter__(self) -> Readers:
        self._done = [self._pool.submit(self._run, number) for number in range(len(self._acts))]
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + 20
        while min(self.rounds) < 3 and time.monotonic() < deadline and not any(done.done() for done in self._done):
            self._stop.wait(0.01)
        self._stop.set()
        for done in self._done:
            done.result(20)
        self._pool.shutdown()

    def _run(self, number: int) -> None:
        while not self._stop.is_set():
            self._acts[number]()
            self.rounds[number] += 1


def test_publishing_switches_all_names_in_one_step(store: Store) -> None:
    def put(generation: str, rows: int) -> None:
        begin(store, generation, USERS, ACCOUNTS, rows=rows, name=generation)

    put("g0", 10)
    store.publish("g0")
    everything = " UNION ALL ".join(
        f"SELECT min(split_part(name, ' ', 1)) AS a, max(split_part(name, ' ', 1)) AS b, count(*) AS n FROM {table}"
        for table in ("users", "user", "accounts")
    )

    def read_all() -> None:
        lows, highs, counts = zip(*answer(store, everything), strict=True)
        assert len({*lows, *highs}) == 1, "a mix of generations"
        assert counts == (10 + int(lows[0][1:]),) * 3, "half a generation"

    def read_window() -> None:
        table, window = store.reader.window("accounts", ViewOptions(size=100, sort=[Sort(column="_id")]))
        assert window.total == len(window.ids) == 10 + int(table.generation[1:])
        assert {name.split()[0] for name in window.rows["name"].to_pylist()} == {table.generation}

    def read_scan() -> None:
        assert len(content(store, "user")) >= 10

    with Readers(read_all, read_window, read_scan) as readers:
        for number in range(1, 25):
            put(f"g{number}", 10 + number)
            store.publish(f"g{number}")
            store.drop(f"g{number - 1}")
    assert min(readers.rounds) > 0


def test_a_window_is_right_at_every_moment_of_a_growing_and_shrinking_table(store: Store) -> None:
    begin(store, "g", KEYED, rows=20)
    store.publish("g")

    def read() -> None:
        _, window = store.reader.window("keyed", ViewOptions(size=10_000))
        ids = [row["_id"] for row in window.rows.to_pylist()]
        assert len(ids) == window.total == 20, "a batch is seen in part, or a row is left out"
        assert ids == list(range(ids[0], ids[0] + 20))
        _, page = store.reader.window("keyed", ViewOptions(offset=5, size=5))
        assert len(page.ids) == 5
        assert list(page.ids) == sorted(page.ids)

    with Readers(read, read):
        for number in range(60):  # each batch adds two rows at the end and takes two at the beginning
            gone = numbered(2 * number, 2)
            store.put(batch("g", number + 1, {KEYED: (numbered(20 + 2 * number, 2), gone)}))


def test_an_open_scan_keeps_its_rows_and_holds_nobody_up(store: Store) -> None:
    begin(store, "g1", USERS, rows=2_000)
    begin(store, "g2", USERS, rows=1)
    store.publish("g1")
    with store.reader.scan("users", Selection()) as reader:
        store.put(batch("g1", 1, {USERS: (numbered(2_000, 5), [])}))
        store.publish("g2")
        store.drop("g1")
        store.put(batch("g2", 1, {USERS: (numbered(1, 1), [])}))
        assert reader.read_all().num_rows == 2_000
    assert len(content(store, "users")) == 2


def test_an_open_scan_of_a_file_holds_no_drop_up_and_its_space_comes_back(path: Path) -> None:
    store = Store(path)
    begin(store, "g1", USERS, rows=50_000)
    begin(store, "g2", USERS, rows=10)
    store.publish("g1")
    with store.reader.scan("users", Selection()) as reader:
        store.publish("g2")
        store.drop("g1")
        store.put(batch("g2", 1, {USERS: (numbered(10, 1), [])}))
        assert reader.read_all().num_rows == 50_000
    store.close()
    reopened = Store(path)
    assert reopened.reader.row_counts() == {"g2": {"users": 11}}
    reopened.close()


# Files


def test_reopening_keeps_everything(path: Path) -> None:
    store = Store(path)
    begin(store, "g1", USERS, ACCOUNTS, rows=3)
    begin(store, "g2", KEYED, rows=4)
    store.put(batch("g2", 1, {KEYED: ([], numbered(0, 1))}))
    store.publish("g1")
    generations, tables = store.generations(), store.tables()
    contents = {name: content(store, name) for name in tables}
    store.close()
    reopened = Store(path)
    assert reopened.generations() == generations
    assert reopened.tables() == tables
    assert {name: content(reopened, name) for name in tables} == contents
    reopened.begin("g1", [USERS, ACCOUNTS])
    assert not reopened.put(batch("g2", 1, {KEYED: ([], numbered(1, 1))}))
    assert reopened.put(batch("g2", 2, {KEYED: (numbered(7, 1), [])}))
    reopened.publish("g2")
    assert reopened.reader.window("keyed", ViewOptions())[1].ids == (1, 2, 3, 4)
    reopened.close()


def test_dropped_generations_leave_room_for_new_ones(path: Path) -> None:
    store = Store(path)
    rows = [{**row, "name": f"{row['_id'] * 2654435761 % 2**32:x}" * 4} for row in numbered(0, 30_000)]
    changes = table_changes(USERS, rows)
    sizes = []
    for number in range(10):
        store.begin(f"g{number}", [USERS])
        store.put(Batch(f"g{number}", 0, (changes,)))
        store.publish(f"g{number}")
        store.drop(f"g{number - 1}")
        sizes.append(sum(file.stat().st_size for file in path.parent.glob("store*")))
    store.close()
    assert sizes[-1] < 3 * sizes[0]


def test_a_file_in_use_by_another_process_is_an_error_with_its_cure(path: Path) -> None:
    code = f"import duckdb, sys; database = duckdb.connect({str(path)!r}); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        with pytest.raises(
            SetupError, match=r"cannot open the store .*lock[^\n]*\n  cure: stop the server that uses it"
        ):
            Store(path)
        other.kill()
    Store(path).close()


@pytest.mark.parametrize("memory_megabytes", [1024, 512])
def test_a_file_open_in_this_process_is_an_error_with_its_cure(path: Path, memory_megabytes: int) -> None:
    store = Store(path)
    begin(store, "g", USERS, rows=1)
    with pytest.raises(SetupError, match=r"cannot open the store [^\n]*\n  cure: stop the server that uses it"):
        Store(path, memory_megabytes=memory_megabytes)
    assert store.reader.row_counts() == {"g": {"users": 1}}
    store.close()
    Store(path).close()


def test_a_file_that_is_no_database_is_an_error_with_its_cure(path: Path) -> None:
    path.write_text("these are not the tables" * 1_000)
    with pytest.raises(SetupError, match=r"cannot open the store [^\n]*\n  cure: set server.store to a new file"):
        Store(path)


def test_a_path_that_cannot_be_made_is_an_error_with_its_cure(path: Path) -> None:
    path.write_text("a file")
    with pytest.raises(SetupError, match=r"cannot open the store [^\n]*\n  cure: set server.store to a new file"):
        Store(path / "store.duckdb")


@pytest.mark.parametrize("layout", ["(version BIGINT); INSERT INTO livetables.layout VALUES (99)", "(other VARCHAR)"])
def test_a_file_of_another_version_is_an_error_with_its_cure(path: Path, layout: str) -> None:
    with duckdb.connect(str(path)) as database:
        database.execute(f"CREATE SCHEMA livetables; CREATE TABLE livetables.layout {layout}")
    with pytest.raises(SetupError, match=r"not written by this version of livetables[^\n]*\n(.*\n)*  cure: set server"):
        Store(path)
    duckdb.connect(str(path)).close()


def long_texts(rows: int) -> Batch:
    """A batch that takes more room than its number of rows suggests."""
    text = pa.array([f"{number * 2654435761 % 2**32:08x}" * 8 for number in range(rows)])
    columns = {"_id": pa.array(range(rows), pa.int64()), "name": text}
    table = pa.table([columns.get(f.name, pa.nulls(rows, f.type)) for f in USERS.schema], schema=USERS.schema)
    return Batch("g", 0, (TableChanges("users", table, table_changes(USERS, []).deletes),))


def test_what_does_not_fit_in_memory_is_sorted_beside_the_file(path: Path) -> None:
    store = Store(path, memory_megabytes=64)
    store.begin("g", [USERS])
    store.put(long_texts(500_000))
    store.publish("g")
    with store.reader.scan("users", Selection(sort=[Sort(column="name")])) as reader:
        assert reader.read_next_batch()["name"][0].as_py() == "0" * 64
        assert list(path.parent.glob("store.duckdb.tmp/*"))
    store.close()


def test_what_does_not_fit_in_memory_without_a_file_is_an_error_with_its_cure() -> None:
    store = Store(None, memory_megabytes=64)
    store.begin("g", [USERS])
    store.put(long_texts(300_000))
    store.publish("g")
    with (
        pytest.raises(RequestError, match="cure: ask for less at once") as caught,
        store.reader.scan("users", Selection(sort=[Sort(column="name")])) as reader,
    ):
        reader.read_all()
    assert caught.value.code == "limit"
    assert len(store.reader.window("users", ViewOptions(size=10))[1].ids) == 10
    store.close()


def test_a_closed_store_says_so(store: Store) -> None:
    begin(store, "g", USERS)
    store.publish("g")
    store.close()
    with pytest.raises(RequestError, match="the server is stopping") as caught:
        store.reader.window("users", ViewOptions())
    assert caught.value.code == "unavailable"


def test_a_reader_that_outlives_the_store_lets_go_of_the_file(path: Path) -> None:
    store = Store(path)
    begin(store, "g", USERS, rows=3)
    store.publish("g")
    with store.reader.scan("users", Selection()) as reader:
        store.close()
        assert reader.read_all().num_rows == 3
    Store(path).close()


# Crashes

WRITER = """
import sys
from pathlib import Path
from livetables.server.storage.store import Store
from tests.server.storage.test_store import USERS, KEYED, crash_batch
store = Store(Path(sys.argv[1]))
store.begin("g", [USERS, KEYED])
last = store.generations()["g"].last_batch_id
for batch_id in range(0 if last is None else last + 1, 100_000):
    store.put(crash_batch(batch_id))
    print(batch_id, flush=True)
    if batch_id % 7 == 0:
        store.begin(f"other{batch_id}", [KEYED])
        store.publish("g")
        store.drop(f"other{batch_id}")
"""


def crash_batch(batch_id: int) -> Batch:
    """The same batch for the same id: rows come, others change, and every third batch deletes."""
    keyed = numbered(batch_id % 10 * 3, 5, name=f"batch {batch_id % 10}")
    gone = numbered((batch_id + 5) % 10 * 3, 5, name=f"batch {(batch_id + 5) % 10}") if batch_id % 3 == 0 else []
    return batch("g", batch_id, {USERS: (numbered(batch_id * 20, 20), []), KEYED: (keyed, gone)})


def test_what_was_acknowledged_survives_a_kill(path: Path) -> None:
    chance = random.Random(7)
    acknowledged = -1
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
        ) as writer:
            assert writer.stdout
            for _ in range(chance.randrange(1, 60)):
                acknowledged = int(writer.stdout.readline())
            time.sleep(chance.random() * 0.02)  # so that the kill comes anywhere in a batch
            os.kill(writer.pid, signal.SIGKILL)
            acknowledged = max([acknowledged, *(int(line) for line in writer.stdout.read().splitlines())])
        store = Store(path)
        last = store.generations()["g"].last_batch_id
        assert last is not None
        assert acknowledged <= last <= acknowledged + 1
        sink = MemorySink()
        sink.begin("g", [USERS, KEYED])
        for batch_id in range(last + 1):
            sink.put(crash_batch(batch_id))
        store.publish("g")
        for name in ("users", "keyed"):
            assert content(store, name) == comparable(sink.rows(name, "g"))
        assert store.table("users").next_row == 20 * (last + 1)
        store.close()


@pytest.mark.parametrize("name", ["main", "livetables", "Temp", "pg_catalog", "", "g 1", 'g"1', "g" * 101])
def test_a_generation_has_a_name_of_its_own(name: str) -> None:
    store = Store(None)
    with pytest.raises(SinkError, match="cannot be called"):
        store.begin(name, [])
    assert store.generations() == {}
    store.close()


def test_a_column_of_a_type_that_tables_do_not_have_is_refused() -> None:
    store = Store(None)
    with pytest.raises(SinkError, match="column day of table t is date32") as refused:
        store.begin("g1", [TableShape("t", pa.schema([("day", pa.date32())]), ("day",))])
    assert "timestamp" in refused.value.cure
    assert store.generations() == {}
    store.close()


def test_a_view_of_a_join_that_is_unknown_is_refused() -> None:
    store = Store(None)
    with pytest.raises(SinkError, match="table users has the join 'outer', which is unknown"):
        store.begin("g1", [replace(USERS, name="users", join="outer")])  # type: ignore[arg-type]
    assert store.generations() == {}
    store.close()


def test_records_that_a_successor_does_not_have_are_counted_by_topic(store: Store) -> None:
    users, accounts = replace(USERS, topic="user"), replace(ACCOUNTS, topic="account")
    begin(store, "g1", users, accounts, rows=10)
    store.begin("g2", [users, replace(accounts, topic="another")])
    later = numbered(0, 10, "user")[4:]
    store.put(batch("g2", 0, {users: ([{**later[0], "ts": EPOCH - timedelta(days=1)}, *later[1:]], [])}))
    assert store.lost_records("g1", "g2", {}) == {"user": 5}, "four are missing, one is another record"
    assert store.lost_records("g1", "g2", {"users": {0: 3}}) == {"user": 3}
    assert store.lost_records("g1", "g2", {"users": {}}) == {}
    assert store.lost_records("g1", "g1", {}) == {}

"""What is kept depends on the records alone: of dead letters, of tables with a limit, and of the views over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.spec import DEAD_LETTERS, Retain
from livetables.model.wire import FramePart, FrameStream, Place
from livetables.pipeline.flow.plan import DEAD_LETTER_SCHEMA
from livetables.server.storage import retention
from livetables.server.storage.generation import Frame
from livetables.server.storage.listeners import Changed
from livetables.server.storage.pending import StoreFirstError
from livetables.server.storage.store import Store
from livetables.server.storage.unknown_fields import FIELD_CHARACTERS_MAX
from livetables.server.viewports.viewport import Selection
from tests.chaos.clocks import Clock
from tests.support import frames
from tests.support.frames import Record, Story
from tests.support.frames import expected as expected_tables
from tests.support.kafka import wait_until
from tests.support.server import ServerProcess
from tests.support.tables import EPOCH, Row

LETTERS = TableShape(DEAD_LETTERS, DEAD_LETTER_SCHEMA, ("source", "_id"), appends=True)
NUMBERS = count()
NO_LIMIT = 2**40


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    store = Store(None)
    yield store
    store.close()


def letter(source: str, number: int, seconds: int, raw: str | None) -> Row:
    place = {"_id": number, "source": source, "topic": source, "partition": 0, "offset": number}
    return {**place, "ts": EPOCH + timedelta(seconds=seconds), "reason": "malformed JSON", "raw": raw}


def put(store: Store, generation: str, batch_id: int, letters: list[Row], **unknown: Any) -> None:
    rows = pa.Table.from_pylist(letters, DEAD_LETTER_SCHEMA)
    store.put(Batch(generation, batch_id, (TableChanges(DEAD_LETTERS, rows, pa.table({})),), **unknown))


def begun(store: Store) -> str:
    generation = f"g{next(NUMBERS)}"
    store.begin(generation, [LETTERS])
    store.publish(generation)
    return generation


def kept(store: Store) -> list[tuple[str, int]]:
    with store.reader.scan(DEAD_LETTERS, Selection()) as reader:
        return sorted((row["source"], row["_id"]) for row in reader.read_all().to_pylist())


def expected_letters(letters: list[Row], rows_max: int, bytes_max: int) -> list[tuple[str, int]]:
    """The oracle: the newest, as many as fit."""
    stay, size = [], 0
    for row in sorted(letters, key=lambda each: (each["ts"], each["source"], each["_id"]), reverse=True)[:rows_max]:
        size += len((row["raw"] or "").encode())
        if size > bytes_max:
            break
        stay.append((row["source"], row["_id"]))
    return sorted(stay)


LETTERS_SENT = st.lists(
    st.tuples(st.sampled_from(["users", "accounts"]), st.integers(0, 4), st.none() | st.text("aé", max_size=6)),
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(
    sent=LETTERS_SENT,
    order=st.randoms(use_true_random=False),
    rows_max=st.integers(1, 8),
    bytes_max=st.sampled_from([0, 5, 20, NO_LIMIT]),
    data=st.data(),
)
def test_what_stays_depends_on_the_records_alone(
    store: Store, sent: list[Any], order: Any, rows_max: int, bytes_max: int, data: st.DataObject
) -> None:
    generation = begun(store)
    letters = [letter(source, number, seconds, raw) for number, (source, seconds, raw) in enumerate(sent)]
    arriving = list(letters)
    order.shuffle(arriving)
    batch_id = 0
    while arriving:
        taken = data.draw(st.integers(1, len(arriving)))
        put(store, generation, batch_id, arriving[:taken])
        arriving, batch_id = arriving[taken:], batch_id + 1
        if data.draw(st.booleans()):
            store.trim(rows_max, bytes_max)
    store.trim(rows_max, bytes_max)
    assert kept(store) == expected_letters(letters, rows_max, bytes_max)


def test_who_looks_and_who_follows_learn_what_went(store: Store) -> None:
    generation = begun(store)
    put(store, generation, 0, [letter("users", number, number, "x") for number in range(5)])
    changed: list[Changed] = []
    store.listen(changed.append)
    known = store.generations()[generation]
    place = Place(generation, known.sequence, known.begun.isoformat())
    assert store.trim(3, NO_LIMIT) == 2
    assert store.trim(3, NO_LIMIT) == 0, "nothing has come since"
    assert [change.names for change in changed] == [frozenset({DEAD_LETTERS})]
    news = store.changes.since(DEAD_LETTERS, place, 0.0, lambda: False)
    assert news is not None
    assert sorted(row["_id"] for row in news.to_pylist() if row[news.column_names[-1]]) == [0, 1]


def test_names_of_unknown_fields_are_bounded(store: Store) -> None:
    generation = begun(store)
    unknown = {"users": {"n" * 10_000_000: 1, "n" * 9_000_000: 2, "short": 3}}
    put(store, generation, 0, [], unknown_fields=unknown)
    counted = {name: records for (table, name), records in store.unknown_fields.items() if table == "users"}
    assert counted == {"n" * FIELD_CHARACTERS_MAX + "…": 3, "short": 3}


# Tables and views

DAY_SECONDS = 24 * 3600
NOW = frames.EPOCH + timedelta(days=1)  # after all records


@pytest.fixture(autouse=True)
def without_rests() -> Iterator[None]:
    """Trim whenever it is asked for."""
    with patch.object(retention, "RESTS", 0):
        yield


def retained(records: Sequence[Record], retain: Retain | None, now: int | None = None) -> list[Record]:
    """The model: look at the records from the newest on, and stop at the first that is one too many."""
    stay: list[Record] = []
    size = 0
    valid = sorted((each for each in records if not each.is_dead), key=lambda each: each.order, reverse=True)
    for record in valid:
        size += 8 * 3 + len((record.key or "").encode())
        newest = valid[0].time if now is None else min(valid[0].time, now)
        is_too_old = retain is not None and retain.seconds is not None and record.time < newest - retain.seconds
        is_too_many = retain is not None and retain.rows is not None and len(stay) == retain.rows
        is_too_large = retain is not None and retain.bytes is not None and size > retain.bytes
        if is_too_old or is_too_many or is_too_large:
            break
        stay.append(record)
    return stay


def shapes_with(users: Retain | None, accounts: Retain | None) -> list[TableShape]:
    limits = {"users_ui": users, "accounts_ui": accounts}
    return [replace(shape, retain=limits.get(shape.name)) for shape in frames.SHAPES]


def content(store: Store, table: str) -> list[Row]:
    with store.reader.scan(table, Selection()) as reader:
        rows: list[Row] = reader.read_all().to_pylist()
    return rows


def comparable(rows: Sequence[Row]) -> list[str]:
    return sorted(repr([(name, str(value)) for name, value in row.items()]) for row in rows)


class Retaining:
    """A generation with limits, that frames are brought to in either way, and that is trimmed now and then."""

    def __init__(self, store: Store, chance: Any, shapes: Sequence[TableShape]) -> None:
        self.store, self.generation, self._chance = store, f"g{next(NUMBERS)}", chance
        store.begin(self.generation, shapes)
        store.publish(self.generation)
        self.followed = {shape.name: self._whole(shape) for shape in shapes if shape.name != DEAD_LETTERS}
        self._shapes = {shape.name: shape for shape in shapes}
        self._places = {name: self._place() for name in self.followed}

    def deliver(self, last: FramePart, whole: tuple[FrameStream, ...]) -> None:
        frame = Frame(replace(last, generation=self.generation), whole)
        try:
            if self._chance.randrange(2):
                raise StoreFirstError("by the store, for once")
            self.store.show(frame)
        except StoreFirstError:
            (outcome,) = self.store.apply([frame]).outcomes
            assert isinstance(outcome, int), outcome
        if self._chance.randrange(3) == 0:
            self.trim()

    def trim(self, now: datetime = NOW) -> None:
        self.store.trim_tables(now.timestamp)

    def follow(self) -> dict[str, list[Row]]:
        """What a follower of every change has."""
        for name, rows in self.followed.items():
            news = self.store.changes.since(name, self._places[name], 0.0, lambda: False)
            assert news is not None
            for row in news.to_pylist():
                key = tuple(row[column] for column in self._shapes[name].key)
                if row.pop("_deleted"):
                    rows.pop(key, None)
                else:
                    rows[key] = row
            self._places[name] = self._place()
        return {name: list(rows.values()) for name, rows in self.followed.items()}

    def _whole(self, shape: TableShape) -> dict[tuple[Any, ...], Row]:
        rows = content(self.store, shape.name)
        return {tuple(row[column] for column in shape.key): row for row in rows}

    def _place(self) -> Place:
        known = self.store.generations()[self.generation]
        return Place(self.generation, known.sequence, known.begun.isoformat())


@st.composite
def histories(draw: st.DrawFn) -> list[Record]:
    """Records of two topics with two partitions each, over few keys and times; one in ten is dead."""
    offsets: dict[tuple[str, int], int] = {}
    records = []
    drawn = st.tuples(
        st.sampled_from(["users", "accounts"]),
        st.integers(0, 1),
        st.sampled_from(["a", "b", "a", "b", "ü", None]),
        st.integers(0, 5),
        st.integers(0, 9),
    )
    for source, partition, key, seconds, kind in draw(st.lists(drawn, max_size=24)):
        offset = offsets.get((source, partition), 0)
        offsets[source, partition] = offset + 1
        records.append(Record(source, partition, offset, key, seconds, is_dead=kind == 0))
    return records


LIMITS = st.none() | st.builds(
    Retain,
    rows=st.none() | st.integers(1, 6),
    seconds=st.none() | st.integers(1, 4),
    bytes=st.none() | st.sampled_from([20, 60, 120]),
)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(records=histories(), users=LIMITS, accounts=LIMITS, writers=st.integers(1, 2), data=st.data())
def test_tables_and_views_are_those_of_the_records_that_are_kept(
    store: Store,
    records: list[Record],
    users: Retain | None,
    accounts: Retain | None,
    writers: int,
    data: st.DataObject,
) -> None:
    """Whatever was sent again after a crash, in whatever order it came, and whenever it was trimmed."""
    chance = data.draw(st.randoms(use_true_random=False))
    retaining = Retaining(store, chance, shapes_with(users, accounts))
    Story(records, writers, chance.randrange, retaining.deliver).play()
    retaining.trim()
    store.store_shown()
    kept_records = [
        record
        for source, limit in (("users", users), ("accounts", accounts))
        for record in retained([each for each in records if each.source == source], limit)
    ]
    followed = retaining.follow()
    for name, rows in expected_tables(kept_records).items():
        if name != DEAD_LETTERS:
            assert comparable(content(store, name)) == comparable(rows), name
            assert comparable(followed[name]) == comparable(rows), f"who follows {name}"
    counted = store.generations()[retaining.generation].records
    for source in ("users", "accounts"):
        assert counted.get(f"{source}_ui", 0) == sum(each.source == source for each in records), "all were read"
    store.drop(retaining.generation)


def test_a_time_that_is_still_to_come_removes_nothing_by_its_age(store: Store) -> None:
    """One record with a wrong clock must not empty the table: it counts as if it was of now."""
    retaining = Retaining(store, NoChance(), shapes_with(Retain(seconds=60), None))
    records = [Record("users", 0, offset, "a", seconds) for offset, seconds in enumerate([0, 50, 100, 10_000_000])]
    retaining.deliver(*whole_frame(records))
    for now, ids in ((100, [1, 2, 3]), (130, [2, 3]), (10_000_000, [3])):
        retaining.trim(frames.EPOCH + timedelta(seconds=now))
        assert sorted(row["_id"] for row in content(store, "users_ui")) == ids
    store.drop(retaining.generation)


@pytest.mark.processes
def test_a_clock_that_is_set_ahead_while_the_server_runs_removes_nothing(tmp_path: Path) -> None:
    """Although a record with a time that is still to come counts as one of now."""
    clock = Clock(tmp_path / "clock")
    now = round((datetime.now(UTC) - frames.EPOCH).total_seconds())
    far = round((datetime(9999, 1, 1, tzinfo=UTC) - frames.EPOCH).total_seconds())
    users = [Record("users", 0, offset, "a", seconds) for offset, seconds in enumerate([now - 2, now - 1, now, far])]
    accounts = [Record("accounts", 0, offset, "a", offset) for offset in range(3)]
    with ServerProcess(tmp_path, clock.settings) as server, closing(server.sink()) as sink:
        sink.begin("g", shapes_with(Retain(seconds=30 * DAY_SECONDS), Retain(rows=1)))
        sink.publish("g")
        with clock.ahead(400 * DAY_SECONDS):
            server.send_frame(replace(whole_frame(users)[0], streams=whole_frame(users)[1]))
            server.send_frame(replace(whole_frame(accounts)[0], streams=whole_frame(accounts)[1], frame=1))
            wait_until(lambda: server.table("accounts_ui").num_rows == 1, "the tables were trimmed")
        assert sorted(server.table("users_ui")["_id"].to_pylist()) == [user.id for user in users]


class NoChance:
    """Everything by the store, nothing trimmed in between."""

    def randrange(self, _: int) -> int:
        return 1


def whole_frame(records: Sequence[Record]) -> tuple[FramePart, tuple[FrameStream, ...]]:
    operator = frames.Operator()
    emitted = [each for record in records for each in operator.process(record)]
    return frames.part(marks=frames.marks_of(records)), frames.streams(emitted)


def test_what_is_too_old_stays_away_after_a_restart(tmp_path: Path) -> None:
    users = [Record("users", 0, offset, "a", offset) for offset in range(4)]
    store = Store(tmp_path / "store")
    retaining = Retaining(store, NoChance(), shapes_with(Retain(rows=2), None))
    retaining.deliver(*whole_frame([users[0], users[2], users[3]]))
    retaining.trim()
    store.close()
    store = Store(tmp_path / "store")
    late = Record("users", 1, 0, "a", -1)
    last, streams = whole_frame([late])
    (outcome,) = store.apply([Frame(replace(last, generation=retaining.generation, frame=1), streams)]).outcomes
    assert isinstance(outcome, int)
    assert sorted(row["_id"] for row in content(store, "users_ui")) == [2, 3]
    assert store.trim_tables() == {}, "it was not taken at all"
    store.close()


def test_records_that_a_successor_is_not_to_keep_are_not_lost(store: Store) -> None:
    users = [Record("users", 0, offset, "a", offset) for offset in range(5)]
    before = Retaining(store, NoChance(), shapes_with(None, None))
    before.deliver(*whole_frame(users))
    after = Retaining(store, NoChance(), shapes_with(Retain(rows=2), None))
    after.deliver(*whole_frame(users))
    after.trim()
    assert store.lost_records(before.generation, after.generation, {}) == {}
    fewer = Retaining(store, NoChance(), shapes_with(Retain(rows=2), None))
    fewer.deliver(*whole_frame(users[4:]))
    fewer.trim()
    assert store.lost_records(before.generation, fewer.generation, {}) == {"user": 4}
    for each in (before, after, fewer):
        store.drop(each.generation)

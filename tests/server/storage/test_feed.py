"""The feed of changes: what it holds, for how long, and that it leads from any place to the table."""

from __future__ import annotations

import threading
import time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from livetables.model.change import TableShape
from livetables.model.errors import RequestError
from livetables.model.wire import DELETED, ChangesHeader, ChangeTimes, Place
from livetables.server.storage import feed as feed_module
from livetables.server.storage.feed import Feed, merged
from livetables.server.storage.generation import Frame
from livetables.server.storage.pending import FrameTimes
from livetables.server.storage.store import Store
from tests.support import frames
from tests.support.tables import SHAPES, Changes, Row, batch, histories, numbered, table_changes

KEYED = SHAPES[1]


def applied(rows: dict[Any, Row], changes: pa.Table) -> None:
    header = ChangesHeader.of(changes.schema)
    if header.is_snapshot:
        rows.clear()
    for row in changes.to_pylist():
        key = tuple(row[column] for column in header.key)
        if row.pop(DELETED):
            rows.pop(key, None)
        else:
            rows[key] = row


def comparable(rows: dict[Any, Row]) -> list[str]:
    """Rows as text, so that NaN equals itself. DuckDB keeps 0.0 where it is updated to -0.0, which equals it."""
    return sorted(
        repr({name: 0.0 if isinstance(value, float) and value == 0 else value for name, value in row.items()})
        for row in rows.values()
    )


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_changes_from_any_place_lead_to_the_table(shape: TableShape, data: st.DataObject) -> None:
    history: list[Changes] = data.draw(histories(shape))
    store = Store(None)
    store.begin("g", [shape])
    store.publish("g")
    states: list[dict[Any, Row]] = []
    for number, each in enumerate([([], []), *history]):
        store.put(batch("g", number, {shape: each}))
        with store.changes.whole(shape.name) as reader:
            states.append({})
            applied(states[-1], reader.read_all())
    for number, rows in enumerate(states):
        changes = store.changes.since(shape.name, Place("g", number), 0, lambda: False)
        assert changes is not None
        header = ChangesHeader.of(changes.schema)
        assert header.place.sequence == len(history)
        keys = [tuple(row[column] for column in header.key) for row in changes.to_pylist()]
        assert len(keys) == len(set(keys))
        applied(rows, changes)
        assert comparable(rows) == comparable(states[-1])
    store.close()


def test_the_oldest_go_when_there_is_no_room_and_a_table_that_did_not_change_is_known_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_module, "BYTES_MAX", 100_000)
    feed = Feed()
    feed.started("g", -1)
    feed.add("g", 0, [], [])
    for number in range(1, 51):
        changes = [table_changes(KEYED, numbered(number, 20))]
        feed.add("g", number, changes, changes)
        assert feed._bytes <= 100_000
    assert feed.news("g", "keyed", 0, 0, lambda: False) is None
    newest = feed.news("g", "keyed", 45, 0, lambda: False)
    assert newest is not None
    assert (newest.sequence, len(newest.changes)) == (50, 5)
    assert feed.news("g", "other", 0, 0, lambda: False) is not None
    too_large = [table_changes(KEYED, numbered(0, 5_000))]
    feed.add("g", 51, too_large, too_large)
    assert feed._bytes == 0
    assert feed.news("g", "keyed", 50, 0, lambda: False) is None
    assert feed.news("g", "keyed", 51, 0, lambda: False) is not None


def test_a_generation_that_has_lost_its_names_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "BYTES_MAX", 10_000_000)
    feed = Feed()
    for generation in ("a", "b"):
        feed.started(generation, -1)
        changes = [table_changes(KEYED, numbered(0, 20))]
        feed.add(generation, 0, changes, changes)
    before = feed._bytes
    feed.ended("a")
    assert 0 < feed._bytes < before
    assert feed.news("a", "keyed", 0, 0, lambda: False) is None
    assert feed.news("b", "keyed", -1, 0, lambda: False) is not None


def test_a_place_in_the_future_is_not_known() -> None:
    feed = Feed()
    feed.started("g", 5)
    assert feed.news("g", "keyed", 6, 0, lambda: False) is not None  # committed, but not sent yet
    assert feed.news("g", "keyed", 7, 0, lambda: False) is None


def test_of_a_deleted_row_only_the_key_is_sent() -> None:
    rows = merged(KEYED, [table_changes(KEYED, numbered(0, 2)), table_changes(KEYED, [], numbered(1, 1))])
    assert rows[DELETED].to_pylist() == [False, True]
    assert {name: value for name, value in rows.to_pylist()[1].items() if value is not None} == {
        "name": "user 1",
        "age": 1,
        DELETED: True,
    }


def test_news_have_the_times_of_the_newest_record_of_their_table() -> None:
    feed = Feed()
    feed.started("g", -1)
    for number, kafka in enumerate([30.0, 50.0, 40.0]):
        changes = [table_changes(KEYED, numbered(number, 1)), table_changes(SHAPES[0], numbered(number, 1))]
        feed.add("g", number, changes, changes, {"keyed": FrameTimes(kafka, kafka + 1, kafka + 2)})
    feed.add("g", 3, changes, changes)  # what no record has caused
    newest = [feed.news("g", "keyed", after, 0, lambda: False) for after in range(-1, 3)]
    assert [each.times.kafka if each and each.times else None for each in newest] == [50, 50, 40, None]
    other = feed.news("g", "appends", -1, 0, lambda: False)
    assert other is not None
    assert other.times is None


@pytest.mark.parametrize("is_shown", [True, False], ids=["shown first", "applied by the store"])
def test_changes_have_a_receipt_of_the_newest_record_of_their_table(is_shown: bool) -> None:
    store = Store(None)
    store.begin("g", frames.SHAPES)
    store.publish("g")
    before = time.time() * 1000
    for number, (source, kafka_ms) in enumerate([("users", 5_000), ("accounts", 7_000), ("users", 4_000)]):
        record = frames.Record(source, number, 1, None, 1)
        part = frames.part(
            frames.Operator().process(record),
            frames.marks_of([record]),
            writer=number,
            kafka_ms=kafka_ms,
            sent_ms=kafka_ms + 4,
        )
        if is_shown:
            store.show(Frame(part, part.streams))
        else:
            (outcome,) = store.apply([Frame(part, part.streams)]).outcomes
            assert outcome == number
    store.store_shown()

    def receipt(table: str, after: int = -1) -> ChangeTimes | None:
        changes = store.changes.since(table, Place("g", after), 0, lambda: False)
        assert changes is not None
        return ChangesHeader.of(changes.schema).receipt

    users, accounts = receipt("users_ui"), receipt("accounts_ui")
    assert users is not None
    assert accounts is not None
    assert (users.kafka, users.spark, accounts.kafka, accounts.spark) == (5_000, 5_004, 7_000, 7_004)
    for each in (users, accounts):
        assert before <= each.applied <= each.sent <= time.time() * 1000 + 0.01  # it is rounded
    assert receipt("users_ui", store.generations()["g"].sequence) is None
    with store.changes.whole("users_ui") as reader:
        assert ChangesHeader.of(reader.schema).receipt is None
    store.close()


def test_busy_names_the_cure() -> None:
    feed = Feed()
    feed.started("g", 0)
    feed._waiting["g", "t"] = {threading.Event() for _ in range(feed_module.WAITING_MAX)}
    with pytest.raises(RequestError, match="ask again later"):
        feed.news("g", "t", 0, 1, lambda: False)

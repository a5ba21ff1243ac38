"""Dead letters are bounded: which of them stay depends on the records alone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.spec import DEAD_LETTERS
from livetables.model.wire import Place
from livetables.pipeline.flow.plan import DEAD_LETTER_SCHEMA
from livetables.server.storage.listeners import Changed
from livetables.server.storage.store import Store
from livetables.server.storage.unknown_fields import FIELD_CHARACTERS_MAX
from livetables.server.viewports.viewport import Selection
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
    with store.scan(DEAD_LETTERS, Selection()) as reader:
        return sorted((row["source"], row["_id"]) for row in reader.read_all().to_pylist())


def expected(letters: list[Row], rows_max: int, bytes_max: int) -> list[tuple[str, int]]:
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
    assert kept(store) == expected(letters, rows_max, bytes_max)


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
    news = store.changes(DEAD_LETTERS, place, 0.0, lambda: False)
    assert news is not None
    assert sorted(row["_id"] for row in news.to_pylist() if row[news.column_names[-1]]) == [0, 1]


def test_names_of_unknown_fields_are_bounded(store: Store) -> None:
    generation = begun(store)
    unknown = {"users": {"n" * 10_000_000: 1, "n" * 9_000_000: 2, "short": 3}}
    put(store, generation, 0, [], unknown_fields=unknown)
    counted = {name: records for (table, name), records in store.unknown_fields.items() if table == "users"}
    assert counted == {"n" * FIELD_CHARACTERS_MAX + "…": 3, "short": 3}

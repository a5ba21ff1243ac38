"""The rules by which batches are applied; the server must hold them too."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from livetables.change import Batch, TableChanges, TableShape
from livetables.errors import SinkError
from livetables.pipeline.sink import MemorySink

SCHEMA = pa.schema([("id", pa.int64()), ("other", pa.int64()), ("v", pa.int64())])
PLAIN = TableShape("t", SCHEMA, ("id", "other"))
VERSIONED = TableShape("t", SCHEMA, ("id",), version=("v",))


def batch(batch_id: int, rows: list[dict[str, Any]], deletes: list[dict[str, Any]] | None = None) -> Batch:
    upserts = pa.Table.from_pylist(rows, schema=SCHEMA)
    gone = pa.Table.from_pylist(deletes or [], schema=PLAIN.key_schema)
    return Batch("g", batch_id, (TableChanges("t", upserts, gone),), {"t": {"odd": 1}})


def row(row_id: int, other: int | None, v: int | None) -> dict[str, Any]:
    return {"id": row_id, "other": other, "v": v}


@pytest.fixture
def sink() -> MemorySink:
    sink = MemorySink()
    sink.begin("g", [PLAIN])
    return sink


def test_a_batch_that_comes_again_changes_nothing(sink: MemorySink) -> None:
    sink.put(batch(0, [row(1, 1, 1)]))
    sink.put(batch(1, [row(1, 1, 2)]))
    sink.put(batch(0, [row(1, 1, 1)]))
    assert sink.rows("t", "g") == [row(1, 1, 2)]
    assert sink.last_batch_id("g") == 1
    assert sink.unknown_fields == {("t", "odd"): 2}


def test_a_batch_out_of_order_is_refused(sink: MemorySink) -> None:
    sink.put(batch(0, []))
    with pytest.raises(SinkError, match="batch 2 of generation g came where 1 was due"):
        sink.put(batch(2, []))


def test_null_is_a_value_like_any_other_in_a_key(sink: MemorySink) -> None:
    sink.put(batch(0, [row(1, None, 1), row(1, 1, 1)]))
    sink.put(batch(1, [], [{"id": 1, "other": None}]))
    assert sink.rows("t", "g") == [row(1, 1, 1)]


def test_deleting_what_is_not_there_changes_nothing(sink: MemorySink) -> None:
    sink.put(batch(0, [row(1, 1, 1)], [{"id": 9, "other": 9}]))
    assert sink.rows("t", "g") == [row(1, 1, 1)]


@pytest.mark.parametrize("order", [[None, 1, 3], [3, None, 1], [1, 3, None]])
def test_of_versions_the_greatest_stays_in_whatever_order_they_come(order: list[int | None]) -> None:
    sink = MemorySink()
    sink.begin("g", [VERSIONED])
    for number, version in enumerate(order):
        sink.put(batch(number, [row(1, version, version)]))
    assert sink.rows("t", "g") == [row(1, 3, 3)]


def test_a_generation_that_was_not_begun_is_refused(sink: MemorySink) -> None:
    with pytest.raises(SinkError, match="generation h was not begun"):
        sink.put(Batch("h", 0, ()))
    with pytest.raises(SinkError, match="generation h was not begun"):
        sink.publish("h")


def test_beginning_again_keeps_the_rows_but_not_other_tables(sink: MemorySink) -> None:
    sink.put(batch(0, [row(1, 1, 1)]))
    sink.begin("g", [PLAIN])
    assert len(sink.rows("t", "g")) == 1
    with pytest.raises(SinkError, match="has other tables already"):
        sink.begin("g", [VERSIONED])


def test_publishing_switches_the_stable_names_and_dropping_frees_them(sink: MemorySink) -> None:
    with pytest.raises(SinkError, match="no generation is published"):
        sink.rows("t")
    sink.begin("h", [PLAIN])
    sink.put(batch(0, [row(1, 1, 1)]))
    sink.publish("h")
    assert sink.rows("t") == []
    sink.publish("g")
    assert sink.rows("t") == [row(1, 1, 1)]
    sink.drop("g")
    sink.drop("g")
    with pytest.raises(SinkError, match="no generation is published"):
        sink.rows("t")

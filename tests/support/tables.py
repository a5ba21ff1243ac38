"""Shapes, rows and batches for tests of what keeps and shows tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from livetables.model.change import Batch, TableChanges, TableShape

Row = dict[str, Any]
Changes = tuple[list[Row], list[Row]]  # rows to upsert, keys to delete

EPOCH = datetime(2026, 1, 31, 12, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("_id", pa.int64()),
        ("name", pa.string()),
        ("age", pa.int64()),
        ("balance", pa.float64()),
        ("active", pa.bool_()),
        ("ts", pa.timestamp("us", tz="UTC")),
    ]
)
APPENDS = TableShape("appends", SCHEMA, ("_id",), appends=True)
KEYED = TableShape("keyed", SCHEMA, ("name", "age"))  # either may be null
VERSIONED = TableShape("versioned", SCHEMA, ("_id",), version=("ts", "age"))
SHAPES = (APPENDS, KEYED, VERSIONED)

# Letters that Python and DuckDB lower alike; beyond them (as İ, or Σ at the end of a word) the two differ.
TEXTS = st.text("aAbBeE éÉßµ0-.%_'\"\\😀", max_size=4)
INTEGERS = st.one_of(
    st.integers(-3, 12), st.sampled_from([2**53 + 1, 2**53, -(2**53) - 1, 2**63 - 1, -(2**63), 100, 1000])
)
# Halves are written alike by Python and DuckDB; a quick filter looks at the text of a number.
DOUBLES = st.one_of(
    st.integers(-6, 6).map(lambda number: number / 2),
    st.sampled_from([0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1234.5]),
)
TIMES = st.sampled_from([0, 1, 500_000, 1_000_000, 60_000_000, 86_400_000_000, -86_400_000_000]).map(
    lambda microseconds: EPOCH + timedelta(microseconds=microseconds)
)
VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "name": TEXTS,
    "age": INTEGERS,
    "balance": DOUBLES,
    "active": st.booleans(),
    "ts": TIMES,
}
ROWS = st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()})


def batch(generation: str, batch_id: int, changes: Mapping[TableShape, Changes]) -> Batch:
    """A batch of rows to upsert and keys to delete, by shape."""
    return Batch(generation, batch_id, tuple(table_changes(shape, *each) for shape, each in changes.items()))


def table_changes(shape: TableShape, upserts: Sequence[Row], deletes: Sequence[Row] = ()) -> TableChanges:
    return TableChanges(
        shape.name,
        pa.Table.from_pylist(list(upserts), schema=shape.schema),
        pa.Table.from_pylist([{column: key[column] for column in shape.key} for key in deletes], shape.key_schema),
    )


@st.composite
def histories(draw: st.DrawFn, shape: TableShape, batches_max: int = 4, rows_max: int = 8) -> list[Changes]:
    """Batches that keep the rules of a shape: a key comes once a batch, and to a table that appends only once."""
    ids = count()
    return [_changes(draw, shape, rows_max, ids) for _ in range(draw(st.integers(1, batches_max)))]


def _changes(draw: st.DrawFn, shape: TableShape, rows_max: int, ids: Iterator[int]) -> Changes:
    rows = draw(st.lists(ROWS, max_size=rows_max))
    if shape.appends:
        return [{"_id": next(ids), **row} for row in rows], []
    few = st.integers(0, 6)
    rows = [{"_id": draw(few), **row} for row in rows]
    gone: list[Row] = draw(st.lists(ROWS, max_size=rows_max))
    if shape is KEYED:  # few keys, so that they meet again
        keys = st.fixed_dictionaries({"name": st.sampled_from([None, "", "a", "b"]), "age": st.sampled_from([None, 1])})
        rows = [{**row, **draw(keys)} for row in rows]
        gone = [draw(keys) for _ in gone]
    else:
        gone = [{"_id": draw(few)} for _ in gone]

    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row[column] for column in shape.key)

    upserts = {key(row): row for row in rows}
    deletes = {key(row): row for row in gone if key(row) not in upserts}
    return list(upserts.values()), list(deletes.values())


def numbered(start: int, rows: int, name: str = "user") -> list[Row]:
    """Plain rows for a table, with ids from `start` on."""
    return [
        {
            "_id": number,
            "name": f"{name} {number}",
            "age": number % 90,
            "balance": number / 2,
            "active": number % 2 == 0,
            "ts": EPOCH + timedelta(seconds=number),
        }
        for number in range(start, start + rows)
    ]

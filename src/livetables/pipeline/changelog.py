"""From a micro-batch's rows to changes of tables: which rows to upsert, which keys to delete. Pure, on Arrow.

| table | key | a batch changes it by |
|---|---|---|
| a topic's | `_id` | inserting its new rows |
| dead_letters | `source`, `_id` | inserting the records that are no rows |
| `inner` | both ids | inserting the new pairs |
| `left` | both ids | the same, inserting new left rows without a pair under (left id, null), and deleting that row of each left row that got a pair |
| `natural`, `asof` | id of the left, of the right row | upserting matches and rows without one; the later match wins, in whatever order they come |
"""  # noqa: E501

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from livetables.change import TableChanges, TableShape
from livetables.pipeline.dead_letter import readable, reason
from livetables.pipeline.join import match_streams
from livetables.spec import (
    DEAD_LETTERS,
    GenerationSpec,
    JoinedColumn,
    JoinType,
    Table,
    View,
    joined_columns,
    record_position,
)

NO_DELETES = pa.table({})

TIMESTAMP = pa.timestamp("us", tz="UTC")
ARROW_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int64": pa.int64(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "timestamp": TIMESTAMP,
}
DEAD_LETTER_SCHEMA = pa.schema(
    [
        ("_id", pa.int64()),
        ("source", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int64()),
        ("offset", pa.int64()),
        ("ts", TIMESTAMP),
        ("reason", pa.string()),
        ("raw", pa.string()),
    ]
)
VIEW_KEYS: dict[JoinType, tuple[str, ...]] = {
    "inner": ("_left_id", "_right_id"),
    "left": ("_left_id", "_right_id"),
    "natural": ("_left_id",),
    "asof": ("_right_id",),
}


def shapes(spec: GenerationSpec) -> tuple[TableShape, ...]:
    """The tables of a generation, as readers see them."""
    return (
        *(
            TableShape(table.publish, _table_schema(table), ("_id",), aliases=table.aliases, appends=True)
            for table in spec.tables
        ),
        *(_view_shape(view, spec) for view in spec.views),
        TableShape(DEAD_LETTERS, DEAD_LETTER_SCHEMA, ("source", "_id"), appends=True),
    )


def untagged(collected: pa.Table) -> dict[str, pa.StructArray]:
    """The rows of each stream of a collected batch, by the stream's name: those whose struct is filled."""
    return {name: _filled(collected[name]) for name in collected.column_names if name != "_key"}


def changes(streams: Mapping[str, pa.StructArray], spec: GenerationSpec) -> tuple[TableChanges, ...]:
    """The changes of a micro-batch to the tables that it changes."""
    rows = {table.name: _rows(table, streams[table.name]) for table in spec.tables}
    matches = match_streams(spec)
    changed = [
        *(TableChanges(table.publish, rows[table.name], NO_DELETES) for table in spec.tables),
        *(_view_changes(view, spec, rows, streams[matches[view.name].name]) for view in spec.views),
        _dead_letters(spec, streams),
    ]
    return tuple(change for change in changed if change.upserts.num_rows or change.deletes.num_rows)


def records(streams: Mapping[str, pa.StructArray], spec: GenerationSpec) -> dict[str, int]:
    """How many records a micro-batch took from the topic of each table, by what readers call it."""
    return {table.publish: len(streams[table.name]) for table in spec.tables}


def unknown_fields(streams: Mapping[str, pa.StructArray], spec: GenerationSpec) -> dict[str, dict[str, int]]:
    """How many rows of a micro-batch had each field that is no column, by table and field."""
    counted = {}
    for table in spec.tables:
        names = streams[table.name].field("_unknown")
        if names.null_count < len(names):
            counted[table.name] = dict(Counter(names.flatten().to_pylist()))
    return counted


def _table_schema(table: Table) -> pa.Schema:
    columns = [(column.name, ARROW_TYPES[column.type]) for column in table.columns]
    return pa.schema([("_id", pa.int64()), *columns, ("ts", TIMESTAMP)])


def _view_shape(view: View, spec: GenerationSpec) -> TableShape:
    left, right = spec.table(view.left), spec.table(view.right)
    schema = pa.schema([(column.name, ARROW_TYPES[column.type]) for column in joined_columns(left, right, view.on)])
    version = {"natural": (f"{right.name}_ts", "_right_id"), "asof": (f"{left.name}_ts", "_left_id")}
    return TableShape(
        view.name,
        schema,
        VIEW_KEYS[view.join],
        version.get(view.join, ()),
        view.aliases,
        appends=view.join in ("inner", "left"),  # a pair comes once, and a left row without one once
    )


def _filled(structs: pa.ChunkedArray) -> pa.StructArray:
    chunks = [chunk for chunk in structs.chunks if chunk.null_count < len(chunk)]
    filled = [chunk if chunk.null_count == 0 else chunk.filter(chunk.is_valid()) for chunk in chunks]
    return pa.chunked_array(filled, type=structs.type).combine_chunks()


def _rows(table: Table, records: pa.StructArray) -> pa.Table:
    """The records that are rows, in the table's columns."""
    dead = records.field("_dead")
    alive = records if dead.null_count == len(dead) else records.filter(dead.is_null())
    schema = _table_schema(table)
    return pa.table([_value(alive.field("_row"), column) for column in schema.names], schema=schema)


def _value(rows: pa.StructArray, column: str) -> pa.Array:
    """A column of `_row` structs: one of a record's own two, or one of its fields."""
    return rows.field(column) if column in ("ts", "_id") else rows.field("fields").field(column)


def _view_changes(
    view: View, spec: GenerationSpec, rows: Mapping[str, pa.Table], stream: pa.StructArray
) -> TableChanges:
    shape = _view_shape(view, spec)
    sides = {"left": stream.field("l"), "right": stream.field("r")}
    columns = joined_columns(spec.table(view.left), spec.table(view.right), view.on)
    matches = pa.table([_value(sides[column.side], column.source) for column in columns], schema=shape.schema)
    if view.join == "inner":
        return TableChanges(view.name, matches, NO_DELETES)
    side = "right" if view.join == "asof" else "left"
    own_rows = rows[view.right if side == "right" else view.left]
    if view.join == "asof":
        matches = _latest_per_row(_asof_pairs(view, matches), "_right_id", shape.version)
    matched_ids = pc.unique(matches[f"_{side}_id"])
    unmatched = own_rows.filter(pc.invert(pc.is_in(own_rows["_id"], value_set=matched_ids)))
    upserts = pa.concat_tables([matches, _unmatched_rows(view, shape, columns, side, unmatched)])
    if view.join != "left":
        return TableChanges(view.name, upserts, NO_DELETES)
    # A left row of this very batch was never shown without its pair.
    is_new = pc.is_in(matched_ids, value_set=own_rows["_id"].combine_chunks())
    superseded = matched_ids.filter(pc.invert(is_new))
    deletes = pa.table([superseded, pa.nulls(len(superseded), pa.int64())], schema=shape.key_schema)
    return TableChanges(view.name, upserts, deletes)


def _unmatched_rows(
    view: View, shape: TableShape, columns: Sequence[JoinedColumn], side: str, own_rows: pa.Table
) -> pa.Table:
    """Rows of the side that a view keeps, with nulls for the other side. The key column comes from whichever it is."""
    arrays = [
        own_rows[column.source]
        if column.side == side or column.name == view.on
        else pa.nulls(own_rows.num_rows, shape.schema.field(column.name).type)
        for column in columns
    ]
    return pa.table(arrays, schema=shape.schema)


def _asof_pairs(view: View, pairs: pa.Table) -> pa.Table:
    """The pairs whose left row is not newer than the right one, nor older than the view looks back."""
    left_ts, right_ts = pairs[f"{view.left}_ts"], pairs[f"{view.right}_ts"]
    keep = pc.less_equal(left_ts, right_ts)
    if view.lookback_seconds is not None:
        oldest = pc.subtract(right_ts, pa.scalar(view.lookback_seconds * 1_000_000, pa.duration("us")))
        keep = pc.and_(keep, pc.greater_equal(left_ts, oldest))
    return pairs.filter(keep)


def _latest_per_row(matches: pa.Table, row_id: str, version: tuple[str, ...]) -> pa.Table:
    """For each row, the match with the greatest version."""
    ordered = pc.sort_indices(matches, [(column, "ascending") for column in (row_id, *version)])
    ids = matches[row_id].take(ordered).to_numpy()
    is_last = np.append(ids[1:] != ids[:-1], np.ones(min(1, len(ids)), dtype=bool))
    return matches.take(ordered.filter(pa.array(is_last)))


def _dead_letters(spec: GenerationSpec, records: Mapping[str, pa.StructArray]) -> TableChanges:
    letters = [
        _dead_letter(table, record)
        for table in spec.tables
        for record in records[table.name].filter(records[table.name].field("_dead").is_valid()).to_pylist()
    ]
    return TableChanges(DEAD_LETTERS, pa.Table.from_pylist(letters, schema=DEAD_LETTER_SCHEMA), NO_DELETES)


def _dead_letter(table: Table, record: Mapping[str, Any]) -> dict[str, Any]:
    row, raw = record["_row"], record["_raw"]
    partition, offset = record_position(row["_id"])
    return {
        "_id": row["_id"],
        "source": table.publish,
        "topic": table.topic,
        "partition": partition,
        "offset": offset,
        "ts": row["ts"],
        "reason": reason(raw, table),
        "raw": readable(raw),
    }

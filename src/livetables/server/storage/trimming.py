"""The SQL that finds how far back a table is to go, and removes what is before that from it and its views."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from livetables.model.change import TableChanges, TableShape
from livetables.model.joins import SIDES
from livetables.model.spec import Retain
from livetables.server.storage.generation import Generation, StoredTable
from livetables.server.storage.horizons import Horizon, gone_condition
from livetables.server.viewports.viewport import ROW, quoted

COLUMN_BYTES = 8  # of a column that is not text


def found_horizon(cursor: duckdb.DuckDBPyConnection, table: StoredTable, retain: Retain, now_ms: int) -> Horizon | None:
    """The place up to which records of a table are not to be kept; None if there are none.

    A time that is still to come counts as now: a record with such a time would otherwise remove all others.
    """
    size = "0" if retain.bytes is None else _size(table.shape)
    facts = f"SELECT count(*), max(epoch_ms(ts)), sum({size}) FROM {table.relation}"  # noqa: S608
    ((rows, newest_ms, size_bytes),) = cursor.execute(facts).fetchall()
    if not rows:
        return None
    found: list[Horizon] = []
    newest_first = "ORDER BY ts DESC, _id DESC"
    place = f"SELECT epoch_ms(ts), _id FROM {table.relation}"  # noqa: S608
    if retain.seconds is not None:
        oldest_ms = min(newest_ms, now_ms) - retain.seconds * 1000
        found += _places(cursor, f"{place} WHERE epoch_ms(ts) < {oldest_ms} {newest_first} LIMIT 1")
    if retain.rows is not None and rows > retain.rows:
        found += _places(cursor, f"{place} {newest_first} LIMIT 1 OFFSET {retain.rows}")
    if retain.bytes is not None and size_bytes > retain.bytes:
        newer = f"sum({size}) OVER ({newest_first} ROWS UNBOUNDED PRECEDING)"
        found += _places(cursor, f"{place} QUALIFY {newer} > {retain.bytes} {newest_first} LIMIT 1")
    return max(found, default=None)


def remove(
    writer: duckdb.DuckDBPyConnection, generation: Generation, source: str, horizon: Horizon
) -> list[TableChanges]:
    """Remove the records of a source up to a horizon from all tables; return what they took of it."""
    return [
        changes
        for table in generation.tables.values()
        if source in table.shape.sources
        for changes in [_removed(writer, table, table.shape.sources.index(source), horizon)]
        if changes.deletes.num_rows or changes.upserts.num_rows
    ]


def _removed(writer: duckdb.DuckDBPyConnection, table: StoredTable, source: int, horizon: Horizon) -> TableChanges:
    shape = table.shape
    if shape.kind and shape.kind.versioned and SIDES[source] == shape.kind.versioned[1]:
        return _without_match(writer, table, source, horizon)
    condition, parameters = gone_condition(shape, source, horizon)
    delete = f"DELETE FROM {table.relation} WHERE {condition} RETURNING"  # noqa: S608
    if shape.removes_unmatched and SIDES[source] == "right":
        columns = ", ".join(quoted(name) for name in (ROW, *shape.schema.names))
        gone = writer.sql(f"{delete} {columns}", params=parameters).to_arrow_table()
        return TableChanges(shape.name, _alone(writer, table, gone), _keys(shape, gone))
    columns = ", ".join(quoted(name) for name in shape.key)
    gone = writer.sql(f"{delete} {columns}", params=parameters).to_arrow_table()
    return TableChanges(shape.name, shape.schema.empty_table(), _keys(shape, gone))


def _without_match(
    writer: duckdb.DuckDBPyConnection, table: StoredTable, source: int, horizon: Horizon
) -> TableChanges:
    """Take the match away from rows of which it was the latest: all older ones are gone as well."""
    shape = table.shape
    condition, parameters = gone_condition(shape, source, horizon)
    nulls = ", ".join(f"{quoted(name)} = NULL" for name in shape.sides[source])
    columns = ", ".join(quoted(name) for name in shape.schema.names)
    update = f"UPDATE {table.relation} SET {nulls} WHERE {condition} RETURNING {columns}"  # noqa: S608
    changed = writer.sql(update, params=parameters).to_arrow_table().cast(shape.schema)
    return TableChanges(shape.name, changed, shape.key_schema.empty_table())


def _alone(writer: duckdb.DuckDBPyConnection, table: StoredTable, gone: pa.Table) -> pa.Table:
    """Insert a row without a match for each left record whose last pair is gone; return these rows.

    It takes the number of a pair that it replaces, and so its place.
    """
    shape = table.shape
    if not gone.num_rows:
        return shape.schema.empty_table()
    left = quoted(shape.key[0])
    is_null = set(shape.sides[1])
    columns = ", ".join(quoted(name) for name in (ROW, *shape.schema.names))
    values = ", ".join(
        f"NULL AS {quoted(name)}" if name in is_null else quoted(name) for name in (ROW, *shape.schema.names)
    )
    shown = ", ".join(quoted(name) for name in shape.schema.names)
    writer.register("gone_pairs", gone)
    insert = (
        f"INSERT INTO {table.relation} ({columns}) SELECT {values} FROM gone_pairs g "  # noqa: S608
        f"WHERE NOT EXISTS (SELECT 1 FROM {table.relation} t WHERE t.{left} = g.{left}) "
        f"QUALIFY row_number() OVER (PARTITION BY {left} ORDER BY {ROW}) = 1 RETURNING {shown}"
    )
    inserted = writer.sql(insert).to_arrow_table().cast(shape.schema)
    writer.unregister("gone_pairs")
    return inserted


def _keys(shape: TableShape, rows: pa.Table) -> pa.Table:
    return rows.select(shape.key).cast(shape.key_schema)


def _places(cursor: duckdb.DuckDBPyConnection, query: str) -> Sequence[Horizon]:
    return [Horizon(ms, row_id) for ms, row_id in cursor.execute(query).fetchall()]


def _size(shape: TableShape) -> str:
    """SQL for the bytes of a row: its texts in UTF-8, and a number for each other column."""
    texts = [quoted(field.name) for field in shape.schema if pa.types.is_string(field.type)]
    others = COLUMN_BYTES * (len(shape.schema) - len(texts))
    return " + ".join([str(others), *(f"coalesce(strlen({text}), 0)" for text in texts)])

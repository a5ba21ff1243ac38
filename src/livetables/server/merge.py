"""The SQL that makes a generation's tables and views, and applies changes to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import duckdb
import pyarrow as pa

from livetables.change import TableChanges, TableShape
from livetables.errors import SinkError
from livetables.server.viewport import ROW, SQL_TYPES, column_type, quoted


def check_shape(shape: TableShape) -> None:
    """Refuse a table that the store cannot hold."""
    for field in shape.schema:
        try:
            column_type(field.type)
        except KeyError:
            known = ", ".join(SQL_TYPES)
            raise SinkError(
                f"column {field.name} of table {shape.name} is {field.type}, which a table cannot have", f"use {known}"
            ) from None


def create_table(generation: str, shape: TableShape) -> str:
    columns = [f"{ROW} BIGINT"] + [
        f"{quoted(field.name)} {SQL_TYPES[column_type(field.type)]}" for field in shape.schema
    ]
    return f"CREATE TABLE {relation(generation, shape)} ({', '.join(columns)})"


def create_view(name: str, generation: str, shape: TableShape) -> str:
    """The view that lets a stable name mean a generation's table, without the rows' numbers."""
    columns = ", ".join(quoted(column) for column in shape.schema.names)
    return f"CREATE VIEW main.{quoted(name)} AS SELECT {columns} FROM {relation(generation, shape)}"  # noqa: S608


def relation(generation: str, shape: TableShape) -> str:
    """A generation's table, as SQL names it."""
    return f"{quoted(generation)}.{quoted(shape.name)}"


def check_columns(table: str, wanted: pa.Schema, given: pa.Schema) -> None:
    """DuckDB would cast what it can, and some of it wrongly."""
    if dict(zip(wanted.names, wanted.types, strict=True)) != dict(zip(given.names, given.types, strict=True)):
        raise SinkError(
            f"a batch has other columns than its table {table}: {', '.join(map(str, given))}",
            f"send {', '.join(map(str, wanted))}, or begin a new generation",
        )


def apply(
    writer: duckdb.DuckDBPyConnection,
    generation: str,
    shape: TableShape,
    changes: TableChanges,
    next_row: int,
    is_followed: bool,
) -> TableChanges:
    """Delete, then upsert; rows that are new get the numbers from `next_row` on.

    If the table may be followed, the answer is what it took of the changes: one with a version does not take all.
    """
    target = relation(generation, shape)
    if changes.deletes.num_rows:
        writer.register("deletes", changes.deletes)
        writer.execute(f"DELETE FROM {target} t USING deletes s WHERE {_has_key(changes.deletes)}")  # noqa: S608
        writer.unregister("deletes")
    if changes.upserts.num_rows:
        numbers = pa.array(range(next_row, next_row + changes.upserts.num_rows), pa.int64())
        writer.register("upserts", changes.upserts.add_column(0, ROW, numbers))
        upsert = _upsert(shape, target, changes.upserts)
        if shape.version and is_followed:
            columns = ", ".join(quoted(name) for name in shape.schema.names)
            changes = replace(changes, upserts=writer.sql(f"{upsert} RETURNING {columns}").to_arrow_table())
        else:
            writer.execute(upsert)
        writer.unregister("upserts")
    return changes


def _upsert(shape: TableShape, target: str, upserts: pa.Table) -> str:
    columns = [quoted(name) for name in shape.schema.names]
    if shape.appends:
        return f"INSERT INTO {target} SELECT {', '.join([ROW, *columns])} FROM upserts"  # noqa: S608
    updates = ", ".join(f"{column} = s.{column}" for column in columns if column[1:-1] not in shape.key)
    inserts = ", ".join(f"s.{column}" for column in [ROW, *columns])
    condition = f" AND ({_is_newer([quoted(name) for name in shape.version])})" if shape.version else ""
    update = f"WHEN MATCHED{condition} THEN UPDATE SET {updates}" if updates else ""
    return (
        f"MERGE INTO {target} t USING upserts s ON ({_has_key(upserts.select(shape.key))}) "
        f"{update} WHEN NOT MATCHED THEN INSERT VALUES ({inserts})"
    )


def _has_key(keys: pa.Table) -> str:
    """Whether a row of t has the key of a row of s, so that DuckDB looks at few rows: nulls make it look at all."""

    def condition(column: str) -> str:
        match keys[column].null_count:
            case 0:
                return f"t.{quoted(column)} = s.{quoted(column)}"
            case keys.num_rows:
                return f"t.{quoted(column)} IS NULL"
            case _:
                return f"t.{quoted(column)} IS NOT DISTINCT FROM s.{quoted(column)}"

    return " AND ".join(condition(column) for column in keys.column_names)


def _is_newer(version: Sequence[str]) -> str:
    """Whether s is newer than t: the columns compared in order, null before all values."""
    column, *rest = version
    greater = f"(s.{column} > t.{column} OR (t.{column} IS NULL AND s.{column} IS NOT NULL))"
    if not rest:
        return greater
    return f"{greater} OR (s.{column} IS NOT DISTINCT FROM t.{column} AND ({_is_newer(rest)}))"

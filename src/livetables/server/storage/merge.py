"""The SQL that makes a generation's tables and views, and applies changes to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from livetables.model.change import TableChanges, TableShape
from livetables.model.columns import COLUMN_KINDS, kind_of
from livetables.model.errors import SinkError
from livetables.model.joins import JOIN_KINDS
from livetables.server.storage.frames import TableNews
from livetables.server.viewports.row import Row, numbered, table_of
from livetables.server.viewports.viewport import ROW, quoted

FEW = 256  # rows of a view to look for one by one


@dataclass(frozen=True)
class StoredChanges:
    """What a transaction does to a table: rows to delete first, and rows to insert, with their numbers."""

    inserts: pa.Table | None
    deletes: Sequence[Row]
    gone: Sequence[Row]  # those of the deleted rows that do not come back

    def as_changes(self, shape: TableShape) -> TableChanges:
        """As those who follow the table are sent it."""
        upserts = shape.schema.empty_table() if self.inserts is None else self.inserts.drop_columns(ROW)
        keys = table_of(self.gone, shape.schema).select(shape.key).cast(shape.key_schema)
        return TableChanges(shape.name, upserts, keys)


def check_shape(shape: TableShape) -> None:
    """Refuse a table that the store cannot hold."""
    if shape.join is not None and shape.join not in JOIN_KINDS:
        cure = "run the same version of pipeline and server"
        raise SinkError(f"table {shape.name} has the join {ascii(shape.join)[:80]}, which is unknown", cure)
    for field in shape.schema:
        try:
            kind_of(field.type)
        except KeyError:
            known = ", ".join(COLUMN_KINDS)
            raise SinkError(
                f"column {field.name} of table {shape.name} is {field.type}, which a table cannot have", f"use {known}"
            ) from None


def create_table(generation: str, shape: TableShape) -> str:
    columns = [f"{ROW} BIGINT"] + [f"{quoted(field.name)} {kind_of(field.type).sql}" for field in shape.schema]
    return f"CREATE TABLE {relation(generation, shape)} ({', '.join(columns)})"


def create_index(generation: str, shape: TableShape) -> str | None:
    """The index of a view whose rows are replaced one by one, as long as few are at a time."""
    if not shape.changes_rows:
        return None
    column = quoted(shape.key[0])
    return f"CREATE INDEX {quoted(f'{shape.name} by key')} ON {relation(generation, shape)} ({column})"


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
        _replace_zeros(writer, "upserts", target, shape, changes.upserts)
        upsert = _upsert(shape, target, changes.upserts)
        if shape.version and is_followed:
            columns = ", ".join(quoted(name) for name in shape.schema.names)
            changes = replace(changes, upserts=writer.sql(f"{upsert} RETURNING {columns}").to_arrow_table())
        else:
            writer.execute(upsert)
        writer.unregister("upserts")
    return changes


class Given:
    """Arrow data that SQL sees as tables. To register each anew would take as long as to insert a few rows."""

    def __init__(self, writer: duckdb.DuckDBPyConnection) -> None:
        self._writer = writer
        self._held: dict[tuple[str, str, str], _Held] = {}

    def make_room(self, generation: str, shape: TableShape, news: TableNews) -> None:
        """Have a name for everything that will be given. Not in a transaction, with which the names might go."""
        for kind, schema in _given_schemas(shape).items():
            is_given = getattr(news, kind) is not None or (kind == "new" and news.newer is not None)
            if is_given and (generation, shape.name, kind) not in self._held:
                held = self._held[generation, shape.name, kind] = _Held(schema.empty_table())
                self._writer.register(_given_name(generation, shape.name, kind), held)

    def give(self, generation: str, shape: TableShape, kind: str, rows: pa.Table) -> str:
        """The name under which SQL sees the rows, until others are given or `clear` is called."""
        self._held[generation, shape.name, kind].rows = rows
        return quoted(_given_name(generation, shape.name, kind))

    def clear(self) -> None:
        """Release all rows."""
        for held in self._held.values():
            held.clear()

    def forget(self, generation: str) -> None:
        for key in [key for key in self._held if key[0] == generation]:
            self._writer.unregister(_given_name(*key))
            del self._held[key]


class _Held:
    """What DuckDB asks for its rows each time it runs a statement."""

    def __init__(self, empty: pa.Table) -> None:
        self._empty = empty
        self.rows = empty

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)

    def clear(self) -> None:
        self.rows = self._empty


def bring(
    writer: duckdb.DuckDBPyConnection,
    given: Given,
    generation: str,
    shape: TableShape,
    news: TableNews,
    next_row: int,
    is_followed: bool,
) -> TableChanges:
    """Delete, update and insert; rows that are new get the numbers from `next_row` on.

    The answer is what the table took; of updates that nobody may follow, all that it was given.
    """
    target = relation(generation, shape)
    columns = ", ".join(quoted(name) for name in shape.schema.names)
    taken: list[pa.Table] = []
    inserts: list[pa.Table] = []  # with their numbers
    gone = shape.key_schema.empty_table()
    if news.gone is not None:
        delete = _delete_few if news.gone.num_rows <= FEW else _delete_many
        gone = delete(writer, given.give(generation, shape, "gone", news.gone), target, shape, news.gone)
    if news.newer is not None:
        if news.newer.num_rows <= FEW:
            replaced = _replaced_few(writer, target, shape, news.newer)
            inserts.append(replaced)
            taken.append(replaced.drop_columns(ROW))
        else:
            name = given.give(generation, shape, "newer", news.newer)
            taken.append(_update_many(writer, name, target, shape, news.newer, is_followed))
    if news.perhaps is not None:
        name = given.give(generation, shape, "perhaps", numbered(news.perhaps, next_row))
        next_row += news.perhaps.num_rows
        insert = (
            f"INSERT INTO {target} SELECT {ROW}, {columns} FROM {name} s "  # noqa: S608
            f"WHERE NOT EXISTS (SELECT 1 FROM {target} t WHERE {_has_key(news.perhaps.select(shape.key))})"
        )
        taken.append(writer.sql(f"{insert} RETURNING {columns}").to_arrow_table())
    if news.new is not None:
        inserts.append(numbered(news.new, next_row))
        taken.append(news.new)
    if rows := [each for each in inserts if each.num_rows]:
        name = given.give(generation, shape, "new", rows[0] if len(rows) == 1 else pa.concat_tables(rows))
        writer.execute(f"INSERT INTO {target} SELECT {ROW}, {columns} FROM {name}")  # noqa: S608
    upserts = taken[0] if len(taken) == 1 else pa.concat_tables([shape.schema.empty_table(), *taken])
    return TableChanges(shape.name, upserts, gone)


def store(
    writer: duckdb.DuckDBPyConnection, given: Given, generation: str, shape: TableShape, changes: StoredChanges
) -> None:
    """Delete and insert rows whose numbers are known. All rows with a deleted row's id go: there are no others."""
    target = relation(generation, shape)
    if changes.deletes:
        place = shape.schema.names.index(shape.key[0])
        ids = ", ".join(str(row.values[place]) for row in changes.deletes)
        writer.execute(f"DELETE FROM {target} WHERE {quoted(shape.key[0])} IN ({ids})")  # noqa: S608
    if changes.inserts is not None:
        columns = ", ".join(quoted(name) for name in (ROW, *shape.schema.names))
        name = given.give(generation, shape, "new", changes.inserts)
        writer.execute(f"INSERT INTO {target} SELECT {columns} FROM {name}")  # noqa: S608


# Few rows are found by the index, which DuckDB uses only for `column IN (…)` and nothing else beside it. They are
# deleted and inserted: to update one in place copies all columns of the 2,048 rows around it, and a checkpoint then
# writes them all again. Many rows are joined: one scan finds them all.


def _delete_few(
    writer: duckdb.DuckDBPyConnection, name: str, target: str, shape: TableShape, keys: pa.Table
) -> pa.Table:
    """Delete the rows without a match; return the keys of those that were there."""
    own, other = (quoted(column) for column in shape.key)
    ids = ", ".join(map(str, keys[shape.key[0]].to_pylist()))
    query = f"SELECT {own}, {other} IS NULL FROM {target} WHERE {own} IN ({ids})"  # noqa: S608
    found = writer.execute(query).fetchall()
    alone = {own_id for own_id, is_alone in found if is_alone}
    if not alone:
        return shape.key_schema.empty_table()
    if any(own_id in alone and not is_alone for own_id, is_alone in found):
        return _delete_many(writer, name, target, shape, keys)
    writer.execute(f"DELETE FROM {target} WHERE {own} IN ({', '.join(map(str, alone))})")  # noqa: S608
    return pa.table([pa.array(sorted(alone)), pa.nulls(len(alone), pa.int64())], schema=shape.key_schema)


def _delete_many(
    writer: duckdb.DuckDBPyConnection, name: str, target: str, shape: TableShape, keys: pa.Table
) -> pa.Table:
    """Delete the rows with these keys; return the keys of those that were there."""
    columns = ", ".join(f"t.{quoted(column)}" for column in shape.key)
    delete = f"DELETE FROM {target} t USING {name} s WHERE {_has_key(keys)} RETURNING {columns}"  # noqa: S608
    return writer.sql(delete).to_arrow_table().cast(shape.key_schema)


def _replaced_few(writer: duckdb.DuckDBPyConnection, target: str, shape: TableShape, newer: pa.Table) -> pa.Table:
    """Delete the rows that these replace; the answer is those that do, with the numbers of the deleted ones."""
    (key,) = shape.key
    ids = newer[key].to_pylist()
    columns = ", ".join(quoted(name) for name in (ROW, key, *shape.version))
    query = f"SELECT {columns} FROM {target} WHERE {quoted(key)} IN ({', '.join(map(str, ids))})"  # noqa: S608
    found = writer.sql(query).to_arrow_table()
    before = dict(
        zip(found[key].to_pylist(), zip(found[ROW].to_pylist(), _versions(shape, found), strict=True), strict=True)
    )
    winners = [
        place
        for place, (own_id, version) in enumerate(zip(ids, _versions(shape, newer), strict=True))
        if own_id in before and version > before[own_id][1]
    ]
    if winners:
        gone = ", ".join(str(ids[place]) for place in winners)
        writer.execute(f"DELETE FROM {target} WHERE {quoted(key)} IN ({gone})")  # noqa: S608
    numbers = pa.array([before[ids[place]][0] for place in winners], pa.int64())
    rows = newer if len(winners) == newer.num_rows else newer.take(pa.array(winners, pa.int64()))
    return rows.add_column(0, ROW, numbers)


def _versions(shape: TableShape, rows: pa.Table) -> list[list[tuple[bool, Any]]]:
    """What to compare rows by: null before all values."""
    columns = [[(value is not None, value) for value in rows[name].to_pylist()] for name in shape.version]
    return [list(version) for version in zip(*columns, strict=True)]


def _update_many(
    writer: duckdb.DuckDBPyConnection,
    name: str,
    target: str,
    shape: TableShape,
    newer: pa.Table,
    is_followed: bool,
) -> pa.Table:
    """Update the rows that these are newer than; the answer is those, or all of them if nobody may follow."""
    _replace_zeros(writer, name, target, shape, newer)
    updates = ", ".join(f"{quoted(each)} = s.{quoted(each)}" for each in shape.schema.names if each not in shape.key)
    has_key = _has_key(newer.select(shape.key))
    is_newer = _is_newer([quoted(each) for each in shape.version])
    count = _changed(writer, f"UPDATE {target} t SET {updates} FROM {name} s WHERE {has_key} AND ({is_newer})")  # noqa: S608
    if count == newer.num_rows or not is_followed:
        return newer
    same = " AND ".join(f"t.{quoted(each)} IS NOT DISTINCT FROM s.{quoted(each)}" for each in shape.version)
    found = ", ".join(f"t.{quoted(each)}" for each in shape.schema.names)
    return writer.sql(f"SELECT {found} FROM {target} t, {name} s WHERE {has_key} AND {same}").to_arrow_table()  # noqa: S608


def _replace_zeros(
    writer: duckdb.DuckDBPyConnection, name: str, target: str, shape: TableShape, newer: pa.Table
) -> None:
    """Make another number of each zero that an update then makes a zero of the other sign.

    DuckDB leaves a value as it is if the new one is equal, and 0.0 is equal to -0.0. There may be one below a null too.
    """
    if shape.appends:
        return
    for field in shape.schema:
        if field.name in shape.key or not pa.types.is_floating(field.type) or not _has_zero(newer[field.name]):
            continue
        column = quoted(field.name)
        is_newer = _is_newer([quoted(each) for each in shape.version]) if shape.version else "true"
        writer.execute(
            f"UPDATE {target} t SET {column} = 1 FROM {name} s WHERE {_has_key(newer.select(shape.key))} "  # noqa: S608
            f"AND ({is_newer}) AND s.{column} = 0 "
            f"AND (t.{column} IS NULL OR (t.{column} = 0 AND signbit(t.{column}) <> signbit(s.{column})))"
        )


def _has_zero(column: pa.ChunkedArray) -> bool:
    return bool(pc.any(pc.equal(column, 0.0)).as_py())


def _changed(writer: duckdb.DuckDBPyConnection, statement: str) -> int:
    """How many rows a statement changed."""
    ((count,),) = writer.execute(statement).fetchall()
    return int(count)


def _given_schemas(shape: TableShape) -> dict[str, pa.Schema]:
    numbered = shape.schema.insert(0, pa.field(ROW, pa.int64()))
    return {"new": numbered, "perhaps": numbered, "newer": shape.schema, "gone": shape.key_schema}


def _given_name(generation: str, table: str, kind: str) -> str:
    return f"{generation} {table} {kind}"


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

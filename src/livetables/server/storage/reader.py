"""Rows for readers: windows, scans and SQL over the stable names, each as the tables are at one time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from livetables.model.change import TableShape
from livetables.model.errors import RequestError
from livetables.model.spec import DEAD_LETTERS, record_id
from livetables.server.storage.catalogue import Catalogue
from livetables.server.storage.database import Database
from livetables.server.storage.generation import Generation, StoredTable
from livetables.server.storage.horizons import gone_condition
from livetables.server.storage.merge import relation
from livetables.server.storage.planner import Planner
from livetables.server.storage.query import Running, chunks_of, in_time, reporting_shortage
from livetables.server.viewports.masking import hidden_columns, masked_relation
from livetables.server.viewports.viewport import (
    ROW,
    Query,
    Selection,
    ViewOptions,
    Window,
    chosen_columns,
    quoted,
    scan_query,
    window_query,
)
from livetables.server.viewports.window import KEPT_BYTES_MAX, kept_range

WINDOW_BYTES_MAX = 16 * 1024 * 1024  # of the texts in a window that is read once
ROWS_PER_CHUNK = 2_048  # as many as DuckDB makes at once; more together are not faster
WIDE_ROWS_PER_CHUNK = 64
SQL_SECONDS_MAX = 10.0
SQL_AT_ONCE = 2
SQL_WAIT_SECONDS = 5.0
SQL_ROWS_PER_CHUNK = 512  # its cells may be far larger than a table's

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Kept:
    """The rows that a viewport keeps, as they are after the commit `sequence`: from position `start` on, of `total`."""

    table: StoredTable
    sequence: int
    start: int
    rows: pa.Table  # their numbers first
    total: int


class TableReader:
    """Reads tables, on any thread."""

    def __init__(self, database: Database, catalogue: Catalogue, planner: Planner) -> None:
        self._database = database
        self._catalogue = catalogue
        self._planner = planner
        self._sql_slots = threading.BoundedSemaphore(SQL_AT_ONCE)

    def window(self, name: str, options: ViewOptions) -> tuple[StoredTable, Window]:
        """The rows that a viewport shows, all of them, and the table that they are from.

        A RequestError says that they are too large together.
        """

        def read(cursor: duckdb.DuckDBPyConnection, table: StoredTable) -> tuple[StoredTable, Window]:
            rows, total = _window_rows(cursor, table, options, WINDOW_BYTES_MAX)
            if rows.num_rows < min(options.size, total - options.offset):
                raise RequestError(
                    "limit",
                    f"{options.size:,} rows have more than {WINDOW_BYTES_MAX // 1024**2} MiB of text here",
                    f"ask for at most {rows.num_rows:,} at a time, for fewer columns, or for the whole table as CSV "
                    "or Arrow",
                )
            return table, Window(tuple(rows[ROW].to_pylist()), rows.drop_columns(ROW), total)

        with reporting_shortage():
            return self._database.before_queries(lambda: self._read(name, read))

    def kept(self, name: str, options: ViewOptions, seconds_max: float) -> Kept:
        """The rows that a viewport keeps, with all their columns; a TimeoutError if that takes too long."""

        def read(cursor: duckdb.DuckDBPyConnection, table: StoredTable) -> Kept:
            chosen_columns(table.shape.schema, options)
            start, size = kept_range(options)
            if table.is_wide:  # there is no room for rows above the view
                start, size = options.offset, size - (options.offset - start)
            wider = options.model_copy(update={"columns": None, "offset": start, "size": size})
            ((sequence,),) = cursor.execute(
                "SELECT sequence FROM livetables.generations WHERE name = ?", [table.generation]
            ).fetchall()
            rows, total = _window_rows(cursor, table, wider, KEPT_BYTES_MAX if table.is_wide else None)
            return Kept(table, sequence, start, rows, total)

        with reporting_shortage():
            return self._database.before_queries(lambda: self._read(name, in_time(read, seconds_max)))

    def row_counts(self) -> dict[str, dict[str, int]]:
        """The rows of every table, by generation and table, as they are at one time."""
        with self._database.snapshot() as cursor:
            counts: dict[str, dict[str, int]] = {}
            for generation, name in cursor.execute("SELECT generation, name FROM livetables.tables").fetchall():
                counts.setdefault(generation, {})[name] = _count(cursor, f"{quoted(generation)}.{quoted(name)}")
            return counts

    @contextmanager
    def scan(self, name: str, selection: Selection) -> Iterator[pa.RecordBatchReader]:
        """All rows of a selection, in chunks, as they are at one time."""
        with self.snapshot_of(name) as (cursor, table):
            reader = scanned(cursor, table, selection, masked=selection.masked)
            yield pa.RecordBatchReader.from_batches(reader.schema, chunks_of(reader))

    @contextmanager
    def sql(
        self, text: str, seconds_max: float = SQL_SECONDS_MAX, *, masked: bool = False
    ) -> Iterator[pa.RecordBatchReader]:
        """The answer to one SELECT over the stable names. It can read tables and nothing else, for a limited time.

        The time begins when it is planned, and is for all of the rest, reading the answer to its end included. Errors
        are RequestErrors, those of the reader too.
        """
        if not self._sql_slots.acquire(timeout=SQL_WAIT_SECONDS):
            raise RequestError("busy", f"{SQL_AT_ONCE} queries are running already", "send it again later")
        try:
            others = self._database.queries
            with self._planned(text, masked=masked) as cursor, Running(cursor, seconds_max).among(others) as running:
                with running.reporting_errors():
                    reader = cursor.sql(text).to_arrow_reader(SQL_ROWS_PER_CHUNK)
                yield pa.RecordBatchReader.from_batches(reader.schema, running.chunks(reader))
        finally:
            self._sql_slots.release()

    @contextmanager
    def _planned(self, text: str, *, masked: bool) -> Iterator[duckdb.DuckDBPyConnection]:
        """A snapshot for a query that is allowed and was planned, over the tables that it has.

        It is taken when that is known: a snapshot is held by nothing that may take long.
        """
        while True:
            tables = self._catalogue.tables()
            hidden = [name for name, table in tables.items() if hidden_columns(table.shape, masked=masked)]
            self._planner.check(text, tables, hidden)
            with self._database.snapshot() as cursor:
                if _shapes(self._catalogue.tables()) == _shapes(tables):
                    yield cursor
                    return

    def dead_letter_summary(self, generation: str) -> dict[str, tuple[int, str]]:
        """How many dead letters each table has, and the reason of its first one, in a generation."""
        table = self._catalogue.begun(generation).tables.get(DEAD_LETTERS)
        if table is None:
            return {}
        with self._database.snapshot() as cursor:
            query = f"SELECT source, count(*), arg_min(reason, {ROW}) FROM {table.relation} GROUP BY ALL"  # noqa: S608
            return {source: (rows, reason) for source, rows, reason in cursor.execute(query).fetchall()}

    def lost_records(
        self, generation: str, successor: str, ends: Mapping[str, Mapping[int, int] | None]
    ) -> dict[str, int]:
        """How many records of each topic a generation has as rows and its successor has not.

        Only tables that are of the same topic in both count, and of those in `ends` only records before these offsets,
        by partition: what comes after may be on its way to the successor. What that is not to keep is not lost.
        """
        before, after = self._catalogue.begun(generation), self._catalogue.begun(successor)
        lost: Counter[str] = Counter()
        with self._database.snapshot() as cursor:
            for name, table in before.tables.items():
                topic, other = table.shape.topic, after.tables.get(name)
                if topic is None or other is None or other.shape.topic != topic:
                    continue
                query = lost_query(table.relation, other.relation, ends.get(name))
                parameters: list[object] = []
                for source in after.horizons.keys() & set(other.shape.sources):
                    is_gone, parameters = gone_condition(other.shape, 0, after.horizons[source])
                    query += f" AND NOT {is_gone}"
                ((records,),) = cursor.execute(query, parameters).fetchall()
                lost[topic] += records
        return {topic: records for topic, records in lost.items() if records}

    def rows_by_id(self, generation: Generation, shape: TableShape, column: str, ids: Sequence[int]) -> pa.Table:
        """The stored rows of a table that have these ids in a column, with their numbers."""
        columns = ", ".join(quoted(name) for name in (ROW, *shape.schema.names))
        condition = f"{quoted(column)} IN ({', '.join(map(str, ids))})"  # as the index finds them
        query = f"SELECT {columns} FROM {relation(generation.name, shape)} WHERE {condition}"  # noqa: S608
        with self._database.snapshot() as cursor:
            return cursor.sql(query).to_arrow_table()

    @contextmanager
    def snapshot_of(self, name: str) -> Iterator[tuple[duckdb.DuckDBPyConnection, StoredTable]]:
        """A snapshot in which the table is complete: its generation was published before, and is so still.

        The table's own facts are read after it, so that `next_row` is not less than in the snapshot.
        """
        while True:
            before = self._catalogue.table(name)
            with self._database.snapshot() as cursor:
                table = self._catalogue.table(name)
                if table.generation == before.generation:
                    yield cursor, table
                    return

    def _read(self, name: str, read: Callable[[duckdb.DuckDBPyConnection, StoredTable], Answer]) -> Answer:
        with self.snapshot_of(name) as (cursor, table):
            return read(cursor, table)


def scanned(
    cursor: duckdb.DuckDBPyConnection, table: StoredTable, selection: Selection, *, masked: bool
) -> pa.RecordBatchReader:
    """All rows of a selection, in chunks."""
    query = scan_query(_readable(table, masked=masked), table.shape.schema, selection)
    with reporting_shortage():
        return _relation(cursor, query).to_arrow_reader(WIDE_ROWS_PER_CHUNK if table.is_wide else ROWS_PER_CHUNK)


def _shapes(tables: Mapping[str, StoredTable]) -> Mapping[str, tuple[str, TableShape]]:
    """What tables are, without what is in them."""
    return {name: (table.generation, table.shape) for name, table in tables.items()}


def _window_rows(
    cursor: duckdb.DuckDBPyConnection, table: StoredTable, options: ViewOptions, bytes_max: int | None = None
) -> tuple[pa.Table, int]:
    """The rows of a window, their numbers first, and how many there are in all."""
    total = _count(cursor, table.relation)
    query = window_query(
        _readable(table, masked=options.masked), table.shape.schema, options, total, table.next_row, bytes_max
    )
    rows = _relation(cursor, query).to_arrow_table()
    if options.is_filtered:
        total = rows["_total"][0].as_py()
        rows = rows.drop_columns("_total").filter(pc.is_valid(rows[ROW]))
    return rows, total


def _readable(table: StoredTable, *, masked: bool) -> str:
    """What to read a table's rows from."""
    return masked_relation(table.relation, hidden_columns(table.shape, masked=masked))


def _relation(cursor: duckdb.DuckDBPyConnection, query: Query) -> duckdb.DuckDBPyRelation:
    return cursor.sql(query.sql, params=list(query.parameters))


def _count(cursor: duckdb.DuckDBPyConnection, relation: str) -> int:
    ((rows,),) = cursor.execute(f"SELECT count(*) FROM {relation}").fetchall()  # noqa: S608
    return int(rows)


def lost_query(before: str, after: str, ends: Mapping[int, int] | None) -> str:
    """SQL that counts the records in one relation that are not in another.

    A topic that was created again has other records at the same offsets: they differ in their times.
    """
    ranges = " OR ".join(
        f"lost._id BETWEEN {record_id(partition, 0)} AND {record_id(partition, end) - 1}"
        for partition, end in (ends or {}).items()
    )
    bound = "true" if ends is None else ranges or "false"
    return (
        f"SELECT count(*) FROM {before} AS lost WHERE ({bound}) AND NOT EXISTS "  # noqa: S608
        f"(FROM {after} AS there WHERE there._id = lost._id AND there.ts IS NOT DISTINCT FROM lost.ts)"
    )

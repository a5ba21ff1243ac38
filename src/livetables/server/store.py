"""The tables, in DuckDB: a batch is applied whole or not at all, and readers never see two generations mixed.

Each generation has a schema of its own in the database, with a table for each of its shapes. The stable names are views
in the schema `main`, all replaced in the transaction that publishes a generation. What the server must know after a
crash is in the schema `livetables`, written in the transactions that it describes.

One thread writes at a time; any number read, each on a cursor of its own, and neither waits for the other. All share
one limit of memory: when there is none left for a batch or a viewport, the clients' SQL has to go.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from livetables.change import Batch, TableChanges, TableShape
from livetables.errors import RequestError, SetupError, SinkError
from livetables.server.sql import check_sql
from livetables.server.viewport import (
    ROW,
    SQL_TYPES,
    Query,
    Selection,
    ViewOptions,
    Window,
    column_type,
    quoted,
    scan_query,
    window_query,
)
from livetables.settings import choice
from livetables.wire import decode_shape, encode_shape

LAYOUT_VERSION = 1
ROWS_PER_CHUNK = 65_536
SQL_SECONDS_MAX = 10.0
SQL_AT_ONCE = 2
SQL_WAIT_SECONDS = 5.0
SQL_COLUMNS_MAX = 500
SQL_ROWS_PER_CHUNK = 8_192  # its cells may be far larger than a table's
INTERRUPT_SECONDS = 0.1
GIVE_WAY_SECONDS = 2.0
UNKNOWN_FIELDS_MAX = 1_000  # records may have any number of them
OTHER_FIELDS = "(others)"

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class StoredTable:
    """A table of a generation as it is now. `next_row` may already count rows of a batch that is being applied."""

    generation: str
    shape: TableShape
    next_row: int = 0
    newest: datetime | None = None  # the latest event time in it

    @property
    def relation(self) -> str:
        return f"{quoted(self.generation)}.{quoted(self.shape.name)}"


@dataclass(frozen=True)
class Generation:
    """A generation in the store. Its batches 0 to `last_batch_id` are in its tables."""

    name: str
    tables: Mapping[str, StoredTable]
    begun: datetime
    last_batch_id: int | None = None
    published: datetime | None = None  # when it took over the stable names, while it has them


@dataclass(frozen=True)
class Changed:
    """What a commit changed: the stable names whose rows are others now."""

    names: frozenset[str]
    rebound: bool = False


class Store:
    """All generations, in a file, or in memory when no path is given."""

    def __init__(self, path: Path | None, *, memory_megabytes: int = 1024) -> None:
        self.path = path
        self.unknown_fields: dict[tuple[str, str], int] = {}
        self._listeners: list[Callable[[Changed], None]] = []
        self._writing = threading.RLock()
        self._idle: deque[duckdb.DuckDBPyConnection] = deque()
        self._sql_slots = threading.BoundedSemaphore(SQL_AT_ONCE)
        self._running: set[_Running] = set()
        self._is_closed = False
        self._database = _open(path, memory_megabytes)
        self._writer = self._database.cursor()
        try:
            self._generations: Mapping[str, Generation] = MappingProxyType(self._recovered())
        except (duckdb.Error, SetupError, ValueError, KeyError) as error:
            self.close()
            raise SetupError(
                f"the store {path} was not written by this version of livetables: {_first_line(error)}",
                "set server.store to a new file; the tables are built again from Kafka",
            ) from None
        self._names: Mapping[str, tuple[str, str]] = self._published_names()

    def close(self) -> None:
        """Let go of the file. Readers that are under way finish first, as far as they hold it."""
        with self._writing:
            self._is_closed = True
            self._writer.close()
            while self._idle:
                self._idle.pop().close()
            self._database.close()

    def listen(self, listener: Callable[[Changed], None]) -> None:
        """Have the listener called after each commit that readers can see, on the thread that committed."""
        self._listeners.append(listener)

    # The pipeline's side

    def begin(self, generation: str, shapes: Sequence[TableShape]) -> None:
        """Make room for a generation. Beginning one again with the same shapes keeps what it has."""
        with self._writing:
            known = self._generations.get(generation)
            if known:
                if [table.shape for table in known.tables.values()] != list(shapes):
                    raise SinkError(
                        f"generation {generation} has other tables already", "begin a generation under a new name"
                    )
                return
            begun = datetime.now(UTC)
            with self._transaction() as run:
                run(f"CREATE SCHEMA {quoted(generation)}")
                run("INSERT INTO livetables.generations VALUES (?, ?, NULL, NULL)", [generation, begun])
                for shape in shapes:
                    run(_create_table(generation, shape))
                    run(
                        "INSERT INTO livetables.tables VALUES (?, ?, ?, 0, NULL)",
                        [generation, shape.name, encode_shape(shape)],
                    )
            tables = {shape.name: StoredTable(generation, shape) for shape in shapes}
            self._remember(Generation(generation, tables, begun))

    def put(self, batch: Batch) -> bool:
        """Apply a batch whole, durably, once; tell whether it was new. One that came before changes nothing."""
        with self._writing:
            generation = self._begun(batch.generation)
            expected = 0 if generation.last_batch_id is None else generation.last_batch_id + 1
            if batch.batch_id < expected:
                return False
            if batch.batch_id > expected:
                raise SinkError(
                    f"batch {batch.batch_id} of generation {batch.generation} came where {expected} was due",
                    "build a new generation: the server does not hold what this checkpoint counts as delivered",
                )
            tables = _advanced(generation, batch)
            # Readers that see the new rows must not see the old `next_row`, see StoredTable.
            self._remember(replace(generation, tables=tables))
            try:
                self._before_sql(lambda: self._commit(generation, tables, batch))
            except BaseException:
                self._remember(generation)
                raise
            self._remember(replace(generation, tables=tables, last_batch_id=batch.batch_id))
            self._count_unknown_fields(batch)
            changed = {changes.table for changes in batch.changes}
            names = self._names
        self._tell(
            Changed(frozenset(n for n, (g, table) in names.items() if g == batch.generation and table in changed))
        )
        return True

    def publish(self, generation: str) -> None:
        """Let the stable names mean this generation's tables, all in one step.

        It takes the place of every published generation that it shares a name with; what shares none stays.
        """
        with self._writing:
            taking = self._begun(generation)
            if taking.published:
                return
            names = _stable_names(taking)
            leaving = {other for name, (other, _) in self._names.items() if name in names}
            now = datetime.now(UTC)
            with self._transaction() as run:
                for name in [name for name, (other, _) in self._names.items() if other in leaving]:
                    run(f"DROP VIEW main.{quoted(name)}")
                for name, table in names.items():
                    run(_create_view(name, taking.tables[table]))
                run("UPDATE livetables.generations SET published = NULL WHERE list_contains(?, name)", [list(leaving)])
                run("UPDATE livetables.generations SET published = ? WHERE name = ?", [now, generation])
            for other in leaving:
                self._remember(replace(self._generations[other], published=None))
            self._remember(replace(taking, published=now))
            before, self._names = self._names, self._published_names()
            changed = frozenset(names) | {name for name, (other, _) in before.items() if other in leaving}
        self._tell(Changed(changed, rebound=True))

    def drop(self, generation: str) -> None:
        """Forget a generation and free its space. Dropping one that is not there changes nothing."""
        with self._writing:
            if generation not in self._generations:
                return
            names = [name for name, (other, _) in self._names.items() if other == generation]
            with self._transaction() as run:
                for name in names:
                    run(f"DROP VIEW main.{quoted(name)}")
                run(f"DROP SCHEMA {quoted(generation)} CASCADE")
                run("DELETE FROM livetables.tables WHERE generation = ?", [generation])
                run("DELETE FROM livetables.generations WHERE name = ?", [generation])
            self._generations = MappingProxyType(
                {name: each for name, each in self._generations.items() if name != generation}
            )
            self._names = self._published_names()
            self._checkpoint()
        self._tell(Changed(frozenset(names), rebound=True))

    # The readers' side

    def generations(self) -> Mapping[str, Generation]:
        return self._generations

    def tables(self) -> dict[str, StoredTable]:
        """The tables that readers can name, aliases included."""
        generations, names = self._generations, self._names
        return {name: generations[generation].tables[table] for name, (generation, table) in names.items()}

    def table(self, name: str) -> StoredTable:
        tables = self.tables()
        if name not in tables:
            cure = choice(name, tables) if tables else "wait until a generation is published; /readyz tells when"
            raise RequestError("unknown_table", f"there is no table {ascii(name)[:80]}", cure)
        return tables[name]

    def window(self, name: str, options: ViewOptions) -> tuple[StoredTable, Window]:
        """The rows that a viewport shows, and the table that they are from."""

        def read(cursor: duckdb.DuckDBPyConnection, table: StoredTable) -> tuple[StoredTable, Window]:
            total = _count(cursor, table.relation)
            query = window_query(table.relation, table.shape.schema, options, total, table.next_row)
            rows = _relation(cursor, query).to_arrow_table()
            if options.is_filtered:
                total = rows["_total"][0].as_py()
                rows = rows.drop_columns("_total").filter(pc.is_valid(rows[ROW]))
            return table, Window(tuple(rows[ROW].to_pylist()), rows.drop_columns(ROW), total)

        with _told_shortage():
            return self._before_sql(lambda: self._read(name, read))

    def row_counts(self) -> dict[str, dict[str, int]]:
        """The rows of every table, by generation and table, as they are at one time."""
        with self._snapshot() as cursor:
            counts: dict[str, dict[str, int]] = {}
            for generation, name in cursor.execute("SELECT generation, name FROM livetables.tables").fetchall():
                counts.setdefault(generation, {})[name] = _count(cursor, f"{quoted(generation)}.{quoted(name)}")
            return counts

    @contextmanager
    def scan(self, name: str, selection: Selection) -> Iterator[pa.RecordBatchReader]:
        """All rows of a selection, in chunks, as they are at one time."""
        with self._snapshot_of(name) as (cursor, table):
            query = scan_query(table.relation, table.shape.schema, selection)
            with _told_shortage():
                reader = _relation(cursor, query).to_arrow_reader(ROWS_PER_CHUNK)
            yield pa.RecordBatchReader.from_batches(reader.schema, _chunks(reader))

    @contextmanager
    def sql(self, text: str, seconds_max: float = SQL_SECONDS_MAX) -> Iterator[pa.RecordBatchReader]:
        """The answer to one SELECT over the stable names. It can read tables and nothing else, for a limited time.

        The time is for the whole of it, reading the answer to its end included. Errors are RequestErrors, those of the
        reader too.
        """
        if not self._sql_slots.acquire(timeout=SQL_WAIT_SECONDS):
            raise RequestError("busy", f"{SQL_AT_ONCE} queries are running already", "send it again later")
        try:
            with self._snapshot() as cursor, _Running(cursor, seconds_max).among(self._running) as running:
                with running.told_errors():
                    check_sql(cursor, text, self.tables())
                    relation = cursor.sql(text)
                    if len(relation.columns) > SQL_COLUMNS_MAX:
                        raise RequestError(
                            "limit", "the answer has too many columns", f"select at most {SQL_COLUMNS_MAX}"
                        )
                    reader = relation.to_arrow_reader(SQL_ROWS_PER_CHUNK)
                yield pa.RecordBatchReader.from_batches(reader.schema, running.chunks(reader))
        finally:
            self._sql_slots.release()

    def _read(self, name: str, read: Callable[[duckdb.DuckDBPyConnection, StoredTable], Answer]) -> Answer:
        with self._snapshot_of(name) as (cursor, table):
            return read(cursor, table)

    @contextmanager
    def _snapshot_of(self, name: str) -> Iterator[tuple[duckdb.DuckDBPyConnection, StoredTable]]:
        """A snapshot in which the table is complete: its generation was published before, and is so still.

        The table's own facts are read after it, so that `next_row` is not less than in the snapshot.
        """
        while True:
            before = self.table(name)
            with self._snapshot() as cursor:
                table = self.table(name)
                if table.generation == before.generation:
                    yield cursor, table
                    return

    @contextmanager
    def _snapshot(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor on which the database stays as it is now."""
        cursor = self._cursor()
        try:
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            yield cursor
        finally:
            with suppress(duckdb.Error):  # an error may have ended the transaction already
                cursor.rollback()
                self._idle.append(cursor)  # not one with an open result, which a reader left early leaves behind
            if self._is_closed:
                cursor.close()

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            return self._database.cursor()
        except duckdb.ConnectionException:
            raise RequestError("unavailable", "the server is stopping", "connect again when it is back") from None

    def _before_sql(self, act: Callable[[], Answer]) -> Answer:
        """Act; where memory runs out, once more, after the clients' SQL has been stopped."""
        try:
            return act()
        except duckdb.OutOfMemoryException:
            running = tuple(self._running)
            if not running:
                raise
            for each in running:
                each.give_way()
            return act()

    # Writing

    @contextmanager
    def _transaction(self) -> Iterator[Callable[..., object]]:
        self._writer.begin()
        try:
            yield self._writer.execute
            self._writer.commit()
        except BaseException:
            with suppress(duckdb.Error):  # a commit that failed has ended the transaction
                self._writer.rollback()
            raise

    def _commit(self, generation: Generation, tables: Mapping[str, StoredTable], batch: Batch) -> None:
        with self._transaction() as run:
            for changes in batch.changes:
                _apply(self._writer, generation.tables[changes.table], changes)
                table = tables[changes.table]
                run(
                    "UPDATE livetables.tables SET next_row = ?, newest = ? WHERE generation = ? AND name = ?",
                    [table.next_row, table.newest, generation.name, changes.table],
                )
            run("UPDATE livetables.generations SET last_batch_id = ? WHERE name = ?", [batch.batch_id, generation.name])

    def _count_unknown_fields(self, batch: Batch) -> None:
        for table, fields in batch.unknown_fields.items():
            for field, records in fields.items():
                is_known = (table, field) in self.unknown_fields or len(self.unknown_fields) < UNKNOWN_FIELDS_MAX
                key = (table, field if is_known else OTHER_FIELDS)
                self.unknown_fields[key] = self.unknown_fields.get(key, 0) + records

    def _checkpoint(self) -> None:
        """Give the space of what was dropped back, unless somebody reads just now: then the next one does."""
        with suppress(duckdb.TransactionException):
            self._writer.execute("CHECKPOINT")

    def _begun(self, generation: str) -> Generation:
        if generation not in self._generations:
            raise SinkError(f"generation {generation} was not begun", "call begin before put or publish")
        return self._generations[generation]

    def _remember(self, generation: Generation) -> None:
        self._generations = MappingProxyType({**self._generations, generation.name: generation})

    def _published_names(self) -> Mapping[str, tuple[str, str]]:
        return MappingProxyType(
            {
                name: (generation.name, table)
                for generation in self._generations.values()
                if generation.published
                for name, table in _stable_names(generation).items()
            }
        )

    def _tell(self, changed: Changed) -> None:
        if changed.names:
            for listener in self._listeners:
                listener(changed)

    def _recovered(self) -> dict[str, Generation]:
        """What the database holds, made ready for its first use."""
        run = self._writer.execute
        run("CREATE SCHEMA IF NOT EXISTS livetables")
        run("CREATE TABLE IF NOT EXISTS livetables.layout (version BIGINT)")
        run(
            "CREATE TABLE IF NOT EXISTS livetables.generations "
            "(name VARCHAR, begun TIMESTAMPTZ, last_batch_id BIGINT, published TIMESTAMPTZ)"
        )
        run(
            "CREATE TABLE IF NOT EXISTS livetables.tables "
            "(generation VARCHAR, name VARCHAR, shape BLOB, next_row BIGINT, newest TIMESTAMPTZ)"
        )
        versions = [version for (version,) in run("SELECT version FROM livetables.layout").fetchall()]
        if versions not in ([], [LAYOUT_VERSION]):
            raise SetupError(f"its layout is {versions}, not {LAYOUT_VERSION}", "use the version that wrote it")
        if not versions:
            run("INSERT INTO livetables.layout VALUES (?)", [LAYOUT_VERSION])
        tables: dict[str, dict[str, StoredTable]] = {}
        for generation, name, shape, next_row, newest in run("SELECT * FROM livetables.tables").fetchall():
            stored = StoredTable(generation, decode_shape(shape), next_row, newest)
            tables.setdefault(generation, {})[name] = stored
        return {
            name: Generation(name, tables.get(name, {}), begun, last_batch_id, published)
            for name, begun, last_batch_id, published in run("SELECT * FROM livetables.generations").fetchall()
        }


class _Running:
    """A client's query under way: stopped when its time is up, or when its memory is needed."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, seconds_max: float) -> None:
        self._cursor = cursor
        self._seconds_max = seconds_max
        self._is_needed = threading.Event()  # its memory, or the clock no more
        self._ended = threading.Event()
        self._is_overdue = False

    @contextmanager
    def among(self, others: set[_Running]) -> Iterator[_Running]:
        """Run, known to others, until the end of the block."""
        clock = threading.Thread(target=self._stop_in_time, name="livetables-sql-clock", daemon=True)
        others.add(self)
        clock.start()
        try:
            yield self
        finally:
            others.discard(self)
            self._ended.set()
            self._is_needed.set()
            clock.join()

    def give_way(self) -> None:
        """Stop, and wait a while for the end of it."""
        self._is_needed.set()
        self._ended.wait(GIVE_WAY_SECONDS)

    @contextmanager
    def told_errors(self) -> Iterator[None]:
        """Turn what DuckDB and Arrow raise into RequestErrors."""
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:  # Arrow makes OSErrors of a stream's errors
            raise self._told(error) from None

    def chunks(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        with self.told_errors():
            yield from reader

    def _told(self, error: Exception) -> RequestError:
        if self._is_overdue:
            problem = f"the query took longer than {self._seconds_max:g} s"
            return RequestError("timeout", problem, "ask for less, or for one table at a time")
        if self._is_needed.is_set():
            problem = "the query was stopped: its memory was needed for the tables"
            return RequestError("limit", problem, "ask for less at once, or set server.memory_megabytes higher")
        if _is_shortage(error):
            return _shortage()
        return RequestError("bad_sql", _first_line(error), "correct the query; DESCRIBE tells a table's columns")

    def _stop_in_time(self) -> None:
        if not self._is_needed.wait(self._seconds_max):
            self._is_overdue = True
        while not self._ended.is_set():
            self._cursor.interrupt()
            self._ended.wait(INTERRUPT_SECONDS)  # and again: an interrupt between two steps of a query is lost


@contextmanager
def _told_shortage() -> Iterator[None]:
    """Turn a lack of memory into a RequestError."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:  # see _Running.told_errors
        if not _is_shortage(error):
            raise
        raise _shortage() from None


def _chunks(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    with _told_shortage():
        yield from reader


def _is_shortage(error: Exception) -> bool:
    return "Out of Memory" in str(error)


def _shortage() -> RequestError:
    return RequestError(
        "limit",
        "this needs more memory than there is",
        "ask for less at once, or set server.memory_megabytes higher",
    )


def _open(path: Path | None, memory_megabytes: int) -> duckdb.DuckDBPyConnection:
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory_megabytes}MB",
        "temp_directory": f"{path}.tmp" if path else "",  # what does not fit in memory goes beside the file
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    in_use = "stop the server that uses it, or set server.store to another file"
    try:
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
        database = duckdb.connect(str(path) if path else ":memory:", config=config)
    except (duckdb.Error, OSError) as error:
        is_in_use = isinstance(error, duckdb.ConnectionException) or "lock" in str(error)
        cure = in_use if is_in_use else "set server.store to a new file, in a directory that can be written"
        raise SetupError(f"cannot open the store {path}: {_first_line(error)}", cure) from None
    ((is_locked,),) = database.execute("SELECT current_setting('lock_configuration')").fetchall()
    if is_locked:  # DuckDB gave us the database that is open in this process already
        database.close()
        raise SetupError(f"cannot open the store {path}: it is open in this process already", in_use)
    database.execute("SET GLOBAL enable_external_access = false")  # not before: it fixes temp_directory
    database.execute("SET GLOBAL TimeZone = 'UTC'")
    database.execute("SET GLOBAL immediate_transaction_mode = true")  # a snapshot is of the time of its BEGIN
    database.execute("SET GLOBAL python_enable_replacements = false")  # or SQL could name our own variables
    database.execute("SET GLOBAL lock_configuration = true")
    return database


def _stable_names(generation: Generation) -> dict[str, str]:
    """The names and aliases of a generation's tables."""
    return {
        name: table.shape.name
        for table in generation.tables.values()
        for name in (table.shape.name, *table.shape.aliases)
    }


def _create_table(generation: str, shape: TableShape) -> str:
    columns = [f"{ROW} BIGINT"] + [
        f"{quoted(field.name)} {SQL_TYPES[column_type(field.type)]}" for field in shape.schema
    ]
    return f"CREATE TABLE {quoted(generation)}.{quoted(shape.name)} ({', '.join(columns)})"


def _create_view(name: str, table: StoredTable) -> str:
    columns = ", ".join(quoted(column) for column in table.shape.schema.names)
    return f"CREATE VIEW main.{quoted(name)} AS SELECT {columns} FROM {table.relation}"  # noqa: S608


def _advanced(generation: Generation, batch: Batch) -> dict[str, StoredTable]:
    """The generation's tables with their own facts after the batch."""
    tables = dict(generation.tables)
    for changes in batch.changes:
        if changes.table not in tables:
            raise SinkError(f"generation {generation.name} has no table {changes.table}", "begin it with one")
        table = tables[changes.table]
        _check_columns(changes.table, table.shape.schema, changes.upserts.schema)
        if changes.deletes.num_rows:  # a table without any columns says "none" as well
            _check_columns(changes.table, table.shape.key_schema, changes.deletes.schema)
        times = [
            pc.max(changes.upserts[field.name]).as_py()
            for field in table.shape.schema
            if column_type(field.type) == "timestamp" and changes.upserts.num_rows
        ]
        newest = max((time for time in [*times, table.newest] if time is not None), default=None)
        next_row = table.next_row + changes.upserts.num_rows
        tables[changes.table] = replace(table, next_row=next_row, newest=newest)
    return tables


def _check_columns(table: str, wanted: pa.Schema, given: pa.Schema) -> None:
    """DuckDB would cast what it can, and some of it wrongly."""
    if dict(zip(wanted.names, wanted.types, strict=True)) != dict(zip(given.names, given.types, strict=True)):
        raise SinkError(
            f"a batch has other columns than its table {table}: {', '.join(map(str, given))}",
            f"send {', '.join(map(str, wanted))}, or begin a new generation",
        )


def _apply(writer: duckdb.DuckDBPyConnection, table: StoredTable, changes: TableChanges) -> None:
    shape, relation = table.shape, table.relation
    if changes.deletes.num_rows:
        writer.register("deletes", changes.deletes)
        writer.execute(f"DELETE FROM {relation} t USING deletes s WHERE {_same_key(shape)}")  # noqa: S608
        writer.unregister("deletes")
    if changes.upserts.num_rows:
        numbers = pa.array(range(table.next_row, table.next_row + changes.upserts.num_rows), pa.int64())
        writer.register("upserts", changes.upserts.add_column(0, ROW, numbers))
        writer.execute(_upsert(shape, relation))
        writer.unregister("upserts")


def _upsert(shape: TableShape, relation: str) -> str:
    columns = [quoted(name) for name in shape.schema.names]
    if shape.appends:
        return f"INSERT INTO {relation} SELECT {', '.join([ROW, *columns])} FROM upserts"  # noqa: S608
    updates = ", ".join(f"{column} = s.{column}" for column in columns if column[1:-1] not in shape.key)
    inserts = ", ".join(f"s.{column}" for column in [ROW, *columns])
    condition = f" AND ({_is_newer([quoted(name) for name in shape.version])})" if shape.version else ""
    update = f"WHEN MATCHED{condition} THEN UPDATE SET {updates}" if updates else ""
    return (
        f"MERGE INTO {relation} t USING upserts s ON ({_same_key(shape)}) "
        f"{update} WHEN NOT MATCHED THEN INSERT VALUES ({inserts})"
    )


def _same_key(shape: TableShape) -> str:
    return " AND ".join(f"t.{quoted(column)} IS NOT DISTINCT FROM s.{quoted(column)}" for column in shape.key)


def _is_newer(version: Sequence[str]) -> str:
    """Whether s is newer than t: the columns compared in order, null before all values."""
    column, *rest = version
    greater = f"(s.{column} > t.{column} OR (t.{column} IS NULL AND s.{column} IS NOT NULL))"
    if not rest:
        return greater
    return f"{greater} OR (s.{column} IS NOT DISTINCT FROM t.{column} AND ({_is_newer(rest)}))"


def _count(cursor: duckdb.DuckDBPyConnection, relation: str) -> int:
    ((rows,),) = cursor.execute(f"SELECT count(*) FROM {relation}").fetchall()  # noqa: S608
    return int(rows)


def _relation(cursor: duckdb.DuckDBPyConnection, query: Query) -> duckdb.DuckDBPyRelation:
    return cursor.sql(query.sql, params=list(query.parameters))


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0]

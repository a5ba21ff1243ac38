"""The tables, in DuckDB: a batch is applied whole or not at all, and readers never see two generations mixed.

Each generation has a schema of its own in the database, with a table for each of its shapes. The stable names are views
in the schema `main`, all replaced in the transaction that publishes a generation. What the server must know after a
crash is in the schema `livetables`, written in the transactions that it describes.

One thread writes at a time; any number read, each on a cursor of its own, and neither waits for the other. All share
one limit of memory: when there is none left for a batch or a viewport, the clients' SQL has to go.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from livetables.config.settings import choice
from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.checksum import content_checksum
from livetables.model.errors import DamagedError, RequestError, SetupError, SinkError, StoreError
from livetables.model.spec import DEAD_LETTERS, record_id
from livetables.model.wire import (
    NO_BATCH,
    RUNS_PER_PIPELINE,
    ChangesHeader,
    ChangeTimes,
    FramePart,
    Holder,
    Place,
    decode_shape,
    encode_shape,
)
from livetables.server.storage.feed import Feed, changes_schema, merged
from livetables.server.storage.frames import FrameChanges, FrameError, TableNews, combined, frame_changes
from livetables.server.storage.generation import (
    Frame,
    Generation,
    StoredTable,
    Writer,
    counted,
    encoded_facts,
    names_of,
    stable_names,
    with_facts,
)
from livetables.server.storage.holding import Holding
from livetables.server.storage.merge import (
    Given,
    apply,
    bring,
    check_columns,
    check_shape,
    create_index,
    create_table,
    create_view,
    relation,
    store,
)
from livetables.server.storage.pending import FrameTimes, Outcome, PendingBatch, PendingFrames, StoreFirstError, Viewers
from livetables.server.storage.query import Running, chunks_of, first_line, in_time, told_shortage
from livetables.server.storage.sql import check_sql
from livetables.server.storage.staging import Staging
from livetables.server.viewports.masking import hidden_columns, masked_relation, masked_rows
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

LAYOUT_VERSION = 2
GENERATION_NAME = re.compile("[A-Za-z0-9_-]{1,100}")
RESERVED_NAMES = ("livetables", "main", "temp", "information_schema", "pg_catalog")  # schemas of the database itself
ROWS_PER_CHUNK = 65_536
# Its log is written to the tables at a checkpoint: with DuckDB's 16 MB, for every batch of a backlog, which doubles its
# cost. After a kill, 160 MB of it took 0.7 s to be read again (measured).
CHECKPOINT_THRESHOLD = "256MB"
SQL_SECONDS_MAX = 10.0
SQL_AT_ONCE = 2
SQL_WAIT_SECONDS = 5.0
SQL_COLUMNS_MAX = 500
SQL_ROWS_PER_CHUNK = 8_192  # its cells may be far larger than a table's
UNKNOWN_FIELDS_MAX = 1_000  # records may have any number of them
FIELD_CHARACTERS_MAX = 200  # of their names, which may be as long as a record
OTHER_FIELDS = "(others)"
# How DuckDB's errors begin for files that it cannot read whatever is tried. A lock, a full disk or a newer version say
# otherwise, and so does every error that has a client's own words in it.
DAMAGE = re.compile(
    r"Corrupt database file|Failure while replaying WAL file .*Corrupt WAL file|Serialization Error|"
    r'IO Error: The file "[^"]*" exists, but it is not a valid DuckDB|'
    r'IO Error: Could not read enough bytes from file "[^"]*(?<!\.tmp)"|'
    r'FATAL Error: .*original error: "Corrupt database file',
    re.DOTALL | re.IGNORECASE,
)

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Changed:
    """What a commit changed: the stable names whose rows are others now."""

    names: frozenset[str]
    rebound: bool = False
    shown: bool = False  # whether viewers have been sent it already, see `livetables.server.storage.pending`


@dataclass(frozen=True)
class Kept:
    """The rows that a viewport keeps, as they are after the commit `sequence`: from position `start` on, of `total`."""

    table: StoredTable
    sequence: int
    start: int
    rows: pa.Table  # their numbers first
    total: int


@dataclass(frozen=True)
class Commit:
    """What frames changed in a generation, in one transaction."""

    generation: str
    is_published: bool
    taken: tuple[TableChanges, ...]
    records: Mapping[str, int]  # by what readers call their table


@dataclass(frozen=True)
class Applied:
    """What became of frames: of each the sequence that it is in, or why it was not applied."""

    outcomes: tuple[int | Exception, ...]
    commits: tuple[Commit, ...]


class _Draft:
    """A generation as the frames of a group make it."""

    def __init__(self, generation: Generation) -> None:
        self.before = self.after = generation
        self.changes: list[FrameChanges] = []
        self.news: dict[str, TableNews] = {}
        self._parts: dict[str, list[FramePart]] = {}  # the last of each frame, by table that it changed

    def add(self, frame: Frame) -> None:
        part, after = frame.last, self.after
        writer = after.writers.get(part.writer)
        marks = writer.marks if writer else {}
        shapes = {name: table.shape for name, table in after.tables.items()}
        changes = frame_changes(shapes, frame.streams, marks, part.marks)
        ended_before = writer.ended if writer else NO_BATCH
        ended = max(ended_before, part.epoch) if part.end else ended_before
        records = counted(writer, changes.records)
        writers = {**after.writers, part.writer: Writer(frame.place, changes.marks, ended, records)}
        self.after = replace(after, run=max(after.run, part.run), writers=writers)
        if changes.tables or changes.marks is not marks or ended != ended_before or part.durable:
            self.changes.append(changes)
        for name in changes.tables:
            self._parts.setdefault(name, []).append(part)

    def finish(self) -> None:
        """Take all frames together."""
        names = dict.fromkeys(name for changes in self.changes for name in changes.tables)
        self.news = {
            name: combined([changes.tables[name] for changes in self.changes if name in changes.tables])
            for name in names
        }
        if self.changes:
            tables = {**self.after.tables, **{name: self._advanced(name) for name in names}}
            self.after = replace(self.after, tables=tables, sequence=self.before.sequence + 1)

    def times(self) -> dict[str, FrameTimes]:
        """Those of the newest record by table, now that the frames are applied."""
        found = {name: FrameTimes.newest(map(FrameTimes.of, parts)) for name, parts in self._parts.items()}
        return {name: times for name, times in found.items() if times}

    def _advanced(self, name: str) -> StoredTable:
        news = self.news[name]
        numbered = sum(rows.num_rows for rows in (news.new, news.perhaps) if rows is not None)
        return self.after.tables[name].with_rows(numbered, *news.rows)


class Store:
    """All generations, in a file, or in memory when no path is given."""

    def __init__(self, path: Path | None, *, memory_megabytes: int = 1024) -> None:
        self.path = path
        self.feed = Feed()
        self.unknown_fields: dict[tuple[str, str], int] = {}
        self._listeners: list[Callable[[Changed], None]] = []
        self._viewers: Viewers | None = None
        self._applying: dict[str, threading.RLock] = {}  # of generations; held before all other locks
        self._writing = threading.RLock()  # held before the lock of `pending`, where both are
        self._replacing = threading.Lock()  # of what `_generations` is
        self._idle: deque[duckdb.DuckDBPyConnection] = deque()
        self._sql_slots = threading.BoundedSemaphore(SQL_AT_ONCE)
        self._running: set[Running] = set()
        self._is_closed = False
        self._damage: Exception | None = None  # what told that the files are damaged, when something was read
        self._database = _open(path, memory_megabytes)
        self._writer = self._database.cursor()
        self._given = Given(self._writer)
        self.staging = Staging(path.parent if path else None)
        self.pending = PendingFrames(self._rows_by_id)
        self.holding = Holding()
        self._pipeline = 0
        self._trimmed: dict[str, int] = {}  # how far a generation's dead letters went when they were trimmed last
        self._put_to: str | None = None  # the generation that a batch is put to; with the lock of `pending`
        try:
            self._generations: Mapping[str, Generation] = MappingProxyType(self._recovered())
        except (duckdb.Error, SetupError, ValueError, KeyError) as error:
            self.close()
            if DAMAGE.match(str(error)):
                raise _damaged(path, error) from None
            raise SetupError(
                f"the store {path} was not written by this version of livetables: {first_line(error)}",
                "set server.store to a new file; the tables are built again from Kafka",
            ) from None
        self._stored_writers = {name: each.writers for name, each in self._generations.items()}
        for generation in self._generations.values():
            if generation.published:
                self.feed.started(generation.name, generation.sequence)

    def close(self) -> None:
        """Let go of the file. Readers that are under way finish first, as far as they hold it."""
        with self._writing:
            self._is_closed = True
            self.staging.close()
            self._writer.close()
            while self._idle:
                self._idle.pop().close()
            self._database.close()

    def check(self) -> None:
        """Read from the database; a StoreError says that this fails until the server is started again.

        A DamagedError says that it fails then too: its files are damaged.
        """
        if self._damage is not None:
            raise _damaged(self.path, self._damage)
        try:
            with self._snapshot() as cursor:
                cursor.execute("SELECT count(*) FROM livetables.generations").fetchall()
        except duckdb.FatalException as error:
            if DAMAGE.match(str(error)):
                raise _damaged(self.path, error) from None
            said = " ".join(str(error).splitlines()[:2])  # the second line has the original error
            raise StoreError(
                f"the store {self.path or ':memory:'} has failed: {said}",
                "make room if its disk is full; what was stored is there when the server is started again",
            ) from None

    def show_to(self, viewers: Viewers) -> None:
        """Have frames sent to viewers before they are stored."""
        self._viewers = viewers

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
            if not GENERATION_NAME.fullmatch(generation) or generation.lower() in RESERVED_NAMES:
                raise SinkError(
                    f"a generation cannot be called {ascii(generation)[:80]}",
                    f"use 1 to 100 of A-Z a-z 0-9 _ -, and none of {', '.join(RESERVED_NAMES)}",
                )
            for shape in shapes:
                check_shape(shape)
            begun = datetime.now(UTC)
            with self._transaction() as run:
                run(f"CREATE SCHEMA {quoted(generation)}")
                for shape in shapes:
                    run(create_table(generation, shape))
                    if index := create_index(generation, shape):
                        run(index)
                    run("INSERT INTO livetables.tables VALUES (?, ?, ?)", [generation, shape.name, encode_shape(shape)])
                tables = {shape.name: StoredTable(generation, shape) for shape in shapes}
                beginning = Generation(generation, tables, begun)
                run(
                    "INSERT INTO livetables.generations VALUES (?, ?, NULL, ?, ?)",
                    [generation, begun, beginning.sequence, encoded_facts(beginning)],
                )
            self._remember(beginning)

    def put(self, batch: Batch) -> bool:
        """Apply a batch whole, durably, once; tell whether it was new. One that came before changes nothing."""
        with self._writing:
            with self.pending.lock:
                self._put_to = batch.generation
            try:
                self.store_shown()
                return self._put(batch)
            finally:
                self._put_to = None

    def show(self, frame: Frame) -> Outcome:
        """Apply a small frame in memory and show it; it is stored by the next `store_shown`.

        A StoreFirstError says that it has to be applied by the store instead.
        """
        self.check_pipeline(frame.last.run // RUNS_PER_PIPELINE)
        with self._lock_of(frame.last.generation), self.pending.lock:
            generation = self._checked(frame.last)
            if generation.name == self._put_to:
                raise StoreFirstError("a batch of its generation is being stored")
            if generation.has(frame.last):
                return Outcome({}, (), self.pending.waiting(generation.name))
            self._check_no_gap(generation, frame.last)
            after, changes, outcome = self.pending.show(generation, frame)
            self._update(generation.name, tables=after.tables, run=after.run, writers=after.writers)
            if changes.deltas and generation.published and self._viewers:
                self._viewers.show(changes)
            return outcome

    def store_shown(self) -> None:
        """Store everything that was shown so far, in one transaction."""
        with self._writing:
            with self.pending.lock:
                batches = self.pending.take(self._generations)
            if not batches:
                return
            try:
                taken = self._before_sql(lambda: self._commit_shown(batches))
            except Exception as error:
                with self.pending.lock:
                    for batch in batches:
                        batch.answer(error)
                raise
            with self.pending.lock:  # what is shown next has the next sequence
                for batch in batches:
                    assert batch.after
                    self._update(batch.after.name, sequence=batch.sequence)
                self.pending.done()
            for batch, changes in zip(batches, taken, strict=True):
                self._has_stored(batch, changes)

    def stored_frame(self, part: FramePart) -> int:
        """The last frame of a writer's attempt that is on disk; -1 if there is none."""
        writer = self._stored_writers.get(part.generation, {}).get(part.writer)
        return writer.last[1] if writer and writer.last[0] == part.attempt else -1

    def apply(self, frames: Sequence[Frame]) -> Applied:
        """Apply frames whole, durably, once, in as few transactions as can be. One that fails leaves the others be.

        Frames of the same generations that are to be shown wait for the end of it, those of others do not.
        """
        outcomes: list[int | Exception] = []
        commits: list[Commit] = []
        for group in _groups(frames):
            with ExitStack() as locks:
                for name in sorted({frame.last.generation for frame in group}):
                    locks.enter_context(self._lock_of(name))
                locks.enter_context(self._writing)
                self.store_shown()
                applied = self._apply(group)
            outcomes += applied.outcomes
            commits += applied.commits
        return Applied(tuple(outcomes), tuple(commits))

    def check_part(self, part: FramePart) -> bool:
        """Refuse a part of a frame that is not to be applied; tell whether it was applied before."""
        self.check_pipeline(part.run // RUNS_PER_PIPELINE)
        with self.pending.lock:
            return self._checked(part).has(part)

    def start_pipeline(self, holder: Holder | None = None, replaces: str | None = None) -> int:
        """The number of a pipeline that starts now; those before it are refused from now on.

        It is refused itself while another one is heard, but for the process that it `replaces`.
        """
        with self._writing:
            if not self.holding.is_free_for(holder, replaces):
                raise FrameError(
                    "held",
                    f"this server belongs to pipeline {self._pipeline}: {self.holding.holder}",
                    "stop that one, or give this one a server of its own; it takes over when the other has gone",
                )
            self._adopt(self._pipeline + 1)
            self.holding.taken_by(holder)
            return self._pipeline

    @contextmanager
    def held_by(self, number: int) -> Iterator[None]:
        """Let no other pipeline take over while this one writes."""
        with self._writing:
            self.check_pipeline(number)
            yield

    def check_pipeline(self, number: int) -> None:
        """Refuse a pipeline when another one has taken over. A newer one than is known had a store that was lost."""
        if number > self._pipeline:
            with self._writing:
                if number > self._pipeline:
                    self._adopt(number)
        self._check_not_fenced(number)

    def dead_letter_summary(self, generation: str) -> dict[str, tuple[int, str]]:
        """How many dead letters each table has, and the reason of its first one, in a generation."""
        table = self._begun(generation).tables.get(DEAD_LETTERS)
        if table is None:
            return {}
        with self._snapshot() as cursor:
            query = f"SELECT source, count(*), arg_min(reason, {ROW}) FROM {table.relation} GROUP BY ALL"  # noqa: S608
            return {source: (rows, reason) for source, rows, reason in cursor.execute(query).fetchall()}

    def lost_records(
        self, generation: str, successor: str, ends: Mapping[str, Mapping[int, int] | None]
    ) -> dict[str, int]:
        """How many records of each topic a generation has as rows and its successor has not.

        Only tables that are of the same topic in both count, and of those in `ends` only records before these offsets,
        by partition: what comes after may be on its way to the successor.
        """
        self.store_shown()
        before, after = self._begun(generation), self._begun(successor)
        lost: Counter[str] = Counter()
        with self._snapshot() as cursor:
            for name, table in before.tables.items():
                topic, other = table.shape.topic, after.tables.get(name)
                if topic is None or other is None or other.shape.topic != topic:
                    continue
                query = lost_query(table.relation, other.relation, ends.get(name))
                ((records,),) = cursor.execute(query).fetchall()
                lost[topic] += records
        return {topic: records for topic, records in lost.items() if records}

    def trim(self, rows_max: int, bytes_max: int) -> int:
        """Delete the dead letters of the oldest records of each generation; how many.

        Those of the newest records stay: so many rows, and so many bytes of raw values. Newest is by time, then by
        table, partition and offset, so that what stays depends on the records alone, whenever it is done: what is
        too old once is so for ever.
        """
        deleted = 0
        for name, generation in self._generations.items():
            table = generation.tables.get(DEAD_LETTERS)
            if table is None or self._trimmed.get(name) == table.next_row:
                continue
            with self._writing:
                with self.pending.lock:
                    self._put_to = name
                try:
                    self.store_shown()
                    deleted += self._trim(name, rows_max, bytes_max)
                finally:
                    self._put_to = None
        return deleted

    def _trim(self, name: str, rows_max: int, bytes_max: int) -> int:
        """Trim a generation, while no frame of it is shown or waits to be stored."""
        generation = self._generations.get(name)
        if generation is None:
            return 0
        table = generation.tables[DEAD_LETTERS]
        with self._snapshot() as cursor:
            old = cursor.sql(_too_old_query(table, rows_max, bytes_max)).to_arrow_table()
        if old.num_rows:
            after = replace(generation, sequence=generation.sequence + 1)
            changes = TableChanges(DEAD_LETTERS, table.shape.schema.empty_table(), old.cast(table.shape.key_schema))
            batch = Batch(name, NO_BATCH, (changes,))
            taken = self._before_sql(lambda: self._commit(generation, after, batch))
            self._update(name, sequence=after.sequence)
            self.pending.forget_rows(name)
            if generation.published:
                self.feed.add(name, after.sequence, batch.changes, taken)
            names = (stable for stable, each in names_of(generation).items() if each == DEAD_LETTERS)
            self._tell(Changed(frozenset(names)))
        self._trimmed[name] = table.next_row
        return int(old.num_rows)

    def publish(self, generation: str) -> None:
        """Let the stable names mean this generation's tables, all in one step.

        It takes the place of every published generation that it shares a name with; what shares none stays.
        """
        with self._writing, self.pending.lock:
            self.store_shown()
            taking = self._begun(generation)
            if taking.published:
                return
            names = stable_names(taking)
            leaving = [other for other in self._generations.values() if not names.keys().isdisjoint(names_of(other))]
            left = [name for other in leaving for name in names_of(other)]
            now = datetime.now(UTC)
            with self._transaction() as run:
                for name in left:
                    run(f"DROP VIEW main.{quoted(name)}")
                for name, table in names.items():
                    run(create_view(name, generation, taking.tables[table].shape))
                for other in leaving:
                    run("UPDATE livetables.generations SET published = NULL WHERE name = ?", [other.name])
                run("UPDATE livetables.generations SET published = ? WHERE name = ?", [now, generation])
            for other in leaving:
                self._update(other.name, published=None)
            self._update(generation, published=now)
            for other in leaving:
                self.feed.ended(other.name)
            self.feed.started(generation, taking.sequence)
        self._tell(Changed(frozenset([*names, *left]), rebound=True))

    def drop(self, generation: str) -> None:
        """Forget a generation and free its space. Dropping one that is not there changes nothing."""
        with self._writing:
            if generation not in self._generations:
                return
            with self.pending.lock:
                dropped = self._generations[generation]
                # Before its tables go, so that no reader looks for them.
                self._forget(generation)
            names = list(names_of(dropped))
            try:
                with self._transaction() as run:
                    for name in names:
                        run(f"DROP VIEW main.{quoted(name)}")
                    run(f"DROP SCHEMA {quoted(generation)} CASCADE")
                    run("DELETE FROM livetables.tables WHERE generation = ?", [generation])
                    run("DELETE FROM livetables.generations WHERE name = ?", [generation])
            except BaseException:
                self._remember(dropped)
                raise
            self.pending.forget(generation)
            self._applying.pop(generation, None)
            self.feed.ended(generation)
            self.staging.forget(generation)
            self._given.forget(generation)
            self._trimmed.pop(generation, None)
            self._checkpoint()
        self._tell(Changed(frozenset(names), rebound=True))

    # The readers' side

    def generations(self) -> Mapping[str, Generation]:
        return self._generations

    def live(self) -> list[str]:
        """The names of the generations whose data readers see, the one published last at the end."""
        published = [
            (generation.published, generation.name)
            for generation in self._generations.values()
            if generation.published and generation.has_data
        ]
        return [name for _, name in sorted(published)]

    def tables(self) -> dict[str, StoredTable]:
        """The tables that readers can name, aliases included."""
        return {
            name: generation.tables[table]
            for generation in self._generations.values()
            for name, table in names_of(generation).items()
        }

    def table(self, name: str) -> StoredTable:
        tables = self.tables()
        if name not in tables:
            cure = choice(name, tables) if self.live() else "wait until a generation is published; /readyz tells when"
            raise RequestError("unknown_table", f"there is no table {ascii(name)[:80]}", cure)
        return tables[name]

    def window(self, name: str, options: ViewOptions) -> tuple[StoredTable, Window]:
        """The rows that a viewport shows, and the table that they are from."""

        def read(cursor: duckdb.DuckDBPyConnection, table: StoredTable) -> tuple[StoredTable, Window]:
            rows, total = _window_rows(cursor, table, options)
            return table, Window(tuple(rows[ROW].to_pylist()), rows.drop_columns(ROW), total)

        with told_shortage():
            return self._before_sql(lambda: self._read(name, read))

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

        with told_shortage():
            return self._before_sql(lambda: self._read(name, in_time(read, seconds_max)))

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
            query = scan_query(_readable(table, masked=selection.masked), table.shape.schema, selection)
            with told_shortage():
                reader = _relation(cursor, query).to_arrow_reader(ROWS_PER_CHUNK)
            yield pa.RecordBatchReader.from_batches(reader.schema, chunks_of(reader))

    def changes(
        self,
        name: str,
        place: Place,
        seconds_max: float,
        is_over: Callable[[], bool],
        *,
        has_checksum: bool = False,
        masked: bool = False,
    ) -> pa.Table | None:
        """What changed in a table after a place, each key once, as soon as something has; None if it is not known.

        Whoever waits holds nothing of the database.
        """
        table, generation = self._followed(name)
        known = _place(generation.name, place.sequence, generation.begun)
        if place not in (known, known._replace(begun=None)):
            return None
        news = self.feed.news(generation.name, table.shape.name, place.sequence, seconds_max, is_over)
        if news is None:
            return None
        rows = masked_rows(merged(table.shape, news.changes), hidden_columns(table.shape, masked=masked))
        header = ChangesHeader(
            name,
            known._replace(sequence=news.sequence),
            False,
            table.shape.key,
            _sent_now(news.times) if news.times else None,
            content_checksum(rows) if has_checksum else None,
        )
        return rows.replace_schema_metadata(header.on(rows.schema).metadata)

    def no_changes(self, name: str) -> pa.Table:
        """Nothing, and the place where a table is now."""
        table, generation = self._followed(name)
        place = _place(generation.name, generation.sequence, generation.begun)
        return ChangesHeader(name, place, False, table.shape.key).on(changes_schema(table.shape)).empty_table()

    @contextmanager
    def whole(self, name: str, *, masked: bool = False) -> Iterator[pa.RecordBatchReader]:
        """All rows of a table as changes to none, in chunks, with the place that they are the state of."""
        self._followed(name)
        with self._snapshot_of(name) as (cursor, table):
            ((sequence, begun),) = cursor.execute(
                "SELECT sequence, begun FROM livetables.generations WHERE name = ?", [table.generation]
            ).fetchall()
            header = ChangesHeader(name, _place(table.generation, sequence, begun), True, table.shape.key)
            schema = header.on(changes_schema(table.shape))
            query = scan_query(_readable(table, masked=masked), table.shape.schema, Selection())
            with told_shortage():
                reader = _relation(cursor, query).to_arrow_reader(ROWS_PER_CHUNK)
            chunks = (
                pa.RecordBatch.from_arrays([*chunk.columns, pa.repeat(pa.scalar(False), chunk.num_rows)], schema=schema)
                for chunk in chunks_of(reader)
            )
            yield pa.RecordBatchReader.from_batches(schema, chunks)

    @contextmanager
    def sql(
        self, text: str, seconds_max: float = SQL_SECONDS_MAX, *, masked: bool = False
    ) -> Iterator[pa.RecordBatchReader]:
        """The answer to one SELECT over the stable names. It can read tables and nothing else, for a limited time.

        The time is for the whole of it, reading the answer to its end included. Errors are RequestErrors, those of the
        reader too.
        """
        if not self._sql_slots.acquire(timeout=SQL_WAIT_SECONDS):
            raise RequestError("busy", f"{SQL_AT_ONCE} queries are running already", "send it again later")
        try:
            with self._snapshot() as cursor, Running(cursor, seconds_max).among(self._running) as running:
                with running.told_errors():
                    tables = self.tables()
                    hidden = [name for name, each in tables.items() if hidden_columns(each.shape, masked=masked)]
                    check_sql(cursor, text, tables, hidden)
                    relation = cursor.sql(text)
                    if len(relation.columns) > SQL_COLUMNS_MAX:
                        raise RequestError(
                            "limit", "the answer has too many columns", f"select at most {SQL_COLUMNS_MAX}"
                        )
                    reader = relation.to_arrow_reader(SQL_ROWS_PER_CHUNK)
                yield pa.RecordBatchReader.from_batches(reader.schema, running.chunks(reader))
        finally:
            self._sql_slots.release()

    def _followed(self, name: str) -> tuple[StoredTable, Generation]:
        """A table and its generation. While nothing is published, a name that means nothing may yet come to."""
        while True:
            for generation in self._generations.values():
                names = names_of(generation)
                if name in names:
                    return generation.tables[names[name]], generation
            try:
                self.table(name)
            except RequestError as error:
                if self.live():
                    raise
                raise RequestError("unavailable", error.problem, error.cure) from None

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
        except Exception as error:
            self._note_damage(error)
            raise
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

    def _note_damage(self, error: Exception) -> None:
        """Arrow makes errors of its own of DuckDB's, so it is their text that tells."""
        if self.path and not isinstance(error, RequestError) and DAMAGE.match(str(error)):
            self._damage = error

    # Writing

    @contextmanager
    def _transaction(self) -> Iterator[Callable[..., object]]:
        self._writer.begin()
        try:
            yield self._writer.execute
            self._writer.commit()
        except BaseException as error:
            if isinstance(error, duckdb.Error):
                self._note_damage(error)
            with suppress(duckdb.Error):  # a commit that failed has ended the transaction
                self._writer.rollback()
            raise

    def _commit(self, generation: Generation, after: Generation, batch: Batch) -> list[TableChanges]:
        """What the tables took of the batch, as far as they may be followed."""
        taken = []
        is_followed = generation.published is not None
        with self._transaction() as run:
            for changes in batch.changes:
                before = generation.tables[changes.table]
                taken.append(apply(self._writer, generation.name, before.shape, changes, before.next_row, is_followed))
            run(*_facts_update(after))
        return taken

    def _put(self, batch: Batch) -> bool:
        """Apply a batch, while no frame of its generation is shown or waits to be stored."""
        generation = self._begun(batch.generation)
        if not batch.is_new_after(generation.last_batch_id):
            return False
        after = replace(
            generation,
            tables=_advanced(generation, batch),
            last_batch_id=batch.batch_id,
            sequence=generation.sequence + 1,
        )
        # Readers that see the new rows must not see the old `next_row`, see StoredTable.
        self._update(generation.name, tables=after.tables)
        try:
            taken = self._before_sql(lambda: self._commit(generation, after, batch))
        except BaseException:
            self._update(generation.name, tables=generation.tables)
            raise
        self._update(generation.name, last_batch_id=after.last_batch_id, sequence=after.sequence)
        self.pending.forget_rows(generation.name)
        if generation.published:
            self.feed.add(generation.name, after.sequence, batch.changes, taken)
        self._count_unknown_fields(batch.unknown_fields)
        changed = {changes.table for changes in batch.changes}
        self._tell(Changed(frozenset(name for name, table in names_of(generation).items() if table in changed)))
        return True

    def _apply(self, frames: Sequence[Frame]) -> Applied:
        """Apply frames of different writers in one transaction, or one by one where that fails."""
        outcomes: list[int | Exception] = []
        drafts: dict[str, _Draft] = {}
        for frame in frames:
            try:
                self.check_pipeline(frame.last.run // RUNS_PER_PIPELINE)
                name = self._checked(frame.last).name
                draft = drafts.setdefault(name, _Draft(self._generations[name]))
                if not draft.after.has(frame.last):
                    self._check_no_gap(draft.after, frame.last)
                    draft.add(frame)
                outcomes.append(NO_BATCH)
            except Exception as error:  # of this frame alone
                outcomes.append(error)
        for draft in drafts.values():
            draft.finish()
        changed = [draft for draft in drafts.values() if draft.changes]
        try:
            commits = self._before_sql(lambda: self._commit_frames(changed)) if changed else []
        except duckdb.Error as error:
            if len(frames) > 1:
                alone = [self._apply([frame]) for frame in frames]
                return Applied(
                    tuple(outcome for each in alone for outcome in each.outcomes),
                    tuple(commit for each in alone for commit in each.commits),
                )
            return Applied((error,), ())
        for draft in drafts.values():
            self._remember(draft.after)
        for draft in changed:
            self._stored_writers[draft.after.name] = draft.after.writers
            self.pending.forget_rows(draft.after.name)
        for draft, commit in zip(changed, commits, strict=True):
            if commit.is_published:
                self.feed.add(commit.generation, draft.after.sequence, commit.taken, commit.taken, draft.times())
            for changes in draft.changes:
                self._count_unknown_fields(changes.unknown_fields)
        names = [name for draft in changed for name, table in names_of(draft.before).items() if table in draft.news]
        self._tell(Changed(frozenset(names)))
        return Applied(
            tuple(
                outcome if isinstance(outcome, Exception) else drafts[frame.last.generation].after.sequence
                for frame, outcome in zip(frames, outcomes, strict=True)
            ),
            tuple(commits),
        )

    def _commit_frames(self, drafts: Sequence[_Draft]) -> list[Commit]:
        for draft in drafts:
            for name, news in draft.news.items():
                self._given.make_room(draft.before.name, draft.before.tables[name].shape, news)
        # Readers that see the new rows must not see the old `next_row`, see StoredTable.
        self._remember(*(replace(draft.before, tables=draft.after.tables) for draft in drafts))
        try:
            commits = []
            with self._transaction() as run:
                for draft in drafts:
                    taken = [self._bring(draft.before, name, news) for name, news in draft.news.items()]
                    run(*_facts_update(draft.after))
                    records = sum((Counter(changes.records) for changes in draft.changes), Counter())
                    is_published = draft.before.published is not None
                    commits.append(Commit(draft.before.name, is_published, tuple(taken), records))
            return commits
        except BaseException:
            self._remember(*(draft.before for draft in drafts))
            raise
        finally:
            self._given.clear()

    def _bring(self, generation: Generation, name: str, news: TableNews) -> TableChanges:
        table = generation.tables[name]
        is_followed = generation.published is not None
        return bring(self._writer, self._given, generation.name, table.shape, news, table.next_row, is_followed)

    def _commit_shown(self, batches: Sequence[PendingBatch]) -> list[list[TableChanges]]:
        """Store what was shown; what the tables took, as followers get it, by batch."""
        taken: list[list[TableChanges]] = []
        stored = []
        for batch in batches:
            assert batch.after
            changes = {name: batch.changes_of(batch.after.tables[name].shape) for name in batch.tables}
            for name, each in changes.items():
                self._given.make_room(batch.after.name, batch.after.tables[name].shape, TableNews(each.inserts))
            stored.append((batch.after, changes))
        try:
            with self._transaction() as run:
                for after, changes in stored:
                    for name, each in changes.items():
                        store(self._writer, self._given, after.name, after.tables[name].shape, each)
                    run(*_facts_update(after))
                    taken.append([each.as_changes(after.tables[name].shape) for name, each in changes.items()])
            return taken
        finally:
            self._given.clear()

    def _has_stored(self, batch: PendingBatch, taken: Sequence[TableChanges]) -> None:
        assert batch.after
        name = batch.after.name
        self._stored_writers[name] = batch.after.writers
        generation = self._generations[name]
        if generation.published:
            self.feed.add(name, batch.sequence, taken, taken, batch.times)
            if self._viewers:
                self._viewers.stored(name, batch.sequence)
        for fields in batch.unknown_fields:
            self._count_unknown_fields(fields)
        changed = {changes.table for changes in taken}
        names = (stable for stable, table in names_of(generation).items() if table in changed)
        self._tell(Changed(frozenset(names), shown=True))
        batch.answer(batch.sequence)

    def _rows_by_id(self, generation: Generation, shape: TableShape, column: str, ids: Sequence[int]) -> pa.Table:
        """The stored rows of a table that have these ids in a column, with their numbers."""
        columns = ", ".join(quoted(name) for name in (ROW, *shape.schema.names))
        condition = f"{quoted(column)} IN ({', '.join(map(str, ids))})"  # as the index finds them
        query = f"SELECT {columns} FROM {relation(generation.name, shape)} WHERE {condition}"  # noqa: S608
        with self._snapshot() as cursor:
            return cursor.sql(query).to_arrow_table()

    def _lock_of(self, generation: str) -> threading.RLock:
        is_known = generation in self._generations
        return self._applying.setdefault(generation, threading.RLock()) if is_known else threading.RLock()

    def _check_no_gap(self, generation: Generation, part: FramePart) -> None:
        if generation.misses_before(part):
            raise FrameError(
                "missing_frames",
                f"frame {part.frame} of writer {part.writer} came without those before it",
                "send them again, from the one after `stored` on",
                self.stored_frame(part),
            )

    def _checked(self, part: FramePart) -> Generation:
        """The generation that a part is for, if it may be. Its pipeline is known, see `check_pipeline`."""
        self._check_not_fenced(part.run // RUNS_PER_PIPELINE)
        generation = self._generations.get(part.generation)
        if generation is None:
            raise FrameError(
                "unknown_generation", f"generation {ascii(part.generation)[:120]} was not begun", "begin it first"
            )
        if part.run < generation.run:
            raise FrameError(
                "fenced",
                f"run {part.run} of generation {generation.name} sends a frame, but run {generation.run} is there",
                "stop the query that was started before",
            )
        writer = generation.writers.get(part.writer)
        due = (writer.ended if writer else NO_BATCH) + 1
        if part.epoch > due:
            raise FrameError(
                "refused",
                f"batch {part.epoch} of generation {generation.name} came to writer {part.writer} where {due} was due",
                "build a new generation: the store does not hold what the checkpoint counts as delivered",
            )
        if part.run > generation.run:
            self._update(generation.name, run=part.run)
            self.staging.forget(generation.name)
        return self._generations[part.generation]

    def _check_not_fenced(self, number: int) -> None:
        if number < self._pipeline:
            holder = self.holding.holder
            raise FrameError(
                "fenced",
                f"pipeline {number} asks, but this server belongs to pipeline {self._pipeline} now"
                + (f": {holder}" if holder else ""),
                "another pipeline has taken over this server: stop one of the two, or give it a server of its own",
            )

    def _adopt(self, number: int) -> None:
        with self._transaction() as run:
            run("UPDATE livetables.pipeline SET number = ?", [number])
        self._pipeline = number

    def _count_unknown_fields(self, counted: Mapping[str, Mapping[str, int]]) -> None:
        for table, fields in counted.items():
            for field, records in fields.items():
                name = field if len(field) <= FIELD_CHARACTERS_MAX else f"{field[:FIELD_CHARACTERS_MAX]}…"
                is_known = (table, name) in self.unknown_fields or len(self.unknown_fields) < UNKNOWN_FIELDS_MAX
                key = (table, name if is_known else OTHER_FIELDS)
                self.unknown_fields[key] = self.unknown_fields.get(key, 0) + records

    def _checkpoint(self) -> None:
        """Give the space of what was dropped back, unless somebody reads just now: then the next one does."""
        with suppress(duckdb.TransactionException):
            self._writer.execute("CHECKPOINT")

    def _begun(self, generation: str) -> Generation:
        if generation not in self._generations:
            raise SinkError(f"generation {generation} was not begun", "call begin before put or publish")
        return self._generations[generation]

    def _remember(self, *generations: Generation) -> None:
        """In one step: readers look at `_generations` at any time, without a lock."""
        with self._replacing:
            self._generations = MappingProxyType({**self._generations, **{each.name: each for each in generations}})

    def _update(self, name: str, **fields: Any) -> None:
        """Change these fields of a generation and no others: several threads do, each has its own."""
        with self._replacing:
            changed = replace(self._generations[name], **fields)
            self._generations = MappingProxyType({**self._generations, name: changed})

    def _forget(self, name: str) -> None:
        with self._replacing:
            self._generations = MappingProxyType({key: each for key, each in self._generations.items() if key != name})

    def _tell(self, changed: Changed) -> None:
        if changed.names:
            for listener in self._listeners:
                listener(changed)

    def _recovered(self) -> dict[str, Generation]:
        """What the database holds, made ready for its first use."""
        run = self._writer.execute
        run("CREATE SCHEMA IF NOT EXISTS livetables")
        run("CREATE TABLE IF NOT EXISTS livetables.layout (version BIGINT)")
        # A generation's facts are one value: each statement of a small transaction counts.
        run(
            "CREATE TABLE IF NOT EXISTS livetables.generations "
            "(name VARCHAR, begun TIMESTAMPTZ, published TIMESTAMPTZ, sequence BIGINT, facts BLOB)"
        )
        run("CREATE TABLE IF NOT EXISTS livetables.tables (generation VARCHAR, name VARCHAR, shape BLOB)")
        run("CREATE TABLE IF NOT EXISTS livetables.pipeline (number BIGINT)")
        versions = [version for (version,) in run("SELECT version FROM livetables.layout").fetchall()]
        if versions not in ([], [LAYOUT_VERSION]):
            raise SetupError(f"its layout is {versions}, not {LAYOUT_VERSION}", "use the version that wrote it")
        if not versions:
            run("INSERT INTO livetables.pipeline VALUES (0)")
            run("INSERT INTO livetables.layout VALUES (?)", [LAYOUT_VERSION])
        ((self._pipeline,),) = run("SELECT number FROM livetables.pipeline").fetchall()
        tables: dict[str, dict[str, StoredTable]] = {}
        for generation, name, shape in run("SELECT * FROM livetables.tables").fetchall():
            tables.setdefault(generation, {})[name] = StoredTable(generation, decode_shape(shape))
        return {
            name: with_facts(Generation(name, tables.get(name, {}), begun, None, published, sequence), facts)
            for name, begun, published, sequence, facts in run("SELECT * FROM livetables.generations").fetchall()
        }


def _facts_update(generation: Generation) -> tuple[str, list[object]]:
    statement = "UPDATE livetables.generations SET sequence = ?, facts = ? WHERE name = ?"
    return statement, [generation.sequence, encoded_facts(generation), generation.name]


def _groups(frames: Sequence[Frame]) -> Iterator[Sequence[Frame]]:
    """The frames in order, in groups in which each writer has one: the next may change what that one brings."""
    group: dict[tuple[str, int], Frame] = {}
    for frame in frames:
        key = (frame.last.generation, frame.last.writer)
        if key in group:
            yield list(group.values())
            group = {}
        group[key] = frame
    if group:
        yield list(group.values())


def _open(path: Path | None, memory_megabytes: int) -> duckdb.DuckDBPyConnection:
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory_megabytes}MB",
        "temp_directory": f"{path}.tmp" if path else "",  # what does not fit in memory goes beside the file
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "checkpoint_threshold": CHECKPOINT_THRESHOLD,
    }
    in_use = "stop the server that uses it, or set server.store to another file"
    try:
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
        database = duckdb.connect(str(path) if path else ":memory:", config=config)
    except (duckdb.Error, OSError) as error:
        if path and DAMAGE.match(str(error)):
            raise _damaged(path, error) from None
        is_in_use = isinstance(error, duckdb.ConnectionException) or "lock" in str(error)
        cure = in_use if is_in_use else "set server.store to a new file, in a directory that can be written"
        raise SetupError(f"cannot open the store {path}: {first_line(error)}", cure) from None
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


def _damaged(path: Path | None, error: Exception) -> DamagedError:
    return DamagedError(
        f"the store {path} is damaged: {first_line(error)}",
        "look after its disk; the files are kept under another name, and the tables are built again from Kafka",
    )


def _place(generation: str, sequence: int, begun: datetime) -> Place:
    return Place(generation, sequence, begun.astimezone(UTC).isoformat())


def _sent_now(times: FrameTimes) -> ChangeTimes:
    return ChangeTimes(times.kafka, times.spark, round(times.applied, 2), round(time.time() * 1000, 2))


def _advanced(generation: Generation, batch: Batch) -> dict[str, StoredTable]:
    """The generation's tables with their own facts after the batch."""
    tables = dict(generation.tables)
    for changes in batch.changes:
        if changes.table not in tables:
            raise SinkError(f"generation {generation.name} has no table {changes.table}", "begin it with one")
        table = tables[changes.table]
        check_columns(changes.table, table.shape.schema, changes.upserts.schema)
        if changes.deletes.num_rows:  # a table without any columns says "none" as well
            check_columns(changes.table, table.shape.key_schema, changes.deletes.schema)
        tables[changes.table] = table.with_rows(changes.upserts.num_rows, changes.upserts)
    return tables


def _too_old_query(table: StoredTable, rows_max: int, bytes_max: int) -> str:
    """SQL for the keys of the dead letters beyond those of the newest records."""
    keys = ", ".join(quoted(name) for name in table.shape.key)
    return (
        f"SELECT {keys} FROM {table.relation} "  # noqa: S608
        "WINDOW newest AS (ORDER BY ts DESC, source DESC, _id DESC ROWS UNBOUNDED PRECEDING) "
        f"QUALIFY row_number() OVER newest > {rows_max} "
        f"OR sum(coalesce(strlen(raw), 0)) OVER newest > {bytes_max}"
    )


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


def _count(cursor: duckdb.DuckDBPyConnection, relation: str) -> int:
    ((rows,),) = cursor.execute(f"SELECT count(*) FROM {relation}").fetchall()  # noqa: S608
    return int(rows)


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

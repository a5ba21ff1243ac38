"""The tables, in DuckDB: a batch is applied whole or not at all, and readers never see two generations mixed.

The store puts together what does the work: `database` (snapshots and transactions), `catalogue` (generations and
names), `fencing` (which pipeline may write), `writer` (frames), `batches`, `retention`, `reader` and `changes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import duckdb
import pyarrow as pa

from livetables.model.change import Batch, TableShape
from livetables.model.errors import SetupError
from livetables.model.wire import FramePart, Holder, Place
from livetables.server.storage.batches import BatchWriter
from livetables.server.storage.catalogue import Catalogue
from livetables.server.storage.changes import ChangesReader
from livetables.server.storage.database import Database
from livetables.server.storage.feed import Feed
from livetables.server.storage.fencing import Fencing
from livetables.server.storage.generation import Frame, Generation, StoredTable, names_of
from livetables.server.storage.holding import Holding
from livetables.server.storage.listeners import Changed, Listeners
from livetables.server.storage.pending import Outcome, PendingFrames, Viewers
from livetables.server.storage.reader import SQL_SECONDS_MAX, Kept, TableReader
from livetables.server.storage.retention import Retention
from livetables.server.storage.staging import Staging
from livetables.server.storage.unknown_fields import UnknownFields
from livetables.server.storage.writer import Applied, TableWriter
from livetables.server.viewports.viewport import Selection, ViewOptions, Window


class Store:
    """All generations, in a file, or in memory when no path is given."""

    def __init__(self, path: Path | None, *, memory_megabytes: int = 1024) -> None:
        self.path = path
        self.feed = Feed()
        self.holding = Holding()
        self.database = Database(path, memory_megabytes)
        self.staging = Staging(path.parent if path else None)
        try:
            self.database.prepare()
            self.catalogue = Catalogue(self.database)
            self.fencing = Fencing(self.database, self.holding)
        except (duckdb.Error, SetupError, ValueError, KeyError) as error:
            self.close()
            raise self.database.unreadable(error) from None
        self.reader = TableReader(self.database, self.catalogue)
        self.pending = PendingFrames(self.reader.rows_by_id)
        self._listeners, self._unknown_fields = Listeners(), UnknownFields()
        self.writer = TableWriter(
            self.database,
            self.catalogue,
            self.fencing,
            self.pending,
            self.staging,
            self.feed,
            self._listeners,
            self._unknown_fields,
        )
        self.batches = BatchWriter(
            self.database,
            self.catalogue,
            self.writer,
            self.pending,
            self.feed,
            self._listeners,
            self._unknown_fields,
        )
        self._retention = Retention(self.database, self.catalogue, self.writer, self.batches)
        self._changes = ChangesReader(self.catalogue, self.reader, self.feed)
        for generation in self.catalogue.generations.values():
            if generation.published:
                self.feed.started(generation.name, generation.sequence)

    def close(self) -> None:
        """Close the file. Readers that are under way finish first, as far as they hold it."""
        with self.database.writing:
            self.staging.close()
            self.database.close()

    def check(self) -> None:
        """Read from the database; a StoreError means that this fails until the server is started again.

        A DamagedError means that it fails then too: its files are damaged.
        """
        self.database.check()

    def show_to(self, viewers: Viewers) -> None:
        """Have frames sent to viewers before they are stored."""
        self._listeners.viewers = viewers

    def listen(self, listener: Callable[[Changed], None]) -> None:
        """Have the listener called after each commit that readers can see, on the thread that committed."""
        self._listeners.add(listener)

    # The pipeline's side

    def start_pipeline(self, holder: Holder | None = None, replaces: str | None = None) -> int:
        """The number of a pipeline that starts now; see `Fencing.start_pipeline`."""
        return self.fencing.start_pipeline(holder, replaces)

    def held_by(self, number: int) -> AbstractContextManager[None]:
        """Let no other pipeline take over while this one writes."""
        return self.fencing.held_by(number)

    def check_pipeline(self, number: int) -> None:
        """Refuse a pipeline when another one has taken over."""
        self.fencing.check(number)

    def begin(self, generation: str, shapes: Sequence[TableShape]) -> None:
        """Make room for a generation. Beginning one again with the same shapes keeps what it has."""
        self.catalogue.begin(generation, shapes)

    def put(self, batch: Batch) -> bool:
        """Apply a batch whole, durably, once; return whether it was new. One that came before changes nothing."""
        return self.batches.put(batch)

    def show(self, frame: Frame) -> Outcome:
        """Apply a small frame in memory and show it; it is stored by the next `store_shown`.

        A StoreFirstError means that it has to be applied by the store instead.
        """
        return self.writer.show(frame)

    def store_shown(self) -> None:
        """Store everything that was shown so far, in one transaction."""
        self.writer.store_shown()

    def stored_frame(self, part: FramePart) -> int:
        """The last frame of a writer's attempt that is on disk; -1 if there is none."""
        return self.writer.stored_frame(part)

    def apply(self, frames: Sequence[Frame]) -> Applied:
        """Apply frames whole, durably, once; see `TableWriter.apply`."""
        return self.writer.apply(frames)

    def check_part(self, part: FramePart) -> bool:
        """Refuse a part of a frame that is not to be applied; return whether it was applied before."""
        return self.writer.check_part(part)

    def publish(self, generation: str) -> None:
        """Let the stable names mean this generation's tables, all in one step.

        It takes the place of every published generation that it shares a name with; what shares none stays.
        """
        with self.database.writing, self.pending.lock:
            self.store_shown()
            publication = self.catalogue.publish(generation)
            if publication is None:
                return
            for replaced in publication.replaced:
                self.feed.ended(replaced)
            self.feed.started(generation, publication.published.sequence)
        self._listeners.notify(Changed(publication.names, rebound=True))

    def drop(self, generation: str) -> None:
        """Forget a generation and free its space. Dropping one that is not there changes nothing."""
        with self.database.writing:
            with self.pending.lock:
                # Before its tables go, so that no reader looks for them.
                dropped = self.catalogue.forget(generation)
            if dropped is None:
                return
            self.catalogue.drop(dropped)
            self.writer.forget(generation)
            self.feed.ended(generation)
            self._retention.forget(generation)
            self.database.checkpoint()
        self._listeners.notify(Changed(frozenset(names_of(dropped)), rebound=True))

    def dead_letter_summary(self, generation: str) -> dict[str, tuple[int, str]]:
        """How many dead letters each table has, and the reason of its first one, in a generation."""
        return self.reader.dead_letter_summary(generation)

    def lost_records(
        self, generation: str, successor: str, ends: Mapping[str, Mapping[int, int] | None]
    ) -> dict[str, int]:
        """How many records of each topic a generation has and its successor has not; see `TableReader`."""
        self.store_shown()
        return self.reader.lost_records(generation, successor, ends)

    def trim(self, rows_max: int, bytes_max: int) -> int:
        """Delete the dead letters of the oldest records of each generation; return how many."""
        return self._retention.trim(rows_max, bytes_max)

    # The readers' side

    @property
    def unknown_fields(self) -> Mapping[tuple[str, str], int]:
        """How many records had a field that is no column, by table and field."""
        return self._unknown_fields.counts

    def generations(self) -> Mapping[str, Generation]:
        return self.catalogue.generations

    def live(self) -> list[str]:
        """The names of the generations whose data readers see, the one published last at the end."""
        return self.catalogue.live()

    def tables(self) -> dict[str, StoredTable]:
        """The tables that readers can name, aliases included."""
        return self.catalogue.tables()

    def table(self, name: str) -> StoredTable:
        return self.catalogue.table(name)

    def window(self, name: str, options: ViewOptions) -> tuple[StoredTable, Window]:
        """The rows that a viewport shows, and the table that they are from."""
        return self.reader.window(name, options)

    def kept(self, name: str, options: ViewOptions, seconds_max: float) -> Kept:
        """The rows that a viewport keeps, with all their columns; a TimeoutError if that takes too long."""
        return self.reader.kept(name, options, seconds_max)

    def row_counts(self) -> dict[str, dict[str, int]]:
        """The rows of every table, by generation and table, as they are at one time."""
        return self.reader.row_counts()

    def scan(self, name: str, selection: Selection) -> AbstractContextManager[pa.RecordBatchReader]:
        """All rows of a selection, in chunks, as they are at one time."""
        return self.reader.scan(name, selection)

    def sql(
        self, text: str, seconds_max: float = SQL_SECONDS_MAX, *, masked: bool = False
    ) -> AbstractContextManager[pa.RecordBatchReader]:
        """The answer to one SELECT over the stable names; see `TableReader.sql`."""
        return self.reader.sql(text, seconds_max, masked=masked)

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
        """What changed in a table after a place; see `ChangesReader.changes`."""
        return self._changes.changes(name, place, seconds_max, is_over, has_checksum=has_checksum, masked=masked)

    def no_changes(self, name: str) -> pa.Table:
        """Nothing, and the place where a table is now."""
        return self._changes.no_changes(name)

    def whole(self, name: str, *, masked: bool = False) -> AbstractContextManager[pa.RecordBatchReader]:
        """All rows of a table as changes to none, in chunks, with the place that they are the state of."""
        return self._changes.whole(name, masked=masked)

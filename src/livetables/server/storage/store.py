"""The tables, in DuckDB: a batch is applied whole or not at all, and readers never see two generations mixed.

The store puts together what does the work: `database` (snapshots and transactions), `catalogue` (generations and
names), `fencing` (which pipeline may write), `writer` (frames), `batches`, `retention`, `reader` and `changes`. Readers
call the last two themselves, as in `store.reader.window`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import duckdb

from livetables.model.change import Batch, TableShape
from livetables.model.errors import SetupError
from livetables.model.wire import FramePart
from livetables.server.storage.batches import BatchWriter
from livetables.server.storage.catalogue import Catalogue
from livetables.server.storage.changes import ChangesReader
from livetables.server.storage.context import StoreContext
from livetables.server.storage.database import Database
from livetables.server.storage.feed import Feed
from livetables.server.storage.fencing import Fencing
from livetables.server.storage.generation import Frame, Generation, StoredTable, names_of
from livetables.server.storage.holding import Holding
from livetables.server.storage.listeners import Changed, Listeners
from livetables.server.storage.pending import Outcome, PendingFrames, Viewers
from livetables.server.storage.planner import Planner
from livetables.server.storage.reader import TableReader
from livetables.server.storage.retention import Retention
from livetables.server.storage.staging import Staging
from livetables.server.storage.unknown_fields import UnknownFields
from livetables.server.storage.writer import Applied, TableWriter


class Store:
    """All generations, in a file, or in memory when no path is given."""

    def __init__(self, path: Path | None, *, memory_megabytes: int = 1024) -> None:
        self.path = path
        self.feed = Feed()
        self.holding = Holding()
        self.database = Database(path, memory_megabytes)
        self.staging = Staging(path.parent if path else None)
        self._planner = Planner()
        try:
            self.database.prepare()
            self.catalogue = Catalogue(self.database)
            self.fencing = Fencing(self.database, self.holding)
        except (duckdb.Error, SetupError, ValueError, KeyError) as error:
            self.close()
            raise self.database.unreadable(error) from None
        self.reader = TableReader(self.database, self.catalogue, self._planner)
        self.pending = PendingFrames(self.reader.rows_by_id)
        self._listeners, self._unknown_fields = Listeners(), UnknownFields()
        context = StoreContext(
            self.database,
            self.catalogue,
            self.fencing,
            self.pending,
            self.staging,
            self.feed,
            self._listeners,
            self._unknown_fields,
        )
        self.writer = TableWriter(context)
        self.batches = BatchWriter(context, self.writer)
        self._retention = Retention(self.database, self.catalogue, self.writer, self.batches)
        self.changes = ChangesReader(self.catalogue, self.reader, self.feed)
        for generation in self.catalogue.generations.values():
            if generation.published:
                self.feed.started(generation.name, generation.sequence)

    def close(self) -> None:
        """Close the file. Readers that are under way finish first, as far as they hold it."""
        self._planner.close()
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

    def row_counts(self) -> dict[str, dict[str, int]]:
        """The rows of every table, by generation and table, with all that was shown so far."""
        self.store_shown()
        return self.reader.row_counts()

    def dead_letter_summary(self, generation: str) -> dict[str, tuple[int, str]]:
        """How many dead letters each table has, and the reason of its first one, with all that was shown so far."""
        self.store_shown()
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

    def trim_tables(self, now: Callable[[], float] | None = None) -> dict[str, int]:
        """Delete the records that tables are not to keep; return how many, by table. See `Retention.trim_tables`."""
        return self._retention.trim_tables(now)

    # The readers' side

    @property
    def unknown_fields(self) -> Mapping[tuple[str, str], int]:
        """How many records had a field that is not a column, by table and field."""
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

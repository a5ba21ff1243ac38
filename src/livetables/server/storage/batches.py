"""The writer of batches: changes of a generation that are applied whole, durably and once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import duckdb

from livetables.model.change import Batch, TableChanges
from livetables.model.errors import SinkError
from livetables.model.wire import NO_BATCH
from livetables.server.storage.catalogue import facts_update
from livetables.server.storage.context import StoreContext
from livetables.server.storage.generation import Generation, StoredTable, names_of
from livetables.server.storage.listeners import Changed
from livetables.server.storage.merge import apply, check_columns
from livetables.server.storage.writer import TableWriter


class BatchWriter:
    """Writes batches, while no frame of their generation is pending."""

    def __init__(self, context: StoreContext, frames: TableWriter) -> None:
        self._database = context.database
        self._catalogue = context.catalogue
        self._frames = frames
        self._pending = context.pending
        self._feed = context.feed
        self._listeners = context.listeners
        self._unknown_fields = context.unknown_fields

    def put(self, batch: Batch) -> bool:
        """Apply a batch whole, durably, once; return whether it was new. One that came before changes nothing."""
        with self._frames.nothing_pending(batch.generation):
            return self._put(batch)

    def delete(self, generation: Generation, deletes: TableChanges) -> None:
        """Delete rows that no record has removed. The caller sees to it that no frame of the generation is pending."""
        after = replace(generation, sequence=generation.sequence + 1)
        batch = Batch(generation.name, NO_BATCH, (deletes,))
        taken = self._database.before_queries(lambda: self._commit(generation, after, batch))
        self._has_committed(generation, after, batch, taken)

    def rewrite(
        self, after: Generation, rewrite: Callable[[duckdb.DuckDBPyConnection], Sequence[TableChanges]]
    ) -> None:
        """Change rows for another reason than a record, in one transaction with what `after` has to be known by.

        No row gets a new number. The caller sees to it that no frame of the generation is pending.
        """
        after = replace(after, sequence=after.sequence + 1)

        def commit() -> Sequence[TableChanges]:
            with self._database.transaction() as run:
                taken = rewrite(self._database.writer)
                run(*facts_update(after))
            return taken

        taken = self._database.before_queries(commit)
        self._has_committed(after, after, Batch(after.name, NO_BATCH, tuple(taken)), taken)

    def _put(self, batch: Batch) -> bool:
        """Apply a batch, while no frame of its generation is shown or waits to be stored."""
        generation = self._catalogue.begun(batch.generation)
        if not batch.is_new_after(generation.last_batch_id):
            return False
        after = replace(
            generation,
            tables=_advanced(generation, batch),
            last_batch_id=batch.batch_id,
            sequence=generation.sequence + 1,
        )
        # Readers that see the new rows must not see the old `next_row`, see StoredTable.
        self._catalogue.update(generation.name, tables=after.tables)
        try:
            taken = self._database.before_queries(lambda: self._commit(generation, after, batch))
        except BaseException:
            self._catalogue.update(generation.name, tables=generation.tables)
            raise
        self._has_committed(generation, after, batch, taken)
        return True

    def _commit(self, generation: Generation, after: Generation, batch: Batch) -> list[TableChanges]:
        """Commit a batch; return what the tables took of it, as far as they may be followed."""
        taken = []
        is_followed = generation.published is not None
        with self._database.transaction() as run:
            for changes in batch.changes:
                before = generation.tables[changes.table]
                shape, next_row = before.shape, before.next_row
                taken.append(apply(self._database.writer, generation.name, shape, changes, next_row, is_followed))
            run(*facts_update(after))
        return taken

    def _has_committed(
        self, generation: Generation, after: Generation, batch: Batch, taken: Sequence[TableChanges]
    ) -> None:
        self._catalogue.update(
            generation.name,
            last_batch_id=after.last_batch_id,
            sequence=after.sequence,
            trimmed=after.trimmed,
            horizons=after.horizons,
        )
        self._pending.forget_rows(generation.name)
        if generation.published:
            self._feed.add(generation.name, after.sequence, batch.changes, taken)
        self._unknown_fields.add(batch.unknown_fields)
        changed = {changes.table for changes in batch.changes}
        names = (name for name, table in names_of(generation).items() if table in changed)
        self._listeners.notify(Changed(frozenset(names)))


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

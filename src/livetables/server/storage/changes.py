"""What changed in a table since a place, for programs that follow it, and the whole table to begin with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pyarrow as pa

from livetables.model.checksum import content_checksum
from livetables.model.errors import RequestError
from livetables.model.wire import ChangesHeader, ChangeTimes, Place
from livetables.server.storage.catalogue import Catalogue
from livetables.server.storage.feed import Feed, changes_schema, merged
from livetables.server.storage.generation import Generation, StoredTable, names_of
from livetables.server.storage.pending import FrameTimes
from livetables.server.storage.query import chunks_of
from livetables.server.storage.reader import TableReader, scanned
from livetables.server.viewports.masking import hidden_columns, masked_rows
from livetables.server.viewports.viewport import Selection


class ChangesReader:
    """Reads the changes of published tables, on any thread."""

    def __init__(self, catalogue: Catalogue, reader: TableReader, feed: Feed) -> None:
        self._catalogue = catalogue
        self._reader = reader
        self._feed = feed

    def since(
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
        news = self._feed.news(generation.name, table.shape.name, place.sequence, seconds_max, is_over)
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
        with self._reader.snapshot_of(name) as (cursor, table):
            ((sequence, begun),) = cursor.execute(
                "SELECT sequence, begun FROM livetables.generations WHERE name = ?", [table.generation]
            ).fetchall()
            header = ChangesHeader(name, _place(table.generation, sequence, begun), True, table.shape.key)
            schema = header.on(changes_schema(table.shape))
            reader = scanned(cursor, table, Selection(), masked=masked)
            chunks = (
                pa.RecordBatch.from_arrays([*chunk.columns, pa.repeat(pa.scalar(False), chunk.num_rows)], schema=schema)
                for chunk in chunks_of(reader)
            )
            yield pa.RecordBatchReader.from_batches(schema, chunks)

    def _followed(self, name: str) -> tuple[StoredTable, Generation]:
        """A table and its generation. While nothing is published, a name that means nothing may yet come to."""
        while True:
            for generation in self._catalogue.generations.values():
                names = names_of(generation)
                if name in names:
                    return generation.tables[names[name]], generation
            try:
                self._catalogue.table(name)
            except RequestError as error:
                if self._catalogue.live():
                    raise
                raise RequestError("unavailable", error.problem, error.cure) from None


def _place(generation: str, sequence: int, begun: datetime) -> Place:
    return Place(generation, sequence, begun.astimezone(UTC).isoformat())


def _sent_now(times: FrameTimes) -> ChangeTimes:
    return ChangeTimes(times.kafka, times.spark, round(times.applied, 2), round(time.time() * 1000, 2))

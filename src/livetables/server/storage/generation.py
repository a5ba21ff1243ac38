"""A generation in the server: its tables, its writers and their marks, as values.

What must be known after a crash is one value, written with the rows that it describes: `encoded_facts`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import to_json

from livetables.model.change import TableShape
from livetables.model.spec import CONTROL_TABLES
from livetables.model.wire import NO_BATCH, FramePart, FrameStream
from livetables.server.storage.frames import WriterMarks, positions
from livetables.server.storage.horizons import Horizon, Horizons
from livetables.server.storage.merge import relation

WIDE_ROW_BYTES = 4096  # on average, of rows that came together


@dataclass(frozen=True)
class StoredTable:
    """A table of a generation as it is now. `next_row` may already count rows of a batch that is being applied."""

    generation: str
    shape: TableShape
    next_row: int = 0
    newest: datetime | None = None  # the latest event time in it
    is_wide: bool = False  # whether it has had rows so large that windows are to be bounded by their bytes

    @property
    def relation(self) -> str:
        return relation(self.generation, self.shape)

    def with_rows(self, numbered: int, *given: pa.Table) -> StoredTable:
        """The table after rows were added or replaced, so many of which got numbers."""
        times = [self.newest, *map(newest_time, given)]
        return replace(
            self,
            next_row=self.next_row + numbered,
            newest=max((time for time in times if time is not None), default=None),
            is_wide=self.is_wide or any(rows.nbytes > rows.num_rows * WIDE_ROW_BYTES for rows in given),
        )


@dataclass(frozen=True)
class Writer:
    """A writer of the pipeline: what it last brought to a generation, and how far that goes."""

    last: tuple[str, int, int]  # attempt, frame, and the number of its last part
    marks: WriterMarks
    ended: int = NO_BATCH  # the last batch of Spark's that it has brought to its end
    records: Mapping[str, int] = field(default_factory=dict)  # that it has brought, by what readers call their table


def counted(writer: Writer | None, new: Mapping[str, int]) -> Mapping[str, int]:
    """How many records a writer has brought, with those that are new."""
    before = writer.records if writer else {}
    return {**before, **{table: before.get(table, 0) + records for table, records in new.items()}}


@dataclass(frozen=True)
class Generation:
    """A generation in the store. Its batches 0 to `last_batch_id` and the frames of its writers are in its tables."""

    name: str
    tables: Mapping[str, StoredTable]
    begun: datetime
    last_batch_id: int | None = None
    published: datetime | None = None  # when it took over the stable names, while it has them
    sequence: int = NO_BATCH  # of its last commit
    run: int = 0  # the newest that brought a frame
    writers: Mapping[int, Writer] = field(default_factory=dict)
    trimmed: tuple[str, str, int] | None = None  # time, source and id of the newest dead letter that had to go
    horizons: Horizons = field(default_factory=dict)

    @property
    def positions(self) -> dict[str, dict[int, int]]:
        """How far it is in its topics: the next offset of each partition, by source table."""
        shapes = [table.shape for table in self.tables.values()]
        return positions(shapes, [writer.marks for writer in self.writers.values()])

    @property
    def records(self) -> dict[str, int]:
        """How many records it has, as rows or dead letters, by what readers call their table.

        Compared with its positions, it shows whether a record before them is still to come from another writer.
        """
        return dict(sum((Counter(writer.records) for writer in self.writers.values()), Counter[str]()))

    def has(self, part: FramePart) -> bool:
        """Whether a part of a frame was applied before."""
        writer = self.writers.get(part.writer)
        return writer is not None and part.attempt == writer.last[0] and (part.frame, part.part) <= writer.last[1:]

    def misses_before(self, part: FramePart) -> bool:
        """Whether frames that a writer sent before this one are not here: a server that was killed had them."""
        writer = self.writers.get(part.writer)
        last = writer.last[1] if writer and part.attempt == writer.last[0] else -1
        return part.frame > last + 1

    @property
    def has_data(self) -> bool:
        """Whether it has tables of records, and not only the pipeline's reports of itself."""
        return any(name not in CONTROL_TABLES for name in self.tables)


@dataclass(frozen=True)
class Frame:
    """A whole frame: its last part, and the streams of all parts."""

    last: FramePart
    streams: tuple[FrameStream, ...]

    @property
    def place(self) -> tuple[str, int, int]:
        return self.last.attempt, self.last.frame, self.last.part


def encoded_facts(generation: Generation) -> bytes:
    """What of a generation changes with its rows."""
    return to_json(
        {
            "last_batch_id": generation.last_batch_id,
            "run": generation.run,
            "trimmed": generation.trimmed,
            "horizons": generation.horizons,
            "tables": {
                name: [table.next_row, table.newest.isoformat() if table.newest else None, table.is_wide]
                for name, table in generation.tables.items()
            },
            "writers": [
                [
                    number,
                    writer.last,
                    [[*key, offsets] for key, offsets in writer.marks.items()],
                    writer.ended,
                    writer.records,
                ]
                for number, writer in generation.writers.items()
            ],
        }
    )


def with_facts(generation: Generation, data: bytes) -> Generation:
    """The generation with what `encoded_facts` made of it."""
    facts = json.loads(data)
    tables = {
        name: replace(
            generation.tables[name],
            next_row=next_row,
            newest=datetime.fromisoformat(newest) if newest else None,
            is_wide=is_wide,
        )
        for name, (next_row, newest, is_wide) in facts["tables"].items()
    }
    writers = {
        number: Writer(
            (attempt, frame, part),
            {(source, scope): tuple(offsets) for source, scope, offsets in marks},
            ended,
            records,
        )
        for number, (attempt, frame, part), marks, ended, records in facts["writers"]
    }
    trimmed = facts.get("trimmed")  # a store that was written before there was a limit has none
    return replace(
        generation,
        tables=tables,
        last_batch_id=facts["last_batch_id"],
        run=facts["run"],
        writers=writers,
        trimmed=tuple(trimmed) if trimmed else None,
        horizons={source: Horizon(*horizon) for source, horizon in facts.get("horizons", {}).items()},
    )


def newest_time(rows: pa.Table) -> datetime | None:
    times = [pc.max(rows[each.name]).as_py() for each in rows.schema if pa.types.is_timestamp(each.type)]
    return max((time for time in times if time is not None), default=None)


def names_of(generation: Generation) -> dict[str, str]:
    """The stable names that mean a generation's tables now."""
    return stable_names(generation) if generation.published else {}


def stable_names(generation: Generation) -> dict[str, str]:
    """The names and aliases of a generation's tables."""
    return {
        name: table.shape.name
        for table in generation.tables.values()
        for name in (table.shape.name, *table.shape.aliases)
    }

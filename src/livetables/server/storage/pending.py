"""Frames that are shown and not stored yet.

A frame is applied in memory first: its marks are taken, its rows get their numbers, and whoever looks at the tables is
sent what changed. Everything that was shown since is then stored in one transaction. What a crash takes away in between
was never acknowledged as stored, so the writers of the pipeline have it still and send it again.

Only a frame that needs nothing of the store but a few rows by their keys is shown first. A large one, and one that
repeats what a crash interrupted, is applied by the store itself, after everything before it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from livetables.model.change import TableChanges, TableShape
from livetables.model.wire import NO_BATCH, FramePart
from livetables.server.storage.frames import FrameChanges, TableNews, frame_changes
from livetables.server.storage.generation import Frame, Generation, StoredTable, Writer, counted
from livetables.server.storage.merge import StoredChanges
from livetables.server.storage.recent import IsStored, Recent
from livetables.server.viewports.row import Row, numbered, rows_of, table_of
from livetables.server.viewports.viewport import ROW
from livetables.server.viewports.window import Delta

SHOWN_ROWS_MAX = 5_000  # a frame with more is applied by the store itself

Lookup = Callable[[Generation, TableShape, str, Sequence[int]], pa.Table]  # the rows with these ids in a column


class StoreFirstError(Exception):
    """A frame has to be applied by the store before it can be shown."""


@dataclass(frozen=True)
class FrameTimes:
    """When the newest record of a frame was in Kafka, when the frame left Spark, and when it was applied; in ms."""

    kafka: float
    spark: float
    applied: float

    @classmethod
    def of(cls, part: FramePart) -> FrameTimes | None:
        """Those of a frame that is applied just now, by its last part; None if it has no record."""
        return cls(part.kafka_ms, part.sent_ms, time.time() * 1000) if part.kafka_ms >= 0 else None

    @staticmethod
    def newest(times: Iterable[FrameTimes | None]) -> FrameTimes | None:
        """Those of the newest record."""
        return max((each for each in times if each), key=lambda each: each.kafka, default=None)


@dataclass(frozen=True)
class ShownChanges:
    """What frames changed in a generation, to be seen before it is stored with the commit `sequence`."""

    generation: str
    sequence: int
    deltas: Mapping[str, Delta]
    times: FrameTimes | None


class Viewers(Protocol):
    """The receivers of changes: when they are shown, and when they are stored."""

    def show(self, changes: ShownChanges) -> None: ...

    def stored(self, generation: str, sequence: int) -> None: ...


@dataclass
class PendingBatch:
    """The frames of a generation that were shown and are to be stored in one transaction."""

    sequence: int
    first_rows: Mapping[str, int]  # the number of the first row that is new in it, by table
    new: dict[str, list[pa.Table]] = field(default_factory=dict)
    changed: dict[str, dict[int, tuple[Row, Row | None]]] = field(default_factory=dict)  # as it was stored, and is now
    gone: dict[str, set[int]] = field(default_factory=dict)  # the ids of rows that the store has and should not
    unknown_fields: list[Mapping[str, Mapping[str, int]]] = field(default_factory=list)
    waiting: list[Future[int]] = field(default_factory=list)
    after: Generation | None = None  # the generation when it was taken to be stored
    times: dict[str, FrameTimes] = field(default_factory=dict)  # of the newest record, by table

    def add(self, table: str, delta: Delta, times: FrameTimes | None) -> None:
        if newest := FrameTimes.newest([times, self.times.get(table)]):
            self.times[table] = newest
        if delta.numbered is not None:
            self.new.setdefault(table, []).append(delta.numbered)
        changed = self.changed.setdefault(table, {})
        for was, now in delta.changed:
            before, _ = changed.get(was.number, (was, None))
            changed[was.number] = (before, now)

    @property
    def tables(self) -> list[str]:
        """Those that have changed."""
        return [name for name in self.first_rows if self.new.get(name) or self.changed.get(name)]

    def changes_of(self, shape: TableShape) -> StoredChanges:
        """What is to be deleted and inserted in a table, each row once."""
        name = shape.name
        first = self.first_rows[name]
        changed = self.changed.get(name, {})
        tables = list(self.new.get(name, ()))
        if any(number >= first for number in changed):  # new rows that were changed again
            again = pa.array(list(changed), pa.int64())
            tables = [table.filter(pc.invert(pc.is_in(table[ROW], again))) for table in tables]
        if rows := [now for _, now in changed.values() if now is not None]:
            tables.append(table_of(sorted(rows, key=lambda row: row.number), shape.schema))
        stored = [(was, now) for number, (was, now) in changed.items() if number < first]
        return StoredChanges(
            pa.concat_tables(tables).combine_chunks() if tables else None,  # many small chunks take DuckDB long
            [was for was, _ in stored],
            [was for was, now in stored if now is None],
        )

    def answer(self, outcome: int | Exception) -> None:
        """Answer everybody who waits for the end of it."""
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            with suppress(InvalidStateError):
                if isinstance(outcome, int):
                    each.set_result(outcome)
                else:
                    each.set_exception(outcome)


@dataclass(frozen=True)
class Outcome:
    """What became of a frame that was shown."""

    records: Mapping[str, int]  # that were new, by what readers call their table
    taken: tuple[TableChanges, ...]
    stored: Future[int] | None  # the commit that it is in; None where it is stored already


class PendingFrames:
    """The frames of all generations that are shown and not stored yet. `lock` is held while frames are shown."""

    def __init__(self, lookup: Lookup) -> None:
        self.lock = threading.RLock()
        self._lookup = lookup
        self._open: dict[str, PendingBatch] = {}
        self._storing: dict[str, PendingBatch] = {}
        self._recent = Recent()

    def show(self, generation: Generation, frame: Frame) -> tuple[Generation, ShownChanges, Outcome]:
        """Apply a frame in memory: the generation after it, what is to be seen, and what is to be counted.

        Nothing has changed where a StoreFirstError or another error is raised.
        """
        part = frame.last
        writer = generation.writers.get(part.writer)
        marks = writer.marks if writer else {}
        shapes = {name: table.shape for name, table in generation.tables.items()}
        changes = frame_changes(shapes, frame.streams, marks, part.marks, generation.horizons)
        deltas = self._deltas(generation, changes)
        ended = max(writer.ended if writer else NO_BATCH, part.epoch if part.end else NO_BATCH)
        given = {name: _given(shapes[name], delta) for name, delta in deltas.items()}
        tables = {
            **generation.tables,
            **{name: _advanced(generation.tables[name], delta, given[name]) for name, delta in deltas.items()},
        }
        records = counted(writer, changes.records)
        after = replace(
            generation,
            tables=tables,
            run=max(generation.run, part.run),
            writers={**generation.writers, part.writer: Writer(frame.place, changes.marks, ended, records)},
        )
        times = FrameTimes.of(part)
        is_empty = not deltas and changes.marks is marks and ended == (writer.ended if writer else NO_BATCH)
        batch = self._open.get(generation.name)
        if is_empty and not part.durable and batch is None and generation.name not in self._storing:
            return after, ShownChanges(generation.name, generation.sequence, {}, None), Outcome({}, (), None)
        batch = batch or self._begin(generation)
        for name, delta in deltas.items():
            batch.add(name, delta, times)
            self._remember(batch, generation.name, generation.tables[name].shape, delta)
        batch.unknown_fields.append(changes.unknown_fields)
        stored: Future[int] = Future()
        batch.waiting.append(stored)
        taken = tuple(
            TableChanges(name, _upserts(shapes[name], given[name]), _gone(shapes[name], delta))
            for name, delta in deltas.items()
        )
        changed = ShownChanges(generation.name, batch.sequence, deltas, times)
        return after, changed, Outcome(Counter(changes.records), taken, stored)

    def waiting(self, generation: str) -> Future[int] | None:
        """A future that is done when everything shown of a generation so far is stored; None if it is."""
        with self.lock:
            batch = self._open.get(generation) or self._storing.get(generation)
            if batch is None:
                return None
            stored: Future[int] = Future()
            batch.waiting.append(stored)
            return stored

    @property
    def is_left_over(self) -> bool:
        """Whether something was taken and could not be stored. The caller holds the database's `writing`."""
        return bool(self._storing)

    def take(self, generations: Mapping[str, Generation]) -> list[PendingBatch]:
        """What is to be stored now: what could not be stored before, or else all that was shown since."""
        with self.lock:
            if not self._storing:
                self._storing, self._open = self._open, {}
                for name, batch in self._storing.items():
                    batch.after = replace(generations[name], sequence=batch.sequence)
            return list(self._storing.values())

    def answer(self, error: Exception) -> None:
        """Answer everybody who waits: nothing can be stored now."""
        with self.lock:
            for batch in (*self._storing.values(), *self._open.values()):
                batch.answer(error)

    def done(self) -> None:
        """What was taken is stored."""
        with self.lock:
            self._storing = {}
            self._recent.trim(self._is_stored)

    def forget(self, generation: str) -> None:
        """Throw away what was shown of a generation, and what is known of its rows."""
        with self.lock:
            for batches in (self._open, self._storing):
                if batch := batches.pop(generation, None):
                    batch.answer(StoreFirstError("the generation is gone"))
            self.forget_rows(generation)

    def forget_rows(self, generation: str) -> None:
        """Others have changed the rows of a generation: what is known of them counts no more."""
        with self.lock:
            self._recent.forget(generation)

    def _is_stored(self, generation: str, table: str) -> IsStored:
        """What says whether a recent row of a table is on disk as it is, or gone there. Nothing is being stored."""
        batch = self._open.get(generation)
        if batch is None:
            return lambda _, __: True
        changed, gone, first = batch.changed.get(table, {}), batch.gone.get(table, ()), batch.first_rows[table]
        return lambda row_id, row: (
            row_id not in gone if row is None else row.number not in changed and row.number < first
        )

    def _begin(self, generation: Generation) -> PendingBatch:
        storing = self._storing.get(generation.name)
        before = storing.sequence if storing else generation.sequence
        first_rows = {name: table.next_row for name, table in generation.tables.items()}
        batch = self._open[generation.name] = PendingBatch(before + 1, first_rows)
        return batch

    def _deltas(self, generation: Generation, changes: FrameChanges) -> dict[str, Delta]:
        if sum(rows.num_rows for news in changes.tables.values() for rows in news.rows) > SHOWN_ROWS_MAX:
            raise StoreFirstError("it has too many rows")
        found = {name: self._delta(generation, name, news) for name, news in changes.tables.items()}
        return {name: delta for name, delta in found.items() if delta.size}

    def _delta(self, generation: Generation, name: str, news: TableNews) -> Delta:
        table = generation.tables[name]
        if news.perhaps is not None:
            raise StoreFirstError("it may have rows that are there already")
        changed: list[tuple[Row, Row | None]] = []
        if news.gone is not None:
            key = table.shape.key[0]  # of a left record; only its row without a match is found
            found = self._known(generation, table.shape, key, news.gone[key].to_pylist())
            changed += [(row, None) for row in found.values() if row is not None]
        if news.newer is not None:
            changed += self._replaced(generation, table.shape, news.newer)
        new = None
        if news.new is not None:
            new = numbered(news.new, table.next_row)
        return Delta(new, tuple(changed))

    def _replaced(self, generation: Generation, shape: TableShape, newer: pa.Table) -> list[tuple[Row, Row]]:
        """The rows that these are newer than, with these in their place."""
        (key,) = shape.key
        place = shape.schema.names.index(key)
        versions = [shape.schema.names.index(name) for name in shape.version]
        given = rows_of(numbered(newer, 0))
        known = self._known(generation, shape, key, [row.values[place] for row in given])
        replaced = []
        for row in given:
            was = known[row.values[place]]
            if was is not None and _version(row, versions) > _version(was, versions):
                replaced.append((was, Row(was.number, row.values)))
        return replaced

    def _known(
        self, generation: Generation, shape: TableShape, key: str, ids: Sequence[int]
    ) -> Mapping[int, Row | None]:
        """The rows with these ids, of those that were remembered or else of the store."""
        recent = self._recent.of(generation.name, shape.name)
        missing = [each for each in ids if each not in recent]
        if missing:
            place = shape.schema.names.index(key)
            found: dict[int, Row | None] = dict.fromkeys(missing)
            rows = self._lookup(generation, shape, key, missing)
            matched: list[int] = []
            if shape.removes_unmatched:
                is_alone = pc.is_null(rows[shape.key[1]])
                matched = rows.filter(pc.invert(is_alone))[key].unique().to_pylist()
                rows = rows.filter(is_alone)
            for row in rows_of(rows):
                found[row.values[place]] = row
            if any(found[each] is not None for each in matched):
                raise StoreFirstError("a left record has a match, and is shown without one beside it")
            for own_id, known in found.items():
                recent[own_id] = known
        return {each: recent[each] for each in ids}

    def _remember(self, batch: PendingBatch, generation: str, shape: TableShape, delta: Delta) -> None:
        """Know the rows that may be replaced or removed later, while they are new."""
        if not shape.changes_rows:
            return
        place = shape.schema.names.index(shape.key[0])
        recent = self._recent.of(generation, shape.name)
        for was, now in delta.changed:
            recent[was.values[place]] = now
            if now is None:
                batch.gone.setdefault(shape.name, set()).add(was.values[place])
        for row in delta.new:
            if not (shape.removes_unmatched and _is_pair(shape, row)):
                recent[row.values[place]] = row


def _is_pair(shape: TableShape, row: Row) -> bool:
    return row.values[shape.schema.names.index(shape.key[1])] is not None


def _version(row: Row, places: Sequence[int]) -> list[tuple[bool, Any]]:
    """What to compare rows by: null before all values."""
    return [(row.values[place] is not None, row.values[place]) for place in places]


def _given(shape: TableShape, delta: Delta) -> list[pa.Table]:
    """The rows that are new, and those that have changed, with their numbers."""
    given = [] if delta.numbered is None else [delta.numbered]
    if changed := [now for _, now in delta.changed if now is not None]:
        given.append(table_of(changed, shape.schema))
    return given


def _advanced(table: StoredTable, delta: Delta, given: Sequence[pa.Table]) -> StoredTable:
    return table.with_rows(0 if delta.numbered is None else delta.numbered.num_rows, *given)


def _upserts(shape: TableShape, given: Sequence[pa.Table]) -> pa.Table:
    return (pa.concat_tables(given) if given else table_of([], shape.schema)).drop_columns(ROW)


def _gone(shape: TableShape, delta: Delta) -> pa.Table:
    rows = [was for was, now in delta.changed if now is None]
    return table_of(rows, shape.schema).select(shape.key) if rows else shape.key_schema.empty_table()

"""The recent changes of the published tables, in memory, for those who follow a table.

A follower has a place: the batch up to which it knows a table. It gets what changed since, or waits for it. The oldest
changes go first when there is no room left; a place before them is not known any more, and needs the whole table again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from livetables.model.change import TableChanges, TableShape
from livetables.model.columns import kind_of
from livetables.model.errors import RequestError
from livetables.model.wire import DELETED
from livetables.server.storage.pending import FrameTimes

BYTES_MAX = 64 * 1024 * 1024  # of all changes together
COLUMN_BYTES = 1_024  # what Arrow takes for a column beside its values
WAITING_MAX = 100  # each of them holds a thread
SLICE_SECONDS = 0.5
POSITION = "_position"


@dataclass(frozen=True)
class News:
    """What changed after a place, batch by batch, up to the batch `sequence`."""

    changes: tuple[TableChanges, ...]
    sequence: int
    times: FrameTimes | None = None  # of the newest record among the changes


@dataclass(frozen=True)
class _Held:
    generation: str
    sequence: int
    changes: dict[str, TableChanges]
    size: int
    times: Mapping[str, FrameTimes] = field(default_factory=dict)


class Feed:
    """Notified by the store's writer of every commit, read by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: deque[_Held] = deque()
        self._bytes = 0
        self._newest: dict[str, int] = {}  # the last batch, by published generation
        self._complete_after: dict[tuple[str, str | None], int] = {}  # by generation, and by table where that is later
        self._waiting: dict[tuple[str, str], set[threading.Event]] = {}

    def started(self, generation: str, sequence: int) -> None:
        """A generation is published: what changes after this batch will be held."""
        with self._lock:
            self._newest[generation] = self._complete_after[generation, None] = sequence

    def ended(self, generation: str) -> None:
        """A generation has lost its names."""
        with self._lock:
            self._newest.pop(generation, None)
            self._complete_after = {key: each for key, each in self._complete_after.items() if key[0] != generation}
            self._held = deque(held for held in self._held if held.generation != generation)
            self._bytes = sum(held.size for held in self._held)
            self._wake(key for key in self._waiting if key[0] == generation)

    def add(
        self,
        generation: str,
        sequence: int,
        given: Sequence[TableChanges],
        taken: Sequence[TableChanges],
        times: Mapping[str, FrameTimes] | None = None,
    ) -> None:
        """A batch of a published generation is committed: what it brought, and what of it the tables took.

        `times` are those of the newest record, by table, where records have caused it.
        """
        # All of it counts: what was taken may be a view of the one buffer that everything came in.
        distinct = {id(table): table for each in (*given, *taken) for table in (each.upserts, each.deletes)}
        size = sum(table.nbytes + table.num_columns * COLUMN_BYTES for table in distinct.values())
        changes = {each.table: each for each in taken if each.upserts.num_rows or each.deletes.num_rows}
        with self._lock:
            self._newest[generation] = sequence
            if not changes:
                return
            self._held.append(_Held(generation, sequence, changes, size, times or {}))
            self._bytes += size
            while self._bytes > BYTES_MAX:
                oldest = self._held.popleft()
                self._bytes -= oldest.size
                for table in oldest.changes:
                    self._complete_after[oldest.generation, table] = oldest.sequence
            self._wake((generation, table) for table in changes)

    def news(
        self, generation: str, table: str, after: int, seconds_max: float, is_over: Callable[[], bool]
    ) -> News | None:
        """What changed after a place, as soon as something has; nothing when time is up; None if it is not known."""
        found = self._found(generation, table, after)
        if found is None or found.changes or not seconds_max:
            return found
        deadline = time.monotonic() + seconds_max
        with self._waiter(generation, table) as woken:
            while True:
                woken.clear()
                found = self._found(generation, table, after)
                left = deadline - time.monotonic()
                if found is None or found.changes or left <= 0 or is_over():
                    return found
                woken.wait(min(left, SLICE_SECONDS))  # in slices: a client that has gone does not say so

    def wake(self) -> None:
        """Let all who wait look whether it is over."""
        with self._lock:
            self._wake(self._waiting)

    def _found(self, generation: str, table: str, after: int) -> News | None:
        with self._lock:
            if generation not in self._newest:
                return None
            newest = self._newest[generation]
            start = self._complete_after[generation, None]
            # One more than the newest is known too: a commit is seen in the tables before it is added here.
            if not self._complete_after.get((generation, table), start) <= after <= newest + 1:
                return None
            changes: deque[TableChanges] = deque()
            times: list[FrameTimes | None] = []
            for held in reversed(self._held):
                if held.generation == generation:
                    if held.sequence <= after:
                        break
                    if table in held.changes:
                        changes.appendleft(held.changes[table])
                        times.append(held.times.get(table))
            return News(tuple(changes), max(newest, after), FrameTimes.newest(times))

    @contextmanager
    def _waiter(self, generation: str, table: str) -> Iterator[threading.Event]:
        woken = threading.Event()
        with self._lock:
            if sum(map(len, self._waiting.values())) >= WAITING_MAX:
                raise RequestError(
                    "busy",
                    f"{WAITING_MAX} clients wait for changes already, which is the most at one time",
                    "ask again later, or close followers that are not needed",
                )
            self._waiting.setdefault((generation, table), set()).add(woken)
        try:
            yield woken
        finally:
            with self._lock:
                others = self._waiting[generation, table]
                others.discard(woken)
                if not others:
                    del self._waiting[generation, table]

    def _wake(self, keys: Iterable[tuple[str, str]]) -> None:
        for key in keys:
            for woken in self._waiting.get(key, ()):
                woken.set()


def changes_schema(shape: TableShape) -> pa.Schema:
    """The schema in which a table's changes are sent: its rows, and whether each is gone."""
    columns = [(field.name, kind_of(field.type).arrow) for field in shape.schema]
    return pa.schema([*columns, (DELETED, pa.bool_())])


def merged(shape: TableShape, changes: Sequence[TableChanges]) -> pa.Table:
    """Changes, in order, as one: every key once, with its last state. Of a row that is gone there is only the key."""
    schema = changes_schema(shape)
    parts = [
        _rows(schema, rows, is_deleted)
        for each in changes
        for rows, is_deleted in ((each.deletes, True), (each.upserts, False))
        if rows.num_rows
    ]
    rows = pa.concat_tables([schema.empty_table(), *parts])
    if len(changes) < 2:
        return rows
    keys = rows.select(shape.key).append_column(POSITION, pa.array(range(rows.num_rows), pa.int64()))
    last = keys.group_by(list(shape.key), use_threads=False).aggregate([(POSITION, "max")])[f"{POSITION}_max"]
    return rows.take(last.combine_chunks().sort())


def _rows(schema: pa.Schema, rows: pa.Table, is_deleted: bool) -> pa.Table:
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in schema
        if field.name != DELETED
    ]
    return pa.table([*columns, pa.repeat(pa.scalar(is_deleted), rows.num_rows)], schema=schema)

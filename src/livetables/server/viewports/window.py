"""A viewport that costs what changed, not what is stored. Pure: no database, no waiting.

A window keeps the rows in view and some beside them, in order, and how many rows of the table pass its filters. What
a frame changes decides what becomes of it: each changed row is filtered, placed among the rows that are kept, or
counted where it is above or below them. The store is asked only when rows that are not kept come into view.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, takewhile
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from livetables.server.viewports.masking import masked_row
from livetables.server.viewports.order import Key, order_key
from livetables.server.viewports.predicate import predicate
from livetables.server.viewports.row import TIME, Entry, Row, View, rows_of
from livetables.server.viewports.viewport import ViewOptions

KEPT_FROM_THE_TOP = 1_000  # a view that begins before this position keeps all rows above it
BESIDE_MIN, BESIDE_MAX = 50, 500  # rows to keep above and below a view
MANY = 200  # new rows, of which it is worth finding those that can be in view before anything is made of them
VIEW_BYTES_MAX = 4 * 1024 * 1024  # of the rows that a client is sent at once
KEPT_BYTES_MAX = 4 * VIEW_BYTES_MAX
ROW_MEMORY_BYTES = 900  # that a row takes as Python's objects, of eight columns, beside its text and the frames of that


@dataclass(frozen=True)
class Arrivals:
    """The new rows of a frame that pass some filters, in some order, with their keys."""

    keys: list[Key]
    rows: list[Row]

    @cached_property
    def size(self) -> int:
        """About how many bytes they take in JSON."""
        return sum(row.size for row in self.rows)


@dataclass(frozen=True)
class Delta:
    """What a frame changes in a table: rows that are new, and rows that were there with what they are now.

    New rows have higher numbers than all before them. Of a row that is gone, what it is now is None.
    """

    numbered: pa.Table | None = None  # the new rows, their numbers first
    changed: tuple[tuple[Row, Row | None], ...] = ()

    @cached_property
    def new(self) -> list[Row]:
        return [] if self.numbered is None else rows_of(self.numbered)

    @cached_property
    def _columns(self) -> dict[int, np.ndarray | None]:
        return {}

    def numbers(self, place: int) -> np.ndarray | None:
        """The new rows' values at a column, if they are numbers or times and none is null."""
        if self.numbered is None:
            return None
        if place not in self._columns:
            column = self.numbered.column(place + 1)
            if pa.types.is_timestamp(column.type):
                column = pc.cast(column, TIME, safe=False).cast(pa.int64())
            is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
            self._columns[place] = column.to_numpy() if is_number and not column.null_count else None
        return self._columns[place]

    @cached_property
    def _arrivals(self) -> dict[str, Arrivals]:
        return {}

    def arrivals(self, kind: str, make: Callable[[list[Row]], Arrivals]) -> Arrivals:
        """What `make` makes of the new rows: once for all windows of this kind, with the same filters and order."""
        if kind not in self._arrivals:
            self._arrivals[kind] = make(self.new)
        return self._arrivals[kind]

    @property
    def size(self) -> int:
        """How many rows it changes."""
        return len(self.changed) + (0 if self.numbered is None else self.numbered.num_rows)


def kept_range(options: ViewOptions) -> tuple[int, int]:
    """The position of the first row to keep for a view, and how many."""
    beside = min(max(options.size, BESIDE_MIN), BESIDE_MAX)
    start = 0 if options.offset <= KEPT_FROM_THE_TOP else options.offset - beside
    return start, options.offset - start + options.size + beside


class LiveWindow:
    """The rows of a view and those beside it, as of the last delta."""

    def __init__(
        self,
        schema: pa.Schema,
        options: ViewOptions,
        start: int,
        rows: Sequence[Row],
        total: int,
        hidden: Sequence[str] = (),
    ) -> None:
        """Begin with what the store has: `rows` from position `start` on, of `total` that pass the filters.

        Columns that are `hidden` are null in rows that deltas bring, as they are in those of the store.
        """
        self._hidden = frozenset(schema.names.index(name) for name in hidden)
        self.view = View.of(schema, options)
        self._options = options
        self._key = order_key(schema, options.sort)
        self._passes = predicate(schema, options)
        self._kind = options.model_dump_json(include={"filters", "quick", "sort", "masked"})
        self._first_sort = (
            (schema.names.index(options.sort[0].column), options.sort[0].descending) if options.sort else None
        )
        self._kept_max = 2 * kept_range(options)[1] + BESIDE_MAX
        self._start = start if rows else min(start, total)
        self._rows = list(rows)
        self._keys: list[Key] = [self._key(row) for row in rows]
        self._shown = [self.view.entry(row) for row in rows]
        self._bytes = sum(row.size for row in rows)
        self._touched = 0  # how often rows that are kept changed, or moved
        self._has_advanced = False
        self.total = total

    @property
    def rows(self) -> list[Row] | None:
        """The rows in view, as many as may be sent; None if the store has to be asked for them."""
        first, last = self._options.offset, min(self._options.offset + self._options.size, self.total)
        if first >= last:
            return []
        if first < self._start:
            return None
        rows = self._rows[first - self._start : last - self._start]
        if self._bytes > VIEW_BYTES_MAX:
            sizes = accumulate(row.size for row in rows)
            fitting = sum(1 for _ in takewhile(lambda size: size <= VIEW_BYTES_MAX, sizes))
            if fitting < len(rows):
                return rows[: max(1, fitting)]
        return rows if len(rows) == last - first else None

    @property
    def memory_bytes(self) -> int:
        """About how much memory it takes with the frames that are made of it."""
        return ROW_MEMORY_BYTES * len(self._rows) + 4 * self._bytes

    def shown(self, count: int) -> list[Entry]:
        """The first rows in view, as clients are sent them."""
        first = self._options.offset - self._start
        return self._shown[first : first + count]

    def advance(self, delta: Delta) -> bool:
        """Take a delta in; return whether anything that counts for the view may have changed."""
        self._has_advanced = True
        total, touched = self.total, self._touched
        for was, now in self._changed(delta):
            if self._passes is None or self._passes(was):
                self._remove(was)
            if now is not None and (self._passes is None or self._passes(now)):
                self._insert(now, self._key(now))
        if delta.numbered is not None:
            self._take(delta)
        self._cut()
        return (self.total, self._touched) != (total, touched)

    def _changed(self, delta: Delta) -> Iterable[tuple[Row, Row | None]]:
        if not self._hidden:
            return delta.changed
        return [
            (masked_row(was, self._hidden), None if now is None else masked_row(now, self._hidden))
            for was, now in delta.changed
        ]

    @property
    def has_advanced(self) -> bool:
        """Whether it has taken in more than the store had."""
        return self._has_advanced

    @property
    def _reaches_end(self) -> bool:
        return self._start + len(self._rows) >= self.total

    def _take(self, delta: Delta) -> None:
        """Take the new rows in. Most often all of them go to one place."""
        near = self._near(delta)
        arrivals = delta.arrivals(self._kind, self._arrivals) if near is None else self._arrivals(near)
        keys, count = arrivals.keys, len(arrivals.keys)
        if not count:
            return
        if self._keys and keys[-1] < self._keys[0]:
            self.total += count
            self._touched += 1
            if self._start > 0:
                self._start += count
            else:
                self._keys[:0] = keys
                self._rows[:0] = arrivals.rows
                self._shown[:0] = [self.view.entry(row) for row in arrivals.rows]
                self._bytes += arrivals.size
        elif self._keys and keys[0] > self._keys[-1] and not self._reaches_end:
            self.total += count
        else:
            for key, row in zip(keys, arrivals.rows, strict=True):
                self._insert(row, key)

    def _arrivals(self, rows: Iterable[Row]) -> Arrivals:
        """Those of new rows that pass the filters, with their keys, in order."""
        if self._hidden:
            rows = [masked_row(row, self._hidden) for row in rows]
        if self._passes is not None:
            rows = filter(self._passes, rows)
        keyed = sorted(((self._key(row), row) for row in rows), key=itemgetter(0))
        return Arrivals([key for key, _ in keyed], [row for _, row in keyed])

    def _near(self, delta: Delta) -> list[Row] | None:
        """The new rows that are not below what is kept, which are counted here; None: all are to be looked at."""
        assert delta.numbered is not None
        count = delta.numbered.num_rows
        if self._passes is not None or self._reaches_end or not self._rows:
            return None
        if self._first_sort is None:  # new rows come last
            self.total += count
            return []
        place, descending = self._first_sort
        values = delta.numbers(place) if count >= MANY else None
        bound = self._rows[-1].values[place]
        if values is None or bound is None or bound != bound:
            return None
        is_near = values >= bound if descending else values <= bound
        if descending and values.dtype.kind == "f":
            is_near |= np.isnan(values)
        near = np.flatnonzero(is_near)
        self.total += count - len(near)
        return [delta.new[position] for position in near]

    def _insert(self, row: Row, key: Key) -> None:
        was_at_end = self._reaches_end
        self.total += 1
        position = bisect_left(self._keys, key)
        if position == 0 and self._start > 0:
            self._start += 1  # it is above what is kept
            self._touched += 1
        elif position < len(self._keys) or was_at_end:
            self._keys.insert(position, key)
            self._rows.insert(position, row)
            self._shown.insert(position, self.view.entry(row))
            self._bytes += row.size
            self._touched += 1

    def _remove(self, row: Row) -> None:
        key = self._key(row)
        self.total -= 1
        position = bisect_left(self._keys, key)
        if position < len(self._keys) and self._keys[position] == key:
            self._bytes -= self._rows[position].size
            del self._keys[position], self._rows[position], self._shown[position]
            self._touched += 1
        elif position == 0 and self._start > 0:
            self._start -= 1
            self._touched += 1

    def _cut(self) -> None:
        """Keep no more than is of use: not what has moved far below the view, or above it, or takes too much memory."""
        if self._bytes > KEPT_BYTES_MAX:
            self._cut_to_bytes()
        if len(self._rows) > self._kept_max:
            start, size = kept_range(self._options)
            above = max(0, start - self._start)
            self._start += above
            self._rows = self._rows[above : above + size]
            self._keys = self._keys[above : above + size]
            self._shown = self._shown[above : above + size]
            self._bytes = sum(row.size for row in self._rows)

    def _cut_to_bytes(self) -> None:
        """Keep the rows that may be sent, and one more to know by; beside them only what there is room for."""
        first = end = min(max(0, self._options.offset - self._start), len(self._rows))
        in_view = 0
        while end < min(len(self._rows), first + self._options.size) and in_view <= VIEW_BYTES_MAX:
            in_view += self._rows[end].size
            end += 1
        while self._bytes > KEPT_BYTES_MAX and len(self._rows) > end:
            self._bytes -= self._rows.pop().size
            del self._keys[-1], self._shown[-1]
        above = 0
        while self._bytes > KEPT_BYTES_MAX and above < first:
            self._bytes -= self._rows[above].size
            above += 1
        del self._rows[:above], self._keys[:above], self._shown[:above]
        self._start += above

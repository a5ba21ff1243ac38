"""A row of a table in memory, as viewports keep it: its number, its values, and what clients are sent of it.

Values are Python's own, in the order of the table's columns. A time is its microseconds since 1970, so that comparing
two of them is cheap; text, numbers and booleans are themselves.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from livetables.model.columns import EPOCH, TIMESTAMP, column_type
from livetables.server.viewports.encoding import encoded_rows, encoded_time, encoded_value
from livetables.server.viewports.viewport import ROW, ViewOptions, chosen_columns

Values = tuple[Any, ...]
Entry = tuple[int, Values]

TIME = TIMESTAMP.arrow
NUMBER, LENGTH = struct.Struct("<d"), struct.Struct("<I")
ROUGH_BYTES = 12  # of a value that is not text, in JSON
CHECKSUMS_KEPT = 1_000


class Row:
    """A row of a table. Everybody who shows it shares it, and what was made of it."""

    __slots__ = ("entry", "number", "size", "values")

    def __init__(self, number: int, values: Values) -> None:
        self.number = number
        self.values = values
        # About how many bytes it takes in JSON.
        self.size = sum([len(value) + 2 if value.__class__ is str else ROUGH_BYTES for value in values])
        self.entry: Entry | None = None  # its number and values as clients are sent them, when somebody was

    def __repr__(self) -> str:
        return f"Row({self.number}, {self.values})"


class View:
    """What a viewport shows of a table: which columns, and how their values are sent."""

    def __init__(self, schema: pa.Schema, options: ViewOptions, places: tuple[int, ...] | None) -> None:
        self.schema = schema
        self.options = options
        self._places = places  # of the columns; None: all of them
        self._times = frozenset(place for place, field in enumerate(schema) if pa.types.is_timestamp(field.type))
        self._names = schema.names if places is None else [schema.names[place] for place in places]
        self.checksums = Checksums()
        self.columns = tuple((name, column_type(schema.field(name).type)) for name in self._names)

    @classmethod
    def of(cls, schema: pa.Schema, options: ViewOptions) -> View:
        chosen = chosen_columns(schema, options)
        places = tuple(schema.names.index(name) for name in chosen)
        return cls(schema, options, None if chosen == tuple(schema.names) else places)

    def entry(self, row: Row) -> Entry:
        """A row as clients are sent it. Until the row changes, its values are the same object."""
        entry = row.entry
        if entry is None:
            times = self._times
            values = tuple(
                _shown_time(value) if place in times and value is not None else encoded_value(value)
                for place, value in enumerate(row.values)
            )
            entry = row.entry = (row.number, values)
        if self._places is None:
            return entry
        return row.number, tuple([entry[1][place] for place in self._places])

    def arrow(self, rows: Sequence[Row]) -> pa.Table:
        """The rows in view as Arrow, without their numbers."""
        return table_of(rows, self.schema).select(self._names)


class Checksums:
    """The checksums of a viewport's windows, see docs/PROTOCOL.md. Those of rows are kept while they do not change."""

    def __init__(self) -> None:
        self._of_rows: dict[int, tuple[Values, bytes]] = {}

    def of_window(self, total: int, entries: Sequence[Entry]) -> str:
        if len(self._of_rows) > 4 * len(entries) + CHECKSUMS_KEPT:
            self._of_rows.clear()
        kept = self._of_rows
        rows = []
        for number, values in entries:
            found = kept.get(number)
            if found is None or found[0] is not values:
                found = kept[number] = (values, row_checksum(number, values))
            rows.append(found[1])
        return f"{zlib.crc32(b''.join([NUMBER.pack(total), *rows])):08x}"


def row_checksum(number: int, shown: Sequence[Any]) -> bytes:
    """A row's part of a window's checksum."""
    parts = [NUMBER.pack(number)]
    for value in shown:
        match value:
            case None:
                parts.append(b"\0")
            case False:
                parts.append(b"\1")
            case True:
                parts.append(b"\2")
            case str():
                text = value.encode()
                parts.append(b"\4" + LENGTH.pack(len(text)) + text)
            case _:
                parts.append(b"\3" + NUMBER.pack(value))
    return LENGTH.pack(zlib.crc32(b"".join(parts)))


def numbered(rows: pa.Table, first: int) -> pa.Table:
    """The rows with their numbers before them, from the first one on."""
    return rows.add_column(0, ROW, pa.array(np.arange(first, first + rows.num_rows, dtype=np.int64)))


def rows_of(numbered: pa.Table) -> list[Row]:
    """The rows of a table whose first column is their numbers."""
    assert numbered.column_names[0] == ROW
    numbers, *columns = (_values(column) for column in numbered.columns)
    if not columns:
        return [Row(number, ()) for number in numbers]
    return [Row(number, values) for number, values in zip(numbers, zip(*columns, strict=True), strict=True)]


def table_of(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    """The rows as Arrow, with their numbers first."""
    columns = zip(*(row.values for row in rows), strict=True) if rows else [() for _ in schema]
    arrays = [_array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    numbers = pa.array([row.number for row in rows], pa.int64())
    return pa.table([numbers, *arrays], schema=schema.insert(0, pa.field(ROW, pa.int64())))


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int64()).cast(TIME).cast(kind) if pa.types.is_timestamp(kind) else pa.array(values, kind)


def _values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = pc.cast(column, TIME, safe=False).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def _shown_time(microseconds: int) -> str:
    try:
        return encoded_time(EPOCH + timedelta(microseconds=microseconds))
    except OverflowError:  # before year 1 or after 9999: only Arrow can write it
        table = pa.table({"time": pa.array([microseconds], pa.int64()).cast(TIME)})
        text: str = encoded_rows(table)[0][0]
        return text

"""The order of a viewport's rows, in Python as in the database: by its sorts, nulls last, then by arrival.

A key compares as the database orders: text by its characters, NaN above all numbers, 0.0 and -0.0 equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import total_ordering
from typing import Any

import pyarrow as pa

from livetables.model.columns import ColumnKind, kind_of
from livetables.server.viewports.row import Row
from livetables.server.viewports.viewport import Sort

Key = tuple[Any, ...]

NULL = (2, 0)  # after all values


@total_ordering
class _Backwards:
    """Text in descending order."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Backwards) and self.text == other.text

    def __lt__(self, other: _Backwards) -> bool:
        return other.text < self.text

    def __hash__(self) -> int:
        return hash(self.text)


def order_key(schema: pa.Schema, sorts: Sequence[Sort]) -> Callable[[Row], Key]:
    """What to compare rows by. No two rows of a table have the same."""
    if not sorts:
        return lambda row: (row.number,)
    parts = [
        (schema.names.index(sort.column), _part(kind_of(schema.field(sort.column).type), sort.descending))
        for sort in sorts
    ]
    if len(parts) == 1:
        ((place, part),) = parts
        return lambda row: (part(row.values[place]), row.number)
    return lambda row: (*(part(row.values[place]) for place, part in parts), row.number)


def _part(kind: ColumnKind, descending: bool) -> Callable[[Any], tuple[int, Any]]:
    match kind, descending:
        case ColumnKind(has_nan=True), False:
            return lambda value: NULL if value is None else (0, value) if value == value else (1, 0)
        case ColumnKind(has_nan=True), True:
            return lambda value: NULL if value is None else (1, -value) if value == value else (0, 0)
        case _, False:
            return lambda value: NULL if value is None else (0, value)
        case ColumnKind(is_text=True), True:
            return lambda value: NULL if value is None else (0, _Backwards(value))
        case _:
            return lambda value: NULL if value is None else (0, -value)

"""Rows on a screen, in a pipe, and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

GAP = 2
CELL_WIDTH_MAX = 32
CONTROL_CHARACTERS = {code: " " for code in (*range(32), 127)}  # a record's text may hold anything


def shown_columns(names: Sequence[str], chosen: list[str] | None) -> list[str]:
    """The columns to show: those of the chosen ones that there are, or else all that are meant for people."""
    return [name for name in names if not name.startswith("_")] if chosen is None else [c for c in chosen if c in names]


def screen_table(rows: pa.Table, width: int) -> tuple[Table, list[str]]:
    """Rows under their columns' names, each on one line, numbers to the right; and the columns with no room left."""
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    shown: list[list[Text]] = []
    left = width
    for field in rows.schema:
        cells = [_cut(text(value)) for value in rows[field.name].to_pylist()]
        needed = max(map(cell_len, [field.name, *cells])) + GAP
        if shown and needed > left:
            break
        is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        table.add_column(Text(field.name), justify="right" if is_number else "left", no_wrap=True)
        shown.append([Text(cell) for cell in cells])
        left -= needed
    for row in zip(*shown, strict=True):
        table.add_row(*row)
    return table, rows.column_names[len(shown) :]


def lines(rows: pa.Table) -> Iterator[str]:
    """A line for each row, its values apart by tabs; a missing value is empty."""
    for row in _rows(rows):
        yield "\t".join(text(value) for value in row)


def json_line(value: Mapping[str, Any]) -> str:
    return json.dumps({name: json_value(inner) for name, inner in value.items()}, ensure_ascii=False)


def text(value: object) -> str:
    """A value for people, without anything that would move their cursor."""
    plain = json_value(value)
    if plain is None:
        return ""
    return (plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)).translate(CONTROL_CHARACTERS)


def _cut(cell: str) -> str:
    return cell if cell_len(cell) <= CELL_WIDTH_MAX else f"{set_cell_size(cell, CELL_WIDTH_MAX - 1)}…"


def json_value(value: Any) -> Any:
    """A value as the server's JSON has it: times in UTC, and what JSON has no number for as text."""
    match value:
        case datetime():
            moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
            return f"{moment.isoformat(timespec='milliseconds')}Z"
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {name: json_value(inner) for name, inner in value.items()}
        case list():
            return [json_value(inner) for inner in value]
        case bool() | int() | float() | str() | None:
            return value
        case date() | _:
            return str(value)


def _rows(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in rows.columns), strict=True)

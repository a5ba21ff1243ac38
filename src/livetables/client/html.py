"""What a notebook shows of tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import pyarrow as pa


def table_html(name: str, count: int, first: pa.Table) -> str:
    """A table's name, its size, and its first rows under columns with their types."""
    head = [f"{escape(field.name)}<br><small>{escape(str(field.type))}</small>" for field in first.schema]
    rows = zip(*(column.to_pylist() for column in first.columns), strict=True)
    shown = f"the first {first.num_rows:,} of {count:,} rows" if count > first.num_rows else f"{count:,} rows"
    return _html(f"<b>{escape(name)}</b>, {shown}", head, rows)


def tables_html(title: str, rows: Iterable[tuple[str, int, str]]) -> str:
    """All tables of a server."""
    return _html(escape(title), ["table", "rows", "generation"], rows)


def _html(title: str, head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    header = "".join(f"<th>{each}</th>" for each in head)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<div>{title}</div><table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    return "" if value is None else escape(str(value))

"""What viewers do not get of dead letters where `server.hide_raw_from_viewers` is set: what the records hold.

The columns are there, but null, wherever a selection is `masked`: in rows, filters, sorts and searches alike. In SQL
the table as a whole is an operator's.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

import pyarrow as pa

from livetables.model.change import TableShape
from livetables.model.roles import Role
from livetables.model.spec import DEAD_LETTERS
from livetables.server.viewports.row import Row
from livetables.server.viewports.viewport import Selection, quoted

HIDDEN = ("raw", "reason")  # a reason quotes the value that it is about

Kind = TypeVar("Kind", bound=Selection)


def for_role(selection: Kind, role: Role, *, hides_raw: bool) -> Kind:
    """A client's selection as its role may have it."""
    masked = hides_raw and role == "viewer"
    return selection if selection.masked == masked else selection.model_copy(update={"masked": masked})


def hidden_columns(shape: TableShape, *, masked: bool) -> tuple[str, ...]:
    """The columns of a table that are null for who may not see them."""
    if not masked or shape.name != DEAD_LETTERS:
        return ()
    return tuple(name for name in HIDDEN if name in shape.schema.names)


def masked_relation(relation: str, hidden: Collection[str]) -> str:
    """What to read from instead of a relation."""
    if not hidden:
        return relation
    nulls = ", ".join(f"CAST(NULL AS VARCHAR) AS {quoted(name)}" for name in hidden)
    return f"(SELECT * REPLACE ({nulls}) FROM {relation})"  # noqa: S608


def masked_rows(rows: pa.Table, hidden: Collection[str]) -> pa.Table:
    """Rows with nulls in the columns that are hidden."""
    for name in hidden:
        place = rows.schema.get_field_index(name)
        field = rows.schema.field(place)
        rows = rows.set_column(place, field, pa.nulls(rows.num_rows, field.type))
    return rows


def masked_row(row: Row, places: Collection[int]) -> Row:
    """A row with nulls at some places."""
    if not places:
        return row
    return Row(row.number, tuple(None if place in places else value for place, value in enumerate(row.values)))

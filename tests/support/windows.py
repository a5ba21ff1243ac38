"""A window as a client keeps it."""

from __future__ import annotations

from typing import Any

from livetables.server.viewports.viewport import Patch, Rows


def patched(old: Rows, change: Patch) -> list[tuple[int, tuple[Any, ...]]]:
    """The window after a patch, made as every client makes it."""
    gone = set(change.removed)
    rows = [row for position, row in enumerate(old) if position not in gone]
    for position, row_id, values in change.inserted:
        rows.insert(position, (row_id, values))
    for position, column, value in change.updated:
        row_id, values = rows[position]
        rows[position] = (row_id, (*values[:column], value, *values[column + 1 :]))
    return rows

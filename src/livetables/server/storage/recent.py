"""The rows of views that frames are likely to replace or remove next: known without asking the store.

A row that is not on disk has to be known. Of the others the oldest go first, beyond so many rows or bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from livetables.server.viewports.row import Row

ROWS_MAX = 20_000  # of a view
BYTES_MAX = 64 * 1024 * 1024  # of all views of all generations together
ROW_BYTES = 500  # about what Python takes for a row beside its text

IsStored = Callable[[int, Row | None], bool]


class RecentRows:
    """Those of one view, by the id of their record; None for a row that is gone."""

    def __init__(self) -> None:
        self._rows: OrderedDict[int, Row | None] = OrderedDict()
        self._bytes = 0

    def __contains__(self, row_id: int) -> bool:
        return row_id in self._rows

    def __getitem__(self, row_id: int) -> Row | None:
        return self._rows[row_id]

    def __setitem__(self, row_id: int, row: Row | None) -> None:
        if row_id in self._rows:
            self._bytes -= _size(self._rows[row_id])
        self._rows[row_id] = row
        self._bytes += _size(row)

    def trim(self, bytes_max: int, is_stored: IsStored) -> None:
        """Forget the oldest rows of those that are on disk, as far as there are too many."""
        for row_id in list(self._excess(bytes_max, is_stored)):
            self._bytes -= _size(self._rows.pop(row_id))

    def _excess(self, bytes_max: int, is_stored: IsStored) -> Iterator[int]:
        rows, size = len(self._rows), self._bytes
        for row_id, row in self._rows.items():
            if rows <= ROWS_MAX and size <= bytes_max:
                return
            if is_stored(row_id, row):
                rows, size = rows - 1, size - _size(row)
                yield row_id


class Recent:
    """The recent rows of all views, by generation and view."""

    def __init__(self) -> None:
        self._views: dict[tuple[str, str], RecentRows] = {}

    def of(self, generation: str, view: str) -> RecentRows:
        return self._views.setdefault((generation, view), RecentRows())

    def forget(self, generation: str) -> None:
        for key in [key for key in self._views if key[0] == generation]:
            del self._views[key]

    def trim(self, is_stored: Callable[[str, str], IsStored]) -> None:
        """Forget what is too much. Each view has the same share of the bytes."""
        for (generation, view), rows in self._views.items():
            rows.trim(BYTES_MAX // len(self._views), is_stored(generation, view))


def _size(row: Row | None) -> int:
    return ROW_BYTES + (row.size if row else 0)

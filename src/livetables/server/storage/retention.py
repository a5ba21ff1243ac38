"""How long dead letters are kept: those of the newest records, up to a number and a size."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from livetables.model.change import TableChanges
from livetables.model.spec import DEAD_LETTERS
from livetables.server.storage.batches import BatchWriter
from livetables.server.storage.catalogue import Catalogue
from livetables.server.storage.database import Database
from livetables.server.storage.generation import StoredTable
from livetables.server.storage.writer import TableWriter
from livetables.server.viewports.viewport import quoted


class Retention:
    """Trims the dead letters of all generations."""

    def __init__(self, database: Database, catalogue: Catalogue, frames: TableWriter, batches: BatchWriter) -> None:
        self._database = database
        self._catalogue = catalogue
        self._frames = frames
        self._batches = batches
        self._trimmed: dict[str, int] = {}  # how far a generation's dead letters went when they were trimmed last

    def trim(self, rows_max: int, bytes_max: int) -> int:
        """Delete the dead letters of the oldest records of each generation; return how many.

        Those of the newest records stay: so many rows, and so many bytes of raw values. Newest is by time, then by
        table, partition and offset. What stays depends on the records alone, whenever it is done: everything older than
        a dead letter that had to go is too old for ever, also when it comes later.
        """
        deleted = 0
        for name, generation in self._catalogue.generations.items():
            table = generation.tables.get(DEAD_LETTERS)
            if table is None or self._trimmed.get(name) == table.next_row:
                continue
            with self._frames.nothing_pending(name):
                deleted += self._trim(name, rows_max, bytes_max)
        return deleted

    def forget(self, generation: str) -> None:
        self._trimmed.pop(generation, None)

    def _trim(self, name: str, rows_max: int, bytes_max: int) -> int:
        generation = self._catalogue.generations.get(name)
        if generation is None:
            return 0
        table = generation.tables[DEAD_LETTERS]
        with self._database.snapshot() as cursor:
            query, parameters = _too_old_query(table, generation.trimmed, rows_max, bytes_max)
            old = cursor.sql(query, params=parameters).to_arrow_table()
        if old.num_rows:
            newest = old.slice(0, 1).to_pylist()[0]
            trimmed = (newest["ts"].isoformat(), newest["source"], newest["_id"])
            generation = replace(generation, trimmed=max(trimmed, generation.trimmed or trimmed, key=_place))
            nothing = table.shape.schema.empty_table()
            keys = old.select(table.shape.key).cast(table.shape.key_schema)
            self._batches.delete(generation, TableChanges(DEAD_LETTERS, nothing, keys))
        self._trimmed[name] = table.next_row
        return int(old.num_rows)


def _place(trimmed: tuple[str, str, int]) -> tuple[datetime, str, int]:
    time, source, row_id = trimmed
    return datetime.fromisoformat(time), source, row_id


def _too_old_query(
    table: StoredTable, trimmed: tuple[str, str, int] | None, rows_max: int, bytes_max: int
) -> tuple[str, list[object]]:
    """SQL for the dead letters beyond those of the newest records, the newest of them first; and its parameters."""
    columns = ", ".join(quoted(name) for name in dict.fromkeys(("ts", "source", "_id", *table.shape.key)))
    is_older = "row(ts, source, _id) <= row(CAST(? AS TIMESTAMPTZ), ?, ?)" if trimmed else "false"
    query = (
        f"SELECT {columns} FROM {table.relation} "  # noqa: S608
        "WINDOW newest AS (ORDER BY ts DESC, source DESC, _id DESC ROWS UNBOUNDED PRECEDING) "
        f"QUALIFY row_number() OVER newest > {rows_max} "
        f"OR sum(coalesce(strlen(raw), 0)) OVER newest > {bytes_max} OR {is_older} "
        "ORDER BY ts DESC, source DESC, _id DESC"
    )
    return query, list(trimmed or ())

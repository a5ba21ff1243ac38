"""How much is kept: the newest records of a table that has a limit, and the dead letters of the newest records."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

import duckdb

from livetables.model.change import TableChanges
from livetables.model.spec import DEAD_LETTERS
from livetables.server.storage.batches import BatchWriter
from livetables.server.storage.catalogue import Catalogue
from livetables.server.storage.database import Database
from livetables.server.storage.generation import StoredTable
from livetables.server.storage.trimming import found_horizon, remove
from livetables.server.storage.writer import TableWriter
from livetables.server.viewports.viewport import quoted

RESTS = 20  # times as long as a table took to trim, until it is trimmed again


def steady_clock() -> Callable[[], float]:
    """A clock that nobody sets: the machine's time now, and from then on what has really passed."""
    started = time.time() - time.monotonic()
    return lambda: started + time.monotonic()


@dataclass(frozen=True)
class _Look:
    """The last time that a table was looked at: how far it went, until when it rests, and whether its time is ahead."""

    next_row: int = 0
    rests_until: float = 0.0
    is_ahead: bool = False


class Retention:
    """Trims the tables and dead letters of all generations."""

    def __init__(self, database: Database, catalogue: Catalogue, frames: TableWriter, batches: BatchWriter) -> None:
        self._database = database
        self._catalogue = catalogue
        self._frames = frames
        self._batches = batches
        self._clock = steady_clock()
        self._trimmed: dict[str, int] = {}  # how far a generation's dead letters went when they were trimmed last
        self._looked_at: dict[tuple[str, str], _Look] = {}  # by generation and table

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

    def trim_tables(self, now: Callable[[], float] | None = None) -> dict[str, int]:
        """Delete the records that tables are not to keep, with all that they made in views; return how many, by table.

        What stays depends on the records alone, however many have come and whenever it is done: everything up to a
        record that had to go is too old for ever, see `horizons.py`. So the place is looked for while frames come, and
        they wait for the rest alone.
        """
        deleted: dict[str, int] = {}
        for name, generation in self._catalogue.generations.items():
            for table in generation.tables.values():
                if table.shape.retain is None or not self._is_due(table):
                    continue
                started, seconds = time.monotonic(), (now or self._clock)()
                self._frames.store_shown()  # all rows that `next_row` counts
                rows = self._trim_table(name, table, int(seconds * 1000))
                ended = time.monotonic()
                is_ahead = table.newest is not None and table.newest.timestamp() > seconds
                look = _Look(table.next_row, ended + RESTS * (ended - started), is_ahead)
                self._looked_at[name, table.shape.name] = look
                if rows:
                    deleted[table.shape.name] = deleted.get(table.shape.name, 0) + rows
        return deleted

    def forget(self, generation: str) -> None:
        self._trimmed.pop(generation, None)
        for key in [key for key in self._looked_at if key[0] == generation]:
            del self._looked_at[key]

    def _is_due(self, table: StoredTable) -> bool:
        look = self._looked_at.get((table.generation, table.shape.name), _Look())
        return (table.next_row != look.next_row or look.is_ahead) and time.monotonic() >= look.rests_until

    def _trim_table(self, name: str, table: StoredTable, now_ms: int) -> int:
        source, retain = table.shape.sources[0], table.shape.retain
        assert retain
        with self._database.snapshot() as cursor:
            horizon = found_horizon(cursor, table, retain, now_ms)
        generation = self._catalogue.generations.get(name)
        known = generation.horizons.get(source) if generation else None
        if generation is None or horizon is None or (known is not None and horizon <= known):
            return 0
        with self._frames.nothing_pending(name):
            generation = self._catalogue.generations.get(name)
            if generation is None:
                return 0
            after = replace(generation, horizons={**generation.horizons, source: horizon})
            deleted = 0

            def removed(writer: duckdb.DuckDBPyConnection) -> list[TableChanges]:
                nonlocal deleted
                changes = remove(writer, generation, source, horizon)
                deleted = sum(each.deletes.num_rows for each in changes if each.table == table.shape.name)
                return changes

            self._batches.rewrite(after, removed)
            return deleted

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

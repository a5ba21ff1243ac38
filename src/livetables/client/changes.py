"""Following a table: what it is, and from then on what changes in it, through restarts and swaps.

A follower knows its place, and asks for what came after it, again and again. Every answer is a whole step from one
state of the table to a later one, so an answer that is lost on its way is asked for again, and none is applied twice.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from livetables.backoff import delays
from livetables.client.door import UnreachableError
from livetables.client.flight import Flight
from livetables.errors import RequestError
from livetables.wire import DELETED, ChangesHeader, Place

POLL_SECONDS = 10.0  # the server is asked to wait so long; a follower that is closed leaves its question for the rest
ANSWER_SECONDS_MAX = 300.0  # a whole table may take a while
DELAY_SECONDS_MAX = 5.0
PASSING = ("busy", "timeout", "unavailable")  # refusals that may not be so later


@dataclass(frozen=True, eq=False)
class Change:
    """A step of a table: rows that are new or others now, and the keys of rows that are gone.

    With `is_snapshot`, `upserts` is the whole table, and takes the place of everything known before. So is the first
    step, one after a swap, perhaps with other columns, and one after a time away that is too long for the server's
    memory.
    """

    table: str
    place: Place  # to go on from here: `table.changes(since=change.place)`
    is_snapshot: bool
    key: tuple[str, ...]
    upserts: pa.Table
    deletes: pa.Table

    @property
    def generation(self) -> str:
        return self.place.generation

    @property
    def sequence(self) -> int:
        return self.place.sequence

    def apply_to(self, rows: dict[tuple[Any, ...], dict[str, Any]]) -> None:
        """Bring a copy of the table up to date: its rows by key.

        >>> rows = {}
        >>> with server.table("final_ui").changes() as changes:
        ...     for change in changes:
        ...         change.apply_to(rows)
        ...         break
        """
        if self.is_snapshot:
            rows.clear()
        for row in self.deletes.to_pylist():
            rows.pop(tuple(row[column] for column in self.key), None)
        for row in self.upserts.to_pylist():
            rows[tuple(row[column] for column in self.key)] = row

    def __repr__(self) -> str:
        kind = "snapshot" if self.is_snapshot else "change"
        return (
            f"<{kind} of {self.table}: {self.upserts.num_rows:,} upserts, {self.deletes.num_rows:,} deletes, "
            f"to batch {self.sequence} of {self.generation}>"
        )


class Changes:
    """The changes of a table, one after another, for `for` and `async for`; it ends when it is closed.

    A server that is away is waited for. What it refuses (a wrong key, an unknown table) is raised. One thread or task
    uses it; any may close it.
    """

    def __init__(self, flight: Flight, table: str, since: Place | None, snapshot: bool) -> None:
        self._flight = flight
        self._table = table
        self._place = since
        self._snapshot = snapshot
        self._has_answered = False
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._next: Future[Change | None] | None = None  # what a thread looks for; it outlives who waited for it

    def begin(self) -> Place | None:
        """Ask for the place to follow from now, and not with the first change; None: with all of the table."""
        if self._place is None and not self._snapshot:
            self._place = self._asked(None).place
        return self._place

    def close(self) -> None:
        """End it; whoever waits for the next change is told that there is none."""
        with self._lock:
            self._closed.set()
            if self._next is not None:
                with suppress(InvalidStateError):  # it was there already
                    self._next.set_result(None)

    def __iter__(self) -> Changes:
        return self

    def __next__(self) -> Change:
        change = self._taken(self._sought().result())
        if change is None:
            raise StopIteration
        return change

    def __aiter__(self) -> Changes:
        return self

    async def __anext__(self) -> Change:
        # Shielded: a task that gives up waiting leaves what is sought to the next one.
        change = self._taken(await asyncio.shield(asyncio.wrap_future(self._sought())))
        if change is None:
            raise StopAsyncIteration
        return change

    def __enter__(self) -> Changes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Changes:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<changes of {self._table}{', closed' if self._closed.is_set() else ''}>"

    def _sought(self) -> Future[Change | None]:
        """The next change, looked for by a thread: gRPC cannot be interrupted, and Ctrl-C and `close` must be."""
        with self._lock:
            if self._next is None or (self._next.done() and self._next.exception()):
                self._next = Future()
                if self._closed.is_set():
                    self._next.set_result(None)
                else:
                    name = f"livetables-changes-{self._table}"
                    threading.Thread(target=self._seek, args=(self._next,), name=name, daemon=True).start()
            return self._next

    def _taken(self, change: Change | None) -> Change | None:
        """Go on from a change, now that it is in the hands of whoever asked."""
        self._next = None
        if change is None or self._closed.is_set():
            return None
        self._place = change.place
        return change

    def _seek(self, found: Future[Change | None]) -> None:
        with suppress(InvalidStateError):  # it was closed
            try:
                found.set_result(self._found(found))
            except Exception as error:
                found.set_exception(error)

    def _found(self, found: Future[Change | None]) -> Change | None:
        place, waits = self._place, delays(DELAY_SECONDS_MAX)
        while not found.done():
            try:
                change = self._asked(place)
            except UnreachableError:
                self._closed.wait(next(waits))
            except RequestError as error:
                if error.code not in PASSING or not self._has_answered:
                    raise
                self._closed.wait(next(waits))
            else:
                self._has_answered = True
                if change.is_snapshot or change.upserts.num_rows or change.deletes.num_rows:
                    return change
                place, waits = change.place, delays(DELAY_SECONDS_MAX)
                self._place = place  # nothing came before it
        return None

    def _asked(self, place: Place | None) -> Change:
        ticket = {
            "changes": self._table,
            **({"generation": place.generation, "begun": place.begun, "after": place.sequence} if place else {}),
            "snapshot": place is not None or self._snapshot,
            "seconds_max": POLL_SECONDS,
        }
        rows = self._flight.rows(ticket, ANSWER_SECONDS_MAX)
        header = ChangesHeader.of(rows.schema)
        plain = rows.replace_schema_metadata(None)
        upserts = plain.filter(pc.invert(rows[DELETED])).drop_columns(DELETED)
        deletes = plain.filter(rows[DELETED]).select(header.key)
        return Change(header.table, header.place, header.is_snapshot, header.key, upserts, deletes)

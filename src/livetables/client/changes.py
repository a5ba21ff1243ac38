"""Following a table: what it is, and from then on what changes in it, through restarts and swaps.

A follower knows its place, and asks for what came after it, again and again. Every answer is a whole step from one
state of the table to a later one, so an answer that is lost on its way is asked for again, and none is applied twice.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from livetables.backoff import delays
from livetables.client.clock import Clock
from livetables.client.flight import Flight
from livetables.client.http import UnreachableError
from livetables.client.latency import LastMinute, Latency, Receipt
from livetables.model.checksum import content_checksum
from livetables.model.errors import RequestError
from livetables.model.wire import DELETED, ChangesHeader, Place

POLL_SECONDS = 10.0  # the server is asked to wait so long; a follower that is closed leaves its question for the rest
ANSWER_SECONDS_MAX = 300.0  # a whole table may take a while
DELAY_SECONDS_MAX = 5.0
CHECK_SECONDS = 1.0  # between two answers that are to have a checksum
DAMAGED_MAX = 5  # answers in a row


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
    receipt: Receipt | None = None  # how its newest record came here; None if no record caused it, as in a snapshot

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


class _DamagedError(Exception):
    """An answer whose rows are not those that the server made the checksum of."""


class Changes:
    """The changes of a table, one after another, for `for` and `async for`; it ends when it is closed.

    A server that is away is waited for. What it refuses (a wrong key, an unknown table) is raised. Now and then an
    answer is compared with the server's checksum of it, and asked for again if it differs: `checksum_mismatches` counts
    that. One thread or task uses it; any may close it.
    """

    def __init__(
        self, flight: Flight, table: str, since: Place | None, snapshot: bool, clock: Clock | None = None
    ) -> None:
        self._flight = flight
        self._table = table
        self._place = since
        self._snapshot = snapshot
        self._clock = clock or Clock()
        self._last_minute = LastMinute()
        self._check_due = 0.0  # when the next answer is to have a checksum
        self.checksum_mismatches = 0
        self._has_answered = False
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._next: Future[Change | None] | None = None  # what a thread looks for; it outlives who waited for it

    def begin(self) -> Place | None:
        """Ask for the place to follow from now, and not with the first change; None: with all of the table."""
        if self._place is None and not self._snapshot:
            self._place = self._asked(None).place
        return self._place

    @property
    def latency(self) -> Latency | None:
        """How long the changes of the last minute took from Kafka to here; None if there were none."""
        return self._last_minute.summary(time.monotonic())

    def close(self) -> None:
        """End it; whoever waits for the next change gets none."""
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
        place, waits, damaged = self._place, delays(DELAY_SECONDS_MAX), 0
        while not found.done():
            try:
                change = self._asked(place, is_damaged=damaged > 0)
            except _DamagedError:
                self.checksum_mismatches += 1
                damaged += 1
                if damaged == DAMAGED_MAX:
                    raise RequestError(
                        "internal",
                        f"{damaged} answers in a row had another content than the server made their checksum of",
                        "let client and server be of the same version of livetables, and look at what is between them",
                    ) from None
                self._closed.wait(next(waits))
            except UnreachableError:
                self._closed.wait(next(waits))
            except RequestError as error:
                if not (error.is_retryable and self._has_answered):
                    raise
                self._closed.wait(next(waits))
            else:
                self._has_answered = True
                if change.receipt:
                    self._last_minute.add(change.receipt, time.monotonic())
                if change.is_snapshot or change.upserts.num_rows or change.deletes.num_rows:
                    return change
                place, waits, damaged = change.place, delays(DELAY_SECONDS_MAX), 0
                self._place = place  # nothing came before it
        return None

    def _asked(self, place: Place | None, *, is_damaged: bool = False) -> Change:
        """The next step from a place; `is_damaged` says that its last answer was."""
        is_checked = place is not None and (is_damaged or time.monotonic() >= self._check_due)
        ticket = {
            "changes": self._table,
            **({"generation": place.generation, "begun": place.begun, "after": place.sequence} if place else {}),
            "snapshot": place is not None or self._snapshot,
            "seconds_max": POLL_SECONDS,
            "checksum": is_checked,
            **({"reason": "checksum"} if is_damaged else {}),
        }
        rows = self._flight.rows(ticket, ANSWER_SECONDS_MAX)
        received = self._clock.at(time.time() * 1000)
        header = ChangesHeader.of(rows.schema)
        if header.checksum and header.checksum != content_checksum(rows):
            raise _DamagedError
        if is_checked or header.is_snapshot:  # the first answer after a snapshot is checked
            self._check_due = 0.0 if header.is_snapshot else time.monotonic() + CHECK_SECONDS
        plain = rows.replace_schema_metadata(None)
        upserts = plain.filter(pc.invert(rows[DELETED])).drop_columns(DELETED)
        deletes = plain.filter(rows[DELETED]).select(header.key)
        receipt = Receipt(**asdict(header.receipt), received=received) if header.receipt else None
        return Change(header.table, header.place, header.is_snapshot, header.key, upserts, deletes, receipt)

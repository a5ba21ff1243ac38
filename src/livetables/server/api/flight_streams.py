"""The streams that Flight clients read: so many at a time, and none that is left unread for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any
from weakref import WeakSet

import pyarrow as pa

from livetables.model.errors import RequestError
from livetables.server.api.flight_errors import flight_errors

SCANS_MAX = 8
ANSWERS_BYTES_MAX = 256 * 1024 * 1024  # of windows and changes, which are in memory until they are read
PATIENCE_SECONDS = 60.0  # with a client that reads nothing of a stream that was given up; it may yet read why


class Stream:
    """The chunks of an answer, for a GeneratorStream."""

    def __init__(
        self, chunks: Generator[Any, None, None], rest_seconds_max: float, cut: Callable[[], None] = lambda: None
    ) -> None:
        """`cut` ends the connection of whoever is to read them."""
        self.schema = next(chunks)
        self._chunks = chunks
        self._reading = threading.Lock()
        self._rest_seconds_max = rest_seconds_max
        self._resting_since = time.monotonic()
        self._is_given_up = self._is_cut = False
        self._cut = cut

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._reading, flight_errors():
            if self._is_given_up:
                raise RequestError(
                    "timeout",
                    f"the stream was left unread for {self._rest_seconds_max:g} s",
                    "ask again, and read it to its end without a long pause",
                )
            chunk = next(self._chunks, None)
            self._resting_since = time.monotonic()
        if chunk is None:
            raise StopIteration
        return chunk

    def close_if_stalled(self) -> None:
        if not self._reading.acquire(blocking=False):
            return
        try:
            resting = time.monotonic() - self._resting_since
            if resting > self._rest_seconds_max:
                self._is_given_up = True
                self._chunks.close()
            if resting > self._rest_seconds_max + PATIENCE_SECONDS and not self._is_cut:
                self._is_cut = True
                self._cut()  # the chunk that is not taken is held by gRPC, with a thread, as long as the connection
        finally:
            self._reading.release()


class Streams:
    """The streams that are being read. One that its client leaves unread too long is closed.

    At most SCANS_MAX of them read the database meanwhile; others have at most ANSWERS_BYTES_MAX in memory.
    """

    def __init__(self) -> None:
        self._places = threading.BoundedSemaphore(SCANS_MAX)
        self._answers_bytes = 0
        self._lock = threading.Lock()
        self._open: WeakSet[Stream] = WeakSet()  # gRPC lets a stream go when its call has ended

    def opened(
        self,
        reader: AbstractContextManager[pa.RecordBatchReader],
        rest_seconds_max: float,
        cut: Callable[[], None],
    ) -> Stream:
        """A stream of what is read from the database as the client takes it."""
        self.close_stalled()
        return self._added(Stream(self._chunks(reader), rest_seconds_max, cut))

    def made(self, rows: pa.Table, rest_seconds_max: float, cut: Callable[[], None]) -> Stream:
        """A stream of rows that have been read."""
        return self._added(Stream(self._batches(rows), rest_seconds_max, cut))

    def close_stalled(self) -> None:
        with self._lock:
            streams = list(self._open)
        for stream in streams:
            stream.close_if_stalled()

    def _chunks(self, reader: AbstractContextManager[pa.RecordBatchReader]) -> Generator[Any, None, None]:
        """First the schema, so that whoever has it has opened the reader, and letting go closes it; then the chunks."""
        with self._place(), reader as opened, closing(opened):  # a cursor with an open result cannot be used again
            yield opened.schema
            yield from opened

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            raise RequestError(
                "busy",
                f"{SCANS_MAX} tables or queries are being read already, which is the most at one time",
                "ask again when one has been read, or ask for a window (`offset` and `size`)",
            )
        try:
            yield
        finally:
            self._places.release()

    def _batches(self, rows: pa.Table) -> Generator[Any, None, None]:
        """The same of rows that have been read."""
        with self._room(rows.nbytes):
            yield rows.schema
            yield from rows.to_batches()

    @contextmanager
    def _room(self, size: int) -> Iterator[None]:
        with self._lock:
            if self._answers_bytes and self._answers_bytes + size > ANSWERS_BYTES_MAX:
                raise RequestError(
                    "busy",
                    "clients do not read what they have asked for: too much of it waits already",
                    "ask again later, and for less at once",
                )
            self._answers_bytes += size
        try:
            yield
        finally:
            with self._lock:
                self._answers_bytes -= size

    def _added(self, stream: Stream) -> Stream:
        with self._lock:
            self._open.add(stream)
        return stream

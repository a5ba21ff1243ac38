"""A client's query under way: its time, its memory, and its errors in words."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import duckdb
import pyarrow as pa

from livetables.model.errors import RequestError
from livetables.server.storage.sql import is_shortage, wrong_query

INTERRUPT_SECONDS = 0.1
GIVE_WAY_SECONDS = 2.0

Subject = TypeVar("Subject")
Answer = TypeVar("Answer")


class Running:
    """A client's query under way: stopped when its time is up, or when its memory is needed."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, seconds_max: float) -> None:
        self._cursor = cursor
        self._seconds_max = seconds_max
        self._is_needed = threading.Event()  # its memory, or the clock no more
        self._ended = threading.Event()
        self._is_overdue = False

    @contextmanager
    def among(self, others: set[Running]) -> Iterator[Running]:
        """Run, known to others, until the end of the block."""
        clock = threading.Thread(target=self._stop_in_time, name="livetables-sql-clock", daemon=True)
        others.add(self)
        clock.start()
        try:
            yield self
        finally:
            others.discard(self)
            self._ended.set()
            self._is_needed.set()
            clock.join()

    def give_way(self) -> None:
        """Stop, and wait a while for the end of it."""
        self._is_needed.set()
        self._ended.wait(GIVE_WAY_SECONDS)

    @contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Turn what DuckDB and Arrow raise into RequestErrors."""
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:  # Arrow makes OSErrors of a stream's errors
            raise self._as_request_error(error) from None

    def chunks(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        with self.reporting_errors():
            yield from reader

    def _as_request_error(self, error: Exception) -> RequestError:
        if self._is_overdue:
            problem = f"the query took longer than {self._seconds_max:g} s"
            return RequestError("timeout", problem, "ask for less, or for one table at a time")
        if self._is_needed.is_set():
            problem = "the query was stopped: its memory was needed for the tables"
            return RequestError("limit", problem, "ask for less at once, or set server.memory_megabytes higher")
        if is_shortage(error):
            return _shortage()
        return wrong_query(error)

    def _stop_in_time(self) -> None:
        if not self._is_needed.wait(self._seconds_max):
            self._is_overdue = True
        while not self._ended.is_set():
            self._cursor.interrupt()
            self._ended.wait(INTERRUPT_SECONDS)  # and again: an interrupt between two steps of a query is lost


def in_time(
    read: Callable[[duckdb.DuckDBPyConnection, Subject], Answer], seconds_max: float
) -> Callable[[duckdb.DuckDBPyConnection, Subject], Answer]:
    """A reading that is stopped when its time is up, with a TimeoutError."""

    def read_in_time(cursor: duckdb.DuckDBPyConnection, subject: Subject) -> Answer:
        with Running(cursor, seconds_max).among(set()):
            try:
                return read(cursor, subject)
            except duckdb.InterruptException:
                raise TimeoutError(f"it took longer than {seconds_max:g} s") from None

    return read_in_time


@contextmanager
def reporting_shortage() -> Iterator[None]:
    """Turn a lack of memory into a RequestError."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:  # see Running.reporting_errors
        if not is_shortage(error):
            raise
        raise _shortage() from None


def chunks_of(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    with reporting_shortage():
        yield from reader


def _shortage() -> RequestError:
    return RequestError(
        "limit",
        "this needs more memory than there is",
        "ask for less at once, or set server.memory_megabytes higher",
    )

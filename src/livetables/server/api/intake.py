"""The frames of the pipeline on their way to viewers and into the store.

One thread applies frames in memory and shows them, in the order in which they came; another stores what was shown, all
that has come since the last time in one transaction. A frame that asks for it is answered when it is on disk, any
other as soon as it is shown. What is not on disk is bounded by its bytes; a writer that finds no room is to try again.

A large frame, of a backlog, is applied by the store on a third thread: those of its own generation wait for it, those
of the others do not.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import duckdb
import pyarrow as pa

from livetables.model.errors import RequestError
from livetables.model.wire import FramePart, decode_part
from livetables.server.health.metrics import Metrics
from livetables.server.storage.frames import FrameError
from livetables.server.storage.generation import Frame
from livetables.server.storage.horizons import Horizons
from livetables.server.storage.pending import Outcome, StoreFirstError
from livetables.server.storage.sql import first_line
from livetables.server.storage.store import Store
from livetables.server.storage.writer import Commit

WAITING_BYTES_MAX = 512 * 1024 * 1024
STAGING_THREADS = 2
STORE_SECONDS = 0.1  # between two transactions, unless somebody waits for one
RETRY_SECONDS = 1.0  # after one that failed
LARGE_BYTES = 1024 * 1024  # of a frame

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Taken:
    """The answer to a part of a frame: whether its frame is applied, and how far its generation and writer are."""

    applied: bool
    sequence: int  # of the last commit
    stored: int  # the last frame of its attempt that is on disk; -1: none
    horizons: Horizons | None = None  # how far back tables of its generation go, if any is limited

    def fields(self) -> dict[str, object]:
        """The answer as a writer is sent it."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class _Waiting:
    part: FramePart
    size: int
    answer: Future[Taken]
    arrived: datetime


class Intake:
    """Takes the bodies of `POST /api/frames`. Its threads start with the first one."""

    def __init__(self, store: Store, metrics: Metrics, heard: Callable[[], None]) -> None:
        self._store = store
        self._metrics = metrics
        self._heard = heard
        self._news = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._bytes = 0
        self._is_closed = False
        self._has_shown = False  # what is to be stored
        self._is_urgent = False  # somebody waits until it is
        self._is_last = False  # nothing more will be shown
        self._threads: list[threading.Thread] = []
        self._large = ThreadPoolExecutor(1, thread_name_prefix="large-frames")
        self._behind: dict[str, list[_Waiting]] = {}  # by generation that a large frame is applied to: what came since
        self._stagers = ThreadPoolExecutor(STAGING_THREADS, thread_name_prefix="staging")

    def take(self, body: bytes) -> Future[Taken]:
        """Begin to take a part of a frame. It is answered when it is staged, or its whole frame applied or stored."""
        try:
            part = decode_part(body)
        except Exception as error:
            raise RequestError(
                "bad_frame",
                f"the body is not a part of a frame: {type(error).__name__}: {error}",
                "let the pipeline and the server be of the same version of livetables",
            ) from None
        answer: Future[Taken] = Future()
        with self._news:
            if self._is_closed:
                raise RequestError("unavailable", "the server is stopping", "send it again when it is back")
            if self._bytes and self._bytes + len(body) > WAITING_BYTES_MAX:
                raise RequestError(
                    "unavailable", f"{self._bytes:,} bytes of frames are waiting already", "send it again later"
                )
            self._bytes += len(body)
            if part.commit:
                self._start()
                self._waiting.append(_Waiting(part, len(body), answer, datetime.now(UTC)))
                self._news.notify_all()
            else:
                answer.add_done_callback(lambda _: self._left(len(body)))
                self._stagers.submit(self._stage, part, pa.py_buffer(body), answer)
        return answer

    def close(self) -> None:
        """Store what was shown; what waits to be applied is refused."""
        with self._news:
            self._is_closed = True
            waiting, self._waiting = self._waiting, []
            self._news.notify_all()
        for each in waiting:
            each.answer.cancel()
        self._stagers.shutdown()
        if self._threads:
            applier, storer = self._threads
            applier.join()
            self._large.shutdown()
            with self._news:
                self._is_last = True
                self._news.notify_all()
            storer.join()
        for each in self._waiting:  # what was behind a large frame
            each.answer.cancel()

    def _start(self) -> None:
        if not self._threads:
            self._threads = [
                threading.Thread(target=target, name=name, daemon=True)
                for name, target in (("applier", self._apply_all), ("storer", self._store_all))
            ]
            for thread in self._threads:
                thread.start()

    def _left(self, size: int) -> None:
        with self._news:
            self._bytes -= size

    def _stage(self, part: FramePart, body: pa.Buffer, answer: Future[Taken]) -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            if not self._store.check_part(part):
                self._store.staging.add(part, body)
            self._heard()
            _answer(answer, self._taken(part, is_applied=False))
        except Exception as error:
            _answer(answer, _as_answer(error))

    def _apply_all(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._is_closed)
                if self._is_closed:
                    return
                waiting, self._waiting = self._waiting, []
            for each in waiting:
                if not self._waits(each) and (each.answer.running() or each.answer.set_running_or_notify_cancel()):
                    self._answering_errors(each, self._apply)

    def _waits(self, waiting: _Waiting) -> bool:
        """Whether it is for a generation that a large frame is applied to; then it is kept until that has ended."""
        with self._news:
            behind = self._behind.get(waiting.part.generation)
            if behind is None:
                return False
            behind.append(waiting)
            return True

    def _answering_errors(self, waiting: _Waiting, apply: Callable[[_Waiting], None]) -> None:
        try:
            apply(waiting)
        except BaseException as error:
            if not isinstance(error, RequestError | FrameError):
                log.exception("a frame cannot be applied")
            self._left(waiting.size)
            _answer(waiting.answer, _as_answer(error))

    def _apply(self, waiting: _Waiting) -> None:
        """Show a frame, or have the store apply it where it cannot be shown first."""
        started = time.perf_counter()
        part = waiting.part
        is_large = part.part > 0 or waiting.size > LARGE_BYTES
        try:
            outcome = None if is_large else self._store.show(Frame(part, part.streams))
        except StoreFirstError:
            outcome = None
        if outcome is None:
            self._behind[part.generation] = []
            self._large.submit(self._apply_large, waiting)
            return
        self._count(waiting, outcome, started)
        taken = self._taken(part)
        if outcome.stored is None:
            self._left(waiting.size)
            _answer(waiting.answer, taken)
            return
        outcome.stored.add_done_callback(lambda stored: self._has_stored(waiting, stored))
        if not part.durable:
            _answer(waiting.answer, taken)
        with self._news:
            self._has_shown = True
            self._is_urgent |= part.durable
            self._news.notify_all()

    def _apply_large(self, waiting: _Waiting) -> None:
        try:
            self._answering_errors(waiting, self._apply_in_store)
        finally:
            with self._news:
                self._waiting = self._behind.pop(waiting.part.generation) + self._waiting
                self._news.notify_all()

    def _apply_in_store(self, waiting: _Waiting) -> None:
        started = time.perf_counter()
        applied = self._store.apply([self._whole(waiting.part)])
        (result,) = applied.outcomes
        if isinstance(result, Exception):
            raise result
        taken = [changes for commit in applied.commits for changes in commit.taken]
        records = {table: count for commit in applied.commits for table, count in commit.records.items()}
        self._count(waiting, Outcome(records, tuple(taken), None), started)
        self._left(waiting.size)
        _answer(waiting.answer, self._taken(waiting.part))

    def _count(self, waiting: _Waiting, outcome: Outcome, started: float) -> None:
        part = waiting.part
        self._heard()
        self._store.staging.forget(part.generation, part.writer)
        is_published = part.generation in self._store.live()
        commit = Commit(part.generation, is_published, outcome.taken, outcome.records)
        seconds = time.perf_counter() - started
        self._metrics.applied(commit, sent_ms=part.sent_ms, arrived=waiting.arrived, seconds=seconds)

    def _has_stored(self, waiting: _Waiting, stored: Future[int]) -> None:
        """Answer a writer. What could not be stored takes its room until it is."""
        error = stored.exception()
        again = self._store.pending.waiting(waiting.part.generation) if error else None
        if again is None:
            self._left(waiting.size)
        else:
            again.add_done_callback(lambda stored: self._has_stored(waiting, stored))
        _answer(waiting.answer, _as_answer(error) if error else self._taken(waiting.part))

    def _store_all(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._has_shown or self._is_last)
                self._news.wait_for(lambda: self._is_urgent or self._is_last, STORE_SECONDS)
                is_last = self._is_last
                self._has_shown = self._is_urgent = False
            try:
                self._store.store_shown()
            except Exception as error:
                log.error("what was shown cannot be stored: %s", first_line(error))
                with self._news:
                    self._news.wait_for(lambda: self._is_last, RETRY_SECONDS)
                    self._has_shown = True
            if is_last:
                return

    def _taken(self, part: FramePart, *, is_applied: bool = True) -> Taken:
        generation = self._store.generations().get(part.generation)
        if generation is None:
            raise _as_answer(StoreFirstError("the generation is gone"))
        return Taken(is_applied, generation.sequence, self._store.stored_frame(part), generation.horizons or None)

    def _whole(self, last: FramePart) -> Frame:
        """The frame that this is the last part of."""
        if last.part == 0 or self._store.check_part(last):
            return Frame(last, last.streams)
        parts = [decode_part(body) for body in self._store.staging.before(last)]
        return Frame(last, tuple(stream for part in (*parts, last) for stream in part.streams))


def _answer(answer: Future[Taken], outcome: Taken | BaseException) -> None:
    with suppress(InvalidStateError):  # it has its answer already
        if isinstance(outcome, BaseException):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)


def _as_answer(error: BaseException) -> BaseException:
    """The answer to a writer for an error: retryable, where that may help."""
    if isinstance(error, duckdb.OutOfMemoryException):
        return RequestError(
            "unavailable", "there is no memory for this frame now", "set server.memory_megabytes higher"
        )
    if isinstance(error, duckdb.IOException | OSError):
        return RequestError("unavailable", f"the store cannot be written: {first_line(error)}", "make room for it")
    if isinstance(error, StoreFirstError):
        return FrameError("unknown_generation", str(error), "begin it again")
    if isinstance(error, duckdb.ConnectionException):
        return RequestError("unavailable", "the server is stopping", "send it again when it is back")
    return error

"""The frames of the pipeline on their way into the store.

Frames that wait at the same time are applied in one transaction, by one thread: to write to disk once takes as long for
many as for one. What waits is bounded by its bytes; a writer that finds no room is to try again.
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

from livetables.errors import RequestError
from livetables.server.metrics import Metrics
from livetables.server.running import first_line
from livetables.server.store import Frame, Store
from livetables.wire import FramePart, decode_part

WAITING_BYTES_MAX = 512 * 1024 * 1024
STAGING_THREADS = 2

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Taken:
    """The answer to a part of a frame: whether its frame is on disk, and how far its generation is."""

    applied: bool
    sequence: int


@dataclass(frozen=True)
class _Waiting:
    part: FramePart
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
        self._applier: threading.Thread | None = None
        self._stagers = ThreadPoolExecutor(STAGING_THREADS, thread_name_prefix="staging")

    def take(self, body: bytes) -> Future[Taken]:
        """Begin to take a part of a frame. It is answered when it is staged, or when its whole frame is on disk."""
        try:
            part = decode_part(body)
        except Exception as error:
            raise RequestError(
                "bad_frame",
                f"the body is no part of a frame: {type(error).__name__}: {error}",
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
            answer.add_done_callback(lambda _: self._left(len(body)))
            if part.commit:
                if self._applier is None:
                    self._applier = threading.Thread(target=self._apply_all, name="applier", daemon=True)
                    self._applier.start()
                self._waiting.append(_Waiting(part, answer, datetime.now(UTC)))
                self._news.notify()
            else:
                self._stagers.submit(self._stage, part, pa.py_buffer(body), answer)
        return answer

    def close(self) -> None:
        """Finish what is being applied; what waits is refused."""
        with self._news:
            self._is_closed = True
            waiting, self._waiting = self._waiting, []
            self._news.notify()
        for each in waiting:
            each.answer.cancel()
        self._stagers.shutdown()
        if self._applier:
            self._applier.join()

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
            generation = self._store.generations()[part.generation]
            _answer(answer, Taken(False, generation.sequence))
        except Exception as error:
            _answer(answer, _as_told(error))

    def _apply_all(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._is_closed)
                if self._is_closed:
                    return
                waiting, self._waiting = self._waiting, []
            waiting = [each for each in waiting if each.answer.set_running_or_notify_cancel()]
            try:
                self._apply(waiting)
            except BaseException as error:
                log.exception("frames cannot be applied")
                for each in waiting:
                    _answer(each.answer, _as_told(error))

    def _apply(self, waiting: list[_Waiting]) -> None:
        started = time.perf_counter()
        whole: list[tuple[_Waiting, Frame]] = []
        for each in waiting:
            try:
                whole.append((each, self._whole(each.part)))
            except Exception as error:
                _answer(each.answer, _as_told(error))
        applied = self._store.apply([frame for _, frame in whole])
        seconds = time.perf_counter() - started
        arrived = max((each.arrived for each, _ in whole), default=datetime.now(UTC))
        self._metrics.applied(applied.commits, frames=len(whole), arrived=arrived, seconds=seconds)
        for (each, _), outcome in zip(whole, applied.outcomes, strict=True):
            if isinstance(outcome, int):
                self._store.staging.forget(each.part.generation, each.part.writer)
                self._heard()
                _answer(each.answer, Taken(True, outcome))
            else:
                _answer(each.answer, _as_told(outcome))

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


def _as_told(error: BaseException) -> BaseException:
    """What a writer is told of an error: to try again, where that may help."""
    if isinstance(error, duckdb.OutOfMemoryException):
        return RequestError(
            "unavailable", "there is no memory for this frame now", "set server.memory_megabytes higher"
        )
    if isinstance(error, duckdb.IOException | OSError):
        return RequestError("unavailable", f"the store cannot be written: {first_line(error)}", "make room for it")
    if isinstance(error, duckdb.ConnectionException):
        return RequestError("unavailable", "the server is stopping", "send it again when it is back")
    return error

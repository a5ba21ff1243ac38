"""Control messages from clients, on their way to the control topic.

The pipeline has the Kafka client with the user's own properties, so it is the pipeline that publishes them: it asks for
requests over its Flight door (`take`) and tells what became of each (`settle`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from itertools import count
from typing import Any

from livetables.errors import RequestError
from livetables.wire import ControlRequest, Receipt

MAX_WAITING = 100
SEND_SECONDS_MAX = 10.0


class ControlDoor:
    """Hands requests from any thread to the pipeline's, and its answers back. Holds at most MAX_WAITING."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._changed = threading.Condition()
        self._waiting: dict[int, ControlRequest] = {}
        self._answers: dict[int, Future[Receipt]] = {}

    def send(self, fields: Mapping[str, Any], seconds_max: float = SEND_SECONDS_MAX) -> Receipt:
        """Have a message published, and wait until it is."""
        with self._changed:
            if len(self._answers) >= MAX_WAITING:
                raise RequestError("busy", "too many control messages are waiting", "send them again later, or fewer")
            request = ControlRequest(next(self._ids), dict(fields))
            answer: Future[Receipt] = Future()
            self._waiting[request.request_id] = request
            self._answers[request.request_id] = answer
            self._changed.notify_all()
        try:
            return answer.result(seconds_max)
        except NotInTime:
            raise RequestError(
                "unavailable",
                f"the pipeline did not take the control message within {seconds_max:g} s",
                "start the pipeline, then send it again; `livetables status` tells whether it runs",
            ) from None
        finally:
            with self._changed:
                self._waiting.pop(request.request_id, None)
                self._answers.pop(request.request_id, None)

    def take(self, seconds_max: float) -> list[ControlRequest]:
        """The requests that wait, as soon as there is one; none when there is none in time."""
        deadline = time.monotonic() + seconds_max
        with self._changed:
            while not self._waiting and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            taken = list(self._waiting.values())
            self._waiting.clear()
            return taken

    def settle(self, request_id: int, outcome: Receipt | RequestError) -> None:
        """Tell what became of a request. One that nobody waits for any more is forgotten."""
        with self._changed:
            answer = self._answers.get(request_id)
        if answer is None or answer.done():
            return
        if isinstance(outcome, Receipt):
            answer.set_result(outcome)
        else:
            answer.set_exception(outcome)

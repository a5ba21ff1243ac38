"""Control messages from clients, on their way to the control topic.

The pipeline has the Kafka client with the user's own properties, so it is the pipeline that publishes them: it asks for
requests over Flight (`take`) and reports what became of each (`settle`).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass
from itertools import count
from typing import Any

from livetables.model.errors import RequestError
from livetables.model.wire import ControlRequest, Receipt

MAX_WAITING = 100
IDS_MAX = 1_000  # of messages, remembered
SEND_SECONDS_MAX = 10.0


@dataclass(frozen=True)
class _Known:
    """A message with an id of its client's."""

    fields: Mapping[str, Any]
    request_id: int
    answer: Future[Receipt]


class ControlQueue:
    """Hands requests from any thread to the pipeline's, and its answers back. Holds at most MAX_WAITING.

    A message that comes again with the same id is not published again: it gets the answer of the first one, which is
    kept as long as there are not too many. Beyond that, and after a restart, the pipeline knows ids by the topic.
    """

    def __init__(self) -> None:
        self._ids = count(1)
        self._changed = threading.Condition()
        self._waiting: dict[int, ControlRequest] = {}
        self._answers: dict[int, Future[Receipt]] = {}
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._senders = 0

    def send(
        self, fields: Mapping[str, Any], seconds_max: float = SEND_SECONDS_MAX, message_id: str | None = None
    ) -> Receipt:
        """Have a message published, and wait until it is."""
        with self._changed:
            known = self._known.get(message_id) if message_id else None
            if known and known.fields != fields:
                raise RequestError(
                    "bad_frame", "another message was sent with the same Idempotency-Key", "make one for each message"
                )
            if self._senders >= MAX_WAITING:
                raise RequestError("busy", "too many control messages are waiting", "send them again later, or fewer")
            if known:
                request_id, answer = known.request_id, known.answer
            else:
                request_id, answer = next(self._ids), Future[Receipt]()
            if not answer.done():  # also again: a pipeline may have taken it and died; it knows what it has published
                self._wait_for(ControlRequest(request_id, dict(fields), message_id), answer)
            self._senders += 1
        try:
            return answer.result(seconds_max)
        except NotInTime:
            raise RequestError(
                "unavailable",
                f"the pipeline did not take the control message within {seconds_max:g} s",
                "start the pipeline, then send it again; `livetables status` shows whether it runs",
            ) from None
        finally:
            with self._changed:
                self._senders -= 1
                was_taken = self._waiting.pop(request_id, None) is None
                is_open = was_taken and not answer.done() and message_id is not None
                if not is_open:  # one that was taken may have been published, though nobody has said so yet
                    self._answers.pop(request_id, None)
                is_published = answer.done() and not answer.cancelled() and answer.exception() is None
                if message_id and not (is_published or is_open):
                    self._known.pop(message_id, None)

    def _wait_for(self, request: ControlRequest, answer: Future[Receipt]) -> None:
        """Let a request wait for the pipeline. With the lock."""
        self._waiting[request.request_id] = request
        self._answers[request.request_id] = answer
        if request.message_id:
            self._known[request.message_id] = _Known(request.fields, request.request_id, answer)
            while len(self._known) > IDS_MAX:
                _, forgotten = self._known.popitem(last=False)
                self._answers.pop(forgotten.request_id, None)
        self._changed.notify_all()

    def take(self, seconds_max: float) -> list[ControlRequest]:
        """The requests that wait, as soon as there is one; none when there is none in time."""
        deadline = time.monotonic() + seconds_max
        with self._changed:
            while not self._waiting and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            taken = list(self._waiting.values())
            self._waiting.clear()
            return taken

    def give_back(self, requests: Sequence[ControlRequest]) -> None:
        """Let another pipeline have requests that were taken by one that may not."""
        with self._changed:
            mine = {each.request_id: each for each in requests if each.request_id in self._answers}
            self._waiting = {**mine, **self._waiting}
            self._changed.notify_all()

    def settle(self, request_id: int, outcome: Receipt | RequestError) -> None:
        """Settle a request. One that nobody waits for any more is forgotten."""
        with self._changed:
            answer = self._answers.pop(request_id, None)
        if answer is None or answer.done():
            return
        if isinstance(outcome, Receipt):
            answer.set_result(outcome)
        else:
            answer.set_exception(outcome)

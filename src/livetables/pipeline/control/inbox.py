"""Control messages on their way in: read from the control topic, and published to it for clients of the server."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict
from contextlib import suppress

from livetables.kafka.topics import ControlRecord, ControlTopic, in_order
from livetables.model.control_message import ID_FIELD, SYSTEM_FIELD
from livetables.model.errors import RequestError, SinkError, TopicError
from livetables.model.wire import ControlRequest, Receipt
from livetables.pipeline.table_server import ControlRequests

READ_SECONDS = 5.0
AFTER_ERROR_SECONDS = 1.0
BURST_SECONDS = 0.1  # messages that come within such a time of each other are taken together
BURST_SECONDS_MAX = 1.0
IDS_MAX = 1_000  # of messages, remembered

log = logging.getLogger(__name__)


class Inbox:
    """Reader of the control topic, on a thread of its own."""

    def __init__(self, topic: ControlTopic) -> None:
        self.trouble: TopicError | None = None  # why nothing can be read now
        self._topic = topic
        self._read: queue.SimpleQueue[ControlRecord] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="control-inbox", daemon=True)

    def history(self) -> list[ControlRecord]:
        """Return everything that is on the topic, from its beginning, each time; create it if it is missing."""
        self._topic.create_if_missing()
        self._topic.rewind()
        records: list[ControlRecord] = []
        while not self._topic.is_at_end():
            records += self._topic.read(READ_SECONDS)
        return in_order(records)  # whatever the reads that they came in

    def start(self) -> None:
        self._thread.start()

    def take(self, seconds_max: float) -> list[ControlRecord]:
        """Return what has come: the first message in that time, and those that follow it closely."""
        taken: list[ControlRecord] = []
        deadline = time.monotonic() + BURST_SECONDS_MAX
        with suppress(queue.Empty):
            taken.append(self._read.get(timeout=seconds_max))
            while time.monotonic() < deadline:
                taken.append(self._read.get(timeout=BURST_SECONDS))
        return taken

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(READ_SECONDS)

    def _follow(self) -> None:
        while not self._stopping.is_set():
            try:
                for record in self._topic.read(READ_SECONDS):
                    self._read.put(record)
                self.trouble = None
            except TopicError as error:
                if self.trouble is None:
                    log.warning("%s; %s", error.problem, error.cure)
                self.trouble = error
                self._stopping.wait(AFTER_ERROR_SECONDS)


class ControlPublisher:
    """Publisher of the control messages that clients send to the server, on a thread of its own."""

    def __init__(self, topic: ControlTopic, server: ControlRequests, system: str) -> None:
        """`system` is added to each message: other readers of the topic see for which system it is."""
        self._topic = topic
        self._server = server
        self._system = system
        self._published_before: OrderedDict[str, Receipt] = OrderedDict()  # by the message's id
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="control-publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._server.close()
        self._thread.join(READ_SECONDS)

    def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                for request in self._server.control_requests(READ_SECONDS):
                    self._server.control_settled(request.request_id, self._published(request))
            except SinkError as error:
                log.debug("%s", error.problem)  # the server reports it to the client that waits
                self._stopping.wait(AFTER_ERROR_SECONDS)

    def _published(self, request: ControlRequest) -> Receipt | RequestError:
        """Publish a message, unless it was before: the server may have lost that answer, or the client the server's."""
        message_id = request.message_id
        if message_id and message_id in self._published_before:
            return self._published_before[message_id]
        about = {SYSTEM_FIELD: self._system, **({ID_FIELD: message_id} if message_id else {})}
        try:
            receipt = self._topic.send({**about, **request.fields})
        except TopicError as error:
            return RequestError("unavailable", error.problem, error.cure)
        if message_id:
            self._published_before[message_id] = receipt
            while len(self._published_before) > IDS_MAX:
                self._published_before.popitem(last=False)
        return receipt

"""uvicorn's HTTP with timeouts: half a request is not waited for, and the size of a head is limited.

uvicorn waits for ever for the rest of a head or a body, and keeps what has come. Nobody has shown a key by then.
"""

from __future__ import annotations

import asyncio
import logging

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from livetables.log import Throttle

HEAD_SECONDS = 10.0  # from the first byte of a request, or from the connection, to the end of its head
HEAD_BYTES_MAX = 64 * 1024
BODY_SECONDS = 10.0  # without a byte; for who has shown no right key, for the whole body
ROLE = "livetables.role"  # of who asks, in the state of a request's scope, once its key was checked

log = logging.getLogger(__name__)
throttle = Throttle()


class TimedHttpProtocol(HttpToolsProtocol):
    """A connection that is closed when the rest of a request does not come."""

    _timer: asyncio.TimerHandle | None = None
    _head_bytes: int | None = 0  # of the head that is being read; None while a body is
    _body_since = _heard = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > HEAD_BYTES_MAX:
            self._give_up("too long a head")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = self._head_bytes or 0
        self._wait(HEAD_SECONDS)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._head_bytes = None
        self._body_since = self._heard = self.loop.time()
        self._wait(BODY_SECONDS)

    def on_body(self, body: bytes) -> None:
        self._heard = self.loop.time()
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._head_bytes = 0
        self.stop_waiting()

    def handle_websocket_upgrade(self) -> None:
        self.stop_waiting()
        super().handle_websocket_upgrade()

    def stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, seconds: float) -> None:
        self.stop_waiting()
        self._timer = self.loop.call_later(seconds, self._is_over)

    def _is_over(self) -> None:
        if self._head_bytes is None:
            since = self._heard if ROLE in self.scope.get("state", {}) else self._body_since
            left = since + BODY_SECONDS - self.loop.time()
            if left > 0 or self.flow.read_paused:  # paused: it is the server that does not read
                self._wait(max(left, 1.0))
                return
        self._give_up("half a request")

    def _give_up(self, why: str) -> None:
        self.stop_waiting()
        if not self.transport.is_closing():
            address = self.client[0] if self.client else None
            throttle.log_event(log, "http_sent_away", logging.WARNING, address=address, why=why)
            self.transport.abort()

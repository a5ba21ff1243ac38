"""uvicorn's HTTP with timeouts: neither half a request is waited for, nor a client that does not read its answer.

uvicorn waits for ever for the rest of a head or a body, and keeps what has come. It also waits for ever until a client
has read what it asked for, even to close the connection. Nobody has shown a key by then.
"""

from __future__ import annotations

import asyncio
import logging

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from livetables.log import Throttle

HEAD_SECONDS = 10.0  # from the first byte of a request, or from the connection, to the end of its head
BESIDE_BYTES_MAX = 64 * 1024  # of a head; of what comes without a body's bytes: trailers, extensions of a chunk
BODY_SECONDS = 10.0  # without a byte; for who has shown no right key, for the whole body
UNREAD_SECONDS = 60.0  # between two looks at what a client has not read; if it reads nothing meanwhile, it is given up
ROLE = "livetables.role"  # of who asks, in the state of a request's scope, once its key was checked

log = logging.getLogger(__name__)
throttle = Throttle()


class TimedHttpProtocol(HttpToolsProtocol):
    """A connection that is closed when the rest of a request does not come, or an answer is not read."""

    _timer: asyncio.TimerHandle | None = None
    _is_in_body = False
    _beside_bytes = 0  # since the last byte of a body, or the end of a head
    _body_since = _heard = 0.0
    _unread_timer: asyncio.TimerHandle | None = None
    _resumed = 0  # how often the client has read so much that the answer went on

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(HEAD_SECONDS)
        self._look_again()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_all()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._timer is None and not self._is_answering():  # uvicorn takes even an empty line for a next request
            self._wait(HEAD_SECONDS)
        self._beside_bytes += len(data)
        super().data_received(data)
        if self._beside_bytes > BESIDE_BYTES_MAX:
            self._give_up("too much beside a body" if self._is_in_body else "too long a head")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait(HEAD_SECONDS)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_body:  # a trailer is no header: nothing here needs one
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._is_in_body = True
        self._beside_bytes = 0
        self._body_since = self._heard = self.loop.time()
        self._wait(BODY_SECONDS)

    def on_body(self, body: bytes) -> None:
        self._heard = self.loop.time()
        self._beside_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_in_body = False
        self._beside_bytes = 0
        self._stop_waiting()

    def resume_writing(self) -> None:
        self._resumed += 1
        super().resume_writing()

    def handle_websocket_upgrade(self) -> None:
        if self._is_answering() or self.flow.write_paused:  # less that waits is no answer, or TLS's: it needs no news
            # The next protocol would not know that it is to wait until the client reads, nor this one that it has.
            self._give_up("an upgrade before an answer was read")
            return
        self._stop_all()
        self.upgrade()

    def upgrade(self) -> None:
        """Let the WebSocket's protocol go on with the connection."""
        super().handle_websocket_upgrade()

    def _is_answering(self) -> bool:
        """Whether a request has not got all of its answer."""
        return self.cycle is not None and not self.cycle.response_complete

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_all(self) -> None:
        self._stop_waiting()
        if self._unread_timer is not None:
            self._unread_timer.cancel()

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(seconds, self._is_over)

    def _is_over(self) -> None:
        if self._is_in_body:
            since = self._heard if ROLE in self.scope.get("state", {}) else self._body_since
            left = since + BODY_SECONDS - self.loop.time()
            if left > 0 or self.flow.read_paused:  # paused: it is the server that does not read
                self._wait(max(left, 1.0))
                return
        self._give_up("half a request")

    def _look_again(self) -> None:
        unread = (self.transport.get_write_buffer_size(), self._resumed)
        self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self._look, unread)

    def _look(self, before: tuple[int, int]) -> None:
        """Cut the connection if the client has read nothing since the last look; it may be one that is closing."""
        if before[0] and before == (self.transport.get_write_buffer_size(), self._resumed):
            self._log("an answer that is not read")
            self.transport.abort()
        else:
            self._look_again()

    def _give_up(self, why: str) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self._log(why)
            self.transport.abort()

    def _log(self, why: str) -> None:
        address = self.client[0] if self.client else None
        throttle.log_event(log, "http_sent_away", logging.WARNING, address=address, why=why)

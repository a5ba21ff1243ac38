"""How responses leave: piece by piece, and only so many bytes that wait for their clients to read them.

Whoever reads nothing loses the connection in the end, see `http_timeouts`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from livetables.model.errors import ERROR_KINDS
from livetables.server.viewports.encoding import JSON

PIECE_BYTES = 64 * 1024
WAITING_BYTES_MAX = 256 * 1024 * 1024  # of all responses together
BUSY: Mapping[str, str] = {
    "code": "busy",
    "problem": "clients do not read what they have asked for: too much of it waits already",
    "cure": "ask again later, and for less at once",
}


class Sending:
    """Sends what the app answers. Nothing is outside of it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._waiting_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start: Message | None = None  # kept back until its body comes: until then it may become another response

        async def send_pieces(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            if start is not None:
                if self._is_too_much(message):
                    start, message = _busy(start)
                await send(start)
                start = None
            with self._waiting(message):
                for piece in _pieces(message):
                    await send(piece)

        await self._app(scope, receive, send_pieces)

    def _is_too_much(self, message: Message) -> bool:
        size = _size(message)
        return size > PIECE_BYTES and self._waiting_bytes > 0 and self._waiting_bytes + size > WAITING_BYTES_MAX

    @contextmanager
    def _waiting(self, message: Message) -> Iterator[None]:
        size = _size(message)
        self._waiting_bytes += size
        try:
            yield
        finally:
            self._waiting_bytes -= size


def _size(message: Message) -> int:
    return len(message.get("body", b""))


def _pieces(message: Message) -> Iterator[Message]:
    """A message with a body as several."""
    size = _size(message)
    if size <= PIECE_BYTES:
        yield message
        return
    for start in range(0, size, PIECE_BYTES):
        end = start + PIECE_BYTES
        is_last = end >= size and not message.get("more_body", False)
        yield {**message, "body": message["body"][start:end], "more_body": not is_last}


def _busy(start: Message) -> tuple[Message, Message]:
    """An error instead of a response, with what every response has in its head."""
    body = json.dumps(BUSY).encode()
    kept = [(name, value) for name, value in start["headers"] if not name.lower().startswith(b"content-")]
    headers = [*kept, (b"content-type", JSON.encode()), (b"content-length", str(len(body)).encode())]
    status = ERROR_KINDS["busy"].status
    return {**start, "status": status, "headers": headers}, {"type": "http.response.body", "body": body}

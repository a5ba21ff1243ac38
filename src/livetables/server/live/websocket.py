"""uvicorn's WebSocket with two things more: one frame for many clients, and an end for those that do not read.

A frame that was made once goes to a thousand clients as it is: encoding it for each client, and a coroutine for each,
cost several times what writing it does. A session finds `write_now` in its scope's state.

uvicorn answers every ping, also where the client does not read, and waits for ever until it has taken all that was sent
to it before the connection closed. When it has closed one itself, as after an invalid frame, it takes what a session
sends before it knows for a mistake of the session.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

WRITE_NOW = "livetables.write_now"


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """A connection that can be written to at once, and that ends when it is to."""

    _pong = b""  # the answer to the last ping, while the client is behind with reading
    _abort_timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not hasattr(self, "scope"):  # no session comes of it: the handshake was refused, or could not be read
            if not self.transport.is_closing():
                self.transport.write(b"".join(self.conn.data_to_send()))
                self.transport.close()
            self._abort_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._abort_timer is not None:
            self._abort_timer.cancel()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):
            self.scope["state"][WRITE_NOW] = self.write_now

    def handle_ping(self) -> None:
        pongs = self.conn.data_to_send()
        if self.writable.is_set():
            self.transport.write(b"".join(pongs))
        elif pongs:
            self._pong = pongs[-1]

    def resume_writing(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(self._pong)
        self._pong = b""
        super().resume_writing()

    async def send(self, message: Any) -> None:
        await self.writable.wait()
        if self.close_sent and message["type"] == "websocket.send":
            raise ClientDisconnected
        await super().send(message)

    async def run_asgi(self) -> None:
        try:
            await super().run_asgi()
        finally:
            self._abort_soon()

    def write_now(self, frame: bytes) -> bool:
        """Write a frame, unless the client is behind with reading, or gone; return whether it was written."""
        if not self.writable.is_set() or self.close_sent or self.disconnected or self.transport.is_closing():
            return False
        self.transport.write(frame)
        return True

    def _abort_soon(self) -> None:
        """Close the connection at the latest when the client has had time to read the last frame, and to answer it."""
        if not self.disconnected and self._abort_timer is None:
            self._abort_timer = self.loop.call_later(self.close_timeout, self.transport.abort)

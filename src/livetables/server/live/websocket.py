"""uvicorn's WebSocket with one thing more: a frame that was made once goes to a thousand clients as it is.

Encoding a frame for each client, and a coroutine for each, cost several times what writing it does. A session finds
`write_now` in its scope's state.
"""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

WRITE_NOW = "livetables.write_now"


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """A connection that can be written to at once."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):  # not when the handshake was refused
            self.scope["state"][WRITE_NOW] = self.write_now

    def write_now(self, frame: bytes) -> bool:
        """Write a frame, unless the client is behind with reading, or gone; return whether it was written."""
        if not self.writable.is_set() or self.close_sent or self.disconnected or self.transport.is_closing():
            return False
        self.transport.write(frame)
        return True

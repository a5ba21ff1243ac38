"""Connections on their way from the server, which accepts them all, to a relay: the descriptor, and the request's head.

Only the head of a WebSocket's request has been read when it goes: a client waits for the answer before it sends more.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

from livetables.server.api.http_timeouts import TimedHttpProtocol

PATH = b"/ws"
HEAD_BYTES_MAX = 64 * 1024


@dataclass(frozen=True)
class Connection:
    """A WebSocket that nobody has answered yet."""

    transport: asyncio.Transport
    head: bytes
    serve_here: Callable[[], None]  # if no relay takes it


HandOver = Callable[[Connection], bool]  # whether a relay takes it


def handing_protocol(hand_over: HandOver) -> type[TimedHttpProtocol]:
    """uvicorn's HTTP, but for WebSockets that a relay takes."""

    class HandingProtocol(TimedHttpProtocol):
        def upgrade(self) -> None:
            head = self._head()
            if self.url.partition(b"?")[0] != PATH or len(head) > HEAD_BYTES_MAX:
                super().upgrade()
                return
            self.transport.pause_reading()
            if not hand_over(Connection(self.transport, head, self._serve_here)):
                self._serve_here()

        def _serve_here(self) -> None:
            if not self.transport.is_closing():
                self.transport.resume_reading()
                super().upgrade()

        def _head(self) -> bytes:
            lines = [b" ".join((self.scope["method"].encode(), self.url, b"HTTP/1.1"))]
            lines += [name + b": " + value for name, value in self.scope["headers"]]
            return b"\r\n".join(lines) + b"\r\n\r\n"

    return HandingProtocol


def send_connection(handover: socket.socket, connection: Connection) -> None:
    """Pass a connection on and let it go; a BlockingIOError says that the other side has to catch up first."""
    descriptor = connection.transport.get_extra_info("socket").fileno()
    socket.send_fds(handover, [connection.head], [descriptor])
    connection.transport.abort()  # which closes this process's descriptor only


def receive_connection(handover: socket.socket) -> tuple[socket.socket, bytes] | None:
    """The next connection and its request's head; None at the end, and a BlockingIOError if there is none yet.

    Any other OSError is about this connection only.
    """
    head, descriptors, _, _ = socket.recv_fds(handover, HEAD_BYTES_MAX, 1)
    if not head:
        return None
    if not descriptors:
        raise OSError("a connection could not be taken: this process has too many open files")
    connection = socket.socket(fileno=descriptors[0])
    connection.setblocking(False)
    return connection, head

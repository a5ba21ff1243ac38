"""The socket between the server and one of its relays: JSON, each message after its length in four bytes.

Both are processes of one installation, and nobody else can reach it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from pydantic_core import to_json

from livetables.server.relays.messages import FromRelay, ToRelay

LENGTH_BYTES = 4

Message = ToRelay | FromRelay


class Outbox:
    """What waits to be sent: one thing for each key, made when the socket takes it, so that it is the newest.

    However slow the other side reads, no more waits than there are keys, and none of it is old.
    """

    def __init__(self, stream: asyncio.StreamWriter) -> None:
        self._stream = stream
        self._waiting: dict[Hashable, Callable[[], Message | None]] = {}
        self._wake = asyncio.Event()

    def put(self, key: Hashable, make: Callable[[], Message | None]) -> None:
        self._waiting[key] = make
        self._wake.set()

    def take_back(self, key: Hashable) -> bool:
        """Whether it was still waiting."""
        return self._waiting.pop(key, None) is not None

    async def send(self) -> None:
        """Send what is put in, the longest waiting first. Runs until the connection is lost."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                make = self._waiting.pop(next(iter(self._waiting)))
                message = make()
                if message is not None:
                    body = to_json(message)
                    self._stream.write(len(body).to_bytes(LENGTH_BYTES, "big") + body)
                    await self._stream.drain()


async def received(stream: asyncio.StreamReader) -> bytes:
    """The next message; an IncompleteReadError or an OSError says that the other side has gone."""
    length = int.from_bytes(await stream.readexactly(LENGTH_BYTES), "big")
    return await stream.readexactly(length)

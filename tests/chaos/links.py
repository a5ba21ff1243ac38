"""Links between processes that can be made slow, cut, or silent: a small TCP proxy on an address of its own.

All of 127.0.0.0/8 is this machine, so a proxy may have the port of what it leads to, on another address. Whoever is
given that address finds everything behind it without knowing.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Literal, Self

Mode = Literal["open", "slow", "reset", "black_hole", "half_open", "lost_answers"]

CHUNK_BYTES = 64 * 1024
SLOW_BYTES = 4 * 1024  # of a slow link's pieces, unless a caller gives another size
SLOW_SECONDS = 0.05  # for each piece, either way
CONNECT_SECONDS = 5.0
ABORT = struct.pack("ii", 1, 0)  # SO_LINGER: to close is to reset

Address = tuple[str, int]


class Link:
    """A proxy from an address to another.

    slow          pieces of a few kilobytes, each late
    reset         connections are reset, and so are new ones
    black_hole    nothing passes, either way; afterwards everything continues
    half_open     what goes one way is lost, without an error; afterwards such connections are reset
    lost_answers  requests arrive; of each connection the next answer is lost, and the connection with it
    """

    def __init__(self, listening: Address, target: Address) -> None:
        self.listening, self.target = listening, target
        self.mode: Mode = "open"
        self.lost_way: Literal["to", "from"] = "from"
        self.answers_lost = 0
        self.slow_bytes = SLOW_BYTES
        self._changed = asyncio.Event()
        self._connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"link-{target[1]}", daemon=True)
        self._ready = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(CONNECT_SECONDS), f"the link at {self.listening} does not listen"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @contextmanager
    def broken(self, mode: Mode, lost_way: Literal["to", "from"] = "from") -> Iterator[None]:
        """Be so for a while."""
        self._call(lambda: self._set(mode, lost_way))
        try:
            yield
        finally:
            self._call(lambda: self._set("open", lost_way))

    def _call(self, do: Callable[[], None]) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(do)
        self._loop.call_soon_threadsafe(done.set)
        assert done.wait(CONNECT_SECONDS), "the link does not answer"

    def _set(self, mode: Mode, lost_way: Literal["to", "from"]) -> None:
        before, self.mode, self.lost_way = self.mode, mode, lost_way
        for connection in list(self._connections):
            if mode == "reset" or (before == "half_open" and connection.has_lost):
                connection.abort()
        self._changed.set()
        self._changed = asyncio.Event()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._serve, *self.listening))
        self._ready.set()
        self._loop.run_forever()
        for connection in list(self._connections):
            connection.abort()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(writer)
        self._connections.add(connection)
        try:
            if self.mode == "reset":
                return
            while self.mode == "black_hole":
                await self._changed.wait()
            async with asyncio.timeout(CONNECT_SECONDS):
                there = await asyncio.open_connection(*self.target)
            connection.writers.append(there[1])
            ways = [
                asyncio.ensure_future(self._pump(connection, reader, there[1], "to")),
                asyncio.ensure_future(self._pump(connection, there[0], writer, "from")),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            connection.abort()
            self._connections.discard(connection)

    async def _pump(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: Literal["to", "from"],
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(self.slow_bytes if self.mode == "slow" else CHUNK_BYTES):
                if self.mode == "slow":
                    await asyncio.sleep(SLOW_SECONDS)
                while self.mode == "black_hole":
                    await self._changed.wait()
                if self.mode == "half_open" and way == self.lost_way:
                    connection.has_lost = True
                if self.mode == "lost_answers" and way == "from":
                    self.answers_lost += 1
                    return
                if connection.has_lost and way == self.lost_way:
                    continue
                writer.write(data)
                await writer.drain()


class _Connection:
    """Both sockets of a connection through a link."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writers = [writer]
        self.has_lost = False

    def abort(self) -> None:
        """Reset both sides."""
        for writer in self.writers:
            opened: socket.socket | None = writer.get_extra_info("socket")
            if opened is not None:
                with suppress(OSError):
                    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
            with suppress(RuntimeError):  # its loop has ended
                writer.transport.abort()


def random_way(chance: random.Random) -> Literal["to", "from"]:
    return chance.choice(("to", "from"))

"""Frames as the pipeline sends them, over HTTP, one at a time."""

from __future__ import annotations

import http.client
import time

import pyarrow as pa

from livetables.model.change import TableShape
from livetables.model.wire import FramePart, FrameStream
from tests.support.frames import encode_part
from tests.support.server import TOKEN, ServerProcess

HEADERS = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/octet-stream"}
IDLE_SECONDS = 1.0  # after which a connection is not used again


class FrameSender:
    """A writer of the pipeline that sends new rows of one table; their ids are offsets of partition 0."""

    def __init__(self, server: ServerProcess, generation: str, shape: TableShape) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port)
        self._generation, self._shape = generation, shape
        self._frame = 0
        self._answered = time.monotonic()
        self.answers_ms: list[float] = []

    def send(self, rows: pa.Table) -> float:
        """Send a frame with these rows, and wait for its answer; return when it set out."""
        shape, now = self._shape, int(time.time() * 1000)
        part = FramePart(
            self._generation,
            1,
            0,
            "bench",
            self._frame,
            0,
            True,
            now,
            (FrameStream.of(shape.name, "rows", rows),),
            {shape.sources[0]: {shape.scope: {0: rows["_id"][-1].as_py()}}},
            durable=False,
            kafka_ms=now,
        )
        body = encode_part(part)
        if time.monotonic() - self._answered > IDLE_SECONDS:
            self._connection.close()  # the server may have closed it; the next request opens another one
        started = time.time()
        self._connection.request("POST", "/api/frames", body, HEADERS)
        answer = self._connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        self.answers_ms.append((time.time() - started) * 1000)
        self._frame += 1
        self._answered = time.monotonic()
        return started

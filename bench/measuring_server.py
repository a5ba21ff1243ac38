"""A server that takes frames, acknowledges them, and only remembers how old their records were: the pipeline alone.

`python -m bench.measuring_server` prints its port. It is a process of its own: what measures must not share its GIL.
"""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import sys
import time
import urllib.request
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

LENGTH = struct.Struct("<Q")
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Counts:
    """What has come since the last reset: records, and for each record of a topic how old it was."""

    def __init__(self) -> None:
        self.records = 0
        self.ages_ms: list[np.ndarray] = []
        self.sampled_from_ms: float | None = None  # only of records from then on: older ones may be read a second time
        self.newest_ms = 0.0

    def take(self, body: bytes, now: float) -> None:
        (length,) = LENGTH.unpack_from(body)
        header = json.loads(body[LENGTH.size : LENGTH.size + length])
        start = LENGTH.size + length
        buffer = pa.py_buffer(body)
        for stream, size in zip(header["streams"], header["lengths"], strict=True):
            if stream["kind"] == "rows" and (stream["table"].endswith("_ui") and stream["table"] != "final_ui"):
                rows = pa.ipc.open_stream(buffer.slice(start, size)).read_all()
                self.records += rows.num_rows
                times_ms = rows["ts"].cast(pa.int64()).to_numpy() / 1000
                self.newest_ms = times_ms.max(initial=self.newest_ms)
                if self.sampled_from_ms is not None:
                    self.ages_ms.append(now * 1000 - times_ms[times_ms >= self.sampled_from_ms])
            start += size

    def figures(self) -> dict[str, Any]:
        ages = np.concatenate(self.ages_ms) if self.ages_ms else np.array([])
        shares = {
            f"p{share}_ms": float(np.percentile(ages, share)) if len(ages) else None for share in (50, 90, 99, 100)
        }
        return {"records": self.records, "newest_ms": float(self.newest_ms), "samples": len(ages), **shares}


async def serve() -> None:
    counts = Counts()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal counts
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1]
                if head.startswith(b"POST"):
                    lines = head.lower().split(b"\r\n")
                    length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))
                    body = await reader.readexactly(length)
                    counts.take(body, time.time())
                    writer.write(ANSWER)
                else:
                    if path == b"/sample":
                        counts.ages_ms, counts.sampled_from_ms = [], time.time() * 1000
                    elif path == b"/reset":
                        counts = Counts()
                    answer = json.dumps(counts.figures()).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class MeasuringServer:
    """The process, as its parent sees it."""

    def __enter__(self) -> MeasuringServer:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.measuring_server"], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout
        self._process.stdout.close()

    def get(self, path: str = "/figures") -> dict[str, Any]:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:  # noqa: S310
            figures: dict[str, Any] = json.loads(answer.read())
            return figures


if __name__ == "__main__":
    asyncio.run(serve())

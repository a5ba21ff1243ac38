"""Many WebSocket clients in one process, as light as Python allows: each looks at the newest rows of one table.

Prints `ready` when all have their first window; measures from the first line on its standard input to the second, and
then prints figures as JSON. It reads as little of a frame as it can: the machine's time is for the server.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import re
import resource
import sys
import time
from datetime import datetime
from typing import Any

import numpy as np
import uvloop

HEAD_BYTES = 400
NEWEST = re.compile(rb'"sequence":(\d+),"newest":"([^"]+)"')
QUIET_SECONDS = 1.0


class Viewer(asyncio.Protocol):
    """One client. `sequence` is that of the last data frame it got."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd
        self.sequence = 0
        self.buffer = bytearray()
        self.upgraded = False
        self.needed = 2

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        key = base64.b64encode(os.urandom(16)).decode()
        transport.write(
            f"GET /ws HTTP/1.1\r\nHost: {self.crowd.host}:{self.crowd.port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.upgraded:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            del self.buffer[: end + 4]
            self.upgraded = True
            self.send({"type": "hello", "protocol": 1, "token": self.crowd.token})
            self.send({"type": "subscribe", "sub": 1, "table": self.crowd.table, "view": self.crowd.view})
        while len(self.buffer) >= self.needed:
            start, length = self.header()
            if len(self.buffer) < start + length:
                self.needed = start + length
                return
            self.frame(bytes(self.buffer[start : start + min(length, HEAD_BYTES)]))
            del self.buffer[: start + length]
            self.needed = 2

    def header(self) -> tuple[int, int]:
        length = self.buffer[1]
        if length == 126:
            return 4, int.from_bytes(self.buffer[2:4], "big") if len(self.buffer) >= 4 else 0xFFFF
        if length == 127:
            return 10, int.from_bytes(self.buffer[2:10], "big") if len(self.buffer) >= 10 else 0xFFFF
        return 2, length

    def frame(self, head: bytes) -> None:
        found = NEWEST.search(head)
        if found and b'"type":"schema"' not in head:
            if not self.sequence:
                self.crowd.served += 1
            self.sequence = int(found[1])
            self.crowd.frames += 1
            if self.crowd.measuring:
                self.crowd.samples.append((time.time(), found[2]))

    def connection_lost(self, _error: Exception | None) -> None:
        self.crowd.lost += 1

    def send(self, frame: dict[str, Any]) -> None:
        payload = json.dumps(frame).encode()
        mask = b"\0\0\0\0"  # a mask of zeros leaves the payload as it is
        head = (
            bytes([0x81, 0x80 | len(payload)]) if len(payload) < 126 else b"\x81\xfe" + len(payload).to_bytes(2, "big")
        )
        self.transport.write(head + mask + payload)


class Crowd:
    def __init__(self, host: str, port: int, token: str, table: str, view: dict[str, Any]) -> None:
        self.host, self.port, self.token, self.table, self.view = host, port, token, table, view
        self.viewers: list[Viewer] = []
        self.samples: list[tuple[float, bytes]] = []
        self.measuring = False
        self.frames = self.served = self.lost = 0

    async def join(self, clients: int) -> None:
        loop = asyncio.get_running_loop()
        for start in range(0, clients, 100):
            made = await asyncio.gather(
                *(
                    loop.create_connection(lambda: Viewer(self), self.host, self.port)
                    for _ in range(start, min(start + 100, clients))
                )
            )
            self.viewers += [viewer for _, viewer in made]
        while self.served < clients and not self.lost:
            await asyncio.sleep(0.05)

    async def beat(self) -> None:
        """Heartbeats, so that nobody is sent away."""
        while True:
            await asyncio.sleep(30)
            for viewer in self.viewers:
                viewer.send({"type": "heartbeat"})

    async def quiet(self) -> None:
        frames = -1
        while frames != self.frames:
            frames = self.frames
            await asyncio.sleep(QUIET_SECONDS)

    def figures(self) -> dict[str, Any]:
        times = {text: datetime.fromisoformat(text.decode()).timestamp() for text in {text for _, text in self.samples}}
        ages = np.array([(at - times[text]) * 1000 for at, text in self.samples] or [float("nan")])
        sequences = [viewer.sequence for viewer in self.viewers]
        return {
            "frames": len(self.samples),
            "p50_ms": float(np.percentile(ages, 50)),
            "p99_ms": float(np.percentile(ages, 99)),
            "max_ms": float(ages.max()),
            "behind": sum(sequence < max(sequences) for sequence in sequences),
            "lost": self.lost,
        }


async def main() -> None:
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    task = json.loads(sys.argv[1])
    crowd = Crowd(task["host"], task["port"], task["token"], task["table"], task["view"])
    await crowd.join(task["clients"])
    gc.freeze()
    gc.disable()  # its pauses, longer with every sample, would be measured as the server's
    print("ready", flush=True)
    beating = asyncio.create_task(crowd.beat())
    await asyncio.to_thread(sys.stdin.readline)
    crowd.measuring = True
    await asyncio.to_thread(sys.stdin.readline)
    await crowd.quiet()
    print(json.dumps({**crowd.figures(), "cpu_seconds": time.process_time()}), flush=True)
    beating.cancel()


if __name__ == "__main__":
    uvloop.run(main())

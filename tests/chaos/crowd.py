"""Many clients of a server in a process of their own: `python -m tests.chaos.crowd ADDRESS COUNT`.

Each keeps a window and checks every frame by its checksum. Every second a line of JSON: how many are connected, how
many frames came, what was wrong, and how long records took from Kafka, for some clients that want every row at once.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from tests.support.checksum import checksum
from tests.support.server import TOKEN, Window
from tests.support.watcher import TABLES

QUICK = 5  # clients whose latency is measured
QUICK_MS, SLOW_MS = 50, 1000
ROWS = 20
AGAIN_SECONDS = 0.5
BEAT_SECONDS = 10.0


class Crowd:
    """What all clients have seen since the last report."""

    def __init__(self) -> None:
        self.connected = self.frames = self.reconnects = 0
        self.wrong: list[str] = []
        self.latencies: list[float] = []

    def report(self) -> dict[str, Any]:
        report = {
            "connected": self.connected,
            "frames": self.frames,
            "reconnects": self.reconnects,
            "wrong": self.wrong,
            "latencies": self.latencies,
        }
        self.frames, self.wrong, self.latencies = 0, [], []
        return report


async def watch(crowd: Crowd, address: str, number: int) -> None:
    while True:
        with suppress(OSError, WebSocketException, TimeoutError):
            await visit(crowd, address, number)
        crowd.reconnects += 1
        await asyncio.sleep(AGAIN_SECONDS)


async def visit(crowd: Crowd, address: str, number: int) -> None:
    table, window = TABLES[number % len(TABLES)], Window()
    sort = "users_ts" if table == "final_ui" else "ts"
    view = {
        "sort": [{"column": sort, "descending": True}],
        "size": ROWS,
        "interval_ms": QUICK_MS if number < QUICK else SLOW_MS,
    }
    async with connect(address, compression=None, max_size=None, ping_interval=None) as socket:
        await socket.send(json.dumps({"type": "hello", "protocol": 1, "token": TOKEN}))
        subscribe = {"type": "subscribe", "sub": 1, "table": table, "view": view, "checksum": True}
        await socket.send(json.dumps(subscribe))
        crowd.connected += 1
        beaten = time.monotonic()
        try:
            async for text in socket:
                frame = json.loads(text)
                take(crowd, frame, window, measured=number < QUICK)
                if time.monotonic() > beaten + BEAT_SECONDS:
                    beaten = time.monotonic()
                    await socket.send(json.dumps({"type": "heartbeat"}))
        finally:
            crowd.connected -= 1


def take(crowd: Crowd, frame: dict[str, Any], window: Window, *, measured: bool) -> None:
    if frame["type"] in ("schema", "snapshot", "patch"):
        try:
            window.apply(frame)
        except AssertionError as fault:
            crowd.wrong.append(str(fault))
            raise OSError("out of step") from fault
    if frame["type"] not in ("snapshot", "patch"):
        return
    crowd.frames += 1
    ids, rows = [row_id for row_id, _ in window.rows], [values for _, values in window.rows]
    if checksum(frame["total"], ids, rows) != frame["checksum"]:
        crowd.wrong.append(f"the checksum of {frame['table']} is another")
    receipt = frame.get("receipt")
    if measured and frame["type"] == "patch" and receipt:
        crowd.latencies.append(round(time.time() * 1000 - receipt["kafka"], 1))


async def main(address: str, count: int) -> None:
    crowd = Crowd()
    clients = [asyncio.create_task(watch(crowd, address, number)) for number in range(count)]
    while all(not client.done() for client in clients):
        await asyncio.sleep(1)
        print(json.dumps(crowd.report()), flush=True)
    await asyncio.gather(*clients)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))

"""From a frame at the server's endpoint to a WebSocket client that holds its rows: on tables of several sizes, and with
many distinct viewports on one table.

The server is a process of its own; frames come over HTTP as the pipeline sends them, clients are real. A row's clock
starts right before the frame is sent that brings it into the window (its own, or that of the row which pushes it down
to there), and stops when the client has received it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table as ScreenTable
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from bench.pauses import no_collections
from bench.sender import FrameSender
from bench.serving import SCHEMA, SHAPES, TABLE
from livetables.model.change import Batch, TableChanges
from tests.support.server import TOKEN, ServerProcess

LOAD_ROWS = 250_000
NEWEST = [{"column": "ts", "descending": True}]
SERVER_SETTINGS = {"LIVETABLES_SERVER_MEMORY_MEGABYTES": "3072"}
console = Console()


def rows(first: int, count: int, at: datetime) -> pa.Table:
    """Rows with these ids, all of one time."""
    ids = pa.array(np.arange(first, first + count))
    text = pc.cast(ids, pa.string())
    people = pc.cast(pa.array(np.arange(first, first + count) % 100_000), pa.string())
    columns = [
        ids,
        pc.binary_join_element_wise("u", people, ""),
        pc.binary_join_element_wise("Ann", text, "-"),
        pc.binary_join_element_wise("ann", pc.binary_join_element_wise(text, "@example.com", ""), ""),
        pa.array(np.arange(first, first + count) % 90),
        pa.array([("cheque", "savings", "credit")[number % 3] for number in range(first, first + count)]),
        pa.array(np.arange(first, first + count) * 37 % 1_000_003 / 100),
        pa.array([at] * count, SCHEMA.field("ts").type),
    ]
    return pa.table(columns, schema=SCHEMA)


class Sender:
    """Sends frames of new rows at a steady rate, and knows when each row set out."""

    def __init__(self, server: ServerProcess, first: int) -> None:
        self._frames = FrameSender(server, "g1", SHAPES["appended"])
        self._row = first
        self.sent: dict[int, float] = {}

    @property
    def answers_ms(self) -> list[float]:
        return self._frames.answers_ms

    def feed(self, seconds: float, frames_per_s: float, count: int) -> None:
        due = time.monotonic()
        for _ in range(round(seconds * frames_per_s)):
            time.sleep(max(0.0, due - time.monotonic()))
            due += 1 / frames_per_s
            ids = range(self._row, self._row + count)
            self.sent |= dict.fromkeys(ids, self._frames.send(rows(self._row, count, datetime.now(UTC))))
            self._row += count


class Watchers:
    """Many clients on a thread of their own, each with a viewport; each notes when it held which rows."""

    def __init__(self, url: str, views: Sequence[Mapping[str, Any]]) -> None:
        self._url = url
        self._views = views
        self._ready = threading.Barrier(2)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.received: list[list[tuple[float, str]]] = [[] for _ in views]

    def __enter__(self) -> Watchers:
        self._thread.start()
        self._ready.wait(120)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop
        assert self._stop
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        first = [asyncio.Event() for _ in self._views]
        tasks = [asyncio.create_task(self._watch(number, first[number])) for number in range(len(self._views))]
        for event in first:
            await event.wait()
        await asyncio.to_thread(self._ready.wait, 120)
        await self._stop.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, number: int, first: asyncio.Event) -> None:
        async with connect(self._url, max_size=None, compression=None) as socket:
            await socket.send(json.dumps({"type": "hello", "protocol": 1, "token": TOKEN}))
            view = self._views[number]
            await socket.send(json.dumps({"type": "subscribe", "sub": 1, "table": TABLE, "view": view}))
            try:
                async for frame in socket:
                    assert isinstance(frame, str)
                    self.received[number].append((time.time(), frame))
                    if not first.is_set() and '"type":"snapshot"' in frame:
                        first.set()
            except ConnectionClosed:
                console.print(f"viewport {number} was closed")


def held(received: Sequence[tuple[float, str]]) -> dict[int, float]:
    """When a client first held each row, by its id; the window it began with left out."""
    found: dict[int, float] = {}
    is_first = True
    for at, text in received:
        frame = json.loads(text)
        if frame["type"] == "snapshot":
            brought = [] if is_first else [values[0] for values in frame["rows"]]
            is_first = False
        elif frame["type"] == "patch":
            brought = [values[0] for _, _, values in frame["inserted"]]
        else:
            continue
        for row in brought:
            found.setdefault(row, at)
    return found


@contextmanager
def loaded(count: int) -> Iterator[ServerProcess]:
    """A server with a table of so many rows."""
    with (
        tempfile.TemporaryDirectory(prefix="livetables-frames-") as directory,
        ServerProcess(Path(directory), SERVER_SETTINGS) as server,
    ):
        sink = server.sink()
        sink.begin("g1", [SHAPES["appended"]])
        start = datetime(2026, 1, 1, tzinfo=UTC)
        for batch_id, first in enumerate(range(0, count, LOAD_ROWS)):
            upserts = rows(first, min(LOAD_ROWS, count - first), start)
            sink.put(Batch("g1", batch_id, (TableChanges(TABLE, upserts, pa.table({})),)))
        sink.publish("g1")
        sink.close()
        yield server


def newest_rows(count: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One client on the newest 300 rows of a table of so many."""
    with loaded(count) as server:
        sender = Sender(server, count)
        with Watchers(server.websocket, [{"sort": NEWEST, "size": 300, "interval_ms": 10}]) as watchers:
            sender.feed(arguments.settle, arguments.frames, arguments.rows)
            settled = set(sender.sent)
            cpu = server.cpu_seconds()
            with no_collections():
                sender.feed(arguments.seconds, arguments.frames, arguments.rows)
            cpu = server.cpu_seconds() - cpu
            time.sleep(1.0)  # for the last frames to come
        ages = ages_ms(held(watchers.received[0]), sender.sent, settled)
        return {
            "rows": count,
            **figures(ages, sender),
            "server_cpu_of_a_core": round(cpu / arguments.seconds, 2),
            "asked": server.metric("livetables_viewport_evaluations_total"),
        }


def distinct_viewports(count: int, viewports: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Many clients, each with a viewport of its own, on one table: sorts, filters and ranges of several kinds."""
    kinds: list[dict[str, Any]] = [
        {"sort": NEWEST},
        {"sort": NEWEST, "offset": 50},
        {"sort": NEWEST, "filters": [{"column": "accountType", "op": "equals", "value": "savings"}]},
        {"sort": [*NEWEST, {"column": "balance"}]},
        {"sort": NEWEST, "quick": "ann"},
    ]
    views = [{**kinds[number % len(kinds)], "size": 20 + number // len(kinds)} for number in range(viewports)]
    with loaded(count) as server:
        sender = Sender(server, count)
        with Watchers(server.websocket, views) as watchers:
            sender.feed(arguments.settle, 10, 10)
            settled = set(sender.sent)
            before, cpu = server.metric("livetables_viewport_evaluations_total"), server.cpu_seconds()
            with no_collections():
                sender.feed(arguments.seconds, 10, 10)
            cpu = server.cpu_seconds() - cpu
            asked = server.metric("livetables_viewport_evaluations_total") - before
            time.sleep(1.0)
        ages = [
            age
            for view, received in zip(views, watchers.received, strict=True)
            for age in ages_ms(held(received), sender.sent, settled, view.get("offset", 0))
        ]
        return {
            "viewports": server_viewports(views),
            **figures(ages, sender),
            "asked": asked,
            "server_cpu_of_a_core": round(cpu / arguments.seconds, 2),
        }


def server_viewports(views: Sequence[Mapping[str, Any]]) -> int:
    return len({json.dumps(view, sort_keys=True) for view in views})


def ages_ms(found: Mapping[int, float], sent: Mapping[int, float], settled: set[int], offset: int = 0) -> list[float]:
    """How long after the frame that brought it into its window, `offset` rows below the newest, a row was held."""
    times = {row - offset: at for row, at in sent.items() if row not in settled}
    return [(at - times[row]) * 1000 for row, at in found.items() if row in times]


def figures(ages: Sequence[float], sender: Sender) -> dict[str, Any]:
    shares = {f"p{share}_ms": round(float(np.percentile(ages, share)), 1) for share in (50, 90, 99)}
    return {
        **shares,
        "max_ms": round(max(ages), 1),
        "samples": len(ages),
        "answer_p50_ms": round(float(np.percentile(sender.answers_ms, 50)), 1),
    }


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with all processes
    parser = argparse.ArgumentParser(prog="python -m bench.frames", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 2_000_000, 10_000_000])
    parser.add_argument("--viewports", type=int, default=500, help="distinct ones on a table of 1,000,000; 0: none")
    parser.add_argument("--frames", type=float, default=100.0, help="a second, for one client")
    parser.add_argument("--rows", type=int, default=10, help="of each frame")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--settle", type=float, default=5.0, help="seconds before those")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"cores": os.cpu_count()}
    if arguments.sizes:
        found["newest"] = [newest_rows(count, arguments) for count in arguments.sizes]
        show("frame to client: newest 300 rows", found["newest"])
    if arguments.viewports:
        found["viewports"] = [distinct_viewports(1_000_000, arguments.viewports, arguments)]
        show("frame to client: distinct viewports, 10 frames of 10 rows a second", found["viewports"])
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


def show(title: str, runs: Sequence[Mapping[str, Any]]) -> None:
    shown = ScreenTable(title=title, title_justify="left")
    for name in runs[0]:
        shown.add_column(name.replace("_", " "), justify="right")
    for run in runs:
        shown.add_row(*(f"{value:,}" for value in run.values()))
    console.print(shown)


if __name__ == "__main__":
    main()

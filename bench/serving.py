"""How fast the table server answers, and to how many: windows of a large table, a crowd of readers, one that stalls."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table as ScreenTable

from bench.sender import FrameSender
from livetables.model.change import Batch, TableChanges, TableShape
from livetables.server.storage.store import Store
from livetables.server.viewports.viewport import Filter, Sort, ViewOptions
from tests.support.server import TOKEN, LiveClient, ServerProcess

TABLE = "accounts_ui"
SCHEMA = pa.schema(
    [
        ("_id", pa.int64()),
        ("userId", pa.string()),
        ("name", pa.string()),
        ("email", pa.string()),
        ("age", pa.int64()),
        ("accountType", pa.string()),
        ("balance", pa.float64()),
        ("ts", pa.timestamp("us", tz="UTC")),
    ]
)
SHAPES = {
    "appended": TableShape(
        TABLE, SCHEMA, ("_id",), appends=True, sources=("accounts",), scope="userId", topic="account"
    ),
    "updated": TableShape(TABLE, SCHEMA, ("_id",)),
}
NO_DELETES = pa.table({})
LOAD_ROWS = 100_000
# Of a viewport: how often frames changed it in memory, and how often the store was asked for it.
COUNTED = {"advances": "livetables_viewport_advances_total", "asked": "livetables_viewport_evaluations_total"}
BATCHES_PER_S, BATCH_ROWS = 10, 100
NEWEST_FIRST: dict[str, Any] = {"sort": [{"column": "ts", "descending": True}], "size": 50}
START = datetime(2026, 1, 1, tzinfo=UTC)
VIEWS = {
    "first window": (ViewOptions(), 10),
    "window in the middle": (ViewOptions(offset=1_000_000), 10),
    "top of a sort (balance)": (ViewOptions(sort=[Sort(column="balance", descending=True)]), 100),
    "top of a sort (name)": (ViewOptions(sort=[Sort(column="name")]), 100),
    "sorted, in the middle": (ViewOptions(sort=[Sort(column="name")], offset=1_000_000), None),
    "column filter": (ViewOptions(filters=[Filter(column="age", op="equals", value=42)]), None),
    "quick filter, text": (ViewOptions(quick="nn-77"), 300),
    "quick filter, number": (ViewOptions(quick="777"), 300),
    "quick filter, sorted": (ViewOptions(quick="ann", sort=[Sort(column="balance", descending=True)]), 300),
}
console = Console()


def rows(first: int, count: int, at: datetime | None = None) -> pa.Table:
    """Rows with these ids; their time follows from the id, unless it is given."""
    ids = np.arange(first, first + count)
    stamps = [at] * count if at else [START + timedelta(milliseconds=int(row_id)) for row_id in ids]
    columns = [
        pa.array(ids),
        [f"u{row_id % 100_000}" for row_id in ids],
        [f"Ann-{row_id * 7919 % 2_000_003}" for row_id in ids],
        [f"ann{row_id}@example.com" for row_id in ids],
        pa.array(ids % 90),
        [("cheque", "savings", "credit")[row_id % 3] for row_id in ids],
        pa.array(ids * 37 % 1_000_003 / 100),
        pa.array(stamps, SCHEMA.field("ts").type),
    ]
    return pa.table(columns, schema=SCHEMA)


def batch(batch_id: int, upserts: pa.Table) -> Batch:
    return Batch("g1", batch_id, (TableChanges(TABLE, upserts, NO_DELETES),))


def windows(count: int) -> dict[str, Any]:
    """The time of one evaluation of each kind of viewport over a whole table, median of ten, the cache being warm."""
    figures: dict[str, Any] = {}
    for kind, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as directory:
            store = Store(Path(directory) / "store.duckdb")
            store.begin("g1", [shape])
            for batch_id in range(count // LOAD_ROWS):
                store.put(batch(batch_id, rows(batch_id * LOAD_ROWS, LOAD_ROWS)))
            store.publish("g1")
            store.put(batch(count // LOAD_ROWS, rows(count - 50, 100)))  # in "updated", half of them are updates
            figures[kind] = {name: evaluation_ms(store, view) for name, (view, _) in VIEWS.items()}
            store.close()
    return figures


def evaluation_ms(store: Store, view: ViewOptions) -> float:
    taken = []
    for _ in range(10):
        started = time.perf_counter()
        store.reader.window(TABLE, view)
        taken.append((time.perf_counter() - started) * 1000)
    return round(median(taken), 1)


@contextmanager
def loaded_server(count: int, relays: int = 0) -> Iterator[ServerProcess]:
    """A server with a table of so many rows."""
    settings = {"LIVETABLES_SERVER_RELAYS": str(relays)}
    with tempfile.TemporaryDirectory() as directory, ServerProcess(Path(directory), settings) as server:
        sink = server.sink()
        sink.begin("g1", [SHAPES["appended"]])
        for batch_id in range(count // LOAD_ROWS):
            sink.put(batch(batch_id, rows(batch_id * LOAD_ROWS, LOAD_ROWS)))
        sink.publish("g1")
        sink.close()
        yield server


class Feeder:
    """Sends batches of new rows at a steady rate, each as a frame; a row's time is when its batch set out."""

    def __init__(self, server: ServerProcess, count: int) -> None:
        self._frames = FrameSender(server, "g1", SHAPES["appended"])
        self._row = count
        self.late_batches = 0

    @property
    def newest(self) -> int:
        """The id of the last row that was sent."""
        return self._row - 1

    def feed(self, seconds: float) -> int:
        """How many batches it sent."""
        due = time.monotonic()
        for _ in range(round(seconds * BATCHES_PER_S)):
            time.sleep(max(0.0, due - time.monotonic()))
            self.late_batches += time.monotonic() - due > 1 / BATCHES_PER_S
            self._frames.send(rows(self._row, BATCH_ROWS, datetime.now(UTC)))
            self._row += BATCH_ROWS
            due += 1 / BATCHES_PER_S
        return round(seconds * BATCHES_PER_S)


def fanout(
    server: ServerProcess, feeder: Feeder, clients: int, seconds: float, warm_seconds: float = 5.0
) -> dict[str, Any]:
    """A crowd that looks at the newest fifty rows while batches come in: every batch changes the whole window."""
    task = {
        "host": "127.0.0.1",
        "port": server.port,
        "token": TOKEN,
        "table": TABLE,
        "view": NEWEST_FIRST,
        "clients": clients,
    }
    command = [sys.executable, "-m", "bench.crowd", json.dumps(task)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as crowd:
        assert crowd.stdin
        assert crowd.stdout
        try:
            assert crowd.stdout.readline() == "ready\n"
            feeder.feed(warm_seconds)
            rss_before, cpu_before = server.rss_megabytes(), server.cpu_seconds()
            counted = {name: server.metric(metric) for name, metric in COUNTED.items()}
            crowd.stdin.write("measure\n")
            crowd.stdin.flush()
            batches = feeder.feed(seconds)
            counted = {name: server.metric(metric) - counted[name] for name, metric in COUNTED.items()}
            cpu, rss = server.cpu_seconds() - cpu_before, server.rss_megabytes()
            viewports = server.metric("livetables_viewports")  # before the crowd leaves
            crowd.stdin.write("end\n")
            crowd.stdin.flush()
            figures: dict[str, Any] = json.loads(crowd.stdout.readline())
        finally:
            crowd.kill()
    return {
        "clients": clients,
        "relays": len(server.relays()),
        "batches": batches,
        "late_batches": feeder.late_batches,
        **counted,
        "viewports": viewports,
        "skipped": server.metric("livetables_frames_skipped_total"),
        "server_cpu_of_a_core": round(cpu / seconds, 2),
        "rss_megabytes_before": round(rss_before),
        "rss_megabytes_after": round(rss),
        **figures,
    }


def stalled(server: ServerProcess, feeder: Feeder, seconds: float) -> dict[str, Any]:
    """A client that stops reading its large window while every batch changes it, beside one that reads on."""
    view = {"sort": [{"column": "ts", "descending": True}], "size": 5_000}
    with LiveClient(server.websocket) as reading, LiveClient(server.websocket, max_queue=1) as slow:
        for client in (reading, slow):
            client.subscribe(1, TABLE, **view)
            client.receive_type("snapshot")
        before = server.rss_megabytes()
        feeding = threading.Thread(target=feeder.feed, args=(seconds,))
        feeding.start()
        while feeding.is_alive():
            reading.receive(30)
        grown = server.rss_megabytes() - before
        for client in (reading, slow):  # the store cannot say what is newest: it is behind what clients are sent
            while all(values[0] != feeder.newest for _, values in client.windows[1].rows):
                client.receive(60)
        return {
            "seconds": seconds,
            "rss_megabytes_grown": round(grown),
            "frames_reading": sum(frame["type"] in ("snapshot", "patch") for frame in reading.frames),
            "frames_slow": sum(frame["type"] in ("snapshot", "patch") for frame in slow.frames),
            "same_at_the_end": reading.windows[1].rows == slow.windows[1].rows,
        }


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with all processes
    parser = argparse.ArgumentParser(prog="python -m bench.serving", description=__doc__)
    parser.add_argument("--window-rows", type=int, default=2_000_000)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table that the crowd looks at")
    parser.add_argument("--clients", type=int, nargs="+", default=[1000, 2000, 3000, 4000])
    parser.add_argument("--relays", type=int, default=0, help="of the server that the crowd is served by")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--only", nargs="+", choices=["windows", "fanout", "stalled"], default=["windows", "fanout", "stalled"]
    )
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    if "windows" in arguments.only:
        figures["windows"] = windows(arguments.window_rows)
        show_windows(figures["windows"], arguments.window_rows)
    if {"fanout", "stalled"} & set(arguments.only):
        with loaded_server(arguments.rows, arguments.relays) as server:
            feeder = Feeder(server, arguments.rows)
            if "fanout" in arguments.only:
                figures["fanout"] = [
                    fanout(server, feeder, clients, arguments.seconds) for clients in arguments.clients
                ]
                show_fanout(figures["fanout"])
            if "stalled" in arguments.only:
                figures["stalled"] = stalled(server, feeder, arguments.seconds)
                console.print("a client that stops reading:", figures["stalled"])
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def show_windows(figures: dict[str, Any], count: int) -> None:
    shown = ScreenTable(title=f"one evaluation over {count:,} rows, ms", title_justify="left")
    for heading in ("viewport", *figures, "aim"):
        shown.add_column(heading, justify="left" if heading == "viewport" else "right")
    for name, (_, aim) in VIEWS.items():
        shown.add_row(name, *(str(kind[name]) for kind in figures.values()), f"< {aim}" if aim else "")
    console.print(shown)


def show_fanout(figures: list[dict[str, Any]]) -> None:
    title = f"batch to client: newest fifty rows, {BATCHES_PER_S} batches of {BATCH_ROWS} rows a second"
    shown = ScreenTable(title=title, title_justify="left")
    shown.add_column("clients")
    for run in figures:
        shown.add_column(f"{run['clients']:,}", justify="right")
    for name in list(figures[0])[1:]:
        shown.add_row(name.replace("_", " "), *(f"{run[name]:,.4g}" for run in figures))
    console.print(shown)


if __name__ == "__main__":
    main()

"""Swaps under load: how long one takes, and the longest time without a frame that somebody who looks on has to bear.

A broker, `livetables serve` and `livetables pipeline`, each a process of its own. A client looks at the newest rows of
`final_ui` while a control message points to topics with a backlog; records come in steadily on both sets of topics.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table as ScreenTable

from bench.__main__ import fill
from bench.load import send, steady_accounts
from bench.viewer import Viewer
from livetables.local.broker import Broker
from tests.support.kafka import create_topic, wait_until
from tests.support.server import TOKEN, ServerProcess
from tests.support.system import PipelineProcess

RATE = 200
AFTER_SECONDS = 20.0  # of the rows right after a swap whose age is measured
STEADY_USERS = 1000
USERS_PART = 20  # one record in so many is a user
WINDOW_ROWS = 300  # a page
WAIT_SECONDS = 300.0
RETIRED_POLL_SECONDS = 0.5
console = Console()


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with all processes
    parser = argparse.ArgumentParser(prog="python -m bench.swap", description=__doc__)
    parser.add_argument("--swaps", type=int, default=5)
    parser.add_argument("--records", type=int, default=100_000, help="of the backlog that each swap reads")
    parser.add_argument("--rate", type=int, default=RATE, help="records a second on the old and on the new topics")
    parser.add_argument("--quiet", type=float, default=60.0, help="seconds before the first swap")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()

    with (
        tempfile.TemporaryDirectory(prefix="livetables-swap-") as directory,
        Broker(heap_megabytes=512) as broker,
        ServerProcess(Path(directory)) as server,
        ExitStack() as stack,
    ):
        bootstrap = broker.bootstrap_servers
        create_topic(bootstrap, "control", partitions=1)
        fill_set(bootstrap, 0, arguments.records)
        pipeline = PipelineProcess(Path(directory), settings(directory, bootstrap, server))
        stack.callback(pipeline.kill)
        pipeline.start()
        console.print("starting the pipeline")
        wait_until(lambda: "final_ui" in tables(server), "final_ui is there", WAIT_SECONDS)
        swaps = run_swaps(bootstrap, server, arguments)
    show(swaps)
    if arguments.json:
        arguments.json.write_text(json.dumps({"cores": os.cpu_count(), "swaps": swaps}, indent=2) + "\n")


def settings(directory: str, bootstrap: str, server: ServerProcess) -> dict[str, str]:
    """The pipeline's, all else being as it is shipped."""
    return {
        "LIVETABLES_TOKEN": TOKEN,
        "LIVETABLES_KAFKA_BOOTSTRAP_SERVERS": bootstrap,
        "LIVETABLES_PIPELINE_SERVER": server.flight,
        "LIVETABLES_PIPELINE_CHECKPOINT_DIRECTORY": f"{directory}/checkpoints",
        "LIVETABLES_TABLES_USERS_TOPIC": "swap-0-user",
        "LIVETABLES_TABLES_ACCOUNTS_TOPIC": "swap-0-account",
    }


def fill_set(bootstrap: str, number: int, records: int) -> None:
    users = max(STEADY_USERS, records // USERS_PART)
    fill(bootstrap, f"swap-{number}", users, records - users)


def tables(server: ServerProcess) -> set[str]:
    return {table["name"] for table in json.loads(server.get("/api/tables"))["tables"]}


def run_swaps(bootstrap: str, server: ServerProcess, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One swap after the other, each to topics of its own, after a quiet time as long as the swap before it."""
    swaps: list[dict[str, Any]] = []
    quiet_seconds = arguments.quiet
    with Viewer(server.websocket, TOKEN, "final_ui", WINDOW_ROWS) as viewer:
        for number in range(1, arguments.swaps + 1):
            fill_set(bootstrap, number, arguments.records)
            with (
                steady_accounts(bootstrap, f"swap-{number - 1}-account", arguments.rate, STEADY_USERS),
                steady_accounts(bootstrap, f"swap-{number}-account", arguments.rate, STEADY_USERS),
            ):
                swap = one_swap(bootstrap, server, viewer, number, quiet_seconds)
            console.print(f"swap {number}: {swap}", highlight=False)
            quiet_seconds = swap["seconds"]
            swaps.append(swap)
    return swaps


def one_swap(
    bootstrap: str, server: ServerProcess, viewer: Viewer, number: int, quiet_seconds: float
) -> dict[str, Any]:
    """From a control message to the old generation's end, with the quiet time before it."""
    old = viewer.frames[-1].generation
    console.print(f"swap {number}: quiet for {quiet_seconds:.0f} s, then the message", highlight=False)
    quiet_begin = time.time()
    time.sleep(quiet_seconds)
    begin = time.time()
    message = {"usersTopic": f"swap-{number}-user", "accountsTopic": f"swap-{number}-account"}
    send(bootstrap, "control", [json.dumps(message).encode()], lambda _: None)
    switched = viewer.wait_for_another(old, WAIT_SECONDS)
    time.sleep(AFTER_SECONDS)
    after = ages_ms(viewer, switched.held)
    wait_until_retired(server, old)
    end = time.time()
    outcome = server.rows("control_raw", "sort=offset:desc&limit=1")[0]["outcome"]
    return {
        "switch_seconds": round(switched.held - begin, 2),
        "seconds": round(end - begin, 1),
        "longest_gap_ms": round(viewer.longest_gap_ms(begin, end)),
        "longest_gap_until_switch_ms": round(viewer.longest_gap_ms(begin, switched.held + 0.001)),
        "quiet_seconds": round(begin - quiet_begin, 1),
        "quiet_longest_gap_ms": round(viewer.longest_gap_ms(quiet_begin, begin)),
        "fewest_rows": min(frame.rows for frame in viewer.frames if quiet_begin <= frame.held < end),
        "outcome": outcome,
        "after_p50_ms": round(float(np.percentile(after, 50))),
        "after_p99_ms": round(float(np.percentile(after, 99))),
    }


def ages_ms(viewer: Viewer, since: float) -> list[float]:
    """How old the rows were that came after a time, when the client first held them."""
    return [
        (at - sent) * 1000
        for at, text in list(viewer.held.values())  # the viewer goes on
        if (sent := datetime.fromisoformat(text).timestamp()) > since
    ]


def wait_until_retired(server: ServerProcess, generation: str) -> None:
    """Asks seldom: the server has other things to do."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        states = {row["generation"]: row["state"] for row in server.rows("generations", "limit=1000")}
        if states[generation] == "retired":
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{generation} is {states[generation]} after {WAIT_SECONDS:.0f} s")
        time.sleep(RETIRED_POLL_SECONDS)


def show(swaps: list[dict[str, Any]]) -> None:
    shown = ScreenTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    columns = {
        "message to new rows, s": "switch_seconds",
        "longest gap, ms": "longest_gap_ms",
        "until the switch": "longest_gap_until_switch_ms",
        "when quiet": "quiet_longest_gap_ms",
        "fewest rows": "fewest_rows",
        "rows after it: p50, ms": "after_p50_ms",
        "p99": "after_p99_ms",
    }
    for heading in ("swap", *columns):
        shown.add_column(heading, justify="right")
    for number, swap in enumerate(swaps, 1):
        shown.add_row(str(number), *(str(swap[name]) for name in columns.values()))
    shown.add_section()
    worst = {name: max(swap[name] for swap in swaps) for name in columns.values()}
    worst["fewest_rows"] = min(swap["fewest_rows"] for swap in swaps)
    shown.add_row("median", *(f"{median(swap[name] for swap in swaps):g}" for name in columns.values()))
    shown.add_row("worst", *(f"{value:g}" for value in worst.values()))
    console.print(shown)


if __name__ == "__main__":
    main()

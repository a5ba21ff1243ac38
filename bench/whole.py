"""The whole way: from a record's Kafka timestamp to a WebSocket client that holds its row, beside the peer.

A real broker, `livetables serve`, the pipeline and the stream's producer, each a process of its own. For every join and
every size of state: a backlog, then 1,000 accounts a second on top of it, on the same topics as the peer. The peer's
clock stops at a listener inside its server, ours at a client that has parsed the frame.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table as ScreenTable

from bench.__main__ import bar, fill
from bench.load import count_records, offsets_at, send, steady_accounts
from bench.pauses import no_collections
from bench.peer import SCRIPT, Peer, prepared
from bench.viewer import Viewer
from livetables.local.broker import Broker
from livetables.model.errors import LivetablesError, SetupError
from livetables.model.joins import JoinType
from livetables.model.spec import record_id
from tests.support.kafka import create_topic
from tests.support.server import TOKEN, ServerProcess
from tests.support.system import PipelineProcess

JOINS: tuple[JoinType, ...] = ("left", "inner", "natural", "asof")
RATE = 1000
STEADY_USERS = 1000
ACCOUNTS_A_USER = 20
WARM_ACCOUNTS = 200_000
WAIT_SECONDS = 900.0
VIEW = "final_ui"
SERVER_SETTINGS = {"LIVETABLES_SERVER_MEMORY_MEGABYTES": "3072"}
WINDOW_ROWS = 1500  # every row is seen as long as a frame comes every one and a half seconds
HELD_SECONDS_MAX = 20.0
RATE_KEPT = 0.98
SHORT_CYCLE_MS = 100
# Of the peer at its short cycle, whose backlog is that of its default cycle.
AIMS = {"backlog_rows_per_s": "≥ 0.45", "p50_ms": "≤ 1.0", "p99_ms": "≤ 1.5"}
AIMED = ("left", 2_000_000)
console = Console()


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with all processes
    parser = argparse.ArgumentParser(prog="python -m bench.whole", description=__doc__)
    parser.add_argument("--joins", nargs="+", choices=get_args(JoinType), default=JOINS)
    parser.add_argument("--sizes", nargs="+", type=int, default=[10_000, 2_000_000], help="accounts in the state")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the stream that are measured")
    parser.add_argument("--settle", type=float, default=30.0, help="seconds of the stream before those")
    parser.add_argument("--peer-seconds", type=float, default=60.0, help="of the peer's stream that are measured")
    parser.add_argument("--rate", type=int, default=RATE, help="accounts a second of the stream")
    parser.add_argument("--window", type=int, default=WINDOW_ROWS, help="newest rows that the client looks at")
    parser.add_argument("--peer", type=Path, default=SCRIPT, help="the script that measures it (%(default)s)")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()

    peer = chosen_peer(arguments)
    runs: list[dict[str, Any]] = []
    with Broker(heap_megabytes=512) as broker:
        bootstrap = broker.bootstrap_servers
        fill_backlog(bootstrap, "warm", WARM_ACCOUNTS)
        for join in arguments.joins:
            for accounts in arguments.sizes:
                runs.append(one_run(bootstrap, peer, join, accounts, arguments))
                console.print(f"{join} at {accounts:,} accounts: {runs[-1]['ours']}", highlight=False)
    show(runs)
    if arguments.json:
        arguments.json.write_text(json.dumps({"cores": os.cpu_count(), "runs": runs}, indent=2) + "\n")


def chosen_peer(arguments: argparse.Namespace) -> Peer | None:
    if arguments.no_peer:
        return None
    if not arguments.peer.exists():
        console.print(f"without the peer: there is no {arguments.peer} (--peer PATH names another)", highlight=False)
        return None
    console.print("setting up the peer")
    return prepared(arguments.peer.resolve())


def users_of(accounts: int) -> int:
    return max(STEADY_USERS, accounts // ACCOUNTS_A_USER)


def joined_rows(join: JoinType, users: int, accounts: int) -> int:
    """The rows of the view; every user has an account, and every account its user."""
    return users if join == "natural" else accounts


def fill_backlog(bootstrap: str, topics: str, accounts: int) -> None:
    fill(bootstrap, topics, users_of(accounts), accounts)


def one_run(
    bootstrap: str, peer: Peer | None, join: JoinType, accounts: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """One join on one size of state: the peer's figures, then ours, on the same topics."""
    topics = f"{join}-{accounts}"
    fill_backlog(bootstrap, topics, accounts)
    run: dict[str, Any] = {"join": join, "accounts": accounts}
    if peer:
        # First, so that the rows which each stream adds to the topics are a burden to us and not to it.
        run["peer"] = peers_figures(peer, bootstrap, topics, join, arguments.peer_seconds, None)
        if join == AIMED[0]:
            run["peer_short_cycle"] = peers_figures(
                peer, bootstrap, topics, join, arguments.peer_seconds, SHORT_CYCLE_MS
            )
    # A pipeline that was killed may still be writing its last file.
    temporary = tempfile.TemporaryDirectory(prefix="livetables-whole-", ignore_cleanup_errors=True)
    with temporary as directory, ServerProcess(Path(directory), SERVER_SETTINGS) as server, ExitStack() as stack:
        control = f"control-{topics}"
        create_topic(bootstrap, control, partitions=1)
        pipeline = PipelineProcess(Path(directory), settings(directory, bootstrap, server, control))
        stack.callback(pipeline.kill)
        pipeline.start()
        console.print(f"{topics}: the pipeline starts, on a small backlog to get warm", highlight=False)
        wait_for_event(pipeline, "ready", 1)
        message = {"usersTopic": f"{topics}-user", "accountsTopic": f"{topics}-account", "joinType": join}
        send(bootstrap, control, [json.dumps(message).encode()], lambda _: None)
        run["ours"] = {"backlog_rows_per_s": backlog_rate(pipeline, bootstrap, topics)}
        wait_for_event(pipeline, "ready", 2)
        check_rows(bootstrap, server, topics, join)
        run["ours"] |= latency(bootstrap, server, topics, arguments)
    return run


def settings(directory: str, bootstrap: str, server: ServerProcess, control: str) -> dict[str, str]:
    """The pipeline's, all else being as it is shipped."""
    return {
        "LIVETABLES_TOKEN": TOKEN,
        "LIVETABLES_KAFKA_BOOTSTRAP_SERVERS": bootstrap,
        "LIVETABLES_PIPELINE_SERVER": server.flight,
        "LIVETABLES_PIPELINE_CHECKPOINT_DIRECTORY": f"{directory}/checkpoints",
        "LIVETABLES_PIPELINE_DRIVER_MEMORY_MEGABYTES": "4096",
        "LIVETABLES_GENERATIONS_SWITCH_AFTER_SECONDS": "900",
        "LIVETABLES_CONTROL_TOPIC": control,
        "LIVETABLES_TABLES_USERS_TOPIC": "warm-user",
        "LIVETABLES_TABLES_ACCOUNTS_TOPIC": "warm-account",
    }


def wait_for_event(pipeline: PipelineProcess, kind: str, count: int) -> dict[str, str]:
    """Wait until the pipeline has logged so many events of a kind; the last of them."""
    deadline = time.monotonic() + WAIT_SECONDS
    while len(events := pipeline.events(kind)) < count:
        if time.monotonic() > deadline or not pipeline.is_running:
            raise SetupError(f"no {kind} in time; the end of its log: {pipeline.log()[-2000:]}", "look at its log")
        time.sleep(0.2)
    return events[count - 1]


def backlog_rate(pipeline: PipelineProcess, bootstrap: str, topics: str) -> int:
    """The accounts a second, from the build's start until the server has the backlog and real time begins."""
    accounts = count_records(bootstrap, f"{topics}-account")
    build = wait_for_event(pipeline, "build", 2)
    started = datetime.fromisoformat(build["time"])
    with bar(f"{topics}: backlog", 1) as advance_to:
        while not (modes := [each for each in pipeline.events("mode") if each["generation"] == build["generation"]]):
            assert pipeline.is_running, pipeline.log()[-2000:]
            time.sleep(0.2)
        advance_to(1)
    return round(accounts / (datetime.fromisoformat(modes[0]["time"]) - started).total_seconds())


def check_rows(bootstrap: str, server: ServerProcess, topics: str, join: JoinType) -> None:
    users, accounts = (count_records(bootstrap, f"{topics}-{kind}") for kind in ("user", "account"))
    rows = json.loads(server.get(f"/api/tables/{VIEW}/rows?limit=1"))["total"]
    expected = joined_rows(join, users, accounts)
    assert rows == expected, f"{rows:,} rows of {expected:,} are in {VIEW}"


def peers_figures(
    peer: Peer, bootstrap: str, topics: str, join: JoinType, seconds: float, cycle_ms: int | None
) -> dict[str, Any] | None:
    cycle = f"a cycle of {cycle_ms} ms" if cycle_ms else "its default cycle"
    console.print(f"{topics}: the peer at {cycle}, backlog and {seconds:.0f} s", highlight=False)
    rows = joined_rows(join, count_records(bootstrap, f"{topics}-user"), count_records(bootstrap, f"{topics}-account"))
    try:
        figures = peer.measured(
            bootstrap, topics, join, rows=rows, rate=RATE, keys=STEADY_USERS, seconds=seconds, cycle_ms=cycle_ms
        )
    except LivetablesError as error:  # the rest of a long run is worth having
        console.print(f"{topics}: {error}", highlight=False, markup=False)
        return None
    if join == "natural":
        figures.pop("backlog_rows_per_s")  # its table has all its rows before it has seen the accounts
    return figures


def latency(bootstrap: str, server: ServerProcess, topics: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """How old each account is when a client first holds its row, for what is sent after the stream has settled."""
    topic = f"{topics}-account"
    with (
        Viewer(server.websocket, TOKEN, VIEW, arguments.window) as viewer,
        steady_accounts(bootstrap, topic, arguments.rate, STEADY_USERS),
    ):
        seconds = arguments.settle + arguments.seconds
        console.print(f"{topics}: {arguments.rate:,} rows/s for {seconds:.0f} s", highlight=False)
        time.sleep(arguments.settle)
        with no_collections():
            before, arrived, begin = server_totals(server), arrivals(server), datetime.now(UTC)
            time.sleep(arguments.seconds)
            after, end = server_totals(server), datetime.now(UTC)
            arrived = {bound: count - arrived.get(bound, 0) for bound, count in arrivals(server).items()}
        sent = sent_accounts(bootstrap, topic, begin, end)
        missed = viewer.wait_until_held(sent, HELD_SECONDS_MAX)
        span = (begin.timestamp(), end.timestamp())
        held = dict(viewer.held)
    ages = np.array([age_ms(*held[account]) for account in sent - missed] or [float("nan")])
    spent = {name: (after[name][0] - before[name][0]) / max(1, after[name][1] - before[name][1]) for name in before}
    figures = {
        **{f"p{share}_ms": round(float(np.percentile(ages, share))) for share in (50, 95, 99)},
        "max_ms": round(float(ages.max())),
        "mean_ms": round(float(ages.mean()), 1),
        "samples": len(ages),
        "sent_per_s": round(len(sent) / (span[1] - span[0])),
        "missed_of_sent": len(missed) / len(sent),
        "frames": sum(span[0] <= frame.held < span[1] for frame in viewer.frames),
        "longest_gap_ms": round(viewer.longest_gap_ms(*span)),
        "server_p50_ms": round(percentile_of(arrived, 0.5) * 1000),
        "server_p99_ms": round(percentile_of(arrived, 0.99) * 1000),
        "phases_ms": {name: round(seconds * 1000, 1) for name, seconds in spent.items()},
    }
    if figures["sent_per_s"] < arguments.rate * RATE_KEPT:
        console.print(f"{topics}: only {figures['sent_per_s']:,} rows/s were sent: this machine is too busy to measure")
    return figures


def server_totals(server: ServerProcess) -> dict[str, tuple[float, float]]:
    """The seconds that rows and the server have spent so far, and how often, by phase."""
    names = {
        "to the server": 'livetables_arrival_seconds_{part}{{table="accounts_ui"}}',
        "until shown": 'livetables_latency_seconds_{part}{{table="accounts_ui"}}',
        "applying a frame": "livetables_frame_seconds_{part}",
        "asking the store for a viewport": "livetables_viewport_seconds_{part}",
    }
    return {
        name: (server.metric(metric.format(part="sum")), server.metric(metric.format(part="count")))
        for name, metric in names.items()
    }


def arrivals(server: ServerProcess) -> dict[float, float]:
    """How many accounts the server was sent at most so many seconds after their Kafka timestamp, by seconds."""
    metric = r'^livetables_arrival_seconds_bucket\{le="(\S+)",table="accounts_ui"\} (\S+)$'
    return {float(bound): float(count) for bound, count in re.findall(metric, server.get("/metrics"), re.MULTILINE)}


def percentile_of(counts: Mapping[float, float], share: float) -> float:
    """The seconds that this share of the records does not exceed, a straight line inside of a bucket."""
    wanted, low, below = share * max(counts.values(), default=0.0), 0.0, 0.0
    for bound, count in sorted(counts.items()):
        if count >= wanted > below:
            return low if bound == float("inf") else low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return float("nan")


def sent_accounts(bootstrap: str, topic: str, begin: datetime, end: datetime) -> set[int]:
    """The ids of all accounts with a timestamp in this time: Kafka knows what was sent."""
    spans = zip(offsets_at(bootstrap, topic, begin), offsets_at(bootstrap, topic, end), strict=True)
    return {
        record_id(partition, offset) for partition, (first, stop) in enumerate(spans) for offset in range(first, stop)
    }


def age_ms(held: float, sent: str) -> float:
    return (held - datetime.fromisoformat(sent).timestamp()) * 1000


def show(runs: list[dict[str, Any]]) -> None:
    console.print("from Kafka's timestamp to a client that holds the row; the peer's to a listener inside its server")
    shown = ScreenTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("join", "accounts", "", "backlog/s", "p50 ms", "p99 ms", "samples", "missed"):
        shown.add_column(heading, justify="left" if heading in ("join", "") else "right")
    sides = {"ours": "livetables", "peer": "peer", "peer_short_cycle": f"{SHORT_CYCLE_MS} ms cycle"}
    for run in runs:
        shown.add_section()
        for side, title in sides.items():
            if figures := run.get(side):
                missed = f"{figures['missed_of_sent']:.2%}" if "missed_of_sent" in figures else ""
                cells = [f"{figures[name]:,}" if name in figures else "" for name in (*AIMS, "samples")]
                shown.add_row(run["join"], f"{run['accounts']:,}", title, *cells, missed)
        if run.get("peer"):
            shown.add_row("", "", "of peer", *(of_peer(run, name) for name in AIMS))
        if (run["join"], run["accounts"]) == AIMED:
            shown.add_row("", "", "aim", *AIMS.values())
    console.print(shown)


def of_peer(run: dict[str, Any], name: str) -> str:
    peer = run["peer"] if name == "backlog_rows_per_s" else run.get("peer_short_cycle") or run["peer"]
    return f"{run['ours'][name] / peer[name]:.2f}" if peer.get(name) else ""


if __name__ == "__main__":
    main()

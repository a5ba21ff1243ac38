"""`livetables tail --latency`: how long records take from Kafka to here, of the last minute."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from livetables.cli.rendering import json_line
from livetables.client import Changes, Clock, Connection, Latency, Table
from livetables.client.http import UnreachableError
from livetables.client.latency import Percentiles

LOOK_SECONDS = 0.5
LINE_SECONDS = 3.0
PHASES = {
    "kafka_to_spark": "Kafka to out of Spark",
    "spark_to_applied": "Spark to applied",
    "applied_to_sent": "applied to sent",
    "sent_to_received": "sent to here",
}


def show_latency(console: Console, server: Connection, table: Table, *, as_json: bool) -> None:
    """Show the latencies of the last minute until Ctrl-C: in place on a terminal, else a line every few seconds."""
    clock = server.clock()
    with ThreadPoolExecutor(1) as thread, table.changes(snapshot=False) as changes:
        changes.begin()
        following = thread.submit(_read, changes)

        def looks(seconds: float) -> Iterator[Latency | None]:
            while not wait([following], seconds).done:
                yield changes.latency
            following.result()  # raises what the server refused

        if as_json:
            for latency in looks(LINE_SECONDS):
                print(json_line(latency_object(table.name, latency, clock)), flush=True)
        elif not console.is_terminal:
            for latency in looks(LINE_SECONDS):
                print("; ".join(latency_lines(latency, clock)), flush=True)
        else:
            with Live(console=console, auto_refresh=False) as live:
                for latency in looks(LOOK_SECONDS):
                    title = Text(f"{table.name}  {_state(server)}", style="dim", no_wrap=True, overflow="ellipsis")
                    live.update(Group(title, "", *map(Text, latency_lines(latency, clock))), refresh=True)


def latency_lines(latency: Latency | None, clock: Clock) -> list[str]:
    """The latency for people: the whole way, its phases, and how clocks differ where that matters."""
    if latency is None:
        return ["Kafka to here: no records came in the last minute"]
    ways = {"Kafka to here": latency.whole, **{PHASES[name]: each for name, each in latency.phases.items()}}
    lines = [f"{way}: p50 {each.p50:,.0f} ms, p99 {each.p99:,.0f} ms" for way, each in ways.items()]
    return [*lines, str(clock)] if clock.matters else lines


def latency_object(table: str, latency: Latency | None, clock: Clock) -> dict[str, Any]:
    """The latency for programs, in ms; p50, p99 and the phases are null if no records came."""
    return {
        "table": table,
        "changes": latency.changes if latency else 0,
        **(_rounded(latency.whole) if latency else {"p50": None, "p99": None}),
        "phases": {name: _rounded(each) for name, each in latency.phases.items()} if latency else None,
        "clock_ahead_ms": round(clock.ahead_ms, 2),
    }


def _rounded(percentiles: Percentiles) -> dict[str, float]:
    return {"p50": round(percentiles.p50, 2), "p99": round(percentiles.p99, 2)}


def _read(changes: Changes) -> None:
    for _ in changes:
        pass  # what they are does not matter here, only when they come


def _state(server: Connection) -> str:
    try:
        status = server.status()
    except UnreachableError as error:
        return f"{error.problem}; trying again"
    return f"{status['state'].replace('_', ' ')}: {status['message']}"

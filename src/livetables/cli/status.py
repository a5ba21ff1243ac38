"""`livetables status`: what is live, how fresh it is, and where everything is."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from livetables.cli.options import add_server_options, server_and_addresses
from livetables.client.http import HttpClient

EXAMPLES = """examples:
  livetables status                                     of what runs in this directory
  livetables status --json | jq -r .addresses.kafka     for scripts
  LIVETABLES_TOKEN=… livetables status --url http://host:8765
  LIVETABLES_TOKEN=… livetables status --url https://host:8765 --ca ca.pem
"""
GENERATIONS_SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `livetables status`."""
    parser.epilog = EXAMPLES
    parser.add_argument("--json", action="store_true", help="everything, as JSON, with every address")
    add_server_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints it once, and ends."""
    http_client, addresses = server_and_addresses(arguments)
    status = gathered(http_client, asdict(addresses))
    if arguments.json:
        print(json.dumps(status, indent=2))
    else:
        show(Console(highlight=False), status)
    return 0


def gathered(http_client: HttpClient, addresses: Mapping[str, str | None]) -> dict[str, Any]:
    """The server's own status, the orchestrator's, and its generations, the newest first."""
    server = http_client.get("/api/status")
    orchestrator = http_client.rows("orchestrator_status")
    return {
        "addresses": addresses,
        **server,
        "orchestrator": orchestrator[0] if orchestrator else None,
        "history": http_client.rows("generations", sort="started:desc"),
    }


def show(console: Console, status: Mapping[str, Any]) -> None:
    """The same for people."""
    orchestrator = status["orchestrator"] or {}
    lines = {
        "state": f"{status['state'].replace('_', ' ')}: {status['message']}",
        "pipeline": _state_and_message(orchestrator.get("state"), orchestrator.get("message")),
        "topics": ", ".join(f"{name} {topic}" for name, topic in _topics(orchestrator)),
        "join": ", ".join(_joins(orchestrator)),
        "generation": orchestrator.get("generation"),
        "lag": _lag(orchestrator.get("lag")),
        "applied": orchestrator.get("lastApplied"),
        "clients": f"{status['clients']} connected, {status['subscriptions']} subscriptions",
        "kafka": status["addresses"]["kafka"],
        "page": status["addresses"]["http"],
        "flight": status["addresses"]["flight"],
        "spark": status.get("spark_ui"),
    }
    for name, text in lines.items():
        if text:
            console.print(f"{name:<11} {text}", markup=False, soft_wrap=True)
    if status["history"]:
        console.print()
        console.print(_generations(status["history"][:GENERATIONS_SHOWN]))


def _generations(history: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for name in ("generation", "state", "topics", "join", "rows", "started"):
        table.add_column(name, justify="right" if name == "rows" else "left", no_wrap=name != "topics")
    for row in history:
        rows = "" if row["rows"] is None else f"{row['rows']:,}"
        topics = ", ".join(topic for _, topic in _topics(row))
        table.add_row(
            row["generation"], row["state"], topics, ", ".join(_joins(row)), rows, (row["started"] or "")[:19]
        )
    return table


def _topics(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name.removesuffix("Topic"), topic) for name, topic in row.items() if name.endswith("Topic") and topic]


def _joins(row: Mapping[str, Any]) -> list[str]:
    """Return the join that joinType means, then those of further views, with their names."""
    further = [f"{name.removesuffix('Join')} {join}" for name, join in row.items() if name.endswith("Join") and join]
    return [*filter(None, [row.get("joinType")]), *further]


def _state_and_message(state: str | None, message: str | None) -> str | None:
    return f"{state}: {message}" if state and message else state


def _lag(records: int | None) -> str | None:
    return None if records is None else f"{records:,} records"

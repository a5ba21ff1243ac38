"""`livetables tail`: a table's newest rows, as they come, or how long they take to come."""

from __future__ import annotations

import argparse
import sys
import time

import pyarrow as pa
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from livetables.cli.latency import show_latency
from livetables.cli.options import add_server_options, chosen_server
from livetables.cli.rendering import json_line, lines, screen_table, shown_columns
from livetables.client import Connection, Table
from livetables.client.http import UnreachableError
from livetables.config.settings import choice
from livetables.model.errors import ConfigError

ROWS_MAX = 10_000  # a window of the server
LINES_BEFORE = 10
LINES_AROUND = 4  # what a terminal shows beside the rows
LOOK_SECONDS = 0.5

EXAMPLES = """examples:
  livetables tail final_ui                              the newest rows, in place, until Ctrl-C
  livetables tail dead_letters --columns source,reason,raw
  livetables tail accounts_ui | grep savings            a line for each row that is new or has changed
  livetables tail accounts_ui --json | jq .row          with what was deleted, and every swap
  livetables tail users_ui -n 0 | head -1               nothing of what is there already
  livetables tail --latency final_ui                    how long records take from Kafka to here, by phase
  livetables tail --latency --json final_ui | jq .p99   the same every few seconds, an object a line

A swap to other topics is followed: the rows that are there then come first.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `livetables tail`."""
    parser.epilog = EXAMPLES
    parser.add_argument("table", metavar="TABLE", help="a table's name or alias; `livetables tables` lists them")
    parser.add_argument(
        "-n",
        "--rows",
        type=int,
        metavar="N",
        help=f"how many rows to begin with, and to show in place; default: a screenful, or {LINES_BEFORE} in a pipe",
    )
    parser.add_argument("--columns", metavar="A,B", help="which columns; default: all but those for programs (_…)")
    parser.add_argument("--json", action="store_true", help="a JSON object a line: for each change, or of each latency")
    parser.add_argument(
        "--latency",
        action="store_true",
        help="instead of rows: how long those of the last minute took from Kafka to here, p50 and p99, by phase",
    )
    add_server_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Follow the table until it is stopped."""
    if arguments.rows is not None and not 0 <= arguments.rows <= ROWS_MAX:
        raise ConfigError(f"-n is {arguments.rows}", f"give a number from 0 to {ROWS_MAX:,}")
    if arguments.latency and (arguments.rows is not None or arguments.columns is not None):
        raise ConfigError("--latency shows no rows", "leave -n and --columns out")
    console = Console(highlight=False)
    with chosen_server(arguments) as server:
        table = server.table(arguments.table)
        if arguments.latency:
            show_latency(console, server, table, as_json=arguments.json)
            return 0
        chosen = _chosen_columns(table, arguments.columns)
        if arguments.json or not console.is_terminal:
            rows = LINES_BEFORE if arguments.rows is None else arguments.rows
            follow(table, rows, JsonLines(chosen) if arguments.json else TextLines(chosen))
        else:
            rows = max(1, console.height - LINES_AROUND) if arguments.rows is None else arguments.rows
            show_in_place(console, server, table, rows, chosen)
    return 0


def follow(table: Table, rows: int, output: JsonLines | TextLines) -> None:
    """Print the last rows that are there, and from then on every change; of a swap, the last rows again."""
    with table.changes(snapshot=False) as changes:
        changes.begin()
        before = table.tail(rows)
        output.swapped(table.generation)
        output.rows(before)
        sys.stdout.flush()
        printed = before.to_pylist()  # those that came between the two questions are among the changes too
        for change in changes:
            if change.is_snapshot:
                output.swapped(change.generation)
                output.rows(change.upserts.slice(max(0, change.upserts.num_rows - rows)))
            else:
                is_news = [row not in printed for row in change.upserts.to_pylist()]
                output.deleted(change.deletes)
                output.rows(change.upserts.filter(pa.array(is_news, pa.bool_())))
            printed = []
            sys.stdout.flush()


def show_in_place(console: Console, server: Connection, table: Table, rows: int, chosen: list[str] | None) -> None:
    """Show the last rows as they are, until Ctrl-C; while the server is away, that it is."""
    shown: RenderableType = ""
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            try:
                newest = table.tail(rows)
                shown, hidden = screen_table(newest.select(shown_columns(newest.column_names, chosen)), console.width)
                status = server.status()
                about = f"{table.count():,} rows, {status['state'].replace('_', ' ')}: {status['message']}"
                about += f"; no room for {', '.join(hidden)} (--columns)" if hidden else ""
            except UnreachableError as error:
                about = f"{error.problem}; trying again"
            title = Text(f"{table.name}  {about}", style="dim", no_wrap=True, overflow="ellipsis")
            live.update(Group(title, "", shown), refresh=True)
            time.sleep(LOOK_SECONDS)


class TextLines:
    """A line for each row that is new or has changed, under the columns' names."""

    def __init__(self, chosen: list[str] | None) -> None:
        self._chosen = chosen
        self._heading: list[str] = []

    def swapped(self, generation: str) -> None:
        print(f"generation {generation}", file=sys.stderr)

    def deleted(self, keys: pa.Table) -> None:
        """A row that is gone has no line: only its key is known."""

    def rows(self, rows: pa.Table) -> None:
        columns = shown_columns(rows.column_names, self._chosen)
        if columns != self._heading:
            self._heading = columns
            print("\t".join(columns))
        for line in lines(rows.select(columns)):
            print(line)


class JsonLines:
    """An object for each row that is new or has changed, each key that is gone, and each generation that takes over."""

    def __init__(self, chosen: list[str] | None) -> None:
        self._chosen = chosen

    def swapped(self, generation: str) -> None:
        print(json_line({"op": "generation", "generation": generation}))

    def deleted(self, keys: pa.Table) -> None:
        for key in keys.to_pylist():
            print(json_line({"op": "delete", "key": key}))

    def rows(self, rows: pa.Table) -> None:
        for row in rows.select(self._chosen or rows.column_names).to_pylist():
            print(json_line({"op": "upsert", "row": row}))


def _chosen_columns(table: Table, text: str | None) -> list[str] | None:
    if text is None:
        return None
    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in table.columns:
            raise ConfigError(f"{table.name} has no column {name!r}", choice(name, table.columns))
    return chosen

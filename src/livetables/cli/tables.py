"""`livetables tables`: which tables there are, with their rows and columns."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from livetables.cli.options import add_server_options, chosen_server
from livetables.client import TableSummary
from livetables.model.spec import CONTROL_TABLES

PIPE_WIDTH = 10_000  # no line is broken there

EXAMPLES = """examples:
  livetables tables                                     of what runs in this directory
  livetables tables --json | jq -r '.[].name'           for scripts
  livetables tail final_ui                              what a table has, as it changes
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `livetables tables`."""
    parser.epilog = EXAMPLES
    parser.add_argument("--json", action="store_true", help="as JSON, with every column and its type")
    add_server_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints it once, and ends."""
    with chosen_server(arguments) as server:
        found = server.tables()
    if arguments.json:
        print(json.dumps([asdict(each) for each in found], indent=2))
    else:
        screen = Console(highlight=False)
        show(screen if screen.is_terminal else Console(highlight=False, width=PIPE_WIDTH), found)
    return 0


def show(console: Console, found: list[TableSummary]) -> None:
    """The same for people: tables with other names and columns, those for programs left out; status tables last."""
    aliases: dict[str, list[str]] = {}
    for each in found:
        if each.alias_of:
            aliases.setdefault(each.alias_of, []).append(each.name)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("table", "rows", "generation", "columns"):
        table.add_column(heading, justify="right" if heading == "rows" else "left", no_wrap=heading != "columns")
    for each in sorted(found, key=lambda each: (each.name in CONTROL_TABLES, each.name)):
        if not each.alias_of:
            name = " = ".join([each.name, *aliases.get(each.name, [])])
            columns = ", ".join(column for column in each.columns if column[:1] != "_")
            table.add_row(Text(name), f"{each.rows:,}", Text(each.generation), Text(columns))
    if found:
        console.print(table)
    else:
        console.print("no table is there yet; `livetables status` shows why")

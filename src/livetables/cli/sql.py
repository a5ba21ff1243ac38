"""`livetables sql`: ask the tables in SQL."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from livetables.cli.options import add_server_options, chosen_server
from livetables.cli.rendering import json_line, lines, screen_table
from livetables.model.errors import ConfigError

ROWS_SHOWN = 100

EXAMPLES = f"""examples:
  livetables sql "SELECT accountType, count(*), avg(balance) FROM accounts_ui GROUP BY ALL"
  livetables sql "DESCRIBE final_ui"                    a table's columns
  livetables sql --json "SELECT * FROM users_ui" > users.jsonl
  livetables sql - < question.sql                       from a file

One SELECT, in DuckDB's SQL, over the tables and nothing else (`livetables tables` lists them), for at most ten seconds.
In a terminal the first {ROWS_SHOWN} rows are shown; in a pipe there are all of them, a line each with tabs between.
"""  # noqa: S608


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `livetables sql`."""
    parser.epilog = EXAMPLES
    parser.add_argument("query", metavar="QUERY", help="the question; - reads it from the input")
    parser.add_argument("--json", action="store_true", help="a JSON object for each row, one a line")
    add_server_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Asks once, prints the answer, and ends."""
    query = sys.stdin.read() if arguments.query == "-" else arguments.query
    if not query.strip():
        raise ConfigError("the query is empty", 'give one, like "SELECT count(*) FROM final_ui"')
    with chosen_server(arguments) as server:
        answer = server.sql(query)
    console = Console(highlight=False)
    if arguments.json:
        for row in answer.to_pylist():
            print(json_line(row))
    elif console.is_terminal:
        table, hidden = screen_table(answer.slice(0, ROWS_SHOWN), console.width)
        console.print(table)
        left = answer.num_rows - ROWS_SHOWN
        notes = [
            f"{answer.num_rows:,} rows",
            f"{left:,} of them not shown" if left > 0 else "",
            f"no room for {', '.join(hidden)}" if hidden else "",
        ]
        console.print(f"({', '.join(filter(None, notes))})", style="dim", markup=False)
    else:
        print("\t".join(answer.column_names))
        for line in lines(answer):
            print(line)
    return 0

"""`livetables control`: switch to other topics or another join, and report the outcome."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape

from livetables.cli.options import add_server_options, chosen_server
from livetables.model.errors import ConfigError
from livetables.model.joins import join_choices

EXAMPLES = """examples:
  livetables control --users-topic user_2                  what is not named stays as it is
  livetables control --users-topic user --accounts-topic account --join natural
  livetables control --topic orders=shop.orders_2          a table of your own configuration
  livetables control --join natural --view orders_by_city  and a view of it
  livetables control --rollback                            back to the generation before
  livetables control --discard g7-1f3a9c2e                 remove a generation that is kept

Ends with 0 when it was applied, or nothing had to change; with 1 when it was superseded, rejected, or failed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `livetables control`."""
    parser.epilog = EXAMPLES
    parser.add_argument("--users-topic", metavar="TOPIC", help="the topic of table users")
    parser.add_argument("--accounts-topic", metavar="TOPIC", help="the topic of table accounts")
    parser.add_argument(
        "--topic", action="append", default=[], metavar="TABLE=TOPIC", help="the topic of any table; may be repeated"
    )
    parser.add_argument("--join", metavar="JOIN", help=join_choices(with_notes=False))
    parser.add_argument(
        "--view", metavar="VIEW", help="the view that --join is for; default: final_ui, or the only view"
    )
    parser.add_argument("--rollback", action="store_true", help="go back to the generation before")
    parser.add_argument("--discard", metavar="GENERATION", help="remove a generation that is kept")
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="how long to wait for the outcome; default: %(default)g",
    )
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    add_server_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Send the message, wait for its outcome, and print it."""
    with chosen_server(arguments) as server, progress() as notify:
        outcome = server.control(
            users_topic=arguments.users_topic,
            accounts_topic=arguments.accounts_topic,
            join=arguments.join,
            view=arguments.view,
            topics=dict(_table_and_topic(each) for each in arguments.topic),
            rollback=arguments.rollback,
            discard=arguments.discard,
            timeout=arguments.timeout,
            progress=notify,
        )
    if arguments.json:
        print(json.dumps(asdict(outcome)))
    else:
        print(f"{outcome.outcome}: {outcome.why}" if outcome.why else outcome.outcome)
    return 0 if outcome.is_done else 1


def _table_and_topic(text: str) -> tuple[str, str]:
    table, equals, topic = text.partition("=")
    if not (table and equals and topic):
        raise ConfigError(f"--topic is {text!r}", "write --topic TABLE=TOPIC, like --topic orders=shop.orders_2")
    return table, topic


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Print what is waited for, on the error output: in place in a terminal, else a line for each change."""
    console = Console(stderr=True, highlight=False)
    last = ""
    if console.is_terminal:
        with console.status("sending") as line:
            yield lambda text: line.update(escape(text))
        return

    def notify(text: str) -> None:
        nonlocal last
        if text != last:
            last = text
            print(text, file=sys.stderr, flush=True)

    yield notify

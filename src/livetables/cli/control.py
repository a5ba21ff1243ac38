"""`livetables control`: switch to other topics or another join, and tell what came of it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.markup import escape

from livetables.cli.options import add_server_options, server_and_addresses
from livetables.errors import ConfigError, RequestError, SetupError
from livetables.up.door import Door, UnreachableError

LOOK_SECONDS = 0.25
DONE = ("applied", "unchanged")

EXAMPLES = """examples:
  livetables control --users-topic user_2                  what is not named stays as it is
  livetables control --users-topic user --accounts-topic account --join natural
  livetables control --topic orders=shop.orders_2          a table of your own configuration
  livetables control --rollback                            back to the generation before

Ends with 0 when it was applied, or nothing had to change; with 1 when it was superseded, rejected, or failed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `livetables control`."""
    parser.epilog = EXAMPLES
    parser.add_argument("--users-topic", metavar="TOPIC", help="the topic of table users")
    parser.add_argument("--accounts-topic", metavar="TOPIC", help="the topic of table accounts")
    parser.add_argument(
        "--topic", action="append", default=[], metavar="TABLE=TOPIC", help="the topic of any table; may be repeated"
    )
    parser.add_argument("--join", metavar="JOIN", help="left, inner, natural or asof")
    parser.add_argument("--rollback", action="store_true", help="go back to the generation before")
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
    """Sends the message, waits for what becomes of it, and tells it."""
    message = control_message(arguments)
    door, _ = server_and_addresses(arguments)
    deadline = time.monotonic() + arguments.timeout
    with progress() as tell:
        receipt = _sent(door, message, deadline, tell)
        outcome = _outcome(door, receipt, deadline, tell)
    if arguments.json:
        print(json.dumps(outcome))
    else:
        print(f"{outcome['outcome']}: {outcome['why']}" if outcome["why"] else outcome["outcome"])
    return 0 if outcome["outcome"] in DONE else 1


def control_message(arguments: argparse.Namespace) -> dict[str, str | bool]:
    """The message that the options ask for."""
    topics = {"users": arguments.users_topic, "accounts": arguments.accounts_topic}
    for each in arguments.topic:
        table, equals, topic = each.partition("=")
        if not (table and equals and topic):
            raise ConfigError(f"--topic is {each!r}", "write --topic TABLE=TOPIC, like --topic orders=shop.orders_2")
        topics[table] = topic
    message: dict[str, str | bool] = {f"{table}Topic": topic for table, topic in topics.items() if topic is not None}
    if arguments.join is not None:
        message["joinType"] = arguments.join
    if arguments.rollback and message:
        raise ConfigError("--rollback goes alone", "send the rollback first, then the change")
    if arguments.rollback:
        return {"rollback": True}
    if not message:
        raise ConfigError(
            "there is nothing to change", "give --users-topic, --accounts-topic, --topic, --join or --rollback"
        )
    return message


def _sent(door: Door, message: dict[str, str | bool], deadline: float, tell: Callable[[str], None]) -> dict[str, Any]:
    """Where on the control topic the message is. A pipeline that starts is waited for."""
    while True:
        try:
            receipt: dict[str, Any] = door.post("/api/control", message)
        except RequestError as error:
            if error.code != "unavailable" or time.monotonic() > deadline:
                raise
            tell(error.problem)
            time.sleep(LOOK_SECONDS)
        else:
            return receipt


def _outcome(door: Door, receipt: dict[str, Any], deadline: float, tell: Callable[[str], None]) -> dict[str, Any]:
    """What became of exactly this message. The server may be away meanwhile: it keeps what it is told."""
    place = {"partition": receipt["partition"], "offset": receipt["offset"]}
    while True:
        with suppress(UnreachableError):
            rows = door.rows("control_raw", equal=place)
            if rows and rows[0]["outcome"]:
                return {**receipt, **{name: rows[0][name] for name in ("outcome", "why", "generation")}}
            for status in door.rows("orchestrator_status"):
                tell(status["message"] or status["state"])
        if time.monotonic() > deadline:
            raise SetupError(
                f"the message is at offset {receipt['offset']} of topic {receipt['topic']}, but not decided in time",
                "it is not lost: `livetables status` tells what the pipeline does; give --timeout to wait longer",
            )
        time.sleep(LOOK_SECONDS)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Tells what is waited for, on the error output: in place in a terminal, else a line for each change."""
    console = Console(stderr=True, highlight=False)
    told = ""
    if console.is_terminal:
        with console.status("sending") as line:
            yield lambda text: line.update(escape(text))
        return

    def tell(text: str) -> None:
        nonlocal told
        if text != told:
            told = text
            print(text, file=sys.stderr, flush=True)

    yield tell

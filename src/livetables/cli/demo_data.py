"""`livetables demo-data`: sends demo records to the two topics of the shipped preset."""

from __future__ import annotations

import argparse
import math

from rich.console import Console

from livetables.cli.signals import stopped_by_signals
from livetables.demo.records import DemoOptions
from livetables.demo.sender import produce
from livetables.model.errors import ConfigError

EXAMPLES = """examples:
  livetables demo-data --bootstrap-servers localhost:9092
      a thousand records a second until Ctrl-C
  livetables demo-data --bootstrap-servers localhost:9092 --rate 0 --users 100000 --accounts 2000000
      a backlog to measure with, as fast as the broker takes it
  livetables demo-data --bootstrap-servers localhost:9092 --users-topic user2 --seed 2 --seconds 60
      another topic with other users, for a minute, to re-point a table to
  livetables demo-data --bootstrap-servers localhost:9092 --bad-share 0.2
      a fifth of all records bad, to see dead letters
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `livetables demo-data`."""
    defaults = DemoOptions()
    parser.epilog = EXAMPLES
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT", help="the Kafka broker to write to")
    parser.add_argument("--users-topic", default=defaults.users_topic, metavar="TOPIC", help="default: %(default)s")
    parser.add_argument(
        "--accounts-topic", default=defaults.accounts_topic, metavar="TOPIC", help="default: %(default)s"
    )
    parser.add_argument(
        "--partitions", type=int, default=2, metavar="N", help="of a topic that has to be created; default: %(default)s"
    )
    parser.add_argument(
        "--rate", type=float, default=1000.0, metavar="N",
        help="records a second, both topics together; 0: as fast as possible; default: %(default)g",
    )  # fmt: skip
    parser.add_argument(
        "--users", type=int, default=defaults.users, metavar="N", help="different users; default: %(default)s"
    )
    parser.add_argument("--accounts", type=int, metavar="N", help="end after N good account records; default: never")
    parser.add_argument("--seconds", type=float, metavar="S", help="end after S seconds; default: at Ctrl-C")
    parser.add_argument(
        "--seed", type=int, default=defaults.seed, metavar="N", help="another seed, other records; default: %(default)s"
    )
    parser.add_argument(
        "--bad-share", type=float, default=defaults.bad_share, metavar="X",
        help="share of records that cannot become rows; default: %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--late-share", type=float, default=defaults.late_share, metavar="X",
        help="share of records with a timestamp seconds to minutes in the past; default: %(default)s",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Sends demo records until they or the time end, or the user stops it."""
    _check(arguments)
    options = DemoOptions(
        users_topic=arguments.users_topic,
        accounts_topic=arguments.accounts_topic,
        users=arguments.users,
        accounts=arguments.accounts,
        seed=arguments.seed,
        bad_share=arguments.bad_share,
        late_share=arguments.late_share,
    )
    with stopped_by_signals() as stop:
        produce(
            arguments.bootstrap_servers,
            options,
            stop=stop,
            console=Console(),
            partitions=arguments.partitions,
            rate=arguments.rate,
            seconds=arguments.seconds,
        )
    return 0


def _check(arguments: argparse.Namespace) -> None:
    for name, fits, expected in (
        ("users", arguments.users >= 1, "at least 1"),
        ("accounts", arguments.accounts is None or arguments.accounts >= 0, "0 or more"),
        ("partitions", arguments.partitions >= 1, "at least 1"),
        ("rate", 0 <= arguments.rate < math.inf, "0 or more"),
        ("seconds", arguments.seconds is None or arguments.seconds >= 0, "0 or more"),
        ("bad-share", 0 <= arguments.bad_share < 1, "from 0 to less than 1"),
        ("late-share", 0 <= arguments.late_share <= 1, "from 0 to 1"),
    ):
        if not fits:
            given = getattr(arguments, name.replace("-", "_"))
            raise ConfigError(f"--{name} is {given}", f"give --{name} a number that is {expected}")

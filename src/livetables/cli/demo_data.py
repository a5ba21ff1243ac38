"""`livetables demo-data`: sends demo records to the two topics of the shipped preset."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import FrameType
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from livetables.demo_records import DemoOptions, DemoRecord, demo_records
from livetables.errors import BrokerError, ConfigError

REACH_SECONDS = 10.0
DELIVERY_SECONDS = 30.0
BEAT_SECONDS = 0.02  # how often a paced run tops up: small enough that tables seem to move all the time
SCREEN_SECONDS = 0.2  # the longest nap: Ctrl-C and the end of the run are noticed this soon
IDLE_EVERY = 1000  # records, in a run that never has to wait
PLAIN_LINE_SECONDS = 5.0

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


@dataclass
class Tally:
    """What has been written so far: good users and accounts, late ones among them, and bad ones by kind."""

    users: int = 0
    accounts: int = 0
    late: int = 0
    bad: Counter[str] = field(default_factory=Counter)

    @property
    def records(self) -> int:
        return self.users + self.accounts + self.bad.total()

    def add(self, record: DemoRecord) -> None:
        if record.bad is not None:
            self.bad[record.bad] += 1
        elif record.role == "user":
            self.users += 1
        else:
            self.accounts += 1
        self.late += record.late


def produce(
    bootstrap_servers: str,
    options: DemoOptions,
    *,
    stop: threading.Event,
    console: Console,
    partitions: int = 2,
    rate: float = 1000.0,
    seconds: float | None = None,
) -> Tally:
    """Creates the topics that are missing and sends demo records, `rate` a second (0: as fast as they are taken).

    Ends when the records or the `seconds` are used up, or when `stop` is set, and returns what was written, every
    record of it acknowledged. A broker that cannot be reached or does not take a record is a BrokerError.
    """
    create_missing_topics(bootstrap_servers, (options.users_topic, options.accounts_topic), partitions)
    sender = _Sender(bootstrap_servers)
    tally = Tally()
    begin = time.monotonic()
    with (_ScreenDisplay if console.is_terminal else _PlainDisplay)(console, tally) as display:

        def idle(idle_seconds: float) -> None:
            sender.wait(idle_seconds)
            display.refresh()

        for record in _paced(demo_records(options), rate, seconds, stop, idle):
            sender.send(record)
            tally.add(record)
        sender.finish()
        display.refresh()
    _print_summary(console, options, tally, time.monotonic() - begin)
    return tally


def create_missing_topics(bootstrap_servers: str, topics: tuple[str, ...], partitions: int) -> None:
    """Makes sure that the topics are there. Those that are keep the partitions they have."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers}, logger=_silent_logger())
    try:
        present = admin.list_topics(timeout=REACH_SECONDS).topics
    except KafkaException as error:
        raise BrokerError(
            f"no Kafka broker answers at {bootstrap_servers}: {_reason(error)}",
            "check --bootstrap-servers, that the broker runs, and that it takes clients without TLS and SASL there: "
            "demo-data is no other; `livetables up --demo` brings a broker along",
        ) from error
    missing = [NewTopic(topic, partitions, 1) for topic in dict.fromkeys(topics) if topic not in present]
    if not missing:
        return
    created: dict[str, Future[None]] = admin.create_topics(missing, request_timeout=REACH_SECONDS)
    for topic, outcome in created.items():
        try:
            outcome.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # somebody was quicker: as good
                raise BrokerError(
                    f"topic {topic} could not be created: {_reason(error)}",
                    "create it yourself, or name another with --users-topic and --accounts-topic",
                ) from error


class _Sender:
    """A producer that turns every way of failing into a BrokerError, and never waits without end."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._failure: str | None = None
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": int(DELIVERY_SECONDS * 1000),
                "delivery.report.only.error": True,  # a Python call for every record would be most of the work
                "on_delivery": self._on_delivery,
            },
            logger=_silent_logger(),
        )

    def send(self, record: DemoRecord) -> None:
        while True:
            try:
                self._producer.produce(record.topic, record.value, record.key, timestamp=record.timestamp_ms)
            except BufferError:
                self.wait(BEAT_SECONDS)  # ends by itself: what is queued is delivered, or fails after DELIVERY_SECONDS
            else:
                return

    def wait(self, seconds: float) -> None:
        """Lets time pass and learns what became of the records sent so far."""
        self._producer.poll(seconds)
        self._check()

    def finish(self) -> None:
        """Returns when every record sent is acknowledged."""
        left = self._producer.flush(DELIVERY_SECONDS + 5)
        self._check()
        if left:
            raise self._undelivered(f"{left} records were not acknowledged")

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failure is None:
            self._failure = f"a record for topic {message.topic()} was not taken: {error.str()}"

    def _check(self) -> None:
        if self._failure is not None:
            raise self._undelivered(self._failure)

    def _undelivered(self, problem: str) -> BrokerError:
        return BrokerError(
            f"{problem} (broker {self._bootstrap_servers})",
            "check that the broker still runs and that its disk is not full, then start demo-data again",
        )


def _paced(
    records: Iterator[DemoRecord],
    rate: float,
    seconds: float | None,
    stop: threading.Event,
    idle: Callable[[float], None],
) -> Iterator[DemoRecord]:
    """The records, each made when its time has come. `idle` passes the time, and is called now and then in any case."""
    begin = time.monotonic()
    for number in itertools.count():
        due = number / rate if rate else 0.0
        if number % IDLE_EVERY == 0:
            idle(0)
        while (elapsed := time.monotonic() - begin) < due and not stop.is_set():
            idle(min(max(due - elapsed, BEAT_SECONDS), SCREEN_SECONDS))
        if stop.is_set() or (seconds is not None and elapsed >= seconds):
            return
        record = next(records, None)
        if record is None:
            return
        yield record


class _ScreenDisplay:
    """Progress in place, for a terminal."""

    def __init__(self, console: Console, tally: Tally) -> None:
        self._tally = tally
        self._begin = time.monotonic()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def refresh(self) -> None:
        self._progress.update(self._task, description=_headline(self._tally, time.monotonic() - self._begin))


class _PlainDisplay:
    """Progress as a line every few seconds, for a log or a pipe."""

    def __init__(self, console: Console, tally: Tally) -> None:
        self._console = console
        self._tally = tally
        self._begin = time.monotonic()
        self._next_line = self._begin + PLAIN_LINE_SECONDS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def refresh(self) -> None:
        now = time.monotonic()
        if now >= self._next_line:
            self._console.print(_headline(self._tally, now - self._begin), highlight=False)
            self._next_line = now + PLAIN_LINE_SECONDS


def _headline(tally: Tally, elapsed_seconds: float) -> str:
    rate = tally.records / elapsed_seconds if elapsed_seconds else 0.0
    return f"{tally.records:,} records  {rate:,.0f}/s  {tally.bad.total():,} bad"


def _print_summary(console: Console, options: DemoOptions, tally: Tally, elapsed_seconds: float) -> None:
    lines = [
        f"written in {elapsed_seconds:.1f} s: {_headline(tally, elapsed_seconds)}",
        f"  topic {options.users_topic}: {tally.users:,} good user records",
        f"  topic {options.accounts_topic}: {tally.accounts:,} good account records",
        f"  late among them: {tally.late:,}",
        f"  bad on either topic, to become dead letters: {tally.bad.total():,}",
        *(f"    {count:6,}  {name}" for name, count in sorted(tally.bad.items())),
    ]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _silent_logger() -> logging.Logger:
    """For clients whose failures are reported as errors: librdkafka would also print each of its retries."""
    silent = logging.Logger("livetables.demo_data.kafka")
    silent.addHandler(logging.NullHandler())
    return silent


def _reason(error: KafkaException) -> str:
    return str(error.args[0].str())


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
    """Sends demo records until they, the time or the user's patience end."""
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


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; the next one does what it always did.

    An exception in the middle of a record would leave open whether that record was sent and counted.
    """
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        restore()

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        restore()

"""Sends demo records to the two topics of the shipped preset, at a pace, and counts them."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from livetables.demo.records import DemoOptions, DemoRecord, demo_records
from livetables.model.errors import BrokerError

REACH_SECONDS = 10.0


DELIVERY_SECONDS = 30.0


BEAT_SECONDS = 0.02  # how often a paced run tops up: small enough that tables seem to move all the time


SCREEN_SECONDS = 0.2  # the longest nap: Ctrl-C and the end of the run are noticed this soon


IDLE_EVERY = 1000  # records, in a run that never has to wait


PLAIN_LINE_SECONDS = 5.0


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

"""Demo records for a broker of its own: a first heap at once, then at a pace, and never more than a machine can hold.

`left` shows every pair of a user's records and accounts, so the tables grow faster than the topics. With these numbers
final_ui has about half a million rows when the pace slows down, and three times that at the end, three days later.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from rich.console import Console

from livetables.demo.records import DemoOptions, DemoRecord, demo_records
from livetables.demo.sender import create_missing_topics, produce
from livetables.model.errors import BrokerError

FIRST = DemoOptions(users=20_000)
SECOND = DemoOptions("user_2", "account_2", users=1000, accounts=4000, seed=2)
PARTITIONS = 2
AT_ONCE = 30_000  # every user, and the first accounts: nobody has to wait for a table to fill
AT_FULL_RATE = 250_000
LAST = 500_000
SLOW_RATE = 1.0
ANSWER_SECONDS = 10.0
NAP_SECONDS = 0.2
BEAT_SECONDS = 0.02
GOODBYE_SECONDS = 5.0


class DemoData:
    """Sends records to the topics of the preset until it is closed, and goes on where an earlier run left off.

    A broker that is away is waited for: what was made meanwhile is sent when it is back.
    """

    def __init__(self, bootstrap_servers: str, rate: float) -> None:
        self._rate = rate
        self._closing = threading.Event()
        self._sent = _records_in(bootstrap_servers, FIRST)
        create_missing_topics(bootstrap_servers, (FIRST.users_topic, FIRST.accounts_topic), PARTITIONS)
        if not _records_in(bootstrap_servers, SECOND):
            produce(bootstrap_servers, SECOND, stop=self._closing, console=Console(quiet=True), rate=0)
        self._producer = Producer(
            {"bootstrap.servers": bootstrap_servers, "linger.ms": 5, "message.timeout.ms": 0}, logger=_silent_logger()
        )
        self._thread = threading.Thread(target=self._send_all, name="demo-data", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, with what was made delivered if the broker is there."""
        self._closing.set()
        self._thread.join()
        self._producer.flush(GOODBYE_SECONDS)

    def _send_all(self) -> None:
        due = time.monotonic()
        for number, record in enumerate(itertools.islice(demo_records(FIRST), self._sent, LAST), self._sent):
            due = max(due, time.monotonic() - 1.0) + pause_seconds(number, self._rate)
            while (left := due - time.monotonic()) > 0 and not self._closing.is_set():
                self._producer.poll(min(max(left, BEAT_SECONDS), NAP_SECONDS))
            if self._closing.is_set():
                return
            self._send(record)

    def _send(self, record: DemoRecord) -> None:
        while not self._closing.is_set():
            try:
                self._producer.produce(record.topic, record.value, record.key, timestamp=record.timestamp_ms)
            except BufferError:  # the broker is away, or slow
                self._producer.poll(NAP_SECONDS)
            else:
                return


def pause_seconds(number: int, rate: float) -> float:
    """How long to wait before the record with this number, from 0."""
    if number < AT_ONCE:
        return 0.0
    return 1 / (rate if number < AT_FULL_RATE else min(rate, SLOW_RATE))


def _records_in(bootstrap_servers: str, options: DemoOptions) -> int:
    """How many records were ever sent to the topics, as far as they are there."""
    deadline = time.monotonic() + ANSWER_SECONDS
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "unused"}, logger=_silent_logger())
    try:
        while True:
            try:
                there = consumer.list_topics(timeout=ANSWER_SECONDS).topics
                return sum(
                    consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_SECONDS)[1]
                    for topic in (options.users_topic, options.accounts_topic)
                    if topic in there
                    for partition in there[topic].partitions
                )
            except KafkaException as error:  # a topic that is new, or a broker that has just started, has no leader yet
                if time.monotonic() > deadline:
                    raise BrokerError(
                        f"the broker at {bootstrap_servers} does not say how many demo records it has: "
                        f"{error.args[0].str()}",
                        "start `livetables up --demo` again",
                    ) from error
                time.sleep(NAP_SECONDS)
    finally:
        consumer.close()


def _silent_logger() -> logging.Logger:
    """The supervisor reports when the broker is away; librdkafka would log each of its tries."""
    silent = logging.Logger("livetables.demo.feed")
    silent.addHandler(logging.NullHandler())
    return silent

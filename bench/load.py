"""Records to measure with: a backlog as fast as the broker takes it, and then a steady stream from another process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

PARTITIONS = 2
PROGRESS_EVERY = 10_000
SENDING = "sending\n"


def user(number: int, version: int = 0) -> bytes:
    return (
        f'{{"userId":"u{number}","name":"Name {number}","email":"user{number}.{version}@example.com",'
        f'"age":{20 + (number + version) % 60}}}'
    ).encode()


def account(user_number: int, serial: int) -> bytes:
    return f'{{"userId":"u{user_number}","accountType":"checking","balance":{serial % 100_000 / 100}}}'.encode()


def create_topics(bootstrap: str, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
        created.result()


def send(bootstrap: str, topic: str, values: Iterable[bytes], progress: Callable[[int], None]) -> None:
    """Send all values, spread evenly over the partitions."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for number, value in enumerate(values):
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS)
            except BufferError:
                producer.poll(0.1)
            else:
                break
        if number % PROGRESS_EVERY == 0:
            producer.poll(0)
            progress(number)
    producer.flush()


def count_records(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, number)) for number in range(PARTITIONS)]
    finally:
        consumer.close()
    return sum(end for _, end in ends)


def offsets_at(bootstrap: str, topic: str, moment: datetime) -> list[int]:
    """For each partition, the offset of the first record that is not older."""
    milliseconds = round(moment.timestamp() * 1000)
    asked = [TopicPartition(topic, number, milliseconds) for number in range(PARTITIONS)]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        found = consumer.offsets_for_times(asked, timeout=30)
        ends = [consumer.get_watermark_offsets(each)[1] for each in asked]
    finally:
        consumer.close()
    return [end if each.offset == OFFSET_END else each.offset for each, end in zip(found, ends, strict=True)]


@contextmanager
def steady_accounts(bootstrap: str, topic: str, rate: int, users: int) -> Iterator[None]:
    """While the context is open, another process sends accounts at this rate: it must not share this one's GIL."""
    command = [sys.executable, "-m", "bench.load", bootstrap, topic, str(rate), str(users)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            assert process.stdout.readline() == SENDING, "the stream did not start"
            yield
        finally:
            process.terminate()


def _send_steadily(bootstrap: str, topic: str, rate: int, users: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 2})
    producer.list_topics(topic, timeout=30)  # so that the first record does not wait for it
    print(SENDING, end="", flush=True)
    begin, sent = time.monotonic(), 0
    while True:
        producer.produce(topic, account((sent * 7919) % users, sent), partition=sent % PARTITIONS)
        producer.poll(0)
        sent += 1
        time.sleep(max(0.0, begin + sent / rate - time.monotonic()))


if __name__ == "__main__":
    _send_steadily(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

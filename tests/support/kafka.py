"""What tests need of Kafka: topics of their own, records at exact places, and how many records there are."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

WAIT_SECONDS = 30.0
POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Record:
    """A record to send to an exact partition with an exact timestamp."""

    topic: str
    partition: int
    value: bytes | None
    timestamp_ms: int
    key: bytes | None = None


def unique_topic(prefix: str) -> str:
    """A topic name that no other test has."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


# Kafka refuses records of tomorrow, unless it is configured not to.
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1), "message.timestamp.before.max.ms": str(2**63 - 1)}


def create_topic(bootstrap: str, topic: str, partitions: int = 2, config: Mapping[str, str] | None = None) -> None:
    """Creates a topic and returns when every partition of it can be written."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, partitions, 1, config=dict(config or {}))
    created: Future[None] = admin.create_topics([new])[topic]
    created.result(WAIT_SECONDS)

    def is_writable() -> bool:
        seen = admin.list_topics(topic, timeout=WAIT_SECONDS).topics[topic]
        return len(seen.partitions) == partitions and all(
            partition.error is None and partition.leader >= 0 for partition in seen.partitions.values()
        )

    wait_until(is_writable, f"topic {topic} can be written")


def delete_topic(bootstrap: str, topic: str) -> None:
    """Deletes a topic and returns when it is gone."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deleted: Future[None] = admin.delete_topics([topic])[topic]
    deleted.result(WAIT_SECONDS)
    wait_until(lambda: topic not in admin.list_topics(timeout=WAIT_SECONDS).topics, f"topic {topic} is gone")


def produce(bootstrap: str, records: Iterable[Record], transaction: str | None = None) -> list[int]:
    """Sends records, in order within each partition, and returns their offsets in the order given.

    A `transaction` of that name, of all records, leaves an offset without a record in each partition that it wrote to.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 1,
            "delivery.timeout.ms": int(WAIT_SECONDS * 1000),
            **({"transactional.id": transaction} if transaction else {}),
        }
    )
    if transaction:
        producer.init_transactions(WAIT_SECONDS)
        producer.begin_transaction()
    offsets: list[int | None] = []

    def on_delivery(number: int) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            assert error is None, f"record {number} was not taken: {error}"
            offsets[number] = message.offset()

        return delivered

    for number, record in enumerate(records):
        assert record.timestamp_ms != 0, "the client takes 0 as now"
        offsets.append(None)
        while True:
            try:
                producer.produce(
                    record.topic,
                    record.value,
                    record.key,
                    record.partition,
                    timestamp=record.timestamp_ms,
                    on_delivery=on_delivery(number),
                )
            except BufferError:
                producer.poll(POLL_SECONDS)
            else:
                break
        producer.poll(0)
    assert producer.flush(WAIT_SECONDS) == 0, "not all records were acknowledged"
    if transaction:
        producer.commit_transaction(WAIT_SECONDS)
    known = [offset for offset in offsets if offset is not None]
    assert len(known) == len(offsets)
    return known


def end_offsets(bootstrap: str, topic: str) -> dict[int, int]:
    """The next offset of every partition: how many records it has, when none was deleted."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        partitions = consumer.list_topics(topic, timeout=WAIT_SECONDS).topics[topic].partitions
        marks = {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=WAIT_SECONDS)
            for number in partitions
        }
    finally:
        consumer.close()
    assert all(marks.values()), f"no end offsets of {topic} in time"
    return {number: mark[1] for number, mark in marks.items() if mark}


def read(bootstrap: str, topic: str) -> list[tuple[Record, int]]:
    """All records of a topic with their offsets, but those of aborted transactions."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    found: list[tuple[Record, int]] = []
    try:
        unread = set(consumer.list_topics(topic, timeout=WAIT_SECONDS).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in unread])
        deadline = time.monotonic() + WAIT_SECONDS
        while unread:
            assert time.monotonic() < deadline, f"{topic} was not read in {WAIT_SECONDS:.0f} s"
            message = consumer.poll(POLL_SECONDS)
            if message is None:
                continue
            partition, offset, error = message.partition(), message.offset(), message.error()
            assert partition is not None
            assert offset is not None
            if error is None:
                record = Record(topic, partition, message.value(), message.timestamp()[1], message.key())
                found.append((record, offset))
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(partition)
    finally:
        consumer.close()
    return found


def wait_until(condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Returns when the condition holds; fails, saying what was waited for, when it does not come to hold."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain until {what}"
        time.sleep(POLL_SECONDS)

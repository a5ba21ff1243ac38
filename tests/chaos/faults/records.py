"""Records that are hostile, or that Kafka takes back: timestamps, bytes, transactions, retention, partitions."""

from __future__ import annotations

import json
import random
import signal
import uuid

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from tests.chaos.faults.fault import fault
from tests.chaos.subject import Subject
from tests.support.kafka import WAIT_SECONDS, Record, produce, wait_until
from tests.support.system import LiveTopic, marked_values

PARTITIONS_MAX = 6
TIMES = (
    1,
    -1,
    2**63 - 1,
    2 - 2**63,
    (2**63 - 1) // 1000 + 1,
    -62_135_596_800_001,
    253_402_300_800_000,
    -12_219_292_800_001,
)
BYTES = (
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b"{\x00",
    b"\xc3",
    b"",
    b"null",
    b"[[[[[[[[",
    b'{"userId": "u1", "age": 1e999, "balance": 1e999}',
    b'{"userId": "\xed\xa0\x80"}',
    b"[" * 5000,
    b'{"userId": null, "unknown": {"deep": [1, 2, {"x": null}]}}',
)


def topic_of(subject: Subject, chance: random.Random) -> LiveTopic:
    now = subject.system.now
    return subject.system.topics[chance.choice((now.users, now.accounts))]


def send(topic: LiveTopic, records: list[Record]) -> None:
    for record, offset in zip(records, produce(topic.bootstrap, records), strict=True):
        topic.add(record, offset)


def hostile_timestamps(subject: Subject, chance: random.Random) -> str:
    topic = topic_of(subject, chance)
    values = marked_values(topic, chance, 5)
    times = [chance.choice(TIMES) for _ in values]
    send(topic, [Record(topic.name, chance.randrange(2), *each) for each in zip(values, times, strict=True)])
    return f"{times}"


def hostile_bytes(subject: Subject, chance: random.Random) -> str:
    topic = topic_of(subject, chance)
    values = [chance.choice((*BYTES, None, chance.randbytes(chance.randrange(40)))) for _ in range(5)]
    send(topic, topic.records(values, chance))
    return f"{values}"[:200]


def many_unknown_fields(subject: Subject, chance: random.Random) -> str:
    """Names that nobody has seen before, and a record of a megabyte."""
    topic = topic_of(subject, chance)
    (value,) = marked_values(topic, chance, 1)
    fields = {uuid.UUID(int=chance.getrandbits(128)).hex: "x" * 1000 for _ in range(chance.choice((10, 800)))}
    large = json.dumps({**json.loads(value), **fields}).encode()
    send(topic, topic.records([large], chance))
    return f"{len(fields)} fields, {len(large):,} bytes"


def aborted_transaction(subject: Subject, chance: random.Random) -> str:
    """Records that nobody may ever see, and some after them that everybody must."""
    topic = topic_of(subject, chance)
    records = topic.records(marked_values(topic, chance, 8), chance)
    producer = Producer(
        {"bootstrap.servers": topic.bootstrap, "transactional.id": uuid.UUID(int=chance.getrandbits(128)).hex}
    )
    producer.init_transactions(WAIT_SECONDS)
    producer.begin_transaction()
    for record in records:
        producer.produce(record.topic, record.value, None, record.partition, timestamp=record.timestamp_ms)
    producer.flush(WAIT_SECONDS)
    producer.abort_transaction(WAIT_SECONDS)
    send(topic, topic.records(marked_values(topic, chance, 2), chance))
    return f"{len(records)} records of {topic.side}"


def partitions_added(subject: Subject, chance: random.Random) -> str:
    topic = topic_of(subject, chance)
    if topic.partitions >= PARTITIONS_MAX:
        return f"{topic.side} has {topic.partitions} already"
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    wanted = topic.partitions + 1
    (added,) = admin.create_partitions([NewPartitions(topic.name, wanted)]).values()
    added.result(WAIT_SECONDS)

    def is_writable() -> bool:
        seen = admin.list_topics(topic.name, timeout=WAIT_SECONDS).topics[topic.name].partitions
        return len(seen) == wanted and all(each.error is None and each.leader >= 0 for each in seen.values())

    wait_until(is_writable, "the new partition can be written")
    topic.partitions = wanted
    send(topic, topic.records(marked_values(topic, chance, 6), chance))
    return f"{topic.side} has {wanted}"


def retention(subject: Subject, chance: random.Random) -> str:
    """Kafka deletes records that nobody has read yet: what it still has is built anew, and the old rows are kept."""
    topic = topic_of(subject, chance)
    oldest = f"SELECT min(_id) AS id FROM {topic.side}_ui"
    (before,) = subject.sql(oldest)
    with subject.feeder.paused:
        subject.signal("jvm", signal.SIGSTOP)
        try:
            send(topic, topic.records(marked_values(topic, chance, 20), chance))
            ends = {
                number: 1 + max((each.offset for each in topic.sent if each.partition == number), default=-1)
                for number in range(topic.partitions)
            }
            admin = AdminClient({"bootstrap.servers": topic.bootstrap})
            deleted = admin.delete_records([TopicPartition(topic.name, number, end) for number, end in ends.items()])
            for each in deleted.values():
                each.result(WAIT_SECONDS)
            gone = len(topic.sent)
            topic.sent = [each for each in topic.sent if each.offset >= ends[each.partition]]
            send(topic, topic.records(marked_values(topic, chance, 20), chance))
        finally:
            subject.signal("jvm", signal.SIGCONT)
    subject.wait(lambda: subject.sql(oldest) != [before], "another generation is live, without what is gone")
    return f"{gone} records of {topic.side}"


FAULTS = (
    fault("hostile_timestamps", hostile_timestamps, "records", 6),
    fault("hostile_bytes", hostile_bytes, "records", 6),
    fault("unknown_fields", many_unknown_fields, "records", 3),
    fault("aborted_transaction", aborted_transaction, "records tables", 3),
    fault("partitions_added", partitions_added, "records tables", 1.5),
    fault("retention", retention, "records tables pipeline links broker server", 0.4, is_quick=False),
)

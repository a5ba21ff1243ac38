"""Topics as operators have them: compacted, with partitions added, with the broker's time, wide, with large records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.sql import SparkSession

from livetables.local.broker import Broker
from livetables.model.spec import GenerationSpec, Table, record_position
from livetables.pipeline.flow.modes import PARTITIONS_MAX, Mode
from tests.support.kafka import WAIT_SECONDS, Record, create_topic, end_offsets, produce, unique_topic, wait_until
from tests.support.pipeline import USER_COLUMNS, Engine
from tests.support.server import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

MODES = [pytest.param("micro_batch", marks=pytest.mark.chaos), "real_time"]
PARTITIONS: Mapping[Mode, int] = {"micro_batch": 1000, "real_time": PARTITIONS_MAX}
START = 1_700_000_000_000  # the time of the first record, in ms
LARGE_BYTES = 10 * 1024 * 1024
CLEAN_SECONDS = 90.0  # the broker's cleaner looks every 15 s
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "100",
}

Row = tuple[int, int, int, str | None]  # partition, offset, time in ms, name


def value(name: str) -> bytes:
    return json.dumps({"userId": "u1", "name": name}).encode()


def in_kafka(bootstrap: str, topic: str) -> list[Row]:
    """Every record that the topic has now, as the row that it should be."""
    ends = {number: end for number, end in end_offsets(bootstrap, topic).items() if end}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": unique_topic("reader"),
            "enable.partition.eof": True,
            "fetch.message.max.bytes": LARGE_BYTES * 2,
        }
    )
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in ends])
    rows: list[Row] = []
    open_partitions = set(ends)
    while open_partitions:
        message = consumer.poll(WAIT_SECONDS)
        assert message is not None, "no record in time"
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        if message.error():
            open_partitions.discard(partition)
            continue
        data = message.value()
        assert data is not None
        assert offset is not None
        rows.append((partition, offset, message.timestamp()[1], json.loads(data)["name"]))
    consumer.close()
    return sorted(rows)


def in_table(engine: Engine) -> list[Row]:
    return sorted(
        (*record_position(row["_id"]), round(row["ts"].timestamp() * 1000), row["name"])
        for row in engine.rows("users_ui")
    )


def opened(
    spark: SparkSession, server: ServerProcess, broker: Broker, checkpoint: Path, topic: str, **properties: str
) -> Engine:
    spec = GenerationSpec((Table("users", topic, USER_COLUMNS, "users_ui"),), ())
    kafka = {"bootstrap.servers": broker.bootstrap_servers, **properties}
    return Engine(spark, server, spec, broker.bootstrap_servers, checkpoint, kafka_properties=kafka)


def new_topic(broker: Broker, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
    topic = unique_topic("user")
    create_topic(broker.bootstrap_servers, topic, partitions, config)
    return topic


def send(
    broker: Broker, topic: str, records: int, partitions: int = 1, start: int = START, key: bytes | None = None
) -> None:
    times = range(start, start + records)
    produce(
        broker.bootstrap_servers,
        [Record(topic, n % partitions, value(f"name {n}"), time, key) for n, time in enumerate(times)],
    )


def partitions_with_leader(broker: Broker, topic: str) -> int:
    """How many partitions can be asked for their end; none while one that was just added has no leader yet."""
    try:
        return len(end_offsets(broker.bootstrap_servers, topic))
    except KafkaException:
        return 0


@pytest.mark.chaos
@pytest.mark.parametrize("mode", MODES)
def test_of_a_compacted_topic_every_record_that_is_left_is_a_row(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, mode: Mode
) -> None:
    topic = new_topic(broker, config=COMPACTED)
    send(broker, topic, 200, key=b"same")
    send(broker, topic, 1, start=START + 60_000, key=b"same")  # a segment is closed by what comes later
    wait_until(
        lambda: len(in_kafka(broker.bootstrap_servers, topic)) < 100, "the broker has compacted it", CLEAN_SECONDS
    )
    left = in_kafka(broker.bootstrap_servers, topic)
    assert left[-1][1] > len(left), "offsets have gaps"
    with opened(spark, server, broker, tmp_path, topic) as engine:
        engine.start(mode)
        engine.settle(len(left))
        assert set(in_kafka(broker.bootstrap_servers, topic)) <= set(in_table(engine)) <= set(left)


@pytest.mark.parametrize("mode", MODES)
def test_partitions_that_are_added_are_read_from_their_beginning(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, mode: Mode
) -> None:
    topic = new_topic(broker)
    send(broker, topic, 20)
    with opened(spark, server, broker, tmp_path, topic) as engine:
        engine.start(mode, batch_seconds=5)
        engine.settle(20)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        (added,) = admin.create_partitions([NewPartitions(topic, 4)]).values()
        added.result(WAIT_SECONDS)
        wait_until(lambda: partitions_with_leader(broker, topic) == 4, "the partitions are there")
        send(broker, topic, 40, partitions=4)
        engine.settle(60)
        assert in_table(engine) == in_kafka(broker.bootstrap_servers, topic)


@pytest.mark.parametrize("mode", MODES)
def test_where_the_broker_sets_the_time_rows_have_it(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, mode: Mode
) -> None:
    topic = new_topic(broker, config={"message.timestamp.type": "LogAppendTime"})
    send(broker, topic, 20)
    with opened(spark, server, broker, tmp_path, topic) as engine:
        engine.start(mode)
        engine.settle(20)
        rows = in_table(engine)
    assert rows == in_kafka(broker.bootstrap_servers, topic)
    assert all(time > START + 100_000 for _, _, time, _ in rows), "not the producer's"


@pytest.mark.chaos
@pytest.mark.parametrize("mode", MODES)
def test_a_topic_may_have_many_partitions(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, mode: Mode
) -> None:
    partitions = PARTITIONS[mode]
    topic = new_topic(broker, partitions)
    send(broker, topic, partitions * 3, partitions=partitions)
    with opened(spark, server, broker, tmp_path, topic) as engine:
        engine.start(mode)
        engine.settle(partitions * 3)
        assert in_table(engine) == in_kafka(broker.bootstrap_servers, topic)


@pytest.mark.parametrize("mode", MODES)
def test_a_record_of_ten_megabytes_is_a_row_or_a_dead_letter(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, mode: Mode
) -> None:
    topic = new_topic(broker, config={"max.message.bytes": str(LARGE_BYTES * 2)})
    send(broker, topic, 3)
    name = "n" * (LARGE_BYTES - 100)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "message.max.bytes": LARGE_BYTES * 2})
    for large in (value(name), value(name)[:-1], value(name)):
        producer.produce(topic, large, partition=0, timestamp=START)
        assert producer.flush(WAIT_SECONDS) == 0
    send(broker, topic, 3)
    with opened(spark, server, broker, tmp_path, topic) as engine:
        engine.start(mode)
        engine.settle(9)
        rows = {row["_id"]: row["name"] for row in engine.rows("users_ui")}
        (letter,) = engine.rows("dead_letters")
    assert [len(rows[number]) for number in (3, 5)] == [len(name)] * 2
    assert (len(rows), letter["offset"], len(letter["raw"])) == (8, 4, LARGE_BYTES - 100 + len(value("")) - 1)


def test_a_batch_of_large_records_is_limited_in_bytes(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path
) -> None:
    topic = new_topic(broker)
    send(broker, topic, 5)
    large = value("n" * 200_000)
    produce(broker.bootstrap_servers, [Record(topic, 0, large, START + number) for number in range(10)])
    with opened(spark, server, broker, tmp_path, topic) as engine:
        query = engine.start("micro_batch", max_bytes=3 * len(large))
        engine.finish()
        assert engine.count() == 15
        batches = [progress.numInputRows for progress in query.recentProgress]
    assert (sum(batches), max(batches)) == (15, 3)

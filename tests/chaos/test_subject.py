"""What the chaos runs know of the records in Kafka, also of those that Kafka itself has doubled."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import Producer

from livetables.local.broker import HOST
from tests.chaos.links import Link
from tests.chaos.subject import KAFKA_HOST, TwoWayBroker
from tests.support.kafka import ANY_TIME, create_topic, end_offsets, unique_topic, wait_until
from tests.support.system import LiveTopic


@pytest.mark.kafka
@pytest.mark.chaos
def test_a_record_that_a_restarted_broker_takes_twice_is_known() -> None:
    with (
        TwoWayBroker() as broker,
        Link((KAFKA_HOST, broker.second_port), (HOST, broker.second_port)) as link,
    ):
        topic = LiveTopic(broker.bootstrap_servers, "users", unique_topic("doubled"), partitions=1)
        create_topic(topic.bootstrap, topic.name, partitions=1, config=ANY_TIME)
        producer = Producer({"bootstrap.servers": f"{KAFKA_HOST}:{broker.second_port}", "enable.idempotence": True})

        def send(value: bytes) -> None:
            (record,) = topic.records([value], random.Random(1))
            producer.produce(
                topic.name,
                value,
                partition=0,
                timestamp=record.timestamp_ms,
                on_delivery=lambda _, message: topic.add(record, message.offset() or 0),
            )

        send(b"first")
        assert producer.flush(30) == 0
        with link.broken("half_open", "from"):
            send(b"second")
            wait_until(lambda: end_offsets(topic.bootstrap, topic.name) == {0: 2}, "the second is in Kafka")
            broker.kill()
            broker.start()
        assert producer.flush(60) == 0
        assert end_offsets(topic.bootstrap, topic.name) == {0: 3}, "an idempotent producer, and yet twice"
        assert len(topic.sent) == 2
        assert topic.add_doubled() == 1
        assert sorted((sent.offset, sent.value) for sent in topic.sent) == [
            (0, b"first"),
            (1, b"second"),
            (2, b"second"),
        ]
        assert topic.add_doubled() == 0

"""What is found about a real broker and its topics, good and bad."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from livetables.config.kafka_properties import KafkaConfig
from livetables.config.load import load_config
from livetables.config.values import ControlConfig
from livetables.doctor import kafka
from livetables.doctor.check import Facts
from livetables.doctor.sampling import judged
from livetables.doctor.service import clock
from livetables.jvm.gateway import Gateway
from livetables.kafka.inspection import Inspection
from livetables.local.broker import Broker
from livetables.local.ports import free_ports
from livetables.model.spec import Column, GenerationSpec, Table
from tests.support.kafka import WAIT_SECONDS, Record, create_topic, produce, unique_topic

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

NOON_MS = 1_700_000_000_000
COLUMNS = (Column("userId", "string"), Column("age", "int64"), Column("email", "string"))


@pytest.fixture
def inspection(spark: SparkSession, broker: Broker) -> Iterator[Inspection]:
    with closing(Inspection(spark, {"bootstrap.servers": broker.bootstrap_servers})) as opened:
        yield opened


@pytest.fixture
def facts(inspection: Inspection) -> Iterator[Facts]:
    with ExitStack() as stack:
        yield Facts({}, None, 200, stack, config=load_config(None, {}), kafka=inspection)


def with_topics(facts: Facts, *topics: str) -> None:
    assert facts.config
    tables = tuple(Table(f"t{number}", topic, COLUMNS, f"t{number}_ui") for number, topic in enumerate(topics))
    facts.config = replace(facts.config, spec=GenerationSpec(tables, ()))


def with_control(facts: Facts, topic: str) -> None:
    assert facts.config
    facts.config = replace(facts.config, control=ControlConfig(topic))


def create_with(broker: Broker, topic: str, **settings: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    config = {name.replace("_", "."): value for name, value in settings.items()}
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(WAIT_SECONDS)


def test_topics_are_counted_missing_ones_broken_and_empty_ones_a_warning(facts: Facts, broker: Broker) -> None:
    full, empty, missing = unique_topic("full"), unique_topic("empty"), unique_topic("missing")
    create_topic(broker.bootstrap_servers, full)
    create_topic(broker.bootstrap_servers, empty)
    produce(broker.bootstrap_servers, [Record(full, number % 2, b"{}", NOON_MS) for number in range(5)])
    with_topics(facts, full, empty, missing)
    found = kafka.topics(facts)
    assert [each.state for each in found] == ["ok", "warning", "broken"]
    assert found[0].found == f"{full} has 2 partitions and 5 records, and can be read"
    assert found[2].found == f'topic "{missing}" does not exist'


def test_a_sample_is_the_end_of_every_partition(inspection: Inspection, broker: Broker) -> None:
    topic = unique_topic("long")
    create_topic(broker.bootstrap_servers, topic)
    produce(
        broker.bootstrap_servers,
        [Record(topic, partition, str(number).encode(), NOON_MS) for partition in (0, 1) for number in range(700)],
    )
    deadline = time.monotonic() + 30
    seen = inspection.look([topic], deadline)[topic]
    assert not isinstance(seen, Exception)
    sample = inspection.sample(seen, 20, deadline)
    assert sorted((record.partition, record.offset) for record in sample.records) == [
        (partition, offset) for partition in (0, 1) for offset in range(690, 700)
    ]


def test_records_are_judged_as_the_pipeline_does(inspection: Inspection, broker: Broker, spark: SparkSession) -> None:
    topic = unique_topic("mixed")
    create_topic(broker.bootstrap_servers, topic)
    values: list[bytes | None] = [
        b'{"userId":"u1","age":1}',
        b'{"userId":"u2","e_mail":"a"}',
        b'{"userId":[3]}',
        b'{"userId":"u4","age":"x"}',
        b'{"userId":"u5"} trailing',
        None,
    ]
    produce(broker.bootstrap_servers, [Record(topic, 0, value, NOON_MS) for value in values])
    deadline = time.monotonic() + 30
    seen = inspection.look([topic], deadline)[topic]
    assert not isinstance(seen, Exception)
    found = judged(spark, Table("users", topic, COLUMNS, "users_ui"), inspection.sample(seen, 200, deadline))
    assert (found.rows, found.unknown, found.null_columns) == (2, {"e_mail": 1}, ("email",))
    assert found.reasons.total() == 4
    assert found.reasons["userId: expected string, found the array"] == 1
    assert found.reasons["age: expected int64, found the string"] == 1


def test_a_control_topic_that_is_missing_can_be_made_and_is_not(facts: Facts, broker: Broker) -> None:
    topic = unique_topic("control")
    with_control(facts, topic)
    assert [each.state for each in kafka.control(facts)] == ["ok"]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    assert topic not in admin.list_topics(timeout=WAIT_SECONDS).topics


@pytest.mark.parametrize(
    ("settings", "state", "expected"),
    [
        ({"retention_ms": "-1"}, "ok", "can be read and written"),
        ({"retention_ms": "60000"}, "warning", "retention.ms=60000"),
        ({"cleanup_policy": "compact"}, "broken", "compacted"),
    ],
)
def test_a_control_topic_must_keep_its_messages(
    facts: Facts, broker: Broker, settings: dict[str, str], state: str, expected: str
) -> None:
    topic = unique_topic("control")
    create_with(broker, topic, **settings)
    with_control(facts, topic)
    found = kafka.control(facts)
    assert [each.state for each in found] == [state]
    assert expected in found[0].found


def test_the_cluster_of_the_control_topic_is_looked_at(
    facts: Facts, broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    topic = unique_topic("control")
    create_with(broker, topic, retention_ms="60000")
    assert facts.config
    own = KafkaConfig({"bootstrap.servers": broker.bootstrap_servers})
    facts.config = replace(facts.config, control=ControlConfig(topic, kafka=own))
    facts.gateway = Gateway(spark._jvm, tmp_path)
    assert kafka.control(facts) == []
    found = [(each.name, each.state) for each in kafka.control_cluster(facts)]
    assert found == [("control broker", "ok"), ("control login", "ok"), ("control topic", "warning")]


def test_a_cluster_of_the_control_topic_that_is_away_is_broken(facts: Facts) -> None:
    assert facts.config
    (port,) = free_ports(1)
    own = KafkaConfig({"bootstrap.servers": f"127.0.0.1:{port}"})
    facts.config = replace(facts.config, control=ControlConfig("control", kafka=own))
    (found,) = kafka.control_cluster(facts)
    assert (found.name, found.state) == ("control broker", "broken")
    assert "control.kafka.bootstrap.servers" in found.cure


@pytest.mark.parametrize(
    ("properties", "state", "expected"),
    [
        ({}, "ok", "by PLAINTEXT; brokers: 127.0.0.1:"),
        ({"security.protocol": "SSL"}, "broken", "TLS failure: this client, by SSL, speaks TLS"),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
                'username="u" password="hush-hush";',
            },
            "broken",
            "the Kafka broker refuses this client",
        ),
    ],
)
def test_a_login_that_fails_is_distinguished_from_tls(
    spark: SparkSession, broker: Broker, properties: dict[str, str], state: str, expected: str
) -> None:
    given = {"bootstrap.servers": broker.bootstrap_servers, **properties}
    with closing(Inspection(spark, given)) as inspection:
        found = kafka.logged_in(inspection, given)
    assert (found.state, expected in found.found) == (state, True), found
    assert "hush" not in f"{found}"


@pytest.mark.parametrize(("ahead", "state"), [(timedelta(hours=-1), "ok"), (timedelta(hours=1), "warning")])
def test_records_from_the_future_show_a_wrong_clock(facts: Facts, broker: Broker, ahead: timedelta, state: str) -> None:
    topic = unique_topic("clock")
    create_topic(broker.bootstrap_servers, topic)
    at = int((datetime.now(UTC) + ahead).timestamp() * 1000)
    produce(broker.bootstrap_servers, [Record(topic, 0, b"{}", at)])
    seen = facts.inspection.look([topic], time.monotonic() + 30)[topic]
    assert not isinstance(seen, Exception)
    facts.samples = {topic: facts.inspection.sample(seen, 1, time.monotonic() + 30)}
    assert [each.state for each in clock(facts)] == [state]

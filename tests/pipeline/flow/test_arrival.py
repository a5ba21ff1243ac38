"""`timestamp = "arrival"`: the time at which the broker took a record, the same however often it is read."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from livetables.kafka.topics import KafkaTopics
from livetables.local.broker import Broker
from livetables.model.joins import JoinType
from livetables.model.spec import GenerationSpec
from tests.support.kafka import Record, create_topic, produce, unique_topic
from tests.support.pipeline import Engine, content, preset_spec
from tests.support.server import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

ARRIVAL = {"message.timestamp.type": "LogAppendTime"}
JOINS: list[JoinType] = ["natural", "asof"]
LONG_AGO_MS = 1_000_000_000_000
SLACK = timedelta(milliseconds=1)  # Kafka's times are whole milliseconds


def test_arrival_is_the_brokers_time_and_the_same_after_a_crash_and_in_another_generation(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path
) -> None:
    users, accounts = unique_topic("user"), unique_topic("account")
    for topic in (users, accounts):
        create_topic(broker.bootstrap_servers, topic, config=ARRIVAL)
    before = datetime.now(UTC) - SLACK
    for number in range(40):
        value = json.dumps({"userId": f"u{number % 5}", "name": f"{number}", "balance": number}).encode()
        topic = users if number % 3 == 0 else accounts
        # By its producer's time, each record is older than the one before.
        produce(broker.bootstrap_servers, [Record(topic, number % 2, value, LONG_AGO_MS - number)])
    after = datetime.now(UTC) + SLACK
    spec = preset_spec(users, accounts, JOINS)
    spec = GenerationSpec(tuple(replace(table, timestamp="arrival") for table in spec.tables), spec.views)
    with Engine(spark, server, spec, broker.bootstrap_servers, tmp_path / "one") as engine:
        engine.start("real_time")
        engine.settle(40)
        first = content(engine, JOINS, None)
        assert all(before <= row["ts"] <= after for table in ("users_ui", "accounts_ui") for row in engine.rows(table))
        engine.stop()  # before its first checkpoint: everything is read again, some time later
        engine.start("micro_batch")
        engine.finish()
        assert content(engine, JOINS, None) == first
    with Engine(spark, server, spec, broker.bootstrap_servers, tmp_path / "two") as other:
        other.start("micro_batch")
        other.finish()
        assert content(other, JOINS, None) == first


def test_a_topic_that_has_only_its_producers_times_is_refused(spark: SparkSession, broker: Broker) -> None:
    kept, other = unique_topic("kept"), unique_topic("other")
    create_topic(broker.bootstrap_servers, kept, config=ARRIVAL)
    create_topic(broker.bootstrap_servers, other)
    with KafkaTopics(spark, {"bootstrap.servers": broker.bootstrap_servers}) as topics:
        problems = topics.without_arrival([kept, other])
    assert set(problems) == {other}
    assert "its message.timestamp.type is CreateTime" in problems[other].reason
    assert f"--entity-name {other} --add-config message.timestamp.type=LogAppendTime" in problems[other].reason
    assert not problems[other].is_passing

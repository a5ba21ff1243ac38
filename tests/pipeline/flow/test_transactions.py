"""Records of Kafka transactions: committed ones are rows, aborted ones were never sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from livetables.local.broker import Broker
from livetables.pipeline.flow.modes import Mode
from tests.support.pipeline import Engine, Stage
from tests.support.server import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def send(stage: Stage, *transactions: tuple[str, bool]) -> None:
    """Send a user in a transaction of its own each, which is committed or aborted."""
    topic = stage.topics["users"]
    producer = Producer({"bootstrap.servers": stage.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    for name, is_kept in transactions:
        producer.begin_transaction()
        producer.produce(topic, json.dumps({"userId": name}).encode(), partition=0)
        producer.flush()
        if is_kept:
            producer.commit_transaction()
        else:
            producer.abort_transaction()


@pytest.mark.parametrize("mode", ["micro_batch", "real_time"])
def test_what_was_aborted_is_no_row(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, mode: Mode
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    send(stage, ("aborted", False), ("kept", True), ("aborted too", False))
    with stage.engine(spark, server, ["left"], tmp_path) as engine:
        engine.start(mode)
        engine.settle(1)
        send(stage, ("aborted again", False), ("kept too", True))
        engine.settle(2)
        assert [row["userId"] for row in engine.rows("users_ui")] == ["kept", "kept too"]


def test_a_user_s_own_isolation_wins(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    send(stage, ("aborted", False), ("kept", True))
    own = {"bootstrap.servers": stage.bootstrap, "isolation.level": "read_uncommitted"}
    with Engine(spark, server, stage.spec(["left"]), stage.bootstrap, tmp_path, kafka_properties=own) as engine:
        engine.start()
        engine.settle(2)
        assert [row["userId"] for row in engine.rows("users_ui")] == ["aborted", "kept"]

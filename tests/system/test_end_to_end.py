"""The whole way: Kafka, Spark, the server's process, and a client that watches."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from livetables.kafka.topics import KafkaTopics, Topic
from livetables.local.broker import Broker
from livetables.model.joins import JoinType
from livetables.model.wire import PipelineReport, SourceReport
from livetables.pipeline.flow.modes import Mode
from livetables.pipeline.generations.lag import lag_of
from tests.support.pipeline import Engine, Stage, random_records
from tests.support.server import LiveClient, ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

JOINS: list[JoinType] = ["left", "natural", "asof"]


def source_reports(spark: SparkSession, stage: Stage, engine: Engine, server: ServerProcess) -> list[SourceReport]:
    """How far behind its topics a generation is, from what the server has and where the topics end."""
    sink = server.sink()
    try:
        positions = sink.positions()[engine.generation]
    finally:
        sink.close()
    with KafkaTopics(spark, {"bootstrap.servers": stage.bootstrap}) as topics:
        seen = topics.look(stage.topics.values())
    reports = []
    for table in engine.spec.tables:
        topic = seen[table.topic]
        assert isinstance(topic, Topic)
        reports.append(SourceReport(table.publish, table.topic, lag_of(topic, positions[table.name], {})))
    return reports


@pytest.mark.parametrize("mode", ["micro_batch", "real_time"])
def test_what_is_sent_to_kafka_is_what_clients_hold(
    spark: SparkSession, broker: Broker, tmp_path: Path, mode: Mode
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    chance = random.Random(5)
    stage.send(random_records(chance, 160))
    with (
        ServerProcess(tmp_path) as server,
        stage.engine(spark, server, JOINS, tmp_path / "checkpoint") as engine,
    ):
        engine.start(mode, max_records=50)
        engine.settle(len(stage.sent))
        engine.publish()
        with LiveClient(server.websocket) as client:
            client.subscribe(1, "users_ui", size=10_000)
            client.receive_type("snapshot")
            stage.send(random_records(chance, 80))
            server.kill()  # the query goes on by itself when the server is back
            server.start()
            engine.settle(len(stage.sent))
        assert stage.differences(engine, JOINS) == {}
        with LiveClient(server.websocket) as client:
            client.subscribe(1, "left", size=10_000)
            client.receive_type("snapshot")
            stage.send(random_records(chance, 30))
            engine.settle(len(stage.sent))
            served = server.table("left").to_pylist()
            client.receive_until(lambda _: client.windows[1].total == len(served), "the last pairs")
            ids = {(row["_left_id"], row["_right_id"]) for row in client.windows[1].as_dicts()}
            assert ids == {(row["_left_id"], row["_right_id"]) for row in served}
            reports = source_reports(spark, stage, engine, server)
            assert [(report.table, report.topic, report.lag_records) for report in reports] == [
                ("users_ui", stage.topics["users"], 0),
                ("accounts_ui", stage.topics["accounts"], 0),
            ]
            modes = {engine.generation: mode}
            pipeline = PipelineReport(0.0, 0, {"live": 1}, modes, "http://127.0.0.1:4040")
            sink = server.sink()
            sink.report(engine.generation, reports, pipeline=pipeline)
            sink.close()
            status = client.receive_until(lambda frame: frame.get("state") == "live", "the report")
            assert status["spark_ui"] == "http://127.0.0.1:4040"
            shown = server.metric(f'livetables_real_time{{generation="{engine.generation}"}}')
            assert shown == (mode == "real_time")
            # Since the server was killed: all that was sent after it was back.
            assert server.metric('livetables_records_total{table="users_ui"}') > 0
        assert stage.differences(engine, JOINS) == {}

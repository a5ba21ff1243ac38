"""The whole way: Kafka, Spark, the server's process, and a client that watches."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, get_args

import pytest
from pyspark.sql import SparkSession

from livetables.pipeline.callback import Callback
from livetables.pipeline.lag import source_reports
from livetables.pipeline.phases import batch_times
from livetables.spec import JoinType
from livetables.up.broker import Broker
from livetables.wire import Phase, PipelineReport
from tests.support.pipeline import GENERATION, Stage, random_records
from tests.support.server import LiveClient, ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

JOINS: list[JoinType] = ["left", "natural", "asof"]


class ServedTables:
    """The server's tables, as the oracle's comparison reads them."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server

    def rows(self, table: str, generation: str | None = None) -> list[dict[str, Any]]:
        assert generation == GENERATION
        rows: list[dict[str, Any]] = self._server.table(table).to_pylist()
        return rows


def test_what_is_sent_to_kafka_is_what_clients_hold(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    chance = random.Random(5)
    stage.send(random_records(chance, 160))
    with ServerProcess(tmp_path) as server:
        sink = server.sink()
        callback = Callback()
        query = stage.start(spark, JOINS, tmp_path / "checkpoint", sink, max_records=50, callback=callback)
        try:
            query.processAllAvailable()
            sink.publish(GENERATION)
            with LiveClient(server.websocket) as client:
                client.subscribe(1, "users_ui", size=10_000)
                client.receive_type("snapshot")
                stage.send(random_records(chance, 80))
                server.kill()  # the query goes on by itself when the server is back
                server.start()
                query.processAllAvailable()
            assert stage.differences(ServedTables(server), JOINS) == {}
            with LiveClient(server.websocket) as client:
                client.subscribe(1, "left", size=10_000)
                client.receive_type("snapshot")
                stage.send(random_records(chance, 30))
                query.processAllAvailable()
                served = server.table("left").to_pylist()
                client.receive_until(lambda _: client.windows[1].total == len(served), "the last pairs")
                ids = {(row["_left_id"], row["_right_id"]) for row in client.windows[1].as_dicts()}
                assert ids == {(row["_left_id"], row["_right_id"]) for row in served}
                assert query.lastProgress
                reports = source_reports(query.lastProgress, stage.spec(JOINS))
                assert [(report.table, report.topic, report.lag_records) for report in reports] == [
                    ("users_ui", stage.topics["users"], 0),
                    ("accounts_ui", stage.topics["accounts"], 0),
                ]
                times = batch_times(query, callback.steps, None)
                assert [set(each.phases) for each in times.values()] == [set(get_args(Phase))] * len(times)
                assert all(0 < sum(each.phases.values()) <= each.seconds + 0.1 for each in times.values())
                assert batch_times(query, callback.steps, max(times)) == {}
                pipeline = PipelineReport(0.0, 0, {"live": 1}, list(times.values()), "http://127.0.0.1:4040")
                sink.report(GENERATION, reports, pipeline=pipeline)
                told = client.receive_until(lambda frame: frame.get("state") == "live", "the report")
                assert told["spark_ui"] == "http://127.0.0.1:4040"
                assert server.metric("livetables_pipeline_batch_seconds_count") == len(times)
                assert server.metric('livetables_pipeline_phase_seconds_count{phase="deliver"}') == len(times)
                # Since the server was killed: all that was sent after it was back.
                assert server.metric('livetables_records_total{table="users_ui"}') > 0
            assert stage.differences(ServedTables(server), JOINS) == {}
        finally:
            query.stop()
            sink.close()

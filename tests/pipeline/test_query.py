"""What a generation's query does beside being right: it reads once, starts where it is told, costs what it may."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from livetables.change import Batch
from livetables.spec import GenerationSpec, JoinType, Start
from livetables.up.broker import Broker
from tests.support.kafka import wait_until
from tests.support.oracle import Side
from tests.support.pipeline import GENERATION, CheckingSink, Stage, start

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def user(user_id: str, ts: int = 1) -> tuple[Side, int, int, bytes | None]:
    return "users", 0, ts, json.dumps({"userId": user_id, "name": "n", "age": 1}).encode()


def account(user_id: str, ts: int = 1) -> tuple[Side, int, int, bytes | None]:
    return "accounts", 0, ts, json.dumps({"userId": user_id, "balance": 1.0}).encode()


@pytest.mark.parametrize("joins", [[], ["left"], ["natural"], ["inner", "left", "natural", "asof"]], ids="+".join)
def test_each_topic_is_read_once(spark: SparkSession, broker: Broker, tmp_path: Path, joins: list[JoinType]) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    stage.send([user("u1"), user("u2"), account("u1"), account("u1"), account("u3")])
    query = stage.start(spark, joins, tmp_path, CheckingSink())
    try:
        query.processAllAvailable()
        assert sum(progress.numInputRows for progress in query.recentProgress) == 5
    finally:
        query.stop()


def test_natural_writes_one_row_per_new_account_however_many_there_were(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    stage.send(
        [user("few"), user("many"), *(account("few") for _ in range(10)), *(account("many") for _ in range(1000))]
    )
    query = stage.start(spark, ["natural"], tmp_path, sink := CountingSink())
    try:
        query.processAllAvailable()
        for user_id in ("few", "many"):
            stage.send([account(user_id, ts=2)])
            query.processAllAvailable()
            assert sink.upserts[-1] == {"accounts_ui": 1, "natural": 1}
            progress = query.lastProgress
            assert progress is not None
            assert progress.stateOperators[0].numRowsUpdated == 1
    finally:
        query.stop()


class CountingSink(CheckingSink):
    """Remembers how many rows of each table every batch upserted."""

    def __init__(self) -> None:
        super().__init__()
        self.upserts: list[dict[str, int]] = []

    def put(self, batch: Batch) -> None:
        super().put(batch)
        self.upserts.append({changes.table: changes.upserts.num_rows for changes in batch.changes})


@pytest.mark.parametrize(
    ("begin", "expected"),
    [("earliest", {"old", "mid", "new"}), (datetime.fromtimestamp(2000, tz=UTC), {"mid", "new"}), ("latest", {"new"})],
    ids=["earliest", "timestamp", "latest"],
)
def test_a_table_starts_where_it_is_told(
    spark: SparkSession, broker: Broker, tmp_path: Path, begin: Start, expected: set[str]
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    stage.send([user("old", ts=1_000_000), user("mid", ts=2_000_000)])
    spec = stage.spec([])
    spec = GenerationSpec(tuple(replace(table, start=begin) for table in spec.tables), spec.views)
    sink = CheckingSink()
    query = start(spark, spec, broker.bootstrap_servers, tmp_path, sink)
    try:
        query.processAllAvailable()
        # The start is found before the first batch, and there may be none yet to show it.
        wait_until(lambda: query.status["message"] == "Waiting for data to arrive", "the start is found")
        stage.send([user("new", ts=3_000_000)])
        query.processAllAvailable()
        assert {row["userId"] for row in sink.rows("users_ui", GENERATION)} == expected
    finally:
        query.stop()


def test_a_lookback_bounds_how_old_a_match_may_be(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    spec = stage.spec(["asof"])
    spec = GenerationSpec(spec.tables, (replace(spec.views[0], lookback_seconds=10),))
    sink = CheckingSink()
    query = start(spark, spec, broker.bootstrap_servers, tmp_path, sink)
    try:
        stage.send([user("u1", ts=1_000), user("u1", ts=5_000)])
        query.processAllAvailable()
        stage.send([account("u1", ts=12_000), account("u1", ts=15_000), account("u1", ts=15_001)])
        query.processAllAvailable()
    finally:
        query.stop()
    matched = {
        row["accounts_ts"].timestamp(): row["users_ts"] and row["users_ts"].timestamp()
        for row in sink.rows("asof", GENERATION)
    }
    assert matched == {12.0: 5.0, 15.0: 5.0, 15.001: None}


def test_one_query_that_fails_leaves_the_others_running(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    healthy, doomed = Stage.open(broker.bootstrap_servers), Stage.open(broker.bootstrap_servers)
    sink = CheckingSink()
    refused = threading.Event()

    class RefusingSink(CheckingSink):
        def put(self, _batch: Batch) -> None:
            refused.set()
            raise RuntimeError("no")

    running = healthy.start(spark, ["left"], tmp_path / "healthy", sink)
    failing = doomed.start(spark, ["left"], tmp_path / "doomed", RefusingSink(), generation="doomed")
    try:
        doomed.send([user("u1")])
        assert refused.wait(60)
        wait_until(lambda: not failing.isActive, "the failing query has ended", seconds=60)
        healthy.send([user("u1"), account("u1")])
        running.processAllAvailable()
        assert healthy.differences(sink, ["left"]) == {}
    finally:
        running.stop()
        failing.stop()

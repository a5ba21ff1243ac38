"""What a generation's query does beside being right: it reads once, starts where it should, costs what it may."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from livetables.local.broker import Broker
from livetables.model.joins import JoinType
from livetables.model.spec import GenerationSpec, Start
from livetables.pipeline.flow.modes import Mode
from tests.support.kafka import wait_until
from tests.support.oracle import Side
from tests.support.pipeline import Engine, Stage
from tests.support.server import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

MODES: list[Mode] = ["micro_batch", "real_time"]


def user(user_id: str, ts: int = 1) -> tuple[Side, int, int, bytes | None]:
    return "users", 0, ts, json.dumps({"userId": user_id, "name": "n", "age": 1}).encode()


def account(user_id: str, ts: int = 1) -> tuple[Side, int, int, bytes | None]:
    return "accounts", 0, ts, json.dumps({"userId": user_id, "balance": 1.0}).encode()


@pytest.mark.parametrize(
    "joins",
    [
        *(pytest.param(joins, marks=pytest.mark.chaos) for joins in ([], ["left"], ["natural"])),
        ["inner", "left", "natural", "asof"],
    ],
    ids="+".join,
)
def test_each_topic_is_read_once(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, joins: list[JoinType]
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    stage.send([user("u1"), user("u2"), account("u1"), account("u1"), account("u3")])
    with stage.engine(spark, server, joins, tmp_path) as engine:
        query = engine.start("micro_batch")
        engine.finish()
        assert sum(progress.numInputRows for progress in query.recentProgress) == 5


@pytest.mark.parametrize(
    ("begin", "expected"),
    [("earliest", {"old", "mid", "new"}), (datetime.fromtimestamp(2000, tz=UTC), {"mid", "new"}), ("latest", {"new"})],
    ids=["earliest", "timestamp", "latest"],
)
def test_a_table_starts_where_it_is_configured_to(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, begin: Start, expected: set[str]
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    stage.send([user("old", ts=1_000_000), user("mid", ts=2_000_000)])
    spec = stage.spec([])
    spec = GenerationSpec(tuple(replace(table, start=begin) for table in spec.tables), spec.views)
    with Engine(spark, server, spec, broker.bootstrap_servers, tmp_path) as engine:
        query = engine.start("micro_batch")
        engine.finish()
        # The start is found before the first batch, and there may be none yet to show it.
        wait_until(lambda: query.status["message"] == "Waiting for data to arrive", "the start is found")
        stage.send([user("new", ts=3_000_000)])
        engine.finish()
        assert {row["userId"] for row in engine.rows("users_ui")} == expected


@pytest.mark.parametrize("mode", MODES)
def test_a_start_at_the_end_is_kept_when_the_first_batch_is_repeated(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, mode: Mode
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    stage.send([user("old")])
    spec = stage.spec(["left"])
    spec = GenerationSpec(tuple(replace(table, start="latest") for table in spec.tables), spec.views)
    with Engine(spark, server, spec, broker.bootstrap_servers, tmp_path) as engine:
        engine.start("real_time")
        starts = [tmp_path / engine.generation / "sources" / str(number) / "0" for number in range(2)]
        wait_until(lambda: all(start.exists() for start in starts), "the start is found")
        stage.send([user("first")])
        engine.settle(1)
        engine.stop()
        stage.send([user("second"), account("first")])
        engine.start(mode)
        expected = {("first", 1.0), ("second", None)}
        wait_until(
            lambda: {(row["userId"], row["balance"]) for row in engine.rows("left")} == expected,
            "everything since the first start is there, and met",
            seconds=60,
        )
        assert len(engine.rows("users_ui")) == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_lookback_bounds_how_old_a_match_may_be(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, mode: Mode
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    spec = stage.spec(["asof"])
    spec = GenerationSpec(spec.tables, (replace(spec.views[0], lookback_seconds=10),))
    with Engine(spark, server, spec, broker.bootstrap_servers, tmp_path) as engine:
        engine.start(mode)
        stage.send([account("u1", ts=14_000), user("u1", ts=1_000), user("u1", ts=5_000)])
        engine.settle(3)
        stage.send([account("u1", ts=12_000), account("u1", ts=15_000), account("u1", ts=15_001)])
        engine.settle(6)
        matched = {
            row["accounts_ts"].timestamp(): row["users_ts"] and row["users_ts"].timestamp()
            for row in engine.rows("asof")
        }
    assert matched == {12.0: 5.0, 14.0: 5.0, 15.0: 5.0, 15.001: None}


def is_ended(engine: Engine) -> Callable[[], bool]:
    return lambda: engine.query is not None and not engine.query.isActive


@pytest.mark.parametrize("mode", MODES)
def test_one_query_that_fails_leaves_the_others_running(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, mode: Mode
) -> None:
    healthy, doomed = Stage.open(broker.bootstrap_servers), Stage.open(broker.bootstrap_servers)
    with (
        healthy.engine(spark, server, ["left"], tmp_path / "healthy") as running,
        doomed.engine(spark, server, ["left"], tmp_path / "doomed") as failing,
    ):
        running.start(mode)
        failing.start(mode)
        doomed.send([user("u1")])
        failing.settle(1)
        failing.drop()  # from now on the server refuses its frames
        doomed.send([user("u2")])
        wait_until(is_ended(failing), "the failing query has ended", seconds=60)
        healthy.send([user("u1"), account("u1")])
        running.settle(2)
        assert healthy.differences(running, ["left"]) == {}

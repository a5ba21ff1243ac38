"""What is read again after a crash: records that come in another order, and what readers see meanwhile."""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import livetables
from livetables.local.broker import Broker
from livetables.model.joins import JoinType
from livetables.model.spec import GenerationSpec
from livetables.pipeline.flow.modes import Mode
from tests.support.driver import Driver
from tests.support.kafka import create_topic, unique_topic, wait_until
from tests.support.oracle import Side
from tests.support.pipeline import Engine, Served, Stage, random_records
from tests.support.server import TOKEN, ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

ALL_JOINS: list[JoinType] = ["inner", "left", "natural", "asof"]
SIDES: list[Side] = ["users", "accounts"]
MODES: list[Mode] = ["micro_batch", "real_time"]
REPLAYED_MIN = 100_000
START_MS = 1_700_000_000_000


# Another order


def count(stage: Stage, side: Side) -> int:
    return sum(record.side == side for record in stage.sent)


def check(stage: Stage, engine: Engine) -> None:
    """The tables become the oracle's as they are filled now, and stay so when everything is committed."""
    engine.settle(len(stage.sent))
    assert stage.lasting_differences(engine, ALL_JOINS) == {}
    engine.start("micro_batch")
    engine.finish()
    assert stage.differences(engine, ALL_JOINS) == {}


@pytest.mark.parametrize("first", ["users", pytest.param("accounts", marks=pytest.mark.chaos)])
@pytest.mark.parametrize("order", [SIDES, SIDES[::-1]], ids=lambda order: f"{order[0]}-read-first")
def test_records_shown_alone_before_a_crash_are_matched_after_it(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, first: Side, order: list[Side]
) -> None:
    """In a micro-batch the operator gets all records of a key in the order of the tables: one of the two orders is not
    the one in which the records came before the crash."""
    stage = Stage.open(broker.bootstrap_servers)
    records = random_records(random.Random(1), 80)
    spec = stage.spec(ALL_JOINS)
    spec = GenerationSpec(tuple(spec.table(side) for side in order), spec.views)
    with Engine(spark, server, spec, broker.bootstrap_servers, tmp_path) as engine:
        engine.start("real_time")
        stage.send([record for record in records if record[0] == first])
        engine.settle(len(stage.sent))
        engine.stop()  # before the first boundary: all of it is read again
        stage.send([record for record in records if record[0] != first])
        engine.start("micro_batch")
        check(stage, engine)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", ["users", pytest.param("accounts", marks=pytest.mark.chaos)])
def test_records_that_were_shown_but_never_met_are_matched_when_they_are_read_again(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, first: Side, mode: Mode
) -> None:
    """Two crashes: before the first one side was read, after it the other, and none of the first was read again yet.

    The side that is not read yet is played by an empty topic; all else is as it is.
    """
    stage = Stage.open(broker.bootstrap_servers)
    stage.send(random_records(random.Random(2), 80))
    empty = unique_topic("empty")
    create_topic(broker.bootstrap_servers, empty)
    second: Side = "accounts" if first == "users" else "users"
    whole = stage.spec(ALL_JOINS)

    def only(side: Side) -> GenerationSpec:
        tables = (table if table.name == side else replace(table, topic=empty) for table in whole.tables)
        return GenerationSpec(tuple(tables), whole.views)

    with Engine(spark, server, whole, broker.bootstrap_servers, tmp_path) as engine:
        for side, records in ((first, count(stage, first)), (second, len(stage.sent))):
            engine.spec = only(side)
            engine.start("real_time")
            engine.settle(records)
            engine.stop()
            shutil.rmtree(tmp_path / engine.generation)  # without a commit it only has where topics began
        assert engine.rows("inner") == [], "they have not met"
        engine.spec = whole
        engine.start(mode)
        check(stage, engine)


# What readers see


def many_records(chance: random.Random, users: int, accounts: int) -> list[tuple[Side, int, int, bytes | None]]:
    """Records of many keys, two users each on average."""
    keys = users // 2
    records: list[tuple[Side, int, int, bytes | None]] = []
    for number in range(users + accounts):
        side: Side = "users" if number % (1 + accounts // users) == 0 else "accounts"
        # A tenth of the keys has users only, at first.
        key = chance.randrange(keys) if side == "users" else chance.randrange(keys // 10, keys)
        ts = START_MS + number + chance.randrange(1000)
        records.append((side, number % 2, ts, json.dumps({"userId": f"u{key}"}).encode()))
    return records


class Watch:
    """Looks at two views again and again, and remembers what went back to an older state."""

    def __init__(self, server: ServerProcess) -> None:
        self.looks = 0
        self.went_back: list[str] = []
        self._connection = livetables.connect(server.http, TOKEN)
        self._pairs = self._matched = self._lefts = np.array([], dtype=np.int64)
        self._versions = np.array([], dtype=np.int64)

    def look(self) -> None:
        self._look_at_left(self._connection.table("left").to_arrow(["_left_id", "_right_id"]))
        self._look_at_natural(self._connection.table("natural").to_arrow(["_left_id", "_right_id", "accounts_ts"]))
        self.looks += 1

    def _look_at_left(self, rows: pa.Table) -> None:
        left, right = _small_ids(rows["_left_id"]), _small_ids(rows["_right_id"])
        pairs = (left << 32 | right)[right >= 0]
        if gone := len(np.setdiff1d(self._pairs, pairs)):
            self.went_back.append(f"look {self.looks}: {gone} pairs vanished")
        if back := len(np.intersect1d(self._matched, left[right < 0])):
            self.went_back.append(f"look {self.looks}: {back} users with a match came back without one")
        self._pairs, self._matched = pairs, np.unique(left[right >= 0])

    def _look_at_natural(self, rows: pa.Table) -> None:
        rows = rows.sort_by("_left_id")
        left, right = _small_ids(rows["_left_id"]), _small_ids(rows["_right_id"])
        times = rows["accounts_ts"].cast(pa.int64()).fill_null(0).to_numpy() // 1000 - START_MS
        versions = np.where(right < 0, -1, times << 32 | right)
        if gone := len(np.setdiff1d(self._lefts, left)):
            self.went_back.append(f"look {self.looks}: {gone} users vanished")
        else:
            older = versions[np.searchsorted(left, self._lefts)] < self._versions
            if older.any():
                self.went_back.append(f"look {self.looks}: {older.sum()} users had an older match")
        self._lefts, self._versions = left, versions

    def close(self) -> None:
        self._connection.close()


def _small_ids(ids: pa.ChunkedArray) -> np.ndarray:
    """Ids of records of two partitions in 32 bits, -1 for none; they sort as before."""
    values: np.ndarray = ids.fill_null(-1).to_numpy()
    return np.where(values < 0, -1, (values >> 44) << 30 | values & (1 << 30) - 1)


@contextmanager
def watching(server: ServerProcess) -> Iterator[Watch]:
    """Look as often as the server answers, as long as the block lasts."""
    watch, ended, failures = Watch(server), threading.Event(), []

    def look() -> None:
        try:
            while not ended.is_set():
                watch.look()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()
        watch.close()
    assert failures == []


@pytest.mark.chaos
def test_no_row_goes_back_to_an_older_state_while_100_000_records_are_read_again(
    broker: Broker, server: ServerProcess, tmp_path: Path
) -> None:
    stage, chance = Stage.open(broker.bootstrap_servers), random.Random(3)
    joins: list[JoinType] = ["left", "natural"]
    stage.send(many_records(chance, 100, 1000))
    with Served(server, stage.spec(joins)) as served, Driver(stage, served, tmp_path) as driver:
        driver.start("micro_batch", max_records=10_000)
        driver.settle(len(stage.sent))
        driver.finish()
        driver.go_on("real_time")
        stage.send(many_records(chance, 10_000, 100_000))
        driver.settle(len(stage.sent))
        before, shown = driver.records_committed(), len(stage.sent)
        driver.kill()
        # The first accounts of some users, newer ones of others, and new users.
        stage.send([("accounts", n % 2, START_MS + 10**6 + n, b'{"userId":"u%d"}' % n) for n in range(1000)])
        stage.send(many_records(chance, 100, 1000))
        served.publish()
        with watching(server) as watch:
            driver.start("real_time", batch_seconds=20)
            new = len(stage.sent) - shown
            wait_until(
                lambda: driver.records_committed() - before - new >= REPLAYED_MIN,
                "the replay is committed",
                seconds=300,
            )
            driver.settle(len(stage.sent))
        assert watch.went_back == []
        assert watch.looks >= 10
        assert stage.lasting_differences(served, joins) == {}
        driver.finish()
        assert stage.differences(served, joins) == {}

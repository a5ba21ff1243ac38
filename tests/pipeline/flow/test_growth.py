"""What a new record costs where its key has 1, 100 and 10,000 records already: rows that change, and state read.

Counted, not timed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from livetables.local.broker import Broker
from livetables.model.joins import JoinType
from tests.support.oracle import Side
from tests.support.pipeline import Engine, Stage
from tests.support.server import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

COUNTS = (1, 100, 10_000)
ALL_JOINS: list[JoinType] = ["inner", "left", "natural", "asof"]


def record(side: Side, key: str, ts: int) -> tuple[Side, int, int, bytes | None]:
    return side, 0, ts, json.dumps({"userId": key}).encode()


def keys_with(many: Side) -> list[tuple[Side, int, int, bytes | None]]:
    """For each count a key with so many records of one side, and one of the other. All keys take the same bytes."""
    one: Side = "accounts" if many == "users" else "users"
    return [
        made
        for count in COUNTS
        for made in [record(one, f"k{count:05}", 1), *(record(many, f"k{count:05}", 2) for _ in range(count))]
    ]


def rows_taken(server: ServerProcess) -> dict[str, int]:
    """How many rows of each view the server has inserted or updated since its start."""
    found = re.findall(r'^livetables_rows_total\{change="upsert",table="(\w+)"\} (\S+)$', server.get("/metrics"), re.M)
    return {table: int(float(count)) for table, count in found if table in ALL_JOINS}


def taken_for(engine: Engine, stage: Stage, new: tuple[Side, int, int, bytes | None]) -> dict[str, int]:
    """How many rows of each view a new record changes."""
    before = rows_taken(engine.server)
    stage.send([new])
    engine.finish()
    return {view: count - before.get(view, 0) for view, count in rows_taken(engine.server).items()}


@pytest.mark.parametrize(
    ("many", "new", "growing"),
    [
        # Every user of the key has a pair with a new account, or has it as its latest; the account has one match.
        ("users", "accounts", {"inner", "left", "natural"}),
        # Every account of the key has a pair with a new user, which has one latest account, and is newer than all.
        ("accounts", "users", {"inner", "left"}),
        # The other accounts of the key are of no interest to a new one.
        pytest.param("accounts", "accounts", set(), marks=pytest.mark.chaos),
        pytest.param("users", "users", set(), marks=pytest.mark.chaos),
    ],
    ids=["an account among users", "a user among accounts", "an account among accounts", "a user among users"],
)
def test_a_new_record_changes_only_the_rows_that_it_is_part_of(
    spark: SparkSession,
    broker: Broker,
    server: ServerProcess,
    tmp_path: Path,
    many: Side,
    new: Side,
    growing: set[JoinType],
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    stage.send(keys_with(many))
    with stage.engine(spark, server, ALL_JOINS, tmp_path) as engine:
        engine.publish()
        engine.start("micro_batch", max_records=100_000)
        engine.finish()
        taken = {count: taken_for(engine, stage, record(new, f"k{count:05}", 3)) for count in COUNTS}
    # As-of keeps accounts: a user that is newer than all of them is the match of none.
    kept: list[JoinType] = [join for join in ALL_JOINS if new == "accounts" or join != "asof"]
    assert {count: {join: rows[join] for join in kept} for count, rows in taken.items()} == {
        count: {join: count if join in growing else 1 for join in kept} for count in COUNTS
    }
    assert new == "accounts" or {rows["asof"] for rows in taken.values()} == {0}


def state_read(engine: Engine) -> dict[str, int]:
    """What the last batch looked up in the state, and read from it one after another."""
    assert engine.query
    progress = engine.query.lastProgress
    assert progress
    metrics = progress.stateOperators[0].customMetrics
    names = ("rocksdbGetCount", "rocksdbTotalBytesRead", "rocksdbTotalBytesReadThroughIterator", "rocksdbPutCount")
    return {name: metrics[name] for name in names}


@pytest.mark.parametrize(
    ("join", "new"),
    [
        ("natural", "accounts"),
        pytest.param("natural", "users", marks=pytest.mark.chaos),
        ("asof", "accounts"),
        pytest.param("inner", "accounts", marks=pytest.mark.chaos),
        pytest.param("left", "accounts", marks=pytest.mark.chaos),
    ],
)
def test_the_accounts_before_it_cost_a_new_record_nothing(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, join: JoinType, new: Side
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    stage.send(keys_with("accounts"))
    with stage.engine(spark, server, [join], tmp_path) as engine:
        engine.start("micro_batch", max_records=100_000)
        engine.finish()
        costs = []
        for count in COUNTS:
            stage.send([record(new, f"k{count:05}", 3)])
            engine.finish()
            costs.append(state_read(engine))
    assert costs[0]["rocksdbPutCount"] == 1
    assert join != "natural" or costs[0]["rocksdbGetCount"] == 1  # the latest account, if its key has one
    assert costs[1:] == costs[:1] * 2

"""A record and all that it joins to appear together: in every state of the server, views are what its tables make."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import livetables
from livetables.local.broker import Broker
from livetables.model.joins import JoinType
from livetables.pipeline.flow.modes import Mode
from tests.support.kafka import wait_until
from tests.support.oracle import Side
from tests.support.pipeline import Engine, Stage
from tests.support.server import TOKEN, ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

JOINS: list[JoinType] = ["inner", "left", "natural", "asof"]
KEYS = 60
STATES_MIN = 10  # that have to be looked at
# The rows that each view should have, by ids, from the tables of records alone.
LATEST_ACCOUNTS = """(SELECT * FROM accounts_ui WHERE userId IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY userId ORDER BY ts DESC, _id DESC) = 1)"""
DUE = {
    "inner": "SELECT u._id, a._id FROM users_ui u JOIN accounts_ui a ON u.userId = a.userId",
    "left": "SELECT u._id, a._id FROM users_ui u LEFT JOIN accounts_ui a ON u.userId = a.userId",
    "natural": f"SELECT u._id, a._id FROM users_ui u LEFT JOIN {LATEST_ACCOUNTS} a ON u.userId = a.userId",
    "asof": """SELECT u._id, a._id FROM accounts_ui a LEFT JOIN users_ui u ON u.userId = a.userId AND u.ts <= a.ts
        QUALIFY row_number() OVER (PARTITION BY a._id ORDER BY u.ts DESC, u._id DESC) = 1""",
}
# One statement sees one state.
LOOK = "SELECT (SELECT count(*) FROM users_ui) + (SELECT count(*) FROM accounts_ui) AS records, " + ", ".join(
    f"""(SELECT count(*) FROM ({due} EXCEPT SELECT _left_id, _right_id FROM "{join}")) AS {join}_lacks,
    (SELECT count(*) FROM (SELECT _left_id, _right_id FROM "{join}" EXCEPT {due})) AS {join}_extra"""
    for join, due in DUE.items()
)


def records(chance: random.Random, count: int) -> list[tuple[Side, int, int, bytes | None]]:
    """Users and accounts of some keys, of which a few are null, in any order of time."""
    made: list[tuple[Side, int, int, bytes | None]] = []
    for _ in range(count):
        side: Side = "users" if chance.random() < 0.4 else "accounts"
        key = None if chance.random() < 0.05 else f"u{chance.randrange(KEYS)}"
        ts = 1_700_000_000_000 + chance.randrange(60_000)
        made.append((side, chance.randrange(2), ts, json.dumps({"userId": key}).encode()))
    return made


class Looks:
    """All states that a reader has come upon."""

    def __init__(self, server: ServerProcess) -> None:
        self.states: list[dict[str, int]] = []
        self._connection = livetables.connect(server.http, TOKEN)

    def look(self) -> None:
        self.states += self._connection.sql(LOOK).to_pylist()

    def torn(self) -> Sequence[dict[str, int]]:
        """The states in which a view was not what the tables made."""
        return [state for state in self.states if any(count for name, count in state.items() if name != "records")]

    def distinct(self) -> int:
        return len({state["records"] for state in self.states})

    def close(self) -> None:
        self._connection.close()


@contextmanager
def looking(server: ServerProcess) -> Iterator[Looks]:
    """Look as often as the server answers, as long as the block lasts."""
    looks, ended, failures = Looks(server), threading.Event(), []

    def look() -> None:
        try:
            while not ended.is_set():
                looks.look()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield looks
    finally:
        ended.set()
        thread.join()
        looks.close()
    assert failures == []


def check(stage: Stage, engine: Engine, looks: Looks) -> None:
    assert looks.torn() == []
    assert looks.distinct() >= STATES_MIN
    assert stage.differences(engine, JOINS) == {}


def test_in_real_time_no_state_has_a_record_without_its_pairs(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path
) -> None:
    stage, chance = Stage.open(broker.bootstrap_servers), random.Random(1)
    with stage.engine(spark, server, JOINS, tmp_path) as engine:
        engine.start("real_time")
        stage.send(records(chance, 50))
        engine.settle(len(stage.sent))
        engine.publish()
        with looking(server) as looks:
            while looks.distinct() < 2 * STATES_MIN:
                stage.send(records(chance, 5))
                assert len(stage.sent) < 50_000, "the reader does not keep up"
            engine.settle(len(stage.sent))
        check(stage, engine, looks)


def test_while_a_backlog_is_read_no_state_has_a_record_without_its_pairs(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path
) -> None:
    stage, chance = Stage.open(broker.bootstrap_servers), random.Random(2)
    stage.send(records(chance, 3000))
    with stage.engine(spark, server, JOINS, tmp_path) as engine:
        engine.publish()
        with looking(server) as looks:
            engine.start("micro_batch", max_records=100)
            engine.settle(len(stage.sent))
        check(stage, engine, looks)


class Follower:
    """A client that applies every change of the view `left` to what it holds."""

    def __init__(self, server: ServerProcess) -> None:
        self.held: set[tuple[int, int | None]] = set()
        self.twice: list[tuple[int, int | None]] = []  # rows that came although they were there
        self.torn: list[int] = []  # users that had a row without a match beside a pair
        self._connection = livetables.connect(server.http, TOKEN)
        self._changes = self._connection.table("left").changes()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        for change in self._changes:
            if change.is_snapshot:
                self.held = set()
            held = self.held - {_key(row) for row in change.deletes.to_pylist()}
            new = {_key(row) for row in change.upserts.to_pylist()}
            self.twice += new & held
            held |= new
            matched = {left for left, right in held if right is not None}
            self.torn += [left for left, right in held if right is None and left in matched]
            self.held = held

    def close(self) -> None:
        self._changes.close()
        self._thread.join()
        self._connection.close()


def _key(row: Mapping[str, Any]) -> tuple[int, int | None]:
    return row["_left_id"], row["_right_id"]


@pytest.mark.parametrize("mode", ["micro_batch", "real_time"])
def test_a_client_that_reads_every_change_sees_no_match_beside_the_row_without_one(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, mode: Mode
) -> None:
    stage, chance = Stage.open(broker.bootstrap_servers), random.Random(3)
    with stage.engine(spark, server, JOINS, tmp_path) as engine:
        engine.start(mode, max_records=50)
        engine.publish()
        follower = Follower(server)
        try:
            for _ in range(20):
                stage.send(records(chance, 20))
            engine.settle(len(stage.sent))
            due = {_key(row) for row in engine.rows("left")}
            wait_until(lambda: follower.held == due, "the client has all rows")
        finally:
            follower.close()
    assert (follower.torn, follower.twice) == ([], [])

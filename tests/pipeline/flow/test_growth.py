"""What a new record costs where its key has 1, 100 and 10,000 records already: rows that change, and state read.

And how large a part of it is that the server gets at once. Counted, not timed.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from livetables.local.broker import Broker
from livetables.model.joins import JoinType
from livetables.pipeline.flow.modes import Mode
from tests.support.oracle import Side
from tests.support.pipeline import Engine, Stage
from tests.support.server import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

COUNTS = (1, 100, 10_000)
MATCHES = 3_000
ACCOUNT_BYTES = 9_000
PART_BYTES_MAX = 6 << 20  # what the operator emits at once comes to what the writer has already
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


@contextmanager
def bodies_to(server: ServerProcess) -> Iterator[tuple[str, list[int]]]:
    """An address that passes everything on to a server, and how many bytes each request had."""
    sizes: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            sizes.append(len(body))
            connection = http.client.HTTPConnection("127.0.0.1", server.port)
            connection.request("POST", self.path, body, {"Authorization": self.headers["Authorization"]})
            response = connection.getresponse()
            answer = response.read()
            connection.close()
            self.send_response(response.status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}", sizes
        listening.shutdown()


@pytest.mark.parametrize("mode", ["micro_batch", "real_time"])
def test_a_large_record_with_many_matches_is_sent_in_parts_of_a_few_megabytes(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, mode: Mode
) -> None:
    """Its values are in every row that it makes, although the operator emits them once."""
    stage = Stage.open(broker.bootstrap_servers)
    joins: list[JoinType] = ["left", "natural"]
    stage.send([record("users", "k", 1) for _ in range(MATCHES)])
    with bodies_to(server) as (url, sizes), stage.engine(spark, server, joins, tmp_path) as engine:
        engine.url = url
        engine.start("micro_batch")
        engine.finish()
        engine.start(mode)
        account = {"userId": "k", "accountType": "a" * ACCOUNT_BYTES}
        stage.send([("accounts", 0, 2, json.dumps(account).encode())])
        engine.settle(len(stage.sent))
        assert stage.lasting_differences(engine, joins) == {}
    assert sum(sizes) > len(joins) * MATCHES * ACCOUNT_BYTES
    assert max(sizes) < PART_BYTES_MAX

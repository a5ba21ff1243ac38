"""A driver that is killed anywhere, and a query that is stopped mid-batch, lose nothing and double nothing."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from livetables.spec import JoinType
from livetables.up.broker import Broker
from tests.support.driver import driver, kill
from tests.support.faults import Crash, batch_files, replayed
from tests.support.kafka import wait_until
from tests.support.pipeline import GENERATION, CheckingSink, Stage, random_records

ALL_JOINS: list[JoinType] = ["inner", "left", "natural", "asof"]
RECORD_TABLES = ("users_ui", "accounts_ui", "dead_letters")  # each record is in exactly one of them
CLUSTER = "local-cluster[2,1,2048]"  # two real executor processes
DRIVER_SECONDS = 300.0  # a JVM, Spark and the first batch, on a machine that is busy


def wait_for_driver(what: str, condition: Callable[[], bool], directory: Path) -> None:
    """Wait for something that a driver does; when it does not, show what the driver said."""
    try:
        wait_until(condition, what, seconds=DRIVER_SECONDS)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{(directory / 'driver.log').read_text()[-3000:]}") from error


def wait_for_end(process: subprocess.Popen[bytes], directory: Path) -> None:
    wait_for_driver("the driver is killed", lambda: process.poll() is not None, directory)


def check_convergence(stage: Stage, directory: Path, master: str) -> None:
    """Start a driver that is left alone; once it has seen every record, the tables are the oracle's."""

    counts: dict[int, int] = {}  # by number of batches: applying them all is not for every look

    def seen() -> int:
        batches = len(batch_files(directory))
        if not batches:
            return 0
        if batches not in counts:
            sink = replayed(directory)
            counts[batches] = sum(len(sink.rows(table, GENERATION)) for table in RECORD_TABLES)
        return counts[batches]

    with driver(stage, ALL_JOINS, directory, master=master):
        wait_for_driver("all records are delivered", lambda: seen() >= len(stage.sent), directory)
    assert stage.differences(replayed(directory), ALL_JOINS) == {}


@pytest.mark.chaos
@pytest.mark.spark
@pytest.mark.kafka
def test_killed_drivers_resume_without_loss_or_doubles(broker: Broker, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # shown when the test fails
    chance = random.Random(seed)
    stage = Stage.open(broker.bootstrap_servers)
    stage.send(random_records(chance, 100))

    for crash in (Crash("before", 1), Crash("after", 2)):
        with driver(stage, ALL_JOINS, tmp_path, master="local[2]", crash=crash) as process:
            stage.send(random_records(chance, 100))
            wait_for_end(process, tmp_path)
            assert process.returncode == -9

    stage.send(random_records(chance, 100))
    check_convergence(stage, tmp_path, "local[2]")


@pytest.mark.chaos
@pytest.mark.spark
@pytest.mark.kafka
def test_a_driver_killed_at_any_time_resumes(broker: Broker, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    stage = Stage.open(broker.bootstrap_servers)
    stage.send(random_records(chance, 100))
    with driver(stage, ALL_JOINS, tmp_path, master="local[2]") as process:
        committed = len(batch_files(tmp_path))
        wait_for_driver("a new batch is committed", lambda: len(batch_files(tmp_path)) > committed, tmp_path)
        stage.send(random_records(chance, 100))
        time.sleep(chance.random() * 0.5)  # not a wait: the point in time at which it is killed is what is random
        kill(process)

    check_convergence(stage, tmp_path, "local[2]")


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.chaos
def test_a_cluster_gives_the_same_tables(broker: Broker, tmp_path: Path) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    stage.send(random_records(random.Random(1), 250))
    check_convergence(stage, tmp_path, CLUSTER)


@pytest.mark.chaos
@pytest.mark.spark
@pytest.mark.kafka
def test_a_killed_driver_resumes_on_a_cluster(broker: Broker, tmp_path: Path) -> None:
    chance = random.Random(1)
    stage = Stage.open(broker.bootstrap_servers)
    stage.send(random_records(chance, 150))
    with driver(stage, ALL_JOINS, tmp_path, master=CLUSTER, crash=Crash("after", 1)) as process:
        wait_for_end(process, tmp_path)
    stage.send(random_records(chance, 100))
    check_convergence(stage, tmp_path, CLUSTER)


def wait_for_batch(query: StreamingQuery) -> None:
    wait_until(lambda: bool(query.status["isTriggerActive"]), "a batch is under way")


@pytest.mark.spark
@pytest.mark.kafka
def test_a_query_stopped_in_the_middle_of_batches_resumes(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    stage = Stage.open(broker.bootstrap_servers)
    sink = CheckingSink()
    for _ in range(6):
        query = stage.start(spark, ALL_JOINS, tmp_path, sink)
        stage.send(random_records(chance, 60))
        wait_for_batch(query)
        time.sleep(chance.random() * 0.3)  # not a wait: where in the batch it is stopped is what is random
        query.stop()
    query = stage.start(spark, ALL_JOINS, tmp_path, sink)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert stage.differences(sink, ALL_JOINS) == {}

"""Whatever is killed, and whenever: nothing is lost, nothing doubled, and the tables are the oracle's."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import pytest
from pyspark.sql import SparkSession

from livetables.local.broker import Broker
from livetables.model.joins import JoinType
from livetables.pipeline.flow.modes import Mode
from tests.support.driver import Driver
from tests.support.kafka import wait_until
from tests.support.pipeline import Engine, Served, Stage, random_records
from tests.support.server import LiveClient, ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

ALL_JOINS: list[JoinType] = ["inner", "left", "natural", "asof"]
MODES: list[Mode] = ["micro_batch", "real_time"]
CLUSTER = "local-cluster[2,8,1024]"  # two real executor processes
BOUNDARY_SECONDS = 5  # as short as Spark allows
LOST_MIN, TRIES_MAX = 2, 20


@pytest.fixture
def chance() -> random.Random:
    """Chance that can be had again: the seed is shown when a test fails."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


def at_random(chance: random.Random, seconds_max: float) -> None:
    """Not a wait: the point in time at which something is killed is what is random."""
    time.sleep(chance.random() * seconds_max)


class Flow:
    """Sends records as long as the block lasts."""

    def __init__(self, stage: Stage, chance: random.Random) -> None:
        self._stage, self._chance = stage, chance
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        try:
            while not self._ended.wait(0.02):
                self._stage.send(random_records(self._chance, 10))
        except BaseException as error:
            self._failure = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._failure and not error:
            raise self._failure


def check(stage: Stage, served: Served, settle: Callable[[int], None], finish: Callable[[], None]) -> None:
    """The tables become the oracle's as they are filled now, and stay so when everything is read and committed."""
    settle(len(stage.sent))
    assert stage.lasting_differences(served, ALL_JOINS) == {}
    finish()
    assert stage.differences(served, ALL_JOINS) == {}


def check_engine(stage: Stage, engine: Engine) -> None:
    def finish() -> None:
        engine.start("micro_batch")
        engine.finish()

    check(stage, engine, engine.settle, finish)


def check_driver(stage: Stage, served: Served, driver: Driver) -> None:
    check(stage, served, driver.settle, driver.finish)


# The driver


def test_a_query_stopped_anywhere_resumes(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, chance: random.Random
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    with stage.engine(spark, server, ALL_JOINS, tmp_path) as engine:
        for _ in range(6):
            engine.start(chance.choice(MODES))
            stage.send(random_records(chance, 60))
            wait_until(engine.is_in_batch, "a batch is under way")
            at_random(chance, 0.5)
            engine.stop()
        engine.start("real_time")
        check_engine(stage, engine)


def test_a_driver_killed_in_real_time_resumes(
    broker: Broker, server: ServerProcess, tmp_path: Path, chance: random.Random
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    stage.send(random_records(chance, 60))
    with Served(server, stage.spec(ALL_JOINS)) as served, Driver(stage, served, tmp_path) as driver:
        driver.start("real_time")
        driver.settle(len(stage.sent))
        with Flow(stage, chance):
            at_random(chance, 0.5)
            driver.kill()
        driver.start("real_time")
        check_driver(stage, served, driver)


@pytest.mark.chaos
@pytest.mark.parametrize("mode", MODES)
def test_a_driver_killed_at_any_time_resumes(
    broker: Broker, server: ServerProcess, tmp_path: Path, chance: random.Random, mode: Mode
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    stage.send(random_records(chance, 100))
    with Served(server, stage.spec(ALL_JOINS)) as served, Driver(stage, served, tmp_path) as driver:
        for _ in range(3):
            before = served.count()
            with Flow(stage, chance):
                driver.start(mode)
                driver.settle(before + 1)
                at_random(chance, 2.0)
                driver.kill()
        driver.start(chance.choice(MODES))
        check_driver(stage, served, driver)


def numbers_in(directory: Path) -> set[int]:
    """The batches in a log of a checkpoint."""
    return {int(path.name) for path in directory.glob("*") if path.name.isdecimal()}


@pytest.mark.chaos
@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_a_driver_killed_at_a_boundary_of_real_time_resumes(
    broker: Broker,
    server: ServerProcess,
    tmp_path: Path,
    chance: random.Random,
    log: Literal["offsets", "commits"],
) -> None:
    """As the batch that ends is written to the log of offsets, before it is committed, and as it is committed."""
    stage = Stage.open(broker.bootstrap_servers)
    with Served(server, stage.spec(ALL_JOINS)) as served, Driver(stage, served, tmp_path) as driver:
        for _ in range(2):
            with Flow(stage, chance):
                driver.start("real_time", batch_seconds=BOUNDARY_SECONDS)
                before = numbers_in(driver.checkpoint / log)
                driver.settle(len(stage.sent))
                wait_until(lambda: bool(numbers_in(driver.checkpoint / log) - before), "a boundary", seconds=60)  # noqa: B023
                driver.kill()
        driver.start("real_time")
        check_driver(stage, served, driver)


@pytest.mark.chaos
@pytest.mark.parametrize("mode", MODES)
def test_a_driver_killed_right_after_a_change_of_mode_resumes(
    broker: Broker, server: ServerProcess, tmp_path: Path, chance: random.Random, mode: Mode
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    other: Mode = "micro_batch" if mode == "real_time" else "real_time"
    with Served(server, stage.spec(ALL_JOINS)) as served, Driver(stage, served, tmp_path) as driver:
        for _ in range(2):
            before = len(stage.sent)
            with Flow(stage, chance):
                driver.start(other)
                driver.settle(before + 1)
                starts = driver.logged("driver: started")
                driver.go_on(mode)
                driver.wait_for("the mode is changed", "driver: started", starts)
                at_random(chance, 1.0)
                driver.kill()
        driver.start(mode)
        check_driver(stage, served, driver)


# What it works with


@pytest.mark.chaos
@pytest.mark.parametrize("mode", MODES)
def test_a_server_killed_while_frames_come_has_everything_in_the_end(
    spark: SparkSession, broker: Broker, tmp_path: Path, chance: random.Random, mode: Mode
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    with (
        ServerProcess(tmp_path) as server,
        stage.engine(spark, server, ALL_JOINS, tmp_path / "checkpoint") as engine,
    ):
        engine.start(mode, max_records=60)
        with Flow(stage, chance):
            for _ in range(3):
                engine.settle(len(stage.sent))
                at_random(chance, 1.0)
                server.kill()
                server.start()
        check_engine(stage, engine)


def test_what_a_killed_server_had_only_shown_comes_back_although_no_other_record_comes(
    spark: SparkSession, broker: Broker, tmp_path: Path, chance: random.Random
) -> None:
    """It is killed as soon as a client sees the record, until that was before it was on disk."""
    stage = Stage.open(broker.bootstrap_servers)

    def killed_after_a_record(server: ServerProcess) -> None:
        with LiveClient(server.websocket) as client:
            client.subscribe(1, "users_ui")
            client.receive_type("snapshot")
            stage.send([("users", chance.randrange(2), 1_700_000_000_000, b'{"userId":"u"}')])
            client.receive_until(lambda _: client.windows[1].total == len(stage.sent), "record", 60)
            server.kill()

    with (
        ServerProcess(tmp_path) as server,
        stage.engine(spark, server, ["left"], tmp_path / "checkpoint") as engine,
    ):
        engine.publish()
        engine.start("real_time")
        lost = 0
        while lost < LOST_MIN:
            assert len(stage.sent) < TRIES_MAX, "it is always killed too late"
            killed_after_a_record(server)
            server.start()
            lost += engine.count() < len(stage.sent)
            engine.settle(len(stage.sent))
        assert stage.lasting_differences(engine, ["left"]) == {}


class Tended(Engine):
    """A query that is started again when it has died, as the orchestrator does it."""

    mode: Mode = "micro_batch"

    def check(self) -> None:
        if self.query is None or not self.query.isActive:
            self.start(self.mode)


@pytest.mark.chaos
@pytest.mark.parametrize("mode", MODES)
def test_a_broker_killed_while_records_come_loses_none(
    spark: SparkSession, server: ServerProcess, tmp_path: Path, chance: random.Random, mode: Mode
) -> None:
    with Broker(tmp_path / "broker") as broker:
        stage = Stage.open(broker.bootstrap_servers)
        spec = stage.spec(ALL_JOINS)
        with Tended(spark, server, spec, broker.bootstrap_servers, tmp_path / "checkpoint") as engine:
            engine.mode = mode
            for _ in range(2):
                stage.send(random_records(chance, 100))
                engine.settle(len(stage.sent) - 50)
                broker.kill()
                broker.start()
            stage.send(random_records(chance, 100))
            check_engine(stage, engine)


@pytest.mark.chaos
@pytest.mark.parametrize("mode", MODES)
def test_an_executor_killed_while_records_come_loses_none(
    broker: Broker, server: ServerProcess, tmp_path: Path, chance: random.Random, mode: Mode
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    stage.send(random_records(chance, 100))
    with (
        Served(server, stage.spec(ALL_JOINS)) as served,
        Driver(stage, served, tmp_path, master=CLUSTER) as driver,
    ):
        driver.start(mode)
        driver.settle(len(stage.sent))
        executors = driver.executors()
        assert len(executors) == 2
        with Flow(stage, chance):
            at_random(chance, 1.0)
            os.kill(chance.choice(executors), signal.SIGKILL)
        check_driver(stage, served, driver)

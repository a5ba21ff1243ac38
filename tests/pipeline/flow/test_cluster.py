"""Real time on a cluster: executors write to the server themselves, and one with too few slots says so."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from livetables.local.broker import Broker
from livetables.model.joins import JoinType
from tests.support.driver import Driver
from tests.support.pipeline import Served, Stage, random_records
from tests.support.server import ServerProcess
from tests.support.system import System

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.chaos]

ALL_JOINS: list[JoinType] = ["inner", "left", "natural", "asof"]
CLUSTER = "local-cluster[2,8,1024]"  # two real executor processes
SMALL_CLUSTER = "local-cluster[1,2,1024]"  # enough for micro-batches, of which tasks can wait for each other


def connected(processes: Iterable[int], port: int) -> set[int]:
    """Those processes that have a connection to a port."""
    sockets = {
        fields[9]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        if int((fields := line.split())[2].rpartition(":")[2], 16) == port
    }
    found = set()
    for process in processes:
        for file in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):  # it was closed meanwhile
                if str(file.readlink()).removeprefix("socket:[").removesuffix("]") in sockets:
                    found.add(process)
    return found


def test_a_cluster_gives_the_same_tables_in_real_time(broker: Broker, server: ServerProcess, tmp_path: Path) -> None:
    stage, chance = Stage.open(broker.bootstrap_servers), random.Random(1)
    stage.send(random_records(chance, 100))
    with (
        Served(server, stage.spec(ALL_JOINS)) as served,
        Driver(stage, served, tmp_path, master=CLUSTER) as driver,
    ):
        driver.start("real_time")
        driver.settle(len(stage.sent))
        stage.send(random_records(chance, 200))
        driver.settle(len(stage.sent))
        assert stage.differences(served, ALL_JOINS) == {}
        executors, port = driver.executors(), urlsplit(served.url).port
        assert port
        assert len(executors) == 2
        assert connected(executors, port)
        assert connected(driver.java() - set(executors), port) == set(), "nothing passes through the driver"
        driver.finish()
        assert stage.differences(served, ALL_JOINS) == {}


def test_a_cluster_with_too_few_slots_says_so(broker: Broker, tmp_path: Path) -> None:
    with System(tmp_path, broker, random.Random(1), {"LIVETABLES_PIPELINE_MASTER": SMALL_CLUSTER}) as system:
        system.start()
        system.wait(lambda: bool(system.pipeline.events("query_died")), "the query dies")
        cause = system.pipeline.events("query_died")[0]["cause"]
    assert f"{SMALL_CLUSTER} has too few slots" in cause
    assert "4 topic partitions and 2 shuffle partitions" in cause
    assert "give the cluster more cores" in cause

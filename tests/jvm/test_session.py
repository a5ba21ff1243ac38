"""What a Spark session is given, as far as it can be seen without starting one."""

from __future__ import annotations

import signal
import time

import pytest
from pyspark.sql import SparkSession

from livetables.jvm.session import SLOTS, session_settings, with_room


@pytest.mark.parametrize("master", ["local", "local[3]", "local[3, 2]", "local[*]"])
def test_on_one_machine_every_task_has_a_slot(master: str) -> None:
    assert with_room(master) == f"local[{SLOTS}]"


@pytest.mark.parametrize("master", ["local-cluster[2,8,1024]", "spark://host:7077", "yarn", "k8s://https://host"])
def test_a_cluster_has_the_slots_that_it_has(master: str) -> None:
    assert with_room(master) == master


def test_a_machine_with_other_cores_can_resume_a_checkpoint() -> None:
    partitions = {
        session_settings(master=master)["spark.sql.shuffle.partitions"]
        for master in ("local", "local[1]", "local[64]", "local[*]", "local-cluster[2,8,1024]")
    }
    assert len(partitions) == 1


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,8,1024]"])
def test_both_modes_can_share_a_checkpoint(master: str) -> None:
    settings = session_settings(master=master)
    assert settings["spark.sql.streaming.stateStore.checkpointFormatVersion"] == "2"
    assert "RocksDB" in settings["spark.sql.streaming.stateStore.providerClass"]


@pytest.mark.spark
def test_spark_listens_on_loopback_only(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_ctrl_c_stays_with_the_program() -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.spark
def test_the_machines_clock_does_not_decide_how_long_a_batch_in_real_time_lasts(spark: SparkSession) -> None:
    """What it would do is in the chaos runs, which set the clock of a JVM."""
    jvm = spark._jvm
    assert jvm is not None
    clock = jvm.org.apache.spark.sql.execution.datasources.v2.LowLatencyClock.getClock()
    assert clock.getClass().getSimpleName() == "SteadyClock"
    began, before = clock.getTimeMillis(), time.monotonic()
    assert abs(began / 1000 - time.time()) < 60, "it starts with the machine's"
    assert clock.waitTillTime(began + 50) >= began + 50
    assert time.monotonic() - before >= 0.049


@pytest.mark.spark
def test_a_slot_is_not_a_thread(spark: SparkSession) -> None:
    """Of those for the messages between driver and tasks: Spark would make one for each slot."""
    jvm = spark._jvm
    assert jvm is not None
    names = [thread.getName() for thread in jvm.java.lang.Thread.getAllStackTraces().keySet()]
    dispatchers = [name for name in names if name.startswith("dispatcher-event-loop")]
    assert 0 < len(dispatchers) <= 8, "threads that wait cost memory and none of them is of use"

"""What a Spark session is given, as far as it can be told without starting one."""

from __future__ import annotations

import os
import signal

import pytest
from pyspark.sql import SparkSession

from livetables.pipeline.session import OPTIMIZER_RULES, TASKS_A_CORE, cores_of, with_room


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3, 2]", 3),
        ("local[*]", os.cpu_count()),
        ("local-cluster[2,1,2048]", 2),
        ("local-cluster[2, 4, 2048]", 8),
        ("spark://host:7077", None),
    ],
)
def test_the_cores_of_a_master(master: str, cores: int | None) -> None:
    assert cores_of(master) == cores


def test_on_one_machine_there_is_room_for_the_tasks_of_several_generations() -> None:
    assert with_room("local") == f"local[{TASKS_A_CORE}]"
    assert with_room("local[3]") == f"local[{3 * TASKS_A_CORE}]"
    assert with_room("local-cluster[2,1,2048]") == "local-cluster[2,1,2048]"
    assert with_room("spark://host:7077") == "spark://host:7077"


@pytest.mark.spark
def test_spark_has_every_rule_that_a_plan_needs_and_runs_no_other(spark: SparkSession) -> None:
    optimizer = spark._jsparkSession.sessionState().optimizer()
    batches = optimizer.batches()
    kept = {
        rule.ruleName().rpartition(".")[2]
        for number in range(batches.size())
        for rule in [batches.apply(number).rules().apply(i) for i in range(batches.apply(number).rules().size())]
        if not optimizer.nonExcludableRules().contains(rule.ruleName())
    }
    assert kept == set(OPTIMIZER_RULES)


@pytest.mark.spark
def test_spark_listens_on_loopback_only(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_ctrl_c_stays_with_the_program() -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

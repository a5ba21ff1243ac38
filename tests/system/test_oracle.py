"""The whole pipeline, Kafka and Spark included, against the oracle: any records, in either mode, with any restarts."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from livetables.local.broker import Broker
from livetables.model.joins import JoinType
from livetables.pipeline.flow import plan
from livetables.pipeline.flow.modes import Mode
from tests.support.kafka import wait_until
from tests.support.oracle import Limit, Side
from tests.support.pipeline import Stage, random_records
from tests.support.server import ServerProcess

START_MS = 1_700_000_000_000
INT64 = st.one_of(st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1, 0, -1]), st.integers(-(2**63), 2**63 - 1))
# Few keys and few timestamps, so that records meet, repeat, tie and come late.
KEYS = st.sampled_from(["u1", "u2", "ü😀", "7", "true", "", None])
TEXTS = st.one_of(st.none(), st.text(max_size=8), st.sampled_from(["5", "{}", "[", "-", "false", '"', "}"]))
NEAR_TIMESTAMPS = st.integers(0, 4).map(lambda second: START_MS + 1000 * second)
# What Spark's Kafka source takes: beyond that a millisecond cannot be written as microseconds.
SPARK_MS_MAX = (2**63 - 1) // 1000
FAR_TIMESTAMPS = st.one_of(
    st.sampled_from(
        [
            -1,
            1,
            -62_135_596_800_000,  # the year 1
            -12_219_292_800_001,  # the last millisecond of the calendar before ours, and the first of ours
            -12_219_292_800_000,
            253_402_300_799_999,  # the last millisecond of 9999, and the next
            253_402_300_800_000,
            6_249_223_180_800_000,  # the year 200000
            SPARK_MS_MAX,
            -SPARK_MS_MAX,
        ]
    ),
    st.integers(-SPARK_MS_MAX, SPARK_MS_MAX).filter(bool),  # the client takes 0 as now
)
# Mostly few, so that records tie.
TIMESTAMPS = st.one_of(NEAR_TIMESTAMPS, NEAR_TIMESTAMPS, FAR_TIMESTAMPS)
BAD = st.sampled_from(
    [
        None,
        b"",
        b"  \n",
        b"{",
        b"nonsense",
        b"[]",
        b"null",
        b'"text"',
        b'{"userId":"u1"} {"userId":"u2"}',
        b'{"userId":"u1"}]}',
        b'{"userId":"u1"}}',
        b'{"userId":7}',
        b'{"userId":{"a":"b"}}',
        b'{"userId":"u1","age":"x","balance":"x"}',
        b'{"userId":"u1","age":9223372036854775808,"balance":1e999}',
        b'{"userId":"\xff\xfe"}',
        b"{'userId':'u1'}",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b'\xef\xbb\xbf{"userId":"u1"}',
        b'{"userId":"\xf0\x9f\x98"}',
        b'{"userId":"\xed\xa0\x80"}',
        b'{"userId":"u1"}\x00',
        '{"userId":"u1"}'.encode("utf-16"),
        '{"userId":"u1"}'.encode("utf-32-be"),
        b'{"userId":"u1","name":"\\ud800","email":"a\\udc00b"}',
        b'{"userId":"\\udfff"}',
        b'{"userId":"?"}',
    ]
)
BYTES = st.one_of(st.binary(max_size=16), st.binary(max_size=8).map(lambda value: b'{"userId":"' + value + b'"}'))


def json_record(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[bytes]:
    """Records with any subset of the fields, and sometimes a field that is no column."""
    optional: dict[str, st.SearchStrategy[Any]] = {**fields, "unknown": st.sampled_from([1, "x", {"userId": "u1"}])}
    return st.fixed_dictionaries({}, optional=optional).map(
        lambda record: json.dumps(record, ensure_ascii=False).encode("utf-8")
    )


USERS = json_record({"userId": KEYS, "name": TEXTS, "email": TEXTS, "age": st.one_of(st.none(), INT64)})
BALANCES = st.one_of(st.none(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False))
ACCOUNTS = json_record({"userId": KEYS, "accountType": TEXTS, "balance": BALANCES})


def records_of(side: Side, values: st.SearchStrategy[bytes]) -> st.SearchStrategy[tuple[Side, int, int, bytes | None]]:
    # Most values are drawn as rows; the rest is broken on purpose, or any bytes.
    value: st.SearchStrategy[bytes | None] = st.one_of(values, values, values, values, BAD, BYTES)
    return st.tuples(st.just(side), st.integers(0, 1), TIMESTAMPS, value)


RECORDS = st.one_of(records_of("users", USERS), records_of("accounts", ACCOUNTS))
MODES: list[Mode] = ["micro_batch", "real_time"]
STEPS = st.lists(st.one_of(st.lists(RECORDS, min_size=1, max_size=12), st.sampled_from(MODES)), min_size=1, max_size=5)


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.parametrize(
    "joins",
    [
        *(pytest.param([join], marks=pytest.mark.chaos) for join in ("inner", "left", "natural", "asof")),
        ["inner", "left", "natural", "asof"],
    ],
    ids=lambda joins: "+".join(joins),
)
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # shrinking would run Spark hundreds of times
)
@given(first=st.sampled_from(MODES), steps=STEPS)
def test_tables_are_what_plain_sql_over_all_records_says(
    spark: SparkSession, broker: Broker, server: ServerProcess, joins: Sequence[JoinType], first: Mode, steps: list[Any]
) -> None:
    """In either mode, with changes between them and restarts in the middle of what is read."""
    stage = Stage.open(broker.bootstrap_servers)
    with tempfile.TemporaryDirectory() as directory, stage.engine(spark, server, joins, Path(directory)) as engine:
        engine.start(first)
        for step in steps:
            if step in MODES:
                engine.start(step)
            else:
                stage.send(step)
        engine.settle(len(stage.sent))
        assert stage.lasting_differences(engine, joins) == {}


@pytest.mark.spark
@pytest.mark.kafka
def test_tables_with_limits_are_what_plain_sql_over_the_newest_records_says(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path
) -> None:
    """In both modes, with late records and with a restart; and the operator's state has these records alone."""
    joins: list[JoinType] = ["inner", "left", "natural", "asof"]
    stage = Stage.open(broker.bootstrap_servers)
    stage.limits = {"users": Limit(20, 40), "accounts": Limit(30, 30)}
    chance = random.Random(7)
    with patch.object(plan, "SWEEP_SECONDS", 1), stage.engine(spark, server, joins, tmp_path) as engine:
        for mode in MODES:  # the second one over what was trimmed
            stage.send(random_records(chance, 150))
            engine.start(mode)
            engine.settle(len(stage.sent))
            assert stage.lasting_differences(engine, joins) == {}
        engine.start("micro_batch")

        def is_trimmed() -> bool:
            late = json.dumps({"userId": f"late {len(stage.sent)}"}).encode()  # too old, and of no known key
            stage.send([("accounts", 0, START_MS - 1_000_000, late)])
            engine.finish()
            return [engine.records_in_state(table) for table in (0, 1)] == [20, 30]

        wait_until(is_trimmed, "the state has the records that are kept alone")
        assert stage.lasting_differences(engine, joins) == {}


@pytest.mark.spark
@pytest.mark.kafka
def test_old_records_leave_the_state_by_the_clock_of_real_time(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path
) -> None:
    """While the machine's clock is a day ahead of it, as if somebody had set that one."""
    jvm = spark._jvm
    assert jvm is not None
    time = jvm.org.apache.spark.sql.execution.datasources.v2.LowLatencyClock
    before = time.getClock()
    clock = jvm.org.apache.spark.util.ManualClock(before.getTimeMillis() - 24 * 3600 * 1000)
    stage = Stage.open(broker.bootstrap_servers)
    stage.limits = {"accounts": Limit(5, 3600)}
    with patch.object(plan, "SWEEP_SECONDS", 1), stage.engine(spark, server, ["inner"], tmp_path) as engine:
        time.setClock(clock)
        try:
            stage.send(random_records(random.Random(7), 100))
            engine.start("real_time", batch_seconds=5)
            engine.settle(len(stage.sent))

            def is_trimmed() -> bool:
                clock.advance(6000)  # a batch ends, and with it what the state has can be read
                return engine.has_commits() and engine.records_in_state(1) == 5

            wait_until(is_trimmed, "the state has the records that are kept alone")
        finally:
            time.setClock(before)
        assert stage.lasting_differences(engine, ["inner"]) == {}

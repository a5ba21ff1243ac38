"""The whole pipeline, Kafka and Spark included, against the oracle: any records, in any batches, with any restarts."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from livetables.spec import JoinType
from livetables.up.broker import Broker
from tests.support.oracle import Side
from tests.support.pipeline import CheckingSink, Stage

RESTART = "restart"
START_MS = 1_700_000_000_000
INT64 = st.one_of(st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1, 0, -1]), st.integers(-(2**63), 2**63 - 1))
# Few keys and few timestamps, so that records meet, repeat, tie and come late.
KEYS = st.sampled_from(["u1", "u2", "ü😀", "7", "true", "", None])
TEXTS = st.one_of(st.none(), st.text(max_size=8), st.sampled_from(["5", "{}", "[", "-", "false", '"', "}"]))
TIMESTAMPS = st.integers(0, 4).map(lambda second: START_MS + 1000 * second)
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
    ]
)


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
    # Three of four values are drawn as rows; the rest is broken on purpose.
    value: st.SearchStrategy[bytes | None] = st.one_of(values, values, values, BAD)
    return st.tuples(st.just(side), st.integers(0, 1), TIMESTAMPS, value)


RECORDS = st.one_of(records_of("users", USERS), records_of("accounts", ACCOUNTS))
STEPS = st.lists(st.one_of(st.lists(RECORDS, min_size=1, max_size=12), st.just(RESTART)), min_size=1, max_size=5)


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
@given(steps=STEPS)
def test_tables_are_what_plain_sql_over_all_records_says(
    spark: SparkSession, broker: Broker, joins: Sequence[JoinType], steps: list[Any]
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    sink = CheckingSink()
    with tempfile.TemporaryDirectory() as directory:
        query = stage.start(spark, joins, Path(directory), sink)
        try:
            for step in steps:
                if step == RESTART:
                    query.stop()
                    query = stage.start(spark, joins, Path(directory), sink)
                else:
                    stage.send(step)
                    query.processAllAvailable()
        finally:
            query.stop()
    assert stage.differences(sink, joins) == {}

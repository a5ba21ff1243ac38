"""Tables and views beyond the preset: other names, key types, several keys, or none, all in one query."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from livetables.config.load import load_config
from livetables.local.broker import Broker
from livetables.model.spec import GenerationSpec
from livetables.pipeline.flow.modes import Mode
from tests.support.kafka import Record, create_topic, produce, unique_topic
from tests.support.pipeline import Engine
from tests.support.server import ServerProcess

CONFIG = """
presets = []
tables.orders = {{ topic = "{orders}", columns = {{ orderId = "int64", customer = "string", note = "string" }} }}
tables.customers = {{ topic = "{customers}", columns = {{ customer = "string", note = "string", vip = "bool" }} }}
tables.payments = {{ topic = "{payments}", columns = {{ orderId = "int64", amount = "double" }} }}
tables.audit = {{ topic = "{audit}", publish = "audit", columns = {{ line = "string" }} }}
views.order_customer = {{ join = "natural", left = "orders", right = "customers", on = "customer" }}
views.order_payment = {{ join = "left", left = "orders", right = "payments", on = "orderId" }}
views.payment_order = {{ join = "aj", left = "orders", right = "payments", on = "orderId" }}
"""
RECORDS = {
    "orders": ['{"orderId":1,"customer":"a","note":"first"}', '{"orderId":2,"customer":"b"}', '{"orderId":3}'],
    "customers": ['{"customer":"a","note":"old","vip":false}', '{"customer":"a","note":"new","vip":true}'],
    "payments": ['{"orderId":1,"amount":1.5}', '{"orderId":1,"amount":2.5}', '{"orderId":9,"amount":3.5}'],
    "audit": ['{"line":"x"}', "broken"],
}


pytestmark = [pytest.mark.spark, pytest.mark.kafka]

Topics = dict[str, str]  # by table


@pytest.fixture
def topics(broker: Broker) -> Topics:
    found = {table: unique_topic(table) for table in RECORDS}
    for topic in found.values():
        create_topic(broker.bootstrap_servers, topic)
    return found


@pytest.fixture
def spec(tmp_path: Path, topics: Topics) -> GenerationSpec:
    file = tmp_path / "livetables.toml"
    file.write_text(CONFIG.format(**topics))
    return load_config(file, {}).spec


def test_several_views_on_several_keys_move_in_one_query(
    spark: SparkSession, broker: Broker, server: ServerProcess, topics: Topics, spec: GenerationSpec, tmp_path: Path
) -> None:
    with Engine(spark, server, spec, broker.bootstrap_servers, tmp_path / "checkpoint") as engine:
        engine.start("micro_batch")
        for table, values in RECORDS.items():
            records = [Record(topics[table], 0, value.encode(), 1000 + n) for n, value in enumerate(values)]
            produce(broker.bootstrap_servers, records)
            engine.finish()

        def found(table: str, *columns: str) -> set[tuple[object, ...]]:
            return {tuple(row[column] for column in columns) for row in engine.rows(table)}

        assert found("order_customer", "orderId", "customer", "note", "customers_note", "vip") == {
            (1, "a", "first", "new", True),
            (2, "b", None, None, None),
            (3, None, None, None, None),
        }
        assert found("order_payment", "orderId", "customer", "amount") == {
            (1, "a", 1.5),
            (1, "a", 2.5),
            (2, "b", None),
            (3, None, None),
        }
        assert found("payment_order", "orderId", "customer", "amount") == {(1, "a", 1.5), (1, "a", 2.5), (9, None, 3.5)}
        assert found("audit", "line") == {("x",)}
        assert found("dead_letters", "source", "raw") == {("audit", "broken")}


@pytest.mark.parametrize("mode", ["micro_batch", "real_time"])
def test_a_table_that_no_view_joins_has_every_record_once_beside_those_that_are_joined(
    spark: SparkSession,
    broker: Broker,
    server: ServerProcess,
    topics: Topics,
    spec: GenerationSpec,
    tmp_path: Path,
    mode: Mode,
) -> None:
    """Rows and dead letters, also when they are read again; and how far it is read is known while it is."""
    lines = [f"line {number}" for number in range(40)]
    values = [f'{{"line":"{line}"}}' if number % 8 else line for number, line in enumerate(lines)]
    audit = [Record(topics["audit"], number % 2, value.encode(), 1000) for number, value in enumerate(values)]
    orders = [Record(topics["orders"], 0, b'{"orderId":%d}' % number, 1000) for number in range(20)]
    with Engine(spark, server, spec, broker.bootstrap_servers, tmp_path / "checkpoint") as engine:
        engine.start("real_time")
        produce(broker.bootstrap_servers, [*audit[:20], *orders[:10]])
        engine.settle(30)
        engine.stop()  # before the first boundary: all of it is read again
        produce(broker.bootstrap_servers, [*audit[20:], *orders[10:]])
        engine.start(mode)
        engine.settle(60)
        engine.start("micro_batch")
        engine.finish()
        assert sorted(row["line"] for row in engine.rows("audit")) == sorted(set(lines) - set(lines[::8]))
        assert sorted(row["raw"] for row in engine.rows("dead_letters")) == sorted(lines[::8])
        assert sorted(row["orderId"] for row in engine.rows("order_customer")) == list(range(20))
        assert engine.positions()["audit"] == {0: 20, 1: 20}

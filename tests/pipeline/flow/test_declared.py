"""Tables and views beyond the preset: other names, key types and several keys, all in one query."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from livetables.config.load import load_config
from livetables.local.broker import Broker
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


@pytest.mark.spark
@pytest.mark.kafka
def test_several_views_on_several_keys_move_in_one_query(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path
) -> None:
    topics = {table: unique_topic(table) for table in RECORDS}
    for topic in topics.values():
        create_topic(broker.bootstrap_servers, topic)
    file = tmp_path / "livetables.toml"
    file.write_text(CONFIG.format(**topics))
    spec = load_config(file, {}).spec
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

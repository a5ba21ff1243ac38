"""docs/TUTORIAL.md, followed literally on a Kafka with topics of a shop."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from livetables.local.broker import Broker
from tests.docs.test_pages import ELSEWHERE
from tests.support.kafka import Record, create_topic, produce
from tests.support.pages import ROOT, Reader, blocks
from tests.support.up import clean_environment

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.chaos]

NOON_MS = 1_769_860_800_000
CITIES = ("Lisbon", "Oslo", "Quito")
SETTINGS = {
    "LIVETABLES_SERVER_PORT": "0",
    "LIVETABLES_SERVER_FLIGHT_PORT": "0",
    "LIVETABLES_PIPELINE_MASTER": "local[2]",
    "LIVETABLES_PIPELINE_DRIVER_MEMORY_MEGABYTES": "1024",
    "LIVETABLES_GENERATIONS_KEEP_GENERATIONS": "1",  # a busy machine may take longer than a rollback has time
}


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    """A Kafka with a shop's topics; its address."""
    with Broker() as broker:
        for topic in ("shop.orders", "shop.orders_v2", "shop.customers"):
            create_topic(broker.bootstrap_servers, topic)
        orders = [
            {"orderId": f"o-{number}", "customer": f"c-{number % 10}", "total": number * 1.5} for number in range(200)
        ]
        customers = [
            {"customer": f"c-{number}", "city": CITIES[number % 3], "since": 2000 + number} for number in range(10)
        ]
        produce(
            broker.bootstrap_servers,
            [
                Record(topic, number % 2, json.dumps(record).encode(), NOON_MS + number)
                for topic, records in (
                    ("shop.orders", orders),
                    ("shop.orders_v2", orders[:50]),
                    ("shop.customers", customers),
                )
                for number, record in enumerate(records)
            ],
        )
        yield broker.bootstrap_servers


def test_the_tutorial_can_be_followed(shop: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = clean_environment(**SETTINGS, PATH=path, KAFKA=shop)
    outputs: dict[str, str] = {}
    with Reader(tmp_path, environment, replaced={"export KAFKA=localhost:9092": "true"}) as reader:
        for block in blocks(ROOT / "docs" / "TUTORIAL.md"):
            if block.language == "python" or (block.language == "sh" and block.commands[0] not in ELSEWHERE):
                outputs[block.text] = reader.follow(block)

    def output_of(part: str) -> str:
        (found,) = (output for text, output in outputs.items() if part in text)
        return found

    assert 'topic = "shop.orders"' in (tmp_path / "shop.toml").read_text()
    assert "✗" not in output_of("livetables doctor")
    assert "Lisbon\t80\t" in output_of("livetables sql")
    assert "Lisbon" in output_of("to_pandas")
    assert [line.partition(":")[0] for line in output_of("--rollback").splitlines()] == ["applied"] * 3
    assert (tmp_path / "terminal-2.log").read_text().count("\to-") >= 10

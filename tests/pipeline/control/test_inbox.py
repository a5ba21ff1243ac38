"""The history of the control topic is in one order, however many reads it takes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from pyspark.sql import SparkSession

from livetables.kafka.topics import ControlRecord, ControlTopic
from livetables.local.broker import Broker
from livetables.pipeline.control.inbox import Inbox
from tests.support.kafka import unique_topic

BEGIN = datetime(2026, 1, 31, tzinfo=UTC)


class ReadInPieces:
    """A control topic whose history comes in given pieces: when Kafka answers with how much cannot be provoked."""

    def __init__(self, *reads: list[ControlRecord]) -> None:
        self._reads = list(reads)

    def create_if_missing(self) -> None:
        pass

    def rewind(self) -> None:
        pass

    def is_at_end(self) -> bool:
        return not self._reads

    def read(self, _: float) -> list[ControlRecord]:
        return self._reads.pop(0)


def record(partition: int, offset: int, seconds: int) -> ControlRecord:
    return ControlRecord(partition, offset, BEGIN + timedelta(seconds=seconds), None)


def test_the_history_is_in_the_same_order_whatever_the_reads() -> None:
    ahead, after, other = record(0, 0, 3600), record(0, 1, 5), record(1, 0, 1)
    for reads in ([[other, ahead, after]], [[ahead], [other, after]], [[ahead, after], [other]]):
        inbox = Inbox(cast(ControlTopic, ReadInPieces(*reads)))
        assert inbox.history() == [other, ahead, after]


@pytest.mark.kafka
@pytest.mark.spark
def test_a_start_that_has_to_be_tried_again_finds_the_whole_history_again(spark: SparkSession, broker: Broker) -> None:
    with ControlTopic(spark, {"bootstrap.servers": broker.bootstrap_servers}, unique_topic("control")) as topic:
        inbox = Inbox(topic)
        assert inbox.history() == []
        for join in ("inner", "asof"):
            topic.send({"joinType": join})
        first = inbox.history()
        assert [each.value for each in first] == [b'{"joinType": "inner"}', b'{"joinType": "asof"}']
        assert inbox.history() == first
        assert topic.read(0) == [], "what comes after it is read once"

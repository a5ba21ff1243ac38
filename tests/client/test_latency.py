"""Latencies by phase, of a receipt and of all of the last minute."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livetables.client import latency
from livetables.client.latency import LastMinute, Percentiles, Receipt


def receipt(whole: float) -> Receipt:
    """One that took so long, all of it in Spark."""
    return Receipt(1_000.0, 1_000 + whole, 1_000 + whole, 1_000 + whole, 1_000 + whole)


def test_the_phases_of_a_receipt_make_up_its_latency() -> None:
    one = Receipt(kafka=1_000, spark=1_014, applied=1_016.5, sent=1_017, received=1_028)
    assert one.phases_ms == {
        "kafka_to_spark": 14,
        "spark_to_applied": 2.5,
        "applied_to_sent": 0.5,
        "sent_to_received": 11,
    }
    assert one.latency_ms == sum(one.phases_ms.values()) == 28


@given(st.lists(st.integers(0, 50), min_size=1, max_size=250))
def test_a_percentile_is_the_least_value_that_so_many_are_not_above(values: list[int]) -> None:
    found = Percentiles.of(values)
    for percentile, percent in ((found.p50, 50), (found.p99, 99)):
        needed = math.ceil(len(values) * percent / 100)
        assert percentile == min(each for each in values if sum(other <= each for other in values) >= needed)


def test_what_is_older_than_a_minute_counts_no_more() -> None:
    last = LastMinute()
    assert last.summary(0.0) is None
    last.add(receipt(500), 0.0)
    for second in range(1, 4):
        last.add(receipt(10 * second), float(second))
    first = last.summary(59.9)
    assert first is not None
    assert (first.changes, first.whole) == (4, Percentiles(20, 500))
    assert first.phases["kafka_to_spark"] == first.whole
    assert first.phases["sent_to_received"] == Percentiles(0, 0)
    later = last.summary(60.5)
    assert later is not None
    assert (later.changes, later.whole) == (3, Percentiles(20, 30))
    assert last.summary(63.0) is None


def test_the_oldest_go_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "RECEIPTS_MAX", 10)
    last = LastMinute()
    for number in range(25):
        last.add(receipt(number), 1.0)
    found = last.summary(1.0)
    assert found is not None
    assert (found.changes, found.whole) == (10, Percentiles(19, 24))

"""Demo records end, and go on where an earlier run left off."""

from __future__ import annotations

from itertools import islice

import pytest

from livetables.demo import feed as demo
from livetables.demo.feed import AT_FULL_RATE, AT_ONCE, DemoData, pause_seconds
from livetables.demo.records import DemoOptions, demo_records
from livetables.local.broker import Broker
from tests.local.test_broker import read_all
from tests.support.kafka import end_offsets, unique_topic, wait_until

RECORDS = 60


def test_the_first_records_come_at_once_then_at_the_rate_and_at_last_slowly() -> None:
    assert pause_seconds(AT_ONCE - 1, rate=200) == 0
    assert pause_seconds(AT_ONCE, rate=200) == 1 / 200
    assert pause_seconds(AT_FULL_RATE, rate=200) == 1
    assert pause_seconds(AT_FULL_RATE, rate=0.1) == 10


@pytest.mark.kafka
def test_a_second_run_sends_exactly_what_the_first_did_not(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    first = DemoOptions(unique_topic("user"), unique_topic("account"), users=10)
    second = DemoOptions(unique_topic("user"), unique_topic("account"), users=2, accounts=3)
    for name, value in {"FIRST": first, "SECOND": second, "AT_ONCE": RECORDS // 3, "LAST": RECORDS}.items():
        monkeypatch.setattr(demo, name, value)

    def sent() -> int:
        topics = (first.users_topic, first.accounts_topic)
        return sum(sum(end_offsets(broker.bootstrap_servers, topic).values()) for topic in topics)

    slow = DemoData(broker.bootstrap_servers, rate=1)
    wait_until(lambda: sent() >= RECORDS // 3, "the first records are there")
    slow.close()
    assert sent() < RECORDS
    quick = DemoData(broker.bootstrap_servers, rate=1000)
    wait_until(lambda: sent() >= RECORDS, "all records are there")
    quick.close()

    values = [record.value for record in islice(demo_records(first), RECORDS)]
    found = [
        *read_all(broker.bootstrap_servers, first.users_topic),
        *read_all(broker.bootstrap_servers, first.accounts_topic),
    ]
    assert sorted(found) == sorted(value for value in values if value is not None)
    assert sum(end_offsets(broker.bootstrap_servers, second.accounts_topic).values()) >= 3

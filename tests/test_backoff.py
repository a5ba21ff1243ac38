"""How long to wait before something is tried again."""

from __future__ import annotations

from itertools import islice

import pytest

from livetables.backoff import FIRST_SECONDS, delay_seconds, delays


def test_each_wait_is_twice_the_one_before_up_to_the_limit() -> None:
    assert [delay_seconds(tries, 1.0, 30.0) for tries in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]


@pytest.mark.parametrize("tries", [1_025, 10_000, 10**9])
def test_the_wait_has_its_limit_however_often_something_was_tried(tries: int) -> None:
    assert delay_seconds(tries, 1.0, 60.0) == 60.0


def test_delays_differ_but_stay_between_half_of_the_wait_and_the_whole() -> None:
    waits = [delay_seconds(tries, FIRST_SECONDS, 5.0) for tries in range(1, 2_001)]
    found = list(islice(delays(5.0), len(waits)))
    assert all(wait / 2 <= delay <= wait for wait, delay in zip(waits, found, strict=True))
    assert len(set(found)) > 1

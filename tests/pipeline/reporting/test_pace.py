"""The sentence about how a generation keeps up: rates, and an estimate that is right when rates stay as they are."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livetables.pipeline.reporting.pace import BEHIND_RECORDS, KNOWN_SECONDS, WINDOW_SECONDS, Pace, duration


def paced(seconds: int, lag: int, sent_per_second: int, read_per_second: int) -> Pace:
    """What is known after some seconds at these rates, with this lag at the end."""
    pace = Pace()
    for second in range(seconds + 1):
        lag_then = lag - (sent_per_second - read_per_second) * (second - seconds) * -1
        pace.note(1000.0 + second, lag_then, 50_000_000 + sent_per_second * second)
    return pace


def test_a_small_lag_is_up_to_date() -> None:
    assert paced(10, BEHIND_RECORDS - 1, 100, 100).sentence() == "up to date"


def test_an_estimate_waits_until_the_rates_are_known() -> None:
    assert paced(int(KNOWN_SECONDS) - 1, 50_000, 100, 5_100).sentence() == "50,000 records behind"


def test_a_backlog_that_shrinks_says_when_it_is_read() -> None:
    assert paced(10, 50_000, 100, 5_100).sentence() == (
        "50,000 records behind: reads 5,100 records a second, 100 arrive; caught up in about 10 s"
    )


def test_a_backlog_that_grows_is_an_overload_and_says_how_long_it_would_take() -> None:
    assert paced(10, 1_200_000, 50_000, 10_000).sentence() == (
        "overloaded, 1,200,000 records behind: reads 10,000 records a second, 50,000 arrive; "
        "caught up about 2 min after the last record, if no more arrive"
    )


def test_nothing_is_estimated_while_nothing_is_read() -> None:
    assert paced(10, 60_000, 1_000, 0).sentence() == "60,000 records behind: reads 0 records a second, 1,000 arrive"


def test_what_was_long_ago_does_not_count() -> None:
    pace = paced(60, 80_000, 0, 0)
    for second in range(int(WINDOW_SECONDS) + 1):
        pace.note(1061.0 + second, 80_000 - second * 1_000, 50_000_000)
    assert pace.sentence() == "20,000 records behind: reads 1,000 records a second, 0 arrive; caught up in about 20 s"


@given(st.integers(BEHIND_RECORDS, 10**9), st.integers(0, 10**6), st.integers(1, 10**6))
def test_an_estimate_is_what_it_will_take(lag: int, sent_per_second: int, shrinks_per_second: int) -> None:
    sentence = paced(20, lag, sent_per_second, sent_per_second + shrinks_per_second).sentence()
    assert sentence.endswith(f"caught up in about {duration(lag / shrinks_per_second)}")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (99, "99 s"), (100, "2 min"), (5999, "100 min"), (7200, "2 h")]
)
def test_a_duration_is_as_exact_as_people_need_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text
    assert re.fullmatch(r"\d+ (s|min|h)", text)

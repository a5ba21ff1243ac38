"""When a generation reads in micro-batches and when in real time, and how long a batch in real time lasts."""

from __future__ import annotations

import pytest

from livetables.pipeline.flow.modes import (
    BATCH_SECONDS_MIN,
    LAG_LARGE,
    LAG_SECONDS_LARGE,
    LAG_SECONDS_SMALL,
    LAG_SMALL,
    PATIENCE_SECONDS,
    REPLAY_RECORDS_MAX,
    REST_SECONDS,
    REST_SECONDS_MAX,
    ModeChoice,
    batch_seconds,
)

MANY = 10 * LAG_LARGE


def in_real_time(now: float = 0.0) -> ModeChoice:
    choice = ModeChoice()
    assert choice.next(now, 0, 0.0) == "real_time"
    return choice


def overrun(choice: ModeChoice, now: float) -> float:
    """Have real time fall behind for as long as it may, and return when micro-batches took over."""
    assert choice.next(now, MANY, 0.0) == "real_time"
    assert choice.next(now + PATIENCE_SECONDS, MANY, 0.0) == "micro_batch"
    return now + PATIENCE_SECONDS


def rest_after(choice: ModeChoice, now: float) -> int:
    """How many whole seconds micro-batches stay, without any lag."""
    seconds = 0
    while choice.next(now + seconds, 0, 0.0) == "micro_batch":
        seconds += 1
    return seconds


def test_a_generation_starts_in_micro_batches() -> None:
    assert ModeChoice().mode == "micro_batch"


@pytest.mark.parametrize(("lag", "mode"), [(LAG_SMALL, "real_time"), (LAG_SMALL + 1, "micro_batch")])
def test_a_backlog_is_read_in_micro_batches_until_it_is_small(lag: int, mode: str) -> None:
    assert ModeChoice().next(0.0, lag, 0.0) == mode


def test_more_partitions_than_real_time_can_follow_are_read_in_micro_batches() -> None:
    choice = ModeChoice(partitions_max=400)
    assert choice.next(0.0, 0, 0.0, partitions=400) == "real_time"
    assert choice.next(1.0, 0, 0.0, partitions=401) == "micro_batch", "some were added"
    assert choice.next(2.0, 0, 0.0, partitions=401) == "micro_batch"
    assert (choice.at_end(400), choice.at_end(401)) == ("real_time", "micro_batch")
    assert ModeChoice().next(0.0, 0, 0.0, partitions=100_000) == "real_time", "a cluster may have room for them"


def test_a_lag_of_a_moment_is_small_however_many_records_come() -> None:
    rate = 10.0 * LAG_SMALL
    assert ModeChoice().next(0.0, int(LAG_SECONDS_SMALL * rate), rate) == "real_time"


def test_a_lag_between_small_and_large_changes_no_mode() -> None:
    choice = ModeChoice()
    lag = (LAG_SMALL + LAG_LARGE) // 2
    assert {choice.next(float(now), lag, 0.0) for now in range(100)} == {"micro_batch"}
    choice = in_real_time()
    assert {choice.next(float(now), lag, 0.0) for now in range(100)} == {"real_time"}


def test_a_large_lag_is_waited_for_before_real_time_is_left() -> None:
    choice = in_real_time()
    assert choice.next(1.0, MANY, 0.0) == "real_time"
    assert choice.next(1.0 + PATIENCE_SECONDS * 0.9, MANY, 0.0) == "real_time"
    assert choice.next(1.0 + PATIENCE_SECONDS, MANY, 0.0) == "micro_batch"


def test_a_peak_that_passes_starts_the_wait_anew() -> None:
    choice = in_real_time()
    choice.next(1.0, MANY, 0.0)
    choice.next(2.0, 0, 0.0)
    assert choice.next(1.0 + PATIENCE_SECONDS, MANY, 0.0) == "real_time"


def test_a_lag_that_is_large_only_because_many_records_come_keeps_real_time() -> None:
    rate = 10.0 * LAG_LARGE
    choice = in_real_time()
    assert {choice.next(float(now), int(LAG_SECONDS_LARGE * rate), rate) for now in range(100)} == {"real_time"}


def test_real_time_that_was_left_to_report_its_progress_does_not_rest() -> None:
    choice = in_real_time()
    choice.leave_real_time()
    assert choice.mode == "micro_batch"
    assert choice.next(1.0, LAG_SMALL, 0.0) == "real_time"


def test_after_it_could_not_keep_up_real_time_rests() -> None:
    choice = in_real_time()
    left = overrun(choice, 100.0)
    assert rest_after(choice, left) == REST_SECONDS


def test_each_rest_in_a_row_is_longer_up_to_the_longest() -> None:
    choice = in_real_time()
    now, rests = 100.0, []
    for _ in range(7):
        now = overrun(choice, now)
        rests.append(rest_after(choice, now))
        now += rests[-1] + 1
    assert rests == sorted(rests)
    assert rests[:3] == [REST_SECONDS, 2 * REST_SECONDS, 4 * REST_SECONDS]
    assert rests[-1] == REST_SECONDS_MAX


def test_after_a_long_time_without_trouble_a_rest_is_short_again() -> None:
    choice = in_real_time()
    now = 100.0
    for _ in range(4):
        now = overrun(choice, now)
        now += rest_after(choice, now) + 1
    now = overrun(choice, now + 100 * REST_SECONDS_MAX)
    assert rest_after(choice, now) == REST_SECONDS


def test_a_batch_is_as_long_as_configured_while_a_crash_reads_few_records_again() -> None:
    assert batch_seconds(300, 0.0) == 300
    assert batch_seconds(300, REPLAY_RECORDS_MAX / 300) == 300


@pytest.mark.parametrize("records_per_second", [REPLAY_RECORDS_MAX / 299, 20_000.0, REPLAY_RECORDS_MAX / 11])
def test_a_batch_is_shorter_where_a_crash_would_read_too_many_records_again(records_per_second: float) -> None:
    seconds = batch_seconds(300, records_per_second)
    assert seconds < 300
    assert seconds * records_per_second <= REPLAY_RECORDS_MAX < (seconds + 1) * records_per_second


@pytest.mark.parametrize(("most", "least"), [(300, BATCH_SECONDS_MIN), (5, 5)])
def test_a_batch_is_never_so_short_that_boundaries_are_all_there_is(most: int, least: int) -> None:
    assert batch_seconds(most, 1e9) == least

"""One state for the pipeline's condition, with its cause in a sentence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from livetables.model.wire import SourceReport
from livetables.server.health.freshness import (
    CATCHING_UP_RECORDS,
    DOWN_AFTER_SECONDS,
    IDLE_AFTER_SECONDS,
    Freshness,
    Moment,
    SourceStatus,
    State,
)


def after(seconds: float, *, clock_set_by: float = 0.0) -> Moment:
    """So many seconds after noon; the clock may have been set meanwhile."""
    return Moment(NOON + timedelta(seconds=seconds + clock_set_by), 1000.0 + seconds)


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOW = after(0)
A_MOMENT_SECONDS = 2.0**-10
LONG_AGO = after(-IDLE_AFTER_SECONDS - A_MOMENT_SECONDS)
FRESH = Freshness(started=NOW)
USERS = SourceReport("users_ui", "users", 0)
ACCOUNTS = SourceReport("accounts_ui", "accounts", 0)
BEHIND = SourceReport("accounts_ui", "accounts", CATCHING_UP_RECORDS)


def state_of(freshness: Freshness, now: Moment = NOW, live: tuple[str, ...] = ("g1",)) -> State:
    return freshness.status(now, live, {}).state


@pytest.mark.parametrize(
    ("reports", "state"),
    [
        ([USERS], "live"),
        ([], "live"),
        ([USERS, BEHIND], "catching_up"),
        ([SourceReport("a", "t", CATCHING_UP_RECORDS - 1)], "live"),
    ],
)
def test_the_lag_of_what_is_live_decides(reports: list[SourceReport], state: State) -> None:
    assert state_of(FRESH.reported(NOW, "g1", reports)) == state


@pytest.mark.parametrize(
    ("users_came", "accounts_came", "state"),
    [
        (LONG_AGO, LONG_AGO, "idle"),
        (LONG_AGO, NOW, "live"),
        (after(-IDLE_AFTER_SECONDS), LONG_AGO, "live"),
    ],
)
def test_idle_is_when_no_table_got_rows_for_a_while(users_came: Moment, accounts_came: Moment, state: State) -> None:
    freshness = FRESH.arrived(users_came, ["users_ui"]).arrived(accounts_came, ["accounts_ui"])
    assert state_of(freshness.reported(NOW, "g1", [USERS, ACCOUNTS])) == state


def test_a_server_that_just_started_is_not_idle() -> None:
    later = after(IDLE_AFTER_SECONDS)
    assert state_of(FRESH.reported(later, "g1", [USERS]), later) == "live"
    later = after(IDLE_AFTER_SECONDS + A_MOMENT_SECONDS)
    assert state_of(FRESH.reported(later, "g1", [USERS]), later) == "idle"


def test_catching_up_counts_more_than_idle() -> None:
    freshness = FRESH.arrived(LONG_AGO, ["accounts_ui"]).reported(NOW, "g1", [BEHIND])
    assert state_of(freshness) == "catching_up"


def test_a_pipeline_never_heard_is_down() -> None:
    status = FRESH.status(NOW, [], {})
    assert (status.state, status.pipeline_seen, status.sources) == ("pipeline_down", None, ())
    assert "has not been heard yet" in status.message


def test_a_pipeline_is_down_when_it_was_silent_for_too_long() -> None:
    freshness = FRESH.reported(NOW, "g1", [USERS])
    assert state_of(freshness, after(DOWN_AFTER_SECONDS)) == "live"
    status = freshness.status(after(DOWN_AFTER_SECONDS + A_MOMENT_SECONDS), ["g1"], {})
    assert (status.state, status.pipeline_seen) == ("pipeline_down", NOON)
    assert "2026-01-31 12:00:00 UTC" in status.message


def test_rows_are_no_sign_of_life() -> None:
    assert state_of(FRESH.arrived(NOW, ["users_ui"])) == "pipeline_down"


def test_any_sign_of_life_counts_and_forgets_no_reports() -> None:
    later = after(20)
    status = FRESH.reported(NOW, "g1", [USERS]).heard(later).status(later, ["g1"], {})
    assert (status.state, status.pipeline_seen) == ("live", later.time)
    assert status.sources == (SourceStatus(table="users_ui", topic="users", lag_records=0, newest=None),)


def test_a_source_has_the_latest_event_time_of_its_table() -> None:
    status = FRESH.reported(NOW, "g1", [USERS, ACCOUNTS]).status(NOW, ["g1"], {"users_ui": LONG_AGO.time, "user": NOON})
    assert status.sources == (
        SourceStatus(table="users_ui", topic="users", lag_records=0, newest=LONG_AGO.time),
        SourceStatus(table="accounts_ui", topic="accounts", lag_records=0, newest=None),
    )


def test_a_first_generation_is_being_built() -> None:
    status = FRESH.reported(NOW, "g1", [BEHIND]).status(NOW, [], {})
    assert (status.state, status.sources) == ("starting", ())
    assert "being built" in status.message


def test_a_generation_that_is_not_live_does_not_count() -> None:
    freshness = FRESH.reported(NOW, "g1", [USERS]).reported(NOW, "g2", [BEHIND])
    assert state_of(freshness) == "live"
    assert state_of(freshness, live=("g1", "g2")) == "catching_up"


def test_a_problem_of_what_is_live_is_shown_as_it_is() -> None:
    status = FRESH.reported(NOW, "g1", [USERS, BEHIND], "topic accounts was deleted").status(NOW, ["g1"], {})
    assert (status.state, status.message) == ("failed", "topic accounts was deleted")
    assert [source.topic for source in status.sources] == ["users", "accounts"]


def test_problems_of_two_generations_are_both_shown() -> None:
    freshness = FRESH.reported(NOW, "g1", [], "one fails").reported(NOW, "g2", [], "so does the other")
    assert freshness.status(NOW, ["g1", "g2"], {}).message == "one fails; so does the other"


def test_a_problem_of_what_is_not_live_does_not_count() -> None:
    freshness = FRESH.reported(NOW, "g1", [USERS]).reported(NOW, "g2", [USERS], "its query fails")
    assert state_of(freshness) == "live"
    assert state_of(freshness, live=()) == "starting"


def test_a_pipeline_that_is_down_counts_more_than_what_it_said() -> None:
    freshness = FRESH.reported(NOW, "g1", [USERS], "its query fails")
    assert state_of(freshness, after(DOWN_AFTER_SECONDS + A_MOMENT_SECONDS)) == "pipeline_down"


def test_a_report_without_a_problem_ends_it() -> None:
    freshness = FRESH.reported(NOW, "g1", [USERS], "its query fails")
    assert state_of(freshness.heard(NOW)) == "failed"
    assert state_of(freshness.reported(NOW, "g1", [USERS])) == "live"


def test_reports_of_generations_that_are_gone_are_forgotten() -> None:
    freshness = FRESH.reported(NOW, "g1", [USERS]).reported(NOW, "g2", [BEHIND])
    assert freshness.only({"g2", "g3"}) == FRESH.reported(NOW, "g2", [BEHIND])


def test_the_newest_report_of_a_generation_counts() -> None:
    assert state_of(FRESH.reported(NOW, "g1", [BEHIND]).reported(NOW, "g1", [USERS])) == "live"


def test_catching_up_shows_how_much_is_left_of_which_topic() -> None:
    message = FRESH.reported(NOW, "g1", [USERS, BEHIND]).status(NOW, ["g1"], {}).message
    assert "10,000 records of topic accounts" in message
    assert "users" not in message


def test_idle_shows_since_when() -> None:
    later = after(60)
    freshness = FRESH.arrived(NOW, ["accounts_ui"]).reported(later, "g1", [ACCOUNTS, USERS])
    assert freshness.status(later, ["g1"], {}).message == (
        "no new records: topic accounts since 2026-01-31 12:00:00 UTC, topic users since before the server started"
    )


@pytest.mark.parametrize("clock_set_by", [-86_400.0, 86_400.0])
def test_a_clock_that_is_set_changes_no_state(clock_set_by: float) -> None:
    freshness = FRESH.arrived(NOW, ["users_ui"]).reported(NOW, "g1", [USERS])
    assert state_of(freshness, after(1, clock_set_by=clock_set_by)) == "live"
    silent = after(DOWN_AFTER_SECONDS + 1, clock_set_by=clock_set_by)
    assert state_of(freshness, silent) == "pipeline_down"
    idle = after(IDLE_AFTER_SECONDS + 1, clock_set_by=clock_set_by)
    assert state_of(freshness.heard(idle), idle) == "idle"


def test_time_goes_on_whatever_the_clock_says() -> None:
    earlier = Moment.now()
    assert Moment.now().seconds_since(earlier) >= 0
    assert earlier.time.tzinfo is UTC

"""What becomes of messages while builds succeed and fail, and what a restart finds of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livetables.config.load import load_config
from livetables.kafka.topics import ControlRecord
from livetables.model.spec import GenerationSpec
from livetables.pipeline.control import decisions
from livetables.pipeline.control.decisions import Decisions
from livetables.pipeline.control.resolve import Discard, Resolver, Rollback
from livetables.pipeline.generations.wanted import Wanted
from livetables.pipeline.reporting import status
from livetables.pipeline.reporting.status_tables import StatusTables

SPEC = load_config(None, {}).spec
BOTH = load_config(None, {"LIVETABLES_PRESETS": "default,asof"}).spec
START = Wanted.by(SPEC)
BEGIN = datetime(2026, 1, 31, tzinfo=UTC)

Step = bytes | Literal["switch", "fail", "expire", "restart"]


class Desk:
    """Decisions, with everything around them that a test needs: the topic, builds that end as set, one old generation.

    The tables are never sent anywhere, so there is no sink.
    """

    def __init__(self, spec: GenerationSpec = SPEC) -> None:
        self.spec = spec
        self.topic: list[ControlRecord] = []
        self.tables = StatusTables(cast(Any, None), spec)
        self.decisions = Decisions(Resolver(spec, "control"), self.tables)
        self.lingering: Wanted | None = None
        self.generations = 0

    def send(self, value: bytes) -> None:
        record = ControlRecord(0, len(self.topic), BEGIN + timedelta(seconds=len(self.topic)), value)
        self.topic.append(record)
        self.decisions.undecided.append(record)
        self.decide()

    def decide(self) -> None:
        decisions = self.decisions
        while decisions.undecided:
            plan = decisions.decide({"missing": "topic missing does not exist"}, self.lingering)
            if isinstance(plan, Rollback):
                decisions.accepted(plan.wanted)
            if isinstance(plan, Rollback) and self.lingering:
                self.switch()
            decisions.decided()
        if decisions.wanted == decisions.settled and decisions.are_waiting:
            decisions.concluded(
                decisions.wanted, self.generation(decisions.wanted), "it is live already", was_live=True
            )

    def switch(self) -> None:
        """The build succeeds, if there is one."""
        decisions = self.decisions
        if decisions.wanted != decisions.settled:
            self.lingering = decisions.settled
            decisions.concluded(decisions.wanted, self.generation(decisions.wanted), "caught up", was_live=False)

    def fail(self) -> None:
        if self.decisions.wanted != self.decisions.settled:
            self.decisions.failed("failed", "its query died")

    def expire(self) -> None:
        """The time of the old generation is over."""
        self.lingering = None

    def restart(self) -> None:
        self.decisions = Decisions(Resolver(self.spec, "control"), self.tables)
        self.decisions.restore(self.topic)
        self.lingering = None
        self.decide()

    def generation(self, wanted: Wanted) -> str:
        self.generations += 1
        name = f"g{self.generations}"
        self.tables.set("generations", {"generation": name, **status.pointed_to(wanted, self.spec)})
        return name

    def outcomes(self) -> list[str | None]:
        rows = {row["_id"]: row["outcome"] for row in self.tables.rows("control_raw")}
        return [rows[offset] for offset in range(len(self.topic))]

    def take(self, step: Step) -> None:
        match step:
            case bytes():
                self.send(step)
            case "switch":
                self.switch()
            case "fail":
                self.fail()
            case "expire":
                self.expire()
            case "restart":
                self.restart()


def message(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def test_of_a_burst_the_last_is_applied_and_the_others_are_superseded() -> None:
    desk = Desk()
    for value in (message(usersTopic="u2"), message(joinType="inner"), b"?", message(joinType="asof")):
        desk.send(value)
    assert desk.outcomes() == ["superseded", "superseded", "rejected", None]
    desk.switch()
    assert desk.outcomes() == ["superseded", "superseded", "rejected", "applied"]
    assert desk.decisions.settled == Wanted({"users": "u2", "accounts": "account"}, {"final_ui": "asof"})


def test_when_a_build_fails_all_that_went_into_it_has_failed() -> None:
    desk = Desk()
    for value in (message(usersTopic="u2"), message(joinType="inner"), message(joinType="join")):
        desk.send(value)
    assert desk.outcomes() == ["superseded", None, None]
    desk.fail()
    assert desk.outcomes() == ["failed", "failed", "failed"]
    assert desk.decisions.wanted == START
    assert "its query died" in desk.decisions.notice


def test_a_build_that_fails_is_logged_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "livetables.control")
    desk = Desk()
    desk.send(message(joinType="inner"))
    desk.fail()
    logged = [record.getMessage() for record in caplog.records if "event=failed" in record.getMessage()]
    assert logged == ['event=failed why="its query died"']


def test_a_message_that_asks_for_what_is_live_during_a_build_is_unchanged() -> None:
    desk = Desk()
    desk.send(message(joinType="inner"))
    desk.send(message(joinType="left"))
    assert desk.outcomes() == ["superseded", "unchanged"]
    assert desk.decisions.wanted == START


def test_what_agreed_with_a_superseded_message_is_superseded_too() -> None:
    desk = Desk()
    for join in ("inner", "inner", "asof"):
        desk.send(message(joinType=join))
    assert desk.outcomes() == ["superseded", "superseded", None]


def test_an_unchanged_message_refreshes_when_it_was_applied() -> None:
    desk = Desk()
    desk.send(message(joinType="inner"))
    desk.switch()
    first = desk.decisions.last_applied
    assert first
    desk.send(message())
    assert desk.outcomes() == ["applied", "unchanged"]
    assert desk.decisions.last_applied
    assert desk.decisions.last_applied > first


def test_a_topic_that_is_missing_does_not_spoil_the_rest_of_its_burst() -> None:
    desk = Desk()
    desk.send(message(usersTopic="missing"))
    desk.send(message(joinType="inner"))
    desk.switch()
    assert desk.outcomes() == ["rejected", "applied"]
    assert desk.decisions.settled == Wanted(START.topics, {"final_ui": "inner"})


def test_a_rollback_goes_back_and_forth() -> None:
    desk = Desk()
    desk.send(message(joinType="inner"))
    desk.switch()
    desk.send(message(rollback=True))
    assert desk.decisions.settled == START
    desk.send(message(rollback=True))
    assert desk.decisions.settled == Wanted(START.topics, {"final_ui": "inner"})
    desk.take("expire")
    desk.send(message(rollback=True))
    assert desk.outcomes() == ["applied", "applied", "applied", "rejected"]


def test_a_rollback_that_could_not_be_made_in_time_is_rejected_and_changes_nothing() -> None:
    """The server did not answer, so that it is decided on again; meanwhile the time of what it was for is over."""
    desk = Desk()
    desk.send(message(usersTopic="u2"))
    desk.switch()
    desk.topic.append(ControlRecord(0, 1, BEGIN, message(rollback=True)))
    desk.decisions.undecided.append(desk.topic[-1])
    assert isinstance(desk.decisions.decide({}, START), Rollback)
    desk.expire()
    desk.decide()
    assert desk.outcomes() == ["applied", "rejected"]
    assert desk.decisions.wanted == desk.decisions.settled != START
    assert not desk.decisions.are_waiting


def test_without_any_outcome_all_messages_are_folded_again_rollbacks_too() -> None:
    desk = Desk()
    for value in (message(joinType="inner"), message(joinType="asof"), message(rollback=True)):
        desk.send(value)
        desk.switch()
    desk.tables = StatusTables(cast(Any, None), SPEC)  # a server that has lost its tables
    desk.restart()
    assert desk.decisions.wanted == Wanted(START.topics, {"final_ui": "inner"})
    desk.switch()
    assert desk.outcomes() == ["superseded", "superseded", "applied"]


def test_a_topic_that_was_created_again_has_messages_of_its_own() -> None:
    desk = Desk()
    desk.send(message(joinType="inner"))
    desk.switch()
    desk.topic = [ControlRecord(0, 0, BEGIN + timedelta(days=1), message(joinType="asof"))]
    desk.restart()
    assert desk.decisions.settled == START
    assert desk.decisions.wanted == Wanted(START.topics, {"final_ui": "asof"})


TOPICS = st.sampled_from(["user", "u2", "u3", "missing", "!"])
MESSAGES = st.one_of(
    st.builds(lambda topic: message(usersTopic=topic), TOPICS),
    st.builds(lambda join: message(joinType=join), st.sampled_from(["left", "inner", "aj", "odd"])),
    st.builds(lambda topic, join: message(accountsTopic=topic, joinType=join), TOPICS, st.sampled_from(["left", "aj"])),
    st.just(message(rollback=True)),
    st.just(b"not JSON"),
)
STEPS = st.lists(
    st.one_of(MESSAGES, st.sampled_from(["switch", "switch", "fail", "expire", "restart"])), min_size=1, max_size=25
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_a_restart_at_any_time_finds_what_was_wanted(steps: list[Step]) -> None:
    desk = Desk()
    for step in steps:
        desk.take(step)
        before = desk.decisions.settled, desk.decisions.wanted
        outcomes = desk.outcomes()
        lingering = desk.lingering
        desk.restart()
        assert (desk.decisions.settled, desk.decisions.wanted) == before
        assert desk.outcomes() == outcomes
        desk.lingering = lingering


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(STEPS, max_size=3).map(lambda lists: [step for each in lists for step in each]))
def test_a_restart_finds_what_was_wanted_also_when_old_messages_have_no_rows(steps: list[Step]) -> None:
    """Beside a table that keeps all of them: the same state, the same outcomes, nothing decided again."""
    whole, bounded = Desk(), Desk()
    for step in steps:
        whole.take(step)
        whole.restart()
        with patch.multiple(decisions, MESSAGES_MAX=3, MESSAGES_MORE=1, CHANGES_MIN=2):
            bounded.take(step)
            bounded.restart()
        assert (bounded.decisions.settled, bounded.decisions.wanted) == (
            whole.decisions.settled,
            whole.decisions.wanted,
        )
        outcomes = {row["_id"]: row["outcome"] for row in bounded.tables.rows("control_raw")}
        assert outcomes == {each: whole.outcomes()[each] for each in outcomes}
        newest = range(max(0, len(whole.topic) - 3), len(whole.topic))
        assert set(newest) <= outcomes.keys(), "a new one has no row"


def test_control_raw_does_not_grow_for_ever() -> None:
    with patch.multiple(decisions, MESSAGES_MAX=20, MESSAGES_MORE=5, CHANGES_MIN=2):
        desk = Desk()
        for number in range(200):
            desk.send(message(usersTopic=f"u{number}") if number < 10 else message(joinType="odd"))
            desk.send(message())
            desk.switch()
            assert len(desk.tables.rows("control_raw")) <= 20 + 5 + 2 + 2
        desk.restart()
        assert desk.decisions.settled.topics["users"] == "u9"


@given(STEPS)
def test_every_message_has_one_outcome_once_the_last_build_has_ended(steps: list[Step]) -> None:
    desk = Desk()
    for step in steps:
        desk.take(step)
    desk.switch()
    assert None not in desk.outcomes()
    assert not desk.decisions.are_waiting


# Views that a message names


def test_the_joins_of_all_views_survive_a_rollback_and_a_restart() -> None:
    desk = Desk(BOTH)
    for fields in ({"user_accountJoin": "inner"}, {"joinType": "natural"}, {"user_accountJoin": "left"}):
        desk.send(message(**fields))
        desk.switch()
    desk.send(message(rollback=True))
    desk.restart()
    assert desk.decisions.settled.joins == {"final_ui": "natural", "user_account": "inner"}


def test_control_raw_has_the_join_of_each_view_in_its_column() -> None:
    desk = Desk(BOTH)
    desk.send(message(final_uiJoin="inner", user_accountJoin="left", noneJoin=""))
    row = desk.tables.row("control_raw", 0)
    assert row
    assert (row["joinType"], row["user_accountJoin"]) == ("inner", "left")


def test_a_field_that_is_unknown_is_reported_as_ignored(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "livetables.control")
    desk = Desk()
    desk.send(message(joinType="inner", requestId=7, **{f"x{number}": "" for number in range(9)}))
    desk.switch()
    row = desk.tables.row("control_raw", 0)
    assert row
    assert row["why"] == "caught up; ignored: 'requestId', 'x0', 'x1', 'x2', 'x3', ..."
    (logged,) = [record.getMessage() for record in caplog.records if "event=control " in record.getMessage()]
    assert "ignored=\"'requestId', 'x0'," in logged


# Messages that were sent twice, and other systems


def test_a_message_that_was_sent_twice_counts_once_also_after_a_restart() -> None:
    desk = Desk()
    first = b'{"joinType": "inner", "messageId": "one"}'
    desk.send(first)
    desk.switch()
    desk.send(b'{"joinType": "natural", "messageId": "two"}')
    desk.switch()
    desk.send(first)  # an answer was lost
    row = desk.tables.row("control_raw", 2)
    assert row
    assert (row["outcome"], row["why"]) == ("unchanged", "it is message 0:0, sent twice")
    assert desk.decisions.wanted.joins["final_ui"] == "natural"
    desk.restart()
    assert (desk.decisions.wanted.joins["final_ui"], desk.decisions.undecided) == ("natural", [])
    desk.send(first)
    assert desk.decisions.wanted.joins["final_ui"] == "natural"


def test_messages_without_an_id_all_count() -> None:
    desk = Desk()
    for join in ("inner", "natural", "inner"):
        desk.send(json.dumps({"joinType": join}).encode())
        desk.switch()
    assert desk.decisions.wanted.joins["final_ui"] == "inner"


def test_another_system_on_the_control_topic_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    for system in ("elsewhere grpc://x:1", "elsewhere grpc://x:1", ""):
        desk.send(json.dumps({"joinType": "inner", "system": system}).encode())
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 1
    assert "control_topic_shared" in warned[0]
    assert "elsewhere grpc://x:1" in warned[0]


def test_a_message_discards_what_is_kept_and_changes_nothing_else() -> None:
    desk = Desk()
    desk.send(message(usersTopic="u2"))
    desk.switch()
    desk.send(message(joinType="inner"))  # is being built
    desk.send(message(joinType="asof"))
    desk.decisions.undecided.append(ControlRecord(0, 3, BEGIN + timedelta(seconds=3), message(discard="g1")))
    desk.topic.append(desk.decisions.undecided[0])
    assert desk.decisions.decide({}, None, ["g1"]) == Discard("g1")
    desk.decisions.discarded("g1")
    desk.decisions.decided()
    desk.send(message(discard="g1"))
    assert desk.outcomes() == ["applied", "superseded", None, "applied", "rejected"]
    wanted = desk.decisions.wanted
    desk.restart()
    assert (desk.decisions.wanted, desk.decisions.settled.topics["users"]) == (wanted, "u2")
    desk.switch()
    assert desk.outcomes() == ["applied", "superseded", "applied", "applied", "rejected"]

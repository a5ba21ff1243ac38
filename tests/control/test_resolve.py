"""What a message comes to, given what was wanted before it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livetables.config import load_config
from livetables.control.message import ControlMessage, Unreadable
from livetables.control.resolve import Build, Rejected, Rollback, Unchanged, Wanted, fold, resolve
from livetables.spec import GenerationSpec

SPEC = load_config(None, {}).spec
BOTH = load_config(None, {"LIVETABLES_PRESETS": "default,asof"}).spec
START = Wanted.by(SPEC)


def test_the_configuration_is_what_is_wanted_first() -> None:
    assert Wanted({"users": "user", "accounts": "account"}, "left") == START
    assert START.applied_to(SPEC) == SPEC


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (ControlMessage({"users": "u2"}), Wanted({"users": "u2", "accounts": "account"}, "left")),
        (ControlMessage({"accounts": "a2"}, "aj"), Wanted({"users": "user", "accounts": "a2"}, "asof")),
        (ControlMessage(join="JOIN"), Wanted({"users": "user", "accounts": "account"}, "inner")),
        (
            ControlMessage(join="Left_Outer", topics={"users": "u"}),
            Wanted({"users": "u", "accounts": "account"}, "left"),
        ),
    ],
)
def test_what_is_given_changes_and_the_rest_stays(message: ControlMessage, wanted: Wanted) -> None:
    assert resolve(message, START, SPEC, "control") == Build(wanted)


@pytest.mark.parametrize(
    "message",
    [
        ControlMessage(),
        ControlMessage(join="left_outer"),
        ControlMessage({"users": "user", "accounts": "account"}, "left"),
    ],
)
def test_what_is_there_already_is_unchanged(message: ControlMessage) -> None:
    assert resolve(message, START, SPEC, "control") == Unchanged()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Unreadable("it is not JSON"), "it is not JSON"),
        (ControlMessage(join="outer"), "there is no join 'outer'; did you mean \"left_outer\"?"),
        (ControlMessage(join="cross" * 100), "use one of inner, join, left"),
        (ControlMessage({"users": "no/topic"}), "usersTopic is no name of a topic"),
        (ControlMessage({"users": ".."}), "usersTopic is no name of a topic"),
        (ControlMessage({"users": "x" * 250}), "usersTopic is no name of a topic"),
        (ControlMessage({"users": "control"}), "usersTopic is the control topic"),
        (ControlMessage({"user": "u2"}), 'did you mean "usersTopic"?'),
    ],
)
def test_what_makes_no_sense_is_rejected_with_the_cure(message: ControlMessage | Unreadable, reason: str) -> None:
    plan = resolve(message, START, SPEC, "control")
    assert isinstance(plan, Rejected)
    assert reason in plan.reason
    assert len(plan.reason) < 400


def test_a_join_without_a_view_that_follows_it_is_rejected() -> None:
    spec = load_config(None, {"LIVETABLES_PRESETS": "asof"}).spec
    plan = resolve(ControlMessage(join="inner"), Wanted.by(spec), spec, "control")
    assert isinstance(plan, Rejected)
    assert "final_ui" in plan.reason


def test_other_views_keep_their_join() -> None:
    plan = resolve(ControlMessage(join="inner"), Wanted.by(BOTH), BOTH, "control")
    assert isinstance(plan, Build)
    joins = {view.name: view.join for view in plan.wanted.applied_to(BOTH).views}
    assert joins == {"final_ui": "inner", "user_account": "asof"}


def test_a_lookback_goes_with_the_asof_that_it_is_for() -> None:
    view = replace(SPEC.views[0], join="asof", lookback_seconds=60)
    spec = GenerationSpec(SPEC.tables, (view,))
    assert Wanted(START.topics, "left").applied_to(spec).views[0].lookback_seconds is None
    assert Wanted(START.topics, "asof").applied_to(spec).views[0].lookback_seconds == 60


def test_a_rollback_is_a_plan_of_its_own() -> None:
    assert resolve(ControlMessage(rollback=True), START, SPEC, "control") == Rollback()


MESSAGES = st.lists(
    st.one_of(
        st.builds(
            ControlMessage,
            st.dictionaries(st.sampled_from(["users", "accounts", "others"]), st.sampled_from(["a", "b", "!"])),
            st.sampled_from([None, "left", "inner", "aj", "odd"]),
        ),
        st.just(ControlMessage(rollback=True)),
        st.just(Unreadable("it is not JSON")),
    ),
    max_size=8,
)


@given(MESSAGES)
def test_messages_folded_together_want_what_they_want_one_by_one(messages: list[ControlMessage | Unreadable]) -> None:
    folded = fold(messages, START, SPEC, "control")
    wanted = START
    for message, plan in zip(messages, folded.plans, strict=True):
        assert plan == resolve(message, wanted, SPEC, "control")
        wanted = plan.wanted if isinstance(plan, Build) else wanted
    assert folded.wanted == wanted
    builds = [place for place, plan in enumerate(folded.plans) if isinstance(plan, Build)]
    assert folded.built == (builds[-1] if builds else None)

"""What a message comes to, given what was wanted before it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from livetables.config.load import load_config
from livetables.model.control_message import ControlMessage, Unreadable, parse
from livetables.model.spec import Column, GenerationSpec, Table, View
from livetables.pipeline.control.resolve import (
    Build,
    ControlState,
    Decided,
    Outcome,
    Plan,
    Rejected,
    Resolver,
    Rollback,
    Unchanged,
)
from livetables.pipeline.generations.wanted import Wanted
from tests.support.pages import ROOT, blocks

SPEC = load_config(None, {}).spec
BOTH = load_config(None, {"LIVETABLES_PRESETS": "default,asof"}).spec
START = Wanted.by(SPEC)
SHOP = GenerationSpec(
    (
        Table("orders", "shop.orders", (Column("customer", "string"), Column("total", "double")), "orders_ui"),
        Table("customers", "shop.customers", (Column("customer", "string"),), "customers_ui"),
    ),
    (View("orders_by_city", "natural", "orders", "customers", "customer"),),
    join_type_view="orders_by_city",
)
RESOLVER = Resolver(SPEC, "control")


def resolved(message: ControlMessage | Unreadable, wanted: Wanted = START, spec: GenerationSpec = SPEC) -> Plan:
    return Resolver(spec, "control").resolve(message, ControlState(wanted))


def test_the_configuration_is_what_is_wanted_first() -> None:
    assert Wanted({"users": "user", "accounts": "account"}, {"final_ui": "left"}) == START
    assert START.applied_to(SPEC) == SPEC


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (ControlMessage({"users": "u2"}), Wanted({"users": "u2", "accounts": "account"}, {"final_ui": "left"})),
        (ControlMessage({"accounts": "a2"}, "aj"), Wanted({"users": "user", "accounts": "a2"}, {"final_ui": "asof"})),
        (ControlMessage(join="JOIN"), Wanted({"users": "user", "accounts": "account"}, {"final_ui": "inner"})),
        (
            ControlMessage(join="Left_Outer", topics={"users": "u"}),
            Wanted({"users": "u", "accounts": "account"}, {"final_ui": "left"}),
        ),
    ],
)
def test_what_is_given_changes_and_the_rest_stays(message: ControlMessage, wanted: Wanted) -> None:
    assert resolved(message) == Build(wanted)


@pytest.mark.parametrize(
    ("name", "join"),
    [
        *((name, "left") for name in ("left", "LEFT", "left_join", "LEFT OUTER", "Left-Outer-Join", "leftOuter")),
        *((name, "inner") for name in ("inner", "inner join", "INNER_JOIN", "join", "Join")),
        *((name, "natural") for name in ("natural", "natural_join", "NATURAL JOIN", "naturalJoin")),
        *((name, "asof") for name in ("asof", "asof_join", "as_of", "As-Of Join", "aj", "AJ", "aj_join")),
    ],
)
def test_a_join_is_known_by_the_beginning_of_its_name(name: str, join: str) -> None:
    plan = resolved(ControlMessage({"users": "u2"}, name))
    assert isinstance(plan, Build)
    assert plan.wanted.joins["final_ui"] == join


def test_the_control_topic_of_another_cluster_is_no_topic_of_this_one() -> None:
    message = ControlMessage({"users": "control"})
    assert isinstance(Resolver(SPEC, "control").resolve(message, ControlState(START)), Rejected)
    assert isinstance(Resolver(SPEC, None).resolve(message, ControlState(START)), Build)


@pytest.mark.parametrize(
    "message",
    [
        ControlMessage(),
        ControlMessage(join="left_outer"),
        ControlMessage({"users": "user", "accounts": "account"}, "left"),
    ],
)
def test_what_is_there_already_is_unchanged(message: ControlMessage) -> None:
    assert resolved(message) == Unchanged()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Unreadable("it is not JSON"), "it is not JSON"),
        (ControlMessage(join="outer"), "there is no join 'outer'; use a name that begins with inner, join, left"),
        (ControlMessage(join="cross" * 100), "use a name that begins with inner, join, left"),
        (ControlMessage(join="right_outer"), "there is no join 'right_outer'"),
        (ControlMessage(join="left anti"), "there is no join 'left anti'"),
        (ControlMessage(join="LEFT_SEMI"), "there is no join 'LEFT_SEMI'"),
        (ControlMessage(join="_ -"), "there is no join '_ -'"),
        (ControlMessage({"users": "no/topic"}), "usersTopic is not a valid topic name"),
        (ControlMessage({"users": ".."}), "usersTopic is not a valid topic name"),
        (ControlMessage({"users": "x" * 250}), "usersTopic is not a valid topic name"),
        (ControlMessage({"users": "control"}), "usersTopic is the control topic"),
        (ControlMessage({"user": "u2"}), 'did you mean "usersTopic"?'),
    ],
)
def test_what_makes_no_sense_is_rejected_with_the_cure(message: ControlMessage | Unreadable, reason: str) -> None:
    plan = resolved(message)
    assert isinstance(plan, Rejected)
    assert reason in plan.reason
    assert len(plan.reason) < 400


def test_the_asof_preset_alone_does_not_follow_join_type() -> None:
    spec = load_config(None, {"LIVETABLES_PRESETS": "asof"}).spec
    plan = resolved(ControlMessage(join="inner"), Wanted.by(spec), spec)
    assert plan == Rejected("joinType means no view of this configuration; name the view: user_accountJoin")


@pytest.mark.parametrize("message", [ControlMessage(join="inner"), ControlMessage(joins={"orders_by_city": "inner"})])
def test_the_only_view_of_a_configuration_follows_join_type_and_its_own_field(message: ControlMessage) -> None:
    plan = resolved(message, Wanted.by(SHOP), SHOP)
    assert isinstance(plan, Build)
    assert [view.join for view in plan.wanted.applied_to(SHOP).views] == ["inner"]


def test_the_example_of_the_readme_can_be_switched(tmp_path: Path) -> None:
    (example,) = [block.text for block in blocks(ROOT / "README.md") if "[views.orders_by_city]" in block.text]
    (tmp_path / "livetables.toml").write_text(example)
    (tmp_path / "jaas.conf").write_text("secret")
    spec = load_config(tmp_path / "livetables.toml", {}).spec
    message = parse(b'{"orders_by_cityJoin": "inner"}')
    plan = resolved(message, Wanted.by(spec), spec)
    assert isinstance(plan, Build)
    (view,) = plan.wanted.applied_to(spec).views
    assert (view.name, view.join) == ("orders_by_city", "inner")


def test_a_message_names_the_view_whose_join_it_changes() -> None:
    plan = resolved(ControlMessage(joins={"user_account": "left"}), Wanted.by(BOTH), BOTH)
    assert isinstance(plan, Build)
    assert plan.wanted.joins == {"final_ui": "left", "user_account": "left"}


def test_where_no_view_is_meant_by_join_type_the_rejection_names_the_fields() -> None:
    views = (SHOP.views[0], replace(SHOP.views[0], name="cities"))
    spec = GenerationSpec(SHOP.tables, views)
    plan = resolved(ControlMessage(join="inner"), Wanted.by(spec), spec)
    assert isinstance(plan, Rejected)
    assert plan.reason.endswith("name the view: orders_by_cityJoin, citiesJoin")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (ControlMessage(joins={"final": "inner"}), "there is no view 'final'; did you mean \"final_uiJoin\"?"),
        (ControlMessage(joins={"x": "inner"}), "there is no view 'x'; use one of user_accountJoin, final_uiJoin"),
        (ControlMessage(joins={"final_ui": "cross"}), "there is no join 'cross'"),
        (ControlMessage(join="left", joins={"final_ui": "inner"}), "ask for different joins of final_ui"),
    ],
)
def test_a_join_that_no_view_can_have_is_rejected(message: ControlMessage, reason: str) -> None:
    plan = resolved(message, Wanted.by(BOTH), BOTH)
    assert isinstance(plan, Rejected)
    assert reason in plan.reason


def test_join_type_and_the_field_of_its_view_may_agree() -> None:
    plan = resolved(ControlMessage(join="JOIN", joins={"final_ui": "inner"}))
    assert plan == Build(Wanted(START.topics, {"final_ui": "inner"}))


def test_other_views_keep_their_join() -> None:
    plan = resolved(ControlMessage(join="inner"), Wanted.by(BOTH), BOTH)
    assert isinstance(plan, Build)
    joins = {view.name: view.join for view in plan.wanted.applied_to(BOTH).views}
    assert joins == {"final_ui": "inner", "user_account": "asof"}


def test_a_lookback_goes_with_the_asof_that_it_is_for() -> None:
    view = replace(SPEC.views[0], join="asof", lookback_seconds=60)
    spec = GenerationSpec(SPEC.tables, (view,))
    assert Wanted(START.topics, {"final_ui": "left"}).applied_to(spec).views[0].lookback_seconds is None
    assert Wanted(START.topics, {"final_ui": "asof"}).applied_to(spec).views[0].lookback_seconds == 60


def test_a_topic_that_cannot_be_read_is_rejected_with_its_reason() -> None:
    unusable = {"u2": 'topic "u2" does not exist; create it'}
    assert RESOLVER.resolve(ControlMessage({"users": "u2"}), ControlState(START), unusable) == Rejected(unusable["u2"])
    assert isinstance(RESOLVER.resolve(ControlMessage({"users": "u3"}), ControlState(START), unusable), Build)


def test_a_rollback_returns_to_what_was_before_and_is_rejected_without_it() -> None:
    before = Wanted(START.topics, {"final_ui": "inner"})
    assert RESOLVER.resolve(ControlMessage(rollback=True), ControlState(START, before)) == Rollback(before)
    rejected = RESOLVER.resolve(ControlMessage(rollback=True), ControlState(START))
    assert isinstance(rejected, Rejected)
    assert "keep_generations" in rejected.reason


def join(kind: str, outcome: Outcome) -> Decided:
    return Decided(ControlMessage(join=kind), outcome)


def with_join(kind: str) -> Wanted:
    message = RESOLVER.resolve(ControlMessage(join=kind), ControlState(START))
    assert isinstance(message, Build)
    return message.wanted


def test_what_was_rejected_or_failed_is_not_wanted_after_a_restart() -> None:
    restored = RESOLVER.restored([join("inner", "applied"), join("asof", "failed"), join("natural", "rejected")])
    assert restored.applied == restored.state.wanted == with_join("inner")
    assert restored.state.previous == START
    assert restored.waiting == ()


def test_superseded_messages_go_into_what_was_applied_after_them() -> None:
    topic = Decided(ControlMessage({"users": "u2"}), "superseded")
    restored = RESOLVER.restored([topic, join("inner", "applied")])
    assert restored.applied == Wanted({"users": "u2", "accounts": "account"}, {"final_ui": "inner"})
    assert restored.state.previous == START


def test_superseded_messages_wait_for_the_one_that_is_not_decided() -> None:
    topic = Decided(ControlMessage({"users": "u2"}), "superseded")
    restored = RESOLVER.restored([join("inner", "applied"), topic])
    assert restored.applied == with_join("inner")
    assert restored.state.wanted == Wanted({"users": "u2", "accounts": "account"}, {"final_ui": "inner"})
    assert restored.waiting == (1,)


def test_a_rollback_is_restored_to_where_it_went() -> None:
    rollback = Decided(ControlMessage(rollback=True), "applied", with_join("inner"))
    restored = RESOLVER.restored([join("inner", "applied"), join("asof", "applied"), rollback])
    assert restored.applied == restored.state.wanted == with_join("inner")
    assert restored.state.previous == with_join("asof")


def test_the_configuration_of_today_is_what_messages_are_on_top_of() -> None:
    other = load_config(None, {"LIVETABLES_TABLES_USERS_TOPIC": "people"}).spec
    restored = Resolver(other, "control").restored([join("inner", "applied")])
    assert restored.applied == Wanted({"users": "people", "accounts": "account"}, {"final_ui": "inner"})


# Topics that messages may name, and other systems


@pytest.mark.parametrize(
    ("topic", "is_allowed"),
    [("shop.users", True), ("Shop.users", False), ("hr.salaries", False), ("user", True), ("shopx", False)],
)
def test_messages_name_only_topics_that_are_allowed_or_configured(topic: str, is_allowed: bool) -> None:
    resolver = Resolver(SPEC, "control", ("shop.*",))
    plan = resolver.resolve(ControlMessage({"users": topic}), ControlState(Wanted.by(SPEC)))
    if is_allowed:
        assert isinstance(plan, Build | Unchanged)
    else:
        assert isinstance(plan, Rejected)
        assert plan.reason == (
            f"usersTopic is {topic}, which control messages may not name; control.topics allows shop.*"
        )


def test_a_message_for_another_system_is_rejected_by_one_that_has_a_name() -> None:
    message = ControlMessage(join="inner", system="staging")
    plan = Resolver(SPEC, "control", system="production").resolve(message, ControlState(Wanted.by(SPEC)))
    assert plan == Rejected("it is for the system 'staging'; this one is production (control.system)")
    for system in ("staging", None):  # its own name, and none
        resolver = Resolver(SPEC, "control", system=system)
        assert isinstance(resolver.resolve(message, ControlState(Wanted.by(SPEC))), Build)


def test_a_message_without_a_system_is_for_all() -> None:
    resolver = Resolver(SPEC, "control", system="production")
    assert isinstance(resolver.resolve(ControlMessage(join="inner"), ControlState(Wanted.by(SPEC))), Build)

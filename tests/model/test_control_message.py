"""Control messages as people and programs send them, good ones and bad ones."""

from __future__ import annotations

import json

import pytest

from livetables.model.control_message import ControlMessage, Unreadable, check, parse


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"{}", ControlMessage()),
        (b'{"usersTopic": "u2"}', ControlMessage({"users": "u2"})),
        (b'{"joinType": "inner"}', ControlMessage(join="inner")),
        (
            b'{"usersTopic": "u", "accountsTopic": "a", "joinType": "aj"}',
            ControlMessage({"users": "u", "accounts": "a"}, "aj"),
        ),
        (b'{"usersTopic": "", "accountsTopic": "  ", "joinType": null}', ControlMessage()),
        (b'{"usersTopic": " u2 ", "joinType": " left\\n"}', ControlMessage({"users": "u2"}, "left")),
        (b'{"orders_by_cityJoin": " inner "}', ControlMessage(joins={"orders_by_city": "inner"})),
        (b'{"orders_by_cityJoin": null, "final_uiJoin": ""}', ControlMessage()),
        (b'{"joinType": "left", "bJoin": "aj"}', ControlMessage(join="left", joins={"b": "aj"})),
        (b'{"rollback": true}', ControlMessage(rollback=True)),
        (b'{"rollback": false, "joinType": "left"}', ControlMessage(join="left")),
        (b'{"rollback": true, "usersTopic": ""}', ControlMessage(rollback=True)),
        (b'{"discard": " g7-1f3a9c2e "}', ControlMessage(discard="g7-1f3a9c2e")),
        (b'{"requestId": 7, "usersTopic": "u2"}', ControlMessage({"users": "u2"}, ignored=("requestId",))),
    ],
)
def test_a_message_may_give_any_of_its_fields(value: bytes, message: ControlMessage) -> None:
    assert parse(value) == message


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "no value"),
        (b"", "not JSON"),
        (b"usersTopic=u2", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 60_000, "not JSON"),
        (b"[]", "not a JSON object but a list"),
        (b"null", "not a JSON object but null"),
        (b'"left"', "not a JSON object but text"),
        (b'{"usersTopic": 5}', '"usersTopic" is a number; it must be text'),
        (b'{"users-Topic": "u2"}', '"users-Topic" does not name a table'),
        (b'{"Join": "left"}', '"Join" does not name a view'),
        (b'{"joinType": ["left"]}', '"joinType" is a list'),
        (b'{"orders_by_cityJoin": 5}', '"orders_by_cityJoin" is a number; it must be text'),
        (b'{"orders_by_cityJoin": "left", "rollback": true}', "send two messages"),
        (b'{"rollback": "yes"}', "rollback is text; it must be true or false"),
        (b'{"rollback": true, "joinType": "left"}', "send two messages"),
        (b'{"discard": true}', "discard is true or false; it must be the name of a generation"),
        (b'{"discard": "g7", "rollback": true}', "send two messages"),
        (b'{"joinType": "left", "joinType": "inner"}', "occurs twice"),
        (json.dumps({"usersTopic": "x" * 70_000}).encode(), "at most 65,536"),
    ],
)
def test_what_cannot_be_read_has_a_reason(value: bytes | None, reason: str) -> None:
    message = parse(value)
    assert isinstance(message, Unreadable)
    assert reason in message.reason


@pytest.mark.parametrize(
    "message",
    [
        ControlMessage({"users": "u2", "accounts": "a2"}, "left"),
        ControlMessage(joins={"orders_by_city": "inner", "final_ui": "asof"}),
        ControlMessage(rollback=True),
        ControlMessage(discard="g7-1f3a9c2e"),
    ],
)
def test_what_is_sent_for_a_message_is_read_as_that_message(message: ControlMessage) -> None:
    assert check(message.fields()) == message
    assert parse(json.dumps(message.fields()).encode()) == message


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "there is nothing to change; use <table>Topic, <view>Join, joinType, rollback or discard"),
        ({"jointype": "left"}, '"jointype" is not a field of control messages; use <table>Topic, <view>Join, joinType'),
        ({"joinType": "left", "messageId": "one"}, '"messageId" is not a field of control messages'),
        ({"joinType": "left", "system": "staging"}, '"system" is not a field of control messages'),
        ({"rollback": True, "usersTopic": ""}, "a rollback goes alone"),
        ({"discard": "g7", "usersTopic": ""}, "discarding a generation goes alone"),
        ({"usersTopic": 5}, "it must be text"),
    ],
)
def test_what_is_sent_through_the_server_has_known_fields_only(fields: dict[str, object], reason: str) -> None:
    message = check(fields)
    assert isinstance(message, Unreadable)
    assert reason in message.reason

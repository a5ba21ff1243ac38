"""Control messages as people and programs send them, good ones and bad ones."""

from __future__ import annotations

import json

import pytest

from livetables.model.control_message import ControlMessage, Unreadable, parse


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
        (b'{"joinType": ["left"]}', '"joinType" is a list'),
        (b'{"rollback": "yes"}', "rollback is text; it must be true or false"),
        (b'{"rollback": true, "joinType": "left"}', "send two messages"),
        (b'{"discard": true}', "discard is true or false; it must be the name of a generation"),
        (b'{"discard": "g7", "rollback": true}', "send two messages"),
        (b'{"joinType": "left", "joinType": "inner"}', "occurs twice"),
        (json.dumps({"usersTopic": "x" * 70_000}).encode(), "at most 65,536"),
    ],
)
def test_what_cannot_be_read_is_told_why(value: bytes | None, reason: str) -> None:
    message = parse(value)
    assert isinstance(message, Unreadable)
    assert reason in message.reason

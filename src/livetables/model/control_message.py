"""A control message: what somebody wants, in any subset of its fields, or why it cannot be understood."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

JOIN_FIELD = "joinType"
ROLLBACK_FIELD = "rollback"
DISCARD_FIELD = "discard"
TOPIC_SUFFIX = "Topic"
ID_FIELD = "messageId"
SYSTEM_FIELD = "system"
MAX_BYTES = 64 * 1024
MAX_SHOWN = 200


@dataclass(frozen=True)
class ControlMessage:
    """The fields that were given. A blank one counts as not given: it keeps what is. One unknown is of no account."""

    topics: Mapping[str, str] = field(default_factory=dict)  # by table
    join: str | None = None
    rollback: bool = False
    discard: str | None = None  # the name of a kept generation, to be removed
    ignored: tuple[str, ...] = ()
    message_id: str | None = None  # the same again is the same message, sent twice
    system: str | None = None  # that it is for


@dataclass(frozen=True)
class Unreadable:
    """A message that nobody can act on, and why."""

    reason: str


def parse(value: bytes | None) -> ControlMessage | Unreadable:
    """Read the value of a record of the control topic."""
    if value is None:
        return Unreadable("it has no value")
    if len(value) > MAX_BYTES:
        return Unreadable(f"it has {len(value):,} bytes; at most {MAX_BYTES:,} are read")
    try:
        fields = json.loads(value, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        return Unreadable(str(error) if isinstance(error, _TwiceError) else "it is not JSON")
    if not isinstance(fields, dict):
        return Unreadable(f"it is not a JSON object but {_kind(fields)}")
    return _message(fields)


def _message(fields: Mapping[str, object]) -> ControlMessage | Unreadable:
    topics: dict[str, str] = {}
    join: str | None = None
    rollback = False
    discard: str | None = None
    ignored: list[str] = []
    about: dict[str, str] = {}  # the message itself
    for name, value in fields.items():
        if name == ROLLBACK_FIELD and isinstance(value, bool):
            rollback = value
        elif name == ROLLBACK_FIELD:
            return Unreadable(f"{ROLLBACK_FIELD} is {_kind(value)}; it must be true or false")
        elif name in (ID_FIELD, SYSTEM_FIELD) and isinstance(value, str) and value.strip():
            about[name] = value.strip()
        elif name == DISCARD_FIELD and isinstance(value, str) and value.strip():
            discard = value.strip()
        elif name == DISCARD_FIELD:
            return Unreadable(f"{DISCARD_FIELD} is {_kind(value)}; it must be the name of a generation")
        elif name != JOIN_FIELD and not name.endswith(TOPIC_SUFFIX):
            ignored.append(name)
        elif value is not None and not isinstance(value, str):
            return Unreadable(f"{_shown(name)} is {_kind(value)}; it must be text")
        elif isinstance(value, str) and value.strip():
            if name == JOIN_FIELD:
                join = value.strip()
            else:
                topics[name.removesuffix(TOPIC_SUFFIX)] = value.strip()
    if rollback and (topics or join):
        return Unreadable("it asks for a rollback and for a change at once; send two messages")
    if discard and (topics or join or rollback):
        return Unreadable("it asks to discard a generation and for a change at once; send two messages")
    return ControlMessage(topics, join, rollback, discard, tuple(ignored), about.get(ID_FIELD), about.get(SYSTEM_FIELD))


class _TwiceError(ValueError):
    pass


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise _TwiceError("a field occurs twice")
    return fields


def _kind(value: object) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return kinds.get(type(value), "null")


def _shown(text: str) -> str:
    shown = json.dumps(text, ensure_ascii=True)
    return shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}…"

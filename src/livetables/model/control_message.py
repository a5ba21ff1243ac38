"""The grammar of control messages: the only one, for everything that reads or sends them.

| field | value | asks for |
|---|---|---|
| `<table>Topic` | text | the topic that a table is read from |
| `<view>Join` | text | the join of a view |
| `joinType` | text | the join of the view that the configuration means by it (`GenerationSpec.join_type_view`) |
| `rollback` | true | the generation that was live before; alone |
| `discard` | text | the removal of a generation that is kept; alone |
| `messageId`, `system` | text | nothing: which message it is, and the system that it is for |

A field that is missing, null or blank keeps the current value. Every other field is unknown. On the control topic
(`parse`) unknown fields are ignored, and the log and `control_raw` report them: producers may have fields of their own.
Through the server, by HTTP, the command line, Python or the page (`check`), they are an error that names the known
ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from livetables.model.spec import NAME_PATTERN, GenerationSpec

JOIN_FIELD = "joinType"
ROLLBACK_FIELD = "rollback"
DISCARD_FIELD = "discard"
TOPIC_SUFFIX = "Topic"
JOIN_SUFFIX = "Join"
ID_FIELD = "messageId"
SYSTEM_FIELD = "system"
FIELDS_CURE = f"use <table>{TOPIC_SUFFIX}, <view>{JOIN_SUFFIX}, {JOIN_FIELD}, {ROLLBACK_FIELD} or {DISCARD_FIELD}"
MAX_BYTES = 64 * 1024
MAX_SHOWN = 200

Fields = dict[str, str | bool]


@dataclass(frozen=True)
class ControlMessage:
    """The fields that were given. A blank one counts as not given; an unknown one is only listed in `ignored`."""

    topics: Mapping[str, str] = field(default_factory=dict)  # by table
    join: str | None = None  # of the view that `joinType` means
    rollback: bool = False
    discard: str | None = None  # the name of a kept generation, to be removed
    ignored: tuple[str, ...] = ()
    message_id: str | None = None  # two messages with the same one are one message, sent twice
    system: str | None = None  # that it is for
    joins: Mapping[str, str] = field(default_factory=dict)  # by view, of those that are named

    def fields(self) -> Fields:
        """Return what to send for it."""
        topics = {topic_field(table): topic for table, topic in self.topics.items()}
        joins = {f"{view}{JOIN_SUFFIX}": join for view, join in self.joins.items()}
        return {
            **topics,
            **joins,
            **({JOIN_FIELD: self.join} if self.join is not None else {}),
            **({ROLLBACK_FIELD: True} if self.rollback else {}),
            **({DISCARD_FIELD: self.discard} if self.discard is not None else {}),
        }


@dataclass(frozen=True)
class Unreadable:
    """A message that cannot be read, and why."""

    reason: str


def topic_field(table: str) -> str:
    """Return the field that has the topic of a table."""
    return f"{table}{TOPIC_SUFFIX}"


def join_field(spec: GenerationSpec, view: str) -> str:
    """Return the field that has the join of a view, as the status tables name it."""
    return JOIN_FIELD if view == spec.join_type_view else f"{view}{JOIN_SUFFIX}"


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


def check(fields: Mapping[str, object]) -> ControlMessage | Unreadable:
    """Read the fields of a message that is to be sent: something is asked for, and every field is known."""
    if not fields:
        return Unreadable(f"there is nothing to change; {FIELDS_CURE}")
    for alone, what in ((ROLLBACK_FIELD, "a rollback"), (DISCARD_FIELD, "discarding a generation")):
        if alone in fields and len(fields) > 1:
            return Unreadable(f"{what} goes alone; send two messages")
    message = _message(fields)
    if isinstance(message, Unreadable):
        return message
    unknown = [*message.ignored, *(name for name in (ID_FIELD, SYSTEM_FIELD) if name in fields)]
    if unknown:
        return Unreadable(f"{_shown(unknown[0])} is not a field of control messages; {FIELDS_CURE}")
    return message


def _message(fields: Mapping[str, object]) -> ControlMessage | Unreadable:
    named: dict[str, dict[str, str]] = {TOPIC_SUFFIX: {}, JOIN_SUFFIX: {}}  # by table, and by view
    join: str | None = None
    rollback = False
    discard: str | None = None
    ignored: list[str] = []
    about: dict[str, str] = {}  # the message itself
    for name, value in fields.items():
        suffix = next((each for each in named if name.endswith(each)), None)
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
        elif name != JOIN_FIELD and suffix is None:
            ignored.append(name)
        elif suffix and not NAME_PATTERN.fullmatch(name.removesuffix(suffix)):
            return Unreadable(f"{_shown(name)} does not name a {'table' if suffix == TOPIC_SUFFIX else 'view'}")
        elif value is not None and not isinstance(value, str):
            return Unreadable(f"{_shown(name)} is {_kind(value)}; it must be text")
        elif isinstance(value, str) and value.strip():
            if suffix:
                named[suffix][name.removesuffix(suffix)] = value.strip()
            else:
                join = value.strip()
    topics, joins = named[TOPIC_SUFFIX], named[JOIN_SUFFIX]
    if rollback and (topics or joins or join):
        return Unreadable("it asks for a rollback and for a change at once; send two messages")
    if discard and (topics or joins or join or rollback):
        return Unreadable("it asks to discard a generation and for a change at once; send two messages")
    return ControlMessage(
        topics, join, rollback, discard, tuple(ignored), about.get(ID_FIELD), about.get(SYSTEM_FIELD), joins
    )


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

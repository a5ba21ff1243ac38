"""What a control message means for what is wanted now: a plan, no change, or a rejection with its reason. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from livetables.config.settings import choice
from livetables.model.control_message import (
    JOIN_FIELD,
    JOIN_SUFFIX,
    ControlMessage,
    Unreadable,
    topic_field,
)
from livetables.model.joins import JOIN_CURE, JoinType, join_called
from livetables.model.spec import TOPIC_CURE, GenerationSpec, is_topic_name
from livetables.pipeline.generations.wanted import Wanted

Outcome = Literal["applied", "unchanged", "superseded", "rejected", "failed"]


@dataclass(frozen=True)
class Build:
    """Build a generation for this, and switch to it."""

    wanted: Wanted


@dataclass(frozen=True)
class Unchanged:
    """What is wanted is what was wanted before."""


@dataclass(frozen=True)
class Rollback:
    """Go back to the generation that was live before, which had this."""

    wanted: Wanted


@dataclass(frozen=True)
class Rejected:
    """Nothing happens, because of this."""

    reason: str


@dataclass(frozen=True)
class Discard:
    """Remove a generation that is kept."""

    generation: str


Plan = Build | Unchanged | Rollback | Discard | Rejected


@dataclass(frozen=True)
class ControlState:
    """State that a message is resolved against."""

    wanted: Wanted
    previous: Wanted | None = None  # what a rollback returns to, if anything
    kept: tuple[str, ...] = ()  # the generations that may be discarded


@dataclass(frozen=True)
class Resolver:
    """Rules that turn messages into plans, with what does not change from one message to the next."""

    spec: GenerationSpec
    control_topic: str | None  # None: it is on another cluster, where no table is read
    allowed_topics: Sequence[str] = ()  # patterns; none: messages may name any topic
    system: str | None = None  # messages that name another one are rejected, if it is configured
    name: str = ""  # that this system's own messages have

    def is_foreign(self, message: ControlMessage | Unreadable) -> bool:
        """Whether a message is for another system than this one."""
        system = message.system if isinstance(message, ControlMessage) else None
        return system not in (None, self.system or self.name)

    def resolve(
        self, message: ControlMessage | Unreadable, state: ControlState, unusable: Mapping[str, str] | None = None
    ) -> Plan:
        """Return what to do for a message; `unusable` has why topics among those it names cannot be read."""
        if isinstance(message, Unreadable):
            return Rejected(message.reason)
        if self.system and self.is_foreign(message):
            return Rejected(
                f"it is for the system {ascii(message.system)[:120]}; this one is {self.system} (control.system)"
            )
        if message.rollback:
            if state.previous is None:
                return Rejected(
                    "there is no generation to go back to: an old one stays for generations.linger_seconds; "
                    "set generations.keep_generations to keep some for longer"
                )
            return Rollback(state.previous)
        if message.discard:
            if message.discard not in state.kept:
                names = ", ".join(state.kept) or "none is"
                return Rejected(f"generation {ascii(message.discard)[:80]} is not kept; kept: {names}")
            return Discard(message.discard)
        refused = self._refused(message, unusable or {})
        if refused:
            return Rejected(refused)
        joins = self._joins(message)
        if isinstance(joins, str):
            return Rejected(joins)
        resolved = Wanted({**state.wanted.topics, **message.topics}, {**state.wanted.joins, **joins})
        return Unchanged() if resolved == state.wanted else Build(resolved)

    def _refused(self, message: ControlMessage, unusable: Mapping[str, str]) -> str | None:
        tables = [table.name for table in self.spec.tables]
        for table, topic in message.topics.items():
            if table not in tables:
                cure = choice(topic_field(table), [topic_field(name) for name in tables])
                return f"there is no table {ascii(table)[:80]}; {cure}"
            if not is_topic_name(topic):
                return f"{table}Topic is not a valid topic name; {TOPIC_CURE}"
            if topic == self.control_topic:
                return f"{table}Topic is the control topic; give the topic that has the table's records"
            if not self._may_name(table, topic):
                allowed = ", ".join(self.allowed_topics)
                return f"{table}Topic is {topic}, which control messages may not name; control.topics allows {allowed}"
            if topic in unusable:
                return unusable[topic]
        return None

    def _joins(self, message: ControlMessage) -> dict[str, JoinType] | str:
        """Return the joins that a message asks for, by view, or why it cannot have them."""
        fields = [f"{view.name}{JOIN_SUFFIX}" for view in self.spec.views]
        asked = [(f"{view}{JOIN_SUFFIX}", view, name) for view, name in message.joins.items()]
        if message.join is not None and self.spec.join_type_view is not None:
            asked.insert(0, (JOIN_FIELD, self.spec.join_type_view, message.join))
        elif message.join is not None:
            known = f"name the view: {', '.join(fields)}" if fields else "no view is declared"
            return f"{JOIN_FIELD} means no view of this configuration; {known}"
        joins: dict[str, JoinType] = {}
        for field, view, name in asked:
            if all(view != each.name for each in self.spec.views):
                return f"there is no view {ascii(view)[:80]}; {choice(field, fields) if fields else 'none is declared'}"
            join = join_called(name)
            if join is None:
                return f"there is no join {ascii(name)[:80]}; {JOIN_CURE}"
            if joins.setdefault(view, join) != join:
                return f"{JOIN_FIELD} and {field} ask for different joins of {view}; give one of them"
        return joins

    def _may_name(self, table: str, topic: str) -> bool:
        is_configured = any(each.name == table and each.topic == topic for each in self.spec.tables)
        return (
            is_configured
            or not self.allowed_topics
            or any(fnmatchcase(topic, pattern) for pattern in self.allowed_topics)
        )

    def restored(self, decided: Iterable[Decided]) -> Restored:
        """Return what is wanted after messages that were decided on before, over the current configuration."""
        applied = wanted = Wanted.by(self.spec)
        previous: Wanted | None = None
        waiting: list[int] = []
        for place, each in enumerate(decided):
            is_discard = isinstance(each.message, ControlMessage) and each.message.discard
            if each.outcome in ("rejected", "failed") or is_discard:
                continue
            plan = self.resolve(each.message, ControlState(wanted, previous))
            if each.rolled_back_to:
                wanted = each.rolled_back_to
            elif isinstance(plan, Build | Rollback):
                wanted = plan.wanted
            if each.outcome == "superseded":
                waiting.append(place)
                continue
            waiting.clear()
            if wanted != applied:
                applied, previous = wanted, applied
        return Restored(applied, ControlState(wanted, previous), tuple(waiting))


@dataclass(frozen=True)
class Decided:
    """Message that was decided on. The message itself does not have where a rollback went to."""

    message: ControlMessage | Unreadable
    outcome: Outcome
    rolled_back_to: Wanted | None = None


@dataclass(frozen=True)
class Restored:
    """Result of decided messages. Those `waiting`, by their places, were superseded by one that is not decided."""

    applied: Wanted
    state: ControlState
    waiting: tuple[int, ...]

"""What a control message means for what is wanted now: a plan, no change, or a rejection with its reason. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from livetables.control.message import ControlMessage, Unreadable
from livetables.settings import choice
from livetables.spec import JOIN_ALIASES, TOPIC_CURE, GenerationSpec, JoinType, is_topic_name

SWITCHED_VIEW = "final_ui"


@dataclass(frozen=True)
class Wanted:
    """The topics and the join that are wanted: everything that control messages decide."""

    topics: Mapping[str, str]  # by table
    join: JoinType | None  # of the view that follows joinType; None where no view does

    @classmethod
    def by(cls, spec: GenerationSpec) -> Wanted:
        """What the configuration says, before any message."""
        view = switched_view(spec)
        topics = {table.name: table.topic for table in spec.tables}
        return cls(topics, None if view is None else next(v.join for v in spec.views if v.name == view))

    def applied_to(self, spec: GenerationSpec) -> GenerationSpec:
        """The generation to build: the configured one on these topics, with this join."""
        view = switched_view(spec)
        return GenerationSpec(
            tuple(replace(table, topic=self.topics[table.name]) for table in spec.tables),
            tuple(
                replace(v, join=self.join, lookback_seconds=v.lookback_seconds if self.join == "asof" else None)
                if v.name == view and self.join
                else v
                for v in spec.views
            ),
        )


@dataclass(frozen=True)
class Build:
    """Build a generation for this, and switch to it."""

    wanted: Wanted


@dataclass(frozen=True)
class Unchanged:
    """What is wanted is what is there."""


@dataclass(frozen=True)
class Rollback:
    """Go back to the newest lingering generation."""


@dataclass(frozen=True)
class Rejected:
    """Nothing happens, because of this."""

    reason: str


Plan = Build | Unchanged | Rollback | Rejected


def resolve(message: ControlMessage | Unreadable, wanted: Wanted, spec: GenerationSpec, control_topic: str) -> Plan:
    """What is to be done for a message, given what was wanted before it."""
    if isinstance(message, Unreadable):
        return Rejected(message.reason)
    if message.rollback:
        return Rollback()
    tables = [table.name for table in spec.tables]
    for table, topic in message.topics.items():
        if table not in tables:
            cure = choice(f"{table}Topic", [f"{name}Topic" for name in tables])
            return Rejected(f"there is no table {ascii(table)[:80]}; {cure}")
        if not is_topic_name(topic):
            return Rejected(f"{table}Topic is no name of a topic; {TOPIC_CURE}")
        if topic == control_topic:
            return Rejected(f"{table}Topic is the control topic; give the topic that has the table's records")
    join = wanted.join
    if message.join is not None:
        if message.join.lower() not in JOIN_ALIASES:
            cure = choice(message.join.lower(), JOIN_ALIASES)
            return Rejected(f"there is no join {ascii(message.join)[:80]}; {cure}")
        if join is None:
            return Rejected(f"no view follows joinType; declare one called {SWITCHED_VIEW}")
        join = JOIN_ALIASES[message.join.lower()]
    resolved = Wanted({**wanted.topics, **message.topics}, join)
    return Unchanged() if resolved == wanted else Build(resolved)


@dataclass(frozen=True)
class Folded:
    """Messages that came together, taken as one: what each of them came to, and what is wanted after the last."""

    plans: tuple[Plan, ...]
    wanted: Wanted
    built: int | None  # the message, by its place, whose state is built; those before it that differ are superseded


def fold(
    messages: Iterable[ControlMessage | Unreadable], wanted: Wanted, spec: GenerationSpec, control_topic: str
) -> Folded:
    """Resolve messages in order; of all that ask for a build, only the last state is built."""
    plans: list[Plan] = []
    built: int | None = None
    for place, message in enumerate(messages):
        plan = resolve(message, wanted, spec, control_topic)
        plans.append(plan)
        if isinstance(plan, Build):
            wanted, built = plan.wanted, place
    return Folded(tuple(plans), wanted, built)


def switched_view(spec: GenerationSpec) -> str | None:
    """The view that joinType is about, if it is declared. Other views keep the join that they are declared with."""
    return SWITCHED_VIEW if any(view.name == SWITCHED_VIEW for view in spec.views) else None

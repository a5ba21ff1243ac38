"""Control messages from their arrival to their outcome: what is wanted now, and what becomes of each message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from livetables.kafka.topics import ControlRecord
from livetables.model.control_message import ControlMessage, Unreadable, parse
from livetables.model.spec import record_id
from livetables.pipeline.control.resolve import (
    Build,
    ControlState,
    Decided,
    Discard,
    Outcome,
    Plan,
    Rejected,
    Resolver,
    Rollback,
    Unchanged,
)
from livetables.pipeline.generations.wanted import Wanted
from livetables.pipeline.log import log_event, warn
from livetables.pipeline.reporting import status
from livetables.pipeline.reporting.status_tables import StatusTables

IGNORED_SHOWN_MAX = 5  # names of unknown fields


class Decisions:
    """Decisions on messages, in the order in which they come. Their outcomes are rows of `control_raw`.

    Messages that came while a build was under way *wait* for its end: the last that asked for one, and those that went
    into what it asked for. When the build fails they all have failed, and what was applied last is wanted again.
    """

    def __init__(self, resolver: Resolver, tables: StatusTables) -> None:
        self.settled = self.wanted = Wanted.by(resolver.spec)  # what was applied last, and what is wanted since
        self.last_applied: datetime | None = None
        self.notice = ""  # what went wrong last
        self.undecided: list[ControlRecord] = []
        self._resolver = resolver
        self._tables = tables
        self._previous: Wanted | None = None  # what was wanted before, in messages from before the start
        self._is_restoring = False
        self._ids: dict[str, ControlRecord] = {}  # of messages, with the first that had it
        self._others: set[str] = set()  # systems that share the control topic, as far as they are known
        self._waiting: dict[int, Outcome] = {}  # by the record's id: what it becomes if all goes well

    def restore(self, records: Sequence[ControlRecord]) -> None:
        """Take over what became of the messages on the topic; those of which it is not known are undecided."""
        known = {_id(record): decided for record in records if (decided := self._decided_before(record))}
        self._ids = {}
        repeated = {_id(record) for record in records if self._first_of(record, parse(record.value)) is not record}
        # One that was sent twice counts once, where it came first.
        restored = self._resolver.restored(each for place, each in known.items() if place not in repeated)
        self.settled, self.wanted = restored.applied, restored.state.wanted
        self.last_applied = next((row["lastApplied"] for row in self._tables.rows("orchestrator_status")), None)
        self.undecided = [record for record in records if _id(record) not in known]
        self._previous = restored.state.previous
        self._is_restoring = True
        counted = [place for place in known if place not in repeated]
        self._waiting = {counted[place]: "superseded" for place in restored.waiting}
        log_event(
            "control_read",
            messages=len(records),
            undecided=len(self.undecided),
            **status.pointed_to(self.wanted, self._resolver.spec),
        )

    def topics_asked_for(self) -> set[str]:
        """Return the topics that undecided messages name."""
        messages = [parse(record.value) for record in self.undecided]
        return {topic for each in messages if isinstance(each, ControlMessage) for topic in each.topics.values()}

    def decide(self, unusable: Mapping[str, str], lingering: Wanted | None, kept: Iterable[str] = ()) -> Plan:
        """Decide on the first undecided message: `unusable` has why topics cannot be read.

        A Rollback or a Discard is the caller's to make before it is `decided`; everything else is done.
        """
        record = self.undecided[0]
        message = parse(record.value)
        self._record(record, message)
        self._look_who_sent(record, message)
        first = self._first_of(record, message)
        if first is not record:
            self._settle(_id(record), "unchanged", f"it is message {_place(first)}, sent twice")
            log_event("repeated", partition=record.partition, offset=record.offset, first=first.offset)
            return Unchanged()
        previous = self._previous if lingering is None and self._is_restoring else lingering
        plan = self._resolver.resolve(message, ControlState(self.wanted, previous, tuple(kept)), unusable)
        match plan:
            case Rejected(reason):
                self._settle(_id(record), "rejected", reason)
                self.notice = f"message {_place(record)} was rejected: {reason}"
                log_event("rejected", partition=record.partition, offset=record.offset, why=reason)
            case Unchanged():
                self._waiting[_id(record)] = "unchanged"
                self.notice = ""
                log_event("resolved", **status.pointed_to(self.wanted, self._resolver.spec), changed=False)
            case Discard(generation):
                log_event("resolved", discard=generation)
            case Build(wanted) | Rollback(wanted):
                self._supersede(record)
                self._waiting[_id(record)] = "applied"
                self._previous, self.wanted = self.wanted, wanted
                self.notice = ""
                log_event("resolved", **status.pointed_to(wanted, self._resolver.spec), changed=True)
        return plan

    def decided(self) -> None:
        """Remove the first undecided message: it is done with."""
        del self.undecided[0]
        self._is_restoring = self._is_restoring and bool(self.undecided)

    def discarded(self, generation: str) -> None:
        """Settle the first undecided message, which asked to remove a generation: it is gone."""
        self._settle(_id(self.undecided[0]), "applied", f"{generation} was removed", generation)
        self.notice = ""

    @property
    def are_waiting(self) -> bool:
        return bool(self._waiting)

    def concluded(self, wanted: Wanted, generation: str, why: str, *, was_live: bool) -> None:
        """Settle what waits: what was wanted is live, or was so all the time."""
        self.settled = self.wanted = wanted
        for message, outcome in self._waiting.items():
            if outcome != "superseded":
                self._settle(message, "unchanged" if was_live else outcome, why, generation)
        self._waiting = {}
        self.last_applied = self.last_applied or datetime.now(UTC)

    def failed(self, outcome: Outcome, reason: str) -> None:
        """Settle what waits: what was wanted failed, and what was applied last is wanted again."""
        for message, hoped in self._waiting.items():
            why = reason if hoped == "applied" else f"the message that it went into did not come to be live: {reason}"
            self._settle(message, outcome, why)
        self._waiting = {}
        self.wanted = self.settled
        self.notice = f"{outcome}: {reason}"
        log_event(outcome, why=reason)

    def _decided_before(self, record: ControlRecord) -> Decided | None:
        """Return what became of a message before the start. A topic created again may have another at its place."""
        row = self._tables.row("control_raw", _id(record))
        if not row or row["ts"] != record.timestamp or row["raw"] != status.readable(record.value):
            return None
        if row["outcome"] is None:
            return None
        message = parse(record.value)
        is_rollback = isinstance(message, ControlMessage) and message.rollback
        generation = self._tables.row("generations", row["generation"]) if is_rollback else None
        wanted = status.pointed_by(generation, self._resolver.spec) if generation else None
        return Decided(message, row["outcome"], wanted)

    def _record(self, record: ControlRecord, message: ControlMessage | Unreadable) -> None:
        raw = status.readable(record.value)
        place = {"_id": _id(record), "ts": record.timestamp, "partition": record.partition, "offset": record.offset}
        undecided = {"outcome": None, "why": None, "generation": None, "decided": None}
        self._tables.set(
            "control_raw", {**place, "raw": raw, **status.asked_for(message, self._resolver.spec), **undecided}
        )
        ignored = _shown(message.ignored) if isinstance(message, ControlMessage) and message.ignored else None
        log_event("control", partition=record.partition, offset=record.offset, value=raw, ignored=ignored)

    def _first_of(self, record: ControlRecord, message: ControlMessage | Unreadable) -> ControlRecord:
        """Return the first record that has the id of this one: another one, if a lost answer had it sent twice."""
        message_id = message.message_id if isinstance(message, ControlMessage) else None
        if message_id is None:
            return record
        first = self._ids.setdefault(message_id, record)
        return record if _id(first) == _id(record) else first

    def _look_who_sent(self, record: ControlRecord, message: ControlMessage | Unreadable) -> None:
        """Warn of another system that shares the control topic."""
        if not (self._resolver.is_foreign(message) and isinstance(message, ControlMessage) and message.system):
            return
        if message.system not in self._others:
            self._others.add(message.system)
            warn(
                "control_topic_shared",
                topic=self._resolver.control_topic,
                system=message.system,
                offset=record.offset,
                cure="give each system its own control.topic, or a name (control.system)",
            )

    def _supersede(self, by: ControlRecord) -> None:
        for message, outcome in self._waiting.items():
            if outcome != "superseded" and message != _id(by):
                self._settle(message, "superseded", f"message {_place(by)} came before it was live")
                self._waiting[message] = "superseded"

    def _settle(self, message: int, outcome: Outcome, why: str, generation: str | None = None) -> None:
        now = datetime.now(UTC)
        why = "; ".join(filter(None, [why, self._ignored_fields(message)]))
        row = {"_id": message, "outcome": outcome, "why": why, "generation": generation, "decided": now}
        self._tables.set("control_raw", row)
        if outcome in ("applied", "unchanged"):
            self.last_applied = now

    def _ignored_fields(self, message: int) -> str:
        """Name the fields of a message that are unknown, if it has any."""
        raw = (self._tables.row("control_raw", message) or {}).get("raw")
        read = parse(raw.encode()) if raw else None
        return f"ignored: {_shown(read.ignored)}" if isinstance(read, ControlMessage) and read.ignored else ""


def _shown(names: Sequence[str]) -> str:
    """Name fields that a stranger has named: not all, and not at any length."""
    more = ["..."] if len(names) > IGNORED_SHOWN_MAX else []
    return ", ".join([*(ascii(name)[:80] for name in names[:IGNORED_SHOWN_MAX]), *more])


def _id(record: ControlRecord) -> int:
    return record_id(record.partition, record.offset)


def _place(record: ControlRecord) -> str:
    return f"{record.partition}:{record.offset}"
